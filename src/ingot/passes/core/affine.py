"""Integers that are affine in their own position: what compares, gathers and sums of them are is known before any run.

    compare{LT}(iota, 0)                 ->   false
    gather(x, concat(iota_0, iota_1))    ->   x, broadcast
    gather(iota, i)                      ->   clamp(0, i, n - 1)
    iota[1:] - iota[:-1]                 ->   1

Models spell positions, masks and index checks with such values; once sizes are symbols, folding cannot reach them.
Arithmetic of positions is taken to stay within its type, signed and of at least 32 bits; others wrap in earnest.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np

from ingot import ops
from ingot.ir.dims import MOST, DimLike, bounds, dim_max, dim_min, product
from ingot.ir.layout import Layout, reshape_groups
from ingot.ir.node import Const, Node, splat_of
from ingot.ir.rewrite import Rule, RuleSet, rules
from ingot.ir.types import DType, Shape, boolean, i64
from ingot.support.dataclass import dataclass

# constants up to this size are checked for being counters
COUNTER = 1 << 16
_DEPTH = 24


@dataclass(frozen=True)
class Affine:
    """The element at index i is constant + sum(steps * i)."""

    constant: DimLike
    steps: tuple[DimLike, ...]

    @property
    def is_constant(self) -> bool:
        return all(isinstance(s, int) and s == 0 for s in self.steps)

    def range(self, shape: Shape) -> tuple[DimLike, DimLike] | None:
        """(lowest, highest) element of a value of `shape`; None where a step's sign depends on symbols."""
        low = high = self.constant
        for step, size in zip(self.steps, shape, strict=True):
            lo, hi = bounds(step)
            if lo is not None and lo >= 0:
                high = high + step * (size - 1)
            elif hi is not None and hi <= 0:
                low = low + step * (size - 1)
            else:
                return None
        return low, high


Range = tuple[DimLike | None, DimLike | None]
UNKNOWN: Range = (None, None)


def at_least(a: DimLike | None, b: DimLike | None) -> bool:
    """Whether a >= b for all values of the symbols."""
    if a is None or b is None:
        return False
    low = bounds(a - b)[0]
    return low is not None and low >= 0


