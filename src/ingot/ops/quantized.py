"""Builders of values at evenly spaced levels."""

from __future__ import annotations

from ingot.ir.node import Node
from ingot.ir.types import u8
from ingot.ops.build import apply, compare, div, maximum, minimum, reduce_max, reduce_min, scalar, sub, where
from ingot.ops.core.quantize import Quantize


def quantized(x: Node, scale: Node, zero: Node, loc: str = "") -> Node:
    """x: f32 at the levels of `scale` and `zero`, which broadcast, in zero's type."""
    return apply(Quantize(), x, scale, zero, loc=loc)


def dynamically_quantized(x: Node, loc: str = "") -> tuple[Node, Node, Node]:
    """(u8 levels, their scale, their zero) of all of x's range and 0, as ONNX's DynamicQuantizeLinear."""
    low = minimum(reduce_min(x, loc=loc), 0.0)
    high = maximum(reduce_max(x, loc=loc), 0.0)
    least = div(sub(high, low), 255.0)
    # all zeros: any scale does, ONNX Runtime's is 1
    scale = where(compare("EQ", least, 0.0), scalar(1.0), least)
    zero = quantized(sub(0.0, div(low, scale)), scalar(1.0), scalar(0, u8))
    return quantized(x, scale, zero, loc), scale, zero


__all__ = ["dynamically_quantized", "quantized"]
