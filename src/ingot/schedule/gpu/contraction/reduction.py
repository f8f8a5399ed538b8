"""Offsets along the reduction of a contraction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import gcd

from ingot.ir import kernel as k
from ingot.ir.dims import DimLike, product
from ingot.ir.kernel import Expr
from ingot.ir.layout import Layout
from ingot.ir.node import Graph, Node
from ingot.schedule import index as ix
from ingot.schedule.axes import Axis
from ingot.schedule.block import Block
from ingot.schedule.dimension_numbers import Loops
from ingot.schedule.gpu.blocks import offset_of, tile_index
from ingot.schedule.index import dim_expr
from ingot.support.dataclass import dataclass


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


@dataclass(frozen=True)
class TermBlocks:
    """The reduction as blocks, each of the terms of a k-step: the start of a block is a sum of scalars, and the offsets
    of its terms from there are the same in every block.

    (32 images, 14, 14)   ->   7 x 7 blocks of (16 images, 2, 2) for each 16 images
    """

    outer: tuple[Axis, ...]
    inner: tuple[Axis, ...]

    @staticmethod
    def of(axes: Sequence[Axis], step: int) -> TermBlocks | None:
        """Blocks of `step` terms of `axes`; None if the extents cannot be divided into such blocks."""
        outer, inner = list[Axis](), list[Axis]()
        for x in reversed(axes):
            if not isinstance(x.extent, int):
                return None
            size = gcd(x.extent, step)
            step //= size
            outer.append(replace(x, extent=x.extent // size, a=x.a * size, b=x.b * size))
            inner.append(replace(x, extent=size))
        return TermBlocks(tuple(reversed(outer)), tuple(reversed(inner))) if step == 1 else None

    def starts(self, block: Block, start: Expr, strides: Sequence[DimLike]) -> Expr:
        """The offset of the block whose first term is `start`. strides: of the outer axes."""
        step = product(x.extent for x in self.inner)
        number = block.let(k.binary("div", start, dim_expr(step)), "n")
        index = [block.let(e, "o") for e in ix.delinearize(number, tuple(x.extent for x in self.outer), {})]
        return offset_of(index, strides)

    def terms(self, block: Block, axis: int, strides: Sequence[DimLike]) -> Expr:
        """The offsets of a block's terms from its first, along `axis` of a tile. strides: of the inner axes."""
        extents = tuple(x.extent for x in self.inner)
        lanes = block.let(k.lane_indices(int(product(extents)), axis), "at")
        index = [block.let(e, "i") for e in ix.delinearize(lanes, extents, block.multiples)]
        return block.let(offset_of(index, strides), "terms")


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


__all__ = ["TermBlocks", "has_other_users", "packed_loops", "reduction_offsets"]
