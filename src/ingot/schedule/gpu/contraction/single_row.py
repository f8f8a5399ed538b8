"""Products of a single row: a decoder's step. Weights are all that costs, so each is loaded once, in wide loads, the
next turn's before this one's are multiplied.

    for a turn of terms:  acc[columns, terms] += a[terms] * b[columns, terms]
    result = epilogue(sum of acc along the terms)

Terms of a column lie side by side, where B is a constant. `row_of_levels.py` has B's of few bits.

What makes the row from sums over it, a norm, is computed by each program: reading a row again is little beside its
columns. Products of one row whose results meet share the kernel, each with its own B.
"""

from __future__ import annotations

from collections.abc import Sequence

from ingot.ir import kernel as k
from ingot.ir.dims import DimLike, ceildiv, product
from ingot.ir.kernel import AwaitProducers, Buffer, Expr, Lit, ReleaseConsumers
from ingot.ir.layout import Layout
from ingot.ir.node import Graph, Node
from ingot.ops import Dequantize, Reshape
from ingot.ops.views import base_of
from ingot.schedule import index as ix
from ingot.schedule.axes import Axis, merge_axes
from ingot.schedule.block import Block
from ingot.schedule.choice import Site, Tiling
from ingot.schedule.dimension_numbers import Loops, loops_of
from ingot.schedule.emit import Emitter, Leaf
from ingot.schedule.folds import accumulates
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
from ingot.schedule.gpu.contraction.levels import Levels, levels_of
from ingot.schedule.gpu.contraction.reduction import has_other_users, packed_loops, reduction_offsets
from ingot.schedule.gpu.contraction.row_of_levels import Read, RowOfLevels
from ingot.schedule.gpu.contraction.sums import ResultTile, SplitSums, WorkItem
from ingot.schedule.gpu.contraction.tiling import ProductShape
from ingot.schedule.gpu.machine import Machine
from ingot.schedule.gpu.rows import Fold, in_order
from ingot.schedule.gpu.sites import decided, product_site
from ingot.schedule.group_io import operand_memory
from ingot.schedule.index import ZERO, dim_expr, integer
from ingot.schedule.lowered import Arg, Lowered, Pack
from ingot.support.dataclass import dataclass

WORDS = 16  # of levels in a row of a tile


def has_single_row(anchor: Node) -> bool:
    """Whether a contraction of floats has one row."""
    a, b = (Layout.contiguous(i.shape) for i in anchor.inputs)
    return anchor.inputs[0].dtype.is_float and product(x.extent for x in loops_of(anchor, a, b).rows) == 1


def lower_single_row(
    body: Graph,
    ins: tuple[Layout, ...],
    outs: tuple[Layout, ...],
    constant: tuple[bool, ...],
    anchors: tuple[Node, ...],
    machine: Machine,
) -> Lowered:
    """Products of one row, in memory or made in front by sums over it, and the pointwise ops behind them."""
    return _SingleRow.of(body, ins, outs, constant, anchors, machine).lower()


@dataclass(frozen=True)
class _Weights:
    """One B, and the loops over it as it lies. packs: constants that it is read from, as `params` of the kernel, of
    which pack each. left: the group's inputs that these stand for."""

    buffer: Buffer
    offset: DimLike
    loops: Loops
    levels: Levels | None = None
    packs: tuple[Pack, ...] = ()
    params: tuple[tuple[Buffer, int], ...] = ()
    left: tuple[int, ...] = ()

    @staticmethod
    def of(
        body: Graph,
        anchor: Node,
        ins: tuple[Layout, ...],
        constant: tuple[bool, ...],
        buffers: tuple[Buffer, ...],
        a: Layout,
        mark: str,
    ) -> _Weights:
        """a: the row's layout. mark: of the names of buffers."""
        y = anchor.inputs[1]
        of_levels = isinstance(y.op, Dequantize)
        at, layout = operand_memory(body, y.inputs[0] if of_levels else y, ins)
        loops = loops_of(anchor, a, layout)
        axes = *loops.batch, *loops.cols, *loops.reduce
        if of_levels:
            most = WORDS * 32 // y.inputs[0].dtype.bits
            found = levels_of(body, anchor, ins, buffers, a, loops, most, lines=True, mark=mark, constant=constant)
            packed = packed_loops(loops, axes)
            return _Weights(found.levels.buffer, 0, packed, found.levels, found.packs, found.params, found.left)
        pack = repack(axes, at, layout.offset, y.dtype) if constant[at] else None
        if pack is None:
            return _Weights(buffers[at], layout.offset, loops)
        left = () if has_other_users(body, body.inputs[at], anchor) else (at,)
        buffer = Buffer(f"b{mark}", pack.dtype, align=ALIGNMENT_BYTES)
        return _Weights(buffer, 0, packed_loops(loops, axes), None, (pack,), ((buffer, 0),), left)

    @property
    def ahead(self) -> bool:
        """It is a constant, which nobody writes."""
        return bool(self.packs)


