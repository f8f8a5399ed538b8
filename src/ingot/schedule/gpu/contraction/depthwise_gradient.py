"""Gradients of depthwise convolutions' kernels: tiles of taps and channels, position by position.

    for each part of the positions:  taps[tap, channels] += x[position + tap, channels] * g[position, channels]
    for the taps and channels:       out = sum of the parts, in their order

Places of a window that several positions read lie in the first-level cache. Parts are many, as each position is little
work; a second kernel adds them up, a tile of parts at a time, and goes on with the epilogue.
"""

from __future__ import annotations

from ingot.ir import kernel as k
from ingot.ir.dims import DimLike, ceildiv, estimate, product
from ingot.ir.kernel import Buffer, Expr
from ingot.ir.layout import Layout
from ingot.ir.node import Graph
from ingot.ir.types import static_shape
from ingot.ops import KernelGradient
from ingot.schedule import index as ix
from ingot.schedule.block import Block
from ingot.schedule.folds import accumulates
from ingot.schedule.gpu.blocks import (
    ALIGNMENT_BYTES,
    Group,
    Span,
    all_of,
    constant_tile,
    offset_of,
    power_of_two,
    read_at,
    register,
    store_tile,
    write,
)
from ingot.schedule.gpu.machine import Machine
from ingot.schedule.group_io import bind_result, operand_memory, result_index
from ingot.schedule.index import ZERO, dim_expr, integer
from ingot.schedule.lowered import Arg, Lowered, Step

SIZE, WIDEST = 1024, 64  # elements of a tile, and channels of it, at most
AHEAD = 4  # positions whose loads are under way together
PROGRAMS = 16  # of a multiprocessor
LEAST = 16  # positions of a part
JOINED = 128, 32  # parts and sums that a program of the second kernel has at a time


def lower_depthwise_gradient(
    body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...], machine: Machine
) -> Lowered:
    """A KernelGradient of a group for each channel, and the reshapes and transposes behind it."""
    return _Gradient(body, ins, outs, machine).lower()