class Positions:
    """The affine forms and ranges of integer values, each found once."""

    def __init__(self) -> None:
        self._forms: dict[Node, Affine | None] = {}
        self._ranges: dict[Node, Range] = {}

    def rules(self) -> RuleSet:
        return rules(
            Rule("compare-positions", ops.Compare, self.compare),
            Rule("gather-positions", ops.Gather, self.gather),
            Rule("sum-of-constant", ops.CumReduce, self.cumulative),
            Rule("bounded-max", ops.Max, self.maximum),
            Rule("bounded-min", ops.Min, self.minimum),
            Rule("bounded-clamp", ops.Clamp, self.clamp),
            *(Rule("constant-position", cls, self.constant) for cls in (ops.Sub, ops.Add, ops.Concat, ops.Mul)),
        )

    # --- what is known

    def form(self, n: Node, depth: int = _DEPTH) -> Affine | None:
        """The affine form of an integer value, None where it has none."""
        if len(n.types) != 1 or not _counts(n.dtype) or depth == 0:
            return None
        if n not in self._forms:
            rule = _FORMS.get(type(n.op))
            found = None if rule is None else rule(self, n, depth - 1)
            ends = () if found is None else found.range(n.shape) or (found.constant,)
            self._forms[n] = _normal(found, n) if found is not None and _fit(ends, n.dtype) else None
        return self._forms[n]

    def range(self, n: Node, depth: int = _DEPTH) -> Range:
        """Bounds of all elements of a position or a boolean value."""
        if n not in self._ranges:
            self._ranges[n] = self._find_range(n, depth)
        return self._ranges[n]

    def _find_range(self, n: Node, depth: int) -> Range:
        if len(n.types) != 1 or depth == 0:
            return UNKNOWN
        if n.dtype == boolean:
            return 0, 1
        if not _counts(n.dtype):
            return UNKNOWN
        form = self.form(n)
        found = form.range(n.shape) if form is not None else None
        if found is not None:
            return found
        if isinstance(n.op, Const):
            few = 0 < n.op.array.size <= COUNTER
            return (int(n.op.value.min()), int(n.op.value.max())) if few else UNKNOWN
        rule = _RANGES.get(type(n.op))
        found = UNKNOWN if rule is None else rule(self, n, depth - 1)
        return found if _fit(found, n.dtype) else UNKNOWN

    # --- rules

    def compare(self, n: Node) -> Node | None:
        """compare of values whose ranges do not overlap, or whose difference is known -> true or false"""
        a, b = n.inputs
        assert isinstance(n.op, ops.Compare)
        if not a.dtype.is_integer:
            return None
        low, high = self._difference(a, b)
        known = _DECIDE[n.op.direction](low, high)
        return None if known is None else ops.full(n.shape, known, boolean)

    def _difference(self, a: Node, b: Node) -> Range:
        p, q = self.form(a), self.form(b)
        if p is not None and q is not None:
            steps = tuple(s - t for s, t in zip(p.steps, q.steps, strict=True))
            found = Affine(p.constant - q.constant, steps).range(a.shape)
            if found is not None:
                return found
        (alo, ahi), (blo, bhi) = self.range(a), self.range(b)
        low = None if alo is None or bhi is None else alo - bhi
        high = None if ahi is None or blo is None else ahi - blo
        return low, high

    def constant(self, n: Node) -> Node | None:
        """arithmetic of positions that gives one value everywhere -> that value"""
        form = self.form(n)
        if form is None or not form.is_constant:
            return None
        return ops.full(n.shape, form.constant, n.dtype)

    def maximum(self, n: Node) -> Node | None:
        """max of values whose ranges do not overlap -> the larger"""
        a, b = n.inputs
        low, high = self._difference(a, b) if n.dtype.is_integer else UNKNOWN
        return a if at_least(low, 0) else b if at_least(0, high) else None

    def minimum(self, n: Node) -> Node | None:
        """min of values whose ranges do not overlap -> the smaller"""
        a, b = n.inputs
        low, high = self._difference(a, b) if n.dtype.is_integer else UNKNOWN
        return b if at_least(low, 0) else a if at_least(0, high) else None

    def clamp(self, n: Node) -> Node | None:
        """clamp of a value that is within its limits -> the value"""
        low, x, high = n.inputs
        if not n.dtype.is_integer:
            return None
        inside = at_least(self.range(x)[0], self.range(low)[1]) and at_least(self.range(high)[0], self.range(x)[1])
        return x if inside else None

    def cumulative(self, n: Node) -> Node | None:
        """cumulative sum of one integer -> its multiples"""
        op, (x,) = n.op, n.inputs
        assert isinstance(op, ops.CumReduce)
        form = self.form(x)
        if op.kind != "sum" or form is None or not form.is_constant:
            return None
        if isinstance(form.constant, int) and form.constant == 0:
            return ops.full(n.shape, 0, n.dtype)
        count = ops.Iota(n.type, op.dim)()
        if op.reverse:
            count = ops.sub(ops.full(n.shape, n.shape[op.dim] - 1, n.dtype), count)
        total = count if op.exclusive else ops.add(count, ops.full(n.shape, 1, n.dtype))
        return ops.mul(total, ops.full(n.shape, form.constant, n.dtype))

    def gather(self, n: Node) -> Node | None:
        """gather at positions that follow the result's own -> a view; gather from a counter -> the index, clamped;
        gather from one value -> that value"""
        op, (x, indices) = n.op, n.inputs
        assert isinstance(op, ops.Gather)
        form = self.form(x)
        if form is not None and form.is_constant:
            return ops.full(n.shape, form.constant, n.dtype)
        if not op.operand_batching_dims:
            view = self._gather_view(n, op)
            if view is not None:
                return view
        return self._gather_counter(op, x, indices)

    def _gather_view(self, n: Node, op: ops.Gather) -> Node | None:
        x, indices = n.inputs
        batch = tuple(d for d in range(n.type.rank) if d not in op.offset_dims)
        window = [d for d in range(x.type.rank) if d not in op.collapsed_slice_dims]
        start: list[DimLike] = [0] * x.type.rank
        sizes = list(op.slice_sizes)
        place: dict[int, int] = dict(zip(window, op.offset_dims, strict=True))  # dimension of x -> of the result
        for component, own in enumerate(op.start_index_map):
            form = self._component(indices, op.index_vector_dim, component)
            if form is None:
                return None
            moving = [d for d, s in enumerate(form.steps) if not (isinstance(s, int) and s == 0)]
            if not moving:
                if not (at_least(form.constant, 0) and at_least(x.shape[own] - op.slice_sizes[own], form.constant)):
                    return None
                start[own] = form.constant
                continue
            (first, *more) = moving
            size = n.shape[batch[first]]
            if more or form.steps[first] != 1 or own not in op.collapsed_slice_dims or batch[first] in place.values():
                return None
            if not (at_least(form.constant, 0) and at_least(x.shape[own], form.constant + size)):
                return None
            start[own], sizes[own], place[own] = form.constant, size, batch[first]
        limit = tuple(s + w for s, w in zip(start, sizes, strict=True))
        part = ops.Slice(tuple(start), limit, (1,) * x.type.rank)(x)
        kept = [d for d in range(x.type.rank) if d in place]
        if len(kept) < x.type.rank:
            part = ops.Reshape(tuple(sizes[d] for d in kept))(part)
        order = sorted(range(len(kept)), key=lambda d: place[kept[d]])
        if order != list(range(len(kept))):
            part = ops.Transpose(tuple(order))(part)
        return ops.BroadcastInDim(n.shape, tuple(sorted(place[d] for d in kept)))(part)

    def _component(self, indices: Node, axis: int, component: int) -> Affine | None:
        """One coordinate of an array of index vectors, over the other dimensions."""
        if axis == indices.type.rank:
            return self.form(indices)
        while isinstance(indices.op, ops.Concat) and indices.op.dimension == axis:
            for part in indices.inputs:
                size = part.shape[axis]
                if not isinstance(size, int):
                    return None
                if component < size:
                    indices = part
                    break
                component -= size
        form = self.form(indices)
        if form is None:
            return None
        rest = (*form.steps[:axis], *form.steps[axis + 1 :])
        return Affine(form.constant + form.steps[axis] * component, rest)

    def _gather_counter(self, op: ops.Gather, x: Node, indices: Node) -> Node | None:
        """gather(start + step * iota, i) -> start + step * clamp(0, i, n - 1), of single elements"""
        form = self.form(x)
        whole = (*op.collapsed_slice_dims, *op.operand_batching_dims)
        if form is None or len(whole) != x.type.rank or (isinstance(x.op, Const) and x.type.size == 1):
            return None
        moving = [d for d, s in enumerate(form.steps) if not (isinstance(s, int) and s == 0)]
        if len(moving) != 1 or moving[0] not in op.start_index_map:
            return None
        (own,) = moving
        axis = op.index_vector_dim
        if len(op.start_index_map) == 1 and axis == indices.type.rank:
            at = indices
        else:
            component = op.start_index_map.index(own)
            start = tuple(component if d == axis else 0 for d in range(indices.type.rank))
            limit = tuple(component + 1 if d == axis else s for d, s in enumerate(indices.shape))
            part = ops.Slice(start, limit, (1,) * indices.type.rank)(indices)
            at = ops.Reshape((*indices.shape[:axis], *indices.shape[axis + 1 :]))(part)
        at = ops.cast(at, i64)
        at = ops.Clamp()(ops.full(at.shape, 0, i64), at, ops.full(at.shape, x.shape[own] - 1, i64))
        y = ops.mul(at, ops.full(at.shape, form.steps[own], i64))
        return ops.cast(ops.add(y, ops.full(at.shape, form.constant, i64)), x.dtype)


