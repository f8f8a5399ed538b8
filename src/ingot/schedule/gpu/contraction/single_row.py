"""Products of a single row, as in a decoder's step. Loading weights dominates, so each is loaded once by wide loads,
and those of the next k-step are prefetched, those of the first one before the kernels end that produce the row.

    for each k-step:  acc[columns, terms] += a[terms] * b[columns, terms]
    result = epilogue(sum of acc along the terms)

A constant B is packed with contiguous terms. `levels/row.py` has B of 4 and 8 bits.

A norm in front of the product is computed by each program, as the row is short beside its columns. Products of the same
row whose results are combined share the kernel.
"""

from __future__ import annotations

from collections.abc import Sequence

from ingot.ir import kernel as k
from ingot.ir.dims import DimLike, ceildiv, estimate, product
from ingot.ir.kernel import AwaitProducers, Buffer, Expr, Lit, ReleaseConsumers
from ingot.ir.layout import Layout
from ingot.ir.node import Node
from ingot.ops import Dequantize, Reshape
from ingot.ops.views import base_of
from ingot.schedule import index as ix
from ingot.schedule.axes import Axis, merge_axes
from ingot.schedule.block import Block
from ingot.schedule.choice import Site, Tiling
from ingot.schedule.dimension_numbers import Loops, loops_of
from ingot.schedule.emit import Emitter, Leaf
from ingot.schedule.folds import accumulator_of
from ingot.schedule.gpu.blocks import (
    ALIGNMENT_BYTES,
    Group,
    Span,
    all_of,
    constant_tile,
    offset_of,
    power_of_two,
    read_at,
    register,
    repack,
    tile_index,
)
from ingot.schedule.gpu.contraction.levels.packed import Levels, levels_of
from ingot.schedule.gpu.contraction.levels.row import Read, RowOfLevels
from ingot.schedule.gpu.contraction.levels.row_of_quads import RowOfQuads, fills_lanes, has_quads
from ingot.schedule.gpu.contraction.reduction import has_other_users, packed_loops, reduction_offsets
from ingot.schedule.gpu.contraction.sums import ResultTile, SplitSums, WorkItem
from ingot.schedule.gpu.contraction.tiling import ProductShape
from ingot.schedule.gpu.machine import Machine
from ingot.schedule.gpu.rows import Fold, reduction_levels
from ingot.schedule.gpu.sites import decided, product_site
from ingot.schedule.index import ZERO, dim_expr, integer
from ingot.schedule.lowered import Arg, Lowered, Pack
from ingot.support.dataclass import dataclass


def has_single_row(anchor: Node) -> bool:
    """Whether a contraction of floats has one row."""
    a, b = (Layout.contiguous(i.shape) for i in anchor.inputs)
    return anchor.inputs[0].dtype.is_float and product(x.extent for x in loops_of(anchor, a, b).rows) == 1


def lower_single_row(group: Group, anchors: tuple[Node, ...], machine: Machine) -> Lowered:
    """Lower products of one row, which is in memory or computed by a norm, and their pointwise epilogue."""
    return _SingleRow.of(group, anchors, machine).lower()


