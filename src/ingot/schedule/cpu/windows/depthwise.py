"""Depthwise convolutions, and others with few channels per group, followed by pointwise ops.

    depthwise:  for n: for oh: for 16 channels: for a tile of ow: acc[t] += x[oh*s+kh, (ow+t)*s+kw] * w[kh, kw]

Vectors run along the innermost dimension, over several groups if a group has fewer channels than a vector: the i-th
input channel of each lane's group is then a shuffle of the vector of input channels. A tile keeps several output
positions in registers, so that each input vector of a row is loaded once for all taps that use it. The weights of a
vector of channels are contiguous. If there are many taps and L1 holds a vector of channels of a full image, the channel
loop is the outer one, so that each position is read once from beyond L1. Other images are read line by line, as the
hardware prefetches. Depthwise inputs include their padding (see passes/core/layout), but for images that are given,
whose taps outside are left out (`borders.py`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import prod

import numpy as np

from ingot import ops
from ingot.ir import kernel as k
from ingot.ir.dims import DimLike, ceildiv, estimate, product
from ingot.ir.kernel import Buffer, Expr, Kernel, Lit, integer
from ingot.ir.layout import Layout
from ingot.ir.node import Graph, Node
from ingot.ir.types import DType, static_shape
from ingot.schedule import index as ix
from ingot.schedule.block import Block
from ingot.schedule.buffers import Operands, body_dims, symbol_params
from ingot.schedule.cpu.chunks import vector_loop
from ingot.schedule.cpu.machine import Machine
from ingot.schedule.cpu.windows.borders import Image, tiled_line
from ingot.schedule.cpu.windows.pool_epilogue import PoolEpilogue
from ingot.schedule.cpu.winograd.weights import contiguous_copy
from ingot.schedule.emit import Index, load_at
from ingot.schedule.folds import accumulator
from ingot.schedule.group_io import bind_result, operand_memory, result_index, store_results
from ingot.schedule.index import ZERO, dim_expr
from ingot.schedule.lowered import Arg, Lowered, Pack, Step

CHUNK_MULTIPLY_ADDS, MIN_CHUNK_MULTIPLY_ADDS = 1 << 16, 1 << 14
MULTIPLY_ADDS_PER_ELEMENT = 8  # that take as long as moving an element into and out of a core


def lower_depthwise(
    body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...], constant: tuple[bool, ...], machine: Machine
) -> Lowered:
    """Lower a convolution with vectors of groups and its epilogue. Constant weights are packed as
    [channels / 16][taps][channels of a group][16]; a kernel transposes other weights to contiguous channels."""
    anchor = next(n for n in body.nodes() if isinstance(n.op, ops.Convolution))
    return Depthwise(anchor, body, ins, outs, constant, machine).lower()


def _pack_taps(order: tuple[int, ...], lanes: int, array: np.ndarray, out: np.ndarray) -> None:
    """Pack weights, whose dimensions in `order` are taps and channels, as [channels / lanes][taps][lanes]. `out` must
    be zero."""
    taps = array.transpose(order).reshape(-1, array.shape[order[-1]])
    vectors = out.reshape(-1, len(taps), lanes)
    for i, vector in enumerate(vectors):
        some = taps[:, i * lanes : (i + 1) * lanes]
        vector[:, : some.shape[1]] = some


class Depthwise:
    """A depthwise convolution as a kernel: rows of outputs, vectors of channels, several outputs at once.

    group: input and output channels of a group; both are 1 unless a vector holds several groups.
    """

    def __init__(
        self,
        anchor: Node,
        body: Graph,
        ins: tuple[Layout, ...],
        outs: tuple[Layout, ...],
        constant: tuple[bool, ...],
        machine: Machine,
    ):
        op = anchor.op
        assert isinstance(op, ops.Convolution)
        self.op, self.anchor, self.machine = op, anchor, machine
        self.body, self.outs, self.all_outs = replace(body, outputs=body.outputs[:1]), outs[:1], outs
        _, w = anchor.inputs
        self.window = tuple(int(w.shape[d]) for d in self._spatial(op.rhs_layout))  # static by construction
        self.w_input, self.w_layout = operand_memory(body, w, ins)
        self.operands = Operands.of(self.body)
        self.em = self.operands.emitter(body, ins)
        self.dtype: DType = accumulator(anchor.dtype)
        self.channels = int(anchor.shape[-1])
        out_channels, in_channels = static_shape(tuple(w.shape[op.rhs_layout.index(d)] for d in "OI"))
        self.group = in_channels, out_channels // op.feature_groups
        order = (*self._spatial(op.rhs_layout), op.rhs_layout.index("I"), op.rhs_layout.index("O"))
        self.packs: tuple[Pack, ...] = ()
        self.packed = constant[self.w_input] and w in body.inputs
        self.weights = self.operands.ins[self.w_input]
        self.copy_steps: tuple[Step, ...] = ()
        self.lanes = lanes = machine.lanes(self.dtype)
        if self.packed:
            size = self.products * -(-self.channels // lanes) * lanes
            pack = Pack(self.w_input, f"taps{order}{lanes}", w.dtype, size, partial(_pack_taps, order, lanes))
            self.packs = (pack,)
        self.ins, self.order = ins, order
        self.x_buffer, self.image = self._input()
        self.x_layout = self.image.layout
        self.shift: Expr = ZERO  # added to all offsets in the input
        self.pools = PoolEpilogue(body, (*anchor.shape[:-2], anchor.shape[-1]))
        self.temps = self.pools.temps
        if not self.packed and self.w_layout.strides[order[-1]] != 1:  # each line of the image would gather them
            args = Arg("in", self.w_input), Arg("temp", len(self.temps))
            step, self.w_layout = contiguous_copy(w, self.w_layout, order[-1], machine, *args)
            self.copy_steps, self.temps = (step,), (*self.temps, w.type.nbytes)
        self.w_layout = self.w_layout.transpose(order)

    @property
    def products(self) -> int:
        """Multiply-adds of an output."""
        return prod(self.window) * self.group[0]

    def _input(self) -> tuple[Buffer, Image]:
        """The input's buffer and places in it."""
        image = Image.of(self.body, self.anchor.inputs[0], self.ins)
        return self.operands.ins[image.input], image

    @staticmethod
    def _spatial(layout: str) -> tuple[int, ...]:
        return tuple(sorted((d for d, c in enumerate(layout) if c.isdigit() or c not in "NCOI")))

    def lower(self) -> Lowered:
        shape = self.anchor.shape  # n, spatial..., c
        outer = (shape[0], *shape[1:-2])
        self.tile = self._tile(shape[-2])
        rows = product(outer)
        chunk_rows, size = self._chunk_size(estimate(rows))
        parts = -(-self.channels // size)
        chunk, top = k.var("chunk"), Block()
        row_block, low, high = chunk, ZERO, integer(self.channels)
        if parts > 1:
            row_block = top.let(k.binary("div", chunk, integer(parts)), "rows")
            low = top.let(k.mul(k.binary("rem", chunk, integer(parts)), integer(size)), "c")
            high = top.let(k.binary("min", k.add(low, integer(size)), high), "c")
        first = top.let(k.mul(row_block, integer(chunk_rows)), "first")
        last = top.let(k.binary("min", k.add(first, integer(chunk_rows)), dim_expr(rows)), "last")

        def over_rows(block: Block, body: Callable[[Block, Index], None]) -> None:
            def emit_row(b: Block, row: Expr) -> None:
                body(b, tuple(b.let(e, "r") for e in ix.delinearize(row, outer, b.multiples)))

            if chunk_rows == 1:
                emit_row(block, first)
            else:
                block.loop("row", first, last, 1, emit_row)

        def over_channels(block: Block, body: Callable[[Block, Expr, Expr | None], None]) -> None:
            vector_loop(block, low, high, self.lanes, self.machine, body, self.lanes)

        if self.is_channels_outer:
            over_channels(top, lambda b, c, m: over_rows(b, lambda x, row: self._line(x, row, c, m)))
        else:
            over_rows(top, lambda b, row: over_channels(b, lambda x, c, m: self._line(x, row, c, m)))
        dims = symbol_params(*body_dims(self.body, (*self.ins, *self.outs)))
        chunks = dim_expr(ceildiv(rows, chunk_rows) * parts)
        return self._lowered(Kernel("depthwise", (), dims, chunk, chunks, top.body))

    @property
    def is_channels_outer(self) -> bool:
        """Whether the channel loop is the outer one: L1 holds a vector of channels of an image and the weights, and
        there are so many taps that rereads cost more than reading memory out of order."""
        positions = product(self.anchor.inputs[0].shape[1:-1])
        if self.products < 2 * MULTIPLY_ADDS_PER_ELEMENT:
            return False
        return isinstance(positions, int) and positions * self.lanes * self.dtype.nbytes <= self.machine.l1 * 3 // 4

    def _chunk_size(self, rows: int) -> tuple[int, int]:
        """(rows, channels) of a chunk: all rows of an image or few of them, so that all threads are equally busy."""
        threads, taps = self.machine.threads, max(self.products, MULTIPLY_ADDS_PER_ELEMENT)
        vectors, width = -(-self.channels // self.lanes), max(1, estimate(self.anchor.shape[-2]))
        if not self.is_channels_outer:
            parts = min(-(-8 * threads // max(rows, 1)), vectors // 2)
            chunk_rows = max(1, min(CHUNK_MULTIPLY_ADDS // (width * self.channels * taps), rows // (4 * threads)))
            return chunk_rows, -(-vectors // parts) * self.lanes if parts > 1 else self.channels
        image = max(1, estimate(product(self.anchor.shape[1:-2])))
        parts_goal = min(8 * threads, max(1, rows * width * self.channels * taps // MIN_CHUNK_MULTIPLY_ADDS))
        parts_goal = min(vectors, -(-parts_goal * image // max(rows, 1)))
        sizes = [-(-vectors // parts) for parts in range(parts_goal, parts_goal // 2, -1)]

        def busiest_vectors(size: int) -> int:
            """The vectors of the busiest thread."""
            chunks = -(-vectors // size)
            return -(-chunks // threads) * size

        size = min(sizes, key=busiest_vectors)
        return image, size * self.lanes

    def _lowered(self, kernel: Kernel) -> Lowered:
        """Return the steps: the copy of the weights, the kernel, and the reduction of its lines."""
        packed = {Arg("in", p.index): Arg("pack", i) for i, p in enumerate(self.packs)}
        packed |= {source: laid_out for source, laid_out in (s.args for s in self.copy_steps)}
        args = (*(packed.get(a, a) for a in self.operands.args), *self.pools.args)
        step = Step(replace(kernel, params=(*self.operands.params, *self.pools.buffers)), args)
        folded = self.pools.steps(self.ins, self.all_outs, self.machine)
        return Lowered((*self.copy_steps, step, *folded), self.temps, self.packs)

    def _tile(self, width: DimLike) -> int:
        """The output positions in registers: as many as waste little of the row."""
        max_tile = min(self.machine.registers // 3, 10)
        if not isinstance(width, int):
            return min(max_tile, 8)
        if width <= max_tile + 2:
            return max(1, width)
        return min(range(4, max_tile + 1), key=lambda t: (-(-width // t) * t / width + 0.3 / t, -t))

    def _line(self, block: Block, row: Index, c: Expr, mask: Expr | None) -> None:
        """Emit one row of outputs for one vector of channels."""
        taps = self.op.strides[-1], self.op.rhs_dilation[-1], self.window[-1]
        self.pools.begin(block, c.lanes)
        tiled_line(
            block, self.anchor.shape[-2], self.tile, taps, self.image.inside[-1],
            lambda b, ow, count, checks: self._positions(b, row, ow, count, c, mask, checks),
        )  # fmt: skip
        self.pools.end(block, (*row, c), mask)

    def _positions(
        self, block: Block, row: Index, ow: Expr, count: int, c: Expr, mask: Expr | None, checks: bool
    ) -> None:
        """Emit `count` neighboring outputs: the sums over all taps, then the epilogue. checks: see `tiled_line`."""
        op, lanes = self.op, c.lanes
        acc = block.alloc("acc", self.dtype, count, lanes=lanes)
        for t in range(count):
            block.store(acc, integer(t), Lit(self.dtype, lanes, 0.0 if self.dtype.is_float else 0))
        outer_window, last = self.window[:-1], self.window[-1]
        stride, dilation = op.strides[-1], op.rhs_dilation[-1]

        def emit_line(b: Block, tap: tuple[Expr, ...]) -> None:
            spatial = [
                ix.add(ix.mul(r, integer(s)), ix.mul(a, integer(d)))
                for r, a, s, d in zip(row[1:], tap, op.strides[:-1], op.rhs_dilation[:-1], strict=True)
            ]

            def emit_inside(z: Block) -> None:
                index = (row[0], *spatial, ix.mul(ow, integer(stride)))
                offset = ix.linear(index, self.x_layout.strides[:-1], self.x_layout.offset)
                base = z.let(ix.add(offset, self.shift), "x")
                for i in range(self.group[0]):
                    emit_channel(z, tap, base, i)

            self.image.when_inside(b, spatial, 0, emit_inside)

        def emit_channel(b: Block, tap: tuple[Expr, ...], base: Expr, i: int) -> None:
            """Emit the products with the i-th input channel of each group."""
            weights = [
                load_at(b, self.weights, self._weight_index((*tap, integer(kw)), i, c), mask) for kw in range(last)
            ]
            weights = [b.let(k.cast(k.splat(w, lanes), self.dtype)) for w in weights]
            for position in range((count - 1) * stride + (last - 1) * dilation + 1):
                uses = [(t, kw) for t in range(count) for kw in range(last) if t * stride + kw * dilation == position]
                if not uses:
                    continue

                def emit_position(z: Block, position: int = position, uses: list[tuple[int, int]] = uses) -> None:
                    offset = ix.add(base, ix.mul(integer(position), dim_expr(self.x_layout.strides[-2])))
                    x = self._channel(z, offset, i, c, mask)
                    for t, kw in uses:
                        z.store(acc, integer(t), k.fma(x, weights[kw], k.load(acc, integer(t))))

                if checks:
                    place = ix.add(ix.mul(ow, integer(stride)), integer(position))
                    self.image.when_inside(b, (place,), len(self.window) - 1, emit_position)
                else:
                    emit_position(b)

        if prod(outer_window) * self.group[0] * last * count <= 96:
            for at in itertools.product(*(range(n) for n in outer_window)):
                emit_line(block, tuple(integer(i) for i in at))
        else:
            self._outer_taps(block, outer_window, (), emit_line)
        for t in range(count):
            index = (*row, ix.add(ow, integer(t)), c)
            value = block.let(k.cast(k.load(acc, integer(t)), self.anchor.dtype), "dw")
            bind_result(self.em, block, self.anchor, value)
            index = result_index(block, self.body.outputs[0], self.anchor, index)
            store_results(self.em, block, self.body, self.operands.outs, self.outs, index, mask)
            self.pools.add(block, self.em, index, mask)

    def _channel(self, block: Block, offset: Expr, i: int, c: Expr, mask: Expr | None) -> Expr:
        """Load the i-th input channel of the groups of the output channels `c`, at a position of the image."""
        (group_in, group_out), step = self.group, dim_expr(self.x_layout.strides[-1])
        if group_out == 1:
            index = ix.add(offset, ix.mul(c, step))
            return block.let(k.cast(load_at(block, self.x_buffer, index, mask), self.dtype), "x")
        first = ix.mul(k.binary("div", ix.first_lane(c), integer(group_out)), integer(group_in))
        if c.lanes == 1:
            index = ix.add(offset, ix.mul(ix.add(first, integer(i)), step))
            return block.let(k.cast(load_at(block, self.x_buffer, index), self.dtype), "x")
        in_channels = k.ramp(block.let(first, "g"), c.lanes // group_out * group_in)
        if mask is not None:
            mask = block.let(k.binary("lt", in_channels, integer(self.channels // group_out * group_in)), "mask")
        x = load_at(block, self.x_buffer, ix.add(offset, ix.mul(in_channels, step)), mask)
        x = block.let(k.cast(x, self.dtype), "x")
        pick = tuple(lane // group_out * group_in + i for lane in range(c.lanes))
        return block.let(k.Shuffle(self.dtype, c.lanes, x, x, pick), "x")

    def _weight_index(self, tap: tuple[Expr, ...], i: int, c: Expr) -> Expr:
        """Return the offset of the weights of a tap and a group's i-th input channel, for the output channels `c`."""
        if not self.packed:
            return ix.linear((*tap, integer(i), c), self.w_layout.strides, self.w_layout.offset)
        lanes = integer(self.lanes)
        first = c.base if isinstance(c, k.Ramp) else ix.mul(k.binary("div", c, lanes), lanes)
        vector = ix.mul(first, integer(self.products))
        steps = Layout.contiguous((*self.window, self.group[0], self.lanes)).strides[:-1]
        offset = ix.add(vector, ix.linear((*tap, integer(i)), steps))
        return k.ramp(offset, c.lanes) if c.lanes > 1 else ix.add(offset, k.binary("rem", c, lanes))

    def _outer_taps(
        self,
        block: Block,
        window: tuple[int, ...],
        tap: tuple[Expr, ...],
        body: Callable[[Block, tuple[Expr, ...]], None],
    ) -> None:
        if len(tap) == len(window):
            body(block, tap)
            return
        block.loop("kh", 0, window[len(tap)], 1, lambda b, e: self._outer_taps(b, window, (*tap, e), body))
