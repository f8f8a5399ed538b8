"""Contractions as products of tiles: matmuls, and convolutions as matmuls of windows (implicit GEMM).

    for a tile of rows and columns of the result:
        for k in steps:  acc = a[rows, k] @ b[k, columns] + acc
        result = epilogue(acc)

Rows, columns and the reduction are flat positions over the op's axes; what they say of an operand's place is a column
for A's rows, a row for B's columns, and one of each for the reduction, so that places of whole tiles are one addition.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ingot.ir import kernel as k
from ingot.ir.dims import DimLike, ceildiv, product
from ingot.ir.kernel import AwaitProducers, Buffer, Expr, Increment, Lit, ReleaseConsumers, Tile
from ingot.ir.layout import Layout
from ingot.ir.node import Graph, Node
from ingot.ir.types import bf16, f16, f32, i8, i64
from ingot.ops import Convolution, Dequantize, DotGeneral
from ingot.schedule import index as ix
from ingot.schedule.axes import Axis, merge_axes
from ingot.schedule.block import Block
from ingot.schedule.choice import Site, Tiling
from ingot.schedule.dimension_numbers import Loops, loops_of
from ingot.schedule.emit import Index
from ingot.schedule.folds import accumulates
from ingot.schedule.gpu.blocks import ALIGN, Group, Span, dot, read_at, repacked, write
from ingot.schedule.gpu.depthwise import is_depthwise, lower_depthwise
from ingot.schedule.gpu.levels import Levels, levels_of
from ingot.schedule.gpu.machine import Machine
from ingot.schedule.gpu.sites import decided, product_site
from ingot.schedule.gpu.tiling import Asked
from ingot.schedule.group_io import bind_result, operand_memory, result_index
from ingot.schedule.index import ZERO, dim_expr, integer, linear
from ingot.schedule.lowered import Arg, Lowered, Pack
from ingot.support.dataclass import dataclass

BAND = 8  # tiles of rows whose programs run together, so that they share columns of B in the second-level cache
UNITS = (f16, bf16, f32, i8)  # types of operands that tiles are multiplied in


def lower_contraction(
    body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...], constant: tuple[bool, ...], machine: Machine
) -> Lowered:
    """A product of two operands in memory and the pointwise ops behind it. A constant B is laid out with its columns
    side by side, or for a single row, with the terms of each column so."""
    (anchor,) = (n for n in body.nodes() if isinstance(n.op, DotGeneral | Convolution))
    if is_depthwise(anchor):
        return lower_depthwise(body, ins, outs, constant, anchor, machine)
    return _Product.of(body, ins, outs, constant, anchor, machine).lower(machine)


@dataclass(frozen=True)
class _Operand:
    """Where an operand of a contraction lies, and where it begins there."""

    buffer: Buffer
    offset: DimLike


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
    packs: tuple[Pack, ...] = ()
    packed: tuple[tuple[Buffer, Arg], ...] = ()
    levels: Levels | None = None

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
        loops = loops_of(anchor, a_layout, b_layout)
        sizes = [product(x.extent for x in axes) for axes in (loops.rows, loops.cols, loops.reduce, loops.batch)]
        m, n, depth, batch = sizes
        alone = m == 1 and anchor.inputs[0].dtype.is_float
        pack = None
        if constant[b_at] and not of_levels:
            pack = repacked(_b_axes(loops, alone), b_at, b_layout.offset, stored[1].dtype)
        lines = alone and not of_levels and (pack is not None or loops.reduce[-1].b == 1)
        levels, packed, packs, left = (None, (), (), ())
        if of_levels:
            levels, packed, packs, left = levels_of(body, anchor, ins, operands.ins, a_layout, loops)
        asked = Asked(m, n, depth, batch, anchor.inputs[0].dtype, lines, levels.turn if levels else 0)
        site = product_site(body, anchor, loops, asked, machine, packed=pack is not None)
        tiling = decided(site, machine, Tiling)
        a, b = _Operand(operands.ins[a_at], a_layout.offset), _Operand(operands.ins[b_at], b_layout.offset)
        if levels is not None:
            for index in left:
                group = group.without(index)
            b = _Operand(levels.buffer, 0)
            return _Product(group, anchor, a, b, _packed_loops(loops, False), tiling, site, packs, packed, levels)
        if pack is None:
            return _Product(group, anchor, a, b, loops, tiling, site)
        if not _reads(body, body.inputs[b_at], anchor):
            group = group.without(b_at)
        loops = _packed_loops(loops, alone)
        buffer = Buffer("b", pack.dtype, align=ALIGN)
        b = _Operand(buffer, 0)
        return _Product(group, anchor, a, b, loops, tiling, site, (pack,), ((buffer, Arg("pack", 0)),))

    @property
    def tile(self) -> Tile:
        return self.tiling.rows, self.tiling.columns

    def lower(self, machine: Machine) -> Lowered:
        loops, t = self.loops, self.tiling
        top, chunk, alone = Block(), k.var("chunk"), self.tiling.rows == 1 and self.anchor.dtype.is_float
        m, n, batches = (product(x.extent for x in axes) for axes in (loops.rows, loops.cols, loops.batch))
        down, across = ceildiv(m, t.rows), ceildiv(n, t.columns)
        whole = batches * down * across
        part = ZERO if t.parts == 1 else top.let(k.binary("div", chunk, dim_expr(whole)), "part")
        own = chunk if t.parts == 1 else top.let(k.binary("rem", chunk, dim_expr(whole)), "own")
        batch, row, column = self._program(top, own, down, across)
        rows = Span.of(top, k.mul(row, integer(t.rows)), t.rows, m, 0, held=True)
        columns = Span.of(top, k.mul(column, integer(t.columns)), t.columns, n, 1)
        row_at = rows.index(top, tuple(x.extent for x in loops.rows))
        column_at = columns.index(top, tuple(x.extent for x in loops.cols))
        batch_at = ix.delinearize(batch, tuple(x.extent for x in loops.batch), top.multiples) if loops.batch else ()
        acc = self._sums(top, batch_at, row_at, column_at, columns.live, part)
        place = loops.result(loops.full((*batch_at, *row_at, *column_at)))
        # what starts early takes the room that it finds, be it uneven: programs that are many wait for all of it
        if alone or (isinstance(whole, int) and whole * t.parts <= machine.processors):
            top.stmts.append(ReleaseConsumers())
        extra, temps, zeros = self.packed, tuple[DimLike, ...](), 0
        if t.parts == 1:
            self._finish(top, acc, place, rows, columns)
        else:
            sums = Buffer("sums", acc.dtype, writable=True, align=ALIGN)
            counters = Buffer("arrived", i64, writable=True, align=ALIGN)
            self._join(top, acc, place, rows, columns, (sums, part), (counters, own))
            extra = *extra, (sums, Arg("temp", 0)), (counters, Arg("zeros", 0))
            temps, zeros = (self.anchor.type.size * t.parts * acc.dtype.nbytes,), whole * i64.nbytes
        step = self.group.step("product", chunk, whole * t.parts, top, *extra, warps=t.warps, stages=t.stages)
        return Lowered((step,), temps, self.packs, self.site, zeros)

    def _finish(self, block: Block, acc: Expr, place: Index, rows: Span, columns: Span) -> None:
        """What is behind the sums of a tile."""
        em = self.group.emitter(() if columns.live is None else (columns.live,))
        bind_result(em, block, self.anchor, block.let(k.cast(acc, self.anchor.dtype), "acc"))
        for root, buffer, layout in self.group.results:
            index = result_index(block, root, self.anchor, place)
            write(block, em, root, buffer, layout, index, columns.live, rows.live)

    def _join(
        self,
        top: Block,
        acc: Expr,
        place: Index,
        rows: Span,
        columns: Span,
        sums: tuple[Buffer, Expr],
        counters: tuple[Buffer, Expr],
    ) -> None:
        """Keep the sums of a part; whoever ends last adds all up, in their order, so that the bits are always the same,
        and goes on. sums: and the number of the part. counters: and that of the tile."""
        memory, part = sums
        arrived, tile = counters
        size = dim_expr(self.anchor.type.size)
        flat = top.let(linear(place, Layout.contiguous(self.anchor.shape).strides), "flat")
        live = _both(rows.live, columns.live)
        at, value, *mask = k.alike(ix.add(flat, ix.mul(part, size)), acc, *(() if live is None else (live,)))
        top.store(memory, at, value, mask[0] if mask else None)
        before = top.fresh("before")
        top.stmts.append(Increment(before, arrived, tile))

        def last(block: Block) -> None:
            block.store(arrived, tile, ZERO)
            total: Expr | None = None
            for number in range(self.tiling.parts):
                value = read_at(block, memory, ix.add(flat, ix.mul(integer(number), size)), live)
                total = value if total is None else block.let(k.add(total, value), "sum")
            assert total is not None
            self._finish(block, total, place, rows, columns)

        top.when(k.binary("eq", before, integer(self.tiling.parts - 1)), last)

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
        part: Expr,
    ) -> Expr:
        """The tile of the sums, or of those of a part of the reduction."""
        loops, t, dtype = self.loops, self.tiling, accumulates(self.anchor)
        a_base = ix.add(dim_expr(self.a.offset), dot(batch, [x.a for x in loops.batch]))
        b_base = ix.add(dim_expr(self.b.offset), dot(batch, [x.b for x in loops.batch]))
        a_rows = top.let(ix.add(a_base, dot(rows, [x.a for x in loops.rows])), "a")
        b_columns = top.let(ix.add(b_base, dot(columns, [x.b for x in loops.cols])), "b")
        axes = tuple(Axis(x.extent, x.a, x.b) for x in loops.reduce)
        axes = merge_axes(axes) if self.levels is None else axes
        x_type, y_type = (operand.dtype for operand in self.anchor.inputs)
        in_tiles = x_type == y_type and x_type in UNITS and x_type.is_float == dtype.is_float and t.rows > 1
        alone = t.rows == 1 and dtype.is_float  # products of a single row are summed in place, and these at last
        depth = product(x.extent for x in axes)
        step = t.depth if in_tiles or alone else 1
        terms = self._terms(top, axes, columns, b_columns, live, step)
        size = step // terms.halves
        tile = (size, t.columns) if alone else self.tile
        acc = top.alloc("acc", dtype, 1, lanes=tile[0] * tile[1], tile=tile)
        top.store(acc, ZERO, Lit(dtype, tile[0] * tile[1], 0.0 if dtype.is_float else 0, tile=tile))

        begin, end = ZERO, dim_expr(depth)
        if t.parts > 1:
            length = ceildiv(ceildiv(depth, step), t.parts) * step
            begin = top.let(k.mul(part, dim_expr(length)), "begin")
            end = top.let(k.binary("min", k.add(begin, dim_expr(length)), end), "end")
        if alone and self.packed and self.levels is None:
            terms = self._ahead(top, terms, begin, end, tile)

        def turn(block: Block, at: Expr) -> None:
            read = terms.begin(block, at)
            for half in range(terms.halves):
                first = at if half == 0 else block.let(k.add(at, integer(half * size)), "h")
                a_at, a_live = self._along(block, first, size, axes, 0 if alone else 1, [x.a for x in axes])
                x = read_at(block, self.a.buffer, ix.add(a_rows, a_at), a_live)
                y = read(block, first, half)
                old = k.load(acc, ZERO)
                if in_tiles:
                    x, y = k.spread(x, (t.rows, size)), k.spread(y, (size, t.columns))
                    block.store(acc, ZERO, k.tile_product(x, y, old))
                else:
                    block.store(acc, ZERO, k.fma(*k.alike(k.cast(x, dtype), k.cast(y, dtype), old)))

        top.loop("k", begin, end, step, turn, multiple=step)
        return top.let(k.reduce_along("add", k.load(acc, ZERO), 0), "sum") if alone else k.load(acc, ZERO)

    def _ahead(self, top: Block, terms: _Terms, begin: Expr, end: Expr, tile: Tile) -> _Terms:
        """Weights read one turn ahead, the first of them before the kernel awaits those that it reads from: nobody
        writes weights."""
        held = top.alloc("held", self.b.buffer.dtype, 1, lanes=tile[0] * tile[1], tile=tile)
        step = integer(tile[0])

        def fetch(block: Block, at: Expr) -> None:
            block.store(held, ZERO, k.spread(terms.begin(block, at)(block, at, 0), tile))

        def ahead(block: Block, at: Expr) -> Callable[[Block, Expr, int], Expr]:
            value = block.let(k.load(held, ZERO), "y")
            behind = block.let(k.add(at, step), "n")
            if not (isinstance(behind, Lit) and isinstance(end, Lit) and behind.value >= end.value):
                block.when(k.binary("lt", behind, end), lambda then: fetch(then, behind))
            return lambda b, first, half: value

        fetch(top, begin)
        top.stmts.append(AwaitProducers())
        return _Terms(1, ahead)

    def _terms(
        self, top: Block, axes: Sequence[Axis], columns: Sequence[Expr], base: Expr, live: Expr | None, step: int
    ) -> _Terms:
        """How a turn of `step` reads B. base: where its columns begin."""

        def mask_of(inner: Expr | None) -> Expr | None:
            return _both(inner, live)

        def plain(block: Block, at: Expr) -> Callable[[Block, Expr, int], Expr]:
            def read(block: Block, first: Expr, half: int) -> Expr:
                b_at, b_live = self._along(block, first, step, axes, 0, [x.b for x in axes])
                return read_at(block, self.b.buffer, ix.add(b_at, base), mask_of(b_live))

            return read

        levels = self.levels
        if levels is None:
            return _Terms(1, plain)
        parameters = [(p, top.let(ix.add(integer(p.offset), dot(columns, p.columns)), "p")) for p in levels.parameters]

        def meant(block: Block, at: Expr) -> Callable[[Block, Expr, int], Expr]:
            known: list[Expr] = []
            for p, column in parameters:
                if isinstance(p.source, Lit):
                    known.append(p.source)
                    continue
                p_at, p_live = self._along(block, at, step, axes, 0, p.reduce)
                known.append(k.cast(read_at(block, p.source, ix.add(column, p_at), mask_of(p_live)), f32))
            if levels.halves == 1:
                inner = plain(block, at)
                return lambda b, first, half: b.let(levels.meant(inner(b, first, half), *known), "w")
            row = k.add(k.binary("div", at, integer(levels.halves)), k.positions(step // levels.halves, 0))
            place = ix.add(block.let(ix.mul(row, integer(levels.width)), "o"), base)
            pairs = block.let(read_at(block, self.b.buffer, place, live), "pairs")
            return lambda b, first, half: b.let(levels.meant(levels.half(b, pairs, half), *known), "w")

        return _Terms(levels.halves, meant)

    def _along(
        self, block: Block, first: Expr, step: int, axes: Sequence[Axis], axis: int, strides: Sequence[DimLike]
    ) -> tuple[Expr, Expr | None]:
        """Where `step` positions of the reduction from `first` on lie in an operand, along `axis` of its tile."""
        extents = tuple(x.extent for x in axes)
        if step == 1:
            at = ix.delinearize(first, extents, block.multiples)
            return dot(at, strides), None
        inner = extents[-1]
        if isinstance(inner, int) and inner % step == 0:  # a turn stays in one line of the innermost axis
            number: Expr = ZERO if len(extents) == 1 else block.let(k.binary("div", first, integer(inner)), "n")
            outer = ix.delinearize(number, extents[:-1], {}) if len(extents) > 1 else ()
            line = block.let(dot(outer, strides[:-1]), "o")
            if strides[-1] == 0:
                return line, None
            # not a remainder, of which Triton knows no multiple: elements side by side are loaded together
            start = ix.sub(first, ix.mul(number, integer(inner)))
            span = block.let(k.add(start, k.positions(step, axis)), "k")
            return ix.add(line, ix.mul(span, dim_expr(strides[-1]))), None
        span = Span.of(block, first, step, product(extents), axis)
        return dot(span.index(block, extents), strides), span.live


def _b_axes(loops: Loops, alone: bool) -> tuple[Axis, ...]:
    """B's axes, in the order in which a packed one lies: its columns side by side, or the terms of a column `alone`."""
    return (*loops.batch, *loops.cols, *loops.reduce) if alone else (*loops.batch, *loops.reduce, *loops.cols)


def _packed_loops(loops: Loops, alone: bool) -> Loops:
    """Loops over a packed B."""
    axes = _b_axes(loops, alone)
    strides = dict(zip(map(id, axes), Layout.contiguous(tuple(x.extent for x in axes)).strides, strict=True))
    moved = ([replace(x, b=strides[id(x)]) for x in axes] for axes in (loops.batch, loops.reduce, loops.cols))
    batch, reduce, cols = map(tuple, moved)
    return replace(loops, batch=batch, reduce=reduce, cols=cols)


def _reads(body: Graph, operand: Node, anchor: Node) -> bool:
    """Whether something else reads `operand` than views on the way to B."""
    users, node = body.uses(), operand
    while node is not anchor:
        seen = users.get(node, [])
        if len(seen) != 1 or node in body.outputs:
            return True
        (node,) = seen
    return operand is anchor.inputs[0]


def _both(*masks: Expr | None) -> Expr | None:
    known = [m for m in masks if m is not None]
    return None if not known else known[0] if len(known) == 1 else k.binary("and", *known)


__all__ = ["lower_contraction"]
