"""Weight gradients of depthwise convolutions: tiles of taps and channels, position by position.

    for each part of the positions:  taps[tap, channels] += x[position + tap, channels] * g[position, channels]
    for the taps and channels:       out = sum of the parts, in their order

Elements that overlapping windows read again are in the L1 cache. There are many parts, as a position is little work; a
second kernel adds them up, a tile of parts at a time, and computes the epilogue.
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
from ingot.schedule.folds import accumulator_of
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

MAX_TILE_ELEMENTS, MAX_TILE_CHANNELS = 1024, 64  # of a tile
POSITIONS_PER_ITERATION = 4  # whose loads overlap
PROGRAMS_PER_PROCESSOR = 16  # per multiprocessor
MIN_PART_POSITIONS = 16  # positions per part
REDUCTION_TILE = 128, 32  # parts and sums per tile of the second kernel


def lower_depthwise_gradient(
    body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...], machine: Machine
) -> Lowered:
    """Lower a KernelGradient with one group per channel, and the reshapes and transposes after it."""
    return _Gradient(body, ins, outs, machine).lower()


class _Gradient:
    def __init__(self, body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...], machine: Machine) -> None:
        self.group = Group.of(body, ins, outs)
        self.anchor = next(n for n in body.nodes() if isinstance(n.op, KernelGradient))
        op, (x, g) = self.anchor.op, self.anchor.inputs
        assert isinstance(op, KernelGradient)
        (x_at, self.x), (g_at, self.g) = (operand_memory(body, v, ins) for v in (x, g))
        self.buffers = self.group.operands.ins[x_at], self.group.operands.ins[g_at]
        self.op, self.dtype, self.position_shape = op, accumulator_of(self.anchor), g.shape[:-1]
        self.channels, inputs = static_shape((g.shape[-1], x.shape[-1]))
        self.multiplier = self.channels // inputs  # output channels per input channel
        (self.taps,) = static_shape((product(op.window),))
        taps, positions = power_of_two(self.taps), estimate(product(self.position_shape))
        self.tile = taps, min(MAX_TILE_CHANNELS, power_of_two(self.channels), max(16, MAX_TILE_ELEMENTS // taps))
        self.blocks = -(-self.channels // self.tile[1])
        max_parts = max(1, PROGRAMS_PER_PROCESSOR * machine.processors // self.blocks)
        self.parts = max(1, min(max_parts, positions // MIN_PART_POSITIONS))

    def lower(self) -> Lowered:
        sums = Buffer("sums", self.dtype, writable=True, align=ALIGNMENT_BYTES)
        size = self.parts * self.taps * self.channels * self.dtype.nbytes
        return Lowered((self._partial_sums(sums), self._reduce_parts(sums)), (size,))

    def _partial_sums(self, sums: Buffer) -> Step:
        """The kernel that computes sums[part, tap, channel]."""
        top, chunk, (height, width) = Block(), k.var("chunk"), self.tile
        part = top.let(k.binary("div", chunk, integer(self.blocks)), "part")
        column = top.let(k.binary("rem", chunk, integer(self.blocks)), "column")
        taps = Span.of(top, ZERO, height, self.taps, 0, wraps=True)
        channels = Span.of(top, k.mul(column, integer(width)), width, self.channels, 1)
        tap = offset_of(taps.index(top, self.op.window), [s * d for s, d in self._window_strides(self.op.dilation)])
        input_channels = (
            channels.position if self.multiplier == 1 else k.binary("div", channels.position, integer(self.multiplier))
        )
        x_at = ix.add(dim_expr(self.x.offset), ix.add(tap, k.mul(input_channels, dim_expr(self.x.strides[-1]))))
        g_at = ix.add(dim_expr(self.g.offset), k.mul(channels.position, dim_expr(self.g.strides[-1])))
        x_at, g_at = top.let(x_at, "x"), top.let(g_at, "g")
        acc = register(top, "acc", constant_tile(self.dtype, self.tile))
        positions = product(self.position_shape)
        length = dim_expr(ceildiv(positions, self.parts))
        begin = top.let(k.mul(part, length), "begin")
        end = top.let(k.binary("min", k.add(begin, length), dim_expr(positions)), "end")

        def loop_body(block: Block, first: Expr) -> None:
            total = k.load(acc, ZERO)
            for number in range(POSITIONS_PER_ITERATION):
                position = first if number == 0 else block.let(k.add(first, integer(number)), "at")
                in_bounds = None if number == 0 else block.let(k.binary("lt", position, end), "there")
                value = self._operands(block, position, in_bounds, x_at, g_at, channels.in_bounds)
                total = block.let(k.fma(*value, total), "sum")
            block.store(acc, ZERO, total)

        top.loop("p", begin, end, POSITIONS_PER_ITERATION, loop_body)
        row = k.add(k.mul(part, integer(self.taps)), taps.position)
        flat = top.let(k.add(k.mul(row, integer(self.channels)), channels.position), "flat")
        store_tile(top, sums, flat, k.load(acc, ZERO), all_of(taps.in_bounds, channels.in_bounds))
        warps = min(4, max(1, height * width // 256))
        return self.group.step("taps", chunk, self.blocks * self.parts, top, (sums, Arg("temp", 0)), warps=warps)

    def _operands(
        self, block: Block, position: Expr, in_bounds: Expr | None, x_at: Expr, g_at: Expr, live: Expr | None
    ) -> tuple[Expr, Expr]:
        """Return x at all taps and g for a position; both are 0 if it is not in bounds."""
        coordinates = ix.delinearize(position, self.position_shape, block.multiples)
        coordinates = tuple(block.let(e, "i") for e in coordinates)
        x_offset = offset_of(
            coordinates, [self.x.strides[0], *(s * n for s, n in self._window_strides(self.op.strides))]
        )
        x = read_at(block, self.buffers[0], ix.add(block.let(x_offset, "o"), x_at), all_of(in_bounds, live))
        g_offset = block.let(offset_of(coordinates, self.g.strides[:-1]), "o")
        g = read_at(block, self.buffers[1], ix.add(g_offset, g_at), all_of(in_bounds, live))
        x, g = (k.spread(k.cast(v, self.dtype), self.tile) for v in (x, g))
        if in_bounds is None:
            return x, g
        zero = k.lit(0.0, self.dtype)
        return block.let(k.select(in_bounds, x, zero), "x"), block.let(k.select(in_bounds, g, zero), "g")

    def _window_strides(self, steps: tuple[int, ...]) -> list[tuple[DimLike, int]]:
        """Pair x's strides along the window's axes with `steps`."""
        return [*zip(self.x.strides[1:-1], steps, strict=True)]

    def _reduce_parts(self, sums: Buffer) -> Step:
        """The kernel that adds up the parts and computes the results."""
        top, chunk, (height, width) = Block(), k.var("chunk"), REDUCTION_TILE
        count = self.taps * self.channels
        outputs = Span.of(top, k.mul(chunk, integer(width)), width, count, 1)
        acc = register(top, "acc", constant_tile(self.dtype, REDUCTION_TILE))

        def loop_body(block: Block, first: Expr) -> None:
            parts = Span.of(block, first, height, self.parts, 0)
            flat = k.add(k.mul(parts.position, integer(count)), outputs.position)
            live = all_of(parts.in_bounds, outputs.in_bounds)
            value = k.spread(read_at(block, sums, flat, live), REDUCTION_TILE)
            if parts.in_bounds is not None:
                value = k.select(parts.in_bounds, value, k.lit(0.0, self.dtype))
            block.store(acc, ZERO, k.add(k.load(acc, ZERO), value))

        top.loop("p", 0, self.parts, height, loop_body, multiple=height)
        em = self.group.emitter(() if outputs.in_bounds is None else (outputs.in_bounds,))
        total = top.let(k.reduce_axis("add", k.load(acc, ZERO), 0), "total")
        bind_result(em, top, self.anchor, top.let(k.cast(total, self.anchor.dtype), "total"))
        *tap, channel = outputs.index(top, (*self.op.window, self.channels))
        for root, buffer, layout in self.group.results:
            index = result_index(top, root, self.anchor, (channel, ZERO, *tap))
            write(top, em, root, buffer, layout, index, outputs.in_bounds)
        return self.group.step("joined", chunk, ceildiv(count, width), top, (sums, Arg("temp", 0)))


__all__ = ["lower_depthwise_gradient"]
