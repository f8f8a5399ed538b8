"""Rows of a contraction's A, rounded to bytes (`ops.RoundToBytes`) by each chunk in its scratch.

    [block 0: levels | scale | a sum for each part][block 1 ...

A part is as long as a block of B's levels. The sum of its levels is multiplied by B's zeros and minima.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from ingot import ops
from ingot.ir import kernel as k
from ingot.ir.dims import product
from ingot.ir.kernel import Buffer, Expr, integer
from ingot.ir.node import Node
from ingot.ir.types import f32, i8, i32, static_shape
from ingot.schedule.axes import Axis, Contraction, merge_axes
from ingot.schedule.block import Block
from ingot.schedule.cpu.contraction.operands import ComputedA, Operand
from ingot.schedule.cpu.contraction.plan import CACHE_LINE_BYTES
from ingot.schedule.cpu.machine import Machine
from ingot.schedule.dimension_numbers import Loops, join_rows
from ingot.schedule.index import Index, add, delinearize, dim_expr, linear, mul
from ingot.support.dataclass import dataclass


@dataclass(frozen=True)
class Rounded:
    """A block: `parts` parts of `part_length` levels each, with one scale."""

    part_length: int
    parts: int

    @staticmethod
    def of(c: Contraction) -> Rounded:
        (part,) = static_shape((merge_axes(c.reduce)[-1].extent,))
        return Rounded(part, c.rounded // part)

    @property
    def levels(self) -> int:
        return self.part_length * self.parts

    @property
    def nbytes(self) -> int:
        return self.levels + 4 + 4 * self.parts

    def scale(self, a: Buffer, start: Expr) -> Expr:
        return k.bitcast(k.load(a, add(start, integer(self.levels)), 4), f32)

    def sum(self, a: Buffer, start: Expr, part: Expr) -> Expr:
        return k.bitcast(k.load(a, add(add(start, integer(self.levels + 4)), mul(part, integer(4))), 4), i32)


def rounded_levels(a: Node) -> int:
    """The levels that share a scale, if `a` is rounded; else 0."""
    if not isinstance(a.op, ops.RoundToBytes):
        return 0
    return prod(static_shape(tuple(a.shape[d] for d in a.op.dims)))


def rounded_loops(loops: Loops, c: Contraction) -> Loops:
    """`loops` over rows of bytes in scratch. A row has an odd number of cache lines, so that rows do not map to the
    same cache sets."""
    form = Rounded.of(c)
    (blocks,) = static_shape((product(x.extent for x in c.reduce),))
    lines = -(-blocks // form.levels * form.nbytes // CACHE_LINE_BYTES)
    row_loops = join_rows(loops, len(loops.rows), (lines | 1) * CACHE_LINE_BYTES)
    return replace(row_loops, reduce=tuple(replace(x, a=1) for x in loops.reduce))


def rounded_rows(c: Contraction, x: Operand, loops: Loops, machine: Machine) -> ComputedA:
    """The rounded rows of `x`, which is f32 with the strides of `loops`."""
    form, row_bytes = Rounded.of(c), c.rows[-1].a
    *blocks, place = merge_axes(loops.reduce)
    rows = loops.rows

    def fill(block: Block, batch: Index, span: tuple[Expr, Expr], out: Buffer) -> None:
        def row(b: Block, r: Expr) -> None:
            row_index = delinearize(r, tuple(a.extent for a in rows), b.multiples)
            start = b.let(add(dim_expr(x.offset), linear(row_index, tuple(a.a for a in rows))), "x")
            target = b.let(mul(k.sub(r, span[0]), dim_expr(row_bytes)), "to")
            count = static_shape((product(a.extent for a in loops.reduce),))[0] // form.levels
            b.loop("g", 0, count, 1, lambda y, g: _round_block(y, form, source(start), g, out, target, machine))

        def source(start: Expr) -> _Source:
            return _Source(x.buffer, start, tuple(blocks), place)

        block.loop("row", *span, 1, row)

    return ComputedA(fill)


@dataclass(frozen=True)
class _Source:
    """A row of floats: for each position in `blocks` a part, whose elements are along `place`."""

    buffer: Buffer
    start: Expr
    blocks: tuple[Axis, ...]
    place: Axis

    def part(self, block: Block, index: Expr) -> Expr:
        """The offset of a part."""
        if not self.blocks:
            return self.start
        at = delinearize(index, tuple(a.extent for a in self.blocks), block.multiples)
        return block.let(add(self.start, linear(at, tuple(a.a for a in self.blocks))), "x")

    def load(self, start: Expr, first: int, lanes: int) -> Expr:
        at = add(start, mul(integer(first), dim_expr(self.place.a)))
        if self.place.a == 1 or lanes == 1:
            return k.load(self.buffer, at, lanes)
        step = dim_expr(self.place.a)
        return k.gather(self.buffer, k.add(k.splat(at, lanes), k.mul(k.ramp(integer(0), lanes), k.splat(step, lanes))))


def _round_block(block: Block, form: Rounded, x: _Source, g: Expr, out: Buffer, target: Expr, machine: Machine) -> None:
    lanes = machine.lanes(f32)
    while form.part_length % lanes:
        lanes //= 2
    starts = [x.part(block, add(mul(g, integer(form.parts)), integer(p))) for p in range(form.parts)]
    largest = block.alloc("largest", f32, 1, lanes=lanes)
    block.store(largest, integer(0), k.lit(0.0, f32, lanes))
    pieces = [(p, first) for p in range(form.parts) for first in range(0, form.part_length, lanes)]
    for p, first in pieces:
        value = k.unary("abs", x.load(starts[p], first, lanes))
        block.store(largest, integer(0), k.binary("max", k.load(largest, integer(0)), value))
    largest_value = block.let(k.load(largest, integer(0)), "most")
    largest_value = block.let(k.reduce("max", largest_value) if lanes > 1 else largest_value, "most")
    limit = k.lit(127.0, f32)
    target_block = block.let(add(target, mul(g, integer(form.nbytes))), "to")
    factor = block.let(k.splat(k.binary("div", limit, largest_value), lanes), "f")
    sums: dict[int, Expr] = {}
    for p, first in pieces:
        value = block.let(k.mul(x.load(starts[p], first, lanes), factor), "v")
        # false for NaN as well
        is_in_range = k.binary("lt", k.unary("abs", value), k.lit(128.0, f32, lanes))
        value = k.select(is_in_range, k.unary("round_even", value), k.lit(0.0, f32, lanes))
        level = block.let(k.cast(value, i32), "l")
        sums[p] = level if p not in sums else block.let(k.add(sums[p], level), "s")
        block.store(out, add(target_block, integer(p * form.part_length + first)), k.cast(level, i8))

    def store(at: int, value: Expr) -> None:
        block.store(out, add(target_block, integer(at)), k.bitcast(value, i8))

    store(form.levels, block.let(k.binary("div", largest_value, limit), "d"))
    for p, total in sums.items():
        total = block.let(k.reduce("add", total) if lanes > 1 else total, "s")
        store(form.levels + 4 + 4 * p, total)


__all__ = ["Rounded", "rounded_levels", "rounded_loops", "rounded_rows"]
