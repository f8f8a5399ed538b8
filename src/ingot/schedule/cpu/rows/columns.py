"""Short contiguous rows, as many at a time as a vector has lanes, with element j of all rows in vector j.

    softmax of rows of 3:   3 vectors hold 16 rows; shuffled into columns c0, c1, c2;
                            m = max(c0, c1, c2); e = exp(c - m); e / sum(e), lane by lane; shuffled back; 3 vectors

One at a time, such rows would waste lanes, reduce every vector to a scalar, and be stored in unaligned vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeGuard

from ingot.ir import kernel as k
from ingot.ir.dims import DimLike, estimate, product
from ingot.ir.kernel import Expr
from ingot.ir.layout import Layout
from ingot.ir.node import Graph
from ingot.ir.types import boolean
from ingot.schedule.block import Block
from ingot.schedule.cpu.transpose import transpose_block
from ingot.schedule.row_box import Rows, moved_rows

MAX_VECTORS = 2  # of a row


def is_short_row(size: DimLike, lanes: int) -> TypeGuard[int]:
    """Whether `read_columns` can read rows of this size."""
    return isinstance(size, int) and 1 < size <= MAX_VECTORS * lanes


def column_rows_size(
    body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...], rows: Rows, lanes: int
) -> int | None:
    """The size of the rows of a group, if they are best computed in columns, else None."""
    shape = rows.shape
    sized = [d for d in rows.reduced if shape[d] != 1]
    if len(sized) != 1 or lanes < 4 or lanes & (lanes - 1):
        return None
    size = shape[sized[0]]
    if not is_short_row(size, lanes):
        return None
    count = product(rows.kept_shape)
    pairs = [*zip(body.inputs, ins, strict=True), *zip(body.outputs, outs, strict=True)]
    full = [(n, lay) for n, lay in pairs if n.shape == shape]
    is_dense = all(lay.is_contiguous and n.dtype != boolean for n, lay in full)
    if not is_dense or not full or estimate(count) < lanes:
        return None
    return size if moved_rows(body, rows).isdisjoint(n for n, _ in full) else None


def read_columns(block: Block, load: Callable[[int], Expr], size: int, lanes: int) -> list[Expr]:
    """Element j of each of `lanes` rows of `size` elements in vector j. load(offset): a vector at an offset from the
    first element of the first row."""
    if size <= lanes // 2:
        dense = [load(i * lanes) for i in range(size)]
        sources = [[divmod(row * size + j, lanes) for row in range(lanes)] for j in range(size)]
        return [_pick_lanes(block, dense, lanes_of) for lanes_of in sources]
    last = (size - 1) * lanes

    def part(offset: int) -> Expr:
        """The vector at an offset. Lanes beyond the row are unused, but nothing is read beyond the last row."""
        start = min(offset, last)
        vector = load(start)
        pick = tuple(min(i + offset - start, lanes - 1) for i in range(lanes))
        return vector if start == offset else block.let(k.Shuffle(vector.dtype, lanes, vector, vector, pick), "z")

    columns: list[Expr] = []
    for first in range(0, size, lanes):
        columns += transpose_block(block, [part(row * size + first) for row in range(lanes)])[: size - first]
    return columns


def store_order(block: Block, columns: Sequence[Expr]) -> list[Expr]:
    """The inverse of `read_columns`: the vectors of contiguous rows, from their columns."""
    size, lanes = len(columns), columns[0].lanes
    sources = [[divmod(i * lanes + lane, size) for lane in range(lanes)] for i in range(size)]
    if size <= lanes // 2:
        return [_pick_lanes(block, columns, [(j, row) for row, j in vector_sources]) for vector_sources in sources]
    parts = -(-size // lanes)
    padded = [*columns, *[columns[-1]] * (parts * lanes - size)]
    rows = [transpose_block(block, padded[i * lanes : (i + 1) * lanes]) for i in range(parts)]
    flat = [rows[i][row] for row in range(lanes) for i in range(parts)]
    return [
        _pick_lanes(block, flat, [(row * parts + j // lanes, j % lanes) for row, j in vector_sources])
        for vector_sources in sources
    ]


def _pick_lanes(block: Block, vectors: Sequence[Expr], sources: Sequence[tuple[int, int]]) -> Expr:
    """Lane i of the result is lane sources[i][1] of vector sources[i][0]: one shuffle per vector used."""
    lanes = len(sources)
    numbers = list(dict.fromkeys(number for number, _ in sources))
    result = vectors[numbers[0]]
    for place, number in enumerate(numbers if len(numbers) == 1 else numbers[1:]):
        other = vectors[number]

        def lane(i: int, first: bool = place == 0, number: int = number) -> int:
            vector, source_lane = sources[i]
            if vector == number:
                return lanes + source_lane
            return source_lane if first and vector == numbers[0] else i

        result = block.let(k.Shuffle(other.dtype, lanes, result, other, tuple(map(lane, range(lanes)))), "z")
    return result


__all__ = ["column_rows_size", "is_short_row", "read_columns", "store_order"]
