"""Depthwise convolutions, with the pointwise ops behind them.

    depthwise:  for n: for oh: for 16 channels: for a tile of ow: acc[t] += x[oh*s+kh, (ow+t)*s+kw] * w[kh, kw]

Vectors run along the innermost dimension. A depthwise tile keeps several output positions in registers, so that every
input vector of a row is loaded once for all taps that use it. Depthwise inputs carry their padding (see passes/layout).
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
from ingot.ops.views import strided
from ingot.schedule import index as ix
from ingot.schedule.block import Block
from ingot.schedule.emit import Emitter, Index, Leaf, load_at, reshape_index, store_at
from ingot.schedule.fold import accumulator
from ingot.schedule.index import ZERO, dim_expr
from ingot.schedule.line_folds import LineFolds
from ingot.schedule.lowered import Arg, Lowered, Pack, Step
from ingot.schedule.machine import Machine
from ingot.schedule.pointwise import Operands, body_dims, symbol_params, vector_loop
from ingot.support.errors import CompileError

WORK = 1 << 16  # multiply-adds a depthwise chunk should have


def operand_memory(body: Graph, operand: Node, ins: tuple[Layout, ...]) -> tuple[int, Layout]:
    """The input that an anchor's operand lies in, and its layout there. Raises CompileError where it has no strides."""
    found = strided(operand, dict(zip(body.inputs, ins, strict=True)))
    if found is None or found[0] not in body.inputs:
        raise CompileError("an operand that lies in memory with strides was expected", where=operand.loc)
    return body.inputs.index(found[0]), found[1]


def bind_result(em: Emitter, block: Block, anchor: Node, value: Expr) -> None:
    """Let `anchor` have `value` at whatever index it is read: its epilogue is aligned with it."""
    em.bind(anchor, Leaf(lambda b, index, mask: value, home=block, pinned=True))


def store_results(
    em: Emitter, block: Block, body: Graph, outs: tuple[Buffer, ...], layouts: tuple[Layout, ...], index: Index,
    mask: Expr | None, stream: bool = False,
) -> None:
    """Evaluate the group's results at `index` and store them."""
    for root, buffer, layout in zip(body.outputs, outs, layouts, strict=True):
        value = em.value(block, root, index, mask)
        store_at(block, buffer, ix.linear(index, layout.strides, layout.offset), value, mask, stream=stream)


def result_index(block: Block, root: Node, anchor: Node, index: Index) -> Index:
    """Where in the group's result the anchor's element at `index` belongs: the way back through reshapes and
    transposes."""
    path: list[Node] = []

    def find(node: Node) -> bool:
        if node is anchor:
            return True
        if any(find(i) for i in node.inputs):
            path.append(node)
            return True
        return False

    find(root)
    for node in path:  # from the anchor to the root
        if isinstance(node.op, ops.Reshape):
            index = reshape_index(block, node.shape, node.inputs[0].shape, index)
        elif isinstance(node.op, ops.Transpose):
            index = tuple(index[p] for p in node.op.permutation)
    return index


def lower_depthwise(
    body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...], constant: tuple[bool, ...], machine: Machine
) -> Lowered:
    """A depthwise convolution and its epilogue. The weights, a constant, are repacked to [taps..., channels]."""
    anchor = next(n for n in body.nodes() if ops.is_depthwise(n))
    return Depthwise(anchor, body, ins, outs, constant, machine).lower()


def _turned(order: tuple[int, ...], array: np.ndarray, out: np.ndarray) -> None:
    out.reshape([array.shape[d] for d in order])[...] = array.transpose(order)


