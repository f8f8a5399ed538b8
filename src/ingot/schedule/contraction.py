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

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace

from ingot.ir import kernel as k
from ingot.ir.dims import Dim, DimLike, ceildiv, floordiv, product
from ingot.ir.kernel import Buffer, Expr, Lit
from ingot.ir.types import boolean, static_shape, u8, u16, u32
from ingot.schedule.axes import Axis, Contraction, merge_axes
from ingot.schedule.block import Block
from ingot.schedule.index import add, delinearize, dim_expr, integer, linear, mul
from ingot.schedule.levels import LevelPanels, Place
from ingot.schedule.long_sums import LongSums
from ingot.schedule.operands import Computed, Fetch, Fold, Index, Levels, Operand, Write, one_by_one
from ingot.schedule.pack import Strip, turn_panel
from ingot.schedule.row_loads import Columns, RowLoads
from ingot.schedule.tile import Plan, pieces

ZERO = integer(0)
Rows = Callable[[Block, Columns, Expr], None]  # of a panel, from a place in A


@dataclass(frozen=True)
class _Tile:
    """Rows of one register tile: `lines` of the last but one row axis by `rows` of the last, from (*at, w).

    a: its first element in A. row: its first row, counted along the last axis from the start of the chunk. first:
    whether it is the first of its lines in the chunk.
    """

    at: Index
    w: Expr
    lines: int
    rows: int
    a: Expr
    row: Expr
    first: Expr


@dataclass(frozen=True)
class _Turn:
    """One step of the reduction: where its elements of A and B start, the stride of k in A, and how many k it takes."""

    acc: Buffer
    bv: Buffer
    a: Expr
    b: Expr
    stride: DimLike
    count: int


def _each_row(block: Block, tile: _Tile, body: Callable[[Block, Expr, Expr], None]) -> None:
    def line(b: Block, i: Expr) -> None:
        b.loop("j", 0, tile.rows, 1, lambda x, j: body(x, i, j), unroll=True)

    block.loop("i", 0, tile.lines, 1, line, unroll=True)


def emit_contraction(
    top: Block, chunk: k.Var, c: Contraction, plan: Plan, a: Operand | Computed, b: Operand | Levels, write: Write,
    fetch: Fetch | None = None, fold: Fold | None = None,
) -> Expr:
    """Print the nest of one chunk into `top`; the number of chunks is returned.

    `write(block, index, acc, mask)` is the epilogue: index has one expression per batch, row and column axis; the
    last is a Ramp over acc's lanes. mask: lanes that exist, None for all. `fetch(block, index, width)` prefetches what
    the epilogue will read for `width` columns of one row while the products are computed. `fold` is told where lines
    start and end, between which `write` is called for their rows.
    """
    return Nest(c, plan, a, b, write, fetch, fold).emit(top, chunk)


