"""Accumulators of a contraction, with split-K: the parts of a sum are added in a fixed order, so that results are
bit-reproducible. The last program of a small tile to finish does so, and runs the epilogue in the same kernel:

    sums[tile, part] = acc;  if arrived[tile]++ == parts - 1:  out = epilogue(sums[tile, 0] + sums[tile, 1] + ...)

For a large tile this would take longer than the start of another kernel, in which all multiprocessors add the parts.

Only the tiles of the last, incomplete wave may be split; the others are then computed whole. A program's tile may
consist of several pieces, each with accumulators and a result of its own: one of 128x192 of 128x128 and 128x64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ingot.ir import kernel as k
from ingot.ir.dims import DimLike, ceildiv, estimate
from ingot.ir.kernel import Buffer, Expr, Tile
from ingot.ir.node import Node
from ingot.ir.types import i64
from ingot.schedule.block import Block
from ingot.schedule.emit import Index
from ingot.schedule.folds import accumulator_of
from ingot.schedule.gpu.blocks import ALIGNMENT_BYTES, Group, if_last, power_of_two, read_at, store_tile, write
from ingot.schedule.gpu.contraction.column_sums import ColumnSums, TilePlace
from ingot.schedule.gpu.machine import Machine
from ingot.schedule.group_io import bind_result, result_index
from ingot.schedule.index import ZERO, dim_expr, integer
from ingot.schedule.lowered import Arg, Step
from ingot.support.dataclass import dataclass

PARTS_IN_FLIGHT = 8  # parts that are loaded at once
JOIN_WARPS = 4
MAX_ELEMENTS_IN_FLIGHT = 4096  # of a program that adds parts
MIN_ELEMENTS_PER_JOIN, MAX_ELEMENTS_PER_JOIN = 256, 2048  # of one such program


@dataclass(frozen=True)
class ResultTile:
    """A piece of a program's tile: its index in the anchors' results, masks of its rows and columns in bounds, and its
    place, which reductions of its rows need."""

    index: Index
    rows: Expr | None
    columns: Expr | None
    place: TilePlace | None = None


@dataclass(frozen=True)
class Lines:
    """Share `number` of `count` shares of a piece's rows."""

    number: Expr
    count: int

    def of(self, block: Block, first: Expr, size: int) -> tuple[Expr, int]:
        """The first row and the number of rows, of a piece of `size` rows from `first` on."""
        rows = size // self.count
        return (
            (first, size)
            if self.count == 1
            else (block.let(k.add(first, k.mul(self.number, integer(rows))), "line"), rows)
        )


WHOLE = Lines(ZERO, 1)


def part_length(depth: DimLike, step: int, parts: int) -> DimLike:
    """The terms of each part of a reduction but the last."""
    return ceildiv(ceildiv(depth, step), parts) * step


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
        length: Expr = dim_expr(part_length(depth, step, parts))
        begin = top.let(k.mul(self.part, length), "begin")
        if self.is_whole is not None:
            length = k.select(self.is_whole, dim_expr(depth), length)
        return begin, top.let(k.binary("min", k.add(begin, length), dim_expr(depth)), "end")


