"""Pools: each element of the result reduces its window, tap by tap.

for a row of results at:  for tap in window:  acc = fold(acc, x[at * stride + tap * dilation - padding])

The loop over a long window runs over the taps that are inside x for one of the results alone.
"""

from __future__ import annotations

from ingot.ir import kernel as k
from ingot.ir.dims import DimLike, ceildiv, dim_max
from ingot.ir.kernel import Expr
from ingot.ops import ReduceWindow
from ingot.ops.core.base import dilated_size, identity_of
from ingot.schedule import index as ix
from ingot.schedule.block import Block
from ingot.schedule.emit import Index
from ingot.schedule.folds import accumulator, combining_op
from ingot.schedule.gpu.blocks import Elements, Group, constant_tile, register
from ingot.schedule.gpu.machine import Machine
from ingot.schedule.group_io import bind_result
from ingot.schedule.index import ZERO, dim_expr, integer, mask_and
from ingot.schedule.lowered import Lowered

_MAX_CHECKED_TAPS = 64  # of a window that may be short of x: outside of it, their loads are masked


def lower_window(group: Group, machine: Machine) -> Lowered:
    """Lower a ReduceWindow with its prologue and epilogue."""
    anchor = next(n for n in group.body.nodes() if isinstance(n.op, ReduceWindow))
    op, (x,) = anchor.op, anchor.inputs
    assert isinstance(op, ReduceWindow)
    work = Elements.of(group, anchor, machine)
    dtype, tile = accumulator(x.dtype), work.tile
    fn, identity = combining_op(op.kind, dtype), identity_of(op.kind, dtype)
    acc = register(work.top, "acc", constant_tile(dtype, tile, identity))
    ranges = [_taps(op, d, x.shape[d], anchor.shape[d]) for d in range(anchor.type.rank)]

    def tap(block: Block, taps: Index) -> None:
        index: list[Expr] = []
        in_bounds = work.span.in_bounds
        for d, (e, t) in enumerate(zip(work.index, taps, strict=True)):
            t = ix.add(dim_expr(ranges[d][0]), t)
            coordinate = ix.add(ix.mul(e, integer(op.strides[d])), ix.mul(t, integer(op.dilation[d])))
            coordinate = ix.sub(coordinate, dim_expr(op.padding[d][0]))
            if op.base_dilation[d] != 1:
                coordinate = block.let(coordinate, "p")
                in_bounds = mask_and(
                    in_bounds, k.binary("eq", k.binary("rem", coordinate, integer(op.base_dilation[d])), ZERO)
                )
                in_bounds = mask_and(in_bounds, k.binary("ge", coordinate, ZERO))
                coordinate = k.binary("div", coordinate, integer(op.base_dilation[d]))
            coordinate = block.let(coordinate, "x")
            if op.padding[d][0] != 0:
                in_bounds = mask_and(in_bounds, k.binary("ge", coordinate, ZERO))
            if op.padding[d] != (0, 0) or op.base_dilation[d] != 1:
                in_bounds = mask_and(in_bounds, k.binary("lt", coordinate, dim_expr(x.shape[d])))
            index.append(coordinate)
        in_bounds = None if in_bounds is None else block.let(in_bounds, "in")
        value = k.cast(work.em.value(block, x, tuple(index), in_bounds), dtype)
        if in_bounds is not None:
            value = k.select(in_bounds, value, k.lit(identity, dtype))
        block.store(acc, ZERO, k.binary(fn, k.spread(value, tile), k.load(acc, ZERO)))

    work.nest(work.top, [dim_max(end - begin, 0) for begin, end in ranges], tap)
    result = work.top.let(k.cast(k.load(acc, ZERO), anchor.dtype), "pool")
    bind_result(work.em, work.top, anchor, result)
    return Lowered((work.step("window"),))


def _taps(op: ReduceWindow, d: int, size: DimLike, count: DimLike) -> tuple[DimLike, DimLike]:
    """The range of a window's taps along axis `d`; of a long one, of those inside x for one of `count` results.

    size: of x.
    """
    window, step, low = op.window[d], op.dilation[d], op.padding[d][0]
    if window <= _MAX_CHECKED_TAPS:
        return 0, window
    begin = ceildiv(dim_max(low - (count - 1) * op.strides[d], 0), step)
    end = ceildiv(dim_max(dilated_size(size, op.base_dilation[d]) + low, 0), step)
    return begin, window - dim_max(window - end, 0)  # `dim_min` takes sizes for smaller than long windows


__all__ = ["lower_window"]
