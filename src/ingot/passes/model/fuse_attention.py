"""Recognize attention in products and a softmax.

    matmul(softmax(matmul(q * c, transpose(k) * c) + mask), v)   ->   attention(q, k, v, mask) {scale = c * c}

Scores may be scaled before, after or inside the product, by multiplications or divisions by constants, or capped by
tanh; masks may be added or selected; softmax may be guarded (NaN -> 0, or rows without any key -> 0). Keys and values
that are repeated for groups of query heads are read once.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ingot import ops
from ingot.ir.node import Graph, Node, splat_of
from ingot.ir.rewrite import Rule, RuleSet, rewrite
from ingot.ir.types import Shape, boolean
from ingot.passes.constants import is_finite
from ingot.passes.model.shared_heads import SHARED_HEADS, divides, without_repeats
from ingot.passes.view_chains import VIEW_CHAINS
from ingot.support.dataclass import dataclass


@dataclass(frozen=True)
class _Scores:
    """Masked scores: softcap(matmul(q, kt) * scale) + mask."""

    q: Node
    kt: Node
    scale: float
    softcap: float = 0.0
    mask: Node | None = None


def fuse_attention(graph: Graph) -> Graph:
    """matmul(softmax(scores), v) -> attention (see module)"""
    return rewrite(graph, VIEW_CHAINS + RuleSet((Rule("attention", ops.MatMul, _attention), *SHARED_HEADS)))


def _attention(n: Node) -> Node | None:
    p, v = n.inputs
    if n.type.rank not in (3, 4) or not n.dtype.is_float or v.type.rank != n.type.rank:
        return None
    p, guard = _unguard(p)
    if isinstance(p.op, ops.Reshape) and not guard and p.inputs[0].shape[-2:] == p.shape[-2:]:
        p, guard = _unguard(p.inputs[0])
    if not isinstance(p.op, ops.Softmax) or p.op.axis not in (-1, p.type.rank - 1):
        return None
    scores = _scores(p.inputs[0])
    if scores is None:
        return None
    lead = p.shape[:-2]
    if lead != n.inputs[0].shape[:-2]:
        if v.shape[:-2] != n.inputs[0].shape[:-2]:
            return None
        v = ops.reshape(v, (*lead, *v.shape[-2:]))
    if scores.q.shape[:-2] != lead or not scores.kt.type.rank == v.type.rank == len(lead) + 2:
        return None
    q, k = scores.q, ops.swap_axes(scores.kt, -1, -2)
    mask = scores.mask
    if mask is not None and not guard and not is_finite(mask):
        mask = _with_nan_rows(mask)
    if len(lead) == 1:
        q, k, v = (ops.Reshape((1, *x.shape))(x) for x in (q, k, v))
        mask = None if mask is None else ops.Reshape((1, *mask.shape))(mask) if mask.type.rank == 3 else mask
    q, k, v = map(_tidy, (q, k, v))
    k, v = without_repeats(k, v)
    shapes_match = (
        q.shape[0] == k.shape[0] == v.shape[0] and k.shape[1] == v.shape[1] and divides(k.shape[1], q.shape[1])
    )
    if q.type.rank != 4 or not shapes_match:
        return None
    operands = (q, k, v) if mask is None else (q, k, v, mask)
    out = ops.Attention("none", scores.scale, scores.softcap, guard == "nan")(*operands, loc=n.loc)
    return ops.reshape(out, n.shape)


def _unguard(p: Node) -> tuple[Node, str]:
    """The weights under a guard that replaces rows by 0, and its kind: "nan", "hidden" (all scores are -inf) or "".

    select(is_nan(s), 0, s) -> s            select(reduce_and(x == -inf), 0, softmax(x)) -> softmax(x)
    """
    if not isinstance(p.op, ops.Select) or splat_of(p.inputs[1]) != 0:
        return p, ""
    test, _, s = p.inputs
    if isinstance(test.op, ops.IsNan):
        return (s, "nan") if test.inputs[0] is s else (p, "")
    return (s, "hidden") if isinstance(s.op, ops.Softmax) and _hides_rows(test, s.inputs[0]) else (p, "")


def _hides_rows(test: Node, scores: Node) -> bool:
    """Whether `test` tests if all scores of a row are -inf, broadcast along the row."""
    lead = scores.shape[:-1]
    while not isinstance(test.op, ops.Reduce):
        is_broadcast = isinstance(test.op, ops.BroadcastInDim) and test.op.dims == tuple(
            range(test.inputs[0].type.rank)
        )
        if not is_broadcast and not (isinstance(test.op, ops.Reshape) and test.shape in (lead, (*lead, 1))):
            return False
        (test,) = test.inputs
    (hidden,) = test.inputs
    tests_all = test.op.kind == "and" and test.op.dims == (len(lead),) and hidden.op == ops.Compare("EQ")
    return tests_all and hidden.inputs[0] is scores and splat_of(hidden.inputs[1]) == -np.inf


_MAX_STEPS = 32  # ops between a softmax and the product of its scores


def _scores(n: Node, memo: dict[Node, _Scores | None] | None = None, steps: int = _MAX_STEPS) -> _Scores | None:
    """The product under scaling, a softcap and masks, which are applied last; leading dimensions may be regrouped."""
    memo = {} if memo is None else memo
    if n not in memo:
        memo[n] = _under_steps(n, memo, steps - 1) if steps else None
    return memo[n]


def _under_steps(n: Node, memo: dict[Node, _Scores | None], steps: int) -> _Scores | None:
    if isinstance(n.op, ops.Add):
        for a, b in (n.inputs, n.inputs[::-1]):
            inner = _scores(a, memo, steps)
            if inner is not None:
                return replace(inner, mask=_combined_mask(inner.mask, _narrow(b)))
        return None
    if isinstance(n.op, ops.Select):
        keep, a, fill = n.inputs
        inner = _scores(a, memo, steps) if splat_of(fill) == -np.inf else None
        return None if inner is None else replace(inner, mask=_combined_mask(inner.mask, _narrow(keep)))
    if isinstance(n.op, ops.Reshape):
        inner = _scores(n.inputs[0], memo, steps)
        return None if inner is None else _regrouped(inner, n.inputs[0].shape, n.shape)
    return _product(n)


def _regrouped(s: _Scores, old: Shape, new: Shape) -> _Scores | None:
    """Scores of shape `old` reshaped to `new`, where only the dimensions before rows and columns change."""
    if old[-2:] != new[-2:] or s.q.shape[:-2] != old[:-2] or s.kt.shape[:-2] != old[:-2]:
        return None
    lead = new[:-2]
    q, kt = (ops.reshape(x, (*lead, *x.shape[-2:])) for x in (s.q, s.kt))
    if s.mask is None or s.mask.type.rank == 2:
        return replace(s, q=q, kt=kt)
    mask_lead = s.mask.shape[:-2]
    if mask_lead != old[:-2] and any(d != 1 for d in mask_lead):
        return None
    target = lead if mask_lead == old[:-2] else (1,) * len(lead)
    return replace(s, q=q, kt=kt, mask=ops.reshape(s.mask, (*target, *s.mask.shape[-2:])))


def _combined_mask(a: Node | None, b: Node) -> Node:
    """Combine two masks."""
    if a is None:
        return b
    if a.dtype == b.dtype:
        return ops.and_(a, b) if a.dtype == boolean else ops.add(a, b)
    keep, added = (a, b) if a.dtype == boolean else (b, a)
    shape = ops.broadcast_shapes(keep.shape, added.shape)
    keep, added = ops.broadcast_to(keep, shape), ops.broadcast_to(added, shape)
    return ops.where(keep, added, ops.full(shape, -np.inf, added.dtype))


def _product(n: Node) -> _Scores | None:
    n, scale = _unscale(n)
    if isinstance(n.op, ops.Tanh) and scale > 0:
        # c * tanh(f * x) = c * tanh(s * x / c) with s = f * c
        return _scaled(n.inputs[0], scale, softcap=scale)
    return _scaled(n, scale, softcap=0.0)


def _scaled(n: Node, scale: float, softcap: float) -> _Scores | None:
    """A matrix product under `scale` and further factors; leading dimensions may be regrouped."""
    n, factor = _unscale(n)
    scale *= factor
    if isinstance(n.op, ops.Reshape):
        inner = _scaled(n.inputs[0], scale, softcap)
        return None if inner is None else _regrouped(inner, n.inputs[0].shape, n.shape)
    if not isinstance(n.op, ops.MatMul):
        return None
    q, a = _unscale(n.inputs[0])
    kt, b = _unscale(n.inputs[1])
    return _Scores(q, kt, scale * a * b, softcap)


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
        elif isinstance(n.op, ops.Div) and (value := splat_of(n.inputs[1])) is not None:
            n, scale = n.inputs[0], scale / float(value)
        else:
            return n, scale


def _narrow(mask: Node) -> Node:
    """The mask before it was broadcast to all heads: attention broadcasts its mask."""
    while isinstance(mask.op, ops.BroadcastInDim):
        (x,) = mask.inputs
        rank = mask.type.rank
        if mask.op.dims != tuple(range(rank - x.type.rank, rank)) or x.type.rank == 0:
            return mask
        mask = x
    return mask


def _with_nan_rows(mask: Node) -> Node:
    """An additive mask with NaN in rows that hide every key, as their softmax is NaN; attention itself returns 0."""
    if mask.dtype == boolean:
        mask = ops.where(mask, ops.full(mask.shape, 0.0), ops.full(mask.shape, -np.inf))
    has_key = ops.compare("NE", ops.reduce_max(mask, -1, keepdims=True), -np.inf)
    nan = ops.full(mask.shape, np.nan, mask.dtype)
    return ops.where(ops.broadcast_to(has_key, mask.shape), mask, nan)


def _tidy(n: Node) -> Node:
    """`n` with its chain of views reduced to the shortest form."""
    for rule in VIEW_CHAINS:
        if isinstance(n.op, rule.root):
            new = rule.apply(n)
            if isinstance(new, Node):
                return new
    return n
