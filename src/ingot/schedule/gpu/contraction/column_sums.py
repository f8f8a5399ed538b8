"""Reductions over the rows of a contraction's result, as a batch norm's statistics, without a second read of it.

    for a tile of rows and columns:  out = epilogue(acc);  partial[row tile, columns] = sum of the tile's rows of f(out)
    for a tile of columns:           s = sum of partial over the row tiles;  results = g(s)

A sum of squared differences from a center that depends on other sums, as of a variance, needs no second read either:
each tile of n rows stores its sum s and the sum q of squares around its own mean, and with these
sum (x - c)^2 = sum over the tiles of q + n (s / n - c)^2 (Chan, Golub and LeVeque 1979). Sums of many tiles are merged
by the same formula first, by many programs. All are added in a fixed order, so that results are bit-reproducible.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import TypeAlias

from ingot.ir import kernel as k
from ingot.ir.dims import DimLike, ceildiv, estimate
from ingot.ir.kernel import Buffer, Expr
from ingot.ir.node import Node, topological
from ingot.ir.types import DType
from ingot.ops.core.base import identity_of
from ingot.ops.group import centered_squares
from ingot.schedule import index as ix
from ingot.schedule.block import Block
from ingot.schedule.emit import Emitter, Index, Leaf, reshape_index
from ingot.schedule.folds import accumulator, combining_op
from ingot.schedule.gpu.blocks import (
    ALIGNMENT_BYTES,
    Group,
    Span,
    constant_tile,
    power_of_two,
    read_at,
    register,
    store_tile,
    write,
)
from ingot.schedule.gpu.rows import reduction_levels
from ingot.schedule.group_io import result_index
from ingot.schedule.index import ZERO, dim_expr, integer
from ingot.schedule.lowered import Arg, Step
from ingot.schedule.row_box import Rows, reduction, reductions_of, rows_of
from ingot.support.dataclass import dataclass

MAX_FOLD_ROWS, MIN_FOLD_COLUMNS, MAX_FOLD_COLUMNS = 1024, 8, 64  # of a tile of partial sums
FOLD_ELEMENTS = 2048  # of such a tile of more columns than the fewest
MAX_FOLD_WARPS = 16
MERGED_PIECES = 64  # whose sums a program merges
LOOP_ROWS = 256  # of a tile of partial sums whose number is symbolic
SQUARES = "squares"  # the kind of partial sums of squares around the mean of a tile


@dataclass(frozen=True)
class _Partial:
    """What each tile stores of the rows of `value`: its reduction of `kind`, or SQUARES."""

    kind: str
    value: Node
    buffer: Buffer
    arg: Arg

    @property
    def combine(self) -> str:
        return combining_op("sum" if self.kind == SQUARES else self.kind, self.buffer.dtype)

    @property
    def identity(self) -> float:
        return identity_of("sum" if self.kind == SQUARES else self.kind, self.buffer.dtype)


_Values: TypeAlias = dict[tuple[str, Node], Expr]  # by kind and value
_Tile: TypeAlias = tuple[Span, _Values]  # rows of partial sums


@dataclass(frozen=True)
class TilePlace:
    """Where a piece of a tile is: its first row, its number among the pieces of a tile's rows, and its columns."""

    row: Expr
    piece: int
    columns: Expr


