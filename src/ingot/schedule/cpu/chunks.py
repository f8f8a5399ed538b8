"""Loops over a box of results, vectors along one dimension, cut into chunks for the threads.

out[i, j]   ->   for i in the chunk's rows: for j in 0..n step 16: out[i, j ... j + 15], then what is left of the line
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from ingot.ir import kernel as k
from ingot.ir.dims import DimLike, ceildiv, estimate, product
from ingot.ir.kernel import Expr
from ingot.ir.layout import Layout
from ingot.ir.types import Shape
from ingot.schedule import index as ix
from ingot.schedule.block import Block
from ingot.schedule.cpu.machine import Machine
from ingot.schedule.emit import Index
from ingot.schedule.index import ZERO, dim_expr, integer
from ingot.support.dataclass import dataclass

CHUNK = 8192  # elements a chunk should have: some 10 us of streaming work
STREAMED = 16 * CHUNK  # where stores go past the caches: a chunk ends by waiting for them
LONG = 8  # vectors from which on a line is worth a cut one in front, so that the others lie where memory has whole ones

Along = Callable[[Block, Expr, Expr | None], None]  # a position, or some, on a line; a mask of those that count
Write = Callable[[Block, Index, Expr | None], None]


def chunked_loops(
    top: Block,
    chunk: k.Var,
    shape: Shape,
    axis: int,
    lanes: int,
    machine: Machine,
    write: Write,
    work: int = 1,
    order: Sequence[int] | None = None,
    line: Line | None = None,
    size: int = CHUNK,
    several: int = 1,
) -> Expr:
    """Loops over a box of `shape`, vectorized along `axis`, cut into chunks; returns the number of chunks.

    `work`: operations an element costs. `order`: the dimensions, outermost first. `line`: what should be written in
    whole vectors. `size`: operations of a chunk. `several`: vectors that are computed as one of as many lanes.
    """
    if not shape:
        write(top, (), None)
        return integer(1)
    # an index of size 1 is not followed, so it cannot carry the vector
    lanes = 1 if shape[axis] == 1 else lanes
    outer = [d for d in order or range(len(shape)) if d != axis]
    cut = _Cut.of(shape, axis, lanes, outer, max(size // work, 4 * lanes))
    rows = product(shape[d] for d in cut.rows)
    which, low = chunk, ZERO
    if cut.pieces != 1:
        which = top.let(k.binary("div", chunk, dim_expr(cut.pieces)), "row")
        low = top.let(k.mul(k.binary("rem", chunk, dim_expr(cut.pieces)), dim_expr(cut.piece)), "lo")
    nest = _Nest(top, shape, axis, lanes, machine, write, line, cut, low, several)
    chunks = dim_expr(ceildiv(rows, cut.run) * cut.pieces)
    if isinstance(rows, int) and rows <= 1:
        nest.row(top, ZERO)
        return chunks
    first = top.let(k.mul(which, integer(cut.run)), "first")
    if cut.run == 1:
        nest.row(top, first)
    else:
        last = top.let(k.binary("min", k.add(first, integer(cut.run)), dim_expr(rows)), "last")
        top.loop("r", first, last, 1, nest.row)
    return chunks


@dataclass(frozen=True)
class _Cut:
    """A box in chunks: each is a `run` of rows, which are what the dimensions `rows` count, with all of the dimensions
    `inside` and of the vectors' own; or one of the `pieces` of a row, `piece` elements long."""

    rows: tuple[int, ...]
    inside: tuple[int, ...]
    run: int
    piece: DimLike
    pieces: DimLike

    @staticmethod
    def of(shape: Shape, axis: int, lanes: int, outer: Sequence[int], goal: int) -> _Cut:
        """Chunks of about `goal` elements: the outermost dimensions count rows until these are no longer than that;
        where there are no others and the vectors' own is long, that is cut too."""
        count = 0
        while count < len(outer) and _elements(shape, (axis, *outer[count:])) > goal:
            count += 1
        rows, inside = tuple(outer[:count]), tuple(outer[count:])
        inner = _elements(shape, (axis, *inside))
        run = max(1, goal // max(inner, 1))
        if inside or inner <= 2 * goal:
            return _Cut(rows, inside, run, shape[axis], 1)
        length = -(-goal // lanes) * lanes
        if isinstance(shape[axis], int):
            length = -(-inner // -(-inner // goal))
            length = -(-length // (4 * lanes)) * 4 * lanes
        return _Cut(rows, inside, run, length, ceildiv(shape[axis], length))


def _elements(shape: Shape, dims: Sequence[int]) -> int:
    return prod(estimate(shape[d]) for d in dims)


@dataclass(frozen=True)
class _Nest:
    """The loops inside a chunk. low: where along the vectors' dimension its piece begins."""

    top: Block
    shape: Shape
    axis: int
    lanes: int
    machine: Machine
    write: Write
    line: Line | None
    cut: _Cut
    low: Expr
    several: int

    def row(self, block: Block, row: Expr) -> None:
        rows = self.cut.rows
        coordinates = ix.delinearize(row, tuple(self.shape[d] for d in rows), block.multiples) if rows else ()
        index: Index = (ZERO,) * len(self.shape)
        for d, e in zip(rows, coordinates, strict=True):
            index = self.at(index, d, block.let(e, "i"))
        self.inside(block, index, self.cut.inside)

    def inside(self, block: Block, index: Index, left: Sequence[int]) -> None:
        if not left:
            return self.vectors(block, index)
        d, *rest = left
        return block.loop("i", 0, self.shape[d], 1, lambda b, e: self.inside(b, self.at(index, d, e), rest))

    def vectors(self, block: Block, index: Index) -> None:
        low, high, cut = self.low, dim_expr(self.shape[self.axis]), self.cut.pieces != 1
        if cut:
            high = self.top.let(k.binary("min", k.add(low, dim_expr(self.cut.piece)), high), "hi")
        start = self.line.begin(block, index, self.lanes) if self.line is not None else None
        if start is not None and cut:
            start = block.let(k.binary("min", k.add(low, start), high), "whole")
        multiple, write = self.lanes if cut else None, self.write

        def at(b: Block, e: Expr, mask: Expr | None) -> None:
            write(b, self.at(index, self.axis, e), mask)

        vector_loop(block, low, high, self.lanes, self.machine, at, multiple, whole=start, several=self.several)

    @staticmethod
    def at(index: Index, dim: int, e: Expr) -> Index:
        return (*index[:dim], e, *index[dim + 1 :])


def vector_loop(
    block: Block,
    low: Expr,
    high: DimLike | Expr,
    lanes: int,
    machine: Machine,
    body: Along,
    multiple: int | None = None,
    reverse: bool = False,
    whole: Expr | None = None,
    several: int = 1,
) -> None:
    """for i in low..high by `lanes`: body(block, ramp(i), None), then the tail: masked, or one by one without masks.
    reverse: several lanes from the end, the tail first; without masks there may be none. whole: the first position of
    a whole vector (none in reverse); what lies before it is done as the tail is. several: so many vectors at a time,
    as one of as many lanes, while there are (not in reverse)."""
    end = high if isinstance(high, Expr) else dim_expr(high)
    if lanes == 1:
        block.loop("j", low, end, 1, lambda b, e: body(b, e, None))
        return
    if whole is not None:
        _cut_vector(block, low, whole, lanes, machine, body)
        low, multiple = whole, 1
    span = k.binary("div", k.sub(end, low), integer(lanes))
    main = block.let(k.add(low, k.mul(span, integer(lanes))), "m")
    known = multiple or (lanes if isinstance(low, k.Lit) and int(low.value) % lanes == 0 else 1)

    def vector(b: Block, e: Expr) -> None:
        at = b.let(k.sub(k.add(low, k.sub(main, integer(lanes))), e), "j") if reverse else e
        body(b, k.ramp(at, lanes), None)

    if reverse:
        _cut_vector(block, main, end, lanes, machine, body)
    if several > 1:
        wide = several * lanes
        wides = k.binary("div", k.sub(end, low), integer(wide))
        begin, low = low, block.let(k.add(low, k.mul(wides, integer(wide))), "n")
        block.loop("j", begin, low, wide, lambda b, e: body(b, k.ramp(e, wide), None), multiple=known)
    block.loop("j", low, main, lanes, vector, multiple=known)
    if not reverse:
        _cut_vector(block, main, end, lanes, machine, body)


def _cut_vector(block: Block, low: Expr, end: Expr, lanes: int, machine: Machine, body: Along) -> None:
    """Fewer than `lanes` positions low..end: masked, or one by one without masks."""
    known = isinstance(low, k.Lit) and isinstance(end, k.Lit)
    if low == end:
        return
    if not machine.masks:
        block.loop("j", low, end, 1, lambda b, e: body(b, e, None))
        return

    def masked(b: Block) -> None:
        mask = b.let(k.binary("lt", k.ramp(low, lanes), end), "tail")
        body(b, k.ramp(low, lanes), mask)

    if known:
        masked(block)
    else:
        block.when(k.binary("lt", low, end), masked)


@dataclass(frozen=True)
class Line:
    """Elements along the dimension `axis` of a result that is stored past the caches: only whole vectors of memory are.
    A result that starts off a vector, which none of the runtime's does, is stored like any other."""

    layout: Layout
    axis: int
    long: int = LONG

    def begin(self, block: Block, index: Index, lanes: int) -> Expr | None:
        """The first position along the line at which a vector of memory starts; None where that is the line's start, or
        the line too short to matter."""
        extent, rest = self.layout.shape[self.axis], tuple(e for d, e in enumerate(index) if d != self.axis)
        strides = tuple(s for d, s in enumerate(self.layout.strides) if d != self.axis)
        start = ix.linear(rest, strides, self.layout.offset)
        aligned = ix.multiple_of(start, block.multiples) % lanes == 0
        if self.layout.strides[self.axis] != 1 or aligned or estimate(extent) < self.long * lanes:
            return None
        past = k.binary("rem", start, integer(lanes))
        begin = k.binary("rem", k.sub(integer(lanes), past), integer(lanes))
        return block.let(begin if isinstance(extent, int) else k.binary("min", begin, dim_expr(extent)), "whole")


__all__ = ["CHUNK", "LONG", "STREAMED", "Line", "Write", "chunked_loops", "vector_loop"]
