"""Offsets along the reduction of a contraction."""

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
from ingot.schedule.gpu.blocks import offset_of, tile_index


def reduction_offsets(
    block: Block, start: Expr, step: int, axes: Sequence[Axis], axis: int, strides: Sequence[DimLike]
) -> tuple[Expr, Expr | None]:
    """The operand's offsets of `step` terms from `start` on, along `axis` of its tile; the mask of those in bounds."""
    extents = tuple(x.extent for x in axes)
    if step == 1:
        index = ix.delinearize(start, extents, block.multiples)
        return offset_of(index, strides), None
    places, in_bounds = tile_index(block, start, step, extents, axis)
    return offset_of(places, strides), in_bounds


def packed_loops(loops: Loops, axes: Sequence[Axis]) -> Loops:
    """The loops for a B that is packed contiguously with its axes in the order of `axes`."""
    strides = dict(zip(map(id, axes), Layout.contiguous(tuple(x.extent for x in axes)).strides, strict=True))
    repacked = ([replace(x, b=strides[id(x)]) for x in axes] for axes in (loops.batch, loops.reduce, loops.cols))
    batch, reduce, cols = map(tuple, repacked)
    return replace(loops, batch=batch, reduce=reduce, cols=cols)


def has_other_users(body: Graph, operand: Node, anchor: Node) -> bool:
    """Whether anything but the views between `operand` and the anchor's B uses it."""
    users, node = body.uses(), operand
    while node is not anchor:
        node_users = users.get(node, [])
        if len(node_users) != 1 or node in body.outputs:
            return True
        (node,) = node_users
    return operand is anchor.inputs[0]


__all__ = ["has_other_users", "packed_loops", "reduction_offsets"]
