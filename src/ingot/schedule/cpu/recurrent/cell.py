"""A recurrent group's step as a graph, its products in stages, and the weights that these read."""

from __future__ import annotations

import numpy as np

from ingot import ops
from ingot.ir.dims import estimate
from ingot.ir.layout import Layout
from ingot.ir.node import Graph, Node, topological
from ingot.ir.types import DType, f32, f64, u8
from ingot.ops.nn.recurrent import Pass
from ingot.ops.nn.terms import Term
from ingot.schedule.buffers import Operands
from ingot.schedule.cpu.machine import Machine
from ingot.schedule.recurrent import Cell as StepGraph
from ingot.schedule.recurrent import anchor_of
from ingot.support.dataclass import dataclass
from ingot.support.errors import CompileError

COUNTERS_PER_LINE = 16  # counters of a pass and direction: on cache lines of their own
BYTES_PER_LANE = 4  # of a lane that a dot product takes
MAX_BLOCK_VECTORS = 4  # vectors of a block of columns, if the gates allow it
PART_SECONDS = 3e-6  # of work that is worth a wait


@dataclass(frozen=True)
class Stage:
    """One product of the cell: `node` [B, gates*H] = operand [B,H] times rows of R from `first` on.

    base: of its weights among the packed ones of a direction; vectors: of columns in a block, for each gate; rows: of a
    register tile. folds: reductions of a whole state that the operand waits for, as a rounded one does. levels: the
    operand's, their zero and their scale, where R has levels too.
    """

    node: Node
    operand: Node
    first: int
    gates: int
    vectors: int
    rows: int
    blocks: int
    base: int
    folds: tuple[Node, ...] = ()
    levels: tuple[Node, ...] = ()

    @property
    def width(self) -> int:
        """Vectors of a block."""
        return self.gates * self.vectors


@dataclass(frozen=True)
class Cell(StepGraph):
    """A step, its products in stages."""

    stages: tuple[Stage, ...]


