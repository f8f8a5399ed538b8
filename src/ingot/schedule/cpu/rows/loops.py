"""The loops of a row group: reductions over one set of dimensions, fused with pointwise ops (see `passes.py`).

softmax:  for row: m = max(x); s = sum(e = exp(x - m)); out = e / s
mean of NHWC over H, W:  for each 128 channels: for h: for w: acc += x
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
from ingot.schedule.cpu.caches import PREFETCH_BYTES, operands_exceed_caches, results_exceed_caches
from ingot.schedule.cpu.chunks import (
    CHUNK_ELEMENTS,
    MIN_VECTORS_TO_ALIGN,
    STREAMED_CHUNK_ELEMENTS,
    AlignedLine,
    vector_loop,
)
from ingot.schedule.cpu.machine import Machine
from ingot.schedule.cpu.pointwise.lower import lanes_for
from ingot.schedule.cpu.reducers import Reducer, reduce_into
from ingot.schedule.cpu.rows.columns import column_rows_size, read_columns, store_order
from ingot.schedule.cpu.rows.passes import ACCUMULATORS, RowPasses, Visit
from ingot.schedule.cpu.rows.short_rows import CACHE_LINE_BYTES, fold_rows, lanes_per_row, prefetch_positions
from ingot.schedule.cpu.transpose import fold_lanes
from ingot.schedule.emit import Index, Leaf, load_at, reshape_index, store_at
from ingot.schedule.folds import accumulator, combining_op
from ingot.schedule.index import ZERO, dim_expr
from ingot.schedule.lowered import Lowered, Step
from ingot.schedule.row_box import Rows, reduction, reductions_of

MAX_SHORT_ROW_VECTORS = 16  # of a row for which reducing the lanes of a vector takes a relevant part of the time
COLUMN_BYTES_PER_STEP = 16  # read together if the accumulators of columns are in a cache
LINE_PREFETCH_BYTES = 512  # prefetch distance along a row, in that case
MAX_VECTORS_ACROSS = 8  # of adjacent rows that are read together if an outer dimension is reduced


def cached_column_count(body: Graph, rows: Rows, machine: Machine) -> int | None:
    """The number of columns to reduce with accumulators in the first-level cache, so that rows of memory are read
    sequentially. None if the rows are short, or if later passes read them again."""
    reductions, lanes = reductions_of(body), lanes_for(body, machine)
    if rows.horizontal or lanes == 1 or not operands_exceed_caches(body, machine):
        return None
    if any(isinstance(n.op, ArgReduce) or boolean in (n.dtype, n.inputs[0].dtype) for n in reductions):
        return None
    # many operations per element: accumulators in registers are faster
    is_slow = any(reduction(n).kind in ("max", "min") and accumulator(d := n.inputs[0].dtype) != d for n in reductions)
    has_dependent = any(n in reductions for r in reductions for n in topological([r.inputs[0]]))
    extent = estimate(rows.shape[rows.axis])
    line_bytes = extent * max((n.dtype.nbytes for n in body.inputs if n.shape == rows.shape), default=4)
    if (
        is_slow
        or has_dependent
        or line_bytes < 4 * LINE_PREFETCH_BYTES
        or any(n.shape == rows.shape for n in body.outputs)
    ):
        return None
    max_columns = machine.l1 // 2 // sum(accumulator(n.inputs[0].dtype).nbytes for n in reductions)
    return -(-extent // -(-extent // max_columns) // lanes) * lanes


class RowLoops(RowPasses):
    """One kernel for a row group."""

    def __init__(self, body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...], rows: Rows, machine: Machine):
        self.ins, self.outs, self.operands = ins, outs, Operands.of(body)
        super().__init__(body, self.operands.emitter(body, ins), rows, machine, caches=True)
        extent = rows.shape[rows.axis]
        vector_count = -(-estimate(extent) // self.lanes)
        self.vectors_across = 1 if rows.horizontal or self.lanes == 1 else self._vectors_across(vector_count)
        if isinstance(extent, int):
            self.vectors_across = min(self.vectors_across, max(vector_count, 1))
        # vectors of the last block of columns, if it has fewer than the others
        self.last_across = vector_count % self.vectors_across if isinstance(extent, int) else 0
        self.columns = 1 if rows.horizontal else self.lanes * self.vectors_across
        cached_columns = cached_column_count(body, rows, machine)
        self.has_cached_columns = cached_columns is not None
        if cached_columns is not None:
            self.columns, self.last_across = cached_columns, 0
        self.stream = results_exceed_caches(body, machine)
        self.row_buffers: dict[int, Buffer] = {}  # results of rows, while each pass runs over several

    def _vectors_across(self, vector_count: int) -> int:
        """The number of adjacent vectors of rows, of `vector_count`, to visit together: they read contiguous memory."""
        # arg reductions need registers for positions, too
        has_arg_reduction = any(isinstance(n.op, ArgReduce) for n in self.reductions)
        max_vectors = (
            MAX_VECTORS_ACROSS // 2
            if has_arg_reduction and self.machine.registers < 4 * MAX_VECTORS_ACROSS
            else MAX_VECTORS_ACROSS
        )
        if not self.has_plain_operands(self.reductions) or any(map(self._is_full, self.body.outputs)):
            outer = product(self.rows.shape[d] for d in self.rows.kept_dims if d != self.rows.axis)
            max_vectors = min(max_vectors, max(2, estimate(outer) * vector_count // (4 * self.machine.threads)))
        divisor = max(n for n in range(1, max_vectors + 1) if vector_count % n == 0)
        # a last block with fewer vectors is duplicate code: avoid it if a divisor is large enough
        return divisor if 2 * divisor > max_vectors else max_vectors

    def lower(self) -> Lowered:
        rows, chunk = self.rows, k.var("chunk")
        top = Block()
        count = product(rows.shape[d] for d in rows.kept_dims if d != rows.axis)
        rows_per_chunk = max(
            1, (STREAMED_CHUNK_ELEMENTS if self.stream else CHUNK_ELEMENTS) // max(self._elements(), 1)
        )
        blocks = self._blocks()
        if isinstance(count, int) and isinstance(blocks, int):
            rows_per_chunk = max(1, min(rows_per_chunk, count * blocks // (4 * self.machine.threads)))
        total = count * blocks
        row_group = self._row_group_loop() if rows.horizontal else None
        if row_group is not None:
            rows_per_chunk = -(-rows_per_chunk // self.lanes) * self.lanes

        def visit(block: Block, at: Expr, row_count: int) -> None:
            # a new emitter: values bound in one branch are not visible in another
            self.em, self.scratch = self.operands.emitter(self.body, self.ins), 0
            if self.has_cached_columns:
                self._fold_cached_columns(block, at)
                return
            self.visits, prefetch_steps = self._visits(block, at, row_count), self._prefetch_distance()
            self.next_visits = (
                self._visits(block, k.add(at, integer(prefetch_steps)), row_count) if prefetch_steps else ()
            )
            self._row(block)

        def visit_step(block: Block, at: Expr) -> None:
            if not self.last_across:
                return visit(block, at, self.vectors_across)
            number = k.binary("rem", at, dim_expr(blocks))
            is_full = k.binary("lt", number, dim_expr(blocks - 1))
            full, last = self.vectors_across, self.last_across
            return block.when(is_full, lambda b: visit(b, at, full), lambda b: visit(b, at, last))

        if rows_per_chunk == 1:
            visit_step(top, chunk)
        else:
            first = top.let(k.mul(chunk, integer(rows_per_chunk)), "first")
            last = top.let(k.binary("min", k.add(first, integer(rows_per_chunk)), dim_expr(total)), "last")
            if row_group is not None:
                span = k.mul(k.binary("div", k.sub(last, first), integer(self.lanes)), integer(self.lanes))
                begin, first = first, top.let(k.add(first, span), "rest")
                top.loop("r", begin, first, self.lanes, row_group)
            top.loop("r", first, last, 1, visit_step)
        shapes = (d for n in self.body.inputs for d in n.shape)
        dims = symbol_params(*body_dims(self.body, (*self.ins, *self.outs)), *shapes)
        chunks = dim_expr(ceildiv(total, rows_per_chunk))
        kernel = Kernel("rows", self.operands.params, dims, chunk, chunks, top.body, self.max_scratch)
        return Lowered((Step(kernel, self.operands.args),))

    def _blocks(self) -> DimLike:
        """The number of blocks of columns along the vectorized dimension; 1 if it is reduced."""
        return 1 if self.rows.horizontal else ceildiv(self.rows.shape[self.rows.axis], self.columns)

    def _visits(self, block: Block, step: Expr, row_count: int) -> tuple[Visit, ...]:
        """The row of a step, or its `vectors_across` vectors of adjacent rows."""
        rows, lanes = self.rows, self.lanes
        number, index = self._coordinates(block, step)
        if rows.horizontal:
            return (Visit(tuple(index[d] for d in rows.kept_dims)),)
        extent, visits = rows.shape[rows.axis], list[Visit]()
        for i in range(row_count):
            low = block.let(ix.add(k.mul(number, integer(self.columns)), integer(lanes * i)), "lo")
            block.multiples[getattr(low, "name", "")] = lanes
            at, mask = k.ramp(low, lanes), None
            # if the extent is static, only the last vector can be partial
            is_partial = i == row_count - 1 and (row_count == self.last_across or not self.last_across)
            if not isinstance(extent, int) or (extent % lanes and is_partial):
                mask = block.let(k.binary("lt", at, dim_expr(extent)), "live")
            visits.append(Visit(tuple(at if d == rows.axis else index[d] for d in rows.kept_dims), mask))
        return tuple(visits)

    def _coordinates(self, block: Block, step: Expr) -> tuple[Expr, dict[int, Expr]]:
        """The block of columns of a step, and its coordinates in the other dimensions that are not reduced."""
        rows, number = self.rows, ZERO
        if not rows.horizontal:
            blocks = dim_expr(self._blocks())
            number = block.let(k.binary("rem", step, blocks), "vb")
            step = block.let(k.binary("div", step, blocks), "row")
        outer = [d for d in rows.kept_dims if d != rows.axis]
        coordinates = ix.delinearize(step, tuple(rows.shape[d] for d in outer), block.multiples) if outer else ()
        return number, {d: block.let(e, "i") for d, e in zip(outer, coordinates, strict=True)}

    def _fold_cached_columns(self, block: Block, step: Expr) -> None:
        """Reduce columns with accumulators in the first-level cache, several elements of a column at a time."""
        rows, lanes = self.rows, self.lanes
        rows_per_step = max(
            1, COLUMN_BYTES_PER_STEP // max((n.dtype.nbytes for n in self._streamed_operands()), default=4)
        )
        number, outer = self._coordinates(block, step)
        low = block.let(k.mul(number, integer(self.columns)), "lo")
        high = block.let(k.binary("min", k.add(low, integer(self.columns)), dim_expr(rows.shape[rows.axis])), "hi")
        folds = {n: self.alloc_scratch(block, accumulator(n.inputs[0].dtype), self.columns) for n in self.reductions}

        def over_columns(b: Block, body: Callable[[Block, Index, Expr, Expr | None], None]) -> None:
            def vector(c: Block, at: Expr, mask: Expr | None) -> None:
                row = tuple(at if d == rows.axis else outer[d] for d in rows.kept_dims)
                body(c, row, k.ramp(ix.sub(ix.first_lane(at), low), at.lanes), mask)

            vector_loop(b, low, high, lanes, self.machine, vector, multiple=lanes)

        def start(b: Block, row: Index, place: Expr, mask: Expr | None) -> None:
            for n, buffer in folds.items():
                zero = Lit(buffer.dtype, place.lanes, identity_of(reduction(n).kind, buffer.dtype))
                store_at(b, buffer, place, zero, mask)

        def fold_rows_at(b: Block, at: tuple[Expr, ...], count: int) -> None:
            def fold(c: Block, row: Index, place: Expr, mask: Expr | None) -> None:
                for stream, i in itertools.product(self._streamed_operands() if mask is None else (), range(count)):
                    far = integer(LINE_PREFETCH_BYTES // stream.dtype.nbytes)
                    ahead = tuple(
                        ix.add(e, far) if d == rows.axis else e for d, e in zip(rows.kept_dims, row, strict=True)
                    )
                    self._prefetch(c, stream, (*at[:-1], ix.add(at[-1], integer(i))), ahead)
                for n, buffer in folds.items():
                    values, old = list[Expr](), load_at(c, buffer, place, mask)
                    for i in range(count):
                        index = self.full_index((*at[:-1], ix.add(at[-1], integer(i))), row)
                        value = self.em.value(c, n.inputs[0], index, mask)
                        values.append(k.splat(k.cast(value, buffer.dtype), place.lanes))
                    fn = combining_op(reduction(n).kind, buffer.dtype)
                    store_at(c, buffer, place, reduce_into(c, fn, old, values), mask)

            over_columns(b, fold)

        def nest(b: Block, at: tuple[Expr, ...]) -> None:
            extent = rows.shape[rows.reduced[len(at)]]
            if len(at) + 1 < len(rows.reduced):
                b.loop("k", 0, extent, 1, lambda c, e: nest(c, (*at, e)))
                return
            end = b.let(k.mul(k.binary("div", dim_expr(extent), integer(rows_per_step)), integer(rows_per_step)), "m")
            b.loop("k", 0, end, rows_per_step, lambda c, e: fold_rows_at(c, (*at, e), rows_per_step))
            b.loop("k", end, extent, 1, lambda c, e: fold_rows_at(c, (*at, e), 1))

        def finish(b: Block, row: Index, place: Expr, mask: Expr | None) -> None:
            self.em, self.visits = self.operands.emitter(self.body, self.ins), (Visit(row, mask),)
            for n, buffer in folds.items():
                result = b.let(k.cast(load_at(b, buffer, place, mask), n.dtype), "red")
                self.em.bind(n, self.row_leaf(b, n, [result]))
            for i, root in enumerate(self.body.outputs):
                self._store_row(b, i, root)

        over_columns(block, start)
        nest(block, ())
        over_columns(block, finish)

    def _row_group_loop(self) -> Callable[[Block, Expr], None] | None:
        """The function that emits as many short rows at a time as a vector has lanes, or None for other rows."""
        body, rows, lanes = self.body, self.rows, self.lanes
        width = lanes_per_row(body, rows.shape, rows.reduced, lanes, self.machine)
        if width is not None:
            return lambda b, at: self._rows_folded(b, at, width)
        size = column_rows_size(body, self.ins, self.outs, rows, lanes)
        if size is not None:
            return lambda b, at: self._rows_in_columns(b, at, size)
        return self._passes_over_rows if self._folds_rows_together() else None

    def _folds_rows_together(self) -> bool:
        """Whether rows are so short that it pays to reduce the lanes of several at once. Aligned rows from memory are
        faster one at a time."""
        lanes, size = self.lanes, product(self.rows.shape[d] for d in self.rows.reduced)
        if (
            not isinstance(size, int)
            or not lanes < size <= MAX_SHORT_ROW_VECTORS * lanes
            or lanes < 4
            or lanes & (lanes - 1)
        ):
            return False
        if any(isinstance(n.op, ArgReduce) or boolean in (n.dtype, n.inputs[0].dtype) for n in self.reductions):
            return False
        is_cheap_to_read = not operands_exceed_caches(self.body, self.machine) or (self.stream and size % lanes != 0)
        return is_cheap_to_read and estimate(product(self.rows.kept_shape)) >= 4 * lanes * self.machine.threads

    def _passes_over_rows(self, block: Block, first: Expr) -> None:
        """Run each pass over as many rows as a vector has lanes, and reduce all their lanes at once."""
        lanes, prefetches = self.lanes, self._prefetch_distance()
        self.rows_per_pass, self.scratch = lanes, 0
        results: dict[Node, Buffer] = {}

        def over_rows(body: Callable[[Block], None], cached: dict[Node, Buffer]) -> None:
            def row(b: Block, number: Expr) -> None:
                self.em, self.row_number, at = self.operands.emitter(self.body, self.ins), number, k.add(first, number)
                self.visits = self._visits(b, at, 1)
                self.next_visits = self._visits(b, k.add(at, integer(lanes)), 1) if prefetches else ()
                for n, buffer in results.items():
                    self.em.bind(n, self.row_leaf(b, n, [b.let(k.load(buffer, number), "red")]))
                self.bind_cached(b, cached)
                body(b)

            block.loop("q", 0, lanes, 1, row)

        levels = self.levels()
        for level in levels:
            parts = [self.alloc_scratch(block, accumulator(n.inputs[0].dtype), lanes * lanes) for n in level]

            def fold(b: Block, level: list[Node] = level, parts: list[Buffer] = parts) -> None:
                for buffer, reducer in zip(parts, self.fold_level(b, level, level is not levels[0]), strict=True):
                    b.store(buffer, k.mul(self.row_number, integer(lanes)), reducer.vector(b, lanes))

            earlier_caches = dict(self.cached)
            self.cached |= self.alloc_caches(block, level)
            over_rows(fold, earlier_caches)
            for n, buffer in zip(level, parts, strict=True):
                vectors = [block.let(k.load(buffer, integer(i * lanes), lanes), "o") for i in range(lanes)]
                folded = fold_lanes(block, vectors, combining_op(reduction(n).kind, buffer.dtype))
                results[n] = self.alloc_scratch(block, n.dtype, lanes)
                block.store(results[n], ZERO, k.cast(folded, n.dtype))
        # contiguous in scratch, so that memory is written in aligned vectors
        size = self._elements()
        for i, n in enumerate(self.body.outputs) if self.stream and size % lanes else ():
            if self._is_full(n) and self.outs[i].is_contiguous and n.dtype != boolean:
                self.row_buffers[i] = self.alloc_scratch(block, n.dtype, size * lanes)
        over_rows(self._store_results, self.cached)
        for i, buffer in self.row_buffers.items():

            def copy(b: Block, at: Expr, i: int = i, buffer: Buffer = buffer) -> None:
                flat = k.ramp(k.add(k.mul(first, integer(size)), at), lanes)
                store_at(b, self.operands.outs[i], flat, k.load(buffer, at, lanes), stream=True)

            block.loop("j", 0, size * lanes, lanes, copy)
        self.rows_per_pass, self.row_number, self.cached, self.row_buffers = 1, ZERO, {}, {}

    def _rows_in_columns(self, block: Block, first: Expr, size: int) -> None:
        """Compute short rows in columns: element j of all rows in vector j."""
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

        def elements_of(node: Node) -> list[Expr]:
            (row,) = (visit.row for visit in self.visits)
            places = (tuple(integer(j) if rows.shape[d] != 1 else ZERO for d in rows.reduced) for j in range(size))
            return [k.splat(self.em.value(block, node, self.full_index(place, row)), lanes) for place in places]

        for level in self.levels():
            for n in level:
                fold = Reducer.of(n, block, lanes, 1)
                for j, value in enumerate(elements_of(n.inputs[0])):
                    fold.add(block, value, integer(j), None, 0)
                self.em.bind(
                    n, self.row_leaf(block, n, [block.let(k.cast(fold.slot_results(block)[0], n.dtype), "red")])
                )
        for i, root in enumerate(self.body.outputs):
            if root.shape != rows.shape:
                self._store_row(block, i, root)
                continue
            for place, vector in enumerate(store_order(block, elements_of(root))):
                flat = k.ramp(k.add(at, integer(place * lanes)), lanes)
                store_at(block, self.operands.outs[i], flat, vector, stream=self.stream)

    def _column(self, columns: Sequence[Expr], block: Block, index: Index, mask: Expr | None) -> Expr:
        place = index[self.rows.axis]
        assert isinstance(place, Lit)
        return columns[int(place.value)]

    def _rows_folded(self, block: Block, first: Expr, width: int) -> None:
        """Reduce rows that fit in a vector, if there is nothing else to store."""
        rows, lanes = self.rows, self.lanes
        (axis,) = (d for d in rows.reduced if rows.shape[d] != 1)
        size = estimate(rows.shape[axis])
        results: dict[Node, Expr] = {}
        for stream in self._streamed_operands():
            for row, position in prefetch_positions(size, stream.dtype.nbytes, lanes):
                at = tuple(integer(position) if d == axis else ZERO for d in rows.reduced)
                self._prefetch(block, stream, at, ix.split(ix.add(first, integer(row)), rows.kept_shape))
        for n in self.reductions:
            dtype = accumulator(n.inputs[0].dtype)

            def value(b: Block, row: Expr, where: Expr, mask: Expr | None, n: Node = n, dtype: DType = dtype) -> Expr:
                at = tuple(where if d == axis else ZERO for d in rows.reduced)
                index = self.full_index(at, ix.split(row, rows.kept_shape))
                return k.splat(k.cast(self.em.value(b, n.inputs[0], index, mask), dtype), where.lanes)

            results[n] = k.cast(fold_rows(block, value, n, first, size, width, lanes), n.dtype)
        self.visits = (Visit(ix.split(k.ramp(first, lanes), rows.kept_shape)),)
        for n, result in results.items():
            self.em.bind(n, self.row_leaf(block, n, [block.let(result, "red")]))
        for i, root in enumerate(self.body.outputs):
            self._store_row(block, i, root)

    def _row(self, block: Block) -> None:
        """Emit all passes over one row, or over vectors of adjacent rows."""
        self.fold(block)
        self._store_results(block)

    def _store_results(self, block: Block) -> None:
        """Store the results of a row whose reductions are known."""
        full = [i for i, r in enumerate(self.body.outputs) if r.shape == self.rows.shape and self._is_full(r)]
        for i, root in enumerate(self.body.outputs):
            if i not in full:
                self._store_row(block, i, root)
        if full:
            # unaligned loads of what the passes have just stored in scratch are slow
            min_vectors = 3 * MIN_VECTORS_TO_ALIGN if self.scratch else MIN_VECTORS_TO_ALIGN
            line = (
                AlignedLine(self.outs[full[0]], self.rows.axis, min_vectors)
                if self.stream and not self.row_buffers
                else None
            )
            vectors = self._vectors_per_result(full)

            def store(b: Block, index: Index, mask: Expr | None, _: int) -> None:
                self._store(b, full, index, mask)

            self.over_row(block, store, vectors, is_reread=True, line=line, as_one=vectors > 1)

    def _vectors_per_result(self, full: Sequence[int]) -> int:
        """The number of vectors of a row's results to compute as one: two of 16-bit elements fill a register."""
        is_wide = self.row_buffers or max(self.body.outputs[i].dtype.nbytes for i in full) > 2
        is_short = estimate(self.rows.shape[self.rows.axis]) < 2 * ACCUMULATORS * self.lanes
        return 1 if is_wide or is_short or self.lanes == 1 or not self.rows.horizontal else ACCUMULATORS

    def _prefetch_distance(self) -> int:
        """The distance in steps at which later passes over a row prefetch operands: they read the row itself from the
        caches while memory would be idle. 0 if operands do not come from memory or a row does not fit in the cache."""
        nbytes = max((self._elements() * n.dtype.nbytes for n in self._streamed_operands()), default=0)
        passes = len(self.levels()) + any(map(self._is_full, self.body.outputs))
        is_reread = operands_exceed_caches(self.body, self.machine) and passes > 1
        return -(-PREFETCH_BYTES // nbytes) if is_reread and 0 < nbytes <= self.machine.l2 // 4 else 0

    def _streamed_operands(self) -> list[Node]:
        """The operands of the full box that are contiguous along the vectorized dimension."""
        pairs = zip(self.body.inputs, self.ins, strict=True)
        return [n for n, lay in pairs if n.shape == self.rows.shape and lay.strides[self.rows.axis] == 1]

    def _prefetch(self, block: Block, stream: Node, at: tuple[Expr, ...], row: Index) -> None:
        """Prefetch the element at `at` of another row."""
        buffer, lay = next(
            (b, lay) for n, b, lay in zip(self.body.inputs, self.operands.ins, self.ins, strict=True) if n is stream
        )
        flat = ix.linear(self.full_index(at, row), lay.strides, lay.offset)
        block.stmts.append(k.Prefetch(buffer, ix.first_lane(flat)))

    def prefetch_next(self, block: Block, at: tuple[Expr, ...], i: int) -> None:
        """Prefetch the element at `at` of visit `i` of the next visits."""
        lanes = max(e.lanes for e in at) if self.rows.horizontal else 1
        for stream in self._streamed_operands():
            for far in range(0, lanes, CACHE_LINE_BYTES // stream.dtype.nbytes):
                ahead = (ix.add(e, integer(far)) if e.lanes > 1 else e for e in at)
                self._prefetch(block, stream, tuple(ahead), self.next_visits[i].row)

    def prefetch_below(self, block: Block, at: tuple[Expr, ...]) -> None:
        """If vectors run across rows from memory: prefetch the same columns at later indices of the innermost reduced
        dimension, which hardware prefetchers do not recognize."""
        if not operands_exceed_caches(self.body, self.machine) or self.rows.horizontal or not at:
            return
        for stream in self._streamed_operands():
            nbytes = stream.dtype.nbytes
            index_below = (*at[:-1], k.add(at[-1], integer(-(-PREFETCH_BYTES // (self.columns * nbytes)))))
            for visit, i in itertools.product(self.visits, range(0, self.lanes, CACHE_LINE_BYTES // nbytes)):
                pairs = zip(self.rows.kept_dims, visit.row, strict=True)
                row = tuple(ix.add(e, integer(i)) if d == self.rows.axis else e for d, e in pairs)
                self._prefetch(block, stream, index_below, row)

    def _is_full(self, root: Node) -> bool:
        return not (root.shape == self.rows.kept_shape and self.rows.kept_shape != self.rows.shape)

    def _store(self, block: Block, roots: list[int], index: Index, mask: Expr | None) -> None:
        for i in roots:
            value, row_buffer = self.em.value(block, self.body.outputs[i], index, mask), self.row_buffers.get(i)
            if row_buffer is not None:
                at = ix.linear(tuple(index[d] for d in self.rows.reduced), self._row_layout.strides)
                store_at(block, row_buffer, ix.add(ix.mul(self.row_number, integer(self._elements())), at), value, mask)
                continue
            flat = ix.linear(index, self.outs[i].strides, self.outs[i].offset)
            store_at(block, self.operands.outs[i], flat, value, mask, stream=self.stream)

    @property
    def _row_layout(self) -> Layout:
        return Layout.contiguous(tuple(self.rows.shape[d] for d in self.rows.reduced))

    def _store_row(self, block: Block, i: int, root: Node) -> None:
        for visit in self.visits:
            index = reshape_index(block, root.shape, self.rows.kept_shape, visit.row)
            value = self.em.value(block, root, index, visit.mask)
            flat = ix.linear(index, self.outs[i].strides, self.outs[i].offset)
            store_at(block, self.operands.outs[i], flat, value, visit.mask, stream=self.stream)


__all__ = ["MAX_VECTORS_ACROSS", "RowLoops", "cached_column_count"]
