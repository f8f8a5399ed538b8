"""Contractions: matmul, batched matmul, convolution and grouped convolution are one loop nest with different strides.

    out[m, n] = sum_k A[m, k] * B[k, n]   ->

    for panel of B's columns in the chunk:               B: [panel][k][48], packed at compile time, or read in place
        for tile of rows in the chunk:
            acc[8][3] = 0                                 24 vector registers
            for k:  b[0..3] = B[panel, k]                 3 vector loads
                    acc[r][c] += splat(A[row + r, k]) * b[c]
            write(row + r, column + c, acc[r][c])         the epilogue

All offsets inside a tile are immediates where strides are static. Tiles at the edges are exact: rows that are left over
get a tile of their own height (dynamic extents: of 4, 2 and 1 rows), columns a narrower panel with a masked last
vector.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ingot.ir import kernel as k
from ingot.ir.dims import DimLike, ceildiv, floordiv, mod, product
from ingot.ir.kernel import Expr, Lit
from ingot.ir.types import boolean, static_shape
from ingot.schedule.axes import Contraction
from ingot.schedule.block import Block
from ingot.schedule.cpu.contraction.compressed.block_quantized import BlockQuantizedPanels, Place
from ingot.schedule.cpu.contraction.micro_kernel import MicroKernel, TileRows
from ingot.schedule.cpu.contraction.operands import BlockQuantized, Computed, Fetch, Index, LineEpilogue, Operand, Write
from ingot.schedule.cpu.contraction.pack import Strip, transpose_panel
from ingot.schedule.cpu.contraction.panel_loads import Columns
from ingot.schedule.cpu.contraction.plan import Plan
from ingot.schedule.index import ZERO, add, delinearize, dim_expr, integer, linear, mul

Rows = Callable[[Block, Columns, Expr], None]  # of a panel, from a place in A


def emit_macro_kernel(
    top: Block,
    chunk: k.Var,
    c: Contraction,
    plan: Plan,
    a: Operand | Computed,
    b: Operand | BlockQuantized,
    write: Write,
    fetch: Fetch | None = None,
    fold: LineEpilogue | None = None,
) -> Expr:
    """Print the nest of one chunk into `top`; the number of chunks is returned.

    `write(block, index, acc, mask)` is the epilogue: index has one expression per batch, row and column axis; the
    last is a Ramp over acc's lanes. mask: lanes that exist, None for all. `fetch(block, index, width)` prefetches what
    the epilogue will read for `width` columns of one row while the products are computed. `fold` is told where lines
    start and end, between which `write` is called for their rows.
    """
    return MacroKernel(c, plan, a, b, write, fetch, fold).emit(top, chunk)


class MacroKernel(MicroKernel):
    """The loops of a chunk (`emit`), or of a part of the output that other loops choose."""

    def __init__(
        self,
        c: Contraction,
        plan: Plan,
        a: Operand | Computed,
        b: Operand | BlockQuantized,
        write: Write,
        fetch: Fetch | None = None,
        fold: LineEpilogue | None = None,
    ) -> None:
        super().__init__(c.widened, plan, a, b.buffer, write, fetch, fold)
        self.levels = BlockQuantizedPanels(c, plan, b) if isinstance(b, BlockQuantized) else None
        self.a, self.b, c = a, b, c.widened
        self.full_panels = floordiv(self.columns, plan.panel)
        self.all_panels = ceildiv(self.columns, plan.panel)
        self.groups = (*(x.extent for x in c.rows[:-2]), ceildiv(self.lines.extent, plan.lines))
        self.group_count = product(self.groups)
        self.a_base: Expr = ZERO
        self.transposes = plan.panel_at >= 0 and self.levels is None

    def emit(self, top: Block, chunk: k.Var) -> Expr:
        """chunk -> (batch entries and outer columns, column block, row block, inner block), the last fastest."""
        plan, c = self.plan, self.c
        if plan.k_block:
            self.sums = top.alloc("sums", c.acc, plan.sums_bytes // c.acc.nbytes, scratch=0)
        if plan.panel_at >= 0:
            size = (plan.rows_at if plan.rows_at >= 0 else plan.scratch_bytes) - plan.panel_at
            panel = top.alloc("panel", c.acc, size // c.acc.nbytes, scratch=plan.panel_at)
            self.loads = replace(self.loads, buffer=panel)
        row_blocks = ceildiv(self.group_count, plan.row_run)
        inner_blocks = 1 if plan.row_block == self.inner.extent else ceildiv(self.inner.extent, plan.row_block)
        column_blocks = ceildiv(self.all_panels, plan.panels)
        entries = (*(x.extent for x in c.batch), *(x.extent for x in c.cols[:-1]))
        lots = ceildiv(product(entries), plan.batch_run)
        extents = (lots, column_blocks, row_blocks, inner_blocks)
        where = [top.let(e, "c") for e in delinearize(chunk, extents, top.multiples)]
        if product(extents) == 1:
            where = [ZERO] * len(extents)
        lot, column_block, row_block, inner_block = where
        groups = self._span(top, row_block, plan.row_run, self.group_count)
        inner = self._span(top, inner_block, plan.row_block, self.inner.extent)

        def entry(block: Block, e: Expr) -> None:
            at = tuple(block.let(x, "e") for x in delinearize(e, entries, block.multiples))
            self.batch, self.outer = at[: len(c.batch)], at[len(c.batch) :]
            b_base = self._b_base(block, self.batch, self.outer)

            def rows(x: Block, some: tuple[Expr, Expr]) -> None:
                self.a_base = self._a_base(x, some)
                self._panels(x, column_block, b_base, lambda y, columns, a: self._rows(y, columns, a, groups, some))

            if not plan.rows_at_once:
                rows(block, inner)
                return
            block.loop("rb", *inner, plan.rows_at_once, lambda x, low: rows(x, self._part(x, low, inner[1])))

        if plan.batch_run == 1:
            entry(top, lot)
        else:
            top.loop("e", *self._span(top, lot, plan.batch_run, product(entries)), 1, entry)
        return dim_expr(product(extents))

    def emit_lines(self, block: Block, panel: Expr, lines: tuple[Expr, Expr]) -> None:
        """One column panel of a packed B and a range of lines: of all row axes but the last, joined."""
        inner = ZERO, dim_expr(self.inner.extent)
        self.a_base = self._a_base(block, inner)
        self._panels(block, panel, ZERO, lambda b, columns, a: self._rows(b, columns, a, lines, inner))

    def emit_rows(self, block: Block, rows: tuple[Expr, Expr]) -> None:
        """All columns of a packed B and a range of the only row axis: whole tiles, but for the last rows of all."""
        self.a_base = self._a_base(block, rows)
        self._panels(block, ZERO, ZERO, lambda b, columns, a: self._rows(b, columns, a, (ZERO, integer(1)), rows))

    def _part(self, block: Block, low: Expr, end: Expr) -> tuple[Expr, Expr]:
        """The rows from `low` that are computed at once."""
        if isinstance(low, k.Var):
            block.multiples[low.name] = self.plan.width
        return low, block.let(k.binary("min", add(low, integer(self.plan.rows_at_once)), end), "rh")

    def _a_base(self, block: Block, rows: tuple[Expr, Expr]) -> Expr:
        """Where row 0 of the batch entry lies in A: before the buffer's start, where that holds the chunk's rows."""
        if isinstance(self.a, Computed):
            size = (self.plan.scratch_bytes - self.plan.rows_at) // self.c.a.nbytes
            self.a_tile = block.alloc("rows", self.c.a, size, scratch=self.plan.rows_at)
            self.a.fill(block, self.batch, rows, self.a_tile)
            return block.let(mul(rows[0], dim_expr(-1 * self.inner.a)), "a")
        return block.let(linear(self.batch, tuple(x.a for x in self.c.batch), self.a.offset), "a")

    def _span(self, top: Block, at: Expr, size: DimLike, extent: DimLike) -> tuple[Expr, Expr]:
        """[at * size, min((at + 1) * size, extent))."""
        if isinstance(at, Lit) or size == extent:
            return ZERO, dim_expr(extent)
        low = top.let(k.mul(at, dim_expr(size)), "lo")
        if isinstance(size, int) and isinstance(low, k.Var):
            top.multiples[low.name] = size
        high = add(low, dim_expr(size))
        if mod(extent, size) != 0:
            high = k.binary("min", high, dim_expr(extent))
        return low, top.let(high, "hi")

    def _b_base(self, top: Block, batch: Index, outer: Index) -> Expr:
        c = self.c
        if isinstance(self.b, BlockQuantized):
            return ZERO
        if not c.packed:
            in_place = (*(x.b for x in c.batch), *(x.b for x in c.cols[:-1]))
            return top.let(linear((*batch, *outer), in_place, self.b.offset), "b")
        size = c.depth * ceildiv(self.columns, self.plan.lanes) * self.plan.lanes
        strides: list[DimLike] = []
        for x in reversed((*c.batch, *c.cols[:-1])):
            strides.append(size)
            size = size * x.extent
        return top.let(linear((*batch, *outer), tuple(reversed(strides))), "b")

    # Columns

    def _panels(self, top: Block, column_block: Expr, b_base: Expr, rows: Rows) -> None:
        plan = self.plan
        low, high = self._span(top, column_block, plan.panels, self.all_panels)
        dynamic = not isinstance(self.columns, int)
        rest = self.columns % plan.panel if isinstance(self.columns, int) else 0

        def panel(block: Block, p: Expr, vectors: int, tail: int, masked: bool) -> None:
            start = block.let(k.mul(p, integer(plan.panel)), "n")
            if isinstance(start, k.Var):
                block.multiples[start.name] = plan.panel
            width = vectors * plan.lanes
            step: DimLike = self.c.depth * plan.panel if self.c.packed else self.c.cols[-1].b * plan.panel
            if self.levels is not None:
                shape = Columns(vectors, ZERO, start, width, tail, masked)
                self._of_levels(block, self.levels, self.levels.place(block, p, width), shape, rows)
                return
            base = block.let(add(b_base, mul(p, dim_expr(step))), "bp")
            if self.transposes:
                source = Strip(self.b.buffer, b_base, self.c.cols[-1].b, start, self.columns)
                transpose_panel(block, source, self.loads.buffer, self._turned_rows(), self.c.k, width, plan)
                base = ZERO
            self._blocks(block, Columns(vectors, base, start, width, tail, masked), rows)

        if not dynamic and not rest:
            top.loop("p", low, high, 1, lambda b, p: panel(b, p, plan.vectors, 0, False))
            return
        last = dim_expr(self.full_panels)
        if self.full_panels != 0:
            whole = k.binary("min", high, last)
            top.loop("p", low, whole, 1, lambda b, p: panel(b, p, plan.vectors, 0, False))
        if dynamic:
            left = k.binary("lt", mul(last, integer(plan.panel)), dim_expr(self.columns))
            mine = k.binary("and", left, k.binary("gt", high, last))
            top.when(mine, lambda b: panel(b, last, plan.vectors, 0, True))
            return
        vectors = -(-rest // plan.lanes)
        top.when(k.binary("gt", high, last), lambda b: panel(b, last, vectors, rest % plan.lanes, False))

    def _of_levels(self, block: Block, levels: BlockQuantizedPanels, at: Place, columns: Columns, rows: Rows) -> None:
        """A panel of levels: times one row as they are, times several widened, one part of the reduction at a time."""
        one = k.binary("eq", dim_expr(product(x.extent for x in self.c.rows)), integer(1))

        def single(b: Block) -> None:
            acc = b.alloc("acc", self.c.acc, columns.vectors, lanes=self.plan.lanes)
            levels.row(b, at, self.a_tile, self.a_base, acc)
            at_row = (ZERO,) * (len(self.c.rows) - 1)
            self.epilogue(b, columns, TileRows(at_row, ZERO, 1, 1, self.a_base, ZERO, k.lit(True, boolean)), acc)

        def several(b: Block) -> None:
            self._blocks(b, columns, rows, lambda x, i, n: levels.widen(x, at, i, n, self.loads.buffer))

        block.when(one, single, several)

    def _turned_rows(self) -> int:
        """Rows of a transposed panel: k, in whole vectors."""
        return -(-static_shape((self.c.k,))[0] // self.plan.lanes) * self.plan.lanes

    def _blocks(
        self, block: Block, columns: Columns, rows: Rows, widen: Callable[[Block, Expr, int], None] | None = None
    ) -> None:
        """The reduction in one go, or in blocks whose part of B's panel stays in the second-level cache. `widen` prints
        what puts a part of a panel where tiles read it."""
        plan, axis = self.plan, self.reduce[0]
        blocks = floordiv(axis.extent, plan.k_block) if plan.k_block else 1
        part = floordiv(self.c.depth, blocks) * columns.width  # elements of a packed panel

        def one(b: Block, i: Expr) -> None:
            here = columns
            if blocks != 1:
                first = k.binary("eq", i, ZERO)
                last = k.binary("eq", i, dim_expr(blocks - 1))
                here = replace(columns, first=first, last=last)
            if widen is not None:
                widen(b, i, static_shape((blocks,))[0])
            elif self.loads.in_panels:
                base = b.let(add(columns.base, mul(i, dim_expr(part))), "bk")
                ahead = b.let(add(base, dim_expr(plan.ahead or part)), "next") if plan.prefetch else None
                here = replace(here, base=base, ahead=ahead)
            elif blocks != 1:
                here = replace(here, base=b.let(add(columns.base, mul(i, dim_expr(axis.b * plan.k_block))), "bk"))
            rows(b, here, b.let(add(self.a_base, mul(i, dim_expr(axis.a * plan.k_block))), "ak"))

        block.loop("kb", 0, blocks, 1, one)

    # Rows

    def _rows(
        self, block: Block, columns: Columns, a_base: Expr, groups: tuple[Expr, Expr], inner: tuple[Expr, Expr]
    ) -> None:
        """Tiles over a run of line groups and a range of the last row axis."""
        plan = self.plan
        strides = tuple(x.a for x in self.c.rows[:-1])
        per_group = k.binary("div", add(k.sub(inner[1], inner[0]), integer(plan.width - 1)), integer(plan.width))

        def group(b: Block, g: Expr) -> None:
            at = [b.let(e, "g") for e in delinearize(g, self.groups, b.multiples)] if len(self.c.rows) > 1 else []
            if at:
                at[-1] = b.let(mul(at[-1], integer(plan.lines)), "l")
            base = b.let(add(a_base, linear(tuple(at), strides)), "ar")
            first = mul(k.sub(g, groups[0]), mul(per_group, integer(plan.width)))
            left = self.lines.extent % plan.lines if isinstance(self.lines.extent, int) else 0

            def lines(n: int) -> Callable[[Block], None]:
                return lambda x: self._line(x, columns, tuple(at), n, inner, base, first)

            if not left:
                lines(plan.lines)(b)
                return
            whole = k.binary("le", add(at[-1], integer(plan.lines)), dim_expr(self.lines.extent))
            b.when(whole, lines(plan.lines), lines(left))

        block.loop("g", *groups, 1, group)

    def _line(
        self, block: Block, columns: Columns, at: Index, lines: int, inner: tuple[Expr, Expr], base: Expr, first: Expr
    ) -> None:
        """Tiles along the last row axis. `first`: the rows of the chunk before them."""
        width, (low, high) = self.plan.width, inner

        def tile(b: Block, w: Expr, rows: int) -> None:
            row = b.let(add(base, mul(w, dim_expr(self.inner.a))), "r")
            self.tile(b, columns, TileRows(at, w, lines, rows, row, add(first, k.sub(w, low)), k.binary("eq", w, low)))

        rest = mod(self.inner.extent, width)
        if isinstance(rest, int):
            # a chunk's block of rows is a multiple of the width, but for the last
            whole = self.inner.extent - rest
            behind = dim_expr(whole)
            end = k.binary("min", high, behind) if rest else high
            if whole != 0:
                block.loop("w", low, end, width, lambda b, w: tile(b, w, width))
            if rest:
                block.when(k.binary("gt", high, behind), lambda b: tile(b, behind, rest))
            return
        count = block.let(k.binary("div", k.sub(high, low), integer(width)), "t")
        start = block.let(add(low, k.mul(count, integer(width))), "w")
        block.loop("w", low, start, width, lambda b, w: tile(b, w, width))
        power = 1 << (width - 1).bit_length() - 1 if width > 1 else 0
        while power:
            here, rows = start, power
            has = k.binary("le", add(here, integer(rows)), high)
            block.when(has, lambda b, here=here, rows=rows: tile(b, here, rows))
            start = block.let(k.select(has, add(here, integer(rows)), here), "w")
            power //= 2


__all__ = ["MacroKernel", "emit_macro_kernel"]
