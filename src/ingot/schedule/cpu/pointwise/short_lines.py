"""Pointwise groups with a short innermost dimension: full vectors over as many of its lines as a vector has lanes.

    x[n, 3] + b[3]   ->   for 16 lines at once: 3 vectors of x, plus b0 b1 b2 b0 ... b0, b1 b2 b0 ... b1, b2 b0 ... b2

Line by line, vectors would be partial, and along the other dimension they would be strided. If operands are contiguous
along the other dimension, vectors run along it, and results are shuffled into lines:

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
from ingot.schedule.cpu.pointwise.blocked_transpose import read_strides
from ingot.schedule.cpu.rows.columns import is_short_row, store_order
from ingot.schedule.emit import Emitter, Index, Leaf
from ingot.schedule.index import ZERO, integer
from ingot.support.dataclass import dataclass

MAX_VECTORS = 4  # of a line


@dataclass(frozen=True)
class ShortLines:
    """Lines of `size` elements, the innermost dimension. is_transposed: operands are contiguous across lines."""

    size: int
    is_transposed: bool

    @staticmethod
    def of(
        body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...], buffers: tuple[Buffer, ...], lanes: int
    ) -> ShortLines | None:
        """The short lines of a group, or None if it should not be computed this way."""
        shape = body.outputs[0].shape
        if len(shape) < 2:
            return None
        rows, size = shape[-2:]
        if not isinstance(size, int) or not 1 < size < MAX_VECTORS * lanes or size % lanes == 0 or lanes < 4:
            return None
        if _dense(body, ins, outs):
            return ShortLines(size, is_transposed=False)
        is_dense = all(lay.strides[-2:] == (size, 1) for lay in outs)
        lines = estimate(rows)
        if not is_dense or not is_short_row(size, lanes) or (lines % lanes and lines < 8 * lanes):
            return None
        line_strides, across_strides = (read_strides(body, ins, buffers, shape, len(shape) - i, lanes) for i in (1, 2))
        if line_strides is None or across_strides is None or any(n.dtype == boolean for n in body.outputs):
            return None
        is_strided = any(step not in (0, 1) for steps in line_strides.values() for step in steps)
        is_contiguous = all(step in (0, 1) for steps in across_strides.values() for step in steps)
        return ShortLines(size, is_transposed=True) if is_strided and is_contiguous else None

    def vectors(
        self, block: Block, index: Index, lanes: int, body: Graph, leaves: Mapping[Node, Leaf]
    ) -> Iterator[tuple[Expr, ...]]:
        """The vectors of all results, in memory order, of `lanes` lines from `index` on."""
        *outer, row = index
        if self.is_transposed:
            em, rows, positions = Emitter(leaves), k.ramp(row, lanes), range(self.size)
            columns = ([em.value(block, n, (*outer, rows, integer(j))) for j in positions] for n in body.outputs)
            yield from zip(
                *(store_order(block, [k.splat(v, lanes) for v in values]) for values in columns), strict=True
            )
            return
        shape = body.outputs[0].shape
        for i in range(self.size):
            place = k.ramp(integer(i * lanes), lanes)
            flat = ix.add(k.mul(row, integer(self.size)), place)
            full_leaves = {n: Leaf(partial(_at, leaves[n], flat), home=block) for n in body.inputs if n.shape == shape}
            em, at = Emitter({**leaves, **full_leaves}), (ZERO, k.binary("rem", place, integer(self.size)))
            yield tuple(em.value(block, n, at) for n in body.outputs)


def _dense(body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...]) -> bool:
    """Whether operands of the full shape are contiguous, and all others are the same for every line."""
    shape = body.outputs[0].shape
    dense = len(shape) == 2
    for n, lay in zip((*body.inputs, *body.outputs), (*ins, *outs), strict=True):
        dense &= lay.is_contiguous if n.shape == shape else product(n.shape[:-1]) == 1 and n.type.rank <= 2
    broadcasts = [n for n in body.nodes() if isinstance(n.op, ops.BroadcastInDim) and n.shape == shape]
    has_broadcast = bool(broadcasts) and not any(map(_varies_by_line, broadcasts))
    return dense and has_broadcast and all(n.is_leaf or _is_plain(n) for n in body.nodes())


def _is_plain(n: Node) -> bool:
    return isinstance(n.op, ops.BroadcastInDim) or category(n.op) is Category.ELEMENTWISE


def _varies_by_line(node: Node) -> bool:
    """Whether a broadcast to the full shape differs between lines."""
    op, (x,) = node.op, node.inputs
    assert isinstance(op, ops.BroadcastInDim)
    return any(d == 0 and size != 1 for d, size in zip(op.dims, x.shape, strict=True))


def _at(leaf: Leaf, flat: Expr, block: Block, index: Index, mask: Expr | None) -> Expr:
    return leaf.read(block, (ZERO, flat), mask)


__all__ = ["ShortLines"]
