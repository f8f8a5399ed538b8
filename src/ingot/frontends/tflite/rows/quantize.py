"""Quantization, dequantization and requantization."""

from __future__ import annotations

import numpy as np

from ingot import ops
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.tflite.call import Call, Table, holds_levels
from ingot.frontends.tflite.fixed_point import Multiplier, multiplied
from ingot.frontends.tflite.levels import centered, dequantized, saturated
from ingot.ir import types as T
from ingot.ir.node import Node, const

row, on_levels = Table(), Table()


@row("DEQUANTIZE")
def dequantize(c: Call) -> Node:
    """Of floats, which are widened."""
    if not c.x().dtype.is_float:
        raise Unsupported(f"of {c.x().dtype} without a scale")
    return ops.cast(c.x(), c.type())


@on_levels("DEQUANTIZE")
def dequantize_levels(c: Call) -> Node:
    return ops.cast(dequantized(c.x(), c.levels()), c.type())


@on_levels("QUANTIZE")
def quantize(c: Call) -> Node:
    x, result_levels, dtype = c.x(), c.out_levels(), c.type()
    if len(result_levels.scales) > 1:
        raise Unsupported("to several scales")
    if holds_levels(c.tensors[0]) or x.dtype.is_integer:
        levels = c.levels()
        by = Multiplier.of(levels.scale / result_levels.scale)
        return saturated(ops.add(multiplied(centered(x, levels), by), result_levels.zero), dtype)
    steps = ops.RoundAway()(ops.div(x, const(np.float32(result_levels.scale))))
    # clamped in floats, where values beyond i32 are still representable
    low, high = (float(end - result_levels.zero) for end in dtype.range)
    return ops.cast(ops.add(ops.cast(ops.clip(steps, low, high), T.i32), result_levels.zero), dtype)
