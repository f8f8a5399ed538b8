"""Recurrent groups: LSTM, GRU and RNN.

    1. P[t] = x[t] W^T + b for all steps: one contraction (for each direction)
    2. for t: for block of columns: acc[row][gate] = h[t-1] R_block;  h[t], c[t] = cell(acc + P[t], h[t-1], c[t-1])

R is repacked so that a block of columns is one stream: [block][k][gate][columns]. The cell is whatever the op's `step`
says: the emitter evaluates its graph with the products in registers. A cell with a product of a product (GRU that
resets before the product) runs in stages; every stage is a pass over the columns.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from ingot import ops
from ingot.ir.dims import DimLike
from ingot.ir.layout import Layout
from ingot.ir.node import Graph, Node, const
from ingot.ir.types import DType, f32, i32, i64
from ingot.ops.nn.terms import Term
from ingot.schedule.cpu.contraction.lower import lower_contraction
from ingot.schedule.cpu.machine import Machine
from ingot.schedule.cpu.pointwise.lower import lower_pointwise
from ingot.schedule.cpu.recurrent.cell import (
    COUNTERS_PER_LINE,
    Cell,
    Recurrence,
    pack_bytes,
    pack_columns,
    pack_weights,
)
from ingot.schedule.cpu.recurrent.loop import Loop
from ingot.schedule.lowered import Arg, Lowered, Pack, Step
from ingot.schedule.recurrent import input_projection, subgraph


def lower_recurrent(
    body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...], constant: tuple[bool, ...], machine: Machine
) -> Lowered:
    """An LSTM, GRU or RNN. Raises CompileError where the hidden size is no plain number."""
    return _Scan(body, ins, outs, constant, machine).lower()


class _Scan(Recurrence):
    """The steps before the scan, and the scan."""

    def __init__(
        self,
        body: Graph,
        ins: tuple[Layout, ...],
        outs: tuple[Layout, ...],
        constant: tuple[bool, ...],
        machine: Machine,
    ):
        super().__init__(body, ins, outs, constant, machine)
        self.launches: list[Step] = []
        self.temps: list[DimLike] = []
        self.packs: list[Pack] = []

    def _temp(self, elements: DimLike, dtype: DType) -> Arg:
        self.temps.append(elements * dtype.nbytes)
        return Arg("temp", len(self.temps) - 1)

    def _embed(self, low: Lowered, ins: tuple[Arg, ...], outs: tuple[Arg, ...]) -> None:
        """Run another group's steps on these operands."""
        inlined = low.inlined(ins, outs, len(self.temps), len(self.packs))
        self.launches += inlined.steps
        self.temps += inlined.temps
        self.packs += inlined.packs

    def _compute(self, value: Node, to: Arg, layout: Layout) -> None:
        """Write a pointwise value of the group's inputs to memory."""
        graph, used = subgraph(self.body, value)
        low = lower_pointwise(graph, tuple(self.ins[i] for i in used), (layout,), self.machine)
        self._embed(low, tuple(Arg("in", i) for i in used), (to,))

    def _project(self, cell: Cell, to: Arg) -> None:
        """P of one direction, at its place in `to`."""
        d, width = cell.at.index, self.op.gates * self.hidden
        graph, used = subgraph(self.body, input_projection(self.op, self.anchor.inputs, cell.at, self.dtype).node)
        rows = self.batch * width
        layout = Layout(graph.outputs[0].shape, (rows, width, 1), rows * self.steps * d)
        low = lower_contraction(
            graph, tuple(self.ins[i] for i in used), (layout,), tuple(self.constant[i] for i in used), self.machine
        )
        self._embed(low, tuple(Arg("in", i) for i in used), (to,))

    def _weights(self) -> Arg:
        """R, packed: at compile time where it is a constant."""
        r = self.anchor.inputs[2]
        at, stages, lanes, size = self.r_at, self.stages, self.lanes, self.weights_size
        if at >= 0:
            what = "/".join(f"{s.first}:{s.gates}x{s.vectors}" for s in stages)
            key = f"scan {what} {self.hidden} {lanes} {self.r_dtype}"
            write = partial(pack_bytes if self.op.has_scales else pack_weights, stages, self.hidden, lanes)
            self.packs.append(Pack(at, key, self.r_dtype, size * len(self.directions), write))
            return Arg("pack", len(self.packs) - 1)
        to = self._temp(size * len(self.directions), self.dtype)
        h = self.hidden
        for d in self.directions:
            for s in stages:
                wide = s.blocks * s.vectors * lanes
                weights = Term(r).cast(self.dtype).slice(0, d.index, d.index + 1)
                weights = weights.slice(1, s.first, s.first + s.gates * h).reshape((s.gates, h, h))
                weights = weights.pad(1, 0, wide - h, 0.0).reshape((s.gates, s.blocks, s.vectors * lanes, h))
                value = weights.transpose((1, 3, 0, 2)).node
                dense = Layout.contiguous(value.shape)
                self._compute(value, to, Layout(dense.shape, dense.strides, d.index * size + s.base))
        return to

    def _columns(self) -> list[Arg]:
        """Of each row of R, where it has levels: their sum, and their scale."""
        if not self.op.has_scales:
            return []
        r_scales_at = self.body.inputs.index(self.anchor.inputs[-1])
        count, size = len(self.directions), self.weights_size // self.depth
        write = partial(pack_columns, self.stages, self.hidden, self.lanes)
        what = "/".join(f"{s.first}:{s.gates}x{s.vectors}" for s in self.stages)
        for name, at, dtype in (("sums", self.r_at, i32), ("scales", r_scales_at, f32)):
            self.packs.append(Pack(at, f"scan {name} {what} {self.hidden} {self.lanes}", dtype, size * count, write))
        return [Arg("pack", len(self.packs) - 2), Arg("pack", len(self.packs) - 1)]

    def lower(self) -> Lowered:
        count, h = len(self.directions), self.hidden
        state: DimLike = count * self.batch * h
        rows = self._temp(state * self.op.gates * self.steps, self.dtype)
        for cell in self.cells:
            self._project(cell, rows)
        weights = [self._weights(), *self._columns()]
        # the output of the pass at hand and of the one before; the other states are changed in place
        outputs = self._temp(2 * state, self.dtype)
        others = [self._temp(state, self.dtype) for _ in range(self.op.states - 1)]
        dense = Layout.contiguous((count, self.batch, h))
        for i, initial in enumerate(self.anchor.inputs[4 : 4 + self.op.states]):
            value = Term(initial).cast(self.dtype).node
            if i == 0:
                self._compute(value, outputs, Layout(dense.shape, dense.strides, state))
            else:
                self._compute(value, others[i - 1], dense)
            if not isinstance(self.steps, int) or self.steps == 0:
                # what stays if there is no step
                self._compute(initial, Arg("out", 1 + i), self.outs[1 + i])
        between = [
            (self._temp(count * self.batch * s.gates * h, self.dtype), self._temp(state, self.dtype))
            for s in self.stages[:-1]
        ]
        operand_size = self.parts * count * self.batch * self.depth
        rounded = self._temp(operand_size, self.operand) if self.stages[0].folds else None
        control: Arg | None = None
        if self.parts > 1:
            counters = self.steps * len(self.stages) * count * COUNTERS_PER_LINE
            control = self._temp(counters, i64)
            zero = ops.BroadcastInDim((counters,), ())(const(0, np.int64))
            clear = lower_pointwise(Graph((), (zero,)), (), (Layout.contiguous((counters,)),), self.machine)
            self._embed(clear, (), (control,))
        self.launches.append(Loop(self, rows, weights, outputs, others, between, rounded, control).step())
        return Lowered(tuple(self.launches), tuple(self.temps), tuple(self.packs))


__all__ = ["lower_recurrent"]
