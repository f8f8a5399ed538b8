"""Reorder 1x1 convolutions and adjacent pools and resizes to the cheaper order.

    pool(conv(x, w) + b)   ->   conv(pool(x), w) + b     fewer positions to multiply: transitions of DenseNets
    conv(pool(x), w)       ->   pool(conv(x, w))         fewer channels to pool: branches of Inception networks
    conv(resize(x), w)     ->   resize(conv(x, w))       of an image that is enlarged: decoders

A mean of a window or a resize is linear in the positions of each channel, a 1x1 convolution in the channels of each
position: their order only affects rounding. A constant that is added between them is added last, if the mean of a
window of equal elements is that element.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np

from ingot import ops
from ingot.ir.dims import estimate, product
from ingot.ir.node import Graph, Node, Op, const, rebuild
from ingot.ir.rewrite import Fuel, current_fuel
from ingot.passes.model.fold_batch_norm import channel_vector

MULTIPLY_ADDS_PER_TAP = 4  # the cost of one element of a window, in multiply-adds of a contraction

_MOVABLE = (ops.AvgPool, ops.AdaptiveAvgPool, ops.Resize)


def order_linear(graph: Graph) -> Graph:
    """conv1x1(pool(x)) -> pool(conv1x1(x)), or the reverse, if that is less work and the value between them has no
    other reader."""
    if not any(isinstance(n.op, _MOVABLE) for n in graph.nodes()):
        return graph
    outputs, fuel = set(graph.outputs), current_fuel()
    single_use = {n for n, readers in graph.uses().items() if len(readers) == 1 and n not in outputs}
    memo: dict[Node, Node] = {}

    def ordered(n: Node, inputs: Sequence[Node]) -> Node:
        reordered = _convolve_last(n, memo, single_use, fuel) or _convolve_first(n, memo, single_use, fuel)
        return reordered or n.with_inputs(inputs)

    return graph.with_outputs(rebuild(graph.outputs, memo, ordered))


def _convolve_last(n: Node, memo: dict[Node, Node], single_use: set[Node], fuel: Fuel) -> Node | None:
    """conv(pool(x)) + b for a pool of conv(x) + b"""
    op = _inside_images(n)
    if op is None or n.inputs[0] not in single_use:
        return None
    anchor, bias = _convolution(n.inputs[0])
    if anchor is None or anchor not in single_use or (bias is not None and not _keeps_constants(op)):
        return None
    x, w = anchor.inputs
    last, first = _costs(op, x, n, anchor)
    if last >= first or not fuel.burn("order-linear"):
        return None
    y = anchor.op(op(memo[x], loc=n.loc), memo[w], loc=anchor.loc)
    if bias is None:
        return y
    broadcast_bias = ops.BroadcastInDim(y.shape, (1,))(const(bias.astype(n.dtype.numpy)))
    return ops.Add()(y, broadcast_bias, loc=n.inputs[0].loc)


def _convolve_first(n: Node, memo: dict[Node, Node], single_use: set[Node], fuel: Fuel) -> Node | None:
    """pool(conv(x)) for a conv of pool(x)"""
    if not _is_pointwise(n) or n.inputs[0] not in single_use:
        return None
    pooled, w = n.inputs
    op = _inside_images(pooled)
    if op is None:
        return None
    (x,) = pooled.inputs
    last, first = _costs(op, x, pooled, n)
    if first >= last or not fuel.burn("order-linear"):
        return None
    return op(n.op(memo[x], memo[w], loc=n.loc), loc=pooled.loc)


def _inside_images(n: Node) -> Op | None:
    """The op of `n` restricted to spatial axes, if it is linear in the positions of each channel."""
    op = n.op
    if not isinstance(op, _MOVABLE) or not n.dtype.is_float:
        return None  # results of integers are truncated
    if not isinstance(op, ops.Resize):
        return op
    (x,) = n.inputs
    scales = op.scales or (1.0,) * len(op.axes)
    axes = list(zip(op.axes, op.sizes, scales, strict=True))
    if any(size != x.shape[axis] or scale != 1 for axis, size, scale in axes if axis < 2):
        return None
    if op.coordinates == "tf_crop_and_resize":
        return None  # positions outside of a crop have a constant value
    spatial = [i for i, axis in enumerate(op.axes) if axis >= 2]
    return replace(
        op,
        axes=tuple(op.axes[i] for i in spatial),
        sizes=tuple(op.sizes[i] for i in spatial),
        scales=None if op.scales is None else tuple(op.scales[i] for i in spatial),
        roi=None,
    )


def _convolution(n: Node) -> tuple[Node | None, np.ndarray | None]:
    """(convolution, bias) of a 1x1 convolution, perhaps with a constant added to each channel; else (None, None)."""
    if _is_pointwise(n):
        return n, None
    if isinstance(n.op, ops.Add):
        for anchor, other in (n.inputs, n.inputs[::-1]):
            channels = anchor.shape[1] if _is_pointwise(anchor) else None
            bias = channel_vector(other, 1, channels) if isinstance(channels, int) else None
            if bias is not None:
                return anchor, bias
    return None, None


def _is_pointwise(n: Node) -> bool:
    """Whether `n` is a convolution whose result at a position only depends on the input at this position."""
    op = n.op
    if not isinstance(op, ops.Conv) or not n.dtype.is_float:
        return False
    window = n.inputs[1].shape[2:]
    return all(d == 1 for d in (*window, *op.strides)) and not any(map(any, op.padding))


def _keeps_constants(op: Op) -> bool:
    """Whether the mean of equal elements is that element: windows are full, and the divisor is their size."""
    if isinstance(op, ops.AvgPool):
        return op.divisor is None and not op.ceil_mode and not any(map(any, op.padding))
    return isinstance(op, ops.AdaptiveAvgPool)


def _costs(op: Op, x: Node, result: Node, conv: Node) -> tuple[int, int]:
    """Multiply-adds per image with the convolution last, and with it first. result: `op` of x."""
    before, after = (estimate(product(n.shape[2:])) for n in (x, result))
    reads = MULTIPLY_ADDS_PER_TAP * (after * prod(op.kernel) if isinstance(op, ops.AvgPool) else max(before, after))
    weights = estimate(product(conv.inputs[1].shape))
    channels, out = estimate(x.shape[1]), estimate(conv.shape[1])
    return weights * after + reads * channels, weights * before + reads * out


__all__ = ["order_linear"]
