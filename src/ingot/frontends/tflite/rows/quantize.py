"""Between numbers and levels, and from levels to others."""

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
    x, out, dtype = c.x(), c.out_levels(), c.type()
    if len(out.scales) > 1:
        raise Unsupported("to several scales")
    if holds_levels(c.tensors[0]) or x.dtype.is_integer:
        levels = c.levels()
        by = Multiplier.of(levels.scale / out.scale)
        return saturated(ops.add(multiplied(centered(x, levels), by), out.zero), dtype)
    steps = ops.RoundAway()(ops.div(x, const(np.float32(out.scale))))
    # what is beyond i32 is cut in floats, where it is at its place
    low, high = (float(end - out.zero) for end in dtype.range)
    return ops.cast(ops.add(ops.cast(ops.clip(steps, low, high), T.i32), out.zero), dtype)
