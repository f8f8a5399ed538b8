"""Dynamic range quantization: activations are quantized at each call and multiplied with quantized weights.

Every row (of a fully connected layer) or image has its own scale. Products are of integers: targets with byte products
sum them in integers, others in f32, exactly up to 2^24.
"""

from __future__ import annotations

import numpy as np

from ingot import ops
from ingot.frontends.tflite.call import Call, holds_levels
from ingot.frontends.tflite.levels import parameters
from ingot.ir import types as T
from ingot.ir.dims import product
from ingot.ir.node import Node, const


def is_hybrid(c: Call, x: int = 0, w: int = 1) -> bool:
    """Whether operand `x` has plain numbers and `w` has levels."""
    return c.x(x).dtype == T.f32 and holds_levels(c.tensors[w])


def weights(c: Call, w: int = 1) -> tuple[Node, Node]:
    """The levels minus their zero, as f32, and the scales: one, or one for each result channel."""
    q, x = c.levels(w), c.x(w)
    _, zero = parameters(q, x.dtype, len(x.shape))
    return ops.Dequantize()(x, zero, const(np.float32(1))), const(np.array(q.scales, np.float32))


def rounded(x: Node, asymmetric: bool) -> tuple[Node, Node]:
    """x[n, ...] quantized to integers, and their scale[n, 1, ...]."""
    flat = ops.reshape(x, (x.shape[0], product(x.shape[1:])))
    levels, zero, scale = (_asymmetric if asymmetric else _symmetric)(flat)
    per_row = (x.shape[0], *(1,) * (len(x.shape) - 1))
    zero = ops.reshape(zero, per_row) if zero.shape else zero
    return ops.Dequantize()(ops.reshape(levels, x.shape), zero, const(np.float32(1))), ops.reshape(scale, per_row)


def _symmetric(x: Node) -> tuple[Node, Node, Node]:
    """Levels, their zero and their scale: -127 to 127, ties away from zero."""
    reach = ops.reduce_max(ops.Abs()(x), 1, True)
    empty = ops.compare("EQ", reach, 0)
    safe = ops.where(empty, ops.full(reach.shape, 127, T.f32), reach)
    steps = ops.RoundAway()(ops.mul(x, ops.div(const(np.float32(127)), safe)))
    return ops.cast(ops.clip(steps, -127, 127), T.i8), ops.scalar(0, T.i8), ops.div(safe, 127)


def _asymmetric(x: Node) -> tuple[Node, Node, Node]:
    """Levels, the level of 0, and their scale: -128 to 127 from the least to the greatest element, 0 among them."""
    low, high = ops.minimum(ops.reduce_min(x, 1, True), 0), ops.maximum(ops.reduce_max(x, 1, True), 0)
    empty = ops.compare("EQ", low, high)
    wide = [ops.cast(v, T.f64) for v in (low, high)]
    scale = ops.where(empty, ops.full(low.shape, 1, T.f64), ops.div(ops.sub(wide[1], wide[0]), 255))
    from_low, from_high = ops.sub(-128, ops.div(wide[0], scale)), ops.sub(127, ops.div(wide[1], scale))
    errors = [ops.add(ops.Abs()(ops.div(v, scale)), end) for v, end in zip(wide, (128, 127), strict=True)]
    nearest = ops.where(ops.compare("LT", errors[0], errors[1]), from_low, from_high)
    zero = ops.cast(ops.RoundAway()(ops.clip(nearest, -128, 127)), T.f32)
    narrow = ops.cast(scale, T.f32)
    steps = ops.RoundAway()(ops.add(zero, ops.mul(x, ops.div(const(np.float32(1)), narrow))))
    return ops.cast(ops.clip(steps, -128, 127), T.i8), ops.cast(zero, T.i8), narrow
