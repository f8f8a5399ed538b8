"""Recurrent layers as one kernel that keeps its weights: LSTM, GRU and RNN.

    P[t] = x[t] W^T + b for all steps: one contraction (for each direction)
    w = R[gates of own units];  for t in rounds:  for own row:  h[t] = cell(w h[t-1] + P[t], h[t-1], c[t-1])

A program has some units of a direction and some rows of the batch. Steps are rounds of the kernel, whose programs meet
between one and the next: the interpreter has them, a state passes through memory, and what does not depend on the round
- R - is read before the first and stays in registers (Diamos et al., "Persistent RNNs", 2016). Registers of a single
program would hold a layer of 128 units; those of all multiprocessors hold 1024. Products are sums along tiles in the
type of the sums: their few rows would leave most of a tensor core's tile empty, and float32 has none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ingot.ir import kernel as k
from ingot.ir.dims import DimLike, ceildiv, dim_max, estimate, product
from ingot.ir.kernel import Buffer, Expr
from ingot.ir.layout import Layout
from ingot.ir.node import Graph, Input, Node
from ingot.ir.types import DType, TensorType, f32, f64, i64
from ingot.ops.nn.recurrent import Recurrent
from ingot.ops.nn.terms import Term
from ingot.schedule import index as ix
from ingot.schedule.block import Block
from ingot.schedule.emit import Emitter, Index, Leaf
from ingot.schedule.gpu.blocks import ALIGNMENT_BYTES, Group, Span, all_of, power_of_two, read_at, store_tile
from ingot.schedule.gpu.contraction.product import lower_contraction
from ingot.schedule.gpu.launching import await_producers
from ingot.schedule.gpu.machine import Machine
from ingot.schedule.gpu.pointwise import lower_pointwise
from ingot.schedule.index import ZERO, dim_expr, integer
from ingot.schedule.lowered import Arg, Lowered, Pack, Step
from ingot.schedule.recurrent import Cell, anchor_of, offset_from, part_of, projected
from ingot.support.dataclass import dataclass

HELD = 64 << 10  # bytes of weights that a program may multiply in a step: its registers keep them, each row reads them
FEW = 32 << 10  # bytes up to which four warps do
RESIDENT = 6 / 7  # of the multiprocessors: an H100 has 132 of them, or 114
ROWS = 4  # of a program, beyond which products of tiles, step by step, are faster
TOGETHER = 2  # rows whose states are under way at once: text and its compiling grow with them


@dataclass(frozen=True)
class Split:
    """Who computes what: programs have `units` of a direction's, of which there are `parts`, and every `blocks`-th row.
    warps: of a program."""

    units: int
    parts: int
    blocks: int
    warps: int

    @staticmethod
    def of(node: Node, machine: Machine) -> Split | None:
        """The fewest units that leave a multiprocessor for each program; None where the layer does not fit."""
        op = node.op
        assert isinstance(op, Recurrent)
        count, batch = len(op.directions()), max(1, estimate(node.inputs[0].shape[1]))
        most = int(RESIDENT * machine.processors)
        units = min(power_of_two(-(-count * op.hidden // most)), power_of_two(op.hidden))
        units = max(units, min(4, power_of_two(op.hidden)))  # sums of fewer are mostly their exchange between threads
        parts = -(-op.hidden // units)
        blocks = min(batch, most // (count * parts))
        held = op.gates * units * power_of_two(op.hidden) * _computed(node).nbytes
        if blocks == 0 or (rows := -(-batch // blocks)) > ROWS or rows * held > HELD:
            return None
        return Split(units, parts, blocks, 4 if held <= FEW else 8)


def keeps_weights(node: Node, machine: Machine) -> bool:
    """Whether the kernel takes this layer: its cell multiplies the state once, as it is, and R fits into registers."""
    op = node.op
    assert isinstance(op, Recurrent)
    single = op.rounds_state() and not op.levels
    return single and node.inputs[0].shape[0] != 0 and Split.of(node, machine) is not None


def lower_recurrent(
    body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...], constant: tuple[bool, ...], machine: Machine
) -> Lowered:
    """A layer that `keeps_weights`: projections, and the kernel over time."""
    return _Scan(body, ins, outs, constant, machine).lower()


def _computed(node: Node) -> DType:
    return f64 if node.inputs[0].dtype == f64 else f32


def _where(block: Block, *masks: Expr | None) -> Expr | None:
    """Where all of these are on; None: everywhere."""
    found = all_of(*masks)
    return None if found is None else block.let(found, "live")


class _Scan:
    def __init__(
        self,
        body: Graph,
        ins: tuple[Layout, ...],
        outs: tuple[Layout, ...],
        constant: tuple[bool, ...],
        machine: Machine,
    ) -> None:
        self.anchor, self.op = anchor_of(body)
        self.body, self.ins, self.outs, self.constant, self.machine = body, ins, outs, constant, machine
        split = Split.of(self.anchor, machine)
        assert split is not None
        self.split, self.dtype, self.hidden = split, _computed(self.anchor), self.op.hidden
        self.steps, self.batch, _ = self.anchor.inputs[0].shape
        self.directions = self.op.directions()
        self.cells = [Cell.of(self.anchor, d, self.dtype) for d in self.directions]
        self.group = Group.of(body, ins, outs)
        self.launches: list[Step] = []
        self.temps: list[DimLike] = []
        self.packs: list[Pack] = []
        self.zeros: DimLike = i64.nbytes

    # -- the steps before

    def _embed(self, low: Lowered, ins: Sequence[Arg], out: Arg) -> None:
        """Run another group's steps on these operands and this result."""
        low = await_producers(low, self.machine)
        own = low.within(ins, [out], len(self.temps), len(self.packs))
        self.launches += own.steps
        self.temps += own.temps
        self.packs += own.packs
        self.zeros = dim_max(self.zeros, own.zeros)

    def _temp(self, name: str, elements: DimLike) -> tuple[Buffer, Arg]:
        self.temps.append(elements * self.dtype.nbytes)
        return Buffer(name, self.dtype, writable=True, align=ALIGNMENT_BYTES), Arg("temp", len(self.temps) - 1)

    def _compute(self, value: Node, layout: Layout, to: Arg) -> None:
        """Write a pointwise value of the group's inputs to memory."""
        graph, used = part_of(self.body, value)
        low = lower_pointwise(graph, tuple(self.ins[i] for i in used), (layout,), self.machine)
        self._embed(low, [Arg("in", i) for i in used], to)

    def _factor(self) -> tuple[Node, Layout, Arg] | None:
        """x in the type of W, where that is narrower, as tiles are multiplied in one type; None: x as it is."""
        x, w = self.anchor.inputs[:2]
        if x.dtype == w.dtype:
            return None
        factor, layout = Input("x", TensorType(w.dtype, x.shape))(), Layout.contiguous(x.shape)
        _, to = self._temp("x", product(x.shape))
        self._compute(Term(x).cast(w.dtype).node, layout, to)
        return factor, layout, to

    def _project(self, cell: Cell, to: Arg, factor: tuple[Node, Layout, Arg] | None) -> None:
        """P of one direction, at its place in `to`."""
        inputs, body, width = self.anchor.inputs, self.body, self.op.gates * self.hidden
        ins, args, constant = self.ins, [Arg("in", i) for i in range(len(self.ins))], self.constant
        if factor is not None:
            x, layout, place = factor
            inputs, body = (x, *inputs[1:]), Graph((*body.inputs, x), body.outputs)
            ins, args, constant = (*ins, layout), [*args, place], (*constant, False)
        graph, used = part_of(body, projected(self.op, inputs, cell.at, self.dtype).node)
        rows = self.batch * width
        layout = Layout(graph.outputs[0].shape, (rows, width, 1), rows * self.steps * cell.at.index)
        known = tuple(constant[i] for i in used)
        low = lower_contraction(graph, tuple(ins[i] for i in used), (layout,), known, self.machine)
        self._embed(low, [args[i] for i in used], to)

    # -- the kernel

    def lower(self) -> Lowered:
        state: DimLike = len(self.directions) * self.batch * self.hidden
        rows = self._temp("rows", state * self.op.gates * self.steps)
        factor = self._factor()
        for cell in self.cells:
            self._project(cell, rows[1], factor)
        if not isinstance(self.steps, int):  # the last states, should there be no step
            for i, initial in enumerate(self.anchor.inputs[4 : 4 + self.op.states], 1):
                self._compute(initial, self.outs[i], Arg("out", i))
        outputs = self._temp("outputs", 2 * state)
        others = [self._temp(f"state{i}", state) for i in range(1, self.op.states)]
        meeting = Buffer("arrived", i64, writable=True, align=ALIGNMENT_BYTES), Arg("zeros", 0)
        self.rows, self.outputs, self.others = rows[0], outputs[0], [b for b, _ in others]
        top, chunk = Block(), k.var("chunk")
        count = len(self.directions) * self.split.parts * self.split.blocks
        program = top.let(k.binary("rem", chunk, integer(count)), "program")
        self.turn = top.let(k.binary("div", chunk, integer(count)), "turn")
        self._program(top, program)
        step = self.group.step(
            self.op.name, chunk, count, top, rows, outputs, *others, meeting, warps=self.split.warps, stages=1
        )
        kernel = replace(step.kernel, rounds=dim_expr(self.steps), meeting=meeting[0])
        self.launches.append(replace(step, kernel=kernel))
        return Lowered(tuple(self.launches), tuple(self.temps), tuple(self.packs), zeros=self.zeros)

    def _program(self, top: Block, program: Expr) -> None:
        """A program's part of a step: R's rows for its units, and then its rows of the batch."""
        split = self.split
        part = top.let(k.binary("rem", program, integer(split.parts)), "part")
        rest = top.let(k.binary("div", program, integer(split.parts)), "rest")
        self.mine = top.let(k.binary("rem", rest, integer(split.blocks)), "mine")
        direction = top.let(k.binary("div", rest, integer(split.blocks)), "direction")
        self.direction = direction
        first = top.let(k.mul(part, integer(split.units)), "first")
        self.unit = Span.of(top, first, split.units, self.hidden, 0)
        self.across = Span.of(top, ZERO, power_of_two(self.hidden), self.hidden, 1)
        live, em = _where(top, self.unit.in_bounds, self.across.in_bounds), self.group.emitter()
        units = [k.add(self.unit.position, integer(gate * self.hidden)) for gate in range(self.op.gates)]
        self.weights = [em.value(top, self.anchor.inputs[2], (direction, u, self.across.position), live) for u in units]
        if len(self.cells) == 1:
            self._rows(top, self.cells[0])
            return
        forward = k.binary("eq", direction, ZERO)
        top.when(forward, *(lambda b, cell=cell: self._rows(b, cell) for cell in self.cells))

    def _rows(self, block: Block, cell: Cell) -> None:
        """The program's rows, some together, so that what they read is under way at once."""
        blocks = self.split.blocks
        together = min(TOGETHER, power_of_two(-(-estimate(self.batch) // blocks)))
        even = isinstance(self.batch, int) and self.batch % (blocks * together) == 0

        def turn(inner: Block, number: Expr) -> None:
            steps = []
            for i in range(together):
                row = inner.let(k.add(k.mul(k.add(number, integer(i)), integer(blocks)), self.mine), "row")
                live = None if even else inner.let(k.binary("lt", row, dim_expr(self.batch)), "here")
                steps.append(_Row(self, cell, inner, row, live))
            for step in steps:
                step.multiply()
            for step in steps:
                step.finish()

        block.loop("number", 0, ceildiv(self.batch, blocks), together, turn)


class _Row:
    """One step of one row, for the program's units."""

    def __init__(self, scan: _Scan, cell: Cell, block: Block, row: Expr, live: Expr | None) -> None:
        self.scan, self.cell, self.block, self.row = scan, cell, block, row
        steps, turn = dim_expr(scan.steps), scan.turn
        self.position = block.let(k.sub(k.sub(steps, integer(1)), turn), "at") if cell.at.reverse else turn
        self.begins = block.let(k.binary("eq", turn, ZERO), "begins")
        self.goes_on = block.let(k.binary("ne", turn, ZERO), "goes_on")
        self.in_bounds = _where(block, live, scan.unit.in_bounds)
        size = len(scan.directions) * scan.batch * scan.hidden
        self.slots = [
            block.let(k.mul(k.binary("rem", k.add(turn, integer(i)), integer(2)), dim_expr(size)), "slot")
            for i in range(2)
        ]
        self.em = self._emitter()
        self.state = self._state(0, scan.across.position, _where(block, live, scan.across.in_bounds))
        # what the cell needs is under way while the products are computed
        self.given = [self._given(g) for g in range(scan.op.gates)]
        self.before = [self._state(i, scan.unit.position, self.in_bounds) for i in range(scan.op.states)]
        self.sums: list[Expr] = []

    def _place(self, column: Expr) -> Expr:
        """Of (direction, row, column) in a state."""
        scan = self.scan
        row = ix.add(ix.mul(scan.direction, dim_expr(scan.batch)), self.row)
        return ix.add(ix.mul(row, integer(scan.hidden)), column)

    def _state(self, number: int, column: Expr, mask: Expr | None) -> Expr:
        """A state before the step: the first step's is given."""
        scan, block = self.scan, self.block
        given = scan.anchor.inputs[4 + number]
        index = scan.direction, self.row, column
        first = self.em.value(block, given, index, _where(block, self.begins, mask))
        place, buffer = self._place(column), scan.outputs
        if number == 0:
            place = ix.add(self.slots[1], place)
        else:
            buffer = scan.others[number - 1]
        before = read_at(block, buffer, place, _where(block, self.goes_on, mask))
        return block.let(k.select(*k.alike(self.begins, k.cast(first, scan.dtype), before)), "h")

    def _given(self, gate: int) -> Expr:
        """P for the units of a gate."""
        scan = self.scan
        step = ix.add(ix.mul(scan.direction, dim_expr(scan.steps)), self.position)
        line = ix.add(ix.mul(step, dim_expr(scan.batch)), self.row)
        column = k.add(scan.unit.position, integer(gate * scan.hidden))
        place = ix.add(ix.mul(line, integer(scan.op.gates * scan.hidden)), column)
        return read_at(self.block, scan.rows, place, self.in_bounds)

    def multiply(self) -> None:
        scan = self.scan
        for w in scan.weights:
            weight, state = k.alike(k.cast(w, scan.dtype), self.state)
            self.sums.append(self.block.let(k.reduce_along("add", k.mul(weight, state), 1), "sum"))

    def _emitter(self) -> Emitter:
        """The cell's values: its products in registers, everything else in memory."""
        scan, cell = self.scan, self.cell
        em, column = scan.group.emitter(), scan.unit.position
        assert isinstance(column, k.Var)

        def bind(node: Node, read: Callable[[Index], Expr]) -> None:
            em.bind(node, Leaf(lambda b, index, mask: read(index), home=self.block, pinned=True))

        bind(cell.row, lambda index: self.given[offset_from(index[1], column) // scan.hidden])
        bind(cell.products[0][0], lambda index: self.sums[offset_from(index[1], column) // scan.hidden])
        for number, node in enumerate(cell.states):
            bind(node, lambda index, number=number: self.before[number])
        if cell.valid is not None:
            lengths = scan.anchor.inputs[4 + scan.op.states]

            def valid(b: Block, index: Index, mask: Expr | None) -> Expr:
                length = k.cast(em.value(b, lengths, (index[0],), mask), i64)
                return b.let(k.binary("lt", self.position, length), "valid")

            em.bind(cell.valid, Leaf(valid, home=self.block, pinned=True))
        return em

    def finish(self) -> None:
        scan, block, column = self.scan, self.block, self.scan.unit.position
        y, *states = (
            block.let(self.em.value(block, n, (self.row, column), self.in_bounds), "y") for n in self.cell.results
        )

        def store(b: Block, buffer: Buffer, place: Expr, value: Expr) -> None:
            store_tile(b, buffer, place, k.cast(value, buffer.dtype), self.in_bounds)

        def result(b: Block, number: int, index: Index, value: Expr) -> None:
            layout = scan.outs[number]
            store(b, scan.group.operands.outs[number], ix.linear(index, layout.strides, layout.offset), value)

        result(block, 0, (self.position, scan.direction, self.row, column), y)
        store(block, scan.outputs, ix.add(self.slots[0], self._place(column)), states[0])
        for buffer, value in zip(scan.others, states[1:], strict=True):
            store(block, buffer, self._place(column), value)
        last = k.binary("eq", scan.turn, k.sub(dim_expr(scan.steps), integer(1)))

        def final(b: Block) -> None:
            for number, value in enumerate(states):
                result(b, 1 + number, (scan.direction, self.row, column), value)

        block.when(block.let(last, "last"), final)


__all__ = ["keeps_weights", "lower_recurrent"]
