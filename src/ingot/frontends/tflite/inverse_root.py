"""1 / sqrt of integers as 31-bit multipliers, by Newton's method in fixed point; norms of levels divide by it.

    inverse_root(n)   ->   m, shift with m * 2^(shift - 31) near 1 / sqrt(n), for n of i32

Source: TensorFlow Lite's reference kernels, on gemmlowp's fixed-point numbers.
"""

from __future__ import annotations

from ingot import ops
from ingot.frontends.tflite.fixed_point import high_product, rounded_shift
from ingot.ir import types as T
from ingot.ir.node import Node

_HALF_ROOT_2 = 1518500250  # Q0
_THREE_HALVES = (1 << 28) + (1 << 27)  # Q3
_MAX_I32 = (1 << 31) - 1


def inverse_root(n: Node) -> tuple[Node, Node]:
    """(m, shift), i64, for each n >= 0; for 0 and 1 the inverse root is 1."""
    wide = ops.cast(n, T.i64)
    # normalize to 28 or 29 bits by powers of 4
    halvings = ops.where(ops.compare("GE", wide, 1 << 29), ops.full(n.shape, 1, T.i64), ops.full(n.shape, 0, T.i64))
    normalized = _right(wide, ops.mul(halvings, 2))
    bits = ops.sub(ops.cast(ops.CountLeadingZeros()(ops.cast(normalized, T.i32)), T.i64), 1)
    pairs = ops.sub(_right(bits, ops.full(n.shape, 1, T.i64)), 1)
    x = _right(ops.apply(ops.ShiftLeft(), normalized, ops.mul(pairs, 2)), ops.full(n.shape, 1, T.i64))
    half = rounded_shift(x, [1])
    y = ops.full(n.shape, 1 << 28, T.i64)
    for _ in range(5):
        cube = _rescaled(high_product(high_product(y, y), y), 6)
        y = _rescaled(ops.sub(high_product(ops.scalar(_THREE_HALVES, T.i64), y), high_product(half, cube)), 3)
    m = high_product(y, ops.scalar(_HALF_ROOT_2, T.i64))
    shift = ops.sub(ops.sub(pairs, halvings), 11)
    # a shift above 0 is part of m
    m = ops.apply(ops.ShiftLeft(), m, ops.maximum(shift, 0))
    small = ops.compare("LE", wide, 1)
    return ops.where(small, ops.full(n.shape, _MAX_I32, T.i64), m), ops.where(small, 0, ops.minimum(shift, 0))


def multiplied_by(x: Node, m: Node, shift: Node, extra_shift: int) -> Node:
    """x * m * 2^(shift + extra_shift - 31), rounded twice, i32: `fixed_point.multiplied` with run-time scales."""
    total = ops.add(shift, extra_shift)
    shifted_left = ops.apply(ops.ShiftLeft(), ops.cast(x, T.i64), ops.maximum(total, 0))
    upper = high_product(ops.cast(ops.cast(shifted_left, T.i32), T.i64), m)
    shift_right = ops.maximum(ops.Neg()(total), 0)
    half = _right(
        ops.apply(ops.ShiftLeft(), ops.full(shift_right.shape, 1, T.i64), shift_right),
        ops.full(shift_right.shape, 1, T.i64),
    )
    sign = ops.where(ops.compare("GT", shift_right, 0), _right(upper, ops.full(upper.shape, 63, T.i64)), 0)
    return ops.cast(_right(ops.add(ops.add(upper, half), sign), shift_right), T.i32)


def _right(x: Node, by: Node) -> Node:
    return ops.apply(ops.ShiftRightArithmetic(), x, by)


def _rescaled(x: Node, bits: int) -> Node:
    """Q(3 + bits) as Q3, saturated to i32."""
    return ops.clip(ops.mul(x, 1 << bits), -(1 << 31), _MAX_I32)
