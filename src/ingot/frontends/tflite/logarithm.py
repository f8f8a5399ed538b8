"""Logarithms in fixed point, as TFLite's reference kernels compute them.

x = r * 2^z with r near 2^-1/4: log x is z log 2 and a quotient of polynomials in r - 2^-1/4. Numbers are Q-format
integers of 31 bits, in i64.
"""

from __future__ import annotations

import math

from ingot import ops
from ingot.frontends.tflite.fixed_point import high_product, rounded_shift
from ingot.frontends.tflite.tables import LONG
from ingot.ir import types as T
from ingot.ir.node import Node

_FOURTH_ROOT_2 = math.sqrt(math.sqrt(2))


def _q0(value: float) -> Node:
    return ops.scalar(round(value * (1 << 31)), T.i64)


def _cut(x: Node) -> Node:
    return ops.clip(x, -LONG.one - 1, LONG.one)


def _scaled_by_power(x: Node, by: Node) -> Node:
    """x * 2^by, saturated; for negative `by` rounded, ties away from zero."""
    shifted_left = ops.apply(ops.ShiftLeft(), x, ops.maximum(by, 0))
    shift_right = ops.maximum(ops.Neg()(by), 0)
    half = ops.apply(ops.ShiftRightArithmetic(), ops.apply(ops.ShiftLeft(), ops.scalar(1, T.i64), shift_right), 1)
    sign = ops.where(ops.compare("GT", shift_right, 0), ops.apply(ops.ShiftRightArithmetic(), x, 63), 0)
    shifted_right = ops.apply(ops.ShiftRightArithmetic(), ops.add(ops.add(x, half), sign), shift_right)
    return _cut(ops.where(ops.compare("LT", by, 0), shifted_right, shifted_left))


def _leading(x: Node) -> Node:
    """The number of leading zeros of 32 bits."""
    return ops.cast(ops.CountLeadingZeros()(ops.cast(x, T.i32)), T.i64)


def reciprocal(a: Node) -> Node:
    """Q0 of 1 / (1 + a), a in Q0 from 0 to 1: tables._newton."""
    half = ops.apply(ops.ShiftRightArithmetic(), ops.add(a, LONG.one + 1), 1)
    x = ops.add(high_product(half, ops.scalar(-1010580540, T.i64)), 1515870810)
    for _ in range(3):
        error = high_product(x, ops.sub(1 << 29, high_product(half, x)))
        x = ops.add(x, ops.mul(error, 4))
    return ops.minimum(ops.mul(x, 2), LONG.one)


def logarithm(x: Node, bits: int, result: int) -> Node:
    """The logarithm, as Q`result`, of a Q`bits` number of at least 1."""
    integer_bits = result + 1  # integer bits of the accumulator
    quarter, root = _q0(0.25 / (1 << integer_bits)), _q0(1 / _FOURTH_ROOT_2)

    def exponent(z: Node) -> Node:
        return _cut(ops.mul(ops.sub(bits, z), 1 << (31 - integer_bits)))

    lead = _leading(x)
    r = _scaled_by_power(high_product(_scaled_by_power(x, ops.sub(lead, 1)), _q0(math.sqrt(0.5))), ops.scalar(1, T.i64))
    z = _cut(ops.add(exponent(lead), quarter))
    room = ops.sub(_leading(high_product(x, _q0(math.sqrt(0.5)))), 1)
    r = ops.minimum(r, _scaled_by_power(x, room))
    z = ops.maximum(z, _cut(ops.sub(exponent(room), quarter)))
    total = ops.add(r, root)
    # halves away from zero
    p = ops.div(ops.add(total, ops.where(ops.compare("GE", total, 0), ops.scalar(1, T.i64), -1)), 2)
    q = ops.mul(ops.sub(r, root), 2)
    square = high_product(q, q)
    high_part = ops.add(high_product(q, r), high_product(high_product(q, square), _q0(11 / 240 * _FOURTH_ROOT_2)))
    inner = ops.add(
        ops.add(_q0(2 / _FOURTH_ROOT_2 - _FOURTH_ROOT_2), q), high_product(_q0(_FOURTH_ROOT_2 / 20), square)
    )
    low_part = ops.add(high_product(p, inner), high_product(_q0(_FOURTH_ROOT_2 / 4), q))
    quotient = high_product(rounded_shift(high_part, [integer_bits]), reciprocal(low_part))
    return _cut(ops.mul(ops.add(high_product(z, _q0(math.log(2))), quotient), 1 << (integer_bits - result)))
