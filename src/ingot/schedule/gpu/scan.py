"""Cumulative folds: a program scans a part of a few lines, tile by tile, with what stands before it carried along.

    partial:   for a part of lines at:   partial[at, part] = fold(x[at, i] of the part)
    scan:      for a part of lines at:   carry = fold(partial[at, earlier parts])
                   for a tile of i:   out[at, i] = carry + scan(x[at, i]);   carry += fold(x[at, i])

Lines are whole where there are enough of them to keep the GPU busy; then the first kernel is left out.
"""

from __future__ import annotations

from collections.abc import Callable

from ingot.ir import kernel as k
from ingot.ir.dims import DimLike, ceildiv, estimate, product
from ingot.ir.kernel import Buffer, Expr, Lit, Tile, Var
from ingot.ir.layout import Layout
from ingot.ir.node import Graph, Node
from ingot.ir.types import DType
from ingot.ops import CumReduce
from ingot.ops.core.base import identity_of
from ingot.schedule import index as ix
from ingot.schedule.block import Block
from ingot.schedule.emit import Emitter, Index, Leaf
from ingot.schedule.folds import accumulator, combining
from ingot.schedule.gpu.blocks import Group, Span, constant_tile, power_of_two, register, write
from ingot.schedule.gpu.machine import Machine
from ingot.schedule.group_io import result_index
from ingot.schedule.index import ZERO, dim_expr, integer
from ingot.schedule.lowered import Arg, Lowered, Step
from ingot.support.dataclass import dataclass

ELEMENTS = 2048  # of a tile
LENGTH = 1024  # of a line in it, at most
SIDE_BY_SIDE = 32  # lines whose elements are neighbours in memory
PARTS = 1024  # of a line, at most


def lower_scan(body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...], machine: Machine) -> Lowered:
    """A CumReduce, what it reads where that is computed, and its epilogue."""
    anchor = next(n for n in body.nodes() if isinstance(n.op, CumReduce))
    scan = _Scan.of(anchor, Group.of(body, ins, outs), machine)
    if scan.parts == 1:
        return Lowered((scan.scanned(None),))
    partial = Buffer("partial", scan.dtype, writable=True), Arg("temp", 0)
    return Lowered((scan.folded(partial), scan.scanned(partial)), (scan.lines * scan.parts * scan.dtype.nbytes,))


