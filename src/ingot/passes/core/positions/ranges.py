"""The range of the elements of an integer value, by op."""

from __future__ import annotations

from collections.abc import Callable

from ingot import ops
from ingot.ir.dims import DimLike, dim_max, dim_min, product
from ingot.ir.node import Node
from ingot.ir.types import boolean
from ingot.passes.core.positions.affine import UNKNOWN, IntegerAnalysis, Range, at_least


def _operand_range(p: IntegerAnalysis, n: Node, depth: int) -> Range:
    return p.range(n.inputs[0], depth)


def _convert_range(p: IntegerAnalysis, n: Node, depth: int) -> Range:
    (x,) = n.inputs
    if x.dtype == boolean:
        return 0, 1
    wider = x.dtype.is_integer and n.dtype.bits >= x.dtype.bits and n.dtype.kind == x.dtype.kind
    return p.range(x, depth) if wider else UNKNOWN


def _union(p: IntegerAnalysis, n: Node, depth: int) -> Range:
    parts = n.inputs[1:] if isinstance(n.op, ops.Select) else n.inputs
    return _hull([p.range(x, depth) for x in parts])


def _hull(ranges: list[Range]) -> Range:
    low, high = ranges[0]
    for lo, hi in ranges[1:]:
        low = None if low is None or lo is None else dim_min(low, lo)
        high = None if high is None or hi is None else dim_max(high, hi)
    return low, high


def _add_range(p: IntegerAnalysis, n: Node, depth: int) -> Range:
    (alo, ahi), (blo, bhi) = (p.range(x, depth) for x in n.inputs)
    if isinstance(n.op, ops.Sub):
        blo, bhi = (None if bhi is None else -bhi), (None if blo is None else -blo)
    return (None if alo is None or blo is None else alo + blo), (None if ahi is None or bhi is None else ahi + bhi)


def _clamp_range(p: IntegerAnalysis, n: Node, depth: int) -> Range:
    low, x, high = (p.range(x, depth) for x in n.inputs)
    return _range_of_min(_range_of_max(x, low), high)


def _max_range(p: IntegerAnalysis, n: Node, depth: int) -> Range:
    a, b = (p.range(x, depth) for x in n.inputs)
    return _range_of_max(a, b)


def _min_range(p: IntegerAnalysis, n: Node, depth: int) -> Range:
    a, b = (p.range(x, depth) for x in n.inputs)
    return _range_of_min(a, b)


def _range_of_max(a: Range, b: Range) -> Range:
    """The range of max(a, b)."""
    low = b[0] if a[0] is None else a[0] if b[0] is None else dim_max(a[0], b[0])
    return low, (None if a[1] is None or b[1] is None else dim_max(a[1], b[1]))


def _range_of_min(a: Range, b: Range) -> Range:
    """The range of min(a, b)."""
    high = b[1] if a[1] is None else a[1] if b[1] is None else dim_min(a[1], b[1])
    return (None if a[0] is None or b[0] is None else dim_min(a[0], b[0])), high


def _reduce_range(p: IntegerAnalysis, n: Node, depth: int) -> Range:
    assert isinstance(n.op, ops.Reduce)
    (x,) = n.inputs
    return _sum_range(n.op.kind, p.range(x, depth), product(x.shape[d] for d in n.op.dims))


def _cumulative_range(p: IntegerAnalysis, n: Node, depth: int) -> Range:
    assert isinstance(n.op, ops.CumReduce)
    (x,) = n.inputs
    return _sum_range(n.op.kind, p.range(x, depth), x.shape[n.op.dim])


def _sum_range(kind: str, x: Range, count: DimLike) -> Range:
    """The range of a reduction of up to `count` numbers in the range `x`."""
    low, high = x
    if kind != "sum" or not at_least(low, 0):
        return UNKNOWN
    return 0, None if high is None else high * count


RANGES: dict[type, Callable[[IntegerAnalysis, Node, int], Range]] = {
    ops.BroadcastInDim: _operand_range,
    ops.Reshape: _operand_range,
    ops.Transpose: _operand_range,
    ops.Slice: _operand_range,
    ops.Reverse: _operand_range,
    ops.Gather: _operand_range,
    ops.DynamicSlice: _operand_range,
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
