"""Builders of quantized values."""

from __future__ import annotations

from ingot.ir.node import Node
from ingot.ir.types import u8
from ingot.ops.build import apply, compare, div, maximum, minimum, reduce_max, reduce_min, scalar, sub, where
from ingot.ops.core.quantize import Quantize


def quantize(x: Node, scale: Node, zero: Node, loc: str = "") -> Node:
    """The f32 x quantized to the dtype of `zero`; scale and zero broadcast. See `Quantize`."""
    return apply(Quantize(), x, scale, zero, loc=loc)


def dynamic_quantize(x: Node, loc: str = "") -> tuple[Node, Node, Node]:
    """(u8 levels, scale, zero point) of x, for the range of x extended to 0 (ONNX DynamicQuantizeLinear)."""
    low = minimum(reduce_min(x, loc=loc), 0.0)
    high = maximum(reduce_max(x, loc=loc), 0.0)
    step = div(sub(high, low), 255.0)
    # if all elements are 0, the scale is 1, as in ONNX Runtime
    scale = where(compare("EQ", step, 0.0), scalar(1.0), step)
    zero = quantize(sub(0.0, div(low, scale)), scalar(1.0), scalar(0, u8))
    return quantize(x, scale, zero, loc), scale, zero


__all__ = ["dynamic_quantize", "quantize"]
