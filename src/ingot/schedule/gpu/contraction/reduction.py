"""How the kernels of contractions walk their reduction: where its places lie in an operand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ingot.ir.dims import DimLike
from ingot.ir.kernel import Expr
from ingot.ir.layout import Layout
from ingot.ir.node import Graph, Node
from ingot.schedule import index as ix
from ingot.schedule.axes import Axis
from ingot.schedule.block import Block
from ingot.schedule.dimension_numbers import Loops
from ingot.schedule.gpu.blocks import dot, places_of


def along(
    block: Block, first: Expr, step: int, axes: Sequence[Axis], axis: int, strides: Sequence[DimLike]
) -> tuple[Expr, Expr | None]:
    """Where `step` positions of the reduction from `first` on lie in an operand, along `axis` of its tile."""
    extents = tuple(x.extent for x in axes)
    if step == 1:
        at = ix.delinearize(first, extents, block.multiples)
        return dot(at, strides), None
    places, live = places_of(block, first, step, extents, axis)
    return dot(places, strides), live


def packed_loops(loops: Loops, axes: Sequence[Axis]) -> Loops:
    """Loops over a B that is packed with its axes in that order."""
    strides = dict(zip(map(id, axes), Layout.contiguous(tuple(x.extent for x in axes)).strides, strict=True))
    moved = ([replace(x, b=strides[id(x)]) for x in axes] for axes in (loops.batch, loops.reduce, loops.cols))
    batch, reduce, cols = map(tuple, moved)
    return replace(loops, batch=batch, reduce=reduce, cols=cols)


def reads_again(body: Graph, operand: Node, anchor: Node) -> bool:
    """Whether something else reads `operand` than views on the way to B."""
    users, node = body.uses(), operand
    while node is not anchor:
        seen = users.get(node, [])
        if len(seen) != 1 or node in body.outputs:
            return True
        (node,) = seen
    return operand is anchor.inputs[0]


__all__ = ["along", "packed_loops", "reads_again"]
