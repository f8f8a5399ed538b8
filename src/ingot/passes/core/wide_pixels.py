"""Images of three channels get a fourth of zeros, so that a load reads a pixel.

    conv(x[n, h, w, 3], w[o, 3, ...])       ->   conv(pad(x)[n, h, w, 4], pad(w)[o, 4, ...])
    conv(transpose(x)[3, h, w, n], g)       ->   conv(transpose(pad(x))[4, h, w, n], g)[:3]       the gradient of w

Elements of three channels are loaded one by one: no pixel starts at an address that vector loads allow. Values are the
same: zeros are multiplied by zeros, or make results that are dropped. Constant weights are left alone, as the choices
that were measured for them are of three channels.
"""

from __future__ import annotations

from collections.abc import Sequence

from ingot import ops
from ingot.ir.dims import estimate, product
from ingot.ir.node import Graph, Node, rebuild
from ingot.passes.constants import value_of

CHANNELS, WIDE_CHANNELS = 3, 4
MIN_POSITIONS = 4096  # that read the image; below, the copy of the image costs more than the loads


def widen_pixels(graph: Graph) -> Graph:
    """Pad the channels of the images that convolutions of 16 bits read (see module)."""

    def widened(n: Node, inputs: Sequence[Node]) -> Node:
        op = n.op
        if not isinstance(op, ops.Convolution) or n.dtype.bits != 16 or op.feature_groups * op.batch_groups != 1:
            return n.with_inputs(inputs)
        x, w = inputs
        spatial = [d for d, c in enumerate(op.lhs_layout) if c not in "NC"]
        if w.constant is not None or estimate(product(x.shape[d] for d in spatial)) < MIN_POSITIONS:
            return n.with_inputs(inputs)
        channel, image = op.lhs_layout.index("C"), op.lhs_layout.index("N")
        if _is_narrow_pixel(x, channel):
            kernel = ops.pad(w, *_margins(w, op.rhs_layout.index("I")))
            return op(_with_zeros(x, channel), kernel, loc=n.loc)
        if _is_narrow_pixel(x, image):
            wide, d = op(_with_zeros(x, image), w, loc=n.loc), op.out_layout.index("N")
            limit = (*wide.shape[:d], CHANNELS, *wide.shape[d + 1 :])
            return ops.Slice((0,) * wide.type.rank, limit, (1,) * wide.type.rank)(wide, loc=n.loc)
        return n.with_inputs(inputs)

    return graph.with_outputs(rebuild(graph.outputs, rule=widened))


def _margins(x: Node, dim: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The low and high padding that adds a channel along `dim`."""
    high = [0] * x.type.rank
    high[dim] = WIDE_CHANNELS - CHANNELS
    return (0,) * x.type.rank, tuple(high)


def _is_narrow_pixel(x: Node, dim: int) -> bool:
    """Whether `dim` has three elements that are neighbors in memory, seen through views."""
    if x.shape[dim] != CHANNELS:
        return False
    while isinstance(x.op, ops.Transpose | ops.Slice | ops.Pad):
        dim = x.op.permutation[dim] if isinstance(x.op, ops.Transpose) else dim
        x = x.inputs[0]
    return x.constant is None and dim == x.type.rank - 1 and x.shape[dim] == CHANNELS


def _with_zeros(x: Node, dim: int) -> Node:
    """`x` with a channel of zeros behind the others; views of it are views of the padded image."""
    op = x.op
    if isinstance(op, ops.Transpose):
        return op(_with_zeros(x.inputs[0], op.permutation[dim]), loc=x.loc)
    if isinstance(op, ops.Slice):
        limit = (*op.limit[:dim], WIDE_CHANNELS, *op.limit[dim + 1 :])
        return ops.Slice(op.start, limit, op.strides)(_with_zeros(x.inputs[0], dim), loc=x.loc)
    low, high = _margins(x, dim)
    if isinstance(op, ops.Pad) and x.inputs[1].constant is not None and not value_of(x.inputs[1]).any():
        high = tuple(a + b for a, b in zip(op.high, high, strict=True))
        return ops.Pad(op.low, high, op.interior)(*x.inputs, loc=x.loc)
    return ops.pad(x, low, high)


__all__ = ["widen_pixels"]
