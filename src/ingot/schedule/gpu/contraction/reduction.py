"""How the kernels of contractions walk their reduction: where its places lie in an operand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ingot.ir import kernel as k
from ingot.ir.dims import DimLike, product
from ingot.ir.kernel import Expr
from ingot.ir.layout import Layout
from ingot.ir.node import Graph, Node
from ingot.schedule import index as ix
from ingot.schedule.axes import Axis
from ingot.schedule.block import Block
from ingot.schedule.dimension_numbers import Loops
from ingot.schedule.gpu.blocks import Span, dot
from ingot.schedule.index import ZERO, dim_expr, integer


def along(
    block: Block, first: Expr, step: int, axes: Sequence[Axis], axis: int, strides: Sequence[DimLike]
) -> tuple[Expr, Expr | None]:
    """Where `step` positions of the reduction from `first` on lie in an operand, along `axis` of its tile."""
    extents = tuple(x.extent for x in axes)
    if step == 1:
        at = ix.delinearize(first, extents, block.multiples)
        return dot(at, strides), None
    inner = extents[-1]
    if isinstance(inner, int) and inner % step == 0:  # a turn stays in one line of the innermost axis
        number: Expr = ZERO if len(extents) == 1 else block.let(k.binary("div", first, integer(inner)), "n")
        outer = ix.delinearize(number, extents[:-1], {}) if len(extents) > 1 else ()
        line = block.let(dot(outer, strides[:-1]), "o")
        if strides[-1] == 0:
            return line, None
        # not a remainder, of which Triton knows no multiple: elements side by side are loaded together
        start = ix.sub(first, ix.mul(number, integer(inner)))
        span = block.let(k.add(start, k.positions(step, axis)), "k")
        return ix.add(line, ix.mul(span, dim_expr(strides[-1]))), None
    span = Span.of(block, first, step, product(extents), axis)
    return dot(span.index(block, extents), strides), span.live


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
