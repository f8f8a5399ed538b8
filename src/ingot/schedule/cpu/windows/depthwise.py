"""Depthwise convolutions, and others of a few channels to a group, with the pointwise ops behind them.

    depthwise:  for n: for oh: for 16 channels: for a tile of ow: acc[t] += x[oh*s+kh, (ow+t)*s+kw] * w[kh, kw]

Vectors run along the innermost dimension, over several groups where these have fewer channels than a vector: what
each output channel reads as its group's i-th input channel is a shuffle of the vector of input channels. A tile keeps
several output positions in registers, so that every input vector of a row is loaded once for all taps that use it;
the weights of a vector of channels lie together. Where taps are many and the first-level cache holds a vector of
channels of a whole image, channels come first: every place is then read once from further away. Other images are read
line by line, as hardware prefetches. Depthwise inputs carry their padding (see passes/core/layout).
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
from ingot.schedule.cpu.windows.pool_epilogue import PoolEpilogue
from ingot.schedule.cpu.winograd.weights import contiguous_copy
from ingot.schedule.emit import Index, load_at
from ingot.schedule.folds import accumulator
from ingot.schedule.group_io import bind_result, operand_memory, result_index, store_results
from ingot.schedule.index import ZERO, dim_expr
from ingot.schedule.lowered import Arg, Lowered, Pack, Step

WORK, LEAST = 1 << 16, 1 << 14  # multiply-adds that a depthwise chunk should have, and at least
STREAMED = 8  # multiply-adds that take the time of moving an element in and out of a core


def lower_depthwise(
    body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...], constant: tuple[bool, ...], machine: Machine
) -> Lowered:
    """A convolution with vectors of groups and its epilogue. Constant weights are repacked to
    [channels / 16][taps][channels of a group][16]; of others a kernel puts the channels side by side."""
    anchor = next(n for n in body.nodes() if isinstance(n.op, ops.Convolution))
    return Depthwise(anchor, body, ins, outs, constant, machine).lower()


def _in_vectors(order: tuple[int, ...], lanes: int, array: np.ndarray, out: np.ndarray) -> None:
    """Weights, whose dimensions in `order` are taps and channels, as [channels / lanes][taps][lanes], the rest zero."""
    taps = array.transpose(order).reshape(-1, array.shape[order[-1]])
    vectors = out.reshape(-1, len(taps), lanes)
    for i, vector in enumerate(vectors):
        some = taps[:, i * lanes : (i + 1) * lanes]
        vector[:, : some.shape[1]] = some


class Depthwise:
    """A depthwise convolution as a kernel: rows of outputs, vectors of channels, several outputs at once.

    group: input and output channels of a group, both 1 but where a vector holds several groups.
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
        self.w_index, self.w_layout = operand_memory(body, w, ins)
        self.operands = Operands.of(self.body)
        self.em = self.operands.emitter(body, ins)
        self.dtype: DType = accumulator(anchor.dtype)
        self.channels = int(anchor.shape[-1])
        outs_of, ins_of = static_shape(tuple(w.shape[op.rhs_layout.index(d)] for d in "OI"))
        self.group = ins_of, outs_of // op.feature_groups
        order = (*self._spatial(op.rhs_layout), op.rhs_layout.index("I"), op.rhs_layout.index("O"))
        self.packs: tuple[Pack, ...] = ()
        self.packed = constant[self.w_index] and w in body.inputs
        self.weights = self.operands.ins[self.w_index]
        self.copied: tuple[Step, ...] = ()
        self.lanes = lanes = machine.lanes(self.dtype)
        if self.packed:
            size = self.products * -(-self.channels // lanes) * lanes
            pack = Pack(self.w_index, f"taps{order}{lanes}", w.dtype, size, partial(_in_vectors, order, lanes))
            self.packs = (pack,)
        self.ins, self.order = ins, order
        self.x_buffer, self.x_layout = self._input()
        self.shift: Expr = ZERO  # added to all places of the input
        self.fold = PoolEpilogue(body, (*anchor.shape[:-2], anchor.shape[-1]))
        self.temps = self.fold.temps
        if not self.packed and self.w_layout.strides[order[-1]] != 1:  # each line of the image would gather them again
            places = Arg("in", self.w_index), Arg("temp", len(self.temps))
            step, self.w_layout = contiguous_copy(w, self.w_layout, order[-1], machine, *places)
            self.copied, self.temps = (step,), (*self.temps, w.type.nbytes)
        self.w_layout = self.w_layout.transpose(order)

    @property
    def products(self) -> int:
        """Multiply-adds of an output."""
        return prod(self.window) * self.group[0]

    def _input(self) -> tuple[Buffer, Layout]:
        """Where the input lies."""
        which, layout = operand_memory(self.body, self.anchor.inputs[0], self.ins)
        return self.operands.ins[which], layout

    @staticmethod
    def _spatial(layout: str) -> tuple[int, ...]:
        return tuple(sorted((d for d, c in enumerate(layout) if c.isdigit() or c not in "NCOI")))

    def lower(self) -> Lowered:
        shape = self.anchor.shape  # n, spatial..., c
        outer = (shape[0], *shape[1:-2])
        self.tile = self._tile(shape[-2])
        rows = product(outer)
        run, size = self._block(estimate(rows))
        parts = -(-self.channels // size)
        chunk, top = k.var("chunk"), Block()
        which, low, high = chunk, ZERO, integer(self.channels)
        if parts > 1:
            which = top.let(k.binary("div", chunk, integer(parts)), "rows")
            low = top.let(k.mul(k.binary("rem", chunk, integer(parts)), integer(size)), "c")
            high = top.let(k.binary("min", k.add(low, integer(size)), high), "c")
        first = top.let(k.mul(which, integer(run)), "first")
        last = top.let(k.binary("min", k.add(first, integer(run)), dim_expr(rows)), "last")

        def over_rows(block: Block, body: Callable[[Block, Index], None]) -> None:
            def row(b: Block, at: Expr) -> None:
                body(b, tuple(b.let(e, "r") for e in ix.delinearize(at, outer, b.multiples)))

            if run == 1:
                row(block, first)
            else:
                block.loop("row", first, last, 1, row)

        def over_channels(block: Block, body: Callable[[Block, Expr, Expr | None], None]) -> None:
            vector_loop(block, low, high, self.lanes, self.machine, body, self.lanes)

        if self.whole:
            over_channels(top, lambda b, c, m: over_rows(b, lambda x, row: self._line(x, row, c, m)))
        else:
            over_rows(top, lambda b, row: over_channels(b, lambda x, c, m: self._line(x, row, c, m)))
        dims = symbol_params(*body_dims(self.body, (*self.ins, *self.outs)))
        chunks = dim_expr(ceildiv(rows, run) * parts)
        return self._lowered(Kernel("depthwise", (), dims, chunk, chunks, top.body))

    @property
    def whole(self) -> bool:
        """Whether the first-level cache holds a vector of channels of an image, beside the weights; and taps are many,
        so that reading places again counts for more than reading memory in order."""
        places = product(self.anchor.inputs[0].shape[1:-1])
        if self.products < 2 * STREAMED:
            return False
        return isinstance(places, int) and places * self.lanes * self.dtype.nbytes <= self.machine.l1 * 3 // 4

    def _block(self, rows: int) -> tuple[int, int]:
        """Rows and channels of a chunk: all rows of an image or few of them, so that all threads are equally busy."""
        threads, taps = self.machine.threads, max(self.products, STREAMED)
        vectors, width = -(-self.channels // self.lanes), max(1, estimate(self.anchor.shape[-2]))
        if not self.whole:
            parts = min(-(-8 * threads // max(rows, 1)), vectors // 2)
            run = max(1, min(WORK // (width * self.channels * taps), rows // (4 * threads)))
            return run, -(-vectors // parts) * self.lanes if parts > 1 else self.channels
        image = max(1, estimate(product(self.anchor.shape[1:-2])))
        goal = min(8 * threads, max(1, rows * width * self.channels * taps // LEAST))
        goal = min(vectors, -(-goal * image // max(rows, 1)))
        sizes = [-(-vectors // parts) for parts in range(goal, goal // 2, -1)]

        def longest(size: int) -> int:
            """Vectors that the busiest thread has."""
            chunks = -(-vectors // size)
            return -(-chunks // threads) * size

        size = min(sizes, key=longest)
        return image, size * self.lanes

    def _lowered(self, kernel: Kernel) -> Lowered:
        """The kernel with its operands, the one that lays out weights, and the one that folds its lines."""
        packed = {Arg("in", p.index): Arg("pack", i) for i, p in enumerate(self.packs)}
        packed |= {source: laid_out for source, laid_out in (s.args for s in self.copied)}
        args = (*(packed.get(a, a) for a in self.operands.args), *self.fold.args)
        step = Step(replace(kernel, params=(*self.operands.params, *self.fold.buffers)), args)
        folded = self.fold.steps(self.ins, self.all_outs, self.machine)
        return Lowered((*self.copied, step, *folded), self.temps, self.packs)

    def _tile(self, width: DimLike) -> int:
        """Output positions kept in registers: the most that waste little of the row."""
        most = min(self.machine.registers // 3, 10)
        if not isinstance(width, int):
            return min(most, 8)
        if width <= most + 2:
            return max(1, width)
        return min(range(4, most + 1), key=lambda t: (-(-width // t) * t / width + 0.3 / t, -t))

    def _line(self, block: Block, row: Index, c: Expr, mask: Expr | None) -> None:
        """One row of outputs for one vector of channels."""
        width = self.anchor.shape[-2]
        self.fold.begin(block, c.lanes)
        whole = dim_expr(width) if not isinstance(width, int) else integer(width // self.tile * self.tile)
        if not isinstance(width, int):
            tile = integer(self.tile)
            whole = block.let(k.mul(k.binary("div", whole, tile), tile), "whole")
        block.loop("ow", ZERO, whole, self.tile, lambda b, e: self._positions(b, row, e, self.tile, c, mask))
        if not isinstance(width, int):
            block.loop("ow", whole, width, 1, lambda b, e: self._positions(b, row, e, 1, c, mask))
        elif width % self.tile:
            self._positions(block, row, whole, width % self.tile, c, mask)
        self.fold.end(block, (*row, c), mask)

    def _positions(self, block: Block, row: Index, ow: Expr, count: int, c: Expr, mask: Expr | None) -> None:
        """`count` neighbouring outputs: accumulate all taps, then the epilogue."""
        op, lanes = self.op, c.lanes
        acc = block.alloc("acc", self.dtype, count, lanes=lanes)
        for t in range(count):
            block.store(acc, integer(t), Lit(self.dtype, lanes, 0.0 if self.dtype.is_float else 0))
        outer_window, last = self.window[:-1], self.window[-1]
        stride, dilation = op.strides[-1], op.rhs_dilation[-1]

        def line(b: Block, at: tuple[Expr, ...]) -> None:
            spatial = [
                ix.add(ix.mul(r, integer(s)), ix.mul(a, integer(d)))
                for r, a, s, d in zip(row[1:], at, op.strides[:-1], op.rhs_dilation[:-1], strict=True)
            ]
            first = ix.mul(ow, integer(stride))
            place = ix.linear((row[0], *spatial, first), self.x_layout.strides[:-1], self.x_layout.offset)
            base = b.let(ix.add(place, self.shift), "x")
            for i in range(self.group[0]):
                channel(b, at, base, i)

        def channel(b: Block, at: tuple[Expr, ...], base: Expr, i: int) -> None:
            """The products with the i-th input channel of each group."""
            weights = [load_at(b, self.weights, self._weight((*at, integer(kw)), i, c), mask) for kw in range(last)]
            weights = [b.let(k.cast(k.splat(w, lanes), self.dtype)) for w in weights]
            for position in range((count - 1) * stride + (last - 1) * dilation + 1):
                uses = [(t, kw) for t in range(count) for kw in range(last) if t * stride + kw * dilation == position]
                if not uses:
                    continue
                place = ix.add(base, ix.mul(integer(position), dim_expr(self.x_layout.strides[-2])))
                x = self._channel(b, place, i, c, mask)
                for t, kw in uses:
                    b.store(acc, integer(t), k.fma(x, weights[kw], k.load(acc, integer(t))))

        if prod(outer_window) * self.group[0] * last * count <= 96:
            for at in itertools.product(*(range(n) for n in outer_window)):
                line(block, tuple(integer(i) for i in at))
        else:
            self._outer_taps(block, outer_window, (), line)
        for t in range(count):
            index = (*row, ix.add(ow, integer(t)), c)
            value = block.let(k.cast(k.load(acc, integer(t)), self.anchor.dtype), "dw")
            bind_result(self.em, block, self.anchor, value)
            index = result_index(block, self.body.outputs[0], self.anchor, index)
            store_results(self.em, block, self.body, self.operands.outs, self.outs, index, mask)
            self.fold.add(block, self.em, index, mask)

    def _channel(self, block: Block, place: Expr, i: int, c: Expr, mask: Expr | None) -> Expr:
        """The i-th input channel of the groups of the output channels `c`, at a place of the image."""
        (reads, makes), step = self.group, dim_expr(self.x_layout.strides[-1])
        if makes == 1:
            own = ix.add(place, ix.mul(c, step))
            return block.let(k.cast(load_at(block, self.x_buffer, own, mask), self.dtype), "x")
        first = ix.mul(k.binary("div", ix.first_lane(c), integer(makes)), integer(reads))
        if c.lanes == 1:
            own = ix.add(place, ix.mul(ix.add(first, integer(i)), step))
            return block.let(k.cast(load_at(block, self.x_buffer, own), self.dtype), "x")
        all_of_them = k.ramp(block.let(first, "g"), c.lanes // makes * reads)
        if mask is not None:
            mask = block.let(k.binary("lt", all_of_them, integer(self.channels // makes * reads)), "mask")
        x = load_at(block, self.x_buffer, ix.add(place, ix.mul(all_of_them, step)), mask)
        x = block.let(k.cast(x, self.dtype), "x")
        pick = tuple(lane // makes * reads + i for lane in range(c.lanes))
        return block.let(k.Shuffle(self.dtype, c.lanes, x, x, pick), "x")

    def _weight(self, tap: tuple[Expr, ...], i: int, c: Expr) -> Expr:
        """Where the weights of a place of the window and a group's i-th input channel lie for channels `c`."""
        if not self.packed:
            return ix.linear((*tap, ZERO, c), self.w_layout.strides, self.w_layout.offset)
        lanes = integer(self.lanes)
        first = c.base if isinstance(c, k.Ramp) else ix.mul(k.binary("div", c, lanes), lanes)
        vector = ix.mul(first, integer(self.products))
        steps = Layout.contiguous((*self.window, self.group[0], self.lanes)).strides[:-1]
        at = ix.add(vector, ix.linear((*tap, integer(i)), steps))
        return k.ramp(at, c.lanes) if c.lanes > 1 else ix.add(at, k.binary("rem", c, lanes))

    def _outer_taps(
        self,
        block: Block,
        window: tuple[int, ...],
        at: tuple[Expr, ...],
        body: Callable[[Block, tuple[Expr, ...]], None],
    ) -> None:
        if len(at) == len(window):
            body(block, at)
            return
        block.loop("kh", 0, window[len(at)], 1, lambda b, e: self._outer_taps(b, window, (*at, e), body))
