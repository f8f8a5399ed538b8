"""Gradients of depthwise convolutions' kernels: a vector of channels' taps stay in registers.

    for each part of the rows, block of channels:        for strips of rows: for 16 channels:
        taps[kh, kw] += x[oh*s + kh, ow*s + kw] * g[oh, ow]       over the strip's places, several at once
        part[kh, kw] += taps[kh, kw]
    for each tap, 16 channels:   out = sum of the parts, in their order

Parts are cut by sizes alone, so that sums have the same bits on any number of threads; strips are short, so that no sum
has many terms. Where all taps do not fit registers, lines of them take turns.
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
from ingot.schedule.emit import Index, load_at
from ingot.schedule.folds import accumulator
from ingot.schedule.group_io import bind_result, operand_memory, result_index, store_results
from ingot.schedule.index import ZERO, dim_expr
from ingot.schedule.lowered import Arg, Lowered, Step

WORK = 1 << 18  # multiply-adds that a chunk should have
PARTS = 64  # at most
BLOCK = 1024  # bytes of a block of channels: lines that prefetching follows
STRIP = 48  # places that are summed up in registers, about
POSITIONS = 4  # whose cotangents are in registers at once

Taps = tuple[tuple[int, ...], ...]


def lower_depthwise_gradient(
    body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...], machine: Machine
) -> Lowered:
    """A KernelGradient of a group for each channel, and the reshapes and transposes behind it."""
    return _Gradient(body, ins, outs, machine).lower()


class _Gradient:
    def __init__(self, body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...], machine: Machine) -> None:
        self.body, self.outs, self.machine = body, outs, machine
        self.anchor = next(n for n in body.nodes() if isinstance(n.op, ops.KernelGradient))
        op = self.anchor.op
        assert isinstance(op, ops.KernelGradient)
        self.op, (x, g) = op, self.anchor.inputs
        (self.x_at, self.x), (self.g_at, self.g) = (operand_memory(body, v, ins) for v in (x, g))
        self.dtype = accumulator(x.dtype)
        self.lanes = machine.lanes(self.dtype)
        self.channels = int(g.shape[-1])
        self.makes = self.channels // int(x.shape[-1])  # output channels of an input channel
        self.outer, self.width = g.shape[:-2], g.shape[-2]  # places count rows, and places of a row
        self.operands = Operands.of(body)
        self.em = self.operands.emitter(body, ins)
        self.dims = symbol_params(*body_dims(body, (*ins, *outs)))
        self.rows = product(self.outer)
        # channels in the order of vectors leave rows in pieces that hardware does not ask for ahead of time
        self.far = x.type.rank > 3 and estimate(x.type.nbytes + g.type.nbytes) > machine.l2
        self._cut()

    def _cut(self) -> None:
        """Channels of a block, rows of a part and of a strip."""
        width, vector = max(1, estimate(self.width)), self.lanes * self.dtype.nbytes
        vectors = -(-self.channels // self.lanes)
        blocks = -(-vectors * vector // BLOCK)
        self.block = -(-vectors // blocks) * self.lanes
        self.blocks = -(-self.channels // self.block)
        row = width * prod(self.op.window) * self.block
        self.run = max(-(-WORK // row), -(-estimate(self.rows) // PARTS), 1)
        self.strip = min(self.run, max(1, STRIP // width))
        self.parts = ceildiv(self.rows, self.run)

    def lower(self) -> Lowered:
        taps = prod(self.op.window)
        return Lowered((self._sum(), self._join()), (self.parts * (taps * self.channels * self.dtype.nbytes),))

    def _groups(self) -> Iterator[Taps]:
        """Taps whose sums are in registers at once: lines of the window, or pieces of a line."""
        *outer, last = self.op.window
        most = self.machine.registers - POSITIONS - 2
        piece = -(-last // -(-last // most))
        lines = list(itertools.product(*(range(n) for n in outer)))
        several = -(-len(lines) // -(-len(lines) // max(1, most // last)))
        for first in range(0, len(lines), several):
            for begin in range(0, last, piece):
                along = range(begin, min(begin + piece, last))
                yield tuple((*line, j) for line in lines[first : first + several] for j in along)

    def _place(self, part: Expr, tap: tuple[int, ...], c: Expr) -> Expr:
        """Where a part's sums of a tap lie."""
        number = 0
        for at, n in zip(tap, self.op.window, strict=True):
            number = number * n + at
        taps = prod(self.op.window)
        return ix.add(ix.mul(ix.add(ix.mul(part, integer(taps)), integer(number)), integer(self.channels)), c)

    def _sum(self) -> Step:
        """The step that sums parts."""
        chunk, top = k.var("chunk"), Block()
        part = top.let(k.binary("div", chunk, integer(self.blocks)), "part")
        low = top.let(k.mul(k.binary("rem", chunk, integer(self.blocks)), integer(self.block)), "c")
        high = top.let(k.binary("min", k.add(low, integer(self.block)), integer(self.channels)), "c")
        first = top.let(k.mul(part, integer(self.run)), "r")
        last = top.let(k.binary("min", k.add(first, integer(self.run)), dim_expr(self.rows)), "r")
        to = Buffer("sums", self.dtype, writable=True)

        def over_channels(block: Block, body) -> None:
            vector_loop(block, low, high, self.lanes, self.machine, body, self.lanes)

        def clear(b: Block, c: Expr, mask: Expr | None) -> None:
            for tap in itertools.product(*(range(n) for n in self.op.window)):
                b.store(to, ix.first_lane(self._place(part, tap, c)), k.lit(0.0, self.dtype, c.lanes), mask)

        def strip(b: Block, begin: Expr) -> None:
            end = b.let(k.binary("min", k.add(begin, integer(self.strip)), last), "r")
            for taps in self._groups():
                over_channels(b, lambda z, c, mask, taps=taps: self._strip(z, to, part, (begin, end), taps, c, mask))

        over_channels(top, clear)
        top.loop("strip", first, last, self.strip, strip)
        kernel = Kernel("depthwise_gradient", (), self.dims, chunk, dim_expr(self.parts * self.blocks), top.body)
        given = (
            (self.operands.ins[self.x_at], Arg("in", self.x_at)),
            (self.operands.ins[self.g_at], Arg("in", self.g_at)),
        )
        params = dict.fromkeys((*given, (to, Arg("temp", 0))))
        return Step(replace(kernel, params=tuple(b for b, _ in params)), tuple(a for _, a in params))

    def _strip(
        self, block: Block, to: Buffer, part: Expr, rows: tuple[Expr, Expr], taps: Taps, c: Expr, mask: Expr | None
    ) -> None:
        """Some taps of a vector of channels, summed over the places of some rows and added to the part's."""
        acc = block.alloc("acc", self.dtype, len(taps), lanes=c.lanes)
        for i in range(len(taps)):
            block.store(acc, integer(i), k.lit(0.0, self.dtype, c.lanes))

        def row(b: Block, r: Expr) -> None:
            at = tuple(b.let(e, "r") for e in ix.delinearize(r, self.outer, b.multiples))
            width, size = self.width, POSITIONS
            known = isinstance(width, int)
            whole = (
                integer(width // size * size)
                if known
                else k.mul(k.binary("div", dim_expr(width), integer(size)), integer(size))
            )
            whole = b.let(whole, "whole")
            b.loop("ow", ZERO, whole, size, lambda z, e: self._places(z, acc, at, e, size, taps, c, mask))
            if not known:
                b.loop("ow", whole, width, 1, lambda z, e: self._places(z, acc, at, e, 1, taps, c, mask))
            elif width % size:
                self._places(b, acc, at, whole, width % size, taps, c, mask)

        block.loop("row", *rows, 1, row)
        for i, tap in enumerate(taps):
            place = block.let(ix.first_lane(self._place(part, tap, c)), "s")
            total = k.add(k.load(to, place, c.lanes, mask), k.load(acc, integer(i)))
            block.store(to, place, total, mask)

    def _places(
        self, block: Block, acc: Buffer, row: Index, ow: Expr, count: int, taps: Taps, c: Expr, mask: Expr | None
    ) -> None:
        """`count` neighbouring places of a row: what each reads of the image is loaded once for all."""
        op = self.op
        stride, dilation = op.strides[-1], op.dilation[-1]
        g_buffer, x_buffer = self.operands.ins[self.g_at], self.operands.ins[self.x_at]
        at = ix.linear((*row, ow, c), self.g.strides, self.g.offset)
        step = dim_expr(self.g.strides[-2])
        places = [ix.add(at, ix.mul(integer(t), step)) for t in range(count)]
        g = [block.let(k.cast(load_at(block, g_buffer, p, mask), self.dtype), "g") for p in places]
        if self.far:
            below = dim_expr(self.g.strides[-3])
            block.stmts += [k.Prefetch(g_buffer, ix.first_lane(ix.add(p, below))) for p in places]
        channel, leading = c, ix.first_lane(c)
        if self.makes > 1:
            channel = k.binary("div", c, k.splat(integer(self.makes), c.lanes))
            leading = k.binary("div", leading, integer(self.makes))
        step = dim_expr(self.x.strides[-2])
        for line, own in itertools.groupby(enumerate(taps), key=lambda numbered: numbered[1][:-1]):
            numbers = {tap[-1]: i for i, tap in own}
            spatial = [
                ix.add(ix.mul(r, integer(s)), integer(j * d))
                for r, j, s, d in zip(row[1:], line, op.strides[:-1], op.dilation[:-1], strict=True)
            ]
            start = (row[0], *spatial, ix.mul(ow, integer(stride)))
            base = ix.linear((*start, channel), self.x.strides, self.x.offset)
            for position in range((count - 1) * stride + (op.window[-1] - 1) * dilation + 1):
                uses = [(t, j) for t in range(count) for j in numbers if t * stride + j * dilation == position]
                if not uses:
                    continue
                place = ix.add(base, ix.mul(integer(position), step))
                if self.far and line[-1] >= op.window[-2] - op.strides[-2] and position < count * stride:
                    below = (
                        *start[:-2],
                        ix.add(start[-2], integer(op.strides[-2])),
                        ix.add(start[-1], integer(position)),
                    )
                    ahead = ix.linear((*below, leading), self.x.strides, self.x.offset)
                    block.stmts.append(k.Prefetch(x_buffer, ahead))
                x = block.let(k.cast(load_at(block, x_buffer, place, mask), self.dtype), "x")
                for t, j in uses:
                    i = integer(numbers[j])
                    block.store(acc, i, k.fma(x, g[t], k.load(acc, i)))

    def _join(self) -> Step:
        """The step that sums the parts up."""
        chunk, top = k.var("chunk"), Block()
        sums = Buffer("sums", self.dtype)
        taps = prod(self.op.window)
        between = taps * self.channels

        def write(block: Block, index: Index, mask: Expr | None) -> None:
            tap, c = index
            total = block.alloc("acc", self.dtype, 1, lanes=c.lanes)
            block.store(total, ZERO, k.lit(0.0, self.dtype, c.lanes))
            first = block.let(ix.first_lane(ix.add(ix.mul(tap, integer(self.channels)), c)), "s")

            def part(b: Block, p: Expr) -> None:
                value = k.load(sums, k.add(first, k.mul(p, integer(between))), c.lanes, mask)
                b.store(total, ZERO, k.add(k.load(total, ZERO), value))

            block.loop("p", 0, self.parts, 1, part)
            value = block.let(k.cast(k.load(total, ZERO), self.anchor.dtype), "y")
            bind_result(self.em, block, self.anchor, value)
            at = (c, ZERO, *ix.delinearize(tap, self.op.window, block.multiples))
            at = result_index(block, self.body.outputs[0], self.anchor, at)
            store_results(self.em, block, self.body, self.operands.outs, self.outs, at, mask)

        work = max(1, estimate(self.parts))
        chunks = chunked_loops(top, chunk, (taps, self.channels), 1, self.lanes, self.machine, write, work)
        params = (*self.operands.params, sums)
        kernel = Kernel("depthwise_gradient_sum", params, self.dims, chunk, chunks, top.body)
        return Step(kernel, (*self.operands.args, Arg("temp", 0)))


__all__ = ["lower_depthwise_gradient"]