@dataclass(frozen=True)
class ColumnSums:
    """The reductions of a contraction's group. row_count, columns: of the result. pieces: where the pieces of a tile's
    rows begin, and their sizes; each has partial sums of its own."""

    group: Group
    anchor: Node
    box: Rows
    row_count: DimLike
    columns: DimLike
    pieces: tuple[tuple[int, int], ...]
    partials: tuple[_Partial, ...]
    row_results: frozenset[Node]

    @staticmethod
    def of(
        group: Group, anchor: Node, row_count: DimLike, columns: DimLike, pieces: Sequence[tuple[int, int]], temps: int
    ) -> ColumnSums | None:
        """The reductions of a group whose kernels have `temps` other temporaries; None if there are none."""
        box = rows_of(group.body)
        if box is None:
            return None
        kinds: dict[tuple[str, Node], DType] = {}
        for r in reductions_of(group.body):
            squares = centered_squares(r)
            value, own = (r.inputs[0], (reduction(r).kind,)) if squares is None else (squares[0], ("sum", SQUARES))
            kinds |= {(kind, value): accumulator(value.dtype) for kind in own}
        partials: list[_Partial] = []
        for i, ((kind, value), dtype) in enumerate(kinds.items()):
            buffer = Buffer(f"partial{i}", dtype, writable=True, align=ALIGNMENT_BYTES)
            partials.append(_Partial(kind, value, buffer, Arg("temp", temps + i)))
        reductions = set(reductions_of(group.body))
        row_results = {n for n in group.body.outputs if not reductions.isdisjoint(topological([n]))}
        return ColumnSums(
            group, anchor, box, row_count, columns, tuple(pieces), tuple(partials), frozenset(row_results)
        )

    @property
    def tile_rows(self) -> int:
        return sum(size for _, size in self.pieces)

    @property
    def partial_rows(self) -> DimLike:
        """The number of pieces of all row tiles."""
        return ceildiv(self.row_count, self.tile_rows) * len(self.pieces)

    @cached_property
    def merged(self) -> ColumnSums | None:
        """The sums of groups of pieces, where there are more pieces than a tile has rows."""
        if not isinstance(self.partial_rows, int) or self.partial_rows <= MAX_FOLD_ROWS:
            return None
        rows = self.tile_rows * (MERGED_PIECES // len(self.pieces))
        partials = tuple(
            replace(
                p,
                buffer=replace(p.buffer, name=f"merged_{p.buffer.name}"),
                arg=replace(p.arg, index=p.arg.index + len(self.partials)),
            )
            for p in self.partials
        )
        return replace(self, pieces=((0, rows),), partials=partials)

    @property
    def temps(self) -> tuple[DimLike, ...]:
        """The bytes of each buffer of partial sums, then of merged ones."""
        own = tuple(self.partial_rows * self.columns * p.buffer.dtype.nbytes for p in self.partials)
        return own if self.merged is None else (*own, *self.merged.temps)

    @property
    def params(self) -> tuple[tuple[Buffer, Arg], ...]:
        return tuple((p.buffer, p.arg) for p in self.partials)

    def store_partials(
        self, block: Block, em: Emitter, index: Index, place: TilePlace, rows: Expr | None, columns: Expr | None
    ) -> None:
        """Store the sums over a tile. index: of its elements in the anchor's result. rows, columns: in bounds."""
        tile = k.binary("div", place.row, integer(self.tile_rows))
        number = ix.add(ix.mul(tile, integer(len(self.pieces))), integer(place.piece))
        offset = block.let(k.add(k.mul(number, dim_expr(self.columns)), place.columns), "at")
        size = self.pieces[place.piece][1]
        sums: dict[Node, Expr] = {}
        for p in self.partials:  # the sum of a value is before its squares
            value_index = result_index(block, p.value, self.anchor, index)
            value = k.cast(em.value(block, p.value, value_index, columns), p.buffer.dtype)
            value = k.spread(value, (size, place.columns.lanes))
            if p.kind == SQUARES:
                count = self._count(block, place.row, integer(size), value.dtype)
                value = block.let(k.sub(value, self._mean(block, sums[p.value], count)), "d")
                value = k.mul(value, value)
            value = block.let(k.reduce_axis(p.combine, _where(block, rows, value, p.identity), 0), "partial")
            sums |= {p.value: value} if p.kind == "sum" else {}
            store_tile(block, p.buffer, offset, value, columns)

    def _count(self, block: Block, first: Expr, size: Expr, dtype: DType) -> Expr:
        """The number of rows in bounds of a piece that has `size` rows from `first` on."""
        if isinstance(self.row_count, int) and self.row_count % self.tile_rows == 0:
            return k.cast(size, dtype)
        left = k.binary("max", k.sub(dim_expr(self.row_count), first), ZERO)
        return block.let(k.cast(k.binary("min", left, size), dtype), "n")

    def _mean(self, block: Block, total: Expr, count: Expr) -> Expr:
        """The mean of the rows of a piece; 0 if it has none."""
        return block.let(k.binary("div", total, k.binary("max", count, k.lit(1.0, count.dtype))), "mean")

    def _piece_counts(self, block: Block, numbers: Expr, dtype: DType) -> Expr:
        """The number of rows in bounds of each piece."""
        count = integer(len(self.pieces))
        tile, piece = k.binary("div", numbers, count), k.binary("rem", numbers, count)
        first, size = k.mul(tile, integer(self.tile_rows)), integer(self.pieces[0][1])
        for number, (start, own_size) in enumerate(self.pieces[1:], 1):
            is_piece = k.binary("eq", piece, integer(number))
            first = k.add(first, k.select(is_piece, integer(start), ZERO))
            size = k.select(is_piece, integer(own_size), size)
        return self._count(block, first, size, dtype)

    def fold_steps(self) -> tuple[Step, ...]:
        """The kernels that add up the tiles' sums and compute the results."""
        merged = self.merged
        return (self._fold_step(),) if merged is None else (self._merge_step(merged), *merged.fold_steps())

    def _merge_step(self, merged: ColumnSums) -> Step:
        """The kernel that adds up the sums of groups of pieces."""
        top, chunk = Block(), k.var("chunk")
        width = min(MAX_FOLD_COLUMNS, power_of_two(estimate(self.columns)))
        blocks, tile = ceildiv(self.columns, width), (MERGED_PIECES, width)
        group, column = (top.let(k.binary(o, chunk, dim_expr(blocks)), "n") for o in ("div", "rem"))
        columns = Span.of(top, k.mul(column, integer(width)), width, self.columns, 1, wraps=True)
        rows, values = self._read(top, k.mul(group, integer(MERGED_PIECES)), MERGED_PIECES, columns)
        offset = top.let(k.add(k.mul(group, dim_expr(self.columns)), columns.position), "at")
        totals: dict[Node, Expr] = {}
        for p, target in zip(self.partials, merged.partials, strict=True):
            value = values[p.kind, p.value]
            if p.kind == SQUARES:
                size = integer(merged.tile_rows)
                count = merged._count(top, k.mul(group, size), size, value.dtype)
                value = self._squares(top, values, p.value, rows, self._mean(top, totals[p.value], count))
            value = _where(top, rows.in_bounds, k.spread(value, tile), p.identity)
            total = top.let(k.reduce_axis(p.combine, value, 0), "total")
            totals |= {p.value: total} if p.kind == "sum" else {}
            store_tile(top, target.buffer, offset, total, columns.in_bounds)
        chunks = ceildiv(self.partial_rows, MERGED_PIECES) * blocks
        return self.group.step("merged", chunk, chunks, top, *self.params, *merged.params, warps=_warps(tile))

    def _fold_step(self) -> Step:
        """The kernel that adds up all sums of a column."""
        is_tile = isinstance(self.partial_rows, int) and self.partial_rows <= MAX_FOLD_ROWS
        height = power_of_two(max(1, estimate(self.partial_rows))) if is_tile else LOOP_ROWS
        width = min(MAX_FOLD_COLUMNS, max(MIN_FOLD_COLUMNS, FOLD_ELEMENTS // height))
        top, chunk, em = Block(), k.var("chunk"), self.group.emitter()
        columns = Span.of(top, k.mul(chunk, integer(width)), width, self.columns, 1, wraps=True)
        tile = self._read(top, ZERO, height, columns) if is_tile else None
        for level in reduction_levels(self.group.body):
            for r in level:
                value = self._fold(top, em, r, columns, (height, width), tile)
                self._bind(em, top, r, top.let(k.cast(value, r.dtype), "fold"))
        for root, buffer, layout in self.group.results:
            if root in self.row_results:
                at = reshape_index(top, root.shape, (self.columns,), (columns.position,))
                write(top, em, root, buffer, layout, at, None, columns.in_bounds)
        chunks = ceildiv(self.columns, width)
        return self.group.step("column_sums", chunk, chunks, top, *self.params, warps=_warps((height, width)))

    def _bind(self, em: Emitter, top: Block, r: Node, value: Expr) -> None:
        em.bind(r, Leaf(lambda b, index, mask: value, home=top))

    def _read(self, block: Block, first: Expr, height: int, columns: Span) -> _Tile:
        """The partial sums of `height` pieces from `first` on."""
        rows = Span.of(block, first, height, self.partial_rows, 0, wraps=True)
        flat = block.let(k.add(k.mul(rows.position, dim_expr(self.columns)), columns.position), "flat")
        return rows, {(p.kind, p.value): read_at(block, p.buffer, flat, None) for p in self.partials}

    def _squares(self, block: Block, values: _Values, value: Node, rows: Span, center: Expr) -> Expr:
        """The sums of squares of pieces around `center`."""
        squares, sums = values[SQUARES, value], values["sum", value]
        count = self._piece_counts(block, rows.position, squares.dtype)
        distance = block.let(k.sub(self._mean(block, sums, count), center), "d")
        return k.add(squares, k.mul(k.mul(distance, distance), count))

    def _fold(
        self, top: Block, em: Emitter, r: Node, columns: Span, shape: tuple[int, int], tile: _Tile | None
    ) -> Expr:
        """The value of a reduction for the columns of a program, as a row. tile: the sums of all pieces; None: they are
        read in a loop."""
        squares = centered_squares(r)
        kept = [d for d in self.box.kept_dims if self.box.shape[d] != 1] or [*self.box.kept_dims[-1:]]
        index = tuple(columns.position if d in kept else ZERO for d in range(len(self.box.shape)))
        key = (reduction(r).kind, r.inputs[0]) if squares is None else (SQUARES, squares[0])
        main = next(p for p in self.partials if (p.kind, p.value) == key)
        center = None if squares is None else k.cast(em.value(top, squares[1], index, None), main.buffer.dtype)

        def value_of(block: Block, rows: Span, values: _Values) -> Expr:
            value = values[key] if center is None else self._squares(block, values, main.value, rows, center)
            return _where(block, rows.in_bounds, k.spread(value, shape), main.identity)

        if tile is not None:
            return k.reduce_axis(main.combine, value_of(top, *tile), 0)
        total = register(top, "total", constant_tile(main.buffer.dtype, shape, main.identity))

        def add(block: Block, first: Expr) -> None:
            value = value_of(block, *self._read(block, first, shape[0], columns))
            block.store(total, ZERO, k.binary(main.combine, k.load(total, ZERO), value))

        top.loop("p", 0, self.partial_rows, shape[0], add)
        return k.reduce_axis(main.combine, k.load(total, ZERO), 0)


def _warps(tile: tuple[int, int]) -> int:
    return min(MAX_FOLD_WARPS, max(1, tile[0] * tile[1] // 256))


def _where(block: Block, mask: Expr | None, value: Expr, fill: float) -> Expr:
    """`value` where the mask is true, else `fill`."""
    if mask is None:
        return block.let(value, "v")
    mask, value, other = k.broadcast(mask, value, k.lit(fill, value.dtype))
    return block.let(k.select(mask, value, other), "v")


__all__ = ["ColumnSums", "TilePlace"]
