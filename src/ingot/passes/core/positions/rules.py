"""Integers that are affine in their own position: compares, gathers and sums of them are computed at compile time.

    compare{LT}(iota, 0)                 ->   false
    gather(x, concat(iota_0, iota_1))    ->   x, broadcast
    gather(iota, i)                      ->   clamp(0, i, n - 1)
    iota[1:] - iota[:-1]                 ->   1

Models express positions, masks and index checks by such values; with symbolic sizes, constant folding cannot compute
them. Position arithmetic in signed types of at least 32 bits is assumed not to overflow; other types may wrap.
"""

from __future__ import annotations

from collections.abc import Callable

from ingot import ops
from ingot.ir.dims import DimLike
from ingot.ir.node import Node
from ingot.ir.rewrite import Rule, RuleSet, rules
from ingot.ir.types import boolean, i64
from ingot.passes.core.positions.affine import UNKNOWN, Affine, Range, at_least
from ingot.passes.core.positions.forms import FORMS, MAX_COUNTER_ELEMENTS, fits_in, may_be_positions, normal
from ingot.passes.core.positions.ranges import RANGES

_DEPTH = 24


class Positions:
    """The affine forms and ranges of integer values, each computed once."""

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
        """The affine form of an integer value, or None."""
        if len(n.types) != 1 or not may_be_positions(n.dtype) or depth == 0:
            return None
        if n not in self._forms:
            rule = FORMS.get(type(n.op))
            form = None if rule is None else rule(self, n, depth - 1)
            ends = () if form is None else form.range(n.shape) or (form.constant,)
            self._forms[n] = normal(form, n) if form is not None and fits_in(ends, n.dtype) else None
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
        if not may_be_positions(n.dtype):
            return UNKNOWN
        form = self.form(n)
        bounds = form.range(n.shape) if form is not None else None
        if bounds is not None:
            return bounds
        if n.constant is not None:
            is_small = 0 < n.constant.size <= MAX_COUNTER_ELEMENTS
            return (int(n.constant.value.min()), int(n.constant.value.max())) if is_small else UNKNOWN
        rule = RANGES.get(type(n.op))
        bounds = UNKNOWN if rule is None else rule(self, n, depth - 1)
        return bounds if fits_in(bounds, n.dtype) else UNKNOWN

    # --- rules

    def compare(self, n: Node) -> Node | None:
        """compare of values whose ranges do not overlap, or whose difference is known -> true or false"""
        a, b = n.inputs
        assert isinstance(n.op, ops.Compare)
        if not a.dtype.is_integer:
            return None
        low, high = self._difference(a, b)
        result = _DECIDE[n.op.direction](low, high)
        return None if result is None else ops.full(n.shape, result, boolean)

    def _difference(self, a: Node, b: Node) -> Range:
        p, q = self.form(a), self.form(b)
        if p is not None and q is not None:
            steps = tuple(s - t for s, t in zip(p.steps, q.steps, strict=True))
            difference = Affine(p.constant - q.constant, steps).range(a.shape)
            if difference is not None:
                return difference
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
        is_within = at_least(self.range(x)[0], self.range(low)[1]) and at_least(self.range(high)[0], self.range(x)[1])
        return x if is_within else None

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
        result_dim_of: dict[int, int] = dict(
            zip(window, op.offset_dims, strict=True)
        )  # dimension of x -> dimension of the result
        for component, source_dim in enumerate(op.start_index_map):
            form = self._component(indices, op.index_vector_dim, component)
            if form is None:
                return None
            varying_dims = [d for d, s in enumerate(form.steps) if not (isinstance(s, int) and s == 0)]
            if not varying_dims:
                if not (
                    at_least(form.constant, 0)
                    and at_least(x.shape[source_dim] - op.slice_sizes[source_dim], form.constant)
                ):
                    return None
                start[source_dim] = form.constant
                continue
            (first, *further) = varying_dims
            size = n.shape[batch[first]]
            if (
                further
                or form.steps[first] != 1
                or source_dim not in op.collapsed_slice_dims
                or batch[first] in result_dim_of.values()
            ):
                return None
            if not (at_least(form.constant, 0) and at_least(x.shape[source_dim], form.constant + size)):
                return None
            start[source_dim], sizes[source_dim], result_dim_of[source_dim] = form.constant, size, batch[first]
        limit = tuple(s + w for s, w in zip(start, sizes, strict=True))
        part = ops.Slice(tuple(start), limit, (1,) * x.type.rank)(x)
        kept_dims = [d for d in range(x.type.rank) if d in result_dim_of]
        if len(kept_dims) < x.type.rank:
            part = ops.Reshape(tuple(sizes[d] for d in kept_dims))(part)
        order = sorted(range(len(kept_dims)), key=lambda d: result_dim_of[kept_dims[d]])
        if order != list(range(len(kept_dims))):
            part = ops.Transpose(tuple(order))(part)
        return ops.BroadcastInDim(n.shape, tuple(sorted(result_dim_of[d] for d in kept_dims)))(part)

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
        removed_dims = (*op.collapsed_slice_dims, *op.operand_batching_dims)
        if form is None or len(removed_dims) != x.type.rank or (x.constant is not None and x.type.size == 1):
            return None
        varying_dims = [d for d, s in enumerate(form.steps) if not (isinstance(s, int) and s == 0)]
        if len(varying_dims) != 1 or varying_dims[0] not in op.start_index_map:
            return None
        (counter_dim,) = varying_dims
        axis = op.index_vector_dim
        if len(op.start_index_map) == 1 and axis == indices.type.rank:
            at = indices
        else:
            component = op.start_index_map.index(counter_dim)
            start = tuple(component if d == axis else 0 for d in range(indices.type.rank))
            limit = tuple(component + 1 if d == axis else s for d, s in enumerate(indices.shape))
            part = ops.Slice(start, limit, (1,) * indices.type.rank)(indices)
            at = ops.Reshape((*indices.shape[:axis], *indices.shape[axis + 1 :]))(part)
        at = ops.cast(at, i64)
        at = ops.Clamp()(ops.full(at.shape, 0, i64), at, ops.full(at.shape, x.shape[counter_dim] - 1, i64))
        y = ops.mul(at, ops.full(at.shape, form.steps[counter_dim], i64))
        return ops.cast(ops.add(y, ops.full(at.shape, form.constant, i64)), x.dtype)


# --- affine forms


# --- ranges


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


def _negate(rule: Decide) -> Decide:
    def decide(low: DimLike | None, high: DimLike | None) -> bool | None:
        result = rule(low, high)
        return None if result is None else not result

    return decide


_DECIDE: dict[str, Decide] = {
    "GE": _ge, "LT": _negate(_ge), "GT": _gt, "LE": _negate(_gt), "EQ": _eq, "NE": _negate(_eq),
}  # fmt: skip