@dataclass(frozen=True)
class _SingleRow:
    """a: the row in memory; None: `row` is computed. loops: with B's strides as it lies, packed or not."""

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

    @staticmethod
    def of(
        body: Graph,
        ins: tuple[Layout, ...],
        outs: tuple[Layout, ...],
        constant: tuple[bool, ...],
        anchors: tuple[Node, ...],
        machine: Machine,
    ) -> _SingleRow:
        group = Group.of(body, ins, outs)
        buffers = group.operands.ins
        x = anchors[0].inputs[0]
        a, a_layout = None, Layout.contiguous(x.shape)
        if base_of(x) in body.inputs:
            at, a_layout = operand_memory(body, x, ins)
            a = buffers[at], a_layout.offset
        made = [_Weights.of(body, n, ins, constant, buffers, a_layout, str(i or "")) for i, n in enumerate(anchors)]
        packs, packed = tuple[Pack, ...](), tuple[tuple[Buffer, Arg], ...]()
        for b in made:
            packed = *packed, *((buffer, Arg("pack", len(packs) + i)) for buffer, i in b.params)
            packs = *packs, *b.packs
            for index in b.left:
                group = group.without(index)
        loops = made[0].loops
        n, depth, batch = (product(x.extent for x in axes) for axes in (loops.cols, loops.reduce, loops.batch))
        lines = made[0].ahead or loops.reduce[-1].b == 1
        levels = made[0].levels
        block, halves = (levels.turn, 16 // levels.bits) if levels else (1, 1)
        asked = ProductShape(1, n, depth, batch, x.dtype, lines, 0, block, halves, len(made))
        site = product_site(body, anchors, loops, asked, machine, packed=made[0].ahead)
        tiling = decided(site, machine, Tiling)
        row = base_of(x, (Reshape,))
        return _SingleRow(group, anchors, a, row, tuple(made), loops, tiling, site, packs, packed)

    def lower(self) -> Lowered:
        t, loops = self.tiling, self.loops
        top, chunk = Block(), k.var("chunk")
        n, batches = (product(x.extent for x in axes) for axes in (loops.cols, loops.batch))
        across = ceildiv(n, t.columns)
        sums = SplitSums(self.group, self.anchors, (1, t.columns), batches * across, t.parts)
        share = sums.work_item(top, chunk)
        own = share.tile
        batch = top.let(k.binary("div", own, dim_expr(across)), "batch")
        first = top.let(k.mul(k.binary("rem", own, dim_expr(across)), integer(t.columns)), "first")
        batch_at = ix.delinearize(batch, tuple(x.extent for x in loops.batch), top.multiples) if loops.batch else ()
        found = self._sums(top, batch_at, first, share)
        column_at, live = tile_index(top, first, t.columns, tuple(x.extent for x in loops.cols), 1)
        row_at = tuple(ZERO for _ in loops.rows)
        place = ResultTile(loops.result(loops.full((*batch_at, *row_at, *column_at))), None, live)
        top.stmts.append(ReleaseConsumers())
        extra = *self.packed, *sums.finish(top, found, place, share)
        shape = {"warps": self.tiling.warps, "stages": self.tiling.stages}
        step = self.group.step("product_of_row", chunk, sums.programs, top, *extra, **shape)
        return Lowered((step,), sums.temps, self.packs, self.site, sums.zeros)

    def _sums(self, top: Block, batch: Sequence[Expr], first: Expr, share: WorkItem) -> list[Expr]:
        """Each product's row of sums of the columns from `first` on, over a part of the reduction."""
        t, dtype, loops = self.tiling, accumulates(self.anchors[0]), self.loops
        depth = product(x.extent for x in loops.reduce)
        begin, end = share.k_range(top, t.parts, depth, t.depth)
        of_levels = tuple((b.levels, b.loops) for b in self.bs if b.levels is not None)
        if of_levels:
            row = RowOfLevels(of_levels, t, self.anchors[0].inputs[0].dtype)
            return row.sums(top, first, (begin, end), lambda: self._reading(top))
        lines = _Lines.of(top, self, batch, first)
        tile = t.columns, t.depth
        accs = [register(top, "acc", constant_tile(dtype, tile)) for _ in self.bs]
        held: list[Buffer] = []
        if depth != 0 and all(b.ahead for b in self.bs):  # else there is no first turn
            for b, weights in enumerate(self.bs):
                held.append(top.alloc("held", weights.buffer.dtype, 1, lanes=tile[0] * tile[1], tile=tile))
                top.store(held[b], ZERO, k.spread(lines.weights(top, b, begin), tile))
            top.stmts.append(AwaitProducers())
        em = self._normed(top)

        def turn(block: Block, at: Expr) -> None:
            stored = [block.let(k.load(h, ZERO), "y") for h in held]
            behind = block.let(k.add(at, integer(t.depth)), "n")
            if held and not (isinstance(behind, Lit) and isinstance(end, Lit) and behind.value >= end.value):

                def fetch(then: Block) -> None:
                    for b, own in enumerate(held):
                        then.store(own, ZERO, k.spread(lines.weights(then, b, behind), tile))

                block.when(k.binary("lt", behind, end), fetch)
            stored = stored or [lines.weights(block, b, at) for b in range(len(self.bs))]
            x = k.cast(lines.row(block, em, at), dtype)
            for y, acc in zip(stored, accs, strict=True):
                block.store(acc, ZERO, k.fma(*k.alike(x, k.cast(y, dtype), k.load(acc, ZERO))))

        top.loop("k", begin, end, t.depth, turn, multiple=t.depth)
        return [self._joined(top, k.load(acc, ZERO)) for acc in accs]

    def _joined(self, top: Block, acc: Expr) -> Expr:
        """A row of the columns' sums."""
        total = top.let(k.reduce_along("add", acc, 1), "sum")
        return k.transposed(total) if self.tiling.columns > 1 else total

    def _reading(self, top: Block) -> Read:
        """How the row's terms are read."""
        em = self._normed(top)
        axes = merge_axes(tuple(Axis(x.extent, x.a, x.a) for x in self.loops.reduce))

        def read(block: Block, places: Expr, live: Expr | None) -> Expr:
            if self.a is None:
                return self.computed(block, em, places, live)
            buffer, offset = self.a
            index = ix.delinearize(places, tuple(x.extent for x in axes), {})
            return read_at(block, buffer, ix.add(dim_expr(offset), offset_of(index, [x.a for x in axes])), live)

        return read

    def computed(self, block: Block, em: Emitter, places: Expr, live: Expr | None) -> Expr:
        """The row's terms at these places, where it is not in memory; zero where they are not `live`."""
        x = em.value(block, self.row, (*(ZERO,) * (self.row.type.rank - 1), places), live)
        return x if live is None else k.select(live, x, k.lit(0.0, x.dtype))

    def _normed(self, top: Block) -> Emitter:
        """What computes the row, where it is not in memory: sums over it first."""
        em = self.group.emitter()
        if self.a is not None:
            return em
        length = self.row.shape[-1]
        assert isinstance(length, int)
        span = Span.of(top, ZERO, power_of_two(length), length, 1)
        index = *(ZERO,) * (self.row.type.rank - 1), span.position
        for level in in_order(self.group.body):
            folds = [Fold.of(top, n, (1, power_of_two(length)), True) for n in level]
            for fold in folds:
                fold.add(top, em.value(top, fold.operand, index, span.in_bounds), index, span.in_bounds)
            for fold in folds:
                total = k.reduce("add", fold.result(top))  # of one element: a scalar, which meets any tile
                result = top.let(k.cast(total, fold.node.dtype), "fold")
                em.bind(fold.node, Leaf(lambda b, index, mask, result=result: result, home=top))
        return em


@dataclass(frozen=True)
class _Lines:
    """Where a program's tile lies. a: the row. bases: of the columns in each B, down the tile. live: the columns that
    there are."""

    own: _SingleRow
    a: Expr
    bases: tuple[Expr, ...]
    live: Expr | None

    @staticmethod
    def of(top: Block, own: _SingleRow, batch: Sequence[Expr], first: Expr) -> _Lines:
        loops = own.loops
        index, live = tile_index(top, first, own.tiling.columns, tuple(x.extent for x in loops.cols), 0)
        a = ZERO if own.a is None else ix.add(dim_expr(own.a[1]), offset_of(batch, [x.a for x in loops.batch]))
        begins = [ix.add(dim_expr(b.offset), offset_of(batch, [x.b for x in loops.batch])) for b in own.bs]
        ways = offset_of(index, [x.b for x in loops.cols])
        bases = tuple(top.let(ix.add(begin, ways), "b") for begin in begins)
        return _Lines(own, top.let(a, "a"), bases, live)

    def weights(self, block: Block, b: int, at: Expr) -> Expr:
        """A turn's tile of B as it is stored."""
        axes = merge_axes(tuple(Axis(x.extent, x.a, x.b) for x in self.own.loops.reduce))
        place, live = reduction_offsets(block, at, self.own.tiling.depth, axes, 1, [x.b for x in axes])
        return read_at(block, self.own.bs[b].buffer, ix.add(place, self.bases[b]), all_of(live, self.live))

    def row(self, block: Block, em: Emitter, at: Expr) -> Expr:
        """The row's terms that meet a turn."""
        size, axes = self.own.tiling.depth, merge_axes(tuple(Axis(x.extent, x.a, x.b) for x in self.own.loops.reduce))
        if self.own.a is not None:
            place, live = reduction_offsets(block, at, size, axes, 1, [x.a for x in axes])
            return read_at(block, self.own.a[0], ix.add(place, self.a), live)
        terms = Span.of(block, at, size, product(x.extent for x in axes), 1)
        return self.own.computed(block, em, terms.position, terms.in_bounds)


__all__ = ["has_single_row", "lower_single_row"]
