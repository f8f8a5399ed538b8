"""One register tile of a contraction: sums in registers, the loops over the reduction, the epilogue.

    acc[r][c] = 0
    for k:  b[0..3] = B[panel, k]                         vector loads
            acc[r][c] += splat(A[row + r, k]) * b[c]
    write(row + r, column + c, acc[r][c])

All offsets inside a tile are immediates where strides are static. `macro_kernel.py` has the loops around it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from ingot.ir import kernel as k
from ingot.ir.dims import Dim, DimLike, ceildiv, floordiv, product
from ingot.ir.kernel import Buffer, Expr
from ingot.ir.types import u8, u16, u32
from ingot.schedule.axes import Axis, Contraction, merge_axes
from ingot.schedule.block import Block
from ingot.schedule.cpu.blocked_sums import LongSums
from ingot.schedule.cpu.contraction.operands import Computed, Fetch, Index, LineEpilogue, Operand, Write, one_by_one
from ingot.schedule.cpu.contraction.panel_loads import Columns, RowLoads
from ingot.schedule.cpu.contraction.plan import Plan, pieces
from ingot.schedule.index import ZERO, add, dim_expr, integer, mul
from ingot.support.dataclass import dataclass


@dataclass(frozen=True)
class TileRows:
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


@dataclass(frozen=True)
class _AtK:
    """Where loops over the reduction stand: in A, in B, and in k, counted along all of its axes."""

    a: Expr
    b: Expr
    k: Expr


def _each_row(block: Block, tile: TileRows, body: Callable[[Block, Expr, Expr], None]) -> None:
    def line(b: Block, i: Expr) -> None:
        b.loop("j", 0, tile.rows, 1, lambda x, j: body(x, i, j), unroll=True)

    block.loop("i", 0, tile.lines, 1, line, unroll=True)


class MicroKernel:
    """Prints the tiles of a nest. batch, outer: its batch entry and outer columns. a_tile: where tiles read A. loads:
    how they read B. sums: partial sums of a blocked reduction."""

    def __init__(
        self,
        c: Contraction,
        plan: Plan,
        a: Operand | Computed,
        b: Buffer,
        write: Write,
        fetch: Fetch | None,
        fold: LineEpilogue | None,
    ) -> None:
        self.c, self.plan, self.write, self.fetch, self.fold = c, plan, write, fetch, fold
        self.reduce = merge_axes(c.reduce)
        self.columns = c.cols[-1].extent
        self.inner = c.rows[-1]
        self.lines = c.rows[-2] if len(c.rows) > 1 else Axis(1)
        self.batch: Index = ()
        self.outer: Index = ()
        self.sums = Buffer("none", c.acc)
        self.pieces = pieces(c) if isinstance(a, Operand) else 0
        self.a_tile = a.buffer if isinstance(a, Operand) else Buffer("none", c.a)
        self.loads = RowLoads(c, plan, b)

    def tile(self, block: Block, columns: Columns, tile: TileRows) -> None:
        """One tile: its sums, or those of this part of a blocked reduction, and behind the last the epilogue."""
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
            self.epilogue(block, columns, tile, acc)
        else:
            block.when(columns.last, lambda b: self.epilogue(b, columns, tile, acc), suspend)

    def _ahead(self, block: Block, columns: Columns, tile: TileRows) -> Expr | None:
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
        self, block: Block, columns: Columns, tile: TileRows, acc: Buffer, bv: Buffer, ahead: Expr | None
    ) -> None:
        """The loops over k."""
        each = self.c.per_lane
        step: DimLike = columns.width  # between neighbouring k of a packed panel
        extents = [self.plan.k_block or self.reduce[0].extent, *(x.extent for x in self.reduce[1:])]
        sums = LongSums.of(block, (acc,), extents, self.plan.unroll)

        inner = self.reduce[-1]

        def once(x: Block, at: _AtK, here: Expr, count: int) -> None:
            a_next, b_next = (
                mul(here, dim_expr(inner.a)),
                mul(here, dim_expr(step if self.loads.in_panels else inner.b)),
            )
            turn = _Turn(acc, bv, add(at.a, a_next), add(at.b, b_next), inner.a, count)
            self._multiply(x, columns, tile, turn)

        def innermost(b: Block, at: _AtK) -> None:
            def turn(x: Block, i: Expr) -> None:
                if ahead is not None:
                    self._prefetch(x, ahead, add(at.k, i))
                if self.pieces:
                    self._prefetch_pieces(x, tile, at.a, i)
                x.loop("u", 0, self.plan.unroll, each, lambda y, u: once(y, at, add(i, u), each), unroll=True)

            extent = extents[-1]
            rest = 0 if isinstance(extent, Dim) else extent % each
            sums.loop(b, len(extents) - 1, "k", 0, extent - rest, self.plan.unroll, turn)
            if rest:
                once(b, at, dim_expr(extent - rest), rest)

        def around(level: int, visit: Callable[[Block, _AtK], None], b: Block, at: _AtK) -> None:
            axis = self.reduce[level]
            inside = product(x.extent for x in self.reduce[level + 1 :])
            if each > 1:
                # rows of a panel
                inside = floordiv(inside, inner.extent) * ceildiv(inner.extent, each) * each
            b_step: DimLike = inside * step if self.loads.in_panels else axis.b

            def turn(x: Block, i: Expr) -> None:
                a_next, b_next = add(at.a, mul(i, dim_expr(axis.a))), add(at.b, mul(i, dim_expr(b_step)))
                visit(x, _AtK(a_next, b_next, add(at.k, mul(i, dim_expr(inside)))))

            sums.loop(b, level, "k", *self._turns(b, tile, axis, extents[level]), 1, turn)

        visit: Callable[[Block, _AtK], None] = innermost
        for level in reversed(range(len(extents) - 1)):
            visit = functools.partial(around, level, visit)
        visit(block, _AtK(tile.a, columns.base, ZERO))
        sums.finish(block)

    def _turns(self, block: Block, tile: TileRows, axis: Axis, extent: DimLike) -> tuple[Expr, Expr]:
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

    def _fetch_rows(self, block: Block, columns: Columns, tile: TileRows, fetch: Fetch) -> None:
        def row(b: Block, i: Expr, j: Expr) -> None:
            line = (*tile.at[:-1], add(tile.at[-1], i)) if tile.at else ()
            place = (*self.batch, *line, add(tile.w, j), *self.outer, columns.start)
            fetch(b, place, columns.vectors * self.plan.lanes)

        _each_row(block, tile, row)

    def _prefetch_pieces(self, block: Block, tile: TileRows, a_index: Expr, i: Expr) -> None:
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

    def _multiply(self, block: Block, columns: Columns, tile: TileRows, at: _Turn) -> None:
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

    def epilogue(self, block: Block, columns: Columns, tile: TileRows, acc: Buffer) -> None:
        """Hands the sums in `acc`, vector by vector, to `write`."""
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


__all__ = ["MicroKernel", "TileRows"]
