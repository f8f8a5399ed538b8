"""Pointwise work on short lines, to which all that is smaller is spread: whole vectors across as many lines as a vector
has lanes.

    x[n, 3] + b[3]   ->   for 16 lines at once: 3 vectors of x, plus b0 b1 b2 b0 ... b0, b1 b2 b0 ... b1, b2 b0 ... b2

Line by line, vectors would end in the middle, and along the other dimension neighbours lie apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from ingot import ops
from ingot.ir import kernel as k
from ingot.ir.dims import product
from ingot.ir.kernel import Expr, Let
from ingot.ir.layout import Layout
from ingot.ir.node import Const, Graph, Node
from ingot.ops.core.base import Category, category
from ingot.schedule import index as ix
from ingot.schedule.block import Block
from ingot.schedule.emit import Emitter, Index, Leaf
from ingot.schedule.index import ZERO, integer

MOST = 4  # vectors that a line may be long

Store = Callable[[Emitter, Block, Index, Expr], None]  # (emitter, block, index, place in the results)


def short_line(body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...], lanes: int) -> int | None:
    """How long the lines of a group are, where they are best done this way."""
    shape = body.outputs[0].shape
    size = shape[-1] if len(shape) == 2 else None
    if not isinstance(size, int) or not 1 < size < MOST * lanes or size % lanes == 0 or lanes < 4:
        return None
    dense = True
    for n, lay in zip((*body.inputs, *body.outputs), (*ins, *outs), strict=True):
        # all of the box, one line behind the other, or nothing that tells lines apart
        dense &= lay.is_contiguous if n.shape == shape else product(n.shape[:-1]) == 1 and n.type.rank <= 2
    spreads = [n for n in body.nodes() if isinstance(n.op, ops.BroadcastInDim) and n.shape == shape]
    spread = bool(spreads) and not any(map(_along_lines, spreads))
    plain = all(
        n in body.inputs or isinstance(n.op, ops.BroadcastInDim | Const) or category(n.op) is Category.ELEMENTWISE
        for n in body.nodes()
    )
    return size if dense and spread and plain else None


def _along_lines(node: Node) -> bool:
    """Whether a broadcast to the box gives each line a value of its own."""
    op, (x,) = node.op, node.inputs
    assert isinstance(op, ops.BroadcastInDim)
    return any(d == 0 and size != 1 for d, size in zip(op.dims, x.shape, strict=True))


def write_lines(
    block: Block, number: Expr, size: int, lanes: int, body: Graph, leaves: Mapping[Node, Leaf], store: Store
) -> None:
    """`lanes` lines from number * lanes on, which all exist."""
    shape = body.outputs[0].shape
    # a name of this branch's own, so that no load moves out of it
    first = block.fresh("first")
    block.stmts.append(Let(first, k.mul(number, integer(size * lanes))))
    for i in range(size):
        place = k.ramp(integer(i * lanes), lanes)
        flat = ix.add(first, place)
        own = dict(leaves)
        for n in body.inputs:
            if n.shape == shape:
                own[n] = Leaf(partial(_at, leaves[n], flat), home=block)
        store(Emitter(own), block, (ZERO, k.binary("rem", place, integer(size))), flat)


def _at(leaf: Leaf, flat: Expr, block: Block, index: Index, mask: Expr | None) -> Expr:
    return leaf.read(block, (ZERO, flat), mask)


__all__ = ["short_line", "write_lines"]
