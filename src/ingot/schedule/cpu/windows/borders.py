"""Images that are read without their padding: a window leaves out the taps outside of the image.

    for the tiles at the edges:  for each tap: if it is inside: acc += x[...] * w[tap]
    for those between them:      for each tap: acc += x[...] * w[tap]

No padded copy is made of an image that is given, and no weight is multiplied by the zeros around it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ingot import ops
from ingot.ir import kernel as k
from ingot.ir.dims import DimLike
from ingot.ir.kernel import Expr, integer
from ingot.ir.layout import Layout
from ingot.ir.node import Graph, Node
from ingot.ops.views import zero_padding
from ingot.schedule import index as ix
from ingot.schedule.block import Block
from ingot.schedule.group_io import operand_memory
from ingot.schedule.index import ZERO, dim_expr
from ingot.support.dataclass import dataclass

Range = tuple[DimLike, DimLike]
Body = Callable[[Block], None]


@dataclass(frozen=True)
class Image:
    """An image [N,*S,C] in memory, perhaps without its padding.

    input: the position of the group's input that holds it. layout: as if the padding were there. inside: of each
    dimension of S the positions [low, high) that are in memory; None if all are.
    """

    input: int
    layout: Layout
    inside: tuple[Range | None, ...]

    @staticmethod
    def of(body: Graph, node: Node, ins: tuple[Layout, ...]) -> Image:
        pad = zero_padding(node)
        if pad is None:
            return Image(*operand_memory(body, node, ins), (None,) * (node.type.rank - 2))
        assert isinstance(pad.op, ops.Pad)
        start = node.op.start if isinstance(node.op, ops.Slice) else (0,) * node.type.rank
        x = pad.inputs[0]
        position, layout = operand_memory(body, x, ins)
        first = [low - begin for low, begin in zip(pad.op.low, start, strict=True)]  # of the image's elements
        offset = layout.offset
        for low, stride in zip(first, layout.strides, strict=True):
            offset = offset - low * stride
        inside: list[Range | None] = []
        for low, size, padded in zip(first[1:-1], x.shape[1:-1], node.shape[1:-1], strict=True):
            is_whole = isinstance(low, int) and low <= 0 and low + size == padded
            inside.append(None if is_whole else (low, low + size))
        return Image(position, Layout(node.shape, layout.strides, offset), tuple(inside))

    def when_inside(self, block: Block, positions: Sequence[Expr], first: int, body: Body) -> None:
        """Emit `body` where positions along the dimensions of S from `first` on are in memory."""
        conditions: list[Expr] = []
        for position, inside in zip(positions, self.inside[first:], strict=False):
            if inside is None:
                continue
            low, high = inside
            conditions += [k.binary("ge", position, dim_expr(low)), k.binary("lt", position, dim_expr(high))]
        _when(block, [c for c in conditions if not (isinstance(c, k.Lit) and c.value)], body)


def _when(block: Block, conditions: Sequence[Expr], body: Body) -> None:
    """Emit `body` where all conditions hold."""
    if not conditions:
        body(block)
        return
    both = conditions[0]
    for c in conditions[1:]:
        both = k.binary("and", both, c)
    block.when(next((c for c in conditions if isinstance(c, k.Lit)), both), body)


def tiled_line(
    block: Block,
    width: DimLike,
    tile: int,
    taps: tuple[int, int, int],
    inside: Range | None,
    body: Callable[[Block, Expr, int, bool], None],
) -> None:
    """Emit body(block, position, count, checks) for all of `width` output positions, `tile` at a time.

    taps: the stride, the dilation and the number of taps. inside: the input positions that are in memory. checks:
    whether some of the taps may be outside of it.
    """
    stride, dilation, count = taps
    is_static = isinstance(width, int)
    full = dim_expr(width) if not is_static else integer(width // tile * tile)
    if not is_static:
        full = block.let(k.mul(k.binary("div", full, integer(tile)), integer(tile)), "whole")
    first, last = ZERO, full  # the tiles whose taps are all inside
    if inside is not None:
        low, high = (dim_expr(d) for d in inside)
        reach = (tile - 1) * stride + (count - 1) * dilation + 1
        tiles = k.binary("div", k.binary("max", ix.add(low, integer(tile * stride - 1)), ZERO), integer(tile * stride))
        first = k.binary("min", k.mul(tiles, integer(tile)), full)
        # a tile at p is inside if p * stride + reach <= high
        room = k.binary("max", ix.add(ix.sub(high, integer(reach)), integer(tile * stride)), ZERO)
        last = k.mul(k.binary("div", room, integer(tile * stride)), integer(tile))
        last = k.binary("min", k.binary("max", last, first), full)
        first, last = block.let(first, "inside"), block.let(last, "inside")
        block.loop("ow", ZERO, first, tile, lambda b, p: body(b, p, tile, True))
    block.loop("ow", first, last, tile, lambda b, p: body(b, p, tile, False), multiple=tile)
    if inside is not None:
        block.loop("ow", last, full, tile, lambda b, p: body(b, p, tile, True), multiple=tile)
    if not is_static:
        block.loop("ow", full, width, 1, lambda b, p: body(b, p, 1, inside is not None))
    elif width % tile:
        body(block, full, width % tile, inside is not None)


__all__ = ["Image", "tiled_line"]
