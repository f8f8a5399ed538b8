"""Images of few channels get as many as make each position that a convolution reads start at an aligned address.

    conv(x[N,H,W,3], w) in strides of 2   ->   conv(pad(x, channels = 4), pad(w))

Positions are then read by 16 bytes in place of element by element: both by the convolution and by the gradient of its
kernel, whose additional rows are cut off. The latter's window gets as many taps as complete a vector, too.
"""

from __future__ import annotations

from dataclasses import replace

from ingot import ops
from ingot.ir.dims import is_static
from ingot.ir.node import Graph, Node
from ingot.ir.rewrite import Rule, RuleSet, rewrite
from ingot.ir.types import static_shape

MAX_IMAGE_CHANNELS = 4
VECTOR_BYTES = 16


def align_image_channels(graph: Graph) -> Graph:
    """conv(x, w) -> conv(pad(x), pad(w)) for 16-bit images of few channels (see module)"""
    rules = (
        Rule("conv", ops.Conv, _convolution),
        Rule("convolution", ops.Convolution, _convolution),
        Rule("gradient", ops.KernelGradient, _gradient),
    )
    return rewrite(graph, RuleSet(rules))


def _missing_channels(x: Node, at: int, strides: tuple[int, ...]) -> int:
    """How many more channels an image should have, whose channels are dimension `at`; 0 for what is no image, or read
    in vectors as it is."""
    if x.dtype.bits != 16 or not strides or not is_static(x.shape) or not 1 < x.shape[at] <= MAX_IMAGE_CHANNELS:
        return 0
    channels, step_bytes = int(x.shape[at]), strides[-1] * x.dtype.nbytes
    if step_bytes * channels % VECTOR_BYTES == 0:
        return 0
    aligned = 1 << (channels - 1).bit_length()
    while step_bytes * aligned % VECTOR_BYTES:
        aligned *= 2
    return aligned - channels


def _convolution(n: Node) -> Node | None:
    op, (x, w, *bias) = n.op, n.inputs
    if isinstance(op, ops.Conv):
        at, taps_at, is_plain = 1, 1, op.groups == 1 and {*op.dilation} == {1}
    else:
        assert isinstance(op, ops.Convolution)
        at, taps_at = op.lhs_layout.index("C"), op.rhs_layout.index("I")
        is_plain = op.feature_groups == op.batch_groups == 1 and {*op.lhs_dilation, *op.rhs_dilation} == {1}
    more = _missing_channels(x, at, op.strides) if is_plain and x.dtype == w.dtype and is_static(w.shape) else 0
    return op(_with_channels(x, at, more), _with_channels(w, taps_at, more), *bias, loc=n.loc) if more else None


def _gradient(n: Node) -> Node | None:
    op, (x, g) = n.op, n.inputs
    assert isinstance(op, ops.KernelGradient)
    more = _missing_channels(x, x.type.rank - 1, op.strides)
    if not more or op.depthwise or {*op.dilation} != {1} or not is_static(g.shape):
        return None
    wide = int(x.shape[-1]) + more
    taps = (1 << (op.window[-1] * wide - 1).bit_length()) // wide
    columns = (int(g.shape[-2]) - 1) * op.strides[-1] + taps
    zeros = (0,) * (x.type.rank - 2)
    high = (*zeros, max(0, columns - int(x.shape[-2])), more)
    gradient = replace(op, window=(*op.window[:-1], taps))(ops.pad(x, (0,) * x.type.rank, high), g, loc=n.loc)
    return ops.Slice((0,) * x.type.rank, static_shape(n.shape), (1,) * x.type.rank)(gradient, loc=n.loc)


def _with_channels(x: Node, dim: int, more: int) -> Node:
    """`x` with more channels along a dimension, which are zero."""
    none = (0,) * x.type.rank
    return ops.pad(x, none, (*none[:dim], more, *none[dim + 1 :]), loc=x.loc)


__all__ = ["align_image_channels"]
