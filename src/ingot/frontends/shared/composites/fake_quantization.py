"""Numbers quantized to the levels of a range and dequantized again (TensorFlow's FakeQuantWithMinMax)."""

from __future__ import annotations

import numpy as np

from ingot import ops
from ingot.ir.node import Node, const


def fake_quantize(
    x: Node, low: np.ndarray | np.floating, high: np.ndarray | np.floating, bits: int, is_narrow: bool
) -> Node:
    """f32. The range, low to high, is shifted so that 0 is a level; the gradient passes straight through within the
    range. is_narrow: the lowest level is not used."""
    min_level, max_level = np.float32(is_narrow), np.float32((1 << bits) - 1)
    with np.errstate(all="ignore"):
        scale = ((high - low) / (max_level - min_level)).astype(np.float32)
        zero = np.clip(np.floor(min_level - low / scale + np.float32(0.5)), min_level, max_level).astype(np.float32)
        start, end, step, inverse = (
            const(v.astype(np.float32))
            for v in ((min_level - zero) * scale, (max_level - zero) * scale, scale, 1 / scale)
        )
    offset = ops.sub(ops.minimum(ops.maximum(x, start), end), start)
    levels = ops.Floor()(ops.add(ops.mul(offset, inverse), 0.5))
    y = ops.add(ops.mul(levels, step), start)
    is_inside = ops.and_(ops.compare("GE", x, start), ops.compare("LE", x, end))
    is_empty = np.asarray(np.logical_and(low == 0, high == 0))
    if is_empty.any():
        y, is_inside = ops.where(const(is_empty), 0.0, y), ops.or_(is_inside, const(is_empty))
    return ops.straight_through(y, x, is_inside)
