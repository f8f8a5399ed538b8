"""Between which numbers the elements of an integer value lie, op by op."""

from __future__ import annotations

from collections.abc import Callable

from ingot import ops
from ingot.ir.dims import DimLike, dim_max, dim_min, product
from ingot.ir.node import Node
from ingot.ir.types import boolean
from ingot.passes.core.positions.affine import UNKNOWN, Known, Range, at_least


def _same(p: Known, n: Node, depth: int) -> Range:
    return p.range(n.inputs[0], depth)


def _convert_range(p: Known, n: Node, depth: int) -> Range:
    (x,) = n.inputs
    if x.dtype == boolean:
        return 0, 1
    wider = x.dtype.is_integer and n.dtype.bits >= x.dtype.bits and n.dtype.kind == x.dtype.kind
    return p.range(x, depth) if wider else UNKNOWN


def _union(p: Known, n: Node, depth: int) -> Range:
    parts = n.inputs[1:] if isinstance(n.op, ops.Select) else n.inputs
    return _hull([p.range(x, depth) for x in parts])


def _hull(ranges: list[Range]) -> Range:
    low, high = ranges[0]
    for lo, hi in ranges[1:]:
        low = None if low is None or lo is None else dim_min(low, lo)
        high = None if high is None or hi is None else dim_max(high, hi)
    return low, high


def _add_range(p: Known, n: Node, depth: int) -> Range:
    (alo, ahi), (blo, bhi) = (p.range(x, depth) for x in n.inputs)
    if isinstance(n.op, ops.Sub):
        blo, bhi = (None if bhi is None else -bhi), (None if blo is None else -blo)
    return (None if alo is None or blo is None else alo + blo), (None if ahi is None or bhi is None else ahi + bhi)


def _clamp_range(p: Known, n: Node, depth: int) -> Range:
    low, x, high = (p.range(x, depth) for x in n.inputs)
    return _smaller(_larger(x, low), high)


def _max_range(p: Known, n: Node, depth: int) -> Range:
    a, b = (p.range(x, depth) for x in n.inputs)
    return _larger(a, b)


def _min_range(p: Known, n: Node, depth: int) -> Range:
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


def _reduce_range(p: Known, n: Node, depth: int) -> Range:
    assert isinstance(n.op, ops.Reduce)
    (x,) = n.inputs
    return _sum_range(n.op.kind, p.range(x, depth), product(x.shape[d] for d in n.op.dims))


def _cumulative_range(p: Known, n: Node, depth: int) -> Range:
    assert isinstance(n.op, ops.CumReduce)
    (x,) = n.inputs
    return _sum_range(n.op.kind, p.range(x, depth), x.shape[n.op.dim])


def _sum_range(kind: str, x: Range, count: DimLike) -> Range:
    """The range of what folds up to `count` numbers, each in the range `x`."""
    low, high = x
    if kind != "sum" or not at_least(low, 0):
        return UNKNOWN
    return 0, None if high is None else high * count


RANGES: dict[type, Callable[[Known, Node, int], Range]] = {
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
    ops.CumReduce: _cumulative_range,
    ops.Reduce: _reduce_range,
}
