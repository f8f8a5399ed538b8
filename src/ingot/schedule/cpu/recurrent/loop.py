"""The kernel of a recurrent group: a loop over time, shared by workers.

Passes are the rounds of one kernel; their chunks are (direction, part of the columns). Chunks of a round may take their
part in any order, so a worker takes the part that it had before, if it is free: its share of R stays in its own cache.
Every other pass walks the part's weights backwards: what the last one left in the cache is used first. (A walk that
always starts at the same end finds nothing in a least-recently-used cache that is smaller than the part.)
"""

from __future__ import annotations

from functools import reduce

from ingot.ir import kernel as k
from ingot.ir.dims import DimLike
from ingot.ir.kernel import Buffer, Expr, Kernel, Var, integer
from ingot.ir.node import Node, topological
from ingot.ir.types import DType, f32, i32, i64, u8, u32
from ingot.schedule import index as ix
from ingot.schedule.block import Block
from ingot.schedule.buffers import body_dims, symbol_params
from ingot.schedule.cpu.chunks import Write, vector_loop
from ingot.schedule.cpu.recurrent.cell import BYTES_PER_LANE, COUNTERS_PER_LINE, Cell, Recurrence, Stage
from ingot.schedule.cpu.reducers import Reducer
from ingot.schedule.emit import Emitter, Index, Leaf, load_at, load_leaf, store_at
from ingot.schedule.index import ZERO, dim_expr
from ingot.schedule.lowered import Arg, Step
from ingot.schedule.recurrent import gate_offset

MIN_ACCUMULATORS = 8  # that hide the latency of a multiply-add: a tile of fewer results has several for each
MAX_UNROLLED_MULTIPLY_ADDS = 32  # multiply-adds of a turn of the loop over k, at most


