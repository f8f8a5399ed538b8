"""Weight gradients of depthwise convolutions: tiles of positions and channels, with sums for each tap.

    for each part of the positions:
        for the taps:            total[tap][rows, channels] += x[rows + tap, channels] * g[rows, channels]
        for the taps:            taps[tap, channels] = sum of the rows of total[tap]
    for the taps and channels:   out = sum of the parts, in their order

A row of a tile is a run of positions along the innermost axis, as of a depthwise convolution: an element that several
windows of a run read is loaded once. A second kernel adds the parts up, a tile of parts at a time, and computes the
epilogue.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product as product_of
from math import prod

from ingot.ir import kernel as k
from ingot.ir.dims import DimLike, ceildiv, estimate, product
from ingot.ir.kernel import Buffer, Expr
from ingot.ir.layout import Layout
from ingot.ir.types import static_shape
from ingot.ops import KernelGradient
from ingot.schedule import index as ix
from ingot.schedule.block import Block
from ingot.schedule.emit import Index
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
from ingot.schedule.gpu.contraction.depthwise.product import default_run
from ingot.schedule.gpu.machine import Machine
from ingot.schedule.group_io import bind_result, result_index
from ingot.schedule.index import ZERO, dim_expr, integer
from ingot.schedule.lowered import Arg, Lowered, Step

TILE_ELEMENTS, WARPS = 512, 4  # of a tile of runs and channels; 4 elements per thread
MAX_GROUP_TAPS = 10  # whose sums fit in a program's registers
MAX_LOADED_TAPS = 9  # whose loads overlap
MIN_LANE_UTILIZATION = 0.8  # of the channels of tiles
PROGRAMS_PER_PROCESSOR = 4  # per multiprocessor
MIN_PART_TILES = 2  # tiles of positions per part
REDUCTION_TILE = 128, 32  # parts and sums per tile of the second kernel


def lower_depthwise_gradient(group: Group, machine: Machine) -> Lowered:
    """Lower a KernelGradient with one group per channel, and the reshapes and transposes after it."""
    return _Gradient(group, machine).lower()


class _Gradient:
    def __init__(self, group: Group, machine: Machine) -> None:
        self.group = group
        self.anchor = next(n for n in group.body.nodes() if isinstance(n.op, KernelGradient))
        op, (x, g) = self.anchor.op, self.anchor.inputs
        assert isinstance(op, KernelGradient)
        (x_at, self.x), (g_at, self.g) = map(group.memory, (x, g))
        self.buffers = self.group.operands.ins[x_at], self.group.operands.ins[g_at]
        self.op, self.dtype = op, accumulator_of(self.anchor)
        self.channels, inputs = static_shape((g.shape[-1], x.shape[-1]))
        self.multiplier = self.channels // inputs  # output channels per input channel
        *outer, line = g.shape[:-1]
        self.run = default_run(estimate(product(g.shape)), line, machine)
        self.runs_shape = (*outer, ceildiv(line, self.run))
        self.taps = prod(op.window)
        # a program has `group_lines` lines of the window: of its axis `split`, with all of the axes inside
        sizes = [prod(op.window[at + 1 :]) for at in range(len(op.window))]
        self.split = next(at for at, n in enumerate(sizes) if n <= MAX_GROUP_TAPS)
        max_lines = MAX_GROUP_TAPS // sizes[self.split]
        self.line_groups = -(-op.window[self.split] // max_lines)
        self.group_lines = -(-op.window[self.split] // self.line_groups)
        self.tap_groups = prod(op.window[: self.split]) * self.line_groups
        widths = [w for w in (64, 32, 16) if self.channels >= MIN_LANE_UTILIZATION * w * -(-self.channels // w)]
        width = min([*widths[:1], power_of_two(max(16, self.channels))])
        self.tile = TILE_ELEMENTS // width, width
        self.blocks = -(-self.channels // width)
        max_parts = max(1, PROGRAMS_PER_PROCESSOR * machine.processors // (self.blocks * self.tap_groups))
        tiles = estimate(product(self.runs_shape)) // self.tile[0]
        self.parts = max(1, min(max_parts, tiles // MIN_PART_TILES))

    def lower(self) -> Lowered:
        sums = Buffer("sums", self.dtype, writable=True, align=ALIGNMENT_BYTES)
        size = self.parts * self.taps * self.channels * self.dtype.nbytes
        return Lowered((self._partial_sums(sums), self._reduce_parts(sums)), (size,))

    def _partial_sums(self, sums: Buffer) -> Step:
        """The kernel that computes sums[part, tap, channel]: a program has a part of the positions, some taps and some
        channels."""
        top, chunk, (height, width) = Block(), k.var("chunk"), self.tile
        column = top.let(k.binary("rem", chunk, integer(self.blocks)), "column")
        rest = top.let(k.binary("div", chunk, integer(self.blocks)), "rest")
        group = top.let(k.binary("rem", rest, integer(self.tap_groups)), "group")
        part = top.let(k.binary("div", rest, integer(self.tap_groups)), "part")
        channels = Span.of(top, k.mul(column, integer(width)), width, self.channels, 1, wraps=True)
        input_channels = (
            channels.position if self.multiplier == 1 else k.binary("div", channels.position, integer(self.multiplier))
        )
        x_at = ix.add(dim_expr(self.x.offset), k.mul(input_channels, dim_expr(self.x.strides[-1])))
        g_at = ix.add(dim_expr(self.g.offset), k.mul(channels.position, dim_expr(self.g.strides[-1])))
        x_at, g_at = top.let(x_at, "x"), top.let(g_at, "g")
        tap_start, own_line = self._first_tap(top, group)
        x_at = top.let(ix.add(x_at, offset_of(tap_start, self._dilations[: self.split + 1])), "x")
        inner = self.op.window[self.split + 1 :]
        taps = [*product_of(range(self.group_lines), *map(range, inner))]
        totals = [register(top, "acc", constant_tile(self.dtype, self.tile)) for _ in taps]
        loaded_lines = max(1, MAX_LOADED_TAPS // prod(inner))
        batches = [range(n, min(n + loaded_lines, self.group_lines)) for n in range(0, self.group_lines, loaded_lines)]
        runs = product(self.runs_shape)
        length = dim_expr(ceildiv(ceildiv(runs, height), self.parts) * height)
        begin = top.let(k.mul(part, length), "begin")
        end = top.let(k.binary("min", k.add(begin, length), dim_expr(runs)), "end")
        *outer_steps, x_step = [self.x.strides[0], *(s * n for s, n in self._window_strides(self.op.strides))]
        *outer_strides, g_step = self.g.strides[:-1]

        def loop_body(block: Block, first: Expr) -> None:
            rows = Span.of(block, first, height, runs, 0, wraps=True)
            index = rows.index(block, self.runs_shape)
            x_run = block.let(ix.add(offset_of(index, [*outer_steps, x_step * self.run]), x_at), "o")
            g_run = block.let(ix.add(offset_of(index, [*outer_strides, g_step * self.run]), g_at), "o")

            def loads(buffer: Buffer, start: Expr, offsets: Iterable[DimLike]) -> dict[DimLike, Expr]:
                # all are under way before the first is used, as none waits for a mask
                values = {
                    at: read_at(block, buffer, ix.add(start, dim_expr(at)), None) for at in dict.fromkeys(offsets)
                }
                return {at: self._operand(block, value, rows.in_bounds) for at, value in values.items()}

            gs = loads(self.buffers[1], g_run, [g_step * n for n in range(self.run)])
            for lines in batches:
                offsets = {tap: self._tap_offset(tap) for tap in taps if tap[0] in lines}
                xs = loads(
                    self.buffers[0], x_run, [x_step * n + at for at in offsets.values() for n in range(self.run)]
                )
                for n, (tap, at) in product_of(range(self.run), offsets.items()):
                    total = totals[taps.index(tap)]
                    block.store(total, ZERO, k.fma(xs[x_step * n + at], gs[g_step * n], k.load(total, ZERO)))

        top.loop("p", begin, end, height, loop_body, multiple=height)
        steps = static_shape(Layout.contiguous(self.op.window).strides)
        first_row = ix.add(k.mul(part, integer(self.taps)), offset_of(tap_start, steps[: self.split + 1]))
        for tap, total in zip(taps, totals, strict=True):
            row = ix.add(first_row, integer(sum(n * s for n, s in zip(tap, steps[self.split :], strict=True))))
            flat = top.let(k.add(k.mul(row, integer(self.channels)), channels.position), "flat")
            line = ix.add(tap_start[-1], integer(tap[0]))
            is_own = None if own_line is None else k.binary("ge", line, own_line)
            value = k.reduce_axis("add", k.load(total, ZERO), 0)
            store_tile(top, sums, flat, value, all_of(is_own, channels.in_bounds))
        programs = self.blocks * self.tap_groups * self.parts
        return self.group.step("taps", chunk, programs, top, (sums, Arg("temp", 0)), warps=WARPS)

    def _first_tap(self, block: Block, group: Expr) -> tuple[Index, Expr | None]:
        """The first tap of a group, along the axes of the window up to `split`, and the first line that it stores
        (None: all). The last group begins early enough to be whole, with lines that the group before it stores."""
        *outer, number = ix.delinearize(group, (*self.op.window[: self.split], self.line_groups), block.multiples)
        line = block.let(k.mul(number, integer(self.group_lines)), "line")
        missing = self.line_groups * self.group_lines - self.op.window[self.split]
        if not missing:
            return (*outer, line), None
        last = integer(self.op.window[self.split] - self.group_lines)
        return (*outer, block.let(k.binary("min", line, last), "first")), line

    def _tap_offset(self, tap: Sequence[int]) -> DimLike:
        """The offset in x of a tap from the first one of its group."""
        return sum((n * s for n, s in zip(tap, self._dilations[self.split :], strict=True)), 0)

    @property
    def _dilations(self) -> list[DimLike]:
        """The strides in x of the window's axes."""
        return [s * d for s, d in self._window_strides(self.op.dilation)]

    def _operand(self, block: Block, value: Expr, rows: Expr | None) -> Expr:
        """A tile of an operand in the type of the sums, with zeros in rows out of bounds."""
        value = k.spread(k.cast(value, self.dtype), self.tile)
        return value if rows is None else block.let(k.select(rows, value, k.lit(0.0, self.dtype)), "v")

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