def _normal(form: Affine, n: Node) -> Affine:
    """No steps along sizes of 1, so that equal values have equal forms."""
    return Affine(form.constant, tuple(0 if d == 1 else s for s, d in zip(form.steps, n.shape, strict=True)))


def _counts(dtype: DType) -> bool:
    """Whether values of a type may be positions."""
    return dtype.kind == "i" and dtype.bits >= 32


def _fit(ends: tuple[DimLike | None, ...], dtype: DType) -> bool:
    """Whether what has these ends cannot have wrapped; sizes are small against any type of positions."""
    low, high = dtype.range
    return all(low <= end <= high for end in ends if isinstance(end, int))


# --- affine forms


def _const_form(p: Positions, n: Node, depth: int) -> Affine | None:
    assert isinstance(n.op, Const)
    if not 0 < n.op.array.size <= COUNTER:
        return None
    value = n.op.value
    if max(abs(int(value.min())), abs(int(value.max()))) > MOST:
        return None
    start = int(value.reshape(-1)[0])
    corner = (0,) * value.ndim
    steps = []
    for d in range(value.ndim):
        one = (*corner[:d], 1, *corner[d + 1 :])
        steps.append(int(value[one]) - start if value.shape[d] > 1 else 0)
    made = np.full(value.shape, start, np.int64)
    for d, s in enumerate(steps):
        made += (np.arange(value.shape[d]) * s).reshape((-1, *(1,) * (value.ndim - 1 - d)))
    return Affine(start, tuple(steps)) if np.array_equal(made, value) else None


