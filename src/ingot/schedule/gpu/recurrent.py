"""Recurrent layers as one persistent kernel with its weights in registers: LSTM, GRU and RNN.

    P[t] = x[t] W^T + b for all steps: one contraction (for each direction)
    w = R[gates of own units];  for t in rounds:  for own row:  h[t] = cell(w h[t-1] + P[t], h[t-1], c[t-1])

A program computes some units of a direction for some rows of the batch. Time steps are rounds of the kernel, with a
barrier of all programs between them. States pass through memory; R does not depend on the round, so it is read before
the first one and stays in registers (Diamos et al., "Persistent RNNs", 2016). The registers of one program hold a layer
of 128 units; those of all multiprocessors hold 1024. Products are sums along tiles in the accumulation type: their few
rows would leave most of a tensor core's tile empty, and tensor cores do not multiply float32.
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
from ingot.schedule.recurrent import Cell, anchor_of, gate_offset, input_projection, subgraph
from ingot.support.dataclass import dataclass

MAX_WEIGHT_BYTES = 64 << 10  # of a program, limited by its registers and by the time to multiply them
MAX_4_WARP_BYTES = 32 << 10  # of weights, up to which four warps suffice
RESIDENT_FRACTION = 6 / 7  # of the multiprocessors to use: an H100 has 132 or 114 of them
MAX_ROWS = 4  # per program, beyond which tile products step by step are faster
ROWS_PER_ITERATION = 2  # whose loads overlap; more make the kernel's text larger and slower to compile


@dataclass(frozen=True)
class Split:
    """The division of work. units: per program. parts: programs that share a direction's units. blocks: programs that
    share the batch; each computes every `blocks`-th row. warps: per program."""

    units: int
    parts: int
    blocks: int
    warps: int

    @staticmethod
    def of(node: Node, machine: Machine) -> Split | None:
        """Return the split with the fewest units that leaves a multiprocessor for each program; None if the layer does
        not fit."""
        op = node.op
        assert isinstance(op, Recurrent)
        count, batch = len(op.directions()), max(1, estimate(node.inputs[0].shape[1]))
        max_programs = int(RESIDENT_FRACTION * machine.processors)
        units = min(power_of_two(-(-count * op.hidden // max_programs)), power_of_two(op.hidden))
        units = max(units, min(4, power_of_two(op.hidden)))  # with fewer, exchanges between threads dominate the sums
        parts = -(-op.hidden // units)
        blocks = min(batch, max_programs // (count * parts))
        weight_bytes = op.gates * units * power_of_two(op.hidden) * _compute_type(node).nbytes
        if blocks == 0 or (rows := -(-batch // blocks)) > MAX_ROWS or rows * weight_bytes > MAX_WEIGHT_BYTES:
            return None
        return Split(units, parts, blocks, 4 if weight_bytes <= MAX_4_WARP_BYTES else 8)


def has_persistent_kernel(node: Node, machine: Machine) -> bool:
    """Whether the kernel supports this layer: its cell multiplies the unmodified state once, and R fits in
    registers."""
    op = node.op
    assert isinstance(op, Recurrent)
    single = op.rounds_state() and not op.levels
    return single and node.inputs[0].shape[0] != 0 and Split.of(node, machine) is not None


def lower_recurrent(group: Group, machine: Machine) -> Lowered:
    """Lower a layer that `has_persistent_kernel`: projections, and the kernel over time."""
    return _Scan(group, machine).lower()


def _compute_type(node: Node) -> DType:
    return f64 if node.inputs[0].dtype == f64 else f32


def _bind_mask(block: Block, *masks: Expr | None) -> Expr | None:
    """Bind the conjunction of masks; None if all are true everywhere."""
    mask = all_of(*masks)
    return None if mask is None else block.let(mask, "live")


class _Scan:
    def __init__(self, group: Group, machine: Machine) -> None:
        self.anchor, self.op = anchor_of(group.body)
        self.group, self.machine = group, machine
        split = Split.of(self.anchor, machine)
        assert split is not None
        self.split, self.dtype, self.hidden = split, _compute_type(self.anchor), self.op.hidden
        self.steps, self.batch, _ = self.anchor.inputs[0].shape
        self.directions = self.op.directions()
        self.cells = [Cell.of(self.anchor, d, self.dtype) for d in self.directions]
        self.launches: list[Step] = []
        self.temps: list[DimLike] = []
        self.packs: list[Pack] = []
        self.zeros: DimLike = i64.nbytes

    # -- the steps before the kernel

    def _append(self, low: Lowered, ins: Sequence[Arg], out: Arg) -> None:
        """Append another group's steps, with these operands and this result."""
        low = await_producers(low, self.machine)
        embedded = low.inlined(ins, [out], len(self.temps), len(self.packs))
        self.launches += embedded.steps
        self.temps += embedded.temps
        self.packs += embedded.packs
        self.zeros = dim_max(self.zeros, embedded.zeros)

    def _temp(self, name: str, elements: DimLike) -> tuple[Buffer, Arg]:
        self.temps.append(elements * self.dtype.nbytes)
        return Buffer(name, self.dtype, writable=True, align=ALIGNMENT_BYTES), Arg("temp", len(self.temps) - 1)

    def _compute(self, value: Node, layout: Layout, to: Arg) -> None:
        """Append a kernel that stores a pointwise value of the group's inputs."""
        graph, used = subgraph(self.group.body, value)
        low = lower_pointwise(Group.of(graph, (self.group.ins[i] for i in used), (layout,)), self.machine)
        self._append(low, [Arg("in", i) for i in used], to)

    def _converted_input(self) -> tuple[Node, Layout, Arg] | None:
        """Convert x to the narrower type of W, as tile products need one type; None if x has it already."""
        x, w = self.anchor.inputs[:2]
        if x.dtype == w.dtype:
            return None
        factor, layout = Input("x", TensorType(w.dtype, x.shape))(), Layout.contiguous(x.shape)
        _, to = self._temp("x", product(x.shape))
        self._compute(Term(x).cast(w.dtype).node, layout, to)
        return factor, layout, to

    def _project(self, cell: Cell, to: Arg, converted: tuple[Node, Layout, Arg] | None) -> None:
        """Append the contraction that computes P of one direction."""
        inputs, body, width = self.anchor.inputs, self.group.body, self.op.gates * self.hidden
        ins = self.group.ins
        args = [Arg("in", i) for i in range(len(ins))]
        if converted is not None:
            x, layout, x_arg = converted
            inputs, body = (x, *inputs[1:]), Graph((*body.inputs, x), body.outputs)
            ins, args = (*ins, layout), [*args, x_arg]
        graph, used = subgraph(body, input_projection(self.op, inputs, cell.at, self.dtype).node)
        rows = self.batch * width
        layout = Layout(graph.outputs[0].shape, (rows, width, 1), rows * self.steps * cell.at.index)
        constants = frozenset(n for n, i in enumerate(used) if i in self.group.constants)
        low = lower_contraction(Group.of(graph, (ins[i] for i in used), (layout,), constants), self.machine)
        self._append(low, [args[i] for i in used], to)

    # -- the kernel

    def lower(self) -> Lowered:
        state: DimLike = len(self.directions) * self.batch * self.hidden
        rows = self._temp("rows", state * self.op.gates * self.steps)
        converted = self._converted_input()
        for cell in self.cells:
            self._project(cell, rows[1], converted)
        if not isinstance(self.steps, int):  # the final states if there is no time step
            for i, initial in enumerate(self.anchor.inputs[4 : 4 + self.op.states], 1):
                self._compute(initial, self.group.outs[i], Arg("out", i))
        outputs = self._temp("outputs", 2 * state)
        others = [self._temp(f"state{i}", state) for i in range(1, self.op.states)]
        meeting = Buffer("arrived", i64, writable=True, align=ALIGNMENT_BYTES), Arg("zeros", 0)
        self.rows, self.outputs, self.others = rows[0], outputs[0], [b for b, _ in others]
        top, chunk = Block(), k.var("chunk")
        count = len(self.directions) * self.split.parts * self.split.blocks
        program = top.let(k.binary("rem", chunk, integer(count)), "program")
        self.time = top.let(k.binary("div", chunk, integer(count)), "turn")
        self._program(top, program)
        step = self.group.step(
            self.op.name, chunk, count, top, rows, outputs, *others, meeting, warps=self.split.warps, stages=1
        )
        kernel = replace(step.kernel, rounds=dim_expr(self.steps), barrier=meeting[0])
        self.launches.append(replace(step, kernel=kernel))
        return Lowered(tuple(self.launches), tuple(self.temps), tuple(self.packs), zeros=self.zeros)

    def _program(self, top: Block, program: Expr) -> None:
        """Emit a program's part of a round: load R for its units, then compute its rows of the batch."""
        split = self.split
        part = top.let(k.binary("rem", program, integer(split.parts)), "part")
        rest = top.let(k.binary("div", program, integer(split.parts)), "rest")
        self.first_row = top.let(k.binary("rem", rest, integer(split.blocks)), "mine")
        direction = top.let(k.binary("div", rest, integer(split.blocks)), "direction")
        self.direction = direction
        first = top.let(k.mul(part, integer(split.units)), "first")
        self.unit = Span.of(top, first, split.units, self.hidden, 0)
        self.state_columns = Span.of(top, ZERO, power_of_two(self.hidden), self.hidden, 1)
        live, em = _bind_mask(top, self.unit.in_bounds, self.state_columns.in_bounds), self.group.emitter()
        units = [k.add(self.unit.position, integer(gate * self.hidden)) for gate in range(self.op.gates)]
        self.weights = [
            em.value(top, self.anchor.inputs[2], (direction, u, self.state_columns.position), live) for u in units
        ]
        if len(self.cells) == 1:
            self._rows(top, self.cells[0])
            return
        forward = k.binary("eq", direction, ZERO)
        top.when(forward, *(lambda b, cell=cell: self._rows(b, cell) for cell in self.cells))

    def _rows(self, block: Block, cell: Cell) -> None:
        """Emit the loop over the program's rows, several per iteration so that their loads overlap."""
        blocks = self.split.blocks
        rows_per_iteration = min(ROWS_PER_ITERATION, power_of_two(-(-estimate(self.batch) // blocks)))
        is_divisible = isinstance(self.batch, int) and self.batch % (blocks * rows_per_iteration) == 0

        def loop_body(inner: Block, number: Expr) -> None:
            steps = []
            for i in range(rows_per_iteration):
                row = inner.let(k.add(k.mul(k.add(number, integer(i)), integer(blocks)), self.first_row), "row")
                live = None if is_divisible else inner.let(k.binary("lt", row, dim_expr(self.batch)), "here")
                steps.append(_Row(self, cell, inner, row, live))
            for step in steps:
                step.multiply()
            for step in steps:
                step.finish()

        block.loop("number", 0, ceildiv(self.batch, blocks), rows_per_iteration, loop_body)


class _Row:
    """One time step of one row, for the program's units."""

    def __init__(self, scan: _Scan, cell: Cell, block: Block, row: Expr, live: Expr | None) -> None:
        self.scan, self.cell, self.block, self.row = scan, cell, block, row
        steps, time = dim_expr(scan.steps), scan.time
        self.position = block.let(k.sub(k.sub(steps, integer(1)), time), "at") if cell.at.reverse else time
        self.is_first_step = block.let(k.binary("eq", time, ZERO), "begins")
        self.is_later_step = block.let(k.binary("ne", time, ZERO), "goes_on")
        self.in_bounds = _bind_mask(block, live, scan.unit.in_bounds)
        size = len(scan.directions) * scan.batch * scan.hidden
        self.slots = [
            block.let(k.mul(k.binary("rem", k.add(time, integer(i)), integer(2)), dim_expr(size)), "slot")
            for i in range(2)
        ]
        self.em = self._emitter()
        self.state = self._previous_state(
            0, scan.state_columns.position, _bind_mask(block, live, scan.state_columns.in_bounds)
        )
        # load what the cell needs while the products are computed
        self.projections = [self._projection(g) for g in range(scan.op.gates)]
        self.previous_states = [
            self._previous_state(i, scan.unit.position, self.in_bounds) for i in range(scan.op.states)
        ]
        self.sums: list[Expr] = []

    def _state_offset(self, column: Expr) -> Expr:
        """Return the offset of (direction, row, column) in a state."""
        scan = self.scan
        row = ix.add(ix.mul(scan.direction, dim_expr(scan.batch)), self.row)
        return ix.add(ix.mul(row, integer(scan.hidden)), column)

    def _previous_state(self, number: int, column: Expr, mask: Expr | None) -> Expr:
        """Return a state before the time step: the initial state at the first one."""
        scan, block = self.scan, self.block
        initial = scan.anchor.inputs[4 + number]
        index = scan.direction, self.row, column
        initial_value = self.em.value(block, initial, index, _bind_mask(block, self.is_first_step, mask))
        offset, buffer = self._state_offset(column), scan.outputs
        if number == 0:
            offset = ix.add(self.slots[1], offset)
        else:
            buffer = scan.others[number - 1]
        previous = read_at(block, buffer, offset, _bind_mask(block, self.is_later_step, mask))
        return block.let(k.select(*k.broadcast(self.is_first_step, k.cast(initial_value, scan.dtype), previous)), "h")

    def _projection(self, gate: int) -> Expr:
        """Return P for the units of a gate."""
        scan = self.scan
        step = ix.add(ix.mul(scan.direction, dim_expr(scan.steps)), self.position)
        row = ix.add(ix.mul(step, dim_expr(scan.batch)), self.row)
        column = k.add(scan.unit.position, integer(gate * scan.hidden))
        offset = ix.add(ix.mul(row, integer(scan.op.gates * scan.hidden)), column)
        return read_at(self.block, scan.rows, offset, self.in_bounds)

    def multiply(self) -> None:
        scan = self.scan
        for w in scan.weights:
            weight, state = k.broadcast(k.cast(w, scan.dtype), self.state)
            self.sums.append(self.block.let(k.reduce_axis("add", k.mul(weight, state), 1), "sum"))

    def _emitter(self) -> Emitter:
        """Make an emitter for the cell, with products and loaded values bound."""
        scan, cell = self.scan, self.cell
        em, column = scan.group.emitter(), scan.unit.position
        assert isinstance(column, k.Var)

        def bind(node: Node, read: Callable[[Index], Expr]) -> None:
            em.bind(node, Leaf(lambda b, index, mask: read(index), home=self.block, pinned=True))

        bind(cell.row, lambda index: self.projections[gate_offset(index[1], column) // scan.hidden])
        bind(cell.products[0][0], lambda index: self.sums[gate_offset(index[1], column) // scan.hidden])
        for number, node in enumerate(cell.states):
            bind(node, lambda index, number=number: self.previous_states[number])
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

        def store(b: Block, buffer: Buffer, offset: Expr, value: Expr) -> None:
            store_tile(b, buffer, offset, k.cast(value, buffer.dtype), self.in_bounds)

        def result(b: Block, number: int, index: Index, value: Expr) -> None:
            layout = scan.group.outs[number]
            store(b, scan.group.operands.outs[number], ix.linear(index, layout.strides, layout.offset), value)

        result(block, 0, (self.position, scan.direction, self.row, column), y)
        store(block, scan.outputs, ix.add(self.slots[0], self._state_offset(column)), states[0])
        for buffer, value in zip(scan.others, states[1:], strict=True):
            store(block, buffer, self._state_offset(column), value)
        is_last_step = k.binary("eq", scan.time, k.sub(dim_expr(scan.steps), integer(1)))

        def final(b: Block) -> None:
            for number, value in enumerate(states):
                result(b, 1 + number, (scan.direction, self.row, column), value)

        block.when(block.let(is_last_step, "last"), final)


__all__ = ["has_persistent_kernel", "lower_recurrent"]
