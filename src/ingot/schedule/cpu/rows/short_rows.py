"""Reductions of rows no longer than a vector, for as many rows at a time as a vector has lanes.

    sums:     for 16 rows: one masked vector each; interleave pairs and add, until one vector holds the 16 sums
    arg max:  for 16 rows: one masked vector each; transpose; fold the vectors, which hold an element of each row

One at a time, such rows would waste lanes, and spend most time on reducing a vector to a scalar.
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
from ingot.schedule.folds import accumulator, combining_op
from ingot.schedule.row_box import reduction, reductions_of

SHORT_ROW_PREFETCH_BYTES = 1024  # distance: hardware prefetchers do not follow this many streams
CACHE_LINE_BYTES = 64

Value = Callable[[Block, Expr, Expr, Expr | None], Expr]  # (block, row, positions, mask) -> lanes of an operand


def lanes_per_row(body: Graph, shape: Shape, reduced: tuple[int, ...], lanes: int, machine: Machine) -> int | None:
    """The lanes that one row takes in a vector, if rows are best reduced together, else None."""
    sized = [d for d in reduced if shape[d] != 1]
    reductions = reductions_of(body)
    independent = not any(m in reductions for n in reductions for m in topological(n.inputs))
    if len(sized) != 1 or not independent or lanes < 4 or lanes & (lanes - 1):
        return None
    size = shape[sized[0]]
    if not isinstance(size, int) or not 0 < size <= lanes or (size < lanes and not machine.masks):
        return None
    count = product(d for i, d in enumerate(shape) if i not in reduced)
    if estimate(count) < lanes or any(product(n.shape) != count for n in body.outputs):
        return None
    return 1 << (size - 1).bit_length()


def fold_rows(block: Block, value: Value, node: Node, first: Expr, size: int, width: int, lanes: int) -> Expr:
    """A vector with the reductions of `lanes` rows from `first` on, each of `size` elements in a vector of `width`."""
    op = reduction(node)
    if isinstance(op, ArgReduce):
        width = lanes
    positions = k.ramp(integer(0), width)
    mask = k.binary("lt", positions, integer(size)) if size < width else None

    def row(number: int) -> Expr:
        x = value(block, ix.add(first, integer(number)), positions, mask)
        return x if mask is None else k.select(mask, x, Lit(x.dtype, width, identity_of(op.kind, x.dtype)))

    if isinstance(op, ArgReduce):
        fold = Reducer.of(node, block, lanes, 1)
        for place, column in enumerate(transpose_block(block, [row(i) for i in range(lanes)])[:size]):
            fold.add(block, column, integer(place), None, 0)
        return fold.slot_results(block)[0]

    def concat_rows(start: int) -> Expr:
        """Concatenate rows start, start + width, start + 2 width, ..."""
        parts = [row(i) for i in range(start, lanes, width)]
        while len(parts) > 1:
            pairs = zip(parts[::2], parts[1::2], strict=True)
            parts = [block.let(k.Shuffle(a.dtype, 2 * a.lanes, a, b, tuple(range(2 * a.lanes))), "o") for a, b in pairs]
        return parts[0]

    return fold_lanes(
        block, [concat_rows(i) for i in range(width)], combining_op(op.kind, accumulator(node.inputs[0].dtype))
    )


def prefetch_positions(size: int, nbytes: int, lanes: int) -> list[tuple[int, int]]:
    """(row, position) of the cache lines to prefetch: those of the rows `SHORT_ROW_PREFETCH_BYTES` after the first."""
    row_bytes = size * nbytes
    distance = -(-SHORT_ROW_PREFETCH_BYTES // row_bytes)
    rows_per_line = max(1, CACHE_LINE_BYTES // row_bytes)
    return [
        (distance + i, j)
        for i in range(0, lanes, rows_per_line)
        for j in range(0, size, max(1, CACHE_LINE_BYTES // nbytes))
    ]


__all__ = ["fold_rows", "lanes_per_row", "prefetch_positions"]
