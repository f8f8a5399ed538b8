"""Cumulative folds: a program walks a few lines from one end to the other, element by element.

for lines at:  acc = nothing;  for i:  acc = fold(acc, x[at, i]);  out[at, i] = acc
"""

from __future__ import annotations

from ingot.ir import kernel as k
from ingot.ir.dims import ceildiv, estimate, product
from ingot.ir.kernel import Expr, Lit
from ingot.ir.layout import Layout
from ingot.ir.node import Graph
from ingot.ops import CumReduce
from ingot.ops.core.base import identity_of
from ingot.schedule import index as ix
from ingot.schedule.block import Block
from ingot.schedule.emit import Leaf
from ingot.schedule.folds import accumulator, combining
from ingot.schedule.gpu.blocks import Group, Span, power_of_two, write
from ingot.schedule.gpu.machine import Machine
from ingot.schedule.group_io import result_index
from ingot.schedule.index import ZERO, dim_expr, integer
from ingot.schedule.lowered import Lowered

LINES = 128  # of a program, at most


def lower_scan(body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...], machine: Machine) -> Lowered:
    """A CumReduce, what it reads where that is computed, and its epilogue."""
    anchor = next(n for n in body.nodes() if isinstance(n.op, CumReduce))
    op, (x,) = anchor.op, anchor.inputs
    assert isinstance(op, CumReduce)
    top, chunk, group = Block(), k.var("chunk"), Group.of(body, ins, outs)
    shape, length = x.shape, x.shape[op.dim]
    others = [d for d in range(len(shape)) if d != op.dim]
    lines = product(shape[d] for d in others)
    size = min(LINES, power_of_two(max(1, estimate(lines) // machine.programs)))
    span = Span.of(top, k.mul(chunk, integer(size)), size, lines, 1, held=True)
    place = dict(zip(others, span.index(top, tuple(shape[d] for d in others)), strict=True))
    dtype = accumulator(x.dtype)
    acc = top.alloc("acc", dtype, 1, lanes=size, tile=(1, size))
    top.store(acc, ZERO, Lit(dtype, size, identity_of(op.kind, dtype), tile=(1, size)))
    em = group.emitter()

    def step(block: Block, i: Expr) -> None:
        at = block.let(ix.sub(dim_expr(length - 1), i), "i") if op.reverse else i
        index = tuple(place.get(d, at) for d in range(len(shape)))
        old = block.let(k.load(acc, ZERO), "o")
        value = k.cast(em.value(block, x, index), dtype)
        new = block.let(k.binary(combining(op.kind, dtype), k.spread(value, (1, size)), old), "n")
        block.store(acc, ZERO, new)
        result = block.let(k.cast(old if op.exclusive else new, anchor.dtype), "r")
        em.bind(anchor, Leaf(lambda b, index, mask: result, home=block, pinned=True))
        for root, buffer, layout in group.results:
            write(block, em, root, buffer, layout, result_index(block, root, anchor, index), None, span.live)

    top.loop("i", 0, length, 1, step)
    return Lowered((group.step("scan", chunk, ceildiv(lines, size), top),))


__all__ = ["lower_scan"]
