"""Pointwise work on short lines, to which all that is smaller is spread: whole vectors across as many lines as a vector
has lanes.

    x[n, 3] + b[3]   ->   for 16 lines at once: 3 vectors of x, plus b0 b1 b2 b0 ... b0, b1 b2 b0 ... b1, b2 b0 ... b2

Line by line, vectors would end in the middle, and along the other dimension neighbours lie apart. Where operands lie
side by side along that one, vectors run along it, and results are shuffled into lines:

    transpose(x[3, n])   ->   for 16 lines at once: a vector of x0, x1, x2; 3 vectors of the results
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from ingot import ops
from ingot.ir import kernel as k
from ingot.ir.dims import estimate, product
from ingot.ir.kernel import Buffer, Expr
from ingot.ir.layout import Layout
from ingot.ir.node import Graph, Node
from ingot.ir.types import boolean
from ingot.ops.core.base import Category, category
from ingot.schedule import index as ix
from ingot.schedule.block import Block
from ingot.schedule.cpu.pointwise.blocked_transpose import reads_along
from ingot.schedule.cpu.rows.columns import is_short_row, store_order
from ingot.schedule.emit import Emitter, Index, Leaf
from ingot.schedule.index import ZERO, integer
from ingot.support.dataclass import dataclass

MOST = 4  # vectors that a line may be long


@dataclass(frozen=True)
class ShortLines:
    """The two innermost dimensions of results: many lines of `size` elements. transposed: operands run across them."""

    size: int
    transposed: bool

    @staticmethod
    def of(
        body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...], buffers: tuple[Buffer, ...], lanes: int
    ) -> ShortLines | None:
        """How the lines of a group are done, where they are best done this way."""
        shape = body.outputs[0].shape
        if len(shape) < 2:
            return None
        rows, size = shape[-2:]
        if not isinstance(size, int) or not 1 < size < MOST * lanes or size % lanes == 0 or lanes < 4:
            return None
        if _dense(body, ins, outs):
            return ShortLines(size, transposed=False)
        dense = all(lay.strides[-2:] == (size, 1) for lay in outs)
        lines = estimate(rows)
        if not dense or not is_short_row(size, lanes) or (lines % lanes and lines < 8 * lanes):
            return None
        along, across = (reads_along(body, ins, buffers, shape, len(shape) - i, lanes) for i in (1, 2))
        if along is None or across is None or any(n.dtype == boolean for n in body.outputs):
            return None
        apart = any(step not in (0, 1) for steps in along.values() for step in steps)
        beside = all(step in (0, 1) for steps in across.values() for step in steps)
        return ShortLines(size, transposed=True) if apart and beside else None

    def vectors(
        self, block: Block, index: Index, lanes: int, body: Graph, leaves: Mapping[Node, Leaf]
    ) -> Iterator[tuple[Expr, ...]]:
        """Vector after vector of all results in memory: `lanes` lines, the first of which is at `index`."""
        *outer, row = index
        if self.transposed:
            em, rows, places = Emitter(leaves), k.ramp(row, lanes), range(self.size)
            columns = ([em.value(block, n, (*outer, rows, integer(j))) for j in places] for n in body.outputs)
            yield from zip(*(store_order(block, [k.splat(v, lanes) for v in own]) for own in columns), strict=True)
            return
        shape = body.outputs[0].shape
        for i in range(self.size):
            place = k.ramp(integer(i * lanes), lanes)
            flat = ix.add(k.mul(row, integer(self.size)), place)
            whole = {n: Leaf(partial(_at, leaves[n], flat), home=block) for n in body.inputs if n.shape == shape}
            em, at = Emitter({**leaves, **whole}), (ZERO, k.binary("rem", place, integer(self.size)))
            yield tuple(em.value(block, n, at) for n in body.outputs)


def _dense(body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...]) -> bool:
    """Whether all of the box lies one line behind the other, and nothing else tells lines apart."""
    shape = body.outputs[0].shape
    dense = len(shape) == 2
    for n, lay in zip((*body.inputs, *body.outputs), (*ins, *outs), strict=True):
        dense &= lay.is_contiguous if n.shape == shape else product(n.shape[:-1]) == 1 and n.type.rank <= 2
    spreads = [n for n in body.nodes() if isinstance(n.op, ops.BroadcastInDim) and n.shape == shape]
    spread = bool(spreads) and not any(map(_along_lines, spreads))
    return dense and spread and all(n.is_leaf or _is_plain(n) for n in body.nodes())


def _is_plain(n: Node) -> bool:
    return isinstance(n.op, ops.BroadcastInDim) or category(n.op) is Category.ELEMENTWISE


def _along_lines(node: Node) -> bool:
    """Whether a broadcast to the box gives each line a value of its own."""
    op, (x,) = node.op, node.inputs
    assert isinstance(op, ops.BroadcastInDim)
    return any(d == 0 and size != 1 for d, size in zip(op.dims, x.shape, strict=True))


def _at(leaf: Leaf, flat: Expr, block: Block, index: Index, mask: Expr | None) -> Expr:
    return leaf.read(block, (ZERO, flat), mask)


__all__ = ["ShortLines"]
