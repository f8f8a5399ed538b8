"""Short rows that lie one behind the other, as many at once as a vector has lanes, each element in a vector of its own.

    softmax of rows of 3:   3 vectors hold 16 rows; shuffled into columns c0, c1, c2;
                            m = max(c0, c1, c2); e = exp(c - m); e / sum(e), lane by lane; shuffled back; 3 vectors

One by one, such rows leave lanes empty, fold every vector into a scalar, and end at places where no whole vector does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeGuard

from ingot.ir import kernel as k
from ingot.ir.dims import DimLike, estimate, product
from ingot.ir.kernel import Expr
from ingot.ir.layout import Layout
from ingot.ir.node import Graph
from ingot.ir.types import Shape, boolean
from ingot.schedule.block import Block
from ingot.schedule.cpu.transpose import transpose_block

MOST = 2  # vectors that a row may be long


def short_rows(size: DimLike, lanes: int) -> TypeGuard[int]:
    """Whether rows of this length are read by `read_columns`."""
    return isinstance(size, int) and 1 < size <= MOST * lanes


def in_columns(
    body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...], shape: Shape, reduced: tuple[int, ...], lanes: int
) -> int | None:
    """How long the rows of a group are, where they are best done this way."""
    sized = [d for d in reduced if shape[d] != 1]
    if len(sized) != 1 or lanes < 4 or lanes & (lanes - 1):
        return None
    size = shape[sized[0]]
    if not short_rows(size, lanes):
        return None
    count = product(d for i, d in enumerate(shape) if i not in reduced)
    pairs = [*zip(body.inputs, ins, strict=True), *zip(body.outputs, outs, strict=True)]
    full = [(n, lay) for n, lay in pairs if n.shape == shape]
    dense = all(lay.is_contiguous and n.dtype != boolean for n, lay in full)
    return size if dense and full and estimate(count) >= lanes else None


def read_columns(block: Block, load: Callable[[int], Expr], size: int, lanes: int) -> list[Expr]:
    """Element j of each of `lanes` rows of `size` elements in vector j. load(place): a vector from `place` on, counted
    from the first row's first element."""
    if size <= lanes // 2:
        dense = [load(i * lanes) for i in range(size)]
        wanted = [[divmod(row * size + j, lanes) for row in range(lanes)] for j in range(size)]
        return [_picked(block, dense, own) for own in wanted]
    last = (size - 1) * lanes

    def part(place: int) -> Expr:
        """What is behind a row's end does not matter; nothing is read behind the last row's."""
        start = min(place, last)
        vector = load(start)
        pick = tuple(min(i + place - start, lanes - 1) for i in range(lanes))
        return vector if start == place else block.let(k.Shuffle(vector.dtype, lanes, vector, vector, pick), "z")

    columns: list[Expr] = []
    for first in range(0, size, lanes):
        columns += transpose_block(block, [part(row * size + first) for row in range(lanes)])[: size - first]
    return columns


def dense_rows(block: Block, columns: Sequence[Expr]) -> list[Expr]:
    """The vectors that rows in `columns` make in memory: what `read_columns` has read, again."""
    size, lanes = len(columns), columns[0].lanes
    places = [[divmod(i * lanes + lane, size) for lane in range(lanes)] for i in range(size)]
    if size <= lanes // 2:
        return [_picked(block, columns, [(j, row) for row, j in own]) for own in places]
    parts = -(-size // lanes)
    padded = [*columns, *[columns[-1]] * (parts * lanes - size)]
    rows = [transpose_block(block, padded[i * lanes : (i + 1) * lanes]) for i in range(parts)]
    flat = [rows[i][row] for row in range(lanes) for i in range(parts)]
    return [_picked(block, flat, [(row * parts + j // lanes, j % lanes) for row, j in own]) for own in places]


def _picked(block: Block, vectors: Sequence[Expr], wanted: Sequence[tuple[int, int]]) -> Expr:
    """Lane i of the result is lane wanted[i][1] of vector wanted[i][0]: a shuffle for each vector that has any."""
    lanes = len(wanted)
    used = list(dict.fromkeys(number for number, _ in wanted))
    result = vectors[used[0]]
    for place, number in enumerate(used if len(used) == 1 else used[1:]):
        other = vectors[number]

        def lane(i: int, first: bool = place == 0, number: int = number) -> int:
            whose, own = wanted[i]
            if whose == number:
                return lanes + own
            return own if first and whose == used[0] else i

        result = block.let(k.Shuffle(other.dtype, lanes, result, other, tuple(map(lane, range(lanes)))), "z")
    return result


__all__ = ["dense_rows", "in_columns", "read_columns", "short_rows"]
