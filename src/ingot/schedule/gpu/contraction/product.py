"""Contractions as products of tiles: matmuls, and convolutions as matmuls of windows (implicit GEMM).

    for a tile of rows and columns of the result:
        for k in steps:  acc = a[rows, k] @ b[k, columns] + acc
        result = epilogue(acc)

Rows, columns and the reduction are flat positions over the op's axes; what they say of an operand's place is a column
for A's rows, a row for B's columns, and one of each for the reduction, so that places of whole tiles are one addition.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ingot.ir import kernel as k
from ingot.ir.dims import DimLike, ceildiv, product
from ingot.ir.kernel import Buffer, Expr, Lit, ReleaseConsumers, Tile
from ingot.ir.layout import Layout
from ingot.ir.node import Graph, Node
from ingot.ir.types import DType, bf16, f8e4m3fn, f8e4m3fnuz, f8e5m2, f8e5m2fnuz, f16, f32, i8
from ingot.ops import Dequantize
from ingot.ops.core.base import is_contraction
from ingot.schedule import index as ix
from ingot.schedule.axes import Axis, merge_axes
from ingot.schedule.block import Block
from ingot.schedule.choice import Site, Tiling
from ingot.schedule.dimension_numbers import Loops, loops_of, rows_as_they_lie, terms_as_they_lie
from ingot.schedule.folds import accumulates
from ingot.schedule.gpu.blocks import (
    ALIGNMENT_BYTES,
    Group,
    all_of,
    constant_tile,
    offset_of,
    read_at,
    register,
    repack,
    tile_index,
)
from ingot.schedule.gpu.contraction.boxes import Box, Boxes, boxes_of
from ingot.schedule.gpu.contraction.columns import columns_step, copy_bytes, needs_column_copy
from ingot.schedule.gpu.contraction.depthwise import is_depthwise, lower_depthwise
from ingot.schedule.gpu.contraction.levels import MOST, Levels, levels_of
from ingot.schedule.gpu.contraction.reduction import has_other_users, packed_loops, reduction_offsets
from ingot.schedule.gpu.contraction.single_row import has_single_row, lower_single_row
from ingot.schedule.gpu.contraction.sums import ResultTile, SplitSums, WorkItem
from ingot.schedule.gpu.contraction.tiling import ProductShape
from ingot.schedule.gpu.machine import Machine
from ingot.schedule.gpu.sites import decided, product_site
from ingot.schedule.group_io import operand_memory
from ingot.schedule.index import ZERO, dim_expr, integer
from ingot.schedule.lowered import Arg, Lowered, Pack, Step
from ingot.support.dataclass import dataclass

BAND = 8  # tiles of rows whose programs run together, so that they share columns of B in the second-level cache
UNITS = (f16, bf16, f32, i8)  # types of operands that tiles are multiplied in
F8 = (f8e4m3fn, f8e5m2)  # which newer GPUs multiply, one kind by the other, too
IN_F16 = (*F8, f8e4m3fnuz, f8e5m2fnuz)  # all of whose numbers f16 has


def lower_contraction(
    body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...], constant: tuple[bool, ...], machine: Machine
) -> Lowered:
    """A product of two operands in memory and the pointwise ops behind it. A constant B is laid out with its columns
    side by side, one of 8-bit integers with their terms so."""
    anchors = tuple(filter(is_contraction, body.nodes()))
    if is_depthwise(anchors[0]):
        return lower_depthwise(body, ins, outs, constant, anchors[0], machine)
    if has_single_row(anchors[0]):
        return lower_single_row(body, ins, outs, constant, anchors, machine)
    (anchor,) = anchors
    return _Product.of(body, ins, outs, constant, anchor, machine).lower(machine)


def units_of(x: DType, y: DType, machine: Machine) -> tuple[DType, DType] | None:
    """The types in which tiles of two operands are multiplied, exactly; None: they are no tensor cores' business."""
    if machine.f8 and x in F8 and y in F8:
        return x, y
    if x in IN_F16 and y in IN_F16:
        return f16, f16
    return (x, y) if x == y and x in UNITS else None


@dataclass(frozen=True)
class _Operand:
    """Where an operand of a contraction lies, and where it begins there."""

    buffer: Buffer
    offset: DimLike


@dataclass(frozen=True)
class _Copy:
    """B as it lies before a kernel copies it: its loops, where it begins and what it is of the group."""

    lying: Loops
    source: _Operand
    arg: Arg


