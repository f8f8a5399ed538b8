"""Recurrent groups: LSTM, GRU and RNN.

    1. P[t] = x[t] W^T + b for all steps: one contraction (for each direction)
    2. for t: for block of columns: acc[row][gate] = h[t-1] R_block;  h[t], c[t] = cell(acc + P[t], h[t-1], c[t-1])

R is repacked so that a block of columns is one stream: [block][k][gate][columns]. The cell is whatever the op's `step`
says: the emitter evaluates its graph with the products in registers. A cell with a product of a product (GRU that
resets before the product) runs in stages; every stage is a pass over the columns.

Passes are the rounds of one kernel; their chunks are (direction, part of the columns). Chunks of a round may take their
part in any order, so a worker takes the part that it had before, if it is free: its share of R stays in its own cache.
Every other pass walks the part's weights backwards: what the last one left in the cache is used first. (A walk that
always starts at the same end finds nothing in a least-recently-used cache that is smaller than the part.)
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial, reduce

import numpy as np

from ingot import ops
from ingot.ir import kernel as k
from ingot.ir.dims import DimLike, estimate
from ingot.ir.kernel import Buffer, Expr, Kernel, Var, integer
from ingot.ir.layout import Layout
from ingot.ir.node import Graph, Input, Node, const, topological
from ingot.ir.types import DType, TensorType, boolean, f32, f64, i64
from ingot.ops.nn.rnn import Parameters, Pass, Recurrent
from ingot.ops.nn.terms import Term
from ingot.ops.views import strided
from ingot.schedule import index as ix
from ingot.schedule.block import Block
from ingot.schedule.emit import Emitter, Index, Leaf, load_at, load_leaf, store_at
from ingot.schedule.gemm import lower_contraction
from ingot.schedule.index import ZERO, dim_expr
from ingot.schedule.lowered import Arg, Lowered, Pack, Step
from ingot.schedule.machine import Machine
from ingot.schedule.pointwise import Operands, body_dims, lower_pointwise, symbol_params
from ingot.schedule.scan_cell import Cell, Stage, offset_from, pack_weights
from ingot.support.errors import CompileError

LINE = 16  # counters of a pass and direction: on cache lines of their own
BLOCK = 4  # vectors of a block of columns, if the gates allow it
SUMS = 8  # that hide the latency of a multiply-add: a tile of fewer results has several for each
TURN = 32  # multiply-adds of a turn of the loop over k, at most
PART_SECONDS = 3e-6  # of work that is worth a wait


def lower_recurrent(
    body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...], constant: tuple[bool, ...], machine: Machine
) -> Lowered:
    """An LSTM, GRU or RNN. Raises CompileError where the hidden size is no plain number."""
    return _Scan(body, ins, outs, constant, machine).lower()


class _Scan:
    def __init__(
        self, body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...], constant: tuple[bool, ...],
        machine: Machine,
    ):
        anchor = next(n for n in body.nodes() if isinstance(n.op, Recurrent))
        op = anchor.op
        assert isinstance(op, Recurrent)
        self.op, self.anchor, self.body, self.ins, self.outs = op, anchor, body, ins, outs
        self.constant, self.machine = constant, machine
        x = anchor.inputs[0]
        self.steps, self.batch, _ = x.shape
        self.dtype: DType = f64 if x.dtype == f64 else f32
        self.hidden = op.hidden
        r = anchor.inputs[2]
        self.r_at = body.inputs.index(r) if r in body.inputs and constant[body.inputs.index(r)] else -1
        # a constant R stays as narrow as it is, and is widened as it is loaded
        self.stored: DType = r.dtype if self.r_at >= 0 else self.dtype
        self.lanes = machine.lanes(self.dtype)
        if not machine.masks:
            # without mask registers columns come in whole vectors
            while self.hidden % self.lanes:
                self.lanes //= 2
        self.directions = op.directions()
        self.operands = Operands.of(body)
        self.launches: list[Step] = []
        self.temps: list[DimLike] = []
        self.packs: list[Pack] = []
        self.cells = tuple(self._cell(d) for d in self.directions)
        self.stages = self.cells[0].stages
        self.weights_size = sum(self._weights_size(s) for s in self.stages)
        self.parts = self._parts()

    # --- the cell

    def _cell(self, d: Pass) -> Cell:
        """The op's step as a graph, and its products in the order in which they can be computed."""
        op, acc, h = self.op, self.dtype, self.hidden
        given = op.parameters(self.anchor.inputs, d.index)
        row = Input("row", TensorType(acc, (self.batch, op.gates * h)))()
        r = Input("r", TensorType(acc, (op.gates * h, h)))()
        states = tuple(Input(f"state{i}", TensorType(acc, (self.batch, h)))() for i in range(op.states))
        valid = Input("valid", TensorType(boolean, (self.batch, 1)))() if op.has_lengths else None
        inner = Parameters(given.w, Term(r), given.b, tuple(map(Term, states)), given.peephole)
        results = op.step(d.index, Term(row), inner, None if valid is None else Term(valid))
        nodes = tuple(t.node for t in results)
        stages: list[Stage] = []
        for n in topological(nodes):
            if not isinstance(n.op, ops.DotGeneral):
                continue
            found = strided(n.inputs[1], {r: Layout.contiguous(r.shape)})
            if found is None or found[0] is not r or not isinstance(found[1].offset, int):
                raise CompileError("a recurrent cell", expected="products with rows of R", got=str(n))
            first = found[1].offset // h
            stages.append(self._stage(n, first, stages))
        return Cell(d, row, states, valid, nodes, tuple(stages))

    def _stage(self, node: Node, first: int, before: list[Stage]) -> Stage:
        gates = int(node.shape[1]) // self.hidden
        lanes = self.lanes
        most = -(-self.hidden // lanes)
        vectors = max(1, min(BLOCK // gates, most))
        if not self.machine.masks:
            while most % vectors:
                vectors -= 1
        width = gates * vectors
        # registers for sums, the weights of a k and a value of h
        rows = max(1, (self.machine.registers - 1) // width - 1)
        rows = 1 << (rows.bit_length() - 1)
        if isinstance(self.batch, int) and self.batch:
            rows = -(-self.batch // -(-self.batch // rows))  # as even as can be
        base = sum(self._weights_size(s) for s in before)
        return Stage(node, node.inputs[0], first, gates, vectors, rows, -(-most // vectors), base)

    def _weights_size(self, s: Stage) -> int:
        return s.blocks * self.hidden * s.gates * s.vectors * self.lanes

    def _parts(self) -> int:
        """Workers that share a direction's columns."""
        seconds = 0.0
        for s in self.stages:
            weights = self._weights_size(s)
            flops = 2 * weights * estimate(self.batch)
            # from the shared cache at 40 GB/s, or at three quarters of the multiply-add peak
            seconds += max(weights * self.stored.nbytes / 40e9, flops / (self.machine.gflops * 0.75e9))
        share = seconds / len(self.stages)
        workers = max(1, self.machine.threads // len(self.directions))
        return max(1, min(workers, int(share / PART_SECONDS), *(s.blocks for s in self.stages), LINE))

    # --- steps before the scan

    def _temp(self, elements: DimLike, dtype: DType) -> Arg:
        self.temps.append(elements * dtype.nbytes)
        return Arg("temp", len(self.temps) - 1)

    def _embed(self, low: Lowered, ins: tuple[Arg, ...], outs: tuple[Arg, ...]) -> None:
        """Run another group's steps on these operands."""
        temps, packs = len(self.temps), len(self.packs)
        self.temps.extend(low.temps)
        self.packs.extend(replace(p, index=ins[p.index].index) for p in low.packs)

        def resolve(arg: Arg) -> Arg:
            match arg.kind:
                case "in":
                    return ins[arg.index]
                case "out":
                    return outs[arg.index]
                case "temp":
                    return Arg("temp", temps + arg.index)
                case "pack":
                    return Arg("pack", packs + arg.index)

        self.launches.extend(Step(s.kernel, tuple(map(resolve, s.args))) for s in low.steps)

    def _part_of(self, value: Node) -> tuple[Graph, list[int]]:
        """A graph of `value` over the group's inputs that it reads, and their positions."""
        nodes = set(topological([value]))
        used = [i for i, n in enumerate(self.body.inputs) if n in nodes]
        return Graph(tuple(self.body.inputs[i] for i in used), (value,)), used

    def _compute(self, value: Node, to: Arg, layout: Layout) -> None:
        """Write a pointwise value of the group's inputs to memory."""
        graph, used = self._part_of(value)
        low = lower_pointwise(graph, tuple(self.ins[i] for i in used), (layout,), self.machine)
        self._embed(low, tuple(Arg("in", i) for i in used), (to,))

    def _project(self, cell: Cell, to: Arg) -> None:
        """P of one direction, at its place in `to`."""
        op, inputs = self.op, self.anchor.inputs
        x, w = inputs[:2]
        d = cell.at.index
        width = op.gates * self.hidden
        own = ops.Slice((d, 0, 0), (d + 1, *w.shape[1:]), (1, 1, 1))(w)
        flat = ops.Reshape(w.shape[1:])(own)
        product = Term(ops.DotGeneral(((), ()), ((2,), (1,)), self.dtype)(x, flat))
        given = op.parameters(inputs, d)
        value = product + (given.b.slice(0, 0, width) + op.outer_bias(given))
        graph, used = self._part_of(value.node)
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
            key = f"scan {what} {self.hidden} {lanes} {self.stored}"
            write = partial(pack_weights, stages, self.hidden, lanes)
            self.packs.append(Pack(at, key, self.stored, size * len(self.directions), write))
            return Arg("pack", len(self.packs) - 1)
        to = self._temp(size * len(self.directions), self.dtype)
        h = self.hidden
        for d in self.directions:
            for s in stages:
                wide = s.blocks * s.vectors * lanes
                own = Term(r).cast(self.dtype).slice(0, d.index, d.index + 1)
                own = own.slice(1, s.first, s.first + s.gates * h).reshape((s.gates, h, h))
                own = own.pad(1, 0, wide - h, 0.0).reshape((s.gates, s.blocks, s.vectors * lanes, h))
                value = own.transpose((1, 3, 0, 2)).node
                dense = Layout.contiguous(value.shape)
                self._compute(value, to, Layout(dense.shape, dense.strides, d.index * size + s.base))
        return to

    # --- the scan

    def lower(self) -> Lowered:
        count, h = len(self.directions), self.hidden
        state: DimLike = count * self.batch * h
        rows = self._temp(state * self.op.gates * self.steps, self.dtype)
        for cell in self.cells:
            self._project(cell, rows)
        weights = self._weights()
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
        control: Arg | None = None
        if self.parts > 1:
            counters = self.steps * len(self.stages) * count * LINE
            control = self._temp(counters, i64)
            zero = ops.BroadcastInDim((counters,), ())(const(0, np.int64))
            clear = lower_pointwise(Graph((), (zero,)), (), (Layout.contiguous((counters,)),), self.machine)
            self._embed(clear, (), (control,))
        self.launches.append(_Loop(self, rows, weights, outputs, others, between, control).step())
        return Lowered(tuple(self.launches), tuple(self.temps), tuple(self.packs))


class _Loop:
    """The kernel over time."""

    def __init__(
        self, scan: _Scan, rows: Arg, weights: Arg, outputs: Arg, others: list[Arg], between: list[tuple[Arg, Arg]],
        control: Arg | None,
    ):
        self.scan = scan
        acc = scan.dtype
        self.params: list[tuple[Buffer, Arg]] = []
        self.rows = self._param("rows", acc, rows)
        self.weights = self._param("weights", scan.stored, weights)
        self.outputs = self._param("outputs", acc, outputs, True)
        self.others = [self._param(f"state{i}", acc, a, True) for i, a in enumerate(others)]
        self.between = [
            (self._param(f"dot{i}", acc, dots, True), self._param(f"operand{i}", acc, operand, True))
            for i, (dots, operand) in enumerate(between)
        ]
        self.control = self._param("control", i64, control, True) if control is not None else None
        needed = set(topological([n for c in scan.cells for n in c.results]))
        if scan.op.has_lengths:
            needed |= set(topological([self._lengths()]))
        self.leaves: dict[Node, Leaf] = {}
        for i, (n, buffer) in enumerate(zip(scan.body.inputs, scan.operands.ins, strict=True)):
            if n in needed:
                self.params.append((buffer, Arg("in", i)))
                self.leaves[n] = load_leaf(buffer, scan.ins[i])
        self.params += [(b, Arg("out", i)) for i, b in enumerate(scan.operands.outs)]

    def _param(self, name: str, dtype: DType, arg: Arg, writable: bool = False) -> Buffer:
        buffer = Buffer(name, dtype, writable=writable)
        self.params.append((buffer, arg))
        return buffer

    def _lengths(self) -> Node:
        return self.scan.anchor.inputs[4 + self.scan.op.states]

    def step(self) -> Step:
        scan, top, chunk = self.scan, Block(), k.var("chunk")
        count, stages, parts = len(scan.directions), len(scan.stages), scan.parts
        chunks: int = count
        rounds: DimLike = 1
        scratch = 0
        if self.control is None:
            self._alone(top, chunk)
        else:
            chunks, rounds, scratch = count * parts, scan.steps * stages, 64
            self._shared(top, chunk, self.control)
        dims = symbol_params(
            *body_dims(scan.body, (*scan.ins, *scan.outs)), *(d for n in scan.body.inputs for d in n.shape), rounds
        )
        params = tuple(b for b, _ in self.params)
        kernel = Kernel("scan", params, dims, chunk, dim_expr(chunks), top.body, scratch, dim_expr(rounds))
        return Step(kernel, tuple(a for _, a in self.params))

    def _alone(self, top: Block, direction: Expr) -> None:
        """One chunk per direction does all passes."""

        def turn(block: Block, i: Expr) -> None:
            for s in range(len(self.scan.stages)):
                self._direction(block, direction, i, s, ZERO)

        top.loop("i", 0, self.scan.steps, 1, turn)

    def _shared(self, top: Block, chunk: Expr, control: Buffer) -> None:
        """A chunk does one part of one pass of one direction."""
        scan = self.scan
        count, stages, parts = len(scan.directions), len(scan.stages), scan.parts
        order = top.let(k.binary("div", chunk, integer(parts)), "order")
        direction = top.let(k.binary("rem", order, integer(count)), "d")
        turn = top.let(k.binary("div", order, integer(count)), "turn")
        line = top.let(k.mul(order, integer(LINE)), "line")
        mine = top.alloc("mine", i64, 1, scratch=0)
        last = top.let(k.load(mine, ZERO), "last")
        # what lies in fresh scratch may be any number
        wanted = top.let(k.binary("rem", k.binary("max", last, ZERO), integer(parts)), "wanted")
        found = top.alloc("part", i64, 1)
        top.store(found, ZERO, integer(-1))
        for i in range(parts):

            def claim(b: Block, i: int = i) -> None:
                part = b.let(k.binary("rem", k.add(wanted, integer(i)), integer(parts)), "p")
                taken = b.fresh("taken")
                b.stmts.append(k.Increment(taken, control, k.add(line, part)))
                b.store(found, ZERO, k.select(k.binary("eq", taken, ZERO), part, integer(-1)))

            top.when(k.binary("lt", k.load(found, ZERO), ZERO), claim)
        part = top.let(k.load(found, ZERO), "part")
        top.store(mine, ZERO, part)
        i = top.let(k.binary("div", turn, integer(stages)), "i")
        if stages == 1:
            self._direction(top, direction, i, 0, part)
        else:
            stage = top.let(k.binary("rem", turn, integer(stages)), "stage")
            for s in range(stages):
                top.when(
                    k.binary("eq", stage, integer(s)), lambda b, s=s: self._direction(b, direction, i, s, part)
                )

    def _direction(self, block: Block, direction: Expr, i: Expr, stage: int, part: Expr) -> None:
        cells = self.scan.cells
        if len(cells) == 1:
            self._pass(block, cells[0], i, stage, part)
            return
        block.when(
            k.binary("eq", direction, ZERO),
            lambda b: self._pass(b, cells[0], i, stage, part),
            lambda b: self._pass(b, cells[1], i, stage, part),
        )

    def _pass(self, block: Block, cell: Cell, i: Expr, stage: int, part: Expr) -> None:
        """One stage of one step, for one part of the columns."""
        scan, s = self.scan, cell.stages[stage]
        parts, blocks = scan.parts, s.blocks
        low = block.let(k.binary("div", k.mul(part, integer(blocks)), integer(parts)), "low")
        high = block.let(
            k.binary("div", k.mul(k.add(part, integer(1)), integer(blocks)), integer(parts)), "high"
        )
        odd = block.let(k.binary("eq", k.binary("rem", i, integer(2)), integer(1)), "odd")
        step = _Step(self, cell, stage, i, odd)

        def columns(b: Block, c: Expr) -> None:
            back = k.sub(k.sub(k.add(low, high), integer(1)), c)
            own = b.let(k.select(odd, back, c), "c")
            step.columns(b, own)

        block.loop("c", low, high, 1, columns)


class _Step:
    """One stage of one step of one direction: the products and the cell's arithmetic for a block of columns."""

    def __init__(self, loop: _Loop, cell: Cell, stage: int, i: Expr, odd: Expr):
        self.loop, self.scan, self.cell, self.number, self.i, self.odd = loop, loop.scan, cell, stage, i, odd
        self.stage = cell.stages[stage]

    def _state(self, b: Expr, j: Expr) -> Expr:
        """The place of (direction, b, j) in a state."""
        scan = self.scan
        row = ix.add(ix.mul(dim_expr(scan.batch), integer(self.cell.at.index)), b)
        return ix.add(ix.mul(row, integer(scan.hidden)), j)

    def _slot(self, block: Block, i: Expr) -> Expr:
        """The start of the outputs of step i."""
        size = len(self.scan.directions) * self.scan.batch * self.scan.hidden
        return block.let(k.mul(k.binary("rem", i, integer(2)), dim_expr(size)), "slot")

    def columns(self, block: Block, column: Expr) -> None:
        """A block of columns: the products of a tile of rows at a time, then the cell row by row."""
        s, batch = self.stage, self.scan.batch
        rows = s.rows
        sums = block.alloc("sums", self.scan.dtype, rows * s.width * self.scan.lanes, stack=True)

        def tile(x: Block, b: Expr) -> None:
            count: Expr = integer(rows)
            if isinstance(batch, int) and batch % rows == 0:
                self._products(x, column, b, ZERO, rows, sums)
            else:
                count = x.let(k.binary("min", k.sub(dim_expr(batch), b), integer(rows)), "rows")
                x.when(
                    k.binary("eq", count, integer(rows)),
                    lambda y: self._products(y, column, b, ZERO, rows, sums),
                    lambda y: self._rest(y, column, b, count, sums),
                )

            def finish(y: Block, r: Expr) -> None:
                for v in range(s.vectors):
                    self._finish(y, column, k.add(b, r), sums, r, v)

            x.loop("r", ZERO, count, 1, finish)

        block.loop("b", 0, batch, rows, tile)

    def _rest(self, block: Block, column: Expr, b: Expr, count: Expr, sums: Buffer) -> None:
        """The products of fewer rows than a tile has: tiles of a power of two from 4 on, then one of what is left, as a
        tile of few rows takes as long as its weights take to arrive."""
        at: Expr = ZERO

        def some(rows: int, test: str) -> Expr:
            here = at
            has = block.let(k.binary(test, count, k.add(here, integer(rows))), "has")
            block.when(has, lambda x: self._products(x, column, k.add(b, here), here, rows, sums))
            return block.let(k.select(has, k.add(here, integer(rows)), here), "at")

        for rows in (16, 8, 4):
            if rows < self.stage.rows:
                at = some(rows, "ge")
        for rows in range(1, min(4, self.stage.rows)):
            some(rows, "eq")

    def _products(self, block: Block, column: Expr, b: Expr, at: Expr, rows: int, sums: Buffer) -> None:
        """Rows from b on times the block's weights, to rows from `at` on of the sums."""
        scan, s, lanes = self.scan, self.stage, self.scan.lanes
        width, h = s.width, scan.hidden
        tile = rows * width
        unroll = next(u for u in (16, 8, 4, 2, 1) if (h % u == 0 and u * tile <= TURN) or u == 1)
        sets = min(unroll, -(-SUMS // tile))
        acc = block.alloc("acc", scan.dtype, sets * tile, lanes=lanes)
        zero = k.lit(0.0, scan.dtype, lanes)
        for n in range(sets * tile):
            block.store(acc, integer(n), zero)
        if self.number == 0:
            source = self.loop.outputs
            start = ix.add(self._slot(block, k.add(self.i, integer(1))), self._state(b, ZERO))
        else:
            source = self.loop.between[self.number - 1][1]
            start = self._state(b, ZERO)
        start = block.let(start, "h")
        line = block.let(
            k.add(integer(self.cell.at.index * scan.weights_size + s.base), k.mul(column, integer(h * width * lanes))),
            "w",
        )

        def turns(x: Block, e: Expr) -> None:
            e = x.let(k.select(self.odd, k.sub(integer(h - unroll), e), e), "k")
            for u in range(unroll):
                here = ix.add(e, integer(u))
                row = ix.add(line, ix.mul(here, integer(width * lanes)))
                own = [k.load(self.loop.weights, ix.add(row, integer(n * lanes)), lanes) for n in range(width)]
                weights = [x.let(k.cast(w, scan.dtype), "w") for w in own]
                for r in range(rows):
                    value = x.let(k.load(source, ix.add(start, ix.add(here, integer(r * h)))), "x")
                    value = x.let(k.splat(value, lanes), "x")
                    for n, w in enumerate(weights):
                        slot = integer(u % sets * tile + r * width + n)
                        x.store(acc, slot, k.fma(value, w, k.load(acc, slot)))

        block.loop("k", 0, h, unroll, turns)
        for n in range(tile):
            value = reduce(k.add, (k.load(acc, integer(i * tile + n)) for i in range(sets)))
            block.store(sums, ix.add(ix.mul(at, integer(width * lanes)), integer(n * lanes)), value)

    def _finish(self, block: Block, column: Expr, b: Expr, products: Buffer, r: Expr, v: int) -> None:
        """The cell for one row and one vector of columns."""
        scan, s, lanes, cell = self.scan, self.stage, self.scan.lanes, self.cell
        j = block.fresh("j")
        block.stmts.append(k.Let(j, k.add(k.mul(column, integer(s.vectors * lanes)), integer(v * lanes))))
        mask: Expr | None = None
        if scan.hidden % (s.vectors * lanes):
            mask = block.let(k.binary("lt", k.ramp(j, lanes), integer(scan.hidden)), "live")
        across = k.ramp(j, lanes) if lanes > 1 else j
        start = ix.mul(r, integer(s.width * lanes))
        sums = [
            block.let(k.load(products, ix.add(start, integer((g * s.vectors + v) * lanes)), lanes), "s")
            for g in range(s.gates)
        ]
        em = self._emitter(block, j, sums)
        if self.number < len(cell.stages) - 1:
            dots, operand = self.loop.between[self.number]
            row = ix.add(ix.mul(dim_expr(scan.batch), integer(cell.at.index)), b)
            base = ix.mul(row, integer(s.gates * scan.hidden))
            for g, value in enumerate(sums):
                store_at(block, dots, ix.add(ix.add(base, integer(g * scan.hidden)), across), value, mask)
            value = em.value(block, cell.stages[self.number + 1].operand, (b, across), mask)
            store_at(block, operand, self._state(b, across), value, mask)
            return
        values = [block.let(em.value(block, n, (b, across), mask), "y") for n in cell.results]
        y, *states = values
        lay = scan.outs[0]
        place = (self._time(block), integer(cell.at.index), b, across)
        target = scan.operands.outs[0]
        store_at(block, target, ix.linear(place, lay.strides, lay.offset), k.cast(y, target.dtype), mask)
        own = self._state(b, across)
        store_at(block, self.loop.outputs, ix.add(self._slot(block, self.i), own), states[0], mask)
        for buffer, value in zip(self.loop.others, states[1:], strict=True):
            store_at(block, buffer, own, value, mask)

        def final(x: Block) -> None:
            for n, value in enumerate(states):
                buffer, lay = scan.operands.outs[1 + n], scan.outs[1 + n]
                at = ix.linear((integer(cell.at.index), b, across), lay.strides, lay.offset)
                store_at(x, buffer, at, k.cast(value, buffer.dtype), mask)

        block.when(k.binary("eq", self.i, dim_expr(scan.steps - 1)), final)

    def _time(self, block: Block) -> Expr:
        if not self.cell.at.reverse:
            return self.i
        return block.let(k.sub(dim_expr(self.scan.steps - 1), self.i), "at")

    def _emitter(self, block: Block, j: Var, sums: list[Expr]) -> Emitter:
        """An emitter of the cell's graph with this stage's products in registers and everything else in memory."""
        scan, cell, loop = self.scan, self.cell, self.loop
        at = self._time(block)
        width = scan.op.gates * scan.hidden

        def row(b: Block, index: Index, mask: Expr | None) -> Expr:
            step = ix.add(at, ix.mul(dim_expr(scan.steps), integer(cell.at.index)))
            line = ix.add(ix.mul(step, dim_expr(scan.batch)), index[0])
            return load_at(b, loop.rows, ix.add(ix.mul(line, integer(width)), index[1]), mask)

        def state(buffer: Buffer, start: Expr) -> Leaf:
            return Leaf(
                lambda b, index, mask: load_at(b, buffer, ix.add(start, self._state(*index)), mask), pinned=True
            )

        def product(b: Block, index: Index, mask: Expr | None) -> Expr:
            return sums[offset_from(index[1], j) // scan.hidden]

        leaves = dict(loop.leaves)
        leaves[cell.row] = Leaf(row, pinned=True)
        before = self._slot(block, k.add(self.i, integer(1)))
        leaves[cell.states[0]] = state(loop.outputs, before)
        for n, buffer in zip(cell.states[1:], loop.others, strict=True):
            leaves[n] = state(buffer, ZERO)
        for s, (dots, _) in zip(cell.stages[: self.number], loop.between, strict=False):
            leaves[s.node] = self._earlier(s, dots)
        leaves[self.stage.node] = Leaf(product, home=block, pinned=True)
        em = Emitter(leaves)
        if cell.valid is not None:
            lengths = loop._lengths()

            def valid(b: Block, index: Index, mask: Expr | None) -> Expr:
                length = k.cast(em.value(b, lengths, (index[0],), None), i64)
                return b.let(k.binary("lt", at, length), "valid")

            em.bind(cell.valid, Leaf(valid, pinned=True))
        return em

    def _earlier(self, s: Stage, dots: Buffer) -> Leaf:
        """The products of a stage that is over."""
        scan = self.scan

        def read(b: Block, index: Index, mask: Expr | None) -> Expr:
            row = ix.add(ix.mul(dim_expr(scan.batch), integer(self.cell.at.index)), index[0])
            return load_at(b, dots, ix.add(ix.mul(row, integer(s.gates * scan.hidden)), index[1]), mask)

        return Leaf(read, pinned=True)


__all__ = ["lower_recurrent"]