@dataclass(frozen=True)
class _Scan:
    """along: the axis of the tile that lines run along. size: lines of a program. length: of their elements in a
    tile. parts: of a line, each a program's."""

    anchor: Node
    group: Group
    along: int
    size: int
    length: int
    parts: int

    @staticmethod
    def of(anchor: Node, group: Group, machine: Machine) -> _Scan:
        assert isinstance(anchor.op, CumReduce)
        shape, dim = anchor.shape, anchor.op.dim
        inner = all(n == 1 for n in shape[dim + 1 :])
        whole = max(1, estimate(shape[dim]))
        lines = max(1, estimate(product(n for d, n in enumerate(shape) if d != dim)))
        if inner:
            length = min(LENGTH, power_of_two(whole))
            size = min(ELEMENTS // length, power_of_two(max(1, lines // machine.programs)))
        else:
            size = min(SIDE_BY_SIDE, power_of_two(lines))
            length = min(ELEMENTS // size, power_of_two(whole))
        room = machine.programs * size // max(lines, size)  # programs for each few lines
        parts = min(PARTS, power_of_two(max(1, room)), power_of_two(-(-whole // length)))
        return _Scan(anchor, group, int(inner), size, length, parts)

    @property
    def op(self) -> CumReduce:
        assert isinstance(self.anchor.op, CumReduce)
        return self.anchor.op

    @property
    def others(self) -> tuple[int, ...]:
        return tuple(d for d in range(self.anchor.type.rank) if d != self.op.dim)

    @property
    def lines(self) -> DimLike:
        return product(self.anchor.shape[d] for d in self.others)

    @property
    def dtype(self) -> DType:
        return accumulator(self.anchor.inputs[0].dtype)

    @property
    def fn(self) -> str:
        return combining(self.op.kind, self.dtype)

    def filled(self, tile: Tile) -> Lit:
        """A tile of what folding changes nothing by."""
        return constant_tile(self.dtype, tile, identity_of(self.op.kind, self.dtype))

    def tile(self, length: int) -> Tile:
        """Of the program's lines with `length` elements each."""
        return (self.size, length) if self.along else (length, self.size)

    def folded(self, partial: tuple[Buffer, Arg]) -> Step:
        """What each part folds to."""
        work = _Part.of(self)
        acc = work.carried(self.tile(self.length))

        def visit(block: Block, index: Index, value: Expr, live: Expr | None) -> None:
            block.store(acc, ZERO, k.binary(self.fn, k.load(acc, ZERO), value))

        work.tiles(visit)
        total = k.reduce_along(self.fn, k.load(acc, ZERO), self.along)
        place = k.add(k.mul(work.span.position, integer(self.parts)), work.part)
        work.top.store(partial[0], place, total, work.span.in_bounds)
        return work.step("partial", partial)

    def scanned(self, partial: tuple[Buffer, Arg] | None) -> Step:
        """The results, each part's from what the parts before it fold to."""
        work = _Part.of(self)
        carry = work.carried(self.tile(1))
        if partial is not None:
            parts = k.positions(self.parts, self.along)
            place = k.add(k.mul(work.span.position, integer(self.parts)), parts)
            earlier = k.spread(k.binary("lt", parts, work.part), self.tile(self.parts))
            found = k.select(earlier, k.gather(partial[0], place, earlier), self.filled(self.tile(self.parts)))
            work.top.store(carry, ZERO, k.reduce_along(self.fn, found, self.along))

        def visit(block: Block, index: Index, value: Expr, live: Expr | None) -> None:
            before = block.let(k.load(carry, ZERO), "before")
            scanned = k.scan_along(self.fn, value, self.along)
            result = k.binary(self.fn, k.spread(before, self.tile(self.length)), scanned)
            result = block.let(k.cast(result, self.anchor.dtype), "r")
            block.store(carry, ZERO, k.binary(self.fn, before, k.reduce_along(self.fn, value, self.along)))
            work.em.bind(self.anchor, Leaf(lambda b, at, mask: result, home=block, pinned=True))
            for root, buffer, layout in self.group.results:
                at = result_index(block, root, self.anchor, index)
                write(block, work.em, root, buffer, layout, at, live, work.span.in_bounds)

        work.tiles(visit)
        return work.step("scan", *([] if partial is None else [partial]))


@dataclass(frozen=True)
class _Part:
    """A kernel whose programs each have a part of a few lines."""

    scan: _Scan
    top: Block
    chunk: Var
    span: Span  # of the lines
    place: dict[int, Expr]  # where these are, for each dimension that is not scanned
    part: Expr
    em: Emitter

    @staticmethod
    def of(scan: _Scan) -> _Part:
        top, chunk = Block(), k.var("chunk")
        part = top.let(k.binary("rem", chunk, integer(scan.parts)), "part")
        first = k.mul(k.binary("div", chunk, integer(scan.parts)), integer(scan.size))
        span = Span.of(top, top.let(first, "first"), scan.size, scan.lines, 1 - scan.along, wraps=True)
        shape = tuple(scan.anchor.shape[d] for d in scan.others)
        place = dict(zip(scan.others, span.index(top, shape), strict=True))
        return _Part(scan, top, chunk, span, place, part, scan.group.emitter())

    def carried(self, tile: Tile) -> Buffer:
        """A tile that turns carry, of nothing yet."""
        return register(self.top, "acc", self.scan.filled(tile))

    def tiles(self, visit: Callable[[Block, Index, Expr, Expr | None], None]) -> None:
        """Visit the part's tiles in their order: the index of the results, what is folded there, and which of it there
        is. An exclusive fold is that of the elements one place further on."""
        scan, op, x = self.scan, self.scan.op, self.scan.anchor.inputs[0]
        whole = x.shape[op.dim]
        piece = ceildiv(ceildiv(whole, scan.parts), scan.length) * scan.length
        tile = scan.tile(scan.length)

        def index(i: Expr) -> Index:
            at = ix.sub(dim_expr(whole - 1), i) if op.reverse else i
            return tuple(self.place.get(d, at) for d in range(x.type.rank))

        def turn(block: Block, first: Expr) -> None:
            span = Span.of(block, first, scan.length, whole, scan.along)
            read, live = span.position, span.in_bounds
            if op.exclusive:
                read = block.let(ix.sub(read, integer(1)), "read")
                live = block.let(ix.both(live, k.binary("ge", read, ZERO)), "live")
            value = k.spread(k.cast(self.em.value(block, x, index(read), live), scan.dtype), tile)
            if live is not None:
                value = k.select(live, value, scan.filled(tile))
            visit(block, index(span.position), block.let(value, "x"), span.in_bounds)

        if scan.parts == 1:
            return self.top.loop("i", 0, whole, scan.length, turn)
        begin = self.top.let(k.mul(self.part, dim_expr(piece)), "begin")
        end = self.top.let(k.binary("min", k.add(begin, dim_expr(piece)), dim_expr(whole)), "end")
        return self.top.loop("i", begin, end, scan.length, turn, multiple=scan.length)

    def step(self, name: str, *extra: tuple[Buffer, Arg]) -> Step:
        chunks = ceildiv(self.scan.lines, self.scan.size) * self.scan.parts
        return self.scan.group.step(name, self.chunk, chunks, self.top, *extra)


__all__ = ["lower_scan"]