class Recurrence:
    """What a recurrent group computes: sizes, the cell of each direction, its products in stages, and how many workers
    share their columns."""

    def __init__(
        self,
        body: Graph,
        ins: tuple[Layout, ...],
        outs: tuple[Layout, ...],
        constant: tuple[bool, ...],
        machine: Machine,
    ):
        anchor, op = anchor_of(body)
        self.op, self.anchor, self.body, self.ins, self.outs = op, anchor, body, ins, outs
        self.constant, self.machine = constant, machine
        x = anchor.inputs[0]
        self.steps, self.batch, _ = x.shape
        self.dtype: DType = f64 if x.dtype == f64 else f32
        self.hidden = op.hidden
        r = anchor.inputs[2]
        self.r_at = body.inputs.index(r) if r in body.inputs and constant[body.inputs.index(r)] else -1
        # a constant R stays as narrow as it is, and is widened as it is loaded
        self.r_dtype: DType = r.dtype if self.r_at >= 0 else self.dtype
        # bytes of a column are multiplied four at a time
        self.depth = -(-self.hidden // BYTES_PER_LANE) * BYTES_PER_LANE if op.has_scales else self.hidden
        self.operand = u8 if op.has_scales else self.dtype
        self.lanes = machine.lanes(self.dtype)
        if not machine.masks:
            # without mask registers columns come in whole vectors
            while self.hidden % self.lanes:
                self.lanes //= 2
        self.directions = op.directions()
        self.operands = Operands.of(body)
        self.cells = tuple(self._cell(d) for d in self.directions)
        self.stages = self.cells[0].stages
        self.weights_size = sum(self._weights_size(s) for s in self.stages)
        self.parts = self._parts()

    def _cell(self, d: Pass) -> Cell:
        """The op's step as a graph, and its products in the order in which they can be computed."""
        graph = StepGraph.of(self.anchor, d, self.dtype)
        states = Term(graph.states[0])
        stages: list[Stage] = []
        for n, first in graph.products:
            levels = tuple(x.node for x in self.op.rounding(states)) if self.op.has_scales else ()
            stages.append(self._stage(n, first, stages, levels))
        return Cell(graph.at, graph.row, graph.states, graph.valid, graph.results, graph.products, tuple(stages))

    def _stage(self, node: Node, first: int, before: list[Stage], levels: tuple[Node, ...]) -> Stage:
        gates = int(node.shape[1]) // self.hidden
        lanes = self.lanes
        max_vectors = -(-self.hidden // lanes)
        vectors = max(1, min(MAX_BLOCK_VECTORS // gates, max_vectors))
        if not self.machine.masks:
            while max_vectors % vectors:
                vectors -= 1
        width = gates * vectors
        # registers for sums, the weights of a k and a value of h
        rows = max(1, (self.machine.registers - 1) // width - 1)
        rows = 1 << (rows.bit_length() - 1)
        if isinstance(self.batch, int) and self.batch:
            rows = -(-self.batch // -(-self.batch // rows))  # as even as can be
        base = sum(self._weights_size(s) for s in before)
        folds = tuple(n for n in topological(levels or [node.inputs[0]]) if isinstance(n.op, ops.Reduce))
        if folds and before:
            raise CompileError("a recurrent cell", expected="reductions of a state in front of its first product alone")
        return Stage(node, node.inputs[0], first, gates, vectors, rows, -(-max_vectors // vectors), base, folds, levels)

    def _weights_size(self, s: Stage) -> int:
        return s.blocks * self.depth * s.gates * s.vectors * self.lanes

    def _parts(self) -> int:
        """Workers that share a direction's columns."""
        seconds = 0.0
        for s in self.stages:
            weights = self._weights_size(s)
            flops = 2 * weights * estimate(self.batch)
            # from the shared cache at 40 GB/s, or at three quarters of the multiply-add peak
            seconds += max(weights * self.r_dtype.nbytes / 40e9, flops / (self.machine.gflops * 0.75e9))
        share = seconds / len(self.stages)
        workers = max(1, self.machine.threads // len(self.directions))
        return max(1, min(workers, int(share / PART_SECONDS), *(s.blocks for s in self.stages), COUNTERS_PER_LINE))

    def lengths(self) -> Node:
        """The operand that has them."""
        return self.anchor.inputs[4 + self.op.states]


def pack_weights(stages: tuple[Stage, ...], hidden: int, lanes: int, r: np.ndarray, out: np.ndarray) -> None:
    """R[D, G*H, H] as [direction][stage][block][k][gate][columns of the block], missing columns zero."""
    for direction, line in zip(r, out.reshape(len(r), -1), strict=True):
        for s in stages:
            weights = direction[s.first : s.first + s.gates * hidden].reshape(s.gates, hidden, hidden)
            wide = s.blocks * s.vectors * lanes
            padded = np.zeros((s.gates, wide, hidden), r.dtype)
            padded[:, :hidden] = weights
            blocks = padded.reshape(s.gates, s.blocks, s.vectors * lanes, hidden).transpose(1, 3, 0, 2)
            line[s.base : s.base + blocks.size] = blocks.reshape(-1)


def pack_bytes(stages: tuple[Stage, ...], hidden: int, lanes: int, r: np.ndarray, out: np.ndarray) -> None:
    """R as [direction][stage][block][k / 4][gate][columns of the block][4], padded with zeros."""
    for direction, line in zip(r, out.reshape(len(r), -1), strict=True):
        for s in stages:
            columns, groups = s.vectors * lanes, -(-hidden // BYTES_PER_LANE)
            padded = np.zeros((s.gates, s.blocks * columns, groups * BYTES_PER_LANE), r.dtype)
            padded[:, :hidden, :hidden] = direction[s.first : s.first + s.gates * hidden].reshape(
                s.gates, hidden, hidden
            )
            blocks = padded.reshape(s.gates, s.blocks, columns, groups, BYTES_PER_LANE).transpose(1, 3, 0, 2, 4)
            line[s.base : s.base + blocks.size] = blocks.reshape(-1)


def pack_columns(
    stages: tuple[Stage, ...], hidden: int, lanes: int, numbers_by_row: np.ndarray, out: np.ndarray
) -> None:
    """A number for each row of R [D, G*H], or its sums of [D, G*H, H], as [direction][stage][block][gate][columns]."""
    numbers = numbers_by_row if numbers_by_row.ndim == 2 else numbers_by_row.sum(axis=2, dtype=np.int32)
    for direction, line in zip(numbers, out.reshape(len(numbers), -1), strict=True):
        at = 0
        for s in stages:
            columns = s.vectors * lanes
            padded = np.zeros((s.gates, s.blocks * columns), numbers.dtype)
            padded[:, :hidden] = direction[s.first : s.first + s.gates * hidden].reshape(s.gates, hidden)
            line[at : at + padded.size] = padded.reshape(s.gates, s.blocks, columns).swapaxes(0, 1).reshape(-1)
            at += padded.size


__all__ = ["COUNTERS_PER_LINE", "Cell", "Recurrence", "Stage", "pack_weights"]