class Depthwise:
    """A depthwise convolution as a kernel: rows of outputs, vectors of channels, several outputs at once."""

    def __init__(
        self, anchor: Node, body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...],
        constant: tuple[bool, ...], machine: Machine,
    ):
        op = anchor.op
        assert isinstance(op, ops.Convolution)
        self.op, self.anchor, self.machine = op, anchor, machine
        self.body, self.outs, self.all_outs = replace(body, outputs=body.outputs[:1]), outs[:1], outs
        _, w = anchor.inputs
        self.window = tuple(int(w.shape[d]) for d in self._spatial(op.rhs_layout))  # static by construction
        self.w_index, w_layout = operand_memory(body, w, ins)
        self.operands = Operands.of(self.body)
        self.em = self.operands.emitter(body, ins)
        self.dtype: DType = accumulator(anchor.dtype)
        self.channels = int(anchor.shape[-1])
        order = (*self._spatial(op.rhs_layout), op.rhs_layout.index("O"), op.rhs_layout.index("I"))
        self.packs: tuple[Pack, ...] = ()
        self.weights = self.operands.ins[self.w_index]
        if constant[self.w_index] and w in body.inputs:
            shape = static_shape(tuple(w.shape[d] for d in order))
            self.packs = (Pack(self.w_index, f"taps{order}", w.dtype, prod(shape), partial(_turned, order)),)
            w_layout = Layout.contiguous(shape)
        else:
            w_layout = w_layout.transpose(order)
        self.w_layout = w_layout
        self.lanes = machine.lanes(self.dtype)
        self.ins, self.order = ins, order
        self.x_buffer, self.x_layout = self._input()
        self.shift: Expr = ZERO  # added to all places of the input
        self.fold = LineFolds(body, (*anchor.shape[:-2], anchor.shape[-1]))

    def _input(self) -> tuple[Buffer, Layout]:
        """Where the input lies."""
        which, layout = operand_memory(self.body, self.anchor.inputs[0], self.ins)
        return self.operands.ins[which], layout

    @staticmethod
    def _spatial(layout: str) -> tuple[int, ...]:
        return tuple(sorted((d for d, c in enumerate(layout) if c.isdigit() or c not in "NCOI")))

    def lower(self) -> Lowered:
        shape = self.anchor.shape  # n, spatial..., c
        outer = shape[1:-2]
        width = shape[-2]
        self.tile = self._tile(width)
        rows = product((shape[0], *outer))
        per_row = estimate(width) * self.channels * int(np.prod(self.window))
        run = max(1, WORK // per_row)
        if isinstance(rows, int):
            run = max(1, min(run, rows // (4 * self.machine.threads)))
        size = self._channel_block(estimate(rows))
        parts = -(-self.channels // size)
        chunk, top = k.var("chunk"), Block()
        which, low, high = chunk, ZERO, integer(self.channels)
        if parts > 1:
            which = top.let(k.binary("div", chunk, integer(parts)), "rows")
            low = top.let(k.mul(k.binary("rem", chunk, integer(parts)), integer(size)), "c")
            high = top.let(k.binary("min", k.add(low, integer(size)), high), "c")

        def row(block: Block, at: Expr) -> None:
            index = ix.delinearize(at, (shape[0], *outer), block.multiples)
            index = tuple(block.let(e, "r") for e in index)
            vector_loop(
                block, low, high, self.lanes, self.machine, lambda b, c, m: self._line(b, index, c, m), self.lanes
            )

        first = top.let(k.mul(which, integer(run)), "first")
        if run == 1:
            row(top, first)
        else:
            last = top.let(k.binary("min", k.add(first, integer(run)), dim_expr(rows)), "last")
            top.loop("row", first, last, 1, row)
        dims = symbol_params(*body_dims(self.body, (*self.ins, *self.outs)))
        chunks = dim_expr(ceildiv(rows, run) * parts)
        return self._lowered(Kernel("depthwise", (), dims, chunk, chunks, top.body))

    def _lowered(self, kernel: Kernel) -> Lowered:
        """The kernel with its operands, and the one that folds its lines."""
        packed = {Arg("in", p.index): Arg("pack", i) for i, p in enumerate(self.packs)}
        args = (*(packed.get(a, a) for a in self.operands.args), *self.fold.args)
        step = Step(replace(kernel, params=(*self.operands.params, *self.fold.buffers)), args)
        folded = self.fold.steps(self.ins, self.all_outs, self.machine)
        return Lowered((step, *folded), self.fold.temps, self.packs)

    def _channel_block(self, rows: int) -> int:
        """Channels of a chunk: all, or fewer where there are too few rows to keep the threads equally busy."""
        parts = min(-(-8 * self.machine.threads // max(rows, 1)), self.channels // (2 * self.lanes))
        return self.channels if parts < 2 else -(-self.channels // parts // self.lanes) * self.lanes

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

    def _positions(
        self, block: Block, row: Index, ow: Expr, count: int, c: Expr, mask: Expr | None
    ) -> None:
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
            step, channel = self.x_layout.strides[-2], ix.mul(c, dim_expr(self.x_layout.strides[-1]))
            weights = [
                load_at(b, self.weights, ix.linear((*at, integer(kw), c, ZERO), self.w_layout.strides), mask)
                for kw in range(last)
            ]
            weights = [b.let(k.cast(k.splat(w, lanes), self.dtype)) for w in weights]
            for position in range((count - 1) * stride + (last - 1) * dilation + 1):
                uses = [
                    (t, kw) for t in range(count) for kw in range(last) if t * stride + kw * dilation == position
                ]
                if not uses:
                    continue
                flat = ix.add(ix.add(base, ix.mul(integer(position), dim_expr(step))), channel)
                x = b.let(k.cast(load_at(b, self.x_buffer, flat, mask), self.dtype), "x")
                for t, kw in uses:
                    b.store(acc, integer(t), k.fma(x, weights[kw], k.load(acc, integer(t))))

        if int(np.prod(outer_window)) * last * count <= 96:
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

    def _outer_taps(
        self, block: Block, window: tuple[int, ...], at: tuple[Expr, ...],
        body: Callable[[Block, tuple[Expr, ...]], None],
    ) -> None:
        if len(at) == len(window):
            body(block, at)
            return
        block.loop("kh", 0, window[len(at)], 1, lambda b, e: self._outer_taps(b, window, (*at, e), body))
