"""Contractions as products of tiles: matmuls, and convolutions as matmuls of windows (implicit GEMM).

    for a tile of rows and columns of the result:
        for k in steps:  acc = a[rows, k] @ b[k, columns] + acc
        result = epilogue(acc)

Rows, columns and the reduction are flat indices over the op's axes. The offset of an operand's element is the sum of a
part by its row or column and a part by the reduction, so the offsets of a whole tile are one addition.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product as product_of
from math import inf
from typing import TypeAlias

from ingot.ir import kernel as k
from ingot.ir.dims import DimLike, ceildiv, estimate, product
from ingot.ir.kernel import Buffer, Expr, ReleaseConsumers, Tile
from ingot.ir.layout import Layout
from ingot.ir.node import Graph, Node
from ingot.ir.types import bf16
from ingot.ops.core.base import is_contraction
from ingot.schedule import index as ix
from ingot.schedule.axes import Axis, merge_axes
from ingot.schedule.block import Block
from ingot.schedule.choice import Site, Tiling
from ingot.schedule.dimension_numbers import Loops, loops_of
from ingot.schedule.folds import accumulator_of
from ingot.schedule.gpu.blocks import (
    Group,
    all_of,
    constant_tile,
    offset_of,
    pieces_of,
    read_at,
    register,
    tile_index,
)
from ingot.schedule.gpu.contraction.boxes import Box, Boxes, limbs_of, limbs_step, sums_of_limbs
from ingot.schedule.gpu.contraction.column_sums import ColumnSums, TilePlace
from ingot.schedule.gpu.contraction.columns import strided_terms
from ingot.schedule.gpu.contraction.depthwise.product import is_depthwise, lower_depthwise
from ingot.schedule.gpu.contraction.levels.packed import step_of_levels
from ingot.schedule.gpu.contraction.levels.tile import TileOfLevels
from ingot.schedule.gpu.contraction.limbs import LIMBS
from ingot.schedule.gpu.contraction.open_rows import lower_open_rows
from ingot.schedule.gpu.contraction.operand_types import Multiplied
from ingot.schedule.gpu.contraction.operands import Operand, Operands, Source
from ingot.schedule.gpu.contraction.reduction import TermBlocks, reduction_offsets
from ingot.schedule.gpu.contraction.single_row import has_single_row, lower_single_row
from ingot.schedule.gpu.contraction.sums import WHOLE, Lines, ResultTile, SplitSums, WorkItem, part_length
from ingot.schedule.gpu.contraction.tiles import Extent, Place, piece_starts, tile_of_program, vectors_first
from ingot.schedule.gpu.contraction.tiling import ProductShape
from ingot.schedule.gpu.machine import Machine
from ingot.schedule.gpu.sites import decided, product_site
from ingot.schedule.index import ZERO, dim_expr, integer
from ingot.schedule.lowered import Arg, Lowered, Step
from ingot.support.dataclass import dataclass

MAX_JOINED_ELEMENTS = 4 * 64 * 64  # of the parts of a tile that the last of its programs adds
MIN_BLOCK_TERMS = 32  # of a k-step
MIN_RUN = 16  # elements side by side of rows and of columns that are read in blocks of terms


def lower_contraction(group: Group, machine: Machine) -> Lowered:
    """Lower a product of two operands in memory and its pointwise epilogue. A constant B is repacked with contiguous
    columns, or with contiguous terms if it has 8 bits."""
    anchors = tuple(filter(is_contraction, group.body.nodes()))
    if is_depthwise(anchors[0]):
        return lower_depthwise(group, anchors[0], machine)
    if has_single_row(anchors[0]):
        return lower_single_row(group, anchors, machine)
    (anchor,) = anchors
    a, b = (Layout.contiguous(x.shape) for x in anchor.inputs)
    rows = product(x.extent for x in loops_of(anchor, a, b).rows)
    return lower_open_rows(rows, lambda: _Product.of(group, anchor, machine).lower(machine))


def tiles_of(t: Tiling) -> tuple[Tile, ...]:
    """The tiles of values that the tile of a program consists of: pieces of its rows by pieces of its columns."""
    return tuple(product_of(pieces_of(t.rows), pieces_of(t.columns)))


# (block, first term, number of terms, axis of the tile) -> the terms' offsets in the operand, and a mask
_TermOffsets: TypeAlias = "Callable[[Block, Expr, int, int], tuple[Expr, Expr | None]]"


@dataclass(frozen=True)
class _Product:
    group: Group
    anchor: Node
    a: Operand
    b: Source
    tiling: Tiling
    site: Site
    multiplied: Multiplied
    boxes: Boxes | None  # None: the tiling copies by addresses
    matrices: Boxes | None  # of f32, of whose limbs `boxes` are

    @staticmethod
    def of(group: Group, anchor: Node, machine: Machine) -> _Product:
        operands = Operands.of(group, anchor, machine)
        multiplied, matrices = operands.multiplied, operands.matrices
        shape = _shape_of(group.body, anchor, operands, machine)
        site = product_site(group.body, (anchor,), operands.loops, shape, machine, packed=operands.is_rewritten)
        tiling = decided(site, machine, Tiling)
        first = 0 if tiling.parts == 1 else len(tiles_of(tiling))  # of the temporaries behind those of parts
        boxes = operands.boxes(machine, Arg("temp", first)) if tiling.boxes else None
        if matrices is not None:
            depth = product(x.extent for x in operands.loops.reduce)
            terms = estimate(part_length(depth, tiling.depth, tiling.parts)) * tiling.parts
            boxes = limbs_of(matrices, terms, (Arg("temp", first), Arg("temp", first + 1)))
        by_boxes = boxes is not None and not multiplied.bf16x6
        b = operands.source(group, anchor, Arg("temp", first), by_boxes=by_boxes)
        return _Product(group.without(*b.unread), anchor, operands.a, b, tiling, site, multiplied, boxes, matrices)

    @property
    def loops(self) -> Loops:
        return self.b.loops

    def lower(self, machine: Machine) -> Lowered:
        loops, t = self.loops, self.tiling
        top, chunk = Block(), k.var("chunk")
        m, n, batches = (product(x.extent for x in axes) for axes in (loops.rows, loops.cols, loops.batch))
        extra: list[tuple[Buffer, Arg]]
        tiles, whole_tiles = batches * ceildiv(m, t.rows) * ceildiv(n, t.columns), t.waves * machine.processors
        sums = SplitSums(self.group, (self.anchor,), tiles_of(self.tiling), tiles, t.parts, whole_tiles)
        temps = (*sums.temps, *(() if self.b.copy is None else (self.b.copy.nbytes,)))
        temps = (*temps, *(box.nbytes for box in self.boxes or () if self.matrices))
        column_sums = ColumnSums.of(self.group, self.anchor, m, n, piece_starts(t.rows), len(temps))
        is_large = t.parts * t.rows * t.columns > MAX_JOINED_ELEMENTS
        has_join_kernel = machine.starts_early and is_large and column_sums is None
        sums = replace(sums, has_join_kernel=has_join_kernel, column_sums=column_sums)
        programs = sums.programs
        if t.persistent:
            assert isinstance(tiles, int)
            programs, extra = min(tiles, t.persistent * machine.processors), []

            def next_tile(block: Block, tile: Expr) -> None:
                extra.extend(self._compute(block, sums, WorkItem(ZERO, tile)))

            top.loop("tile", chunk, integer(tiles), programs, next_tile, flatten=True)
        else:
            # a kernel that starts early gets uneven shares of the multiprocessors, which pays only for a single wave
            releases = isinstance(programs, int) and programs <= machine.processors
            extra = self._compute(top, sums, sums.work_item(top, chunk), releases=releases)
        copy_steps, fold_steps = tuple[Step, ...](), tuple[Step, ...]()
        if self.matrices and self.boxes:
            copy_steps = tuple(limbs_step(*pair) for pair in zip(self.matrices, self.boxes, strict=True))
        if self.b.copy is not None:
            copy_steps = (self.b.copy.step,)
        if column_sums is not None:
            extra, fold_steps = [*extra, *column_sums.params], column_sums.fold_steps()
            temps = (*temps, *column_sums.temps)
        step = self.group.step("product", chunk, programs, top, *extra, warps=t.warps, stages=t.stages)
        joined = sums.joined(
            machine, lambda block, tile, lines: self._results(self._extent(block, self._place(block, tile), lines))
        )
        return Lowered((*copy_steps, step, *joined, *fold_steps), temps, self.b.packs, self.site, sums.zeros)

    def _compute(
        self, block: Block, sums: SplitSums, work: WorkItem, *, releases: bool = False
    ) -> list[tuple[Buffer, Arg]]:
        """Compute a tile, or a part of it. Return the buffers that this needs. releases: whether other kernels may
        start after the products."""
        place = self._place(block, work.tile)
        extent, boxes = self._extent(block, place), self._boxes()
        if self.matrices:
            acc, depth = self._zeros(block, tiles_of(self.tiling)[0]), product(x.extent for x in self.loops.reduce)
            length = part_length(depth, self.tiling.depth, self.tiling.parts)
            values = [sums_of_limbs(block, acc, boxes, place, (work.part, estimate(length), self.tiling.depth))]
        elif boxes:
            values = self._sums_by_boxes(block, boxes, place, work)
        else:
            values = [self._sums(block, place, extent, work)]
        if self.multiplied.bf16x6:
            values = [self._finite_or_again(block, place, extent, work, *values)]
        if releases:
            block.stmts.append(ReleaseConsumers())
        box_args = [(buffer, box.arg) for operand in boxes for buffer, box in operand]
        sums_args = sums.finish(block, values, self._results(extent, place), work)
        if not self.tiling.persistent:  # else registers would hold them for a turn
            block.stmts = vectors_first(block.stmts)
        return [*self.b.params, *box_args, *sums_args]

    def _place(self, block: Block, tile: Expr) -> Place:
        """Where a tile is, in bands of row tiles; row tiles vary fastest."""
        t, loops = self.tiling, self.loops
        m, n = (product(x.extent for x in axes) for axes in (loops.rows, loops.cols))
        batch, row, column = tile_of_program(block, tile, ceildiv(m, t.rows), ceildiv(n, t.columns))
        return Place(batch, k.mul(row, integer(t.rows)), k.mul(column, integer(t.columns)))

    def _extent(self, block: Block, place: Place, lines: Lines = WHOLE) -> Extent:
        """What a tile, or some of its lines, covers."""
        loops, t = self.loops, self.tiling
        batch_shape, row_shape, column_shape = (
            tuple(x.extent for x in axes) for axes in (loops.batch, loops.rows, loops.cols)
        )
        rows = [
            tile_index(block, first, count, row_shape, 0, wraps=True, tile=t.rows)
            for first, count in (
                lines.of(block, ix.add(place.row, integer(at)), size) for at, size in piece_starts(t.rows)
            )
        ]
        columns = [
            tile_index(block, ix.add(place.column, integer(at)), size, column_shape, 1, tile=t.columns)
            for at, size in piece_starts(t.columns)
        ]
        batch = ix.delinearize(place.batch, batch_shape, block.multiples) if batch_shape else ()
        return Extent(batch, rows, columns)

    def _results(self, extent: Extent, place: Place | None = None) -> list[ResultTile]:
        """The results of each piece of a tile. place: that of the whole tile, for the reductions of its rows."""
        t, results = self.tiling, list[ResultTile]()
        sides = product_of(enumerate(piece_starts(t.rows)), piece_starts(t.columns))
        pieces = product_of(extent.rows, extent.columns)
        for ((row, row_mask), (column, column_mask)), ((number, (first, _)), (across, width)) in zip(
            pieces, sides, strict=True
        ):
            index = self.loops.result(self.loops.full((*extent.batch, *row, *column)))
            tile_place = None
            if place is not None:
                columns = k.add(ix.add(place.column, integer(across)), k.lane_indices(width, 1))
                tile_place = TilePlace(ix.add(place.row, integer(first)), number, columns)
            results.append(ResultTile(index, row_mask, column_mask, tile_place))
        return results

    def _sums(self, top: Block, place: Place, extent: Extent, work: WorkItem) -> Expr:
        """The tile of the product over the program's part of the reduction."""
        loops, t, dtype, batch = self.loops, self.tiling, accumulator_of(self.anchor), extent.batch
        ((rows, _),), ((columns, column_mask),) = extent.rows, extent.columns
        row_axes, row_mask = loops.rows, None
        # vectors along rows: positions that wrap around are not known to be contiguous
        if self.b.levels is None and self._row_axes[-1].a == 1:
            row_axes = self._row_axes
            rows, row_mask = tile_index(top, place.row, t.rows, tuple(x.extent for x in row_axes), 0)
        a_base = ix.add(dim_expr(self.a.offset), offset_of(batch, [x.a for x in loops.batch]))
        b_base = ix.add(dim_expr(self.b.offset), offset_of(batch, [x.b for x in loops.batch]))
        a_rows = top.let(ix.add(a_base, offset_of(rows, [x.a for x in row_axes])), "a")
        b_columns = top.let(ix.add(b_base, offset_of(columns, [x.b for x in loops.cols])), "b")
        axes = merge_axes(tuple(Axis(x.extent, x.a, x.b) for x in loops.reduce))
        if self.b.levels is not None:
            tile = TileOfLevels(self.b.levels, loops, t.depth, columns, column_mask)
            part = work.k_range(top, t.parts, product(x.extent for x in axes), t.depth)
            terms_dtype = (self.multiplied.dtypes or (self.anchor.inputs[0].dtype,))[0]
            return tile.sums(top, self._zeros(top, (t.rows, t.columns)), (self.a.buffer, a_rows), part, terms_dtype)
        dtypes = self.multiplied.dtypes
        dtypes = dtypes if dtypes and dtypes[0].is_float == dtype.is_float else None
        depth = product(x.extent for x in axes)
        step, blocks = self._blocks(axes, t.depth) if dtypes else (1, None)
        offsets = self._term_offsets(top, axes, blocks)
        acc = self._zeros(top, (t.rows, t.columns))
        begin, end = work.k_range(top, t.parts, depth, t.depth)  # the same parts whatever the step

        def k_step(block: Block, k_index: Expr) -> None:
            a_offset, a_mask = offsets(block, k_index, step, 1)
            x = read_at(block, self.a.buffer, ix.add(a_rows, a_offset), all_of(row_mask, a_mask))
            b_offset, b_mask = offsets(block, k_index, step, 0)
            y = read_at(block, self.b.buffer, ix.add(b_offset, b_columns), all_of(b_mask, column_mask))
            total = k.load(acc, ZERO)
            if dtypes:
                x = k.spread(k.cast(x, dtypes[0]), (t.rows, step))
                y = k.spread(k.cast(y, dtypes[1]), (step, t.columns))
                block.store(acc, ZERO, self.multiplied.product(block, x, y, total))
            else:
                block.store(acc, ZERO, k.fma(*k.broadcast(k.cast(x, dtype), k.cast(y, dtype), total)))

        top.loop("k", begin, end, step, k_step, multiple=step)
        return k.load(acc, ZERO)

    def _finite_or_again(self, top: Block, place: Place, extent: Extent, work: WorkItem, value: Expr) -> Expr:
        """A tile of products of limbs, which is computed again by multiply-adds if it is not finite."""
        assert value.tile is not None
        total = register(top, "total", value)
        magnitude = k.unary("abs", k.load(total, ZERO))
        is_finite = k.reduce("and", k.binary("lt", magnitude, constant_tile(value.dtype, value.tile, inf)))
        by_elements = replace(self, multiplied=Multiplied(None))

        def again(block: Block) -> None:
            block.store(total, ZERO, by_elements._sums(block, place, extent, work))

        top.when(k.unary("not", is_finite), again)
        return k.load(total, ZERO)

    @property
    def _row_axes(self) -> tuple[Axis, ...]:  # with A's strides alone
        return merge_axes(tuple(Axis(x.extent, x.a) for x in self.loops.rows))

    def _blocks(self, axes: Sequence[Axis], step: int) -> tuple[int, TermBlocks | None]:
        """The k-step (`step` or half of it) and the blocks of terms, if rows or columns of the operands are contiguous
        and terms are not, so that vector loads read one term."""
        sides = [x for x in self._row_axes if x.a == 1], [x for x in self.loops.cols if x.b == 1]
        runs = [max((estimate(x.extent) for x in side), default=0) for side in sides]
        if len(axes) > 1 and min(runs) >= MIN_RUN and not any(abs(estimate(s)) == 1 for x in axes for s in (x.a, x.b)):
            for size in (step, step // 2):
                if size >= MIN_BLOCK_TERMS and (blocks := TermBlocks.of(axes, size)) is not None:
                    return size, blocks
        return step, None

    def _term_offsets(self, top: Block, axes: Sequence[Axis], blocks: TermBlocks | None) -> _TermOffsets:
        """The offsets of the terms of a k-step, in A along axis 1 of its tile and in B along axis 0."""

        def strides(axes: Sequence[Axis], axis: int) -> list[DimLike]:
            return [x.a if axis else x.b for x in axes]

        def by_place(block: Block, start: Expr, size: int, axis: int) -> tuple[Expr, Expr | None]:
            return reduction_offsets(block, start, size, axes, axis, strides(axes, axis))

        if blocks is None:
            return by_place
        terms = [blocks.terms(top, axis, strides(blocks.inner, axis)) for axis in (0, 1)]

        def by_block(block: Block, start: Expr, size: int, axis: int) -> tuple[Expr, Expr | None]:
            return ix.add(blocks.starts(block, start, strides(blocks.outer, axis)), terms[axis]), None

        return by_block

    def _zeros(self, top: Block, piece: Tile) -> Buffer:
        """An accumulator, initialized with zeros."""
        return register(top, "acc", constant_tile(accumulator_of(self.anchor), piece))

    def _boxes(self) -> list[list[tuple[Buffer, Box]]]:
        """The buffers and boxes of the pieces of A and of those of B; empty if they are copied by addresses."""
        if self.boxes is None:
            return []
        (a, b), t = self.boxes, self.tiling
        return [
            [(a.buffer(f"a_matrix{i or ''}", (n, t.depth)), a) for i, n in enumerate(pieces_of(t.rows))],
            [(b.buffer(f"b_matrix{i or ''}", (t.depth, n)), b) for i, n in enumerate(pieces_of(t.columns))],
        ]

    def _sums_by_boxes(
        self, top: Block, boxes: Sequence[Sequence[tuple[Buffer, Box]]], place: Place, work: WorkItem
    ) -> list[Expr]:
        """As `_sums`, of each piece of the tile, with operands copied in boxes, which read as zero out of bounds."""
        rows, columns = (
            [(ix.add(first, integer(at)), *operand[i]) for i, (at, _) in enumerate(piece_starts(size))]
            for first, size, operand in (
                (place.row, self.tiling.rows, boxes[0]),
                (place.column, self.tiling.columns, boxes[1]),
            )
        )
        accumulators, step = [self._zeros(top, piece) for piece in tiles_of(self.tiling)], self.tiling.depth
        depth = product(x.extent for x in self.loops.reduce)
        begin, end = work.k_range(top, self.tiling.parts, depth, step)

        def k_step(block: Block, k_index: Expr) -> None:
            xs = [block.let(box.read(a, first, k_index), "x") for first, a, box in rows]
            ys = [block.let(box.read(b, k_index, first), "y") for first, b, box in columns]
            for acc, (x, y) in zip(accumulators, product_of(xs, ys), strict=True):
                block.store(acc, ZERO, self.multiplied.product(block, x, y, k.load(acc, ZERO)))

        top.loop("k", begin, end, step, k_step, multiple=step)
        return [k.load(acc, ZERO) for acc in accumulators]


def _shape_of(body: Graph, anchor: Node, operands: Operands, machine: Machine) -> ProductShape:
    """What the tiling of the product depends on."""
    loops, multiplied, matrices = operands.loops, operands.multiplied, operands.matrices
    extents = (product(x.extent for x in axes) for axes in (loops.rows, loops.cols, loops.reduce, loops.batch))
    rows, columns, terms, batch = extents
    dtype = multiplied.dtypes[0] if multiplied.dtypes else anchor.inputs[0].dtype
    boxes = operands.boxes(machine)
    levels, fixed_step, packed_halves = operands.levels, 0, 1
    if levels is not None:
        fixed_step, packed_halves = step_of_levels(levels, dtype, estimate(rows)), 16 // levels.bits
    products = LIMBS * (LIMBS + 1) // 2 if matrices else 1
    read = {body.inputs[operands.a.at], body.inputs[operands.b.at]}
    others = [n for n in (*body.inputs, *body.outputs) if n not in read]
    return ProductShape(
        rows, columns, products * terms, batch, bf16 if matrices else dtype, fixed_step=fixed_step,
        packed_halves=packed_halves, allows_boxes=boxes is not None or matrices is not None,
        is_a_transposed=boxes is not None and boxes[0].is_transposed,
        costly_ops=sum(n.op.costly for n in body.nodes()),
        epilogue_bytes=sum(n.dtype.nbytes for n in others if n.types[0].size == anchor.types[0].size),
        tf32=multiplied.tf32, bf16x6=multiplied.bf16x6,
        has_strided_terms=multiplied.needs_contiguous_terms and any(strided_terms(operands.read_loops)),
    )  # fmt: skip


__all__ = ["lower_contraction"]
