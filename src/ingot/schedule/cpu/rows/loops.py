"""The loops of a row group: reductions over one set of dimensions and the pointwise work around them.

    softmax:  for row: m = max(x); s = sum(e = exp(x - m)); out = e / s
    mean of NHWC over H, W:  for 128 channels at once: for h: for w: acc += x

Reductions whose operands wait for other reductions run as later passes over the row. Where the innermost dimension is
reduced, vectors run along it and are folded at the end of the pass; where it is kept, a vector holds that many rows,
and several of them, side by side, are visited together.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial

from ingot.ir import kernel as k
from ingot.ir.dims import DimLike, ceildiv, estimate, product
from ingot.ir.kernel import Buffer, Expr, Kernel, Lit, integer
from ingot.ir.layout import Layout
from ingot.ir.node import Graph, Node, topological
from ingot.ir.types import DType, boolean
from ingot.ops import ArgReduce
from ingot.ops.core.base import identity_of
from ingot.schedule import index as ix
from ingot.schedule.block import Block
from ingot.schedule.buffers import Operands, body_dims, symbol_params
from ingot.schedule.cpu.caches import AHEAD, comes_from_memory, leaves_caches
from ingot.schedule.cpu.chunks import CHUNK, LONG, STREAMED, Line, vector_loop
from ingot.schedule.cpu.machine import Machine
from ingot.schedule.cpu.pointwise.lower import lanes_for
from ingot.schedule.cpu.reducers import Reducer, reduce_into
from ingot.schedule.cpu.rows.columns import dense_rows, in_columns, read_columns
from ingot.schedule.cpu.rows.passes import UNROLL, RowPasses, Visit
from ingot.schedule.cpu.rows.short_rows import LINE, fold_rows, lines_ahead, width_of
from ingot.schedule.cpu.transpose import fold_lanes
from ingot.schedule.emit import Index, Leaf, load_at, reshape_index, store_at
from ingot.schedule.folds import accumulator, combining
from ingot.schedule.index import ZERO, dim_expr
from ingot.schedule.lowered import Lowered, Step
from ingot.schedule.row_box import Rows, reduction, reductions_of

SHORT = 16  # vectors of a row up to which folding the lanes of one counts
TOGETHER = 16  # bytes of a column that are read together where the folds of columns lie in a cache
NEXT = 512  # bytes along a line that are asked for ahead there
WIDE = 8  # vectors of neighbouring rows that are read together where the reduced dimension is an outer one


def columns_near(body: Graph, rows: Rows, machine: Machine) -> int | None:
    """How many columns to fold in the first-level cache, so that lines from memory are read from end to end; None where
    lines are short, or passes that read them again."""
    found, lanes = reductions_of(body), lanes_for(body, machine)
    if rows.horizontal or lanes == 1 or not comes_from_memory(body, machine):
        return None
    if any(isinstance(n.op, ArgReduce) or boolean in (n.dtype, n.inputs[0].dtype) for n in found):
        return None
    # so many operations for each element that registers do better
    slow = any(reduction(n).kind in ("max", "min") and accumulator(d := n.inputs[0].dtype) != d for n in found)
    waiting = any(n in found for r in found for n in topological([r.inputs[0]]))
    extent = estimate(rows.shape[rows.axis])
    line = extent * max((n.dtype.nbytes for n in body.inputs if n.shape == rows.shape), default=4)
    if slow or waiting or line < 4 * NEXT or any(n.shape == rows.shape for n in body.outputs):
        return None
    most = machine.l1 // 2 // sum(accumulator(n.inputs[0].dtype).nbytes for n in found)
    return -(-extent // -(-extent // most) // lanes) * lanes


class RowLoops(RowPasses):
    """One kernel for a row group."""

    def __init__(self, body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...], rows: Rows, machine: Machine):
        self.ins, self.outs, self.operands = ins, outs, Operands.of(body)
        super().__init__(body, self.operands.emitter(body, ins), rows, machine, caches=True)
        extent = rows.shape[rows.axis]
        several = -(-estimate(extent) // self.lanes)
        self.across = 1 if rows.horizontal or self.lanes == 1 else self._vectors_across(several)
        if isinstance(extent, int):
            self.across = min(self.across, max(several, 1))
        # the vectors of the last turn, where those of the others do not go into the extent
        self.last = several % self.across if isinstance(extent, int) else 0
        self.columns = 1 if rows.horizontal else self.lanes * self.across
        near = columns_near(body, rows, machine)
        self.near = near is not None
        if near is not None:
            self.columns, self.last = near, 0
        self.stream = leaves_caches(body, machine)
        self.lines: dict[int, Buffer] = {}  # results of rows whose passes are done in turn

    def _vectors_across(self, several: int) -> int:
        """How many of `several` neighbouring vectors of rows are visited together: the lines that one visit reads lie
        side by side, those of the next one anywhere."""
        # arg reductions keep a position beside each value
        args = any(isinstance(n.op, ArgReduce) for n in self.found)
        most = WIDE // 2 if args and self.machine.registers < 4 * WIDE else WIDE
        if not self.reads_only(self.found) or any(map(self._is_full, self.body.outputs)):
            outer = product(self.rows.shape[d] for d in self.rows.kept if d != self.rows.axis)
            most = min(most, max(2, estimate(outer) * several // (4 * self.machine.threads)))
        even = max(n for n in range(1, most + 1) if several % n == 0)
        # a last turn with fewer vectors is code of its own
        return even if 2 * even > most else most

    def lower(self) -> Lowered:
        rows, chunk = self.rows, k.var("chunk")
        top = Block()
        count = product(rows.shape[d] for d in rows.kept if d != rows.axis)
        run = max(1, (STREAMED if self.stream else CHUNK) // max(self._elements(), 1))
        blocks = self._blocks()
        if isinstance(count, int) and isinstance(blocks, int):
            run = max(1, min(run, count * blocks // (4 * self.machine.threads)))
        total = count * blocks
        together = self._together() if rows.horizontal else None
        if together is not None:
            run = -(-run // self.lanes) * self.lanes

        def visit(block: Block, at: Expr, across: int) -> None:
            # values that are bound in one branch are none of another's
            self.em, self.scratch = self.operands.emitter(self.body, self.ins), 0
            if self.near:
                self._columns_near(block, at)
                return
            self.visits, far = self._visits(block, at, across), self._ahead()
            self.next = self._visits(block, k.add(at, integer(far)), across) if far else ()
            self._row(block)

        def one(block: Block, at: Expr) -> None:
            if not self.last:
                return visit(block, at, self.across)
            number = k.binary("rem", at, dim_expr(blocks))
            whole = k.binary("lt", number, dim_expr(blocks - 1))
            return block.when(whole, lambda b: visit(b, at, self.across), lambda b: visit(b, at, self.last))

        if run == 1:
            one(top, chunk)
        else:
            first = top.let(k.mul(chunk, integer(run)), "first")
            last = top.let(k.binary("min", k.add(first, integer(run)), dim_expr(total)), "last")
            if together is not None:
                span = k.mul(k.binary("div", k.sub(last, first), integer(self.lanes)), integer(self.lanes))
                begin, first = first, top.let(k.add(first, span), "rest")
                top.loop("r", begin, first, self.lanes, together)
            top.loop("r", first, last, 1, one)
        shapes = (d for n in self.body.inputs for d in n.shape)
        dims = symbol_params(*body_dims(self.body, (*self.ins, *self.outs)), *shapes)
        chunks = dim_expr(ceildiv(total, run))
        kernel = Kernel("rows", self.operands.params, dims, chunk, chunks, top.body, self.most)
        return Lowered((Step(kernel, self.operands.args),))

    def _blocks(self) -> DimLike:
        """Turns along the dimension of the vectors."""
        return 1 if self.rows.horizontal else ceildiv(self.rows.shape[self.rows.axis], self.columns)

    def _visits(self, block: Block, turn: Expr, across: int) -> tuple[Visit, ...]:
        """The row of a turn, or its vectors of rows side by side: `across` of them."""
        rows, lanes = self.rows, self.lanes
        number, index = self._place(block, turn)
        if rows.horizontal:
            return (Visit(tuple(index[d] for d in rows.kept)),)
        extent, found = rows.shape[rows.axis], list[Visit]()
        for i in range(across):
            low = block.let(ix.add(k.mul(number, integer(self.columns)), integer(lanes * i)), "lo")
            block.multiples[getattr(low, "name", "")] = lanes
            at, mask = k.ramp(low, lanes), None
            # where the extent is known, the vectors of all turns are as many as there are, and the last may be cut off
            ends = i == across - 1 and (across == self.last or not self.last)
            if not isinstance(extent, int) or (extent % lanes and ends):
                mask = block.let(k.binary("lt", at, dim_expr(extent)), "live")
            found.append(Visit(tuple(at if d == rows.axis else index[d] for d in rows.kept), mask))
        return tuple(found)

    def _place(self, block: Block, turn: Expr) -> tuple[Expr, dict[int, Expr]]:
        """The number of a turn's columns, and its coordinates in the other kept dimensions."""
        rows, number = self.rows, ZERO
        if not rows.horizontal:
            blocks = dim_expr(self._blocks())
            number = block.let(k.binary("rem", turn, blocks), "vb")
            turn = block.let(k.binary("div", turn, blocks), "row")
        outer = [d for d in rows.kept if d != rows.axis]
        coordinates = ix.delinearize(turn, tuple(rows.shape[d] for d in outer), block.multiples) if outer else ()
        return number, {d: block.let(e, "i") for d, e in zip(outer, coordinates, strict=True)}

    def _columns_near(self, block: Block, turn: Expr) -> None:
        """Columns whose folds lie in the first-level cache, several lines at a time."""
        rows, lanes = self.rows, self.lanes
        together = max(1, TOGETHER // max((n.dtype.nbytes for n in self._streams()), default=4))
        number, outer = self._place(block, turn)
        low = block.let(k.mul(number, integer(self.columns)), "lo")
        high = block.let(k.binary("min", k.add(low, integer(self.columns)), dim_expr(rows.shape[rows.axis])), "hi")
        folds = {n: self.room(block, accumulator(n.inputs[0].dtype), self.columns) for n in self.found}

        def each(b: Block, body: Callable[[Block, Index, Expr, Expr | None], None]) -> None:
            def vector(c: Block, at: Expr, mask: Expr | None) -> None:
                row = tuple(at if d == rows.axis else outer[d] for d in rows.kept)
                body(c, row, k.ramp(ix.sub(ix.first_lane(at), low), at.lanes), mask)

            vector_loop(b, low, high, lanes, self.machine, vector, multiple=lanes)

        def start(b: Block, row: Index, place: Expr, mask: Expr | None) -> None:
            for n, buffer in folds.items():
                zero = Lit(buffer.dtype, place.lanes, identity_of(reduction(n).kind, buffer.dtype))
                store_at(b, buffer, place, zero, mask)

        def lines(b: Block, at: tuple[Expr, ...], count: int) -> None:
            def fold(c: Block, row: Index, place: Expr, mask: Expr | None) -> None:
                for stream, i in itertools.product(self._streams() if mask is None else (), range(count)):
                    far = integer(NEXT // stream.dtype.nbytes)
                    ahead = tuple(ix.add(e, far) if d == rows.axis else e for d, e in zip(rows.kept, row, strict=True))
                    self._prefetch(c, stream, (*at[:-1], ix.add(at[-1], integer(i))), ahead)
                for n, buffer in folds.items():
                    values, old = list[Expr](), load_at(c, buffer, place, mask)
                    for i in range(count):
                        index = self.full_index((*at[:-1], ix.add(at[-1], integer(i))), row)
                        value = self.em.value(c, n.inputs[0], index, mask)
                        values.append(k.splat(k.cast(value, buffer.dtype), place.lanes))
                    fn = combining(reduction(n).kind, buffer.dtype)
                    store_at(c, buffer, place, reduce_into(c, fn, old, values), mask)

            each(b, fold)

        def nest(b: Block, at: tuple[Expr, ...]) -> None:
            extent = rows.shape[rows.reduced[len(at)]]
            if len(at) + 1 < len(rows.reduced):
                b.loop("k", 0, extent, 1, lambda c, e: nest(c, (*at, e)))
                return
            whole = b.let(k.mul(k.binary("div", dim_expr(extent), integer(together)), integer(together)), "m")
            b.loop("k", 0, whole, together, lambda c, e: lines(c, (*at, e), together))
            b.loop("k", whole, extent, 1, lambda c, e: lines(c, (*at, e), 1))

        def finish(b: Block, row: Index, place: Expr, mask: Expr | None) -> None:
            self.em, self.visits = self.operands.emitter(self.body, self.ins), (Visit(row, mask),)
            for n, buffer in folds.items():
                result = b.let(k.cast(load_at(b, buffer, place, mask), n.dtype), "red")
                self.em.bind(n, self.row_leaf(b, n, [result]))
            for i, root in enumerate(self.body.outputs):
                self._store_row(b, i, root)

        each(block, start)
        nest(block, ())
        each(block, finish)

    def _together(self) -> Callable[[Block, Expr], None] | None:
        """A way to do as many short rows at once as a vector has lanes, from a given one on."""
        body, rows, lanes = self.body, self.rows, self.lanes
        width = width_of(body, rows.shape, rows.reduced, lanes, self.machine)
        if width is not None:
            return lambda b, at: self._rows_folded(b, at, width)
        size = in_columns(body, self.ins, self.outs, rows.shape, rows.reduced, lanes)
        if size is not None:
            return lambda b, at: self._rows_in_columns(b, at, size)
        return self._rows_in_turn if self._in_turn() else None

    def _in_turn(self) -> bool:
        """Whether rows are so short that folding the lanes of one vector after the other counts. Whole vectors of rows
        from memory come sooner row by row."""
        lanes, size = self.lanes, product(self.rows.shape[d] for d in self.rows.reduced)
        if not isinstance(size, int) or not lanes < size <= SHORT * lanes or lanes < 4 or lanes & (lanes - 1):
            return False
        if any(isinstance(n.op, ArgReduce) or boolean in (n.dtype, n.inputs[0].dtype) for n in self.found):
            return False
        near = not comes_from_memory(self.body, self.machine) or (self.stream and size % lanes != 0)
        return near and estimate(product(self.rows.kept_shape)) >= 4 * lanes * self.machine.threads

    def _rows_in_turn(self, block: Block, first: Expr) -> None:
        """Each pass for as many rows as a vector has lanes, whose lanes are folded all at once."""
        lanes, far = self.lanes, self._ahead()
        self.turns, self.scratch = lanes, 0
        results: dict[Node, Buffer] = {}

        def each(body: Callable[[Block], None], cached: dict[Node, Buffer]) -> None:
            def row(b: Block, number: Expr) -> None:
                self.em, self.turn, at = self.operands.emitter(self.body, self.ins), number, k.add(first, number)
                self.visits = self._visits(b, at, 1)
                self.next = self._visits(b, k.add(at, integer(lanes)), 1) if far else ()
                for n, buffer in results.items():
                    self.em.bind(n, self.row_leaf(b, n, [b.let(k.load(buffer, number), "red")]))
                self.bind_cached(b, cached)
                body(b)

            block.loop("q", 0, lanes, 1, row)

        levels = self.levels()
        for level in levels:
            parts = [self.room(block, accumulator(n.inputs[0].dtype), lanes * lanes) for n in level]

            def fold(b: Block, level: list[Node] = level, parts: list[Buffer] = parts) -> None:
                for buffer, own in zip(parts, self.fold_level(b, level, level is not levels[0]), strict=True):
                    b.store(buffer, k.mul(self.turn, integer(lanes)), own.vector(b, lanes))

            known = dict(self.cached)
            self.cached |= self.caches_of(block, level)
            each(fold, known)
            for n, buffer in zip(level, parts, strict=True):
                vectors = [block.let(k.load(buffer, integer(i * lanes), lanes), "o") for i in range(lanes)]
                folded = fold_lanes(block, vectors, combining(reduction(n).kind, buffer.dtype))
                results[n] = self.room(block, n.dtype, lanes)
                block.store(results[n], ZERO, k.cast(folded, n.dtype))
        # side by side in scratch, so that memory is written in whole vectors
        size = self._elements()
        for i, n in enumerate(self.body.outputs) if self.stream and size % lanes else ():
            if self._is_full(n) and self.outs[i].is_contiguous and n.dtype != boolean:
                self.lines[i] = self.room(block, n.dtype, size * lanes)
        each(self._results, self.cached)
        for i, buffer in self.lines.items():

            def copy(b: Block, at: Expr, i: int = i, buffer: Buffer = buffer) -> None:
                flat = k.ramp(k.add(k.mul(first, integer(size)), at), lanes)
                store_at(b, self.operands.outs[i], flat, k.load(buffer, at, lanes), stream=True)

            block.loop("j", 0, size * lanes, lanes, copy)
        self.turns, self.turn, self.cached, self.lines = 1, ZERO, {}, {}

    def _rows_in_columns(self, block: Block, first: Expr, size: int) -> None:
        """Each element of the rows in a vector of its own."""
        rows, lanes = self.rows, self.lanes
        self.em = self.operands.emitter(self.body, self.ins)
        self.visits = (Visit(ix.split(k.ramp(first, lanes), rows.kept_shape)),)
        at = block.let(k.mul(first, integer(size)), "at")
        for n, buffer in zip(self.body.inputs, self.operands.ins, strict=True):
            if n.shape == rows.shape:

                def load(place: int, buffer: Buffer = buffer) -> Expr:
                    return load_at(block, buffer, k.ramp(k.add(at, integer(place)), lanes))

                columns = read_columns(block, load, size, lanes)
                self.em.bind(n, Leaf(partial(self._column, columns), home=block))

        def everywhere(node: Node) -> list[Expr]:
            (row,) = (visit.row for visit in self.visits)
            places = (tuple(integer(j) if rows.shape[d] != 1 else ZERO for d in rows.reduced) for j in range(size))
            return [k.splat(self.em.value(block, node, self.full_index(place, row)), lanes) for place in places]

        for level in self.levels():
            for n in level:
                fold = Reducer.of(n, block, lanes, 1)
                for j, value in enumerate(everywhere(n.inputs[0])):
                    fold.add(block, value, integer(j), None, 0)
                self.em.bind(n, self.row_leaf(block, n, [block.let(k.cast(fold.apart(block)[0], n.dtype), "red")]))
        for i, root in enumerate(self.body.outputs):
            if root.shape != rows.shape:
                self._store_row(block, i, root)
                continue
            for place, vector in enumerate(dense_rows(block, everywhere(root))):
                flat = k.ramp(k.add(at, integer(place * lanes)), lanes)
                store_at(block, self.operands.outs[i], flat, vector, stream=self.stream)

    def _column(self, columns: Sequence[Expr], block: Block, index: Index, mask: Expr | None) -> Expr:
        place = index[self.rows.axis]
        assert isinstance(place, Lit)
        return columns[int(place.value)]

    def _rows_folded(self, block: Block, first: Expr, width: int) -> None:
        """Reductions alone, a vector for each row or several."""
        rows, lanes = self.rows, self.lanes
        (axis,) = (d for d in rows.reduced if rows.shape[d] != 1)
        size = estimate(rows.shape[axis])
        found: dict[Node, Expr] = {}
        for stream in self._streams():
            for row, position in lines_ahead(size, stream.dtype.nbytes, lanes):
                at = tuple(integer(position) if d == axis else ZERO for d in rows.reduced)
                self._prefetch(block, stream, at, ix.split(ix.add(first, integer(row)), rows.kept_shape))
        for n in self.found:
            dtype = accumulator(n.inputs[0].dtype)

            def value(b: Block, row: Expr, where: Expr, mask: Expr | None, n: Node = n, dtype: DType = dtype) -> Expr:
                at = tuple(where if d == axis else ZERO for d in rows.reduced)
                index = self.full_index(at, ix.split(row, rows.kept_shape))
                return k.splat(k.cast(self.em.value(b, n.inputs[0], index, mask), dtype), where.lanes)

            found[n] = k.cast(fold_rows(block, value, n, first, size, width, lanes), n.dtype)
        self.visits = (Visit(ix.split(k.ramp(first, lanes), rows.kept_shape)),)
        for n, result in found.items():
            self.em.bind(n, self.row_leaf(block, n, [block.let(result, "red")]))
        for i, root in enumerate(self.body.outputs):
            self._store_row(block, i, root)

    def _row(self, block: Block) -> None:
        """All passes over one row (or over vectors of rows side by side)."""
        self.fold(block)
        self._results(block)

    def _results(self, block: Block) -> None:
        """What is stored of a row whose reductions are there."""
        full = [i for i, r in enumerate(self.body.outputs) if r.shape == self.rows.shape and self._is_full(r)]
        for i, root in enumerate(self.body.outputs):
            if i not in full:
                self._store_row(block, i, root)
        if full:
            # what has just been stored in other pieces is slow to read
            long = 3 * LONG if self.scratch else LONG
            line = Line(self.outs[full[0]], self.rows.axis, long) if self.stream and not self.lines else None
            several = self._results_at_once(full)

            def store(b: Block, index: Index, mask: Expr | None, _: int) -> None:
                self._store(b, full, index, mask)

            self.over_row(block, store, several, again=True, line=line, at_once=several > 1)

    def _results_at_once(self, full: Sequence[int]) -> int:
        """How many vectors of a row's results to compute as one: of those of 16 bits two fill a register."""
        wide = self.lines or max(self.body.outputs[i].dtype.nbytes for i in full) > 2
        short = estimate(self.rows.shape[self.rows.axis]) < 2 * UNROLL * self.lanes
        return 1 if wide or short or self.lanes == 1 or not self.rows.horizontal else UNROLL

    def _ahead(self) -> int:
        """How many turns on to ask for operands in the later passes over a row: these read it from the caches while the
        memory would rest. 0 where nothing comes from memory or a row would not stay."""
        nbytes = max((self._elements() * n.dtype.nbytes for n in self._streams()), default=0)
        passes = len(self.levels()) + any(map(self._is_full, self.body.outputs))
        again = comes_from_memory(self.body, self.machine) and passes > 1
        return -(-AHEAD // nbytes) if again and 0 < nbytes <= self.machine.l2 // 4 else 0

    def _streams(self) -> list[Node]:
        """The operands that every row reads elements of its own from, side by side."""
        pairs = zip(self.body.inputs, self.ins, strict=True)
        return [n for n, lay in pairs if n.shape == self.rows.shape and lay.strides[self.rows.axis] == 1]

    def _prefetch(self, block: Block, stream: Node, at: tuple[Expr, ...], row: Index) -> None:
        """Ask for what is at `at` of another row."""
        buffer, lay = next(
            (b, lay) for n, b, lay in zip(self.body.inputs, self.operands.ins, self.ins, strict=True) if n is stream
        )
        flat = ix.linear(self.full_index(at, row), lay.strides, lay.offset)
        block.stmts.append(k.Prefetch(buffer, ix.first_lane(flat)))

    def ask_for(self, block: Block, at: tuple[Expr, ...], i: int) -> None:
        """Ask for what is at `at` in visit `i` of the turn that comes next."""
        lanes = max(e.lanes for e in at) if self.rows.horizontal else 1
        for stream in self._streams():
            for far in range(0, lanes, LINE // stream.dtype.nbytes):
                ahead = (ix.add(e, integer(far)) if e.lanes > 1 else e for e in at)
                self._prefetch(block, stream, tuple(ahead), self.next[i].row)

    def ask_below(self, block: Block, at: tuple[Expr, ...]) -> None:
        """Where vectors run across rows that come from memory: ask for the same columns of a row further on. Each row
        is at a place of its own, which processors do not follow by themselves."""
        if not comes_from_memory(self.body, self.machine) or self.rows.horizontal or not at:
            return
        for stream in self._streams():
            nbytes = stream.dtype.nbytes
            below = (*at[:-1], k.add(at[-1], integer(-(-AHEAD // (self.columns * nbytes)))))
            for visit, i in itertools.product(self.visits, range(0, self.lanes, LINE // nbytes)):
                pairs = zip(self.rows.kept, visit.row, strict=True)
                row = tuple(ix.add(e, integer(i)) if d == self.rows.axis else e for d, e in pairs)
                self._prefetch(block, stream, below, row)

    def _is_full(self, root: Node) -> bool:
        return not (root.shape == self.rows.kept_shape and self.rows.kept_shape != self.rows.shape)

    def _store(self, block: Block, roots: list[int], index: Index, mask: Expr | None) -> None:
        for i in roots:
            value, own = self.em.value(block, self.body.outputs[i], index, mask), self.lines.get(i)
            if own is not None:
                at = ix.linear(tuple(index[d] for d in self.rows.reduced), self._dense.strides)
                store_at(block, own, ix.add(ix.mul(self.turn, integer(self._elements())), at), value, mask)
                continue
            lay = self.outs[i]
            flat = ix.linear(index, lay.strides, lay.offset)
            store_at(block, self.operands.outs[i], flat, value, mask, stream=self.stream)

    @property
    def _dense(self) -> Layout:
        return Layout.contiguous(tuple(self.rows.shape[d] for d in self.rows.reduced))

    def _store_row(self, block: Block, i: int, root: Node) -> None:
        lay = self.outs[i]
        for visit in self.visits:
            index = reshape_index(block, root.shape, self.rows.kept_shape, visit.row)
            value = self.em.value(block, root, index, visit.mask)
            flat = ix.linear(index, lay.strides, lay.offset)
            store_at(block, self.operands.outs[i], flat, value, visit.mask, stream=self.stream)


__all__ = ["WIDE", "RowLoops", "columns_near"]
