"""Functions of levels: tables, and normalizations of rows."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ingot import ops
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.tflite import tables, wide_tables
from ingot.frontends.tflite.call import Call, Table
from ingot.frontends.tflite.fixed_point import Multiplier, fixed, high_product, multiplied, rounded_shift
from ingot.frontends.tflite.inverse_root import inverse_root, multiplied_by
from ingot.frontends.tflite.levels import centered, dequantized, saturated
from ingot.frontends.tflite.logarithm import logarithm, reciprocal
from ingot.ir import types as T
from ingot.ir.node import Node, const

on_levels = Table()
_INTEGER_BITS = 4  # of the operands of logistic and tanh


@on_levels("LOGISTIC", "TANH")
def squashed(c: Call) -> Node:
    """8-bit levels in fixed point, 16-bit ones by the sigmoid's table."""
    x, levels = c.x(), c.levels()
    if x.dtype == T.i16:
        return (wide_tables.logistic if c.op.name == "LOGISTIC" else wide_tables.tanh)(x, levels.scale)
    scale = levels.scale * (1 << (31 - _INTEGER_BITS))
    _, shift = fixed(scale)
    q = tables.levels_of(x.dtype) - levels.zero
    inner = tables.multiplied(q, scale)
    reach = tables.radius(_INTEGER_BITS, shift)
    low, high = x.dtype.range
    if c.op.name == "LOGISTIC":
        y = tables.halved(tables.logistic(inner, _INTEGER_BITS), 23) + low
    else:
        y = tables.halved(tables.tanh(inner, _INTEGER_BITS), 24) + (low + high + 1) // 2
    y = np.where(q <= -reach, low, np.where(q >= reach, high, np.clip(y, low, high)))
    return tables.lookup(x, y.astype(x.dtype.numpy))


@on_levels("HARD_SWISH")
def hard_swish(c: Call) -> Node:
    x, levels, result_levels = c.x(), c.levels(), c.out_levels()
    if x.dtype.bits != 8 or fixed(levels.scale / 128 / result_levels.scale)[1] > 0:
        raise Unsupported(f"of {x.dtype} with scales {levels.scale} and {result_levels.scale}")
    y = (
        tables.hard_swish(tables.levels_of(x.dtype) - levels.zero, levels.scale, result_levels.scale)
        + result_levels.zero
    )
    return tables.lookup(x, np.clip(y, *x.dtype.range).astype(x.dtype.numpy))


def _gelu(x: np.ndarray) -> np.ndarray:
    return np.array([0.5 * v * math.erfc(-v / math.sqrt(2)) for v in x.tolist()])


