"""Find attention that is written out in products and a softmax.

    matmul(softmax(matmul(q * c, transpose(k) * c) + mask), v)   ->   attention(q, k, v, mask) {scale = c * c}

Scores may be scaled before, after or inside the product, by multiplications or divisions by constants; masks may be added
or selected; softmax may be guarded against rows without any key (NaN -> 0). Keys and values that are repeated for groups of
query heads are read once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ingot import ops
from ingot.ir.dims import DimLike
from ingot.ir.node import Const, Graph, Node
from ingot.ir.rewrite import Rule, RuleSet, rewrite
from ingot.ir.types import boolean
from ingot.passes.constants import splat_of
from ingot.passes.view_chains import VIEW_CHAINS


@dataclass(frozen=True)
class _Scores:
    """Masked, scaled scores: matmul(q, k^T) * scale + mask."""

    q: Node
    kt: Node
    scale: float
    mask: Node | None


def fuse_attention(graph: Graph) -> Graph:
    """matmul(softmax(scores), v) -> attention (see module)"""
    return rewrite(graph, VIEW_CHAINS + RuleSet((Rule("attention", ops.MatMul, _attention),)))


def _attention(n: Node) -> Node | None:
    p, v = n.inputs
    if n.type.rank not in (3, 4) or not n.dtype.is_float:
        return None
    p, guarded = _unguard(p)
    if not isinstance(p.op, ops.Softmax) or p.op.axis not in (-1, p.type.rank - 1):
        return None
    scores = _scores(p.inputs[0])
    if scores is None:
        return None
    q, kt = scores.q, scores.kt
    if not q.type.rank == kt.type.rank == v.type.rank == n.type.rank:
        return None
    rank = n.type.rank
    k = _tidy(ops.Transpose((*range(rank - 2), rank - 1, rank - 2))(kt))
    mask = scores.mask
    if mask is not None and not guarded and not _finite(mask):
        mask = _poisoned(mask)
    if rank == 3:
        q, k, v = (ops.Reshape((1, *x.shape))(x) for x in (q, k, v))
        mask = None if mask is None else ops.Reshape((1, *mask.shape))(mask) if mask.type.rank == 3 else mask
    k, v = _ungroup(k, v, q.shape[1])
    if not q.shape[0] == k.shape[0] == v.shape[0] or k.shape[1] != v.shape[1] or not _divides(k.shape[1], q.shape[1]):
        return None
    operands = (q, k, v) if mask is None else (q, k, v, mask)
    out = ops.Attention("none", scores.scale, 0.0)(*operands, loc=n.loc)
    return ops.Reshape(n.shape)(out) if rank == 3 else out


def _divides(heads: DimLike, queries: DimLike) -> bool:
    if heads == queries:
        return True
    return isinstance(heads, int) and isinstance(queries, int) and heads > 0 and queries % heads == 0


def _unguard(p: Node) -> tuple[Node, bool]:
    """select(is_nan(s), 0, s) -> s"""
    if isinstance(p.op, ops.Select) and isinstance(p.inputs[0].op, ops.IsNan):
        test, zero, s = p.inputs
        if test.inputs[0] is s and splat_of(zero) == 0:
            return s, True
    return p, False


def _scores(n: Node) -> _Scores | None:
    """The product under scaling and at most one mask, which is applied last."""
    mask: Node | None = None
    if isinstance(n.op, ops.Add):
        for a, b in (n.inputs, n.inputs[::-1]):
            if _product(a) is not None:
                n, mask = a, _narrow(b)
                break
    elif isinstance(n.op, ops.Select):
        keep, a, fill = n.inputs
        if splat_of(fill) == -np.inf and _product(a) is not None:
            n, mask = a, _narrow(keep)
    found = _product(n)
    if found is None:
        return None
    q, kt, scale = found
    return _Scores(q, kt, scale, mask)


def _product(n: Node) -> tuple[Node, Node, float] | None:
    n, scale = _unscale(n)
    if not isinstance(n.op, ops.MatMul):
        return None
    q, a = _unscale(n.inputs[0])
    kt, b = _unscale(n.inputs[1])
    return q, kt, scale * a * b


def _unscale(n: Node) -> tuple[Node, float]:
    """x * c -> (x, c), through any number of constant factors and the views between them."""
    scale = 1.0
    while True:
        if isinstance(n.op, ops.Mul):
            a, b = n.inputs
            for x, c in ((a, b), (b, a)):
                value = splat_of(c)
                if value is not None:
                    n, scale = x, scale * float(value)
                    break
            else:
                return n, scale
        elif isinstance(n.op, ops.Div) and splat_of(n.inputs[1]) is not None:
            n, scale = n.inputs[0], scale / float(splat_of(n.inputs[1]))  # type: ignore[arg-type]
        else:
            return n, scale


def _narrow(mask: Node) -> Node:
    """The mask before it was broadcast to all heads: attention broadcasts by itself."""
    while isinstance(mask.op, ops.BroadcastInDim):
        (x,) = mask.inputs
        rank = mask.type.rank
        if mask.op.dims != tuple(range(rank - x.type.rank, rank)) or x.type.rank == 0:
            return mask
        mask = x
    return mask


def _poisoned(mask: Node) -> Node:
    """An added mask in which rows that hide every key are NaN, as their softmax is; attention itself would give 0."""
    if mask.dtype == boolean:
        mask = ops.where(mask, ops.full(mask.shape, 0.0), ops.full(mask.shape, -np.inf))
    seen = ops.compare("NE", ops.reduce_max(mask, -1, keepdims=True), -np.inf)
    nan = ops.full(mask.shape, np.nan, mask.dtype)
    return ops.where(ops.broadcast_to(seen, mask.shape), mask, nan)


def _finite(mask: Node, depth: int = 12) -> bool:
    """Whether no element of an added mask can be an infinity or NaN, so that no row loses every key."""
    if depth == 0 or mask.dtype == boolean:
        return False
    op = mask.op
    if isinstance(op, Const):
        return bool(np.isfinite(op.value.astype(np.float64)).all())
    if isinstance(op, ops.Convert):
        return mask.inputs[0].dtype == boolean or mask.inputs[0].dtype.is_integer
    if isinstance(op, ops.Select):
        return all(_finite(i, depth - 1) for i in mask.inputs[1:])
    if isinstance(op, ops.Mul | ops.Sub | ops.Add):
        return all(_small(i, depth - 1) for i in mask.inputs)
    return op.rearranges and all(_finite(i, depth - 1) for i in mask.inputs)


def _small(n: Node, depth: int) -> bool:
    """Finite, and so small that a sum or a product of two such values cannot overflow."""
    value = splat_of(n)
    if value is not None:
        return abs(float(value)) < 1e30 or _finite(n)
    if isinstance(n.op, ops.Convert):
        return n.inputs[0].dtype == boolean
    if isinstance(n.op, ops.Sub | ops.Mul):
        return depth > 0 and all(_small(i, depth - 1) and not _huge(i) for i in n.inputs)
    return n.op.rearranges and depth > 0 and all(_small(i, depth - 1) for i in n.inputs)


def _huge(n: Node) -> bool:
    value = splat_of(n)
    return value is not None and abs(float(value)) >= 1e15


def _tidy(n: Node) -> Node:
    """`n` with its chain of views in shortest form."""
    for rule in VIEW_CHAINS:
        if isinstance(n.op, rule.root):
            new = rule.apply(n)
            if isinstance(new, Node):
                return new
    return n


def _ungroup(k: Node, v: Node, heads: DimLike) -> tuple[Node, Node]:
    """Keys and values before they were repeated for the query heads of their group."""
    a, b = _unrepeat(k), _unrepeat(v)
    if a is None or b is None or a.shape[1] != b.shape[1]:
        return k, v
    return a, b


def _unrepeat(x: Node) -> Node | None:
    """reshape[B,H*r,S,D](broadcast[B,H,r,S,D](y[B,H,1,S,D])) -> y[B,H,S,D]"""
    if not isinstance(x.op, ops.Reshape) or not isinstance(x.inputs[0].op, ops.BroadcastInDim):
        return None
    wide = x.inputs[0]
    op = wide.op
    assert isinstance(op, ops.BroadcastInDim)
    if wide.type.rank != 5 or x.type.rank != 4:
        return None
    batch, own, _, length, depth = wide.shape
    if x.shape[0] != batch or x.shape[2:] != (length, depth):
        return None
    (y,) = wide.inputs
    if op.dims == (0, 1, 3, 4):
        return y if y.shape == (batch, own, length, depth) else None
    if op.dims == (0, 1, 2, 3, 4) and y.shape == (batch, own, 1, length, depth):
        return ops.Reshape((batch, own, length, depth))(y)
    return None