def _iota_form(p: Positions, n: Node, depth: int) -> Affine | None:
    assert isinstance(n.op, ops.Iota)
    return Affine(0, tuple(int(d == n.op.dimension) for d in range(n.type.rank)))


def _dim_form(p: Positions, n: Node, depth: int) -> Affine | None:
    assert isinstance(n.op, ops.DimValue)
    return Affine(n.op.dim, ())


def _view_form(p: Positions, n: Node, depth: int) -> Affine | None:
    assert isinstance(n.op, ops.CoreOp)
    form, places = p.form(n.inputs[0], depth), n.op.index_map(n.inputs[0].shape, n.shape)
    if form is None or places is None:
        return None
    at = Layout(n.inputs[0].shape, form.steps, form.constant).viewed(n.shape, places)
    return Affine(at.offset, at.strides)


def _reshape_form(p: Positions, n: Node, depth: int) -> Affine | None:
    (x,) = n.inputs
    form = p.form(x, depth)
    groups = reshape_groups(x.shape, n.shape)
    if form is None or groups is None:
        return None
    steps: list[DimLike] = [0] * n.type.rank
    for olds, news in groups:
        olds = tuple(d for d in olds if x.shape[d] != 1)
        step: DimLike = form.steps[olds[-1]] if olds else 0
        for a, b in pairwise(olds):
            if form.steps[a] != form.steps[b] * x.shape[b]:
                return None
        for d in reversed(news):
            steps[d] = step
            step = step * n.shape[d]
    return Affine(form.constant, tuple(steps))


def _convert_form(p: Positions, n: Node, depth: int) -> Affine | None:
    (x,) = n.inputs
    filled = splat_of(x) if x.dtype == boolean else None
    if filled is not None:
        return Affine(int(filled), (0,) * n.type.rank)
    if not x.dtype.is_integer or n.dtype.bits < x.dtype.bits or n.dtype.kind != x.dtype.kind:
        return None
    return p.form(x, depth)


def _sum_form(p: Positions, n: Node, depth: int) -> Affine | None:
    a, b = (p.form(i, depth) for i in n.inputs)
    if a is None or b is None:
        return None
    sign = -1 if isinstance(n.op, ops.Sub) else 1
    return Affine(a.constant + b.constant * sign, tuple(s + t * sign for s, t in zip(a.steps, b.steps, strict=True)))


def _product_form(p: Positions, n: Node, depth: int) -> Affine | None:
    a, b = (p.form(i, depth) for i in n.inputs)
    if a is None or b is None or not (a.is_constant or b.is_constant):
        return None
    x, c = (a, b) if b.is_constant else (b, a)
    return Affine(x.constant * c.constant, tuple(s * c.constant for s in x.steps))


def _concat_form(p: Positions, n: Node, depth: int) -> Affine | None:
    """Parts that go on where the one before ended."""
    assert isinstance(n.op, ops.Concat)
    axis = n.op.dimension
    found: Affine | None = None
    start: DimLike = 0
    for x in n.inputs:
        form = p.form(x, depth)
        if form is None:
            return None
        if found is not None:
            steps = form.steps if x.shape[axis] != 1 else _put(form.steps, axis, found.steps[axis])
            here = found.constant + found.steps[axis] * start
            if steps != found.steps or form.constant != here:
                return None
        else:
            found = form if x.shape[axis] != 1 else _continued(p, n, form, axis, depth)
        start = start + x.shape[axis]
    return found


def _continued(p: Positions, n: Node, first: Affine, axis: int, depth: int) -> Affine:
    """The form of a concat's first part of size 1, whose step is the way to the next part."""
    if len(n.inputs) < 2:
        return first
    second = p.form(n.inputs[1], depth)
    step: DimLike = 0 if second is None else second.constant - first.constant
    return Affine(first.constant, _put(first.steps, axis, step))


def _put(steps: tuple[DimLike, ...], axis: int, step: DimLike) -> tuple[DimLike, ...]:
    return (*steps[:axis], step, *steps[axis + 1 :])


_FORMS: dict[type, Callable[[Positions, Node, int], Affine | None]] = {
    Const: _const_form,
    ops.Iota: _iota_form,
    ops.DimValue: _dim_form,
    ops.BroadcastInDim: _view_form,
    ops.Reshape: _reshape_form,
    ops.Transpose: _view_form,
    ops.Slice: _view_form,
    ops.Convert: _convert_form,
    ops.Add: _sum_form,
    ops.Sub: _sum_form,
    ops.Mul: _product_form,
    ops.Concat: _concat_form,
}


# --- ranges


def _same(p: Positions, n: Node, depth: int) -> Range:
    return p.range(n.inputs[0], depth)