def _gelu_tanh(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


def _function(c: Call) -> Callable[[np.ndarray], np.ndarray]:
    low, high = c.type().range
    result_levels = c.out_levels()
    min_value, max_value = (
        np.float32(end - result_levels.zero) * np.float32(result_levels.scale) for end in (low, high)
    )
    return {
        "ELU": lambda x: np.where(x < 0, np.expm1(x), x),
        "EXP": np.exp,
        "GELU": _gelu_tanh if c.flag("approximate") else _gelu,
        "LOG": lambda x: np.where(x > 0, np.log(x), min_value),
        "RSQRT": lambda x: np.where(x > 0, np.float32(1) / np.sqrt(x), max_value),
    }[c.op.name]


@on_levels("ELU", "EXP", "GELU", "LOG")
def by_numbers(c: Call) -> Node:
    """Functions that the kernels, too, look up in tables computed with floats."""
    x = c.x()
    if x.dtype == T.i16:
        return saturated(
            wide_tables.interpolated(x, wide_tables.of_real(_function(c), c.levels(), c.out_levels())), T.i16
        )
    return tables.lookup(x, tables.of_real(_function(c), x.dtype, c.levels(), c.out_levels()))


@on_levels("RSQRT")
def rsqrt(c: Call) -> Node:
    """16-bit levels by a table, 8-bit by Newton's method. The kernel fails below 0; here that counts as 0."""
    x, levels, result_levels = c.x(), c.levels(), c.out_levels()
    if x.dtype == T.i16:
        return by_numbers(c)
    q = centered(x, levels)
    extra_bits = 20
    roots = multiplied_by(ops.full(q.shape, 1, T.i32), *inverse_root(q), extra_bits)
    m, shift = fixed(float(1 / (np.sqrt(np.float32(levels.scale)) * np.float32(result_levels.scale))))
    y = ops.add(multiplied(roots, Multiplier((m,), (shift - extra_bits,))), result_levels.zero)
    return ops.where(ops.compare("GT", q, 0), saturated(y, x.dtype), ops.scalar(x.dtype.range[1], x.dtype))


@on_levels("SQRT")
def sqrt(c: Call) -> Node:
    """The square root in floats, truncated. The kernel fails below 0; here that counts as 0."""
    x, result_levels = ops.maximum(dequantized(c.x(), c.levels()), 0), c.out_levels()
    steps = ops.Floor()(ops.div(ops.Sqrt()(x), const(np.float32(result_levels.scale))))
    return saturated(ops.add(ops.cast(ops.minimum(steps, 1 << 20), T.i32), result_levels.zero), c.type())


@on_levels("ABS")
def absolute(c: Call) -> Node:
    levels, result_levels = c.levels(), c.out_levels()
    y = ops.Abs()(centered(c.x(), levels))
    if levels.scale != result_levels.scale:
        y = multiplied(y, Multiplier.of(float(np.float32(levels.scale) / np.float32(result_levels.scale))))
    return saturated(ops.add(y, result_levels.zero), c.type())


@on_levels("L2_NORMALIZATION")
def l2_normalization(c: Call) -> Node:
    """By the inverse root of the sum of squares; the result's scale is 1/128."""
    x = c.x()
    q = centered(x, c.levels())
    total = ops.reduce_sum(ops.mul(q, q), -1, True)
    m, shift = (ops.broadcast_to(v, q.shape) for v in inverse_root(total))
    y = ops.add(multiplied_by(q, m, shift, 7), c.out_levels().zero)
    return saturated(y, x.dtype)


@on_levels("SOFTMAX")
def softmax(c: Call) -> Node:
    """exp of differences from the maximum by a table, the reciprocal of their sum by Newton's method."""
    x, input_levels = c.x(), c.levels()
    if x.dtype == T.i16 and c.type() == T.i16:
        return _wide_softmax(c)
    if x.dtype.bits != 8 or c.type().bits not in (8, 16):
        raise Unsupported(f"of {x.dtype} to {c.type()}")
    bits, accumulated = 5, 12
    scale = min(float(np.float32(c.float("beta"))) * input_levels.scale * (1 << (31 - bits)), float((1 << 31) - 1))
    _, shift = fixed(scale)
    distance = np.arange(256, dtype=np.int64)
    exps = tables.exp(tables.multiplied(-distance, scale), bits)
    is_finite = distance <= tables.radius(bits, shift)
    exps = np.where(is_finite, exps, 0)
    wide = ops.cast(x, T.i32)
    distances = ops.sub(ops.reduce_max(wide, -1, True), wide)
    values = ops.Take(0)(const(exps.astype(np.int32)), distances)
    parts = ops.Take(0)(const(tables.halved(exps, accumulated).astype(np.int32)), distances)
    total = ops.reduce_sum(parts, -1, True)
    headroom = ops.CountLeadingZeros()(total)
    shifted = ops.sub(ops.apply(ops.ShiftLeft(), ops.cast(total, T.i64), ops.cast(headroom, T.i64)), 1 << 31)
    inverse = reciprocal(shifted)
    product = high_product(inverse, ops.cast(values, T.i64))
    exponent = ops.add(ops.sub(accumulated, ops.cast(headroom, T.i64)), 31 - c.type().bits)
    y = _halved(product, exponent)
    exponentials = ops.Take(0)(const(is_finite), distances)
    low = c.type().range[0]
    levels = saturated(ops.add(y, low), c.type())
    return ops.where(exponentials, levels, ops.scalar(low, c.type()))


def _wide_softmax(c: Call) -> Node:
    """exp and the reciprocal of the sum by tables of 16 bits."""
    x = ops.cast(c.x(), T.i32)
    scale = float(np.float32(c.levels().scale) * np.float32(c.float("beta")))
    distances = multiplied(ops.sub(x, ops.reduce_max(x, -1, True)), Multiplier.of(scale / (10 / 65535)))
    exps = wide_tables.interpolated(ops.clip(ops.add(distances, 32767), -32768, 32767), wide_tables.EXP)
    total = ops.reduce_sum(exps, -1, True)
    headroom = ops.sub(ops.CountLeadingZeros()(total), 1)
    shifted = ops.apply(ops.ShiftLeft(), ops.cast(total, T.i64), ops.cast(headroom, T.i64))
    above_one = ops.sub(ops.apply(ops.ShiftRightArithmetic(), ops.add(shifted, 1 << 13), 14), 3 << 15)
    inverse = wide_tables.interpolated(ops.cast(ops.clip(above_one, -32768, 32767), T.i32), wide_tables.RECIPROCAL)
    right_shift = ops.cast(ops.sub(30, headroom), T.i64)
    product = ops.mul(ops.cast(exps, T.i64), ops.cast(inverse, T.i64))
    half = ops.apply(ops.ShiftLeft(), ops.full(right_shift.shape, 1, T.i64), ops.sub(right_shift, 1))
    y = ops.apply(ops.ShiftRightArithmetic(), ops.add(product, half), right_shift)
    return ops.cast(ops.clip(y, 0, 32767), T.i16)


def _halved(x: Node, shift: Node) -> Node:
    """x / 2^times, times above 0, ties away from zero."""
    half = ops.apply(ops.ShiftLeft(), ops.full(shift.shape, 1, T.i64), ops.sub(shift, 1))
    sign = ops.apply(ops.ShiftRightArithmetic(), x, 63)
    return ops.apply(ops.ShiftRightArithmetic(), ops.add(ops.add(x, half), sign), shift)


@on_levels("LOG_SOFTMAX")
def log_softmax(c: Call) -> Node:
    """Differences from the maximum minus the logarithm of the sum of their exp, in 31 bits."""
    x, levels, result_levels = c.x(), c.levels(), c.out_levels()
    low, high_ = x.dtype.range
    if x.dtype.bits != 8 or c.type() != x.dtype or (result_levels.scale, result_levels.zero) != (1 / 16, high_):
        raise Unsupported(f"of {x.dtype} to {c.type()} of scale {result_levels.scale} and zero {result_levels.zero}")
    bits, accumulated, extra_bits = 5, 12, 31 - 5 - 4
    scale = min(levels.scale * (1 << (31 - bits)), float((1 << 31) - 1))
    m, shift = fixed(scale)
    reach = tables.radius(bits, shift)
    distance = np.arange(256, dtype=np.int64)
    steps = tables.multiplied(-distance, scale)
    exps = np.where(distance <= reach, tables.halved(tables.exp(steps, bits), accumulated), 0)
    wide = ops.cast(x, T.i32)
    distances = ops.sub(ops.reduce_max(wide, -1, True), wide)
    total = ops.reduce_sum(ops.Take(0)(const(exps.astype(np.int32)), distances), -1, True)
    log = logarithm(ops.cast(total, T.i64), accumulated, bits)
    rescale = Multiplier.of((1 << (31 - shift)) / m)
    min_value = ops.maximum(multiplied(ops.cast(ops.sub(log, 1 << 31), T.i32), rescale), -reach - 1)
    y = rounded_shift(ops.sub(ops.Take(0)(const(steps), distances), log), [extra_bits])
    near = ops.compare("LT", distances, ops.Neg()(min_value))
    return ops.where(near, saturated(ops.add(y, high_), x.dtype), ops.scalar(low, x.dtype))