@dataclass(frozen=True)
class _Terms:
    """How B is read: `begin` a turn at a place of the reduction, and then each of its `halves` (where it begins, its
    number)."""

    halves: int
    begin: Callable[[Block, Expr], Callable[[Block, Expr, int], Expr]]


@dataclass(frozen=True)
class _Product:
    group: Group
    anchor: Node
    a: _Operand
    b: _Operand
    loops: Loops
    tiling: Tiling
    site: Site
    units: tuple[DType, DType] | None
    packs: tuple[Pack, ...] = ()
    packed: tuple[tuple[Buffer, Arg], ...] = ()
    levels: Levels | None = None
    boxes: Boxes | None = None  # where the tiling asks for them
    copy: _Copy | None = None

    @staticmethod
    def of(
        body: Graph,
        ins: tuple[Layout, ...],
        outs: tuple[Layout, ...],
        constant: tuple[bool, ...],
        anchor: Node,
        machine: Machine,
    ) -> _Product:
        group = Group.of(body, ins, outs)
        operands = group.operands
        x, y = anchor.inputs
        of_levels = isinstance(y.op, Dequantize)
        stored = x, y.inputs[0] if of_levels else y
        (a_at, a_layout), (b_at, b_layout) = (operand_memory(body, n, ins) for n in stored)
        loops = rows_as_they_lie(loops_of(anchor, a_layout, b_layout))
        loops = loops if of_levels else terms_as_they_lie(loops)
        sizes = [product(x.extent for x in axes) for axes in (loops.rows, loops.cols, loops.reduce, loops.batch)]
        m, n, depth, batch = sizes
        pack, axes = None, (*loops.batch, *loops.reduce, *loops.cols)
        units = units_of(x.dtype, y.dtype, machine)
        unit = units[0] if units else x.dtype
        if unit.bits == 8:  # whose tensor cores take columns with their terms side by side
            axes = (*loops.batch, *loops.cols, *loops.reduce)
        if constant[b_at] and not of_levels:
            pack = repack(axes, b_at, b_layout.offset, stored[1].dtype)
        found = levels_of(body, anchor, ins, operands.ins, a_layout, loops, MOST) if of_levels else None
        a, b = _Operand(operands.ins[a_at], a_layout.offset), _Operand(operands.ins[b_at], b_layout.offset)
        boxes: Boxes | None = None
        copied = pack is None and found is None and units is not None and needs_column_copy(loops, b.offset, y.dtype)
        if machine.boxes and found is None and units == (x.dtype, y.dtype):
            read = (b.offset, Arg("in", b_at)) if pack is None else (0, Arg("pack", 0))
            walked = loops if pack is None else packed_loops(loops, axes)
            boxes = boxes_of(walked, (x.dtype, y.dtype), (a.offset, Arg("in", a_at)), read)
        turn = found.levels.turn if found else 0
        functions = sum(n.op.costly for n in body.nodes())
        shape = ProductShape(
            m, n, depth, batch, unit, fixed_step=turn, allows_boxes=boxes is not None, costly_ops=functions
        )
        site = product_site(body, (anchor,), loops, shape, machine, packed=pack is not None or copied)
        tiling = decided(site, machine, Tiling)
        boxes = boxes if tiling.boxes else None
        if found is not None:
            for index in found.left:
                group = group.without(index)
            b = _Operand(found.levels.buffer, 0)
            loops = packed_loops(loops, (*loops.reduce, *loops.cols))
            return _Product(group, anchor, a, b, loops, tiling, site, units, found.packs, found.packed(), found.levels)
        if pack is None and not copied:
            return _Product(group, anchor, a, b, loops, tiling, site, units, boxes=boxes)
        if not has_other_users(body, body.inputs[b_at], anchor):
            group = group.without(b_at)
        lying, loops = loops, packed_loops(loops, axes)
        if pack is None:
            copy = _Copy(lying, b, Arg("in", b_at))
            b = _Operand(Buffer("b", y.dtype, align=ALIGNMENT_BYTES), 0)
            return _Product(group, anchor, a, b, loops, tiling, site, units, copy=copy)
        buffer = Buffer("b", pack.dtype, align=ALIGNMENT_BYTES)
        b = _Operand(buffer, 0)
        packed = () if boxes is not None else ((buffer, Arg("pack", 0)),)
        return _Product(group, anchor, a, b, loops, tiling, site, units, (pack,), packed, boxes=boxes)

    @property
    def tile(self) -> Tile:
        return self.tiling.rows, self.tiling.columns

    def lower(self, machine: Machine) -> Lowered:
        loops, t = self.loops, self.tiling
        top, chunk = Block(), k.var("chunk")
        m, n, batches = (product(x.extent for x in axes) for axes in (loops.rows, loops.cols, loops.batch))
        down, across = ceildiv(m, t.rows), ceildiv(n, t.columns)
        tiles, first = batches * down * across, t.waves * machine.processors
        sums = SplitSums(self.group, (self.anchor,), self.tile, tiles, t.parts, first)
        share = sums.work_item(top, chunk)
        batch, row, column = self._program(top, share.tile, down, across)
        row_shape, column_shape = (tuple(x.extent for x in axes) for axes in (loops.rows, loops.cols))
        row_at, row_live = tile_index(top, k.mul(row, integer(t.rows)), t.rows, row_shape, 0, wraps=True)
        column_at, column_live = tile_index(top, k.mul(column, integer(t.columns)), t.columns, column_shape, 1)
        batch_at = ix.delinearize(batch, tuple(x.extent for x in loops.batch), top.multiples) if loops.batch else ()
        boxes = self._boxes()
        if boxes:
            acc = self._boxed_sums(top, boxes, k.mul(row, integer(t.rows)), k.mul(column, integer(t.columns)), share)
        else:
            acc = self._sums(top, batch_at, row_at, column_at, column_live, share)
        place = ResultTile(loops.result(loops.full((*batch_at, *row_at, *column_at))), row_live, column_live)
        # what starts early takes the room that it finds, be it uneven: programs that are many wait for all of it
        if isinstance(sums.programs, int) and sums.programs <= machine.processors:
            top.stmts.append(ReleaseConsumers())
        extra = *self.packed, *((buffer, box.arg) for buffer, box in boxes), *sums.finish(top, (acc,), place, share)
        before, temps = tuple[Step, ...](), sums.temps
        if self.copy is not None:
            to, (source, offset) = Arg("temp", len(temps)), (self.copy.source.buffer, self.copy.source.offset)
            before = (columns_step(self.copy.lying, loops, source, offset, (self.copy.arg, to)),)
            extra, temps = (*extra, (self.b.buffer, to)), (*temps, copy_bytes(loops, source.dtype))
        step = self.group.step("product", chunk, sums.programs, top, *extra, warps=t.warps, stages=t.stages)
        return Lowered((*before, step), temps, self.packs, self.site, sums.zeros)

    def _program(self, top: Block, chunk: Expr, down: DimLike, across: DimLike) -> tuple[Expr, Expr, Expr]:
        """(batch, tile of rows, tile of columns) of a program: in bands of rows, down first."""
        own = top.let(k.binary("rem", chunk, dim_expr(down * across)), "t")
        batch = top.let(k.binary("div", chunk, dim_expr(down * across)), "batch")
        band = top.let(k.binary("div", own, dim_expr(across * BAND)), "band")
        inside = top.let(k.binary("rem", own, dim_expr(across * BAND)), "inside")
        first = top.let(k.mul(band, integer(BAND)), "first")
        height = top.let(k.binary("min", k.sub(dim_expr(down), first), integer(BAND)), "height")
        row = top.let(k.add(first, k.binary("rem", inside, height)), "row")
        return batch, row, top.let(k.binary("div", inside, height), "column")

    def _sums(
        self,
        top: Block,
        batch: Sequence[Expr],
        rows: Sequence[Expr],
        columns: Sequence[Expr],
        live: Expr | None,
        share: WorkItem,
    ) -> Expr:
        """The tile of the sums, or of those of a part of the reduction."""
        loops, t, dtype = self.loops, self.tiling, accumulates(self.anchor)
        a_base = ix.add(dim_expr(self.a.offset), offset_of(batch, [x.a for x in loops.batch]))
        b_base = ix.add(dim_expr(self.b.offset), offset_of(batch, [x.b for x in loops.batch]))
        a_rows = top.let(ix.add(a_base, offset_of(rows, [x.a for x in loops.rows])), "a")
        b_columns = top.let(ix.add(b_base, offset_of(columns, [x.b for x in loops.cols])), "b")
        axes = tuple(Axis(x.extent, x.a, x.b) for x in loops.reduce)
        axes = merge_axes(axes) if self.levels is None else axes
        units = self.units if self.units and self.units[0].is_float == dtype.is_float else None
        depth = product(x.extent for x in axes)
        step = t.depth if units else 1
        terms = self._terms(top, axes, columns, b_columns, live, step)
        size = step // terms.halves
        acc = self._zeros(top)
        begin, end = share.k_range(top, t.parts, depth, step)

        def turn(block: Block, at: Expr) -> None:
            read = terms.begin(block, at)
            for half in range(terms.halves):
                first = at if half == 0 else block.let(k.add(at, integer(half * size)), "h")
                a_at, a_live = reduction_offsets(block, first, size, axes, 1, [x.a for x in axes])
                x = read_at(block, self.a.buffer, ix.add(a_rows, a_at), a_live)
                y = read(block, first, half)
                old = k.load(acc, ZERO)
                if units:
                    x = k.spread(k.cast(x, units[0]), (t.rows, size))
                    y = k.spread(k.cast(y, units[1]), (size, t.columns))
                    block.store(acc, ZERO, k.tile_product(x, y, old))
                else:
                    block.store(acc, ZERO, k.fma(*k.alike(k.cast(x, dtype), k.cast(y, dtype), old)))

        top.loop("k", begin, end, step, turn, multiple=step)
        return k.load(acc, ZERO)

    def _zeros(self, top: Block) -> Buffer:
        """A register of the tile's sums."""
        return register(top, "acc", constant_tile(accumulates(self.anchor), self.tile))

    def _boxes(self) -> list[tuple[Buffer, Box]]:
        """The operands that are copied in boxes: both or none."""
        if self.boxes is None:
            return []
        (a, b), t = self.boxes, self.tiling
        return [(a.buffer("a_matrix", (t.rows, t.depth)), a), (b.buffer("b_matrix", (t.depth, t.columns)), b)]

    def _boxed_sums(
        self, top: Block, boxes: Sequence[tuple[Buffer, Box]], row: Expr, column: Expr, share: WorkItem
    ) -> Expr:
        """As `_sums`, of operands that are copied in boxes; what lies outside of them is zero."""
        (a, a_box), (b, b_box) = boxes
        acc, step = self._zeros(top), self.tiling.depth
        depth = product(x.extent for x in self.loops.reduce)
        begin, end = share.k_range(top, self.tiling.parts, depth, step)

        def turn(block: Block, at: Expr) -> None:
            x, y = block.let(a_box.read(a, row, at), "x"), block.let(b_box.read(b, at, column), "y")
            block.store(acc, ZERO, k.tile_product(x, y, k.load(acc, ZERO)))

        top.loop("k", begin, end, step, turn, multiple=step)
        return k.load(acc, ZERO)

    def _terms(
        self, top: Block, axes: Sequence[Axis], columns: Sequence[Expr], base: Expr, live: Expr | None, step: int
    ) -> _Terms:
        """How a turn of `step` reads B. base: where its columns begin."""

        def plain(block: Block, at: Expr) -> Callable[[Block, Expr, int], Expr]:
            def read(block: Block, first: Expr, half: int) -> Expr:
                b_at, b_live = reduction_offsets(block, first, step, axes, 0, [x.b for x in axes])
                return read_at(block, self.b.buffer, ix.add(b_at, base), all_of(b_live, live))

            return read

        levels = self.levels
        if levels is None:
            return _Terms(1, plain)
        parameters = [
            (p, top.let(ix.add(integer(p.offset), offset_of(columns, p.columns)), "p")) for p in levels.parameters
        ]

        def meant(block: Block, at: Expr) -> Callable[[Block, Expr, int], Expr]:
            known: list[Expr] = []
            for p, column in parameters:
                if isinstance(p.source, Lit):
                    known.append(p.source)
                    continue
                p_at, p_live = reduction_offsets(block, at, step, axes, 0, p.reduce)
                known.append(read_at(block, p.source, ix.add(column, p_at), all_of(p_live, live)))
            if levels.halves == 1:
                inner = plain(block, at)
                return lambda b, first, half: b.let(levels.meant(inner(b, first, half), *known), "w")
            row = k.add(k.binary("div", at, integer(levels.halves)), k.positions(step // levels.halves, 0))
            place = ix.add(block.let(ix.mul(row, integer(levels.width)), "o"), base)
            pairs = block.let(read_at(block, self.b.buffer, place, live), "pairs")
            return lambda b, first, half: b.let(levels.meant(levels.half(b, pairs, half), *known), "w")

        return _Terms(levels.halves, meant)


__all__ = ["lower_contraction"]
