"""Reductions of rows that are no longer than a vector: as many rows at once as a vector has lanes.

    sums:     for 16 rows: one masked vector each; interleave neighbours and add, until one vector holds the 16 sums
    arg max:  for 16 rows: one masked vector each; transpose; fold the vectors, which hold an element of each row

One by one, such rows leave lanes empty and spend most of their time on folding a vector into a scalar.
"""

from __future__ import annotations

from collections.abc import Callable

from ingot.ir import kernel as k
from ingot.ir.dims import estimate, product
from ingot.ir.kernel import Expr, Lit, integer
from ingot.ir.node import Graph, Node, topological
from ingot.ir.types import Shape
from ingot.ops import ArgReduce
from ingot.ops.core.base import identity_of
from ingot.schedule import index as ix
from ingot.schedule.block import Block
from ingot.schedule.cpu.machine import Machine
from ingot.schedule.cpu.reducers import Reducer
from ingot.schedule.cpu.transpose import fold_lanes, transpose_block
from ingot.schedule.folds import accumulator, combining
from ingot.schedule.row_box import reduction, reductions_of

AHEAD = 1024  # bytes: so many loads at so many places are more than processors follow by themselves
LINE = 64  # bytes that memory gives at once

Value = Callable[[Block, Expr, Expr, Expr | None], Expr]  # (block, row, positions, mask) -> lanes of an operand


def width_of(body: Graph, shape: Shape, reduced: tuple[int, ...], lanes: int, machine: Machine) -> int | None:
    """Lanes that one row takes of a vector, where rows are best reduced together; None where they are not."""
    sized = [d for d in reduced if shape[d] != 1]
    found = reductions_of(body)
    folds = not any(m in found for n in found for m in topological(n.inputs))
    if len(sized) != 1 or not folds or lanes < 4 or lanes & (lanes - 1):
        return None
    size = shape[sized[0]]
    if not isinstance(size, int) or not 0 < size <= lanes or (size < lanes and not machine.masks):
        return None
    count = product(d for i, d in enumerate(shape) if i not in reduced)
    if estimate(count) < lanes or any(product(n.shape) != count for n in body.outputs):
        return None
    return 1 << (size - 1).bit_length()


def fold_rows(block: Block, value: Value, node: Node, first: Expr, size: int, width: int, lanes: int) -> Expr:
    """A vector with the reductions of `lanes` rows from `first` on: `size` elements each, in vectors of `width`."""
    op = reduction(node)
    if isinstance(op, ArgReduce):
        width = lanes
    where = k.ramp(integer(0), width)
    mask = k.binary("lt", where, integer(size)) if size < width else None

    def row(number: int) -> Expr:
        x = value(block, ix.add(first, integer(number)), where, mask)
        return x if mask is None else k.select(mask, x, Lit(x.dtype, width, identity_of(op.kind, x.dtype)))

    if isinstance(op, ArgReduce):
        fold = Reducer.of(node, block, lanes, 1)
        for place, column in enumerate(transpose_block(block, [row(i) for i in range(lanes)])[:size]):
            fold.add(block, column, integer(place), None, 0)
        return fold.apart(block)[0]

    def joined(start: int) -> Expr:
        """Rows start, start + width, start + 2 width, ... side by side."""
        parts = [row(i) for i in range(start, lanes, width)]
        while len(parts) > 1:
            pairs = zip(parts[::2], parts[1::2], strict=True)
            parts = [block.let(k.Shuffle(a.dtype, 2 * a.lanes, a, b, tuple(range(2 * a.lanes))), "o") for a, b in pairs]
        return parts[0]

    return fold_lanes(block, [joined(i) for i in range(width)], combining(op.kind, accumulator(node.inputs[0].dtype)))


def lines_ahead(size: int, nbytes: int, lanes: int) -> list[tuple[int, int]]:
    """(row, position) of the lines that the group of rows `AHEAD` bytes behind the first one begins with."""
    row = size * nbytes
    far = -(-AHEAD // row)
    every = max(1, LINE // row)
    return [(far + i, j) for i in range(0, lanes, every) for j in range(0, size, max(1, LINE // nbytes))]


__all__ = ["fold_rows", "lines_ahead", "width_of"]