class _Gradient:
    def __init__(self, body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...], machine: Machine) -> None:
        self.group = Group.of(body, ins, outs)
        self.anchor = next(n for n in body.nodes() if isinstance(n.op, KernelGradient))
        op, (x, g) = self.anchor.op, self.anchor.inputs
        assert isinstance(op, KernelGradient)
        (x_at, self.x), (g_at, self.g) = (operand_memory(body, v, ins) for v in (x, g))
        self.sources = self.group.operands.ins[x_at], self.group.operands.ins[g_at]
        self.op, self.dtype, self.places = op, accumulates(self.anchor), g.shape[:-1]
        self.channels, inputs = static_shape((g.shape[-1], x.shape[-1]))
        self.makes = self.channels // inputs  # output channels of an input channel
        (self.taps,) = static_shape((product(op.window),))
        taps, positions = power_of_two(self.taps), estimate(product(self.places))
        self.tile = taps, min(WIDEST, power_of_two(self.channels), max(16, SIZE // taps))
        self.blocks = -(-self.channels // self.tile[1])
        room = max(1, PROGRAMS * machine.processors // self.blocks)
        self.parts = max(1, min(room, positions // LEAST))

    def lower(self) -> Lowered:
        sums = Buffer("sums", self.dtype, writable=True, align=ALIGNMENT_BYTES)
        size = self.parts * self.taps * self.channels * self.dtype.nbytes
        return Lowered((self._parts(sums), self._joined(sums)), (size,))

    def _parts(self, sums: Buffer) -> Step:
        """sums[part, tap, channel]"""
        top, chunk, (height, width) = Block(), k.var("chunk"), self.tile
        part = top.let(k.binary("div", chunk, integer(self.blocks)), "part")
        column = top.let(k.binary("rem", chunk, integer(self.blocks)), "column")
        taps = Span.of(top, ZERO, height, self.taps, 0, wraps=True)
        channels = Span.of(top, k.mul(column, integer(width)), width, self.channels, 1)
        tap = offset_of(taps.index(top, self.op.window), [s * d for s, d in self._along(self.op.dilation)])
        own = channels.position if self.makes == 1 else k.binary("div", channels.position, integer(self.makes))
        x_at = ix.add(dim_expr(self.x.offset), ix.add(tap, k.mul(own, dim_expr(self.x.strides[-1]))))
        g_at = ix.add(dim_expr(self.g.offset), k.mul(channels.position, dim_expr(self.g.strides[-1])))
        x_at, g_at = top.let(x_at, "x"), top.let(g_at, "g")
        acc = register(top, "acc", constant_tile(self.dtype, self.tile))
        positions = product(self.places)
        length = dim_expr(ceildiv(positions, self.parts))
        begin = top.let(k.mul(part, length), "begin")
        end = top.let(k.binary("min", k.add(begin, length), dim_expr(positions)), "end")

        def turn(block: Block, first: Expr) -> None:
            total = k.load(acc, ZERO)
            for number in range(AHEAD):
                at = first if number == 0 else block.let(k.add(first, integer(number)), "at")
                there = None if number == 0 else block.let(k.binary("lt", at, end), "there")
                value = self._product(block, at, there, x_at, g_at, channels.in_bounds)
                total = block.let(k.fma(*value, total), "sum")
            block.store(acc, ZERO, total)

        top.loop("p", begin, end, AHEAD, turn)
        row = k.add(k.mul(part, integer(self.taps)), taps.position)
        flat = top.let(k.add(k.mul(row, integer(self.channels)), channels.position), "flat")
        store_tile(top, sums, flat, k.load(acc, ZERO), all_of(taps.in_bounds, channels.in_bounds))
        warps = min(4, max(1, height * width // 256))
        return self.group.step("taps", chunk, self.blocks * self.parts, top, (sums, Arg("temp", 0)), warps=warps)

    def _product(
        self, block: Block, at: Expr, there: Expr | None, x_at: Expr, g_at: Expr, live: Expr | None
    ) -> tuple[Expr, Expr]:
        """Of a position, x at all taps and g, which is 0 where it is not `there`."""
        place = ix.delinearize(at, self.places, block.multiples)
        place = tuple(block.let(e, "i") for e in place)
        read = offset_of(place, [self.x.strides[0], *(s * n for s, n in self._along(self.op.strides))])
        x = read_at(block, self.sources[0], ix.add(block.let(read, "o"), x_at), all_of(there, live))
        given = block.let(offset_of(place, self.g.strides[:-1]), "o")
        g = read_at(block, self.sources[1], ix.add(given, g_at), all_of(there, live))
        x, g = (k.spread(k.cast(v, self.dtype), self.tile) for v in (x, g))
        if there is None:
            return x, g
        none = k.lit(0.0, self.dtype)
        return block.let(k.select(there, x, none), "x"), block.let(k.select(there, g, none), "g")

    def _along(self, steps: tuple[int, ...]) -> list[tuple[DimLike, int]]:
        """x's strides along the window's axes, each with one of `steps`."""
        return [*zip(self.x.strides[1:-1], steps, strict=True)]

    def _joined(self, sums: Buffer) -> Step:
        """The results, of which a program has neighbours."""
        top, chunk, (height, width) = Block(), k.var("chunk"), JOINED
        count = self.taps * self.channels
        own = Span.of(top, k.mul(chunk, integer(width)), width, count, 1)
        acc = register(top, "acc", constant_tile(self.dtype, JOINED))

        def turn(block: Block, first: Expr) -> None:
            parts = Span.of(block, first, height, self.parts, 0)
            flat = k.add(k.mul(parts.position, integer(count)), own.position)
            live = all_of(parts.in_bounds, own.in_bounds)
            value = k.spread(read_at(block, sums, flat, live), JOINED)
            if parts.in_bounds is not None:
                value = k.select(parts.in_bounds, value, k.lit(0.0, self.dtype))
            block.store(acc, ZERO, k.add(k.load(acc, ZERO), value))

        top.loop("p", 0, self.parts, height, turn, multiple=height)
        em = self.group.emitter(() if own.in_bounds is None else (own.in_bounds,))
        total = top.let(k.reduce_along("add", k.load(acc, ZERO), 0), "total")
        bind_result(em, top, self.anchor, top.let(k.cast(total, self.anchor.dtype), "total"))
        *tap, channel = own.index(top, (*self.op.window, self.channels))
        for root, buffer, layout in self.group.results:
            index = result_index(top, root, self.anchor, (channel, ZERO, *tap))
            write(top, em, root, buffer, layout, index, own.in_bounds)
        return self.group.step("joined", chunk, ceildiv(count, width), top, (sums, Arg("temp", 0)))


__all__ = ["lower_depthwise_gradient"]
