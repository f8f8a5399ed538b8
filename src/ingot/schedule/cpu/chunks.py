"""Loops over a box of results, vectorized along one dimension and cut into chunks for the threads.

out[i, j]   ->   for i in the chunk's rows: for j in 0..n step 16: out[i, j ... j + 15], then the tail of the row
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

CHUNK_ELEMENTS = 8192  # some 10 us of streaming work
STREAMED_CHUNK_ELEMENTS = 16 * CHUNK_ELEMENTS  # of non-temporal stores, which a chunk waits for at its end
MIN_VECTORS_TO_ALIGN = 8  # of a row, for a partial first vector to pay, after which the others are aligned

LineBody = Callable[[Block, Expr, Expr | None], None]  # (block, position or vector of positions, mask)
Write = Callable[[Block, Index, Expr | None], None]


def chunked_loops(
    top: Block,
    chunk: k.Var,
    shape: Shape,
    axis: int,
    lanes: int,
    machine: Machine,
    write: Write,
    operations: int = 1,
    order: Sequence[int] | None = None,
    line: AlignedLine | None = None,
    chunk_operations: int = CHUNK_ELEMENTS,
    interleave: int = 1,
) -> Expr:
    """Loops over a box of `shape`, vectorized along `axis`, cut into chunks; returns the number of chunks.

    operations: operations per element. order: the dimensions, outermost first. line: a result that should be written in
    aligned vectors. chunk_operations: target size of a chunk. interleave: vectors computed as one of as many lanes.
    """
    if not shape:
        write(top, (), None)
        return integer(1)
    # reads ignore the index of a dimension of size 1, so it cannot be the vector
    lanes = 1 if shape[axis] == 1 else lanes
    outer = [d for d in order or range(len(shape)) if d != axis]
    chunking = _Chunking.of(shape, axis, lanes, outer, max(chunk_operations // operations, 4 * lanes))
    rows = product(shape[d] for d in chunking.row_dims)
    row_block, low = chunk, ZERO
    if chunking.pieces_per_row != 1:
        row_block = top.let(k.binary("div", chunk, dim_expr(chunking.pieces_per_row)), "row")
        low = top.let(
            k.mul(k.binary("rem", chunk, dim_expr(chunking.pieces_per_row)), dim_expr(chunking.piece_elements)), "lo"
        )
    nest = _Nest(top, shape, axis, lanes, machine, write, line, chunking, low, interleave)
    chunks = dim_expr(ceildiv(rows, chunking.rows_per_chunk) * chunking.pieces_per_row)
    if isinstance(rows, int) and rows <= 1:
        nest.row(top, ZERO)
        return chunks
    first = top.let(k.mul(row_block, integer(chunking.rows_per_chunk)), "first")
    if chunking.rows_per_chunk == 1:
        nest.row(top, first)
    else:
        last = top.let(k.binary("min", k.add(first, integer(chunking.rows_per_chunk)), dim_expr(rows)), "last")
        top.loop("r", first, last, 1, nest.row)
    return chunks


@dataclass(frozen=True)
class _Chunking:
    """A box cut into chunks. Rows are indexed by `row_dims` and span `inner_dims` and the vectorized dimension. A chunk
    is `rows_per_chunk` rows, or one of the `pieces_per_row` pieces of a row, of `piece_elements` elements."""

    row_dims: tuple[int, ...]
    inner_dims: tuple[int, ...]
    rows_per_chunk: int
    piece_elements: DimLike
    pieces_per_row: DimLike

    @staticmethod
    def of(shape: Shape, axis: int, lanes: int, outer: Sequence[int], target: int) -> _Chunking:
        """Chunks of about `target` elements. Outermost dimensions index rows until a row is no longer than that; if no
        dimension is left and the vectorized one is longer, it is cut, too."""
        count = 0
        while count < len(outer) and _elements(shape, (axis, *outer[count:])) > target:
            count += 1
        row_dims, inner_dims = tuple(outer[:count]), tuple(outer[count:])
        inner = _elements(shape, (axis, *inner_dims))
        rows_per_chunk = max(1, target // max(inner, 1))
        if inner_dims or inner <= 2 * target:
            return _Chunking(row_dims, inner_dims, rows_per_chunk, shape[axis], 1)
        length = -(-target // lanes) * lanes
        if isinstance(shape[axis], int):
            length = -(-inner // -(-inner // target))
            length = -(-length // (4 * lanes)) * 4 * lanes
        return _Chunking(row_dims, inner_dims, rows_per_chunk, length, ceildiv(shape[axis], length))


def _elements(shape: Shape, dims: Sequence[int]) -> int:
    return prod(estimate(shape[d]) for d in dims)


@dataclass(frozen=True)
class _Nest:
    """The loops inside a chunk. low: the start of its piece along the vectorized dimension."""

    top: Block
    shape: Shape
    axis: int
    lanes: int
    machine: Machine
    write: Write
    line: AlignedLine | None
    chunking: _Chunking
    low: Expr
    interleave: int

    def row(self, block: Block, row: Expr) -> None:
        rows = self.chunking.row_dims
        coordinates = ix.delinearize(row, tuple(self.shape[d] for d in rows), block.multiples) if rows else ()
        index: Index = (ZERO,) * len(self.shape)
        for d, e in zip(rows, coordinates, strict=True):
            index = self.with_coordinate(index, d, block.let(e, "i"))
        self.inner_loops(block, index, self.chunking.inner_dims)

    def inner_loops(self, block: Block, index: Index, dims: Sequence[int]) -> None:
        if not dims:
            return self.vectors(block, index)
        d, *rest = dims
        return block.loop(
            "i", 0, self.shape[d], 1, lambda b, e: self.inner_loops(b, self.with_coordinate(index, d, e), rest)
        )

    def vectors(self, block: Block, index: Index) -> None:
        low, high, is_cut = self.low, dim_expr(self.shape[self.axis]), self.chunking.pieces_per_row != 1
        if is_cut:
            high = self.top.let(k.binary("min", k.add(low, dim_expr(self.chunking.piece_elements)), high), "hi")
        start = self.line.aligned_start(block, index, self.lanes) if self.line is not None else None
        if start is not None and is_cut:
            start = block.let(k.binary("min", k.add(low, start), high), "whole")
        multiple, write = self.lanes if is_cut else None, self.write

        def vector(b: Block, e: Expr, mask: Expr | None) -> None:
            write(b, self.with_coordinate(index, self.axis, e), mask)

        vector_loop(
            block,
            low,
            high,
            self.lanes,
            self.machine,
            vector,
            multiple,
            aligned_start=start,
            interleave=self.interleave,
        )

    @staticmethod
    def with_coordinate(index: Index, dim: int, e: Expr) -> Index:
        return (*index[:dim], e, *index[dim + 1 :])


def vector_loop(
    block: Block,
    low: Expr,
    high: DimLike | Expr,
    lanes: int,
    machine: Machine,
    body: LineBody,
    multiple: int | None = None,
    reverse: bool = False,
    aligned_start: Expr | None = None,
    interleave: int = 1,
) -> None:
    """for i in low..high by `lanes`: body(block, ramp(i), None), then the tail: masked, or one by one without masks.

    reverse: from the end, the tail first; a machine without masks must not have a tail then. aligned_start: the first
    position of a full vector; positions before it are handled like the tail (not in reverse). interleave: vectors
    computed as one of as many lanes, as far as there are full ones (not in reverse).
    """
    end = high if isinstance(high, Expr) else dim_expr(high)
    if lanes == 1:
        block.loop("j", low, end, 1, lambda b, e: body(b, e, None))
        return
    if aligned_start is not None:
        _partial_vector(block, low, aligned_start, lanes, machine, body)
        low, multiple = aligned_start, 1
    span = k.binary("div", k.sub(end, low), integer(lanes))
    main = block.let(k.add(low, k.mul(span, integer(lanes))), "m")
    main_multiple = multiple or (lanes if isinstance(low, k.Lit) and int(low.value) % lanes == 0 else 1)

    def vector(b: Block, e: Expr) -> None:
        at = b.let(k.sub(k.add(low, k.sub(main, integer(lanes))), e), "j") if reverse else e
        body(b, k.ramp(at, lanes), None)

    if reverse:
        _partial_vector(block, main, end, lanes, machine, body)
    if interleave > 1:
        wide = interleave * lanes
        wides = k.binary("div", k.sub(end, low), integer(wide))
        begin, low = low, block.let(k.add(low, k.mul(wides, integer(wide))), "n")
        block.loop("j", begin, low, wide, lambda b, e: body(b, k.ramp(e, wide), None), multiple=main_multiple)
    block.loop("j", low, main, lanes, vector, multiple=main_multiple)
    if not reverse:
        _partial_vector(block, main, end, lanes, machine, body)


def _partial_vector(block: Block, low: Expr, end: Expr, lanes: int, machine: Machine, body: LineBody) -> None:
    """The positions low..end, fewer than `lanes`: masked, or one by one without masks."""
    is_static = isinstance(low, k.Lit) and isinstance(end, k.Lit)
    if low == end:
        return
    if not machine.masks:
        block.loop("j", low, end, 1, lambda b, e: body(b, e, None))
        return

    def masked(b: Block) -> None:
        mask = b.let(k.binary("lt", k.ramp(low, lanes), end), "tail")
        body(b, k.ramp(low, lanes), mask)

    if is_static:
        masked(block)
    else:
        block.when(k.binary("lt", low, end), masked)


@dataclass(frozen=True)
class AlignedLine:
    """A row along `axis` of a result with non-temporal stores, which must be aligned vectors. The result itself is
    assumed to be aligned, as the runtime's buffers are."""

    layout: Layout
    axis: int
    min_vectors: int = MIN_VECTORS_TO_ALIGN

    def aligned_start(self, block: Block, index: Index, lanes: int) -> Expr | None:
        """The first position along the row that is aligned to a vector; None if the row is aligned or too short."""
        extent, outer = self.layout.shape[self.axis], tuple(e for d, e in enumerate(index) if d != self.axis)
        strides = tuple(s for d, s in enumerate(self.layout.strides) if d != self.axis)
        start = ix.linear(outer, strides, self.layout.offset)
        is_aligned = ix.multiple_of(start, block.multiples) % lanes == 0
        if self.layout.strides[self.axis] != 1 or is_aligned or estimate(extent) < self.min_vectors * lanes:
            return None
        misalignment = k.binary("rem", start, integer(lanes))
        first = k.binary("rem", k.sub(integer(lanes), misalignment), integer(lanes))
        return block.let(first if isinstance(extent, int) else k.binary("min", first, dim_expr(extent)), "whole")


__all__ = [
    "CHUNK_ELEMENTS",
    "MIN_VECTORS_TO_ALIGN",
    "STREAMED_CHUNK_ELEMENTS",
    "AlignedLine",
    "Write",
    "chunked_loops",
    "vector_loop",
]