@dataclass(frozen=True)
class _Weights:
    """One B, and the loops with its strides. packs: the constants that it is read from; params: the kernel's buffers,
    with the index of the pack of each. unread: inputs of the group that the packs replace."""

    buffer: Buffer
    offset: DimLike
    loops: Loops
    levels: Levels | None = None
    packs: tuple[Pack, ...] = ()
    params: tuple[tuple[Buffer, int], ...] = ()
    unread: tuple[int, ...] = ()

    @staticmethod
    def of(group: Group, anchor: Node, a: Layout, suffix: str) -> _Weights:
        """a: the row's layout. suffix: of buffer names."""
        y = anchor.inputs[1]
        of_levels = isinstance(y.op, Dequantize)
        at, layout = group.memory(y.inputs[0] if of_levels else y)
        loops = loops_of(anchor, a, layout)
        axes = *loops.batch, *loops.cols, *loops.reduce
        if of_levels:
            of = levels_of(group, anchor, a, loops, suffix)
            packed = packed_loops(loops, axes)
            return _Weights(of.levels.buffer, 0, packed, of.levels, of.packs, of.params, of.unread)
        pack = repack(axes, at, layout.offset, y.dtype) if at in group.constants else None
        if pack is None:
            return _Weights(group.operands.ins[at], layout.offset, loops)
        unread = () if has_other_users(group.body, group.body.inputs[at], anchor) else (at,)
        buffer = Buffer(f"b{suffix}", pack.dtype, align=ALIGNMENT_BYTES)
        return _Weights(buffer, 0, packed_loops(loops, axes), None, (pack,), ((buffer, 0),), unread)

    @property
    def is_constant(self) -> bool:
        return bool(self.packs)

    @property
    def has_contiguous_terms(self) -> bool:
        return self.is_constant or self.loops.reduce[-1].b == 1


