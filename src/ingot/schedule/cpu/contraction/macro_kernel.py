"""The loop nest of a contraction. Matmul, batched matmul, convolution and grouped convolution differ only in strides.

    out[m, n] = sum_k A[m, k] * B[k, n]   ->

    for panel of B's columns in the chunk:               B: [panel][k][48], packed at compile time, or read in place
        for tile of rows in the chunk:
            acc[8][3] = 0                                 24 vector registers
            for k:  b[0..3] = B[panel, k]                 3 vector loads
                    acc[r][c] += splat(A[row + r, k]) * b[c]
            write(row + r, column + c, acc[r][c])         the epilogue

All offsets inside a tile are immediates if the strides are static. Tiles at the edges are exact: the remaining rows get
a lower tile (or tiles of 4, 2 and 1 rows, if the extent is dynamic); the remaining columns get a narrower panel with a
masked last vector.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ingot.ir import kernel as k
from ingot.ir.dims import DimLike, ceildiv, floordiv, mod, product
from ingot.ir.kernel import Expr, Lit
from ingot.ir.types import static_shape
from ingot.schedule.axes import MAX_FEW_ROWS, Contraction
from ingot.schedule.block import Block
from ingot.schedule.cpu.contraction.compressed.block_quantized import BlockQuantizedPanels, Place
from ingot.schedule.cpu.contraction.micro_kernel import MicroKernel, TileRows
from ingot.schedule.cpu.contraction.operands import (
    BlockQuantized,
    ComputedA,
    Index,
    LineEpilogue,
    Operand,
    PrefetchInputs,
    Write,
)
from ingot.schedule.cpu.contraction.pack import Strip, transpose_panel
from ingot.schedule.cpu.contraction.panel_loads import Columns
from ingot.schedule.cpu.contraction.plan import Plan
from ingot.schedule.index import ZERO, add, delinearize, dim_expr, integer, linear, mul

EmitRows = Callable[[Block, Columns, Expr], None]  # (block, panel, offset in A): emits the row tiles of one panel


def emit_macro_kernel(
    top: Block,
    chunk: k.Var,
    c: Contraction,
    plan: Plan,
    a: Operand | ComputedA,
    b: Operand | BlockQuantized,
    write: Write,
    prefetch_inputs: PrefetchInputs | None = None,
    line_epilogue: LineEpilogue | None = None,
) -> Expr:
    """Emit the loop nest of one chunk into `top`. Return the number of chunks.

    write(block, index, acc, mask): the epilogue. index has one expression per batch, row and column axis; the last one
    is a ramp over the lanes of `acc`. mask: the valid lanes; None: all.
    prefetch_inputs(block, index, width): prefetches the epilogue's inputs for `width` columns of one row, while the
    products are computed.
    line_epilogue: called before and after the `write` calls for the rows of each line.
    """
    return MacroKernel(c, plan, a, b, write, prefetch_inputs, line_epilogue).emit(top, chunk)


class MacroKernel(MicroKernel):
    """The loops of a chunk (`emit`), or of a part of the output that the caller's loops select."""

    def __init__(
        self,
        c: Contraction,
        plan: Plan,
        a: Operand | ComputedA,
        b: Operand | BlockQuantized,
        write: Write,
        prefetch_inputs: PrefetchInputs | None = None,
        line_epilogue: LineEpilogue | None = None,
    ) -> None:
        super().__init__(c.dequantized, plan, a, b.buffer, write, prefetch_inputs, line_epilogue)
        self.quantized_panels = BlockQuantizedPanels(c, plan, b) if isinstance(b, BlockQuantized) else None
        self.a, self.b, c = a, b, c.dequantized
        self.full_panel_count = floordiv(self.columns, plan.panel_columns)
        self.panel_count = ceildiv(self.columns, plan.panel_columns)
        self.line_group_extents = (*(x.extent for x in c.rows[:-2]), ceildiv(self.line_axis.extent, plan.lines))
        self.line_group_count = product(self.line_group_extents)
        self.a_offset: Expr = ZERO
        self.transposes_panels = plan.panel_offset >= 0 and self.quantized_panels is None

    def emit(self, top: Block, chunk: k.Var) -> Expr:
        """Emit the loops of a chunk and return the number of chunks.

        A chunk index is (block of batch entries and outer columns, column block, line block, row block), the last
        varying fastest.
        """
        plan, c = self.plan, self.c
        if plan.k_block:
            self.partial_sums = top.alloc("sums", c.acc, plan.partial_sums_bytes // c.acc.nbytes, scratch=0)
        if plan.panel_offset >= 0:
            size = (plan.a_block_offset if plan.a_block_offset >= 0 else plan.scratch_bytes) - plan.panel_offset
            dtype = c.acc if self.quantized_panels is None else c.b
            panel = top.alloc("panel", dtype, size // dtype.nbytes, scratch=plan.panel_offset)
            self.loads = replace(self.loads, buffer=panel)
        line_blocks = ceildiv(self.line_group_count, plan.chunk_line_groups)
        row_blocks = 1 if plan.chunk_rows == self.row_axis.extent else ceildiv(self.row_axis.extent, plan.chunk_rows)
        column_blocks = ceildiv(self.panel_count, plan.chunk_panels)
        entries = (*(x.extent for x in c.batch), *(x.extent for x in c.cols[:-1]))
        entry_blocks = ceildiv(product(entries), plan.chunk_entries)
        extents = (entry_blocks, column_blocks, line_blocks, row_blocks)
        indices = [top.let(e, "c") for e in delinearize(chunk, extents, top.multiples)]
        if product(extents) == 1:
            indices = [ZERO] * len(extents)
        entry_block, column_block, line_block, row_block = indices
        line_groups = self._block_range(top, line_block, plan.chunk_line_groups, self.line_group_count)
        chunk_rows = self._block_range(top, row_block, plan.chunk_rows, self.row_axis.extent)

        def emit_entry(block: Block, e: Expr) -> None:
            index = tuple(block.let(x, "e") for x in delinearize(e, entries, block.multiples))
            self.batch_index, self.outer_column_index = index[: len(c.batch)], index[len(c.batch) :]
            b_offset = self._emit_b_offset(block, self.batch_index, self.outer_column_index)

            def emit_panels(x: Block, rows: tuple[Expr, Expr]) -> None:
                self.a_offset = self._emit_a_offset(x, rows)

                def emit_rows(y: Block, columns: Columns, a_offset: Expr) -> None:
                    self._rows(y, columns, a_offset, line_groups, rows)

                self._panels(x, column_block, b_offset, emit_rows)

            if not plan.a_block_rows:
                emit_panels(block, chunk_rows)
                return
            low, high = chunk_rows
            block.loop("rb", low, high, plan.a_block_rows, lambda x, i: emit_panels(x, self._a_block_range(x, i, high)))

        if plan.chunk_entries == 1:
            emit_entry(top, entry_block)
        else:
            top.loop("e", *self._block_range(top, entry_block, plan.chunk_entries, product(entries)), 1, emit_entry)
        return dim_expr(product(extents))

    def emit_lines(self, block: Block, panel: Expr, lines: tuple[Expr, Expr]) -> None:
        """Emit one column panel of a packed B and a range of lines, counted over all row axes but the last."""
        rows = ZERO, dim_expr(self.row_axis.extent)
        self.a_offset = self._emit_a_offset(block, rows)
        self._panels(block, panel, ZERO, lambda b, columns, a: self._rows(b, columns, a, lines, rows))

    def emit_rows(self, block: Block, rows: tuple[Expr, Expr]) -> None:
        """Emit all columns of a packed B and a range of the only row axis. Only the last rows may be a partial tile."""
        self.a_offset = self._emit_a_offset(block, rows)
        self._panels(block, ZERO, ZERO, lambda b, columns, a: self._rows(b, columns, a, (ZERO, integer(1)), rows))

    def _a_block_range(self, block: Block, low: Expr, end: Expr) -> tuple[Expr, Expr]:
        """The rows of the block of A that starts at `low`."""
        if isinstance(low, k.Var):
            block.multiples[low.name] = self.plan.width
        return low, block.let(k.binary("min", add(low, integer(self.plan.a_block_rows)), end), "rh")

    def _emit_a_offset(self, block: Block, rows: tuple[Expr, Expr]) -> Expr:
        """Return the offset of row 0 of the batch entry in A. It is negative if the buffer holds only the chunk's
        rows, which are computed here."""
        if isinstance(self.a, ComputedA):
            size = (self.plan.scratch_bytes - self.plan.a_block_offset) // self.c.a.nbytes
            self.a_buffer = block.alloc("rows", self.c.a, size, scratch=self.plan.a_block_offset)
            self.a.fill(block, self.batch_index, rows, self.a_buffer)
            return block.let(mul(rows[0], dim_expr(-1 * self.row_axis.a)), "a")
        return block.let(linear(self.batch_index, tuple(x.a for x in self.c.batch), self.a.offset), "a")

    def _block_range(self, top: Block, block: Expr, size: DimLike, extent: DimLike) -> tuple[Expr, Expr]:
        """[block * size, min((block + 1) * size, extent))."""
        if isinstance(block, Lit) or size == extent:
            return ZERO, dim_expr(extent)
        low = top.let(k.mul(block, dim_expr(size)), "lo")
        if isinstance(size, int) and isinstance(low, k.Var):
            top.multiples[low.name] = size
        high = add(low, dim_expr(size))
        if mod(extent, size) != 0:
            high = k.binary("min", high, dim_expr(extent))
        return low, top.let(high, "hi")

    def _emit_b_offset(self, top: Block, batch: Index, outer_columns: Index) -> Expr:
        """Return the offset in B of a batch entry and outer column."""
        c = self.c
        if isinstance(self.b, BlockQuantized):
            return ZERO
        if not c.packed:
            strides_in_place = (*(x.b for x in c.batch), *(x.b for x in c.cols[:-1]))
            return top.let(linear((*batch, *outer_columns), strides_in_place, self.b.offset), "b")
        size = c.padded_k * ceildiv(self.columns, self.plan.lanes) * self.plan.lanes
        strides: list[DimLike] = []
        for x in reversed((*c.batch, *c.cols[:-1])):
            strides.append(size)
            size = size * x.extent
        return top.let(linear((*batch, *outer_columns), tuple(reversed(strides))), "b")

    # Columns

    def _panels(self, top: Block, column_block: Expr, b_offset: Expr, emit_rows: EmitRows) -> None:
        plan = self.plan
        low, high = self._block_range(top, column_block, plan.chunk_panels, self.panel_count)
        is_dynamic = not isinstance(self.columns, int)
        tail_columns = self.columns % plan.panel_columns if isinstance(self.columns, int) else 0

        def emit_panel(block: Block, p: Expr, vectors: int, tail_lanes: int, is_masked: bool) -> None:
            first_column = block.let(k.mul(p, integer(plan.panel_columns)), "n")
            if isinstance(first_column, k.Var):
                block.multiples[first_column.name] = plan.panel_columns
            width = vectors * plan.lanes
            panel_stride: DimLike = (self.c.padded_k if self.c.packed else self.c.cols[-1].b) * plan.panel_columns
            if self.quantized_panels is not None:
                columns = Columns(vectors, ZERO, first_column, width, tail_lanes, is_masked)
                place = self.quantized_panels.place(block, p, width)
                self._quantized_panel(block, self.quantized_panels, place, columns, emit_rows)
                return
            base = block.let(add(b_offset, mul(p, dim_expr(panel_stride))), "bp")
            if self.transposes_panels:
                source = Strip(self.b.buffer, b_offset, self.c.cols[-1].b, first_column, self.columns)
                transpose_panel(block, source, self.loads.buffer, self._transposed_rows(), self.c.k, width, plan)
                base = ZERO
            self._k_blocks(block, Columns(vectors, base, first_column, width, tail_lanes, is_masked), emit_rows)

        if not is_dynamic and not tail_columns:
            top.loop("p", low, high, 1, lambda b, p: emit_panel(b, p, plan.vectors, 0, False))
            return
        tail_panel = dim_expr(self.full_panel_count)
        if self.full_panel_count != 0:
            full_end = k.binary("min", high, tail_panel)
            top.loop("p", low, full_end, 1, lambda b, p: emit_panel(b, p, plan.vectors, 0, False))
        if is_dynamic:
            has_tail = k.binary("lt", mul(tail_panel, integer(plan.panel_columns)), dim_expr(self.columns))
            is_tail_in_chunk = k.binary("and", has_tail, k.binary("gt", high, tail_panel))
            top.when(is_tail_in_chunk, lambda b: emit_panel(b, tail_panel, plan.vectors, 0, True))
            return
        vectors, tail_lanes = -(-tail_columns // plan.lanes), tail_columns % plan.lanes
        has_tail = k.binary("gt", high, tail_panel)
        top.when(has_tail, lambda b: emit_panel(b, tail_panel, vectors, tail_lanes, False))

    def _quantized_panel(
        self, block: Block, quantized_panels: BlockQuantizedPanels, place: Place, columns: Columns, emit_rows: EmitRows
    ) -> None:
        """Emit a panel of quantized levels. Rows of bytes, and few rows of floats, are multiplied by the levels
        directly; for more the levels are widened into scratch first, one block of the reduction at a time."""

        def emit_direct(b: Block) -> None:
            emit_rows(b, replace(columns, place=place), self.a_offset)

        def emit_widened(b: Block) -> None:
            def widen(x: Block, i: Expr, blocks: int) -> None:
                quantized_panels.widen(x, place, i, blocks, self.loads.buffer)

            self._k_blocks(b, columns, emit_rows, widen)

        if not quantized_panels.c.widens_b:
            emit_direct(block)
            return
        rows = dim_expr(product(x.extent for x in self.c.rows))
        block.when(k.binary("le", rows, integer(MAX_FEW_ROWS)), emit_direct, emit_widened)

    def tile(self, block: Block, columns: Columns, tile: TileRows) -> None:
        if columns.place is None:
            super().tile(block, columns, tile)
            return
        assert self.quantized_panels is not None
        acc = block.alloc("acc", self.c.acc, tile.lines * tile.rows * columns.vectors, lanes=self.plan.lanes)
        starts = [
            block.let(add(tile.a_offset, dim_expr(self.line_axis.a * i + self.row_axis.a * j)), "r")
            for i in range(tile.lines)
            for j in range(tile.rows)
        ]
        self.quantized_panels.rows(block, columns.place, self.a_buffer, starts, acc)
        self.epilogue(block, columns, tile, acc)

    def _transposed_rows(self) -> int:
        """Rows of a transposed panel: k rounded up to full vectors."""
        return -(-static_shape((self.c.k,))[0] // self.plan.lanes) * self.plan.lanes

    def _k_blocks(
        self,
        block: Block,
        columns: Columns,
        emit_rows: EmitRows,
        widen: Callable[[Block, Expr, int], None] | None = None,
    ) -> None:
        """Emit the reduction, unblocked or in blocks whose part of B's panel stays in L2.

        widen(block, k block, number of k blocks): emits the widening of that part of a quantized panel into scratch.
        """
        plan, axis = self.plan, self.reduce[0]
        block_count = floordiv(axis.extent, plan.k_block) if plan.k_block else 1
        block_elements = floordiv(self.c.padded_k, block_count) * columns.width  # elements of a packed panel

        def emit_block(b: Block, i: Expr) -> None:
            block_columns = columns
            if block_count != 1:
                is_first = k.binary("eq", i, ZERO)
                is_last = k.binary("eq", i, dim_expr(block_count - 1))
                block_columns = replace(columns, is_first_block=is_first, is_last_block=is_last)
            if widen is not None:
                widen(b, i, static_shape((block_count,))[0])
            elif self.loads.reads_panels:
                base = b.let(add(columns.base, mul(i, dim_expr(block_elements))), "bk")
                distance = dim_expr(plan.prefetch_distance or block_elements)
                next_panel = b.let(add(base, distance), "next") if plan.prefetch_lines else None
                block_columns = replace(block_columns, base=base, next_panel=next_panel)
            elif block_count != 1:
                base = b.let(add(columns.base, mul(i, dim_expr(axis.b * plan.k_block))), "bk")
                block_columns = replace(block_columns, base=base)
            emit_rows(b, block_columns, b.let(add(self.a_offset, mul(i, dim_expr(axis.a * plan.k_block))), "ak"))

        block.loop("kb", 0, block_count, 1, emit_block)

    # Rows

    def _rows(
        self, block: Block, columns: Columns, a_offset: Expr, line_groups: tuple[Expr, Expr], rows: tuple[Expr, Expr]
    ) -> None:
        """Emit the tiles of a range of line groups and a range of the last row axis."""
        plan = self.plan
        strides = tuple(x.a for x in self.c.rows[:-1])
        tiles_per_group = k.binary("div", add(k.sub(rows[1], rows[0]), integer(plan.width - 1)), integer(plan.width))

        def emit_group(b: Block, g: Expr) -> None:
            index: list[Expr] = []
            if len(self.c.rows) > 1:
                index = [b.let(e, "g") for e in delinearize(g, self.line_group_extents, b.multiples)]
                index[-1] = b.let(mul(index[-1], integer(plan.lines)), "l")
            base = b.let(add(a_offset, linear(tuple(index), strides)), "ar")
            first_row = mul(k.sub(g, line_groups[0]), mul(tiles_per_group, integer(plan.width)))
            tail_lines = self.line_axis.extent % plan.lines if isinstance(self.line_axis.extent, int) else 0

            def emit_lines(n: int) -> Callable[[Block], None]:
                return lambda x: self._line(x, columns, tuple(index), n, rows, base, first_row)

            if not tail_lines:
                emit_lines(plan.lines)(b)
                return
            is_full = k.binary("le", add(index[-1], integer(plan.lines)), dim_expr(self.line_axis.extent))
            b.when(is_full, emit_lines(plan.lines), emit_lines(tail_lines))

        block.loop("g", *line_groups, 1, emit_group)

    def _line(
        self,
        block: Block,
        columns: Columns,
        index: Index,
        lines: int,
        row_range: tuple[Expr, Expr],
        base: Expr,
        first_row: Expr,
    ) -> None:
        """Emit the tiles of a line group along the last row axis. first_row: rows of the chunk that precede them."""
        width, (low, high) = self.plan.width, row_range

        def emit_tile(b: Block, w: Expr, rows: int) -> None:
            row = b.let(add(base, mul(w, dim_expr(self.row_axis.a))), "r")
            chunk_row, is_first = add(first_row, k.sub(w, low)), k.binary("eq", w, low)
            self.tile(b, columns, TileRows(index, w, lines, rows, row, chunk_row, is_first))

        tail_rows = mod(self.row_axis.extent, width)
        if isinstance(tail_rows, int):
            # the rows of a chunk are a multiple of the width, except for the last chunk
            full_rows = self.row_axis.extent - tail_rows
            full_end = dim_expr(full_rows)
            end = k.binary("min", high, full_end) if tail_rows else high
            if full_rows != 0:
                block.loop("w", low, end, width, lambda b, w: emit_tile(b, w, width))
            if tail_rows:
                block.when(k.binary("gt", high, full_end), lambda b: emit_tile(b, full_end, tail_rows))
            return
        count = block.let(k.binary("div", k.sub(high, low), integer(width)), "t")
        start = block.let(add(low, k.mul(count, integer(width))), "w")
        block.loop("w", low, start, width, lambda b, w: emit_tile(b, w, width))
        power = 1 << (width - 1).bit_length() - 1 if width > 1 else 0
        while power:
            first, rows = start, power
            fits = k.binary("le", add(first, integer(rows)), high)
            block.when(fits, lambda b, first=first, rows=rows: emit_tile(b, first, rows))
            start = block.let(k.select(fits, add(first, integer(rows)), first), "w")
            power //= 2


__all__ = ["MacroKernel", "emit_macro_kernel"]
