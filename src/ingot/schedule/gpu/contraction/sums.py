"""Accumulators of a contraction, with split-K: the last program of a tile to finish adds the parts in a fixed order, so
that results are bit-reproducible, and runs the epilogue in the same kernel.

    sums[tile, part] = acc;  if arrived[tile]++ == parts - 1:  out = epilogue(sums[tile, 0] + sums[tile, 1] + ...)

Only the tiles of the last, incomplete wave may be split; the others are then computed whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ingot.ir import kernel as k
from ingot.ir.dims import DimLike, ceildiv
from ingot.ir.kernel import Buffer, Expr, Tile
from ingot.ir.node import Node
from ingot.ir.types import i64
from ingot.schedule.block import Block
from ingot.schedule.emit import Index
from ingot.schedule.folds import accumulator_of
from ingot.schedule.gpu.blocks import ALIGNMENT_BYTES, Group, if_last, read_at, store_tile, write
from ingot.schedule.gpu.contraction.column_sums import ColumnSums, TilePlace
from ingot.schedule.group_io import bind_result, result_index
from ingot.schedule.index import ZERO, dim_expr, integer
from ingot.schedule.lowered import Arg
from ingot.support.dataclass import dataclass

PARTS_IN_FLIGHT = 8  # parts that are loaded at once


@dataclass(frozen=True)
class ResultTile:
    """The result tile of a program: its index in the anchors' results, masks of its rows and columns in bounds, and its
    place, which reductions of its rows need."""

    index: Index
    rows: Expr | None
    columns: Expr | None
    place: TilePlace | None = None


@dataclass(frozen=True)
class WorkItem:
    """What a program computes: part `part` of the reduction of tile `tile`, or all of it where `is_whole` is true."""

    part: Expr
    tile: Expr
    is_whole: Expr | None = None

    def k_range(self, top: Block, parts: int, depth: DimLike, step: int) -> tuple[Expr, Expr]:
        """The bounds (begin, end) of its part of the reduction; all parts but the last are multiples of `step`."""
        if parts == 1:
            return ZERO, dim_expr(depth)
        length: Expr = dim_expr(ceildiv(ceildiv(depth, step), parts) * step)
        begin = top.let(k.mul(self.part, length), "begin")
        if self.is_whole is not None:
            length = k.select(self.is_whole, dim_expr(depth), length)
        return begin, top.let(k.binary("min", k.add(begin, length), dim_expr(depth)), "end")


@dataclass(frozen=True)
class SplitSums:
    """The accumulators of `anchors`, which have the same shape. The reduction of the tiles after the first
    `whole_tiles` is split into `parts`, one program each. column_sums: of the results, if the group reduces them."""

    group: Group
    anchors: tuple[Node, ...]
    tile: Tile
    tiles: DimLike
    parts: int
    whole_tiles: int = 0
    column_sums: ColumnSums | None = None

    @property
    def split_tiles(self) -> DimLike:
        """The number of tiles whose reduction is split."""
        return self.tiles - self.whole_tiles

    @property
    def programs(self) -> DimLike:
        return self.whole_tiles + self.split_tiles * self.parts

    @property
    def temps(self) -> tuple[DimLike, ...]:
        """The bytes of each temporary buffer of partial sums."""
        size = self.split_tiles * self.parts * self.tile[0] * self.tile[1]
        return () if self.parts == 1 else tuple(size * accumulator_of(n).nbytes for n in self.anchors)

    @property
    def zeros(self) -> DimLike:
        return 0 if self.parts == 1 else self.split_tiles * i64.nbytes

    def work_item(self, top: Block, chunk: Expr) -> WorkItem:
        if self.parts == 1:
            return WorkItem(ZERO, chunk)
        split_tiles, whole_tiles = dim_expr(self.split_tiles), integer(self.whole_tiles)
        split_index = chunk if self.whole_tiles == 0 else top.let(k.sub(chunk, whole_tiles), "behind")
        part, tile = k.binary("div", split_index, split_tiles), k.binary("rem", split_index, split_tiles)
        if self.whole_tiles == 0:
            return WorkItem(top.let(part, "part"), top.let(tile, "own"))
        is_whole = top.let(k.binary("lt", chunk, whole_tiles), "alone")
        part, tile = k.select(is_whole, ZERO, part), k.select(is_whole, chunk, k.add(tile, whole_tiles))
        return WorkItem(top.let(part, "part"), top.let(tile, "own"), is_whole)

    def finish(
        self, top: Block, values: Sequence[Expr], result: ResultTile, work: WorkItem
    ) -> tuple[tuple[Buffer, Arg], ...]:
        """Run the epilogue on the complete sums and store its results. Return the buffers that this needs."""
        if self.parts == 1:
            self._store(top, values, result)
            return ()
        partial_sums = [
            Buffer(f"sums{n or ''}", value.dtype, writable=True, align=ALIGNMENT_BYTES)
            for n, value in enumerate(values)
        ]
        arrived = Buffer("arrived", i64, writable=True, align=ALIGNMENT_BYTES)
        if work.is_whole is None:
            self._join(top, values, partial_sums, arrived, work, lambda block, sums: self._store(block, sums, result))
        else:
            totals = [top.alloc("total", v.dtype, 1, lanes=v.lanes, tile=v.tile) for v in values]
            has_total = top.alloc("goes_on", i64, 1)

            def save_total(block: Block, sums: Sequence[Expr]) -> None:
                for total, value in zip(totals, sums, strict=True):
                    block.store(total, ZERO, value)
                block.store(has_total, ZERO, integer(1))

            def join_parts(block: Block) -> None:
                block.store(has_total, ZERO, integer(0))
                self._join(block, values, partial_sums, arrived, work, save_total)

            save_total(top, values)
            top.when(k.unary("not", work.is_whole), join_parts)
            runs_epilogue = k.binary("ne", k.load(has_total, ZERO), ZERO)
            top.when(runs_epilogue, lambda block: self._store(block, [k.load(total, ZERO) for total in totals], result))
        return *((b, Arg("temp", i)) for i, b in enumerate(partial_sums)), (arrived, Arg("zeros", 0))

    def _join(
        self, block: Block, values: Sequence[Expr], partial_sums: Sequence[Buffer], arrived: Buffer, work: WorkItem,
        continuation: Callable[[Block, Sequence[Expr]], None],
    ) -> None:  # fmt: skip
        """Store the sums of this part; the last program of the tile adds all parts and runs `continuation`."""
        rows, columns = self.tile
        split_tile = (
            work.tile if work.is_whole is None else block.let(k.sub(work.tile, integer(self.whole_tiles)), "own")
        )
        across = k.lane_indices(columns, 1)
        element = across if rows == 1 else k.add(k.mul(k.lane_indices(rows, 0), integer(columns)), across)
        size, tile_start = integer(rows * columns), k.mul(split_tile, integer(self.parts * rows * columns))
        flat = block.let(k.add(tile_start, element), "flat")
        for buffer, value in zip(partial_sums, values, strict=True):
            store_tile(block, buffer, k.add(flat, k.mul(work.part, size)), value)

        def add_parts(block: Block, buffer: Buffer, total: Expr | None, first_part: Expr, count: int) -> Expr:
            for number in range(count):
                offset = k.add(flat, k.mul(k.add(first_part, integer(number)), size))
                value = read_at(block, buffer, offset, None)
                total = value if total is None else block.let(k.add(total, value), "sum")
            assert total is not None
            return total

        def add_all_parts(block: Block, buffer: Buffer) -> Expr:
            if self.parts <= 2 * PARTS_IN_FLIGHT:
                return add_parts(block, buffer, None, ZERO, self.parts)
            total = block.alloc("total", buffer.dtype, 1, lanes=rows * columns, tile=self.tile)
            remainder = self.parts % PARTS_IN_FLIGHT or PARTS_IN_FLIGHT
            block.store(total, ZERO, add_parts(block, buffer, None, ZERO, remainder))

            def several(inner: Block, first_part: Expr) -> None:
                inner.store(total, ZERO, add_parts(inner, buffer, k.load(total, ZERO), first_part, PARTS_IN_FLIGHT))

            block.loop("p", remainder, self.parts, PARTS_IN_FLIGHT, several)
            return k.load(total, ZERO)

        if_last(
            block,
            self.parts,
            arrived,
            split_tile,
            lambda b: continuation(b, [add_all_parts(b, buffer) for buffer in partial_sums]),
        )

    def _store(self, block: Block, values: Sequence[Expr], result: ResultTile) -> None:
        em = self.group.emitter(() if result.columns is None else (result.columns,))
        for anchor, value in zip(self.anchors, values, strict=True):
            bind_result(em, block, anchor, block.let(k.cast(value, anchor.dtype), "acc"))
        row_results = frozenset[Node]() if self.column_sums is None else self.column_sums.row_results
        for root, buffer, layout in self.group.results:
            if root not in row_results:
                index = result_index(block, root, self.anchors[0], result.index)
                write(block, em, root, buffer, layout, index, result.columns, result.rows)
        if self.column_sums is not None and result.place is not None:
            self.column_sums.store_partials(block, em, result.index, result.place, result.rows, result.columns)


__all__ = ["ResultTile", "SplitSums", "WorkItem"]