def _convert_range(p: Positions, n: Node, depth: int) -> Range:
    (x,) = n.inputs
    if x.dtype == boolean:
        return 0, 1
    wider = x.dtype.is_integer and n.dtype.bits >= x.dtype.bits and n.dtype.kind == x.dtype.kind
    return p.range(x, depth) if wider else UNKNOWN


def _union(p: Positions, n: Node, depth: int) -> Range:
    parts = n.inputs[1:] if isinstance(n.op, ops.Select) else n.inputs
    return _hull([p.range(x, depth) for x in parts])


def _hull(ranges: list[Range]) -> Range:
    low, high = ranges[0]
    for lo, hi in ranges[1:]:
        low = None if low is None or lo is None else dim_min(low, lo)
        high = None if high is None or hi is None else dim_max(high, hi)
    return low, high


def _add_range(p: Positions, n: Node, depth: int) -> Range:
    (alo, ahi), (blo, bhi) = (p.range(x, depth) for x in n.inputs)
    if isinstance(n.op, ops.Sub):
        blo, bhi = (None if bhi is None else -bhi), (None if blo is None else -blo)
    return (None if alo is None or blo is None else alo + blo), (None if ahi is None or bhi is None else ahi + bhi)


def _clamp_range(p: Positions, n: Node, depth: int) -> Range:
    low, x, high = (p.range(x, depth) for x in n.inputs)
    return _smaller(_larger(x, low), high)


def _max_range(p: Positions, n: Node, depth: int) -> Range:
    a, b = (p.range(x, depth) for x in n.inputs)
    return _larger(a, b)


def _min_range(p: Positions, n: Node, depth: int) -> Range:
    a, b = (p.range(x, depth) for x in n.inputs)
    return _smaller(a, b)


def _larger(a: Range, b: Range) -> Range:
    """The range of max(a, b)."""
    low = b[0] if a[0] is None else a[0] if b[0] is None else dim_max(a[0], b[0])
    return low, (None if a[1] is None or b[1] is None else dim_max(a[1], b[1]))


def _smaller(a: Range, b: Range) -> Range:
    """The range of min(a, b)."""
    high = b[1] if a[1] is None else a[1] if b[1] is None else dim_min(a[1], b[1])
    return (None if a[0] is None or b[0] is None else dim_min(a[0], b[0])), high


def _sum_range(p: Positions, n: Node, depth: int) -> Range:
    op, (x,) = n.op, n.inputs
    assert isinstance(op, ops.CumReduce | ops.Reduce)
    low, high = p.range(x, depth)
    if op.kind != "sum" or not at_least(low, 0):
        return UNKNOWN
    size = x.shape[op.dim] if isinstance(op, ops.CumReduce) else product(x.shape[d] for d in op.dims)
    return 0, None if high is None else high * size


_RANGES: dict[type, Callable[[Positions, Node, int], Range]] = {
    ops.BroadcastInDim: _same,
    ops.Reshape: _same,
    ops.Transpose: _same,
    ops.Slice: _same,
    ops.Reverse: _same,
    ops.Gather: _same,
    ops.DynamicSlice: _same,
    ops.Convert: _convert_range,
    ops.Concat: _union,
    ops.Select: _union,
    ops.Add: _add_range,
    ops.Sub: _add_range,
    ops.Clamp: _clamp_range,
    ops.Max: _max_range,
    ops.Min: _min_range,
    ops.CumReduce: _sum_range,
    ops.Reduce: _sum_range,
}


# --- comparisons of a with b, from the bounds of a - b


def _ge(low: DimLike | None, high: DimLike | None) -> bool | None:
    return True if at_least(low, 0) else False if at_least(-1, high) else None


def _gt(low: DimLike | None, high: DimLike | None) -> bool | None:
    return True if at_least(low, 1) else False if at_least(0, high) else None


def _eq(low: DimLike | None, high: DimLike | None) -> bool | None:
    if at_least(low, 0) and at_least(0, high):
        return True
    return False if at_least(low, 1) or at_least(-1, high) else None


Decide = Callable[[DimLike | None, DimLike | None], bool | None]


def _negated(rule: Decide) -> Decide:
    def decide(low: DimLike | None, high: DimLike | None) -> bool | None:
        known = rule(low, high)
        return None if known is None else not known

    return decide


_DECIDE: dict[str, Decide] = {
    "GE": _ge, "LT": _negated(_ge), "GT": _gt, "LE": _negated(_gt), "EQ": _eq, "NE": _negated(_eq),
}  # fmt: skip
