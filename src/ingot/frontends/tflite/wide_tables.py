"""Functions of 16-bit levels: tables with linear interpolation, and the sigmoid's table for LOGISTIC and TANH.

    interpolated(x, of_real(np.exp, given, out))   ->   a point for each 128 levels, interpolated by the low 7 bits

Source: TensorFlow Lite's reference kernels for 16-bit activations.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ingot import ops
from ingot.frontends.tflite.file import Quantization
from ingot.ir import types as T
from ingot.ir.node import Node, const

_MIN_I16, _MAX_I16 = -(1 << 15), (1 << 15) - 1
_SEGMENTS = 512
Array = np.ndarray
Function = Callable[[Array], Array]


def interpolated(x: Node, table: Array) -> Node:
    """`table` at x, in the range of i16; the result is i32 in that range."""
    at = ops.cast(x, T.i32)
    place = ops.add(_halved(at, 7), _SEGMENTS // 2)
    slope = np.diff(table).astype(np.int16).astype(np.int32)
    rise = _halved(ops.add(ops.mul(ops.Take(0)(const(slope), place), ops.and_(at, 127)), 64), 7)
    y = ops.add(ops.Take(0)(const(table[:-1]), place), rise)
    return ops.cast(ops.cast(y, T.i16), T.i32)


def points(fn: Function, levels: tuple[float, int], out: tuple[float, int], dtype: type[np.floating]) -> Array:
    """513 points of a function of the numbers that 16-bit levels of (scale, zero) represent, i32: each shifted by half
    of the interpolation error at the segment's middle. dtype: of the arithmetic."""
    (scale, zero), (out_scale, out_zero) = levels, out
    scale, out_scale = dtype(scale), dtype(out_scale)
    min_value, max_value = (scale * dtype(end - zero) for end in (_MIN_I16, _MAX_I16))
    to_levels = dtype(1 << 16) / (out_scale * dtype(_MAX_I16 - out_zero) - out_scale * dtype(_MIN_I16 - out_zero))
    step = (max_value - min_value) / dtype(_SEGMENTS)
    at = np.arange(_SEGMENTS, dtype=dtype)

    def scaled(x: Array) -> Array:
        return fn(x).astype(dtype) * to_levels

    with np.errstate(all="ignore"):
        start, middle, end = (
            scaled(v) for v in (min_value + at * step, min_value + at * step + step / 2, min_value + (at + 1) * step)
        )
        sample = round_away(start)
        bent = round_away((end + sample) / dtype(2)) - round_away(middle)
        samples = np.append(sample - round_away(bent / dtype(2)), round_away(scaled(np.array([max_value], dtype))))
    return np.clip(np.nan_to_num(samples, nan=0.0), _MIN_I16, _MAX_I16).astype(np.int32)


def of_real(fn: Function, levels: Quantization, out: Quantization) -> Array:
    return points(fn, (levels.scale, levels.zero), (out.scale, out.zero), np.float32)


def round_away(x: Array) -> Array:
    """Rounded, ties away from zero, in x's type."""
    return (np.sign(x) * np.floor(np.abs(x.astype(np.float64)) + 0.5)).astype(x.dtype)


# exp from -10 to 0, and 1 / (1 + x) from 0 to 1: of softmax
EXP = points(np.exp, (10 / 65535, _MAX_I16), (2 / 65535, 0), np.float64)
RECIPROCAL = points(lambda x: 1 / (1 + x), (1 / 65535, _MIN_I16), (2 / 65535, 0), np.float64)


def _sigmoid_points() -> Array:
    """sigmoid(i / 24) in 16 bits for i from 0, shifted by half of the interpolation error; 1 from the last on."""
    at = np.arange(255) / 24
    start, middle, end = (65536 / (1 + np.exp(-(at + d / 24))) for d in (0, 0.5, 1))
    return np.append(np.round(start - ((start + end) / 2 - middle) / 2), 65535).astype(np.int32)


_SIGMOID = _sigmoid_points()


def logistic(x: Node, scale: float) -> Node:
    """Q15 of i16 levels."""
    y, positive = _sigmoid(x, scale, 9, 0, 0x7FFF << 10)
    folded = ops.where(positive, ops.add(y, 1 << 9), ops.sub((1 << 25) + (1 << 9) - 1, y))
    return ops.cast(_halved(folded, 10), T.i16)


def tanh(x: Node, scale: float) -> Node:
    """Q15 of i16 levels, as 2 sigmoid(2 x) - 1."""
    y, positive = _sigmoid(x, scale, 8, 1, 0xFFFF << 8)
    folded = ops.where(positive, ops.sub(y, (1 << 23) - (1 << 7)), ops.sub((1 << 23) + (1 << 7) - 1, y))
    return ops.cast(_halved(folded, 8), T.i16)


def _sigmoid(x: Node, scale: float, bits: int, most_left: int, end: int) -> tuple[Node, Node]:
    """The sigmoid of |x| with `bits` below its 16, `end` where x is beyond the table; and where x is not negative.
    most_left: by how much a scale may be above 2^-12 that is taken for a power of two."""
    factor, shift = _factor(scale, most_left)
    steps = ops.mul(ops.cast(x, T.i32), factor)
    if shift:
        steps = _halved(ops.add(steps, 1 << (shift - 1)), shift)
    size = ops.Abs()(steps)
    place = _halved(size, bits)
    index = ops.minimum(place, 254)
    low, rise = ops.Take(0)(const(_SIGMOID[:-1]), index), ops.Take(0)(const(np.diff(_SIGMOID)), index)
    line = ops.add(ops.mul(low, 1 << bits), ops.mul(ops.and_(size, (1 << bits) - 1), rise))
    return ops.where(ops.compare("GE", place, 255), ops.full(x.shape, end, T.i32), line), ops.compare("GE", steps, 0)


def _factor(scale: float, most_left: int) -> tuple[int, int]:
    """(m, shift): m / 2^shift is 3 * 2^12 * scale, for levels in units of 1 / (3 * 2^12)."""
    exponent = math.log2(scale)
    if abs(exponent - round(exponent)) < 1e-3 and 0 <= 12 + round(exponent) <= most_left:
        return 3 << (12 + round(exponent)), 0
    factor, shift = scale * 4096 * 3, 0
    while factor <= _MAX_I16 / 2 and shift <= 30:
        factor, shift = factor * 2, shift + 1
    return int(factor), shift


def _halved(x: Node, count: int) -> Node:
    return ops.apply(ops.ShiftRightArithmetic(), x, count)