class Loop:
    """The kernel over time."""

    def __init__(
        self,
        scan: Recurrence,
        rows: Arg,
        weights: list[Arg],
        outputs: Arg,
        others: list[Arg],
        between: list[tuple[Arg, Arg]],
        operand: Arg | None,
        control: Arg | None,
    ):
        self.scan = scan
        acc = scan.dtype
        self.params: list[tuple[Buffer, Arg]] = []
        self.rows = self._param("rows", acc, rows)
        self.weights = self._param("weights", scan.r_dtype, weights[0])
        # of each of their rows, where they are levels: the sum and the scale
        kinds = (("totals", i32), ("scales", f32))
        self.columns = [self._param(name, dtype, a) for (name, dtype), a in zip(kinds, weights[1:], strict=False)]
        self.outputs = self._param("outputs", acc, outputs, True)
        self.state_buffers = [self._param(f"state{i}", acc, a, True) for i, a in enumerate(others)]
        self.fold_buffers = [
            (self._param(f"dot{i}", acc, dots, True), self._param(f"operand{i}", acc, operand, True))
            for i, (dots, operand) in enumerate(between)
        ]
        # of the first product, where it waits for folds of the state: each worker makes its own
        self.operand = self._param("operand", scan.operand, operand, True) if operand is not None else None
        self.control = self._param("control", i64, control, True) if control is not None else None
        needed_nodes = set(topological([n for c in scan.cells for n in c.results]))
        if scan.op.has_lengths:
            needed_nodes |= set(topological([scan.lengths()]))
        self.leaves: dict[Node, Leaf] = {}
        for i, (n, buffer) in enumerate(zip(scan.body.inputs, scan.operands.ins, strict=True)):
            if n in needed_nodes:
                self.params.append((buffer, Arg("in", i)))
                self.leaves[n] = load_leaf(buffer, scan.ins[i])
        self.params += [(b, Arg("out", i)) for i, b in enumerate(scan.operands.outs)]

    def _param(self, name: str, dtype: DType, arg: Arg, writable: bool = False) -> Buffer:
        buffer = Buffer(name, dtype, writable=writable)
        self.params.append((buffer, arg))
        return buffer

    def step(self) -> Step:
        scan, top, chunk = self.scan, Block(), k.var("chunk")
        count, stages, parts = len(scan.directions), len(scan.stages), scan.parts
        chunks: int = count
        rounds: DimLike = 1
        scratch = 0
        if self.control is None:
            self._one_chunk(top, chunk)
        else:
            chunks, rounds, scratch = count * parts, scan.steps * stages, 64
            self._shared(top, chunk, self.control)
        dims = symbol_params(
            *body_dims(scan.body, (*scan.ins, *scan.outs)), *(d for n in scan.body.inputs for d in n.shape), rounds
        )
        params = tuple(b for b, _ in self.params)
        kernel = Kernel("scan", params, dims, chunk, dim_expr(chunks), top.body, scratch, dim_expr(rounds))
        return Step(kernel, tuple(a for _, a in self.params))

    def _one_chunk(self, top: Block, direction: Expr) -> None:
        """One chunk per direction does all passes."""

        def step(block: Block, i: Expr) -> None:
            for s in range(len(self.scan.stages)):
                self._direction(block, direction, i, s, ZERO)

        top.loop("i", 0, self.scan.steps, 1, step)

    def _shared(self, top: Block, chunk: Expr, control: Buffer) -> None:
        """A chunk does one part of one pass of one direction."""
        scan = self.scan
        count, stages, parts = len(scan.directions), len(scan.stages), scan.parts
        order = top.let(k.binary("div", chunk, integer(parts)), "order")
        direction = top.let(k.binary("rem", order, integer(count)), "d")
        pass_number = top.let(k.binary("div", order, integer(count)), "turn")
        line = top.let(k.mul(order, integer(COUNTERS_PER_LINE)), "line")
        mine = top.alloc("mine", i64, 1, scratch=0)
        last = top.let(k.load(mine, ZERO), "last")
        # what lies in fresh scratch may be any number
        preferred = top.let(k.binary("rem", k.binary("max", last, ZERO), integer(parts)), "wanted")
        claimed = top.alloc("part", i64, 1)
        top.store(claimed, ZERO, integer(-1))
        for i in range(parts):

            def claim(b: Block, i: int = i) -> None:
                part = b.let(k.binary("rem", k.add(preferred, integer(i)), integer(parts)), "p")
                claims = b.fresh("taken")
                b.stmts.append(k.Increment(claims, control, k.add(line, part)))
                b.store(claimed, ZERO, k.select(k.binary("eq", claims, ZERO), part, integer(-1)))

            top.when(k.binary("lt", k.load(claimed, ZERO), ZERO), claim)
        part = top.let(k.load(claimed, ZERO), "part")
        top.store(mine, ZERO, part)
        i = top.let(k.binary("div", pass_number, integer(stages)), "i")
        if stages == 1:
            self._direction(top, direction, i, 0, part)
        else:
            stage = top.let(k.binary("rem", pass_number, integer(stages)), "stage")
            for s in range(stages):
                top.when(k.binary("eq", stage, integer(s)), lambda b, s=s: self._direction(b, direction, i, s, part))

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
        high = block.let(k.binary("div", k.mul(k.add(part, integer(1)), integer(blocks)), integer(parts)), "high")
        odd = block.let(k.binary("eq", k.binary("rem", i, integer(2)), integer(1)), "odd")
        step = _Step(self, cell, stage, i, odd, part)
        if s.folds:
            step.make_operand(block)

        def columns(b: Block, c: Expr) -> None:
            reversed_c = k.sub(k.sub(k.add(low, high), integer(1)), c)
            ordered_c = b.let(k.select(odd, reversed_c, c), "c")
            step.columns(b, ordered_c)

        block.loop("c", low, high, 1, columns)


