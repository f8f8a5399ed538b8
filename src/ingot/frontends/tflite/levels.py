"""Levels q, and the numbers (q - zero) * scale that they represent."""

from __future__ import annotations

import math

import numpy as np

from ingot import ops
from ingot.frontends.tflite.file import Quantization
from ingot.ir import types as T
from ingot.ir.node import Node, const


def parameters(q: Quantization, dtype: T.DType, rank: int) -> tuple[Node, Node]:
    """scale (f32) and zero, shaped to broadcast against a tensor of this rank."""
    shape = [1] * rank
    if len(q.scales) > 1:
        shape[q.axis] = len(q.scales)
    else:
        shape = []
    return const(np.array(q.scales, np.float32).reshape(shape)), const(np.array(q.zeros, dtype.numpy).reshape(shape))


def dequantized(x: Node, q: Quantization) -> Node:
    """The numbers that levels represent, f32."""
    scale, zero = parameters(q, x.dtype, len(x.shape))
    return ops.Dequantize()(x, zero, scale)


def centered(x: Node, q: Quantization) -> Node:
    """q - zero, i32."""
    return ops.Dequantize()(x, const(np.array(q.zero, x.dtype.numpy)))


def saturated(x: Node, dtype: T.DType, low: int | None = None, high: int | None = None) -> Node:
    """x clamped to the type's range, or to a part of it."""
    min_level, max_level = dtype.range
    low = min_level if low is None else max(min_level, low)
    high = max_level if high is None else min(max_level, high)
    return ops.cast(ops.clip(x, low, high), dtype)


def activation_range(activation: int, q: Quantization, dtype: T.DType) -> tuple[int, int]:
    """The range of levels after a fused activation, by the activation's number."""
    low, high = dtype.range

    def level(value: float) -> int:
        return q.zero + round_away(float(np.float32(value) / np.float32(q.scale)))

    bounds = {0: (None, None), 1: (0.0, None), 2: (-1.0, 1.0), 3: (0.0, 6.0)}[activation]
    return (
        low if bounds[0] is None else max(low, level(bounds[0])),
        high if bounds[1] is None else min(high, level(bounds[1])),
    )


def round_away(x: float) -> int:
    """Rounded, ties away from zero."""
    return int(math.copysign(math.floor(abs(float(x)) + 0.5), float(x)))
