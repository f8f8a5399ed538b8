"""Scales as fixed-point multipliers, with which TFLite's reference kernels compute levels.

    multiplied(x, Multiplier.of(0.3))   ->   x * 0.3 in i64: a 31-bit product, shifted and rounded

A scale is m * 2^(shift - 31) with 2^30 <= m < 2^31. The reference kernels round twice: the product to its upper half,
ties up, then the shift, ties away from zero; some round once, ties up (gemmlowp's quantization paradigm; Jacob et al.
2018, "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference").
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ingot import ops
from ingot.ir import types as T
from ingot.ir.node import Node, const
from ingot.support.dataclass import dataclass


def fixed(scale: float) -> tuple[int, int]:
    """(m, shift) of a real scale >= 0."""
    if scale == 0 or not math.isfinite(scale):
        return 0, 0
    fraction, shift = math.frexp(scale)
    m = math.floor(fraction * (1 << 31) + 0.5)
    if m == 1 << 31:
        m, shift = m // 2, shift + 1
    if shift < -31:
        return 0, 0
    return (m, shift) if shift <= 30 else ((1 << 31) - 1, 30)


@dataclass(frozen=True)
class Multiplier:
    """One scale, or one for each index of the last axis."""

    m: tuple[int, ...]
    shift: tuple[int, ...]

    @staticmethod
    def of(*scales: float) -> Multiplier:
        pairs = [fixed(s) for s in scales]
        return Multiplier(tuple(m for m, _ in pairs), tuple(s for _, s in pairs))


def _wide(values: Sequence[int]) -> Node:
    array = np.array(values, np.int64)
    return const(array[0] if len(set(values)) == 1 else array)


def _shifted(x: Node, by: Sequence[int]) -> Node:
    """x >> by, i64."""
    return x if not any(by) else ops.apply(ops.ShiftRightArithmetic(), x, _wide(by))


def rounded_shift(x: Node, by: Sequence[int]) -> Node:
    """x / 2^by, ties away from zero; i64."""
    if not any(by):
        return x
    half = ops.add(x, _wide([(1 << e) >> 1 for e in by]))
    # subtract one from negative numbers if anything is shifted out: x >> 63 is -1 for them
    sign = ops.apply(ops.ShiftRightArithmetic(), x, 63)
    if 0 in by:
        sign = ops.mul(sign, _wide([int(e > 0) for e in by]))
    return _shifted(ops.add(half, sign), by)


def high_product(a: Node, b: Node) -> Node:
    """a * b / 2^31 of i64, ties up."""
    return _shifted(ops.add(ops.mul(a, b), 1 << 30), [31])


def multiplied(x: Node, by: Multiplier, is_rounded_once: bool = False) -> Node:
    """x * scale, rounded twice, or once; x: integers of i32's range; the result is i32."""
    wide = ops.cast(x, T.i64)
    if is_rounded_once:
        total = [31 - s for s in by.shift]
        product = ops.mul(wide, _wide(by.m))
        return ops.cast(_shifted(ops.add(product, _wide([1 << (t - 1) for t in total])), total), T.i32)
    left_shifts = [max(s, 0) for s in by.shift]
    if any(left_shifts):
        # the kernels shift in i32
        wide = ops.cast(ops.cast(ops.mul(wide, _wide([1 << s for s in left_shifts])), T.i32), T.i64)
    upper = high_product(wide, _wide(by.m))
    return ops.cast(rounded_shift(upper, [max(-s, 0) for s in by.shift]), T.i32)


def multiplied_wide(x: Node, by: Multiplier) -> Node:
    """x * scale of an x of i64, by the upper 16 bits of m, rounded once; the result is i32."""
    m = [(m + (1 << 15)) >> 16 if m < 0x7FFF0000 else 0x7FFF for m in by.m]
    total = [15 - s for s in by.shift]
    product = ops.add(ops.mul(x, _wide(m)), _wide([1 << (t - 1) for t in total]))
    return ops.cast(_shifted(product, total), T.i32)
