"""Gradients of depthwise convolutions' kernels: the taps of a vector of channels stay in registers.

    for each part of the rows, block of channels:        for strips of rows: for 16 channels:
        taps[kh, kw] += x[oh*s + kh, ow*s + kw] * g[oh, ow]       over the strip's places, several at once
        part[kh, kw] += taps[kh, kw]
    for each tap, 16 channels:   out = sum of the parts, in their order

Parts depend on sizes alone, so that sums have the same bits on any number of threads. Strips are short, so that no sum
has many terms. If the taps do not fit in registers, groups of their lines are processed one after the other.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from math import prod

from ingot import ops
from ingot.ir import kernel as k
from ingot.ir.dims import ceildiv, estimate, product
from ingot.ir.kernel import Buffer, Expr, Kernel, integer
from ingot.ir.layout import Layout
from ingot.ir.node import Graph
from ingot.schedule import index as ix
from ingot.schedule.block import Block
from ingot.schedule.buffers import Operands, body_dims, symbol_params
from ingot.schedule.cpu.chunks import chunked_loops, vector_loop
from ingot.schedule.cpu.machine import Machine
from ingot.schedule.cpu.windows.borders import Image, tiled_line
from ingot.schedule.emit import Index, load_at
from ingot.schedule.folds import accumulator
from ingot.schedule.group_io import bind_result, operand_memory, result_index, store_results
from ingot.schedule.index import ZERO, dim_expr
from ingot.schedule.lowered import Arg, Lowered, Step

CHUNK_MULTIPLY_ADDS = 1 << 18
MAX_PARTS = 64
CHANNEL_BLOCK_BYTES = 1024  # contiguous bytes that the hardware prefetcher follows
STRIP_POSITIONS = 48  # that are summed in registers, approximately
TILE_POSITIONS = 4  # whose cotangents are in registers together

Taps = tuple[tuple[int, ...], ...]


def lower_depthwise_gradient(
    body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...], machine: Machine
) -> Lowered:
    """Lower a depthwise KernelGradient with the reshapes and transposes of its result."""
    return _Gradient(body, ins, outs, machine).lower()


class _Gradient:
    def __init__(self, body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...], machine: Machine) -> None:
        self.body, self.outs, self.machine = body, outs, machine
        self.anchor = next(n for n in body.nodes() if isinstance(n.op, ops.KernelGradient))
        op = self.anchor.op
        assert isinstance(op, ops.KernelGradient)
        self.op, (x, g) = op, self.anchor.inputs
        self.image = Image.of(body, x, ins)
        self.x_input, self.x_layout = self.image.input, self.image.layout
        self.g_input, self.g_layout = operand_memory(body, g, ins)
        self.dtype = accumulator(x.dtype)
        self.lanes = machine.lanes(self.dtype)
        self.channels = int(g.shape[-1])
        self.channel_multiplier = self.channels // int(x.shape[-1])  # output channels of an input channel
        self.outer, self.width = g.shape[:-2], g.shape[-2]  # places count rows, and places of a row
        self.operands = Operands.of(body)
        self.em = self.operands.emitter(body, ins)
        self.dims = symbol_params(*body_dims(body, (*ins, *outs)))
        self.rows = product(self.outer)
        # blocks of channels make rows discontiguous, which the hardware prefetcher does not follow
        self.needs_prefetch = x.type.rank > 3 and estimate(x.type.nbytes + g.type.nbytes) > machine.l2
        self._choose_sizes()

    def _choose_sizes(self) -> None:
        """Choose the channels of a block and the rows of a part and of a strip."""
        width, vector = max(1, estimate(self.width)), self.lanes * self.dtype.nbytes
        vectors = -(-self.channels // self.lanes)
        blocks = -(-vectors * vector // CHANNEL_BLOCK_BYTES)
        self.block_channels = -(-vectors // blocks) * self.lanes
        self.blocks = -(-self.channels // self.block_channels)
        row = width * prod(self.op.window) * self.block_channels
        self.part_rows = max(-(-CHUNK_MULTIPLY_ADDS // row), -(-estimate(self.rows) // MAX_PARTS), 1)
        self.strip_rows = min(self.part_rows, max(1, STRIP_POSITIONS // width))
        self.parts = ceildiv(self.rows, self.part_rows)

    def lower(self) -> Lowered:
        taps = prod(self.op.window)
        return Lowered(
            (self._sum_parts(), self._combine_parts()), (self.parts * (taps * self.channels * self.dtype.nbytes),)
        )

    def _tap_groups(self) -> Iterator[Taps]:
        """Yield the groups of taps whose sums fit in registers: lines of the window, or pieces of a line."""
        *outer, last = self.op.window
        max_taps = self.machine.registers - TILE_POSITIONS - 2
        piece = -(-last // -(-last // max_taps))
        lines = list(itertools.product(*(range(n) for n in outer)))
        group_lines = -(-len(lines) // -(-len(lines) // max(1, max_taps // last)))
        for first in range(0, len(lines), group_lines):
            for begin in range(0, last, piece):
                columns = range(begin, min(begin + piece, last))
                yield tuple((*line, j) for line in lines[first : first + group_lines] for j in columns)

    def _sum_offset(self, part: Expr, tap: tuple[int, ...], c: Expr) -> Expr:
        """Return the offset of a part's sums of a tap."""
        number = 0
        for i, n in zip(tap, self.op.window, strict=True):
            number = number * n + i
        taps = prod(self.op.window)
        return ix.add(ix.mul(ix.add(ix.mul(part, integer(taps)), integer(number)), integer(self.channels)), c)

    def _sum_parts(self) -> Step:
        """The step that computes the sums of each part."""
        chunk, top = k.var("chunk"), Block()
        part = top.let(k.binary("div", chunk, integer(self.blocks)), "part")
        low = top.let(k.mul(k.binary("rem", chunk, integer(self.blocks)), integer(self.block_channels)), "c")
        high = top.let(k.binary("min", k.add(low, integer(self.block_channels)), integer(self.channels)), "c")
        first = top.let(k.mul(part, integer(self.part_rows)), "r")
        last = top.let(k.binary("min", k.add(first, integer(self.part_rows)), dim_expr(self.rows)), "r")
        sums = Buffer("sums", self.dtype, writable=True)

        def over_channels(block: Block, body) -> None:
            vector_loop(block, low, high, self.lanes, self.machine, body, self.lanes)

        def clear(b: Block, c: Expr, mask: Expr | None) -> None:
            for tap in itertools.product(*(range(n) for n in self.op.window)):
                b.store(sums, ix.first_lane(self._sum_offset(part, tap, c)), k.lit(0.0, self.dtype, c.lanes), mask)

        def emit_strip(b: Block, begin: Expr) -> None:
            end = b.let(k.binary("min", k.add(begin, integer(self.strip_rows)), last), "r")
            for taps in self._tap_groups():
                over_channels(b, lambda z, c, mask, taps=taps: self._strip(z, sums, part, (begin, end), taps, c, mask))

        over_channels(top, clear)
        top.loop("strip", first, last, self.strip_rows, emit_strip)
        kernel = Kernel("depthwise_gradient", (), self.dims, chunk, dim_expr(self.parts * self.blocks), top.body)
        inputs = (
            (self.operands.ins[self.x_input], Arg("in", self.x_input)),
            (self.operands.ins[self.g_input], Arg("in", self.g_input)),
        )
        params = dict.fromkeys((*inputs, (sums, Arg("temp", 0))))
        return Step(replace(kernel, params=tuple(b for b, _ in params)), tuple(a for _, a in params))

    def _strip(
        self, block: Block, sums: Buffer, part: Expr, rows: tuple[Expr, Expr], taps: Taps, c: Expr, mask: Expr | None
    ) -> None:
        """Sum some taps of a vector of channels over the positions of `rows`, and add them to the part's sums."""
        acc = block.alloc("acc", self.dtype, len(taps), lanes=c.lanes)
        for i in range(len(taps)):
            block.store(acc, integer(i), k.lit(0.0, self.dtype, c.lanes))

        def emit_row(b: Block, r: Expr) -> None:
            index = tuple(b.let(e, "r") for e in ix.delinearize(r, self.outer, b.multiples))
            tiled_line(
                b, self.width, TILE_POSITIONS, (self.op.strides[-1], self.op.dilation[-1], self.op.window[-1]),
                self.image.inside[-1],
                lambda z, ow, count, checks: self._positions(z, acc, index, ow, count, taps, c, mask, checks),
            )  # fmt: skip

        block.loop("row", *rows, 1, emit_row)
        for i, tap in enumerate(taps):
            offset = block.let(ix.first_lane(self._sum_offset(part, tap, c)), "s")
            total = k.add(k.load(sums, offset, c.lanes, mask), k.load(acc, integer(i)))
            block.store(sums, offset, total, mask)

    def _positions(
        self, block: Block, acc: Buffer, row: Index, ow: Expr, count: int, taps: Taps, c: Expr, mask: Expr | None,
        checks: bool,
    ) -> None:  # fmt: skip
        """Accumulate `count` neighboring positions of a row. Image elements that they share are loaded once. checks:
        see `tiled_line`."""
        op = self.op
        stride, dilation = op.strides[-1], op.dilation[-1]
        g_buffer, x_buffer = self.operands.ins[self.g_input], self.operands.ins[self.x_input]
        g_offset = ix.linear((*row, ow, c), self.g_layout.strides, self.g_layout.offset)
        step = dim_expr(self.g_layout.strides[-2])
        g_offsets = [ix.add(g_offset, ix.mul(integer(t), step)) for t in range(count)]
        g = [block.let(k.cast(load_at(block, g_buffer, p, mask), self.dtype), "g") for p in g_offsets]
        if self.needs_prefetch:
            next_row = dim_expr(self.g_layout.strides[-3])
            block.stmts += [k.Prefetch(g_buffer, ix.first_lane(ix.add(p, next_row))) for p in g_offsets]
        channel, leading = c, ix.first_lane(c)
        if self.channel_multiplier > 1:
            channel = k.binary("div", c, k.splat(integer(self.channel_multiplier), c.lanes))
            leading = k.binary("div", leading, integer(self.channel_multiplier))
        step = dim_expr(self.x_layout.strides[-2])
        for line, line_taps in itertools.groupby(enumerate(taps), key=lambda numbered: numbered[1][:-1]):
            numbers = {tap[-1]: i for i, tap in line_taps}
            spatial = [
                ix.add(ix.mul(r, integer(s)), integer(j * d))
                for r, j, s, d in zip(row[1:], line, op.strides[:-1], op.dilation[:-1], strict=True)
            ]
            start = (row[0], *spatial, ix.mul(ow, integer(stride)))
            is_last_line = bool(line) and line[-1] >= op.window[-2] - op.strides[-2]

            def emit_line(
                b: Block, start: Index = start, numbers: dict[int, int] = numbers, prefetches: bool = is_last_line
            ) -> None:
                base = ix.linear((*start, channel), self.x_layout.strides, self.x_layout.offset)
                for position in range((count - 1) * stride + (op.window[-1] - 1) * dilation + 1):
                    uses = [(t, j) for t in range(count) for j in numbers if t * stride + j * dilation == position]
                    if not uses:
                        continue
                    place = ix.add(start[-1], integer(position))
                    if self.needs_prefetch and prefetches and position < count * stride:
                        next_row = (*start[:-2], ix.add(start[-2], integer(op.strides[-2])), place, leading)
                        next_offset = ix.linear(next_row, self.x_layout.strides, self.x_layout.offset)
                        b.stmts.append(k.Prefetch(x_buffer, next_offset))

                    def emit_position(z: Block, position: int = position, uses: list[tuple[int, int]] = uses) -> None:
                        x_offset = ix.add(base, ix.mul(integer(position), step))
                        x = z.let(k.cast(load_at(z, x_buffer, x_offset, mask), self.dtype), "x")
                        for t, j in uses:
                            i = integer(numbers[j])
                            z.store(acc, i, k.fma(x, g[t], k.load(acc, i)))

                    if checks:
                        self.image.when_inside(b, (place,), len(op.window) - 1, emit_position)
                    else:
                        emit_position(b)

            self.image.when_inside(block, spatial, 0, emit_line)

    def _combine_parts(self) -> Step:
        """The step that sums the parts."""
        chunk, top = k.var("chunk"), Block()
        sums = Buffer("sums", self.dtype)
        taps = prod(self.op.window)
        part_stride = taps * self.channels

        def write(block: Block, index: Index, mask: Expr | None) -> None:
            tap, c = index
            total = block.alloc("acc", self.dtype, 1, lanes=c.lanes)
            block.store(total, ZERO, k.lit(0.0, self.dtype, c.lanes))
            first = block.let(ix.first_lane(ix.add(ix.mul(tap, integer(self.channels)), c)), "s")

            def add_part(b: Block, p: Expr) -> None:
                value = k.load(sums, k.add(first, k.mul(p, integer(part_stride))), c.lanes, mask)
                b.store(total, ZERO, k.add(k.load(total, ZERO), value))

            block.loop("p", 0, self.parts, 1, add_part)
            value = block.let(k.cast(k.load(total, ZERO), self.anchor.dtype), "y")
            bind_result(self.em, block, self.anchor, value)
            result = (c, ZERO, *ix.delinearize(tap, self.op.window, block.multiples))
            result = result_index(block, self.body.outputs[0], self.anchor, result)
            store_results(self.em, block, self.body, self.operands.outs, self.outs, result, mask)

        work = max(1, estimate(self.parts))
        chunks = chunked_loops(top, chunk, (taps, self.channels), 1, self.lanes, self.machine, write, work)
        params = (*self.operands.params, sums)
        kernel = Kernel("depthwise_gradient_sum", params, self.dims, chunk, chunks, top.body)
        return Step(kernel, (*self.operands.args, Arg("temp", 0)))


__all__ = ["lower_depthwise_gradient"]