@dataclass(frozen=True)
class SplitSums:
    """The accumulators of `anchors`, which have the same shape, in the pieces of a program's tile. The reduction of the
    tiles after the first `whole_tiles` is split into `parts`, one program each. has_join_kernel: whether another
    kernel adds them. column_sums: of the results, if the group reduces them."""

    group: Group
    anchors: tuple[Node, ...]
    pieces: tuple[Tile, ...]
    tiles: DimLike
    parts: int
    whole_tiles: int = 0
    has_join_kernel: bool = False
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
        """The bytes of each temporary buffer of partial sums: one for each piece and anchor."""
        count = self.split_tiles * self.parts
        sizes = [count * rows * columns for rows, columns in self.pieces]
        return () if self.parts == 1 else tuple(n * accumulator_of(a).nbytes for n in sizes for a in self.anchors)

    @property
    def zeros(self) -> DimLike:
        return 0 if self.parts == 1 or self.has_join_kernel else self.split_tiles * i64.nbytes

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
        self, top: Block, values: Sequence[Expr], results: Sequence[ResultTile], work: WorkItem
    ) -> tuple[tuple[Buffer, Arg], ...]:
        """Run the epilogue on the complete sums and store its results. values: of each piece the accumulators of the
        anchors. results: of each piece. Return the buffers that this needs."""
        if self.parts == 1:
            self._store(top, values, results)
            return ()
        partial_sums, arrived = self._partial_sums, Buffer("arrived", i64, writable=True, align=ALIGNMENT_BYTES)
        if self.has_join_kernel:

            def store_part(block: Block) -> None:
                self._store_part(block, values, self._split_tile(block, work), work)

            if work.is_whole is None:
                store_part(top)
            else:
                top.when(work.is_whole, lambda block: self._store(block, values, results), store_part)
            return tuple((b, Arg("temp", i)) for i, b in enumerate(partial_sums))
        if work.is_whole is None:
            self._join(top, values, arrived, work, lambda block, sums: self._store(block, sums, results))
        else:
            totals = [top.alloc("total", v.dtype, 1, lanes=v.lanes, tile=v.tile) for v in values]
            has_total = top.alloc("goes_on", i64, 1)

            def save_total(block: Block, sums: Sequence[Expr]) -> None:
                for total, value in zip(totals, sums, strict=True):
                    block.store(total, ZERO, value)
                block.store(has_total, ZERO, integer(1))

            def join_parts(block: Block) -> None:
                block.store(has_total, ZERO, integer(0))
                self._join(block, values, arrived, work, save_total)

            save_total(top, values)
            top.when(k.unary("not", work.is_whole), join_parts)
            runs_epilogue = k.binary("ne", k.load(has_total, ZERO), ZERO)
            top.when(
                runs_epilogue, lambda block: self._store(block, [k.load(total, ZERO) for total in totals], results)
            )
        return *((b, Arg("temp", i)) for i, b in enumerate(partial_sums)), (arrived, Arg("zeros", 0))

    def joined(
        self, machine: Machine, results: Callable[[Block, Expr, Lines], Sequence[ResultTile]]
    ) -> tuple[Step, ...]:
        """The kernel that adds the parts and runs the epilogue, if there is one. results: of the pieces of a tile, or
        of some of its lines."""
        if self.parts == 1 or not self.has_join_kernel:
            return ()
        top, chunk = Block(), k.var("chunk")
        size = sum(rows * columns for rows, columns in self.pieces)
        share = estimate(self.split_tiles) * size // machine.target_programs
        elements = max(MIN_ELEMENTS_PER_JOIN, min(share, MAX_ELEMENTS_PER_JOIN))
        count = min(power_of_two(max(1, size // elements)), *(rows for rows, _ in self.pieces))
        tile = top.let(k.binary("div", chunk, integer(count)), "own")
        lines = Lines(top.let(k.binary("rem", chunk, integer(count)), "share"), count)
        values: list[Expr] = []
        for buffer, piece in self._sums_of_pieces:
            values.append(
                self._add_parts(top, replace(buffer, writable=False), *self._elements(top, tile, piece, lines))
            )
        own = tile if self.whole_tiles == 0 else k.add(tile, integer(self.whole_tiles))
        self._store(top, values, results(top, own, lines))
        extra = ((replace(b, writable=False), Arg("temp", i)) for i, b in enumerate(self._partial_sums))
        return (self.group.step("sums", chunk, self.split_tiles * count, top, *extra, warps=JOIN_WARPS, stages=1),)

    @property
    def _sums_of_pieces(self) -> list[tuple[Buffer, Tile]]:
        """The buffers of partial sums, of each piece and anchor."""
        pairs = [(piece, anchor) for piece in self.pieces for anchor in self.anchors]
        return [
            (Buffer(f"sums{n or ''}", accumulator_of(anchor), writable=True, align=ALIGNMENT_BYTES), piece)
            for n, (piece, anchor) in enumerate(pairs)
        ]

    @property
    def _partial_sums(self) -> list[Buffer]:
        return [buffer for buffer, _ in self._sums_of_pieces]

    def _split_tile(self, block: Block, work: WorkItem) -> Expr:
        """The number of a tile among those that are split."""
        return work.tile if work.is_whole is None else block.let(k.sub(work.tile, integer(self.whole_tiles)), "own")

    def _store_part(self, block: Block, values: Sequence[Expr], split_tile: Expr, work: WorkItem) -> None:
        for (buffer, piece), value in zip(self._sums_of_pieces, values, strict=True):
            flat, size = self._elements(block, split_tile, piece)
            store_tile(block, buffer, k.add(flat, k.mul(work.part, size)), value)

    def _join(
        self, block: Block, values: Sequence[Expr], arrived: Buffer, work: WorkItem,
        continuation: Callable[[Block, Sequence[Expr]], None],
    ) -> None:  # fmt: skip
        """Store the sums of this part; the last program of the tile adds all parts and runs `continuation`."""
        split_tile = self._split_tile(block, work)
        elements = [self._elements(block, split_tile, piece) for _, piece in self._sums_of_pieces]
        for buffer, value, (flat, size) in zip(self._partial_sums, values, elements, strict=True):
            store_tile(block, buffer, k.add(flat, k.mul(work.part, size)), value)

        def add_all(block: Block) -> list[Expr]:
            return [self._add_parts(block, b, *at) for b, at in zip(self._partial_sums, elements, strict=True)]

        if_last(block, self.parts, arrived, split_tile, lambda b: continuation(b, add_all(b)))

    def _elements(self, block: Block, split_tile: Expr, piece: Tile, lines: Lines = WHOLE) -> tuple[Expr, Expr]:
        """The offsets of a piece's sums of the first part, and the distance to those of the next part."""
        rows, columns = piece
        first, count = lines.of(block, ZERO, rows)
        across = k.lane_indices(columns, 1)
        down = k.lane_indices(count, 0) if lines.count == 1 else k.add(first, k.lane_indices(count, 0))
        element = across if rows == 1 else k.add(k.mul(down, integer(columns)), across)
        tile_start = k.mul(split_tile, integer(self.parts * rows * columns))
        return block.let(k.add(tile_start, element), "flat"), integer(rows * columns)

    def _add_parts(self, block: Block, buffer: Buffer, flat: Expr, size: Expr) -> Expr:
        """The sum of all parts, in their order."""

        def add(block: Block, total: Expr | None, first_part: Expr, count: int) -> Expr:
            for number in range(count):
                offset = k.add(flat, k.mul(k.add(first_part, integer(number)), size))
                value = read_at(block, buffer, offset, None)
                total = value if total is None else block.let(k.add(total, value), "sum")
            assert total is not None
            return total

        in_flight = (
            max(PARTS_IN_FLIGHT, MAX_ELEMENTS_IN_FLIGHT // flat.lanes) if self.has_join_kernel else PARTS_IN_FLIGHT
        )
        if self.parts <= 2 * in_flight:
            return add(block, None, ZERO, self.parts)
        total = block.alloc("total", buffer.dtype, 1, lanes=flat.lanes, tile=flat.tile)
        remainder = self.parts % in_flight or in_flight
        block.store(total, ZERO, add(block, None, ZERO, remainder))

        def several(inner: Block, first_part: Expr) -> None:
            inner.store(total, ZERO, add(inner, k.load(total, ZERO), first_part, in_flight))

        block.loop("p", remainder, self.parts, in_flight, several)
        return k.load(total, ZERO)

    def _store(self, block: Block, values: Sequence[Expr], results: Sequence[ResultTile]) -> None:
        count = len(self.anchors)
        for number, result in enumerate(results):
            em = self.group.emitter(() if result.columns is None else (result.columns,))
            for anchor, value in zip(self.anchors, values[number * count : (number + 1) * count], strict=True):
                bind_result(em, block, anchor, block.let(k.cast(value, anchor.dtype), "acc"))
            for root, buffer, layout in self.group.results:
                if self.column_sums is None or root not in self.column_sums.row_results:
                    index = result_index(block, root, self.anchors[0], result.index)
                    write(block, em, root, buffer, layout, index, result.columns, result.rows)
            if self.column_sums is not None and result.place is not None:
                self.column_sums.store_partials(block, em, result.index, result.place, result.rows, result.columns)


__all__ = ["ResultTile", "SplitSums", "WorkItem", "part_length"]