class _Step:
    """One stage of one step of one direction: the products and the cell's arithmetic for a block of columns."""

    def __init__(self, loop: Loop, cell: Cell, stage: int, i: Expr, odd: Expr, part: Expr):
        self.loop, self.scan, self.cell, self.number, self.i, self.odd = loop, loop.scan, cell, stage, i, odd
        self.stage, self.part = cell.stages[stage], part
        self.zero, self.scale = ZERO, ZERO  # of the operand's levels

    def _state(self, b: Expr, j: Expr) -> Expr:
        """The place of (direction, b, j) in a state."""
        scan = self.scan
        row = ix.add(ix.mul(dim_expr(scan.batch), integer(self.cell.at.index)), b)
        return ix.add(ix.mul(row, integer(scan.hidden)), j)

    def _slot(self, block: Block, i: Expr) -> Expr:
        """The start of the outputs of step i."""
        size = len(self.scan.directions) * self.scan.batch * self.scan.hidden
        return block.let(k.mul(k.binary("rem", i, integer(2)), dim_expr(size)), "slot")

    def _operand_row(self, b: Expr) -> Expr:
        """The place of row b of the operand that this worker makes."""
        scan = self.scan
        mine = ix.add(integer(self.cell.at.index * scan.parts), self.part)
        return ix.mul(ix.add(ix.mul(mine, dim_expr(scan.batch)), b), integer(scan.depth))

    def make_operand(self, block: Block) -> None:
        """Compute the operand that the products read instead of the state: elementwise ops after reductions of the
        whole state."""
        scan, s, target = self.scan, self.stage, self.loop.operand
        assert target is not None
        em = self._emitter(block, k.var("none"), [])
        folds = [Reducer.of(n, block, scan.lanes, 1) for n in s.folds]
        operand, *terms = s.levels or (s.operand,)

        def fold(x: Block, index: Index, mask: Expr | None) -> None:
            for f in folds:
                f.add(x, em.value(x, f.node.inputs[0], index, mask), index[1], mask, 0)

        def store(x: Block, index: Index, mask: Expr | None) -> None:
            store_at(x, target, ix.add(self._operand_row(index[0]), index[1]), em.value(x, operand, index, mask), mask)

        self._for_each_element(block, fold)
        for f in folds:
            value = block.let(f.result(block), "fold")
            em.bind(f.node, Leaf(lambda b, index, mask, value=value: value, home=block, pinned=True))
        if terms:
            self.zero, self.scale = (em.value(block, n, ()) for n in terms)
        self._for_each_element(block, store)

    def _for_each_element(self, block: Block, body: Write) -> None:
        """body(block, (row, columns), mask) for all elements of a state."""
        scan = self.scan

        def row(x: Block, b: Expr) -> None:
            vector_loop(x, ZERO, scan.hidden, scan.lanes, scan.machine, lambda y, j, m: body(y, (b, j), m))

        block.loop("b", 0, scan.batch, 1, row)

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
            start = at
            has_rows = block.let(k.binary(test, count, k.add(start, integer(rows))), "has")
            block.when(has_rows, lambda x: self._products(x, column, k.add(b, start), start, rows, sums))
            return block.let(k.select(has_rows, k.add(start, integer(rows)), start), "at")

        for rows in (16, 8, 4):
            if rows < self.stage.rows:
                at = some(rows, "ge")
        for rows in range(1, min(4, self.stage.rows)):
            some(rows, "eq")

    def _products(self, block: Block, column: Expr, b: Expr, at: Expr, rows: int, sums: Buffer) -> None:
        """Rows from b on times the block's weights, to rows from `at` on of the sums."""
        scan, s, lanes = self.scan, self.stage, self.scan.lanes
        if s.levels:
            self._dots(block, column, b, at, rows, sums)
            return
        width, h = s.width, scan.hidden
        tile = rows * width
        unroll = next(u for u in (16, 8, 4, 2, 1) if (h % u == 0 and u * tile <= MAX_UNROLLED_MULTIPLY_ADDS) or u == 1)
        sets = min(unroll, -(-MIN_ACCUMULATORS // tile))
        acc = block.alloc("acc", scan.dtype, sets * tile, lanes=lanes)
        zero = k.lit(0.0, scan.dtype, lanes)
        for n in range(sets * tile):
            block.store(acc, integer(n), zero)
        if self.loop.operand is not None:
            source, start = self.loop.operand, self._operand_row(b)
        elif self.number == 0:
            source = self.loop.outputs
            start = ix.add(self._slot(block, k.add(self.i, integer(1))), self._state(b, ZERO))
        else:
            source = self.loop.fold_buffers[self.number - 1][1]
            start = self._state(b, ZERO)
        start = block.let(start, "h")
        line = block.let(
            k.add(integer(self.cell.at.index * scan.weights_size + s.base), k.mul(column, integer(h * width * lanes))),
            "w",
        )

        def iteration(x: Block, e: Expr) -> None:
            e = x.let(k.select(self.odd, k.sub(integer(h - unroll), e), e), "k")
            for u in range(unroll):
                k_at = ix.add(e, integer(u))
                row = ix.add(line, ix.mul(k_at, integer(width * lanes)))
                stored = [k.load(self.loop.weights, ix.add(row, integer(n * lanes)), lanes) for n in range(width)]
                weights = [x.let(k.cast(w, scan.dtype), "w") for w in stored]
                for r in range(rows):
                    value = x.let(k.load(source, ix.add(start, ix.add(k_at, integer(r * h)))), "x")
                    value = x.let(k.splat(value, lanes), "x")
                    for n, w in enumerate(weights):
                        slot = integer(u % sets * tile + r * width + n)
                        x.store(acc, slot, k.fma(value, w, k.load(acc, slot)))

        block.loop("k", 0, h, unroll, iteration)
        for n in range(tile):
            value = reduce(k.add, (k.load(acc, integer(i * tile + n)) for i in range(sets)))
            block.store(sums, ix.add(ix.mul(at, integer(width * lanes)), integer(n * lanes)), value)

    def _dots(self, block: Block, column: Expr, b: Expr, at: Expr, rows: int, sums: Buffer) -> None:
        """`_products` of levels, by bytes: scale * (sum of levels * R - zero * sum of R)."""
        scan, s, lanes, loop = self.scan, self.stage, self.scan.lanes, self.loop
        assert loop.operand is not None
        operand, (totals, scales) = loop.operand, loop.columns
        width, groups = s.width, scan.depth // BYTES_PER_LANE
        tile, vector = rows * width, BYTES_PER_LANE * lanes
        unroll = next(u for u in (8, 4, 2, 1) if (groups % u == 0 and u * tile <= MAX_UNROLLED_MULTIPLY_ADDS) or u == 1)
        sets = min(unroll, -(-MIN_ACCUMULATORS // tile))
        acc = block.alloc("acc", i32, sets * tile, lanes=lanes)
        for n in range(sets * tile):
            block.store(acc, integer(n), k.lit(0, i32, lanes))
        start = block.let(self._operand_row(b), "h")
        first = self.cell.at.index * scan.weights_size + s.base
        line = block.let(k.add(integer(first), k.mul(column, integer(scan.depth * width * lanes))), "w")

        def iteration(x: Block, e: Expr) -> None:
            e = x.let(k.select(self.odd, k.sub(integer(groups - unroll), e), e), "k")
            for u in range(unroll):
                k_at = ix.add(e, integer(u))
                row = ix.add(line, ix.mul(k_at, integer(width * vector)))
                weights = [_weights(x, loop.weights, ix.add(row, integer(n * vector)), lanes) for n in range(width)]
                for r in range(rows):
                    place = ix.add(ix.add(start, integer(r * scan.depth)), ix.mul(k_at, integer(BYTES_PER_LANE)))
                    value = _in_all_lanes(x, operand, place, lanes)
                    for n, w in enumerate(weights):
                        slot = integer(u % sets * tile + r * width + n)
                        x.store(acc, slot, _dot(value, w, k.load(acc, slot)))

        block.loop("k", 0, groups, unroll, iteration)
        zero = block.let(k.splat(k.cast(self.zero, i32), lanes), "zero")
        scale = block.let(k.splat(self.scale, lanes), "scale")
        terms = k.add(integer(first // scan.depth), k.mul(column, integer(width * lanes)))
        for n in range(tile):
            value = reduce(k.add, (k.load(acc, integer(i * tile + n)) for i in range(sets)))
            column_at = ix.add(terms, integer(n % width * lanes))
            exact = k.sub(value, k.mul(zero, k.load(totals, column_at, lanes)))
            value = k.mul(k.cast(exact, scan.dtype), k.mul(scale, k.load(scales, column_at, lanes)))
            block.store(sums, ix.add(ix.mul(at, integer(width * lanes)), integer(n * lanes)), value)

    def _finish(self, block: Block, column: Expr, b: Expr, products: Buffer, r: Expr, v: int) -> None:
        """The cell for one row and one vector of columns."""
        scan, s, lanes, cell = self.scan, self.stage, self.scan.lanes, self.cell
        j = block.fresh("j")
        block.stmts.append(k.Let(j, k.add(k.mul(column, integer(s.vectors * lanes)), integer(v * lanes))))
        mask: Expr | None = None
        if scan.hidden % (s.vectors * lanes):
            mask = block.let(k.binary("lt", k.ramp(j, lanes), integer(scan.hidden)), "live")
        columns = k.ramp(j, lanes) if lanes > 1 else j
        start = ix.mul(r, integer(s.width * lanes))
        sums = [
            block.let(k.load(products, ix.add(start, integer((g * s.vectors + v) * lanes)), lanes), "s")
            for g in range(s.gates)
        ]
        em = self._emitter(block, j, sums)
        if self.number < len(cell.stages) - 1:
            dots, operand = self.loop.fold_buffers[self.number]
            row = ix.add(ix.mul(dim_expr(scan.batch), integer(cell.at.index)), b)
            base = ix.mul(row, integer(s.gates * scan.hidden))
            for g, value in enumerate(sums):
                store_at(block, dots, ix.add(ix.add(base, integer(g * scan.hidden)), columns), value, mask)
            value = em.value(block, cell.stages[self.number + 1].operand, (b, columns), mask)
            store_at(block, operand, self._state(b, columns), value, mask)
            return
        values = [block.let(em.value(block, n, (b, columns), mask), "y") for n in cell.results]
        y, *states = values
        lay = scan.outs[0]
        place = (self._time(block), integer(cell.at.index), b, columns)
        target = scan.operands.outs[0]
        store_at(block, target, ix.linear(place, lay.strides, lay.offset), k.cast(y, target.dtype), mask)
        state_at = self._state(b, columns)
        store_at(block, self.loop.outputs, ix.add(self._slot(block, self.i), state_at), states[0], mask)
        for buffer, value in zip(self.loop.state_buffers, states[1:], strict=True):
            store_at(block, buffer, state_at, value, mask)

        def final(x: Block) -> None:
            for n, value in enumerate(states):
                buffer, lay = scan.operands.outs[1 + n], scan.outs[1 + n]
                at = ix.linear((integer(cell.at.index), b, columns), lay.strides, lay.offset)
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
            return sums[gate_offset(index[1], j) // scan.hidden]

        leaves = dict(loop.leaves)
        leaves[cell.row] = Leaf(row, pinned=True)
        before = self._slot(block, k.add(self.i, integer(1)))
        leaves[cell.states[0]] = state(loop.outputs, before)
        for n, buffer in zip(cell.states[1:], loop.state_buffers, strict=True):
            leaves[n] = state(buffer, ZERO)
        for s, (dots, _) in zip(cell.stages[: self.number], loop.fold_buffers, strict=False):
            leaves[s.node] = self._earlier(s, dots)
        leaves[self.stage.node] = Leaf(product, home=block, pinned=True)
        em = Emitter(leaves)
        if cell.valid is not None:
            lengths = scan.lengths()

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


def _weights(block: Block, buffer: Buffer, place: Expr, lanes: int) -> tuple[Expr, ...]:
    """BYTES_PER_LANE neighbours in each lane: a vector of them, or for a single lane one number each."""
    if lanes > 1:
        return (block.let(k.load(buffer, place, BYTES_PER_LANE * lanes), "w"),)
    return tuple(block.let(k.cast(k.load(buffer, ix.add(place, integer(i))), i32), "w") for i in range(BYTES_PER_LANE))


def _in_all_lanes(block: Block, buffer: Buffer, place: Expr, lanes: int) -> tuple[Expr, ...]:
    """BYTES_PER_LANE neighbours, the same in all lanes, as `_weights` has them."""
    if lanes == 1:
        return _weights(block, buffer, place, lanes)
    word = k.bitcast(k.load(buffer, place, BYTES_PER_LANE), u32)
    return (block.let(k.bitcast(k.splat(word, lanes), u8), "x"),)


def _dot(values: tuple[Expr, ...], weights: tuple[Expr, ...], acc: Expr) -> Expr:
    if len(values) == 1:
        return k.dot(values[0], weights[0], acc)
    return reduce(lambda total, pair: k.add(total, k.mul(*pair)), zip(values, weights, strict=True), acc)


__all__ = ["Loop"]