@dataclass(frozen=True)
class _SingleRow:
    """a: the row's buffer and offset; None: `row` is computed. loops: with the strides of the first B, packed or
    not."""

    group: Group
    anchors: tuple[Node, ...]
    a: tuple[Buffer, DimLike] | None
    row: Node
    bs: tuple[_Weights, ...]
    loops: Loops
    tiling: Tiling
    site: Site
    packs: tuple[Pack, ...]
    packed: tuple[tuple[Buffer, Arg], ...]
    by_quads: bool

    @staticmethod
    def of(group: Group, anchors: tuple[Node, ...], machine: Machine) -> _SingleRow:
        x = anchors[0].inputs[0]
        a, a_layout = None, Layout.contiguous(x.shape)
        if base_of(x) in group.body.inputs:
            at, a_layout = group.memory(x)
            a = group.operands.ins[at], a_layout.offset
        weights = [_Weights.of(group, n, a_layout, str(i or "")) for i, n in enumerate(anchors)]
        packs, packed = tuple[Pack, ...](), tuple[tuple[Buffer, Arg], ...]()
        for b in weights:
            packed = *packed, *((buffer, Arg("pack", len(packs) + i)) for buffer, i in b.params)
            packs = *packs, *b.packs
            group = group.without(*b.unread)
        loops = weights[0].loops
        n, depth, batch = (product(x.extent for x in axes) for axes in (loops.cols, loops.reduce, loops.batch))
        is_k_contiguous = weights[0].has_contiguous_terms
        levels = weights[0].levels
        block, packed_halves = (levels.step, 16 // levels.bits) if levels else (1, 1)
        columns = estimate(n) * len(weights)
        by_quads = all(b.levels is not None and has_quads(b.levels, x.dtype, columns, machine) for b in weights)
        shape = ProductShape(
            1, n, depth, batch, x.dtype, is_k_contiguous, 0, block, packed_halves, len(weights), by_quads=by_quads
        )
        site = product_site(group.body, anchors, loops, shape, machine, packed=weights[0].is_constant)
        tiling = decided(site, machine, Tiling)
        row = base_of(x, (Reshape,))
        return _SingleRow(group, anchors, a, row, tuple(weights), loops, tiling, site, packs, packed, by_quads)

    def lower(self) -> Lowered:
        t, loops = self.tiling, self.loops
        top, chunk = Block(), k.var("chunk")
        n, batches = (product(x.extent for x in axes) for axes in (loops.cols, loops.batch))
        across = ceildiv(n, t.columns)
        sums = SplitSums(self.group, self.anchors, ((1, t.columns),), batches * across, t.parts)
        work = sums.work_item(top, chunk)
        tile = work.tile
        batch = top.let(k.binary("div", tile, dim_expr(across)), "batch")
        first_column = top.let(k.mul(k.binary("rem", tile, dim_expr(across)), integer(t.columns)), "first")
        batch_at = ix.delinearize(batch, tuple(x.extent for x in loops.batch), top.multiples) if loops.batch else ()
        totals = self._sums(top, batch_at, first_column, work)
        column_at, in_bounds = tile_index(top, first_column, t.columns, tuple(x.extent for x in loops.cols), 1)
        row_at = tuple(ZERO for _ in loops.rows)
        result = ResultTile(loops.result(loops.full((*batch_at, *row_at, *column_at))), None, in_bounds)
        top.stmts.append(ReleaseConsumers())
        extra = *self.packed, *sums.finish(top, totals, (result,), work)
        hints = {"warps": self.tiling.warps, "stages": self.tiling.stages}
        step = self.group.step("product_of_row", chunk, sums.programs, top, *extra, **hints)
        return Lowered((step,), sums.temps, self.packs, self.site, sums.zeros)

    def _sums(self, top: Block, batch: Sequence[Expr], first_column: Expr, work: WorkItem) -> list[Expr]:
        """Each product's sums of the columns from `first_column` on, over the program's part of the reduction."""
        t, dtype, loops = self.tiling, accumulator_of(self.anchors[0]), self.loops
        depth = product(x.extent for x in loops.reduce)
        begin, end = work.k_range(top, t.parts, depth, t.depth)
        of_levels = tuple((b.levels, b.loops) for b in self.bs if b.levels is not None)
        if of_levels:
            dtype = self.anchors[0].inputs[0].dtype
            by_quads = self.by_quads and fills_lanes(t)
            row = RowOfQuads(of_levels, t, dtype) if by_quads else RowOfLevels(of_levels, t)
            return row.sums(top, first_column, (begin, end), lambda: self._row_reader(top))
        weight_tile = _WeightTile.of(top, self, batch, first_column)
        tile = t.columns, t.depth
        accs = [register(top, "acc", constant_tile(dtype, tile)) for _ in self.bs]
        prefetched: list[Buffer] = []
        if depth != 0 and all(b.has_contiguous_terms for b in self.bs):
            for b, weights in enumerate(self.bs):
                prefetched.append(top.alloc("held", weights.buffer.dtype, 1, lanes=tile[0] * tile[1], tile=tile))
                top.store(prefetched[b], ZERO, k.spread(weight_tile.weights(top, b, begin), tile))
            top.stmts.append(AwaitProducers())
        em = self._row_emitter(top)

        def step(block: Block, at: Expr) -> None:
            weights = [block.let(k.load(h, ZERO), "y") for h in prefetched]
            next_k = block.let(k.add(at, integer(t.depth)), "n")
            if prefetched and not (isinstance(next_k, Lit) and isinstance(end, Lit) and next_k.value >= end.value):

                def fetch(block: Block) -> None:
                    for b, buffer in enumerate(prefetched):
                        block.store(buffer, ZERO, k.spread(weight_tile.weights(block, b, next_k), tile))

                block.when(k.binary("lt", next_k, end), fetch)
            weights = weights or [weight_tile.weights(block, b, at) for b in range(len(self.bs))]
            x = k.cast(weight_tile.row(block, em, at), dtype)
            for y, acc in zip(weights, accs, strict=True):
                block.store(acc, ZERO, k.fma(*k.broadcast(x, k.cast(y, dtype), k.load(acc, ZERO))))

        top.loop("k", begin, end, t.depth, step, multiple=t.depth)
        return [self._row_of_sums(top, k.load(acc, ZERO)) for acc in accs]

    def _row_of_sums(self, top: Block, acc: Expr) -> Expr:
        """The sums of all columns as a row."""
        total = top.let(k.reduce_axis("add", acc, 1), "sum")
        return k.transposed(total) if self.tiling.columns > 1 else total

    def _row_reader(self, top: Block) -> Read:
        """A function that reads terms of the row."""
        em = self._row_emitter(top)
        axes = merge_axes(tuple(Axis(x.extent, x.a, x.a) for x in self.loops.reduce))

        def read(block: Block, places: Expr, mask: Expr | None) -> Expr:
            if self.a is None:
                return self.computed(block, em, places, mask)
            buffer, offset = self.a
            index = ix.delinearize(places, tuple(x.extent for x in axes), {})
            return read_at(block, buffer, ix.add(dim_expr(offset), offset_of(index, [x.a for x in axes])), mask)

        return read

    def computed(self, block: Block, em: Emitter, index: Expr, mask: Expr | None) -> Expr:
        """Terms of a computed row; zero where they are masked."""
        x = em.value(block, self.row, (*(ZERO,) * (self.row.type.rank - 1), index), mask)
        return x if mask is None else k.select(mask, x, k.lit(0.0, x.dtype))

    def _row_emitter(self, top: Block) -> Emitter:
        """An emitter of the row's terms. If the row is computed, the reductions that it needs come first."""
        em = self.group.emitter()
        if self.a is not None:
            return em
        length = self.row.shape[-1]
        assert isinstance(length, int)
        span = Span.of(top, ZERO, power_of_two(length), length, 1)
        index = *(ZERO,) * (self.row.type.rank - 1), span.position
        for level in reduction_levels(self.group.body):
            folds = [Fold.of(top, n, (1, power_of_two(length)), True) for n in level]
            for fold in folds:
                fold.add(top, em.value(top, fold.operand, index, span.in_bounds), index, span.in_bounds)
            for fold in folds:
                total = k.reduce("add", fold.result(top))  # a scalar broadcasts to any tile
                result = top.let(k.cast(total, fold.node.dtype), "fold")
                em.bind(fold.node, Leaf(lambda b, index, mask, result=result: result, home=top))
        return em


@dataclass(frozen=True)
class _WeightTile:
    """The offsets of a program's tile. a: of the row. bases: of the columns in each B, along the tile's rows.
    in_bounds: the mask of its columns."""

    product: _SingleRow
    a: Expr
    bases: tuple[Expr, ...]
    in_bounds: Expr | None

    @staticmethod
    def of(top: Block, product_row: _SingleRow, batch: Sequence[Expr], first_column: Expr) -> _WeightTile:
        loops = product_row.loops
        index, live = tile_index(top, first_column, product_row.tiling.columns, tuple(x.extent for x in loops.cols), 0)
        a = (
            ZERO
            if product_row.a is None
            else ix.add(dim_expr(product_row.a[1]), offset_of(batch, [x.a for x in loops.batch]))
        )
        starts = (ix.add(dim_expr(b.offset), offset_of(batch, [x.b for x in b.loops.batch])) for b in product_row.bs)
        columns = (offset_of(index, [x.b for x in b.loops.cols]) for b in product_row.bs)
        bases = tuple(top.let(ix.add(*pair), "b") for pair in zip(starts, columns, strict=True))
        return _WeightTile(product_row, top.let(a, "a"), bases, live)

    def weights(self, block: Block, b: int, at: Expr) -> Expr:
        """The tile of B of a k-step, in its stored type."""
        weights = self.product.bs[b]
        axes = merge_axes(tuple(Axis(x.extent, x.a, x.b) for x in weights.loops.reduce))
        offset, in_bounds = reduction_offsets(block, at, self.product.tiling.depth, axes, 1, [x.b for x in axes])
        return read_at(block, weights.buffer, ix.add(offset, self.bases[b]), all_of(in_bounds, self.in_bounds))

    def row(self, block: Block, em: Emitter, at: Expr) -> Expr:
        """The row's terms of a k-step."""
        size, axes = (
            self.product.tiling.depth,
            merge_axes(tuple(Axis(x.extent, x.a, x.b) for x in self.product.loops.reduce)),
        )
        if self.product.a is not None:
            offset, in_bounds = reduction_offsets(block, at, size, axes, 1, [x.a for x in axes])
            return read_at(block, self.product.a[0], ix.add(offset, self.a), in_bounds)
        terms = Span.of(block, at, size, product(x.extent for x in axes), 1)
        return self.product.computed(block, em, terms.position, terms.in_bounds)


__all__ = ["has_single_row", "lower_single_row"]
