"""Recognize attention in products and a softmax.

    matmul(softmax(matmul(q * c, transpose(k) * c) + mask), v)   ->   attention(q, k, v, mask) {scale = c * c}

Scores may be scaled before, after or inside the product, by constants or by factors of each query or key, before or
after masks, or capped by tanh; masks may be added, subtracted or selected, by minus infinity or a number that leaves
nothing of a score; softmax may be guarded (NaN -> 0, or rows without any key -> 0). Roundings to narrower types on the
way are left out: attention rounds its result alone. Keys and values that are repeated for groups of query heads are
read once.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ingot import ops
from ingot.ir.layout import reshape_groups
from ingot.ir.node import Graph, Node, splat_of
from ingot.ir.rewrite import RuleSet, replace_nodes, rewrite
from ingot.ir.types import DType, Shape, boolean, f32
from ingot.ops.nn.attention import ABSORBING_SCORE
from ingot.passes.constants import is_finite
from ingot.passes.model.shared_heads import SHARED_HEADS, divides, without_repeats
from ingot.passes.view_chains import VIEW_CHAINS
from ingot.support.dataclass import dataclass


@dataclass(frozen=True)
class Scores:
    """Masked scores: softcap(matmul(q, kt) * scale) + mask. product: the matmul that the model has; None if q or kt
    hold factors that follow it."""

    product: Node | None
    q: Node
    kt: Node
    scale: float
    softcap: float = 0.0
    mask: Node | None = None


def fuse_attention(graph: Graph) -> Graph:
    """matmul(softmax(scores), v) -> attention (see module)

    Weights that something else reads, or that are a result, are in memory anyway, and stay.
    """
    graph = rewrite(graph, VIEW_CHAINS)
    users, outputs = graph.uses(), set(graph.outputs)
    kept = {n for n in graph.nodes() if isinstance(n.op, ops.Softmax) and _is_read_elsewhere(n, users, outputs)}
    found = {n: _attention(n, kept) for n in graph.nodes() if isinstance(n.op, ops.MatMul)}
    graph = replace_nodes(graph, {n: new for n, new in found.items() if new is not None})
    return rewrite(graph, VIEW_CHAINS + RuleSet(SHARED_HEADS))


def _is_read_elsewhere(weights: Node, users: Mapping[Node, Sequence[Node]], outputs: Container[Node]) -> bool:
    """Whether anything but a product reads the weights, under guards, regroupings and conversions."""
    if weights in outputs:
        return True
    for u in users.get(weights, ()):
        is_step = isinstance(u.op, ops.Convert | ops.Reshape | ops.Select | ops.IsNan | ops.Transpose)
        if is_step and _is_read_elsewhere(u, users, outputs):
            return True
        if not is_step and not isinstance(u.op, ops.MatMul):
            return True
    return False


def _attention(n: Node, kept: Container[Node]) -> Node | None:
    p, v = n.inputs
    if n.type.rank not in (3, 4) or not n.dtype.is_float or v.type.rank != n.type.rank:
        return None
    p, guard = _weights(p)
    if p in kept or not isinstance(p.op, ops.Softmax) or p.op.axis not in (-1, p.type.rank - 1):
        return None
    scores = scores_of(p.inputs[0])
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
        mask = with_nan_rows(mask)
    if mask is not None:
        mask = four(mask) if mask.type.rank == 3 else mask
    q, k, v = map(four, (q, k, v))
    q, k, v = map(tidy, _in_one_type(_unconverted(q), _unconverted(k), _unconverted(v), n.dtype))
    k, v = without_repeats(k, v)
    shapes_match = (
        q.shape[0] == k.shape[0] == v.shape[0] and k.shape[1] == v.shape[1] and divides(k.shape[1], q.shape[1])
    )
    if q.type.rank != 4 or not shapes_match:
        return None
    operands = (q, k, v) if mask is None else (q, k, v, mask)
    out = ops.Attention("none", scores.scale, scores.softcap, guard == "nan")(*operands, loc=n.loc)
    return ops.reshape(ops.cast(out, n.dtype), n.shape)


def four(x: Node) -> Node:
    """`x` of rank 3 or 4 as one of rank 4."""
    return ops.Reshape((1, *x.shape))(x) if x.type.rank == 3 else x


def _in_one_type(q: Node, k: Node, v: Node, result: DType) -> tuple[Node, Node, Node]:
    """Keys and values in one type, and queries in one that is as wide and not narrower than the result."""
    stored = wider(k.dtype, v.dtype)
    return ops.cast(q, wider(q.dtype, wider(stored, result))), ops.cast(k, stored), ops.cast(v, stored)


def wider(a: DType, b: DType) -> DType:
    """The type that holds the numbers of both."""
    return a if a.bits > b.bits or a == b else b if b.bits > a.bits else f32


def _weights(p: Node) -> tuple[Node, str]:
    """The softmax under guards, regroupings and conversions, and the guard that `_unguard` finds."""
    guard = ""
    while True:
        inner, kind = _unguard(p)
        if isinstance(p.op, ops.Reshape) and p.inputs[0].shape[-2:] == p.shape[-2:]:
            inner = p.inputs[0]
        inner = inner.inputs[0] if inner is p and is_rounding(p) else inner
        if inner is p:
            return p, guard
        p, guard = inner, max(guard, kind)  # "nan" replaces hidden rows, too


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
    test = row_value(test)
    if not isinstance(test.op, ops.Reduce):
        return False
    (hidden,) = test.inputs
    tests_all = test.op.kind == "and" and test.op.dims == (scores.type.rank - 1,) and hidden.op == ops.Compare("EQ")
    return tests_all and hidden.inputs[0] is scores and splat_of(hidden.inputs[1]) == -np.inf


def row_value(x: Node) -> Node:
    """The value of each row, which `x` repeats along the rows."""
    lead = x.shape[:-1]
    while isinstance(x.op, ops.BroadcastInDim | ops.Reshape):
        (inner,) = x.inputs
        is_broadcast = isinstance(x.op, ops.BroadcastInDim) and x.op.dims == tuple(range(inner.type.rank))
        if not is_broadcast and not (isinstance(x.op, ops.Reshape) and x.shape in (lead, (*lead, 1))):
            return x
        x = inner
    return x


_MAX_STEPS = 32  # ops between a softmax and the product of its scores


def scores_of(n: Node, memo: dict[Node, Scores | None] | None = None, steps: int = _MAX_STEPS) -> Scores | None:
    """The product under scaling, a softcap and masks; leading dimensions may be regrouped."""
    memo = {} if memo is None else memo
    if n not in memo:
        memo[n] = _under_steps(n, memo, steps - 1) if steps else None
    return memo[n]


def _under_steps(n: Node, memo: dict[Node, Scores | None], steps: int) -> Scores | None:
    op = n.op
    if isinstance(op, ops.MatMul):
        (q, a), (kt, b) = map(unscaled, n.inputs)
        return Scores(n, q, kt, a * b)
    if isinstance(op, ops.Select):
        return _selected(n, memo, steps)
    if not isinstance(op, ops.Add | ops.Sub | ops.Mul | ops.Div | ops.Tanh | ops.Reshape | ops.Convert):
        return None
    for i, x in enumerate(n.inputs[: 2 if isinstance(op, ops.Add | ops.Mul) else 1]):
        inner = scores_of(x, memo, steps)
        if inner is None:
            continue
        if isinstance(op, ops.Reshape):
            return _regrouped(inner, x.shape, n.shape)
        if isinstance(op, ops.Convert):
            return inner if is_rounding(n) else None
        if isinstance(op, ops.Tanh):
            return replace(inner, softcap=1.0) if inner.mask is None and not inner.softcap else None
        other = n.inputs[1 - i]
        if isinstance(op, ops.Mul | ops.Div):
            factor = splat_of(other)
            if factor is None:
                return _times(inner, narrow(other)) if isinstance(op, ops.Mul) else None
            return _scaled(inner, float(factor), isinstance(op, ops.Div))
        added = ops.Neg()(narrow(other)) if isinstance(op, ops.Sub) else narrow(other)
        return replace(inner, mask=_combined_mask(inner.mask, added))
    return None


def is_rounding(n: Node) -> bool:
    """Whether `n` converts between floats that attention, which computes in f32, need not round to."""
    return isinstance(n.op, ops.Convert) and all(
        d.is_float and 16 <= d.bits <= 32 for d in (n.dtype, n.inputs[0].dtype)
    )


def _selected(n: Node, memo: dict[Node, Scores | None], steps: int) -> Scores | None:
    """Scores that a condition replaces by a number, which hides them."""
    condition, *choices = n.inputs
    for x, fill in (choices, choices[::-1]):
        value = splat_of(fill)
        low = 0.0 if value is None else float(value)
        if not low <= ABSORBING_SCORE or (inner := scores_of(x, memo, steps)) is None:
            continue
        keep = narrow(condition) if x is choices[0] else ops.Not()(narrow(condition))
        if low == -np.inf:
            return replace(inner, mask=_combined_mask(inner.mask, keep))
        # no condition, as a row whose scores are all this number has equal weights
        added = _added(ops.full(keep.shape, 0.0, n.dtype) if inner.mask is None else inner.mask)
        return replace(inner, mask=ops.where(keep, added, ops.full((), low, added.dtype)))
    return None


def _added(mask: Node) -> Node:
    """A mask as what is added to scores, in 32 bits or more."""
    if mask.dtype == boolean:
        return ops.where(mask, ops.full(mask.shape, 0.0), ops.full(mask.shape, -np.inf))
    return ops.cast(mask, wider(mask.dtype, f32))


def _scaled(s: Scores, factor: float, divides: bool) -> Scores | None:
    """Scores times a constant factor, or divided by it: c (a tanh(x / a) + mask) = ca tanh(cx / ca) + c mask."""
    if (divides and factor == 0) or (s.softcap and not (factor > 0 and np.isfinite(factor))):
        return None
    mask = s.mask
    if mask is not None and mask.dtype == boolean and not factor > 0:
        return None
    if mask is not None and mask.dtype != boolean:
        mask = (ops.div if divides else ops.mul)(_added(mask), factor)
    scale, softcap = (x / factor if divides else x * factor for x in (s.scale, s.softcap))
    return replace(s, scale=scale, softcap=softcap, mask=mask)


def _times(s: Scores, factor: Node) -> Scores | None:
    """Scores times a factor of each query or of each key, which multiplies q or k."""
    if s.mask is not None or s.softcap or not factor.dtype.is_float or factor.type.rank < 2:
        return None
    side = {factor.shape[-1]: "q", factor.shape[-2]: "kt"}.get(1)
    if side is None:
        return None
    x: Node = getattr(s, side)
    x = ops.cast(x, wider(x.dtype, f32))
    if ops.broadcast_shapes(x.shape, factor.shape) != x.shape:
        return None
    scaled = ops.mul(x, ops.broadcast_to(ops.cast(factor, x.dtype), x.shape))
    return replace(s, product=None, **{side: scaled})


def _regrouped(s: Scores, old: Shape, new: Shape) -> Scores | None:
    """Scores of shape `old` reshaped to `new`, where only the dimensions before rows and columns change."""
    if old[-2:] != new[-2:] or s.q.shape[:-2] != old[:-2] or s.kt.shape[:-2] != old[:-2]:
        return None
    lead = new[:-2]
    q, kt = (ops.reshape(x, (*lead, *x.shape[-2:])) for x in (s.q, s.kt))
    if s.mask is None or s.mask.type.rank == 2:
        return replace(s, q=q, kt=kt)
    groups = reshape_groups(old[:-2], lead)
    if groups is None:
        return None
    sizes = (*(1,) * (len(old) - s.mask.type.rank), *s.mask.shape)
    wide, split = list(sizes), [*(1,) * len(lead), *sizes[-2:]]
    for before, behind in groups:
        if any(sizes[d] != 1 for d in before):
            for d in before:
                wide[d] = old[d]
            for d in behind:
                split[d] = lead[d]
    mask = ops.broadcast_to(ops.reshape(s.mask, sizes), tuple(wide))
    return replace(s, q=q, kt=kt, mask=ops.reshape(mask, tuple(split)))


def _combined_mask(a: Node | None, b: Node) -> Node:
    """Combine two masks."""
    if a is None:
        return b
    if a.dtype == b.dtype == boolean:
        return ops.and_(a, b)
    shape = ops.broadcast_shapes(a.shape, b.shape)
    keep, added = (a, b) if a.dtype == boolean else (b, a)
    if keep.dtype != boolean:
        wide = wider(a.dtype, b.dtype)
        return ops.add(ops.cast(a, wide), ops.cast(b, wide))
    keep, added = ops.broadcast_to(keep, shape), ops.broadcast_to(added, shape)
    return ops.where(keep, added, ops.full(shape, -np.inf, added.dtype))


def unscaled(n: Node) -> tuple[Node, float]:
    """x * c -> (x, c), through any number of constant factors and conversions, of which x is not wider than `n`."""
    scale, bits = 1.0, n.dtype.bits
    found = n, scale
    while True:
        value = splat_of(n.inputs[1]) if isinstance(n.op, ops.Mul | ops.Div) else None
        if value is not None and (value != 0 or isinstance(n.op, ops.Mul)):
            n, scale = n.inputs[0], scale / float(value) if isinstance(n.op, ops.Div) else scale * float(value)
        elif isinstance(n.op, ops.Mul) and (value := splat_of(n.inputs[0])) is not None:
            n, scale = n.inputs[1], scale * float(value)
        elif is_rounding(n):
            n = n.inputs[0]
        else:
            return found
        if n.dtype.bits <= bits:
            found = n, scale


def _unconverted(n: Node) -> Node:
    """`n` before conversions to wider types, under the views between them."""
    views, x = list[Node](), n
    while isinstance(x.op, ops.Reshape | ops.Transpose | ops.BroadcastInDim) or (
        is_rounding(x) and x.inputs[0].dtype.bits < x.dtype.bits
    ):
        views.append(x)
        x = x.inputs[0]
    if x.dtype == n.dtype:
        return n
    for view in reversed(views):
        x = x if isinstance(view.op, ops.Convert) else view.op(x, loc=view.loc)
    return x


def narrow(mask: Node) -> Node:
    """The mask before it was broadcast to all heads: attention broadcasts its mask."""
    while isinstance(mask.op, ops.BroadcastInDim):
        (x,) = mask.inputs
        rank = mask.type.rank
        if mask.op.dims != tuple(range(rank - x.type.rank, rank)) or x.type.rank == 0:
            return mask
        mask = x
    return mask


def with_nan_rows(mask: Node) -> Node:
    """An additive mask with NaN in rows that hide every key, as their softmax is NaN; attention itself returns 0."""
    mask = _added(mask) if mask.dtype == boolean else mask
    has_key = ops.compare("NE", ops.reduce_max(mask, -1, keepdims=True), -np.inf)
    nan = ops.full(mask.shape, np.nan, mask.dtype)
    return ops.where(ops.broadcast_to(has_key, mask.shape), mask, nan)


def tidy(n: Node) -> Node:
    """`n` with its chain of views reduced to the shortest form."""
    for rule in VIEW_CHAINS:
        if isinstance(n.op, rule.root):
            new = rule.apply(n)
            if isinstance(new, Node):
                return new
    return n


__all__ = [
    "four",
    "fuse_attention",
    "is_rounding",
    "narrow",
    "row_value",
    "scores_of",
    "tidy",
    "unscaled",
    "wider",
    "with_nan_rows",
]
