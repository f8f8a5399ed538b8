"""Products with block-sparse constant weights (`ops.Densify`).

    out[row, column] = sum over the blocks of the column of A[row, block's k] * value

Vectors run along the rows, so A is first transposed: blocks of rows as [k][rows]. A block of weights is then `height`
scalars at one k, multiplied by vectors of A that are loaded once (Elsen et al., "Fast Sparse ConvNets", 2020):

    for panel of columns, for group of `height` columns:       one chunk: a block of rows, a run of panels
        acc[height][vectors] = 0
        for block of the group:
            acc[j][v] += splat(values[block, j]) * turned[columns[block], v]
    transpose the panel in scratch, and write it row by row    the epilogue

In a dense product, zero times infinity or NaN is NaN. A block of rows that contains any of them is therefore multiplied
by all weights of a group, zeros included, expanded in scratch, so that results equal those of the dense product up to
the order of the sums. Products of bytes, which have neither, are in `sparse_bytes.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import ClassVar

from ingot.ir import kernel as k
from ingot.ir.dims import DimLike, ceildiv, product
from ingot.ir.kernel import Buffer, Expr, integer
from ingot.ir.types import DType, f32, i64, static_shape
from ingot.schedule.axes import Axis
from ingot.schedule.block import Block
from ingot.schedule.cpu.blocked_sums import MAX_TERMS
from ingot.schedule.cpu.contraction.compressed.sparse_plan import plan_sparse
from ingot.schedule.cpu.contraction.group import ContractionGroup, Param
from ingot.schedule.cpu.contraction.operands import write_scalars
from ingot.schedule.cpu.contraction.plan import CACHE_LINE_BYTES
from ingot.schedule.cpu.transpose import transpose_block
from ingot.schedule.dimension_numbers import contiguous_reduction_last, flat_rows, join_rows, rows_in_memory_order
from ingot.schedule.index import ZERO, Index, add, delinearize, dim_expr, linear, mul, split
from ingot.schedule.lowered import Arg, Lowered, Step

Column = Callable[[Block, Expr], Expr]
Place = tuple[Buffer, Expr]


class SparseProducts:
    """A group's kernels: one that transposes A, unless each chunk does that itself, and one for the products.

    a_dtype: the type of A. summed: the type of the sums.
    """

    a_dtype: ClassVar[DType] = f32
    summed: ClassVar[DType] = f32

    def __init__(self, g: ContractionGroup) -> None:
        self.g, self.masks = g, g.machine.masks
        self.lanes, self.rows_per_vector = g.machine.lanes(self.summed), g.machine.lanes(self.a_dtype)
        weights = g.anchor.inputs[1].inputs
        self.blocks, self.height = static_shape(weights[0].shape)[:2]
        self.groups = static_shape(weights[2].shape)[0] - 1
        self.values, self.columns, self.starts = (g.operands.ins[g.body.inputs.index(x)] for x in weights)
        loops = flat_rows(rows_in_memory_order(contiguous_reduction_last(g.loops)))
        self.row_axes, self.reduce = loops.rows, loops.reduce
        self.rows = product(x.extent for x in loops.rows)
        self.loops = join_rows(loops, len(loops.rows), loops.rows[-1].a)
        self.n, self.k = static_shape((loops.cols[-1].extent, product(x.extent for x in loops.reduce)))
        self.plan = plan_sparse(self.rows, self.k, self.n, self.blocks, self.height, g.machine, self.a_dtype)
        self.wide = self.plan.vectors * self.lanes  # rows of a block of rows
        self.row_blocks = ceildiv(self.rows, self.wide)

    def lower(self) -> Lowered:
        if self.plan.local:
            return Lowered((self._products(()),))
        temps = [
            (Buffer(name, dtype, writable=True), Arg("temp", i))
            for i, (name, dtype, _) in enumerate(self._transpose_buffers())
        ]
        sizes = tuple(self.row_blocks * (size * dtype.nbytes) for _, dtype, size in self._transpose_buffers())
        return Lowered((self._transposing_step(temps), self._products(temps)), sizes)

    def _transpose_buffers(self) -> tuple[tuple[str, DType, int], ...]:
        """(name, type, elements) of the buffers that transposing fills for a block of rows; the first holds A."""
        return ("turned", f32, self.wide * self.k), ("odd", f32, self.wide)

    # Transposing A

    def _transposing_step(self, temps: Sequence[Param]) -> Step:
        """The step that transposes A, with a chunk for each vector of rows."""
        chunk, top = k.var("chunk"), Block()
        vectors, g = self.wide // self.rows_per_vector, self.g
        block, vector = (top.let(e, "c") for e in delinearize(chunk, (self.row_blocks, vectors), top.multiples))
        at = mul(vector, integer(self.rows_per_vector))
        places = [
            (b, mul(block, integer(size)))
            for (b, _), (_, _, size) in zip(temps, self._transpose_buffers(), strict=True)
        ]
        self._transpose_rows(top, chunk, [(b, top.let(add(start, at), "t")) for b, start in places])
        params = [(g.a.buffer, Arg("in", g.a_input)), *temps]
        return g.step("turned", g.contraction(self.loops), params, chunk, dim_expr(self.row_blocks * vectors), top, 0)

    def _row_of(self, lane: int) -> int:
        """The row of A in this lane of a transposed vector."""
        return lane

    def _transpose_rows(self, block: Block, vector: Expr, outputs: Sequence[Place]) -> None:
        """outputs[0][at + k * rows] = a vector of rows of A, for each k. Rows past the last are copies of it."""
        (transposed, at), lanes, last = outputs[0], self.rows_per_vector, dim_expr(self.rows - 1)
        first = block.let(mul(vector, integer(lanes)), "r")
        strides, extents = tuple(x.a for x in self.row_axes), tuple(x.extent for x in self.row_axes)
        bases = [
            block.let(
                linear(
                    split(block.let(k.binary("min", add(first, integer(self._row_of(i))), last), "r"), extents),
                    strides,
                    self.g.a.offset,
                ),
                "a",
            )
            for i in range(lanes)
        ]
        note, finish = self._finiteness_checks(block, outputs)

        def address_of(kk: Expr) -> Expr:
            return add(at, mul(kk, integer(self.wide)))

        def store_columns(b: Block, columns: list[Expr], kk: Expr, step: DimLike) -> None:
            for j, column in enumerate(columns):
                b.store(transposed, address_of(add(kk, mul(integer(j), dim_expr(step)))), column)
                note(b, column, j)

        def vector_of_k(b: Block, a: Expr, kk: Expr, step: DimLike, count: int) -> None:
            mask = None if count == lanes else b.let(k.binary("lt", k.ramp(ZERO, lanes), integer(count)), "mask")
            rows = [b.let(k.load(self.g.a.buffer, add(base, a), lanes, mask), "x") for base in bases]
            store_columns(b, transpose_block(b, rows)[:count], kk, step)

        def scalar_k(b: Block, a: Expr, kk: Expr) -> None:
            for i, base in enumerate(bases):
                b.store(transposed, add(address_of(kk), integer(i)), k.load(self.g.a.buffer, add(base, a)))
            note(b, b.let(k.load(transposed, address_of(kk), lanes), "x"), 0)

        def nest(b: Block, axes: tuple[Axis, ...], a: Expr, kk: Expr) -> None:
            x, inner = axes[0], axes[1:]

            def offsets_at(c: Block, i: Expr) -> tuple[Expr, Expr]:
                return c.let(add(a, mul(i, dim_expr(x.a))), "a"), c.let(add(kk, mul(i, dim_expr(x.b))), "k")

            if inner:
                b.loop("k", 0, x.extent, 1, lambda c, i: nest(c, inner, *offsets_at(c, i)))
                return
            (extent,) = static_shape((x.extent,))
            vector_end = extent // lanes * lanes if x.a == 1 else 0
            b.loop("k", 0, vector_end, lanes, lambda c, i: vector_of_k(c, *offsets_at(c, i), x.b, lanes))
            if x.a == 1 and self.masks and vector_end < extent:
                vector_of_k(b, *offsets_at(b, integer(vector_end)), x.b, extent - vector_end)
            else:
                b.loop("k", vector_end, extent, 1, lambda c, i: scalar_k(c, *offsets_at(c, i)))

        nest(block, self.reduce, ZERO, ZERO)
        finish()

    def _finiteness_checks(
        self, block: Block, outputs: Sequence[Place]
    ) -> tuple[Callable[[Block, Expr, int], None], Callable[[], None]]:
        """(called with the vector of each k, called at the end): they set outputs[1] to NaN for rows with elements that
        are not finite, else to 0."""
        (odd, at), lanes = outputs[1], self.lanes
        sums = block.alloc("odd", f32, 2, lanes=lanes)
        for i in range(2):
            block.store(sums, integer(i), k.lit(0.0, f32, lanes))

        def note(b: Block, column: Expr, j: int) -> None:
            total = k.load(sums, integer(j % 2))
            b.store(sums, integer(j % 2), k.fma(column, k.lit(0.0, f32, lanes), total))

        def finish() -> None:
            block.store(odd, at, k.add(*(k.load(sums, integer(i)) for i in range(2))))

        return note, finish

    # Products

    def _products(self, temps: Sequence[Param]) -> Step:
        g, plan = self.g, self.plan
        chunk, top = k.var("chunk"), Block()
        panels = -(-self.n // plan.columns)
        extents = self.row_blocks, -(-panels // plan.panels)
        rows, panel_run = (top.let(e, "c") for e in delinearize(chunk, extents, top.multiples))
        tile = plan.columns * self.wide
        sums = (("sums", self.summed, tile), ("lines", self.summed, tile), *self._scratch())
        scratch_specs = (*sums, *(() if temps else self._transpose_buffers()))
        scratch_offsets = [0]
        for _, dtype, size in scratch_specs:
            scratch_offsets.append(scratch_offsets[-1] + -(-size * dtype.nbytes // CACHE_LINE_BYTES) * CACHE_LINE_BYTES)
        scratch_buffers = [
            top.alloc(name, dtype, size, scratch=at)
            for (name, dtype, size), at in zip(scratch_specs, scratch_offsets, strict=False)
        ]
        (self.sums, self.lines), self.scratch = scratch_buffers[:2], scratch_buffers[2 : len(sums)]
        if temps:
            outputs = [
                (buffer, top.let(mul(rows, integer(size)), "t"))
                for (buffer, _), (_, _, size) in zip(temps, self._transpose_buffers(), strict=True)
            ]
        else:
            outputs = [(buffer, ZERO) for buffer in scratch_buffers[len(sums) :]]
            vectors, lanes = self.wide // self.rows_per_vector, integer(self.rows_per_vector)

            def transpose_rows(b: Block, v: Expr) -> None:
                self._transpose_rows(
                    b, add(mul(rows, integer(vectors)), v), [(x, add(at, mul(v, lanes))) for x, at in outputs]
                )

            top.loop("v", 0, vectors, 1, transpose_rows)
        self.transposed, self.at = outputs[0]
        self._begin(top, outputs)
        low = top.let(mul(panel_run, integer(plan.panels)), "p")
        high = top.let(k.binary("min", add(low, integer(plan.panels)), integer(panels)), "p")

        def panel(b: Block, p: Expr) -> None:
            groups = plan.columns // self.height
            b.loop("g", 0, groups, 1, lambda c, i: self._group(c, add(mul(p, integer(groups)), i), i))
            self._write(b, rows, p)

        top.loop("p", low, high, 1, panel)
        params = [*g.params((self.values, Arg("in", g.b_input))), *temps]
        return g.step(
            "sparse", g.contraction(self.loops), params, chunk, dim_expr(product(extents)), top, scratch_offsets[-1]
        )

    def _scratch(self) -> tuple[tuple[str, DType, int], ...]:
        """(name, type, elements) of further scratch buffers of a chunk."""
        return (("group", f32, self.k * self.height),)

    def _begin(self, top: Block, outputs: Sequence[Place]) -> None:
        """Emit what all groups of a block of rows share: whether the rows are finite."""
        odd, at = outputs[1]
        vectors = [k.load(odd, add(at, integer(v * self.lanes)), self.lanes) for v in range(self.plan.vectors)]
        total = top.let(k.reduce("add", reduce(k.add, vectors)), "odd")
        self.finite = top.let(k.binary("eq", total, k.lit(0.0, f32)), "finite")

    def _span(self, block: Block, group: Expr, group_in_panel: Expr) -> tuple[Expr, Expr, Expr]:
        """(first block of a group of columns, end of its blocks, offset of its sums). group_in_panel: its number in its
        panel."""
        ends = [k.load(self.starts, k.binary("min", add(group, integer(i)), integer(self.groups))) for i in (0, 1)]
        begin, end = (block.let(k.cast(e, i64), "q") for e in ends)
        return begin, end, block.let(mul(group_in_panel, integer(self.height * self.wide)), "o")

    def _group(self, block: Block, group: Expr, group_in_panel: Expr) -> None:
        """Emit the sums of a group of columns."""
        begin, end, out = self._span(block, group, group_in_panel)
        dense_group = self.scratch[0]

        def column(b: Block, q: Expr) -> Expr:
            return b.let(k.cast(k.load(self.columns, q), i64), "k")

        def sum_dense(b: Block) -> None:
            zero = k.lit(0.0, f32)
            b.loop("i", 0, self.k * self.height, 1, lambda c, i: c.store(dense_group, i, zero))

            def scatter_block(c: Block, q: Expr) -> None:
                at, value = mul(column(c, q), integer(self.height)), mul(q, integer(self.height))
                for j in range(self.height):
                    c.store(dense_group, add(at, integer(j)), k.load(self.values, add(value, integer(j))))

            b.loop("q", begin, end, 1, scatter_block)
            self._sum(b, dense_group, ZERO, integer(self.k), lambda c, q: q, out)

        block.when(self.finite, lambda b: self._sum(b, self.values, begin, end, column, out), sum_dense)

    def _sum(self, block: Block, values: Buffer, begin: Expr, end: Expr, column: Column, out: Expr) -> None:
        """sums[out + row of the block] = the sum over the blocks begin ... end - 1 of values times columns of A."""
        for low in range(0, self.height, self.plan.rows_at_once):
            self._rows_of(block, values, (begin, end), column, out, low)

    def _rows_of(
        self, block: Block, values: Buffer, span: tuple[Expr, Expr], column: Column, out: Expr, low: int
    ) -> None:
        """Emit the sums of as many rows of the blocks, from row `low` on, as registers hold."""
        rows, vectors, lanes = self.plan.rows_at_once, self.plan.vectors, self.lanes
        zero, is_long = k.lit(0.0, f32, lanes), self.k > MAX_TERMS
        acc = block.alloc("acc", f32, rows * vectors, lanes=lanes)
        sum_offsets = [
            add(out, integer((low + j) * self.wide + v * lanes)) for j in range(rows) for v in range(vectors)
        ]

        def products(b: Block, q: Expr) -> None:
            start = b.let(add(self.at, mul(column(b, q), integer(self.wide))), "a")
            x = [b.let(k.load(self.transposed, add(start, integer(v * lanes)), lanes), "x") for v in range(vectors)]
            first = b.let(add(mul(q, integer(self.height)), integer(low)), "w")
            for j in range(rows):
                value = b.let(k.splat(k.load(values, add(first, integer(j))), lanes), "s")
                for v in range(vectors):
                    i = integer(j * vectors + v)
                    b.store(acc, i, k.fma(value, x[v], k.load(acc, i)))

        def part(b: Block, first: Expr, last: Expr) -> None:
            for i in range(len(sum_offsets)):
                b.store(acc, integer(i), zero)
            b.loop("q", first, last, 1, products)
            for i, at in enumerate(sum_offsets):
                sums = k.load(acc, integer(i))
                b.store(self.sums, at, k.add(k.load(self.sums, at, lanes), sums) if is_long else sums)

        if not is_long:
            part(block, *span)
            return
        for at in sum_offsets:  # long sums are split: see blocked_sums.py
            block.store(self.sums, at, zero)
        begin, end = span
        block.loop(
            "q",
            begin,
            end,
            MAX_TERMS,
            lambda b, q: part(b, q, b.let(k.binary("min", add(q, integer(MAX_TERMS)), end), "q")),
        )

    def _write(self, block: Block, rows: Expr, panel: Expr) -> None:
        """Pass the sums of a panel to the epilogue, row by row."""
        plan, lanes, n = self.plan, self.lanes, self.n
        first = block.let(mul(panel, integer(plan.columns)), "n")
        start = block.let(mul(rows, integer(self.wide)), "r")
        if isinstance(first, k.Var):
            block.multiples[first.name] = plan.columns

        def transpose_tile(b: Block, v: Expr, c: Expr) -> None:
            first_row, first_column = mul(v, integer(lanes)), mul(c, integer(lanes))
            at = b.let(add(first_row, mul(c, integer(lanes * self.wide))), "s")
            lines = [b.let(k.load(self.sums, add(at, integer(i * self.wide)), lanes), "x") for i in range(lanes)]
            at = b.let(add(mul(first_row, integer(plan.columns)), first_column), "t")
            for i, line in enumerate(transpose_block(b, lines)):
                b.store(self.lines, add(at, integer(i * plan.columns)), line)

        parts = plan.columns // lanes
        block.loop("v", 0, plan.vectors, 1, lambda b, v: b.loop("c", 0, parts, 1, lambda x, c: transpose_tile(x, v, c)))
        epilogue = self.g.epilogue(self.loops)

        def write(b: Block, place: Index, value: Expr, mask: Expr | None) -> None:
            epilogue(b, place, value, mask)

        def vector(b: Block, r: Expr, c: Expr) -> None:
            value = b.let(k.load(self.lines, add(mul(r, integer(plan.columns)), c), lanes), "y")
            at, place = b.let(add(first, c), "n"), add(start, r)
            if isinstance(at, k.Var):
                b.multiples[at.name] = lanes

            def write_full(x: Block) -> None:
                write(x, (place, k.ramp(at, lanes)), value, None)

            def write_partial(x: Block) -> None:
                if not self.masks:
                    write_scalars(x, (place,), at, value, n, write)
                    return
                mask = x.let(k.binary("lt", k.ramp(at, lanes), integer(n)), "mask")
                write(x, (place, k.ramp(at, lanes)), value, mask)

            if n % lanes == 0:
                write_full(b)
            else:
                b.when(k.binary("le", add(at, integer(lanes)), integer(n)), write_full, write_partial)

        column_end: Expr = integer(plan.columns)
        if n % plan.columns:
            column_end = block.let(k.binary("min", column_end, k.sub(integer(-(-n // lanes) * lanes), first)), "n")

        def row(b: Block, r: Expr) -> None:
            b.loop("c", ZERO, column_end, lanes, lambda x, c: vector(x, r, c))

        remaining_rows = k.sub(dim_expr(self.rows), start)
        end = block.let(k.binary("min", remaining_rows, integer(self.wide)), "rows")
        block.loop("r", ZERO, end, 1, row)


__all__ = ["Place", "SparseProducts"]
