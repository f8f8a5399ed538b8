"""Pools: each element of the result folds its window, tap by tap.

for a row of results at:  for tap in window:  acc = fold(acc, x[at * stride + tap * dilation - padding])
"""

from __future__ import annotations

from ingot.ir import kernel as k
from ingot.ir.kernel import Expr
from ingot.ir.layout import Layout
from ingot.ir.node import Graph
from ingot.ops import ReduceWindow
from ingot.ops.core.base import identity_of
from ingot.schedule import index as ix
from ingot.schedule.block import Block
from ingot.schedule.emit import Index
from ingot.schedule.folds import accumulator, combining
from ingot.schedule.gpu.blocks import Elements, Group, constant_tile, register
from ingot.schedule.gpu.machine import Machine
from ingot.schedule.group_io import bind_result
from ingot.schedule.index import ZERO, both, dim_expr, integer
from ingot.schedule.lowered import Lowered


def lower_window(body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...], machine: Machine) -> Lowered:
    """A ReduceWindow, what it reads where that is computed, and its epilogue."""
    anchor = next(n for n in body.nodes() if isinstance(n.op, ReduceWindow))
    op, (x,) = anchor.op, anchor.inputs
    assert isinstance(op, ReduceWindow)
    work = Elements.of(Group.of(body, ins, outs), anchor, machine)
    dtype, tile = accumulator(x.dtype), work.tile
    fn, nothing = combining(op.kind, dtype), identity_of(op.kind, dtype)
    acc = register(work.top, "acc", constant_tile(dtype, tile, nothing))

    def tap(block: Block, taps: Index) -> None:
        at: list[Expr] = []
        inside = work.span.in_bounds
        for d, (e, t) in enumerate(zip(work.index, taps, strict=True)):
            place = ix.add(ix.mul(e, integer(op.strides[d])), ix.mul(t, integer(op.dilation[d])))
            place = ix.sub(place, integer(op.padding[d][0]))
            if op.base_dilation[d] != 1:
                place = block.let(place, "p")
                inside = both(inside, k.binary("eq", k.binary("rem", place, integer(op.base_dilation[d])), ZERO))
                inside = both(inside, k.binary("ge", place, ZERO))
                place = k.binary("div", place, integer(op.base_dilation[d]))
            place = block.let(place, "x")
            if op.padding[d][0] > 0:
                inside = both(inside, k.binary("ge", place, ZERO))
            if op.padding[d] != (0, 0) or op.base_dilation[d] != 1:
                inside = both(inside, k.binary("lt", place, dim_expr(x.shape[d])))
            at.append(place)
        inside = None if inside is None else block.let(inside, "in")
        value = k.cast(work.em.value(block, x, tuple(at), inside), dtype)
        if inside is not None:
            value = k.select(inside, value, k.lit(nothing, dtype))
        block.store(acc, ZERO, k.binary(fn, k.spread(value, tile), k.load(acc, ZERO)))

    work.nest(work.top, op.window, tap)
    result = work.top.let(k.cast(k.load(acc, ZERO), anchor.dtype), "pool")
    bind_result(work.em, work.top, anchor, result)
    return Lowered((work.step("window"),))


__all__ = ["lower_window"]