class Nest:
    """The loops of a chunk (`emit`), or of a part of the output that other loops choose."""

    def __init__(
        self, c: Contraction, plan: Plan, a: Operand | Computed, b: Operand | Levels, write: Write,
        fetch: Fetch | None = None, fold: Fold | None = None,
    ) -> None:
        self.levels = LevelPanels(c, plan, b) if isinstance(b, Levels) else None
        self.c = c = c.widened
        self.plan, self.a, self.b, self.write, self.fetch, self.fold = plan, a, b, write, fetch, fold
        self.reduce = merge_axes(c.reduce)
        self.columns = c.cols[-1].extent
        self.full_panels = floordiv(self.columns, plan.panel)
        self.all_panels = ceildiv(self.columns, plan.panel)
        self.inner = c.rows[-1]
        self.lines = c.rows[-2] if len(c.rows) > 1 else Axis(1)
        self.groups = (*(x.extent for x in c.rows[:-2]), ceildiv(self.lines.extent, plan.lines))
        self.group_count = product(self.groups)
        self.batch: Index = ()
        self.outer: Index = ()
        self.a_base: Expr = ZERO
        self.sums = Buffer("none", c.acc)  # partial sums of a blocked reduction
        self.turned = plan.panel_at >= 0 and self.levels is None
        self.pieces = pieces(c) if isinstance(a, Operand) else 0
        self.a_tile = a.buffer if isinstance(a, Operand) else Buffer("none", c.a)  # where tiles read A
        self.loads = RowLoads(c, plan, b.buffer)

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
        if not (isinstance(extent, int) and isinstance(size, int) and extent % size == 0):
            high = k.binary("min", high, dim_expr(extent))
        return low, top.let(high, "hi")

    def _b_base(self, top: Block, batch: Index, outer: Index) -> Expr:
        c = self.c
        if isinstance(self.b, Levels):
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
            if self.turned:
                source = Strip(self.b.buffer, b_base, self.c.cols[-1].b, start, self.columns)
                turn_panel(block, source, self.loads.buffer, self._turned_rows(), self.c.k, width, plan)
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
        self._maybe(top, k.binary("gt", high, last), lambda b: panel(b, last, vectors, rest % plan.lanes, False))

    def _of_levels(self, block: Block, levels: LevelPanels, at: Place, columns: Columns, rows: Rows) -> None:
        """A panel of levels: times one row as they are, times several widened, one part of the reduction at a time."""
        one = k.binary("eq", dim_expr(product(x.extent for x in self.c.rows)), integer(1))

        def single(b: Block) -> None:
            acc = b.alloc("acc", self.c.acc, columns.vectors, lanes=self.plan.lanes)
            levels.row(b, at, self.a_tile, self.a_base, acc)
            at_row = (ZERO,) * (len(self.c.rows) - 1)
            self._epilogue(b, columns, _Tile(at_row, ZERO, 1, 1, self.a_base, ZERO, k.lit(True, boolean)), acc)

        def several(b: Block) -> None:
            self._blocks(b, columns, rows, lambda x, i, n: levels.widen(x, at, i, n, self.loads.buffer))

        if isinstance(one, Lit):
            (single if one.value else several)(block)
        else:
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

    @staticmethod
    def _maybe(block: Block, condition: Expr, then: Callable[[Block], None]) -> None:
        if isinstance(condition, Lit):
            if condition.value:
                then(block)
            return
        block.when(condition, then)

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
            if isinstance(whole, Lit):
                lines(plan.lines if whole.value else left)(b)
            else:
                b.when(whole, lines(plan.lines), lines(left))

        block.loop("g", *groups, 1, group)

    def _line(
        self, block: Block, columns: Columns, at: Index, lines: int, inner: tuple[Expr, Expr], base: Expr, first: Expr
    ) -> None:
        """Tiles along the last row axis. `first`: the rows of the chunk before them."""
        width, (low, high) = self.plan.width, inner

        def tile(b: Block, w: Expr, rows: int) -> None:
            row = b.let(add(base, mul(w, dim_expr(self.inner.a))), "r")
            self._tile(b, columns, _Tile(at, w, lines, rows, row, add(first, k.sub(w, low)), k.binary("eq", w, low)))

        if isinstance(self.inner.extent, int):
            # a chunk's block of rows is a multiple of the width, but for the last
            rest = self.inner.extent % width
            whole = self.inner.extent - rest
            end = k.binary("min", high, integer(whole)) if rest else high
            if whole:
                block.loop("w", low, end, width, lambda b, w: tile(b, w, width))
            if rest:
                self._maybe(block, k.binary("gt", high, integer(whole)), lambda b: tile(b, integer(whole), rest))
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

    # One register tile

    def _tile(self, block: Block, columns: Columns, tile: _Tile) -> None:
        acc_type, lanes = self.c.acc, self.plan.lanes
        size = tile.lines * tile.rows * columns.vectors
        acc = block.alloc("acc", acc_type, size, lanes=lanes)
        bv = self.loads.registers(block, columns.vectors)
        zero = k.lit(0.0 if acc_type.is_float else 0, acc_type, lanes)
        place = mul(tile.row, integer(self.plan.lines * self.plan.panel))

        def partial(i: Expr) -> Expr:
            return add(place, mul(i, integer(lanes)))

        def join(x: Block) -> None:
            def one(b: Block, i: Expr) -> None:
                b.store(acc, i, k.add(k.load(self.sums, partial(i), lanes), k.load(acc, i)))

            x.loop("i", 0, size, 1, one, unroll=True)

        def suspend(x: Block) -> None:
            x.loop("i", 0, size, 1, lambda b, i: b.store(self.sums, partial(i), k.load(acc, i)), unroll=True)

        block.loop("i", 0, size, 1, lambda b, i: b.store(acc, i, zero), unroll=True)
        ahead = self._ahead(block, columns, tile)
        if self.fetch is not None and columns.last is None:
            self._fetch_rows(block, columns, tile, self.fetch)
        self._products(block, columns, tile, acc, bv, ahead)
        if columns.first is not None:
            block.when(k.unary("not", columns.first), join)
        if columns.last is None:
            self._epilogue(block, columns, tile, acc)
        else:
            block.when(columns.last, lambda b: self._epilogue(b, columns, tile, acc), suspend)

    def _ahead(self, block: Block, columns: Columns, tile: _Tile) -> Expr | None:
        """Where the tile's share of the next panel begins, which it prefetches."""
        if columns.ahead is None:
            return None
        share = self._ahead_per_k()
        # tiles beyond the panel's end prefetch its last part again, which costs nothing
        most = ceildiv(columns.width, share) - 1
        number = k.binary("div", tile.row, integer(self.plan.width))
        part = k.binary("min", number, dim_expr(most))
        turns = floordiv(self.c.k * (self.plan.k_block or self.reduce[0].extent), self.reduce[0].extent)
        return block.let(add(columns.ahead, mul(part, dim_expr(turns * share))), "pf")

    def _products(
        self, block: Block, columns: Columns, tile: _Tile, acc: Buffer, bv: Buffer, ahead: Expr | None
    ) -> None:
        """The loops over k."""
        each = self.c.per_lane
        step: DimLike = columns.width  # between neighbouring k of a packed panel
        extents = [self.plan.k_block or self.reduce[0].extent, *(x.extent for x in self.reduce[1:])]
        sums = LongSums.of(block, (acc,), extents, self.plan.unroll)

        def nest(b: Block, axes: tuple[Axis, ...], a_index: Expr, b_index: Expr, at_k: Expr) -> None:
            axis, level = axes[0], len(extents) - len(axes)
            inside = product(x.extent for x in axes[1:])
            if each > 1 and len(axes) > 1:
                # rows of a panel
                inside = floordiv(inside, axes[-1].extent) * ceildiv(axes[-1].extent, each) * each
            extent = extents[level]
            b_step: DimLike = inside * step if self.loads.in_panels else axis.b

            def turn(x: Block, i: Expr) -> None:
                a_next, b_next = add(a_index, mul(i, dim_expr(axis.a))), add(b_index, mul(i, dim_expr(b_step)))
                nest(x, axes[1:], a_next, b_next, add(at_k, mul(i, dim_expr(inside))))

            def innermost(x: Block, i: Expr) -> None:
                if ahead is not None:
                    self._prefetch(x, ahead, add(at_k, i))
                if self.pieces:
                    self._prefetch_pieces(x, tile, a_index, i)
                x.loop("u", 0, self.plan.unroll, each, lambda y, u: once(y, add(i, u), each), unroll=True)

            def once(x: Block, here: Expr, count: int) -> None:
                a_next, b_next = mul(here, dim_expr(axis.a)), mul(here, dim_expr(b_step))
                at = _Turn(acc, bv, add(a_index, a_next), add(b_index, b_next), axis.a, count)
                self._multiply(x, columns, tile, at)

            if len(axes) > 1:
                sums.loop(b, level, "k", *self._turns(b, tile, axis, extent), 1, turn)
                return
            rest = 0 if isinstance(extent, Dim) else extent % each
            sums.loop(b, level, "k", 0, extent - rest, self.plan.unroll, innermost)
            if rest:
                once(b, dim_expr(extent - rest), rest)

        nest(block, self.reduce, tile.a, columns.base, ZERO)
        sums.finish(block)

    def _turns(self, block: Block, tile: _Tile, axis: Axis, extent: DimLike) -> tuple[Expr, Expr]:
        """The turns of a window's loop in which some row of the tile reads more than padding."""
        low, high, inside = ZERO, dim_expr(extent), axis.inside
        if inside is None or self.plan.k_block:
            return low, high
        if tile.at and inside.along(self.lines):
            first, count = tile.at[-1], tile.lines
        elif inside.along(self.inner):
            first, count = tile.w, tile.rows
        else:
            return low, high
        dilation, start = integer(inside.dilation), mul(first, integer(inside.step))
        end = add(start, integer((count - 1) * inside.step))
        before = k.sub(integer(inside.low + inside.dilation - 1), end)
        behind = k.sub(dim_expr(inside.high - 1), start)
        low = k.binary("max", low, k.binary("div", before, dilation))
        high = k.binary("min", high, add(k.binary("div", behind, dilation), integer(1)))
        return block.let(low, "k"), block.let(high, "k")

    def _fetch_rows(self, block: Block, columns: Columns, tile: _Tile, fetch: Fetch) -> None:
        def row(b: Block, i: Expr, j: Expr) -> None:
            line = (*tile.at[:-1], add(tile.at[-1], i)) if tile.at else ()
            place = (*self.batch, *line, add(tile.w, j), *self.outer, columns.start)
            fetch(b, place, columns.vectors * self.plan.lanes)

        _each_row(block, tile, row)

    def _prefetch_pieces(self, block: Block, tile: _Tile, a_index: Expr, i: Expr) -> None:
        """Some of the pieces that the tile one line group further on reads where this one is in the reduction."""
        each = -(-tile.rows // -(-self.pieces // self.plan.unroll))
        first = add(a_index, dim_expr(self.plan.lines * self.lines.a))
        at = mul(k.binary("div", i, integer(self.plan.unroll)), dim_expr(self.inner.a * each))
        for line in range(tile.lines):
            for r in range(each):
                place = add(add(first, dim_expr(self.lines.a * line + self.inner.a * r)), at)
                block.stmts.append(k.Prefetch(self.a_tile, place))

    def _ahead_per_k(self) -> int:
        """Elements of the next panel that a tile prefetches for each k."""
        return max(1, self.plan.prefetch * (64 // self.c.b.nbytes) // self.plan.unroll)

    def _prefetch(self, block: Block, ahead: Expr, at_k: Expr) -> None:
        line = 64 // self.c.b.nbytes
        start = add(ahead, mul(at_k, integer(self._ahead_per_k())))
        for i in range(self.plan.prefetch):
            block.stmts.append(k.Prefetch(self.loads.buffer, add(start, integer(i * line))))

    def _multiply(self, block: Block, columns: Columns, tile: _Tile, at: _Turn) -> None:
        """acc += the outer product of one column of A's tile and one row of B's panel, or of the k of a lane."""
        nv = columns.vectors
        self.loads.load(block, columns, at.b, at.count, at.bv)

        def row(x: Block, i: Expr, j: Expr) -> None:
            r = add(mul(i, integer(tile.rows)), j)
            offset = add(mul(i, dim_expr(self.lines.a)), mul(j, dim_expr(self.inner.a)))
            place = add(at.a, offset)
            if self.loads.dots:
                own = x.let(self._lane_of_a(place, at.count), "s")

                def both(y: Block, v: Expr) -> None:
                    slot = add(mul(r, integer(nv)), v)
                    y.store(at.acc, slot, k.dot(own, k.load(at.bv, v), k.load(at.acc, slot)))

                x.loop("v", 0, nv, 1, both, unroll=True)
                return
            for h in range(at.count):
                value = k.cast(k.load(self.a_tile, add(place, mul(integer(h), dim_expr(at.stride)))), self.c.acc)
                value = x.let(k.splat(value, self.plan.lanes), "s")

                def one(y: Block, v: Expr, h: int = h, value: Expr = value) -> None:
                    slot = add(mul(r, integer(nv)), v)
                    own = k.load(at.bv, add(integer(h * nv), v))
                    y.store(at.acc, slot, k.fma(value, own, k.load(at.acc, slot)))

                x.loop("v", 0, nv, 1, one, unroll=True)

        _each_row(block, tile, row)

    def _lane_of_a(self, place: Expr, count: int) -> Expr:
        """`count` neighbouring k of A, and zeros behind them, in all lanes."""
        a, whole = self.a_tile, self.c.per_lane
        if count == whole:
            word = k.bitcast(k.load(a, place, whole), u32)
        else:
            bits = u16 if a.dtype.bits == 16 else u8
            found = (k.cast(k.bitcast(k.load(a, add(place, integer(i))), bits), u32) for i in range(count))
            shifted = (k.binary("shl", x, k.lit(i * bits.bits, u32)) for i, x in enumerate(found))
            word = functools.reduce(lambda x, y: k.binary("or", x, y), shifted)
        return k.bitcast(k.splat(word, self.plan.lanes), a.dtype)

    def _epilogue(self, block: Block, columns: Columns, tile: _Tile, acc: Buffer) -> None:
        lanes, nv, at = self.plan.lanes, columns.vectors, tile.at

        def finish(b: Block, v: Expr, full: bool) -> None:
            n = add(columns.start, mul(v, integer(lanes)))

            def row(x: Block, i: Expr, j: Expr) -> None:
                value = k.load(acc, add(mul(add(mul(i, integer(tile.rows)), j), integer(nv)), v))
                self._finish(x, place(i, j), n, value, columns, full)

            def place(i: Expr, j: Expr) -> Index:
                line = (*at[:-1], add(at[-1], i)) if at else ()
                return (*self.batch, *line, add(tile.w, j), *self.outer)

            if self.fold is None:
                _each_row(b, tile, row)
                return
            fold, index, mask = self.fold, *self._lanes(b, n, columns, full)

            def line(x: Block, i: Expr) -> None:
                fold.begin(x, index.lanes)
                x.loop("j", 0, tile.rows, 1, lambda y, j: row(y, i, j), unroll=True)
                fold.end(x, (*place(i, ZERO), index), mask, tile.first)

            b.loop("i", 0, tile.lines, 1, line, unroll=True)

        whole = nv - 1 if columns.tail else nv
        block.loop("v", 0, whole, 1, lambda b, v: finish(b, v, True), unroll=True)
        if columns.tail:
            finish(block, integer(whole), False)

    def _finish(self, block: Block, place: Index, n: Expr, value: Expr, columns: Columns, full: bool) -> None:
        if (columns.masked or not full) and not self.plan.masks and not columns.tail:
            one_by_one(block, place, n, value, self.columns, self.write)
            return
        index, mask = self._lanes(block, n, columns, full)
        if index.lanes < value.lanes:
            value = k.Shuffle(value.dtype, index.lanes, value, value, tuple(range(index.lanes)))
        self.write(block, (*place, index), value, mask)

    def _lanes(self, block: Block, n: Expr, columns: Columns, full: bool) -> tuple[Expr, Expr | None]:
        """The columns of a vector from `n`, and which exist, None for all: without mask registers, those are fewer."""
        lanes = self.plan.lanes
        if (columns.masked or not full) and self.plan.masks:
            return k.ramp(n, lanes), block.let(k.binary("lt", k.ramp(n, lanes), dim_expr(self.columns)), "mask")
        lanes = lanes if full else columns.tail
        return (k.ramp(n, lanes) if lanes > 1 else n), None


__all__ = ["Nest", "emit_contraction"]
