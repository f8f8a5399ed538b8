"""Functions of levels: tables, and normalizations of rows."""

from __future__ import annotations

import math

import numpy as np

from ingot import ops
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.tflite import tables
from ingot.frontends.tflite.call import Call, Table
from ingot.frontends.tflite.fixed_point import fixed
from ingot.frontends.tflite.levels import cut
from ingot.ir import types as T
from ingot.ir.node import Node, const

on_levels = Table()
_BITS = 4  # before the point of what logistic and tanh are computed of


@on_levels("LOGISTIC", "TANH")
def squashed(c: Call) -> Node:
    """8 bits in fixed point."""
    x, given = c.x(), c.levels()
    if x.dtype.bits != 8:
        raise Unsupported(f"of {x.dtype}")
    scale = given.scale * (1 << (31 - _BITS))
    _, shift = fixed(scale)
    q = tables.levels_of(x.dtype) - given.zero
    inner = tables.multiplied(q, scale)
    reach = tables.radius(_BITS, shift)
    low, high = x.dtype.range
    if c.op.name == "LOGISTIC":
        y = tables.halved(tables.logistic(inner, _BITS), 23) + low
    else:
        y = tables.halved(tables.tanh(inner, _BITS), 24) + (low + high + 1) // 2
    y = np.where(q <= -reach, low, np.where(q >= reach, high, np.clip(y, low, high)))
    return tables.lookup(x, y.astype(x.dtype.numpy))


@on_levels("HARD_SWISH")
def hard_swish(c: Call) -> Node:
    x, given, out = c.x(), c.levels(), c.out_levels()
    if x.dtype.bits != 8 or fixed(given.scale / 128 / out.scale)[1] > 0:
        raise Unsupported(f"of {x.dtype} with scales {given.scale} and {out.scale}")
    y = tables.hard_swish(tables.levels_of(x.dtype) - given.zero, given.scale, out.scale) + out.zero
    return tables.lookup(x, np.clip(y, *x.dtype.range).astype(x.dtype.numpy))


def _gelu(x: np.ndarray) -> np.ndarray:
    return np.array([0.5 * v * math.erfc(-v / math.sqrt(2)) for v in x.tolist()])


def _gelu_tanh(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


_REAL = {"ELU": lambda x: np.where(x < 0, np.expm1(x), x), "EXP": np.exp}


@on_levels("ELU", "EXP", "GELU")
def by_numbers(c: Call) -> Node:
    """Functions that the kernels, too, look up in tables made of floats."""
    x = c.x()
    if x.dtype.bits != 8:
        raise Unsupported(f"of {x.dtype}")
    fn = _REAL.get(c.op.name, _gelu_tanh if c.flag("approximate") else _gelu)
    return tables.lookup(x, tables.of_real(fn, x.dtype, c.levels(), c.out_levels()))


@on_levels("SOFTMAX")
def softmax(c: Call) -> Node:
    """exp of distances from the greatest by a table, their sum's reciprocal by Newton's steps in fixed point."""
    x, given = c.x(), c.levels()
    if x.dtype.bits != 8 or c.type().bits not in (8, 16):
        raise Unsupported(f"of {x.dtype} to {c.type()}")
    bits, accumulated = 5, 12
    scale = min(float(np.float32(c.float("beta"))) * given.scale * (1 << (31 - bits)), float((1 << 31) - 1))
    _, shift = fixed(scale)
    distance = np.arange(256, dtype=np.int64)
    exps = tables.exp(tables.multiplied(-distance, scale), bits)
    known = distance <= tables.radius(bits, shift)
    exps = np.where(known, exps, 0)
    wide = ops.cast(x, T.i32)
    away = ops.sub(ops.reduce_max(wide, -1, True), wide)
    values = ops.Take(0)(const(exps.astype(np.int32)), away)
    parts = ops.Take(0)(const(tables.halved(exps, accumulated).astype(np.int32)), away)
    total = ops.reduce_sum(parts, -1, True, c.loc)
    headroom = ops.CountLeadingZeros()(total)
    shifted = ops.sub(ops.apply(ops.ShiftLeft(), ops.cast(total, T.i64), ops.cast(headroom, T.i64)), 1 << 31)
    inverse = _reciprocal(shifted)
    product = _high(inverse, ops.cast(values, T.i64))
    exponent = ops.add(ops.sub(accumulated, ops.cast(headroom, T.i64)), 31 - c.type().bits)
    y = _halved(product, exponent)
    inside = ops.Take(0)(const(known), away)
    low = c.type().range[0]
    levels = cut(ops.add(y, low), c.type())
    return ops.where(inside, levels, ops.scalar(low, c.type()), c.loc)


def _high(a: Node, b: Node) -> Node:
    """tables.high, of i64."""
    return ops.apply(ops.ShiftRightArithmetic(), ops.add(ops.mul(a, b), 1 << 30), 31)


def _halved(x: Node, times: Node) -> Node:
    """x / 2^times, times above 0, ties away from zero."""
    half = ops.apply(ops.ShiftLeft(), ops.full(times.shape, 1, T.i64), ops.sub(times, 1))
    sign = ops.apply(ops.ShiftRightArithmetic(), x, 63)
    return ops.apply(ops.ShiftRightArithmetic(), ops.add(ops.add(x, half), sign), times)


def _reciprocal(a: Node) -> Node:
    """Q0 of 1 / (1 + a), a in Q0 from 0 to 1, of i64: tables._newton."""
    half = ops.apply(ops.ShiftRightArithmetic(), ops.add(a, tables.ONE + 1), 1)
    x = ops.add(_high(half, ops.scalar(-1010580540, T.i64)), 1515870810)
    for _ in range(3):
        error = _high(x, ops.sub(1 << 29, _high(half, x)))
        x = ops.add(x, ops.mul(error, 4))
    return ops.minimum(ops.mul(x, 2), tables.ONE)
