"""Functions of levels as tables: one entry for each level, computed when a model is imported, as the kernels do.

Numbers are Q-format integers: Qn has n integer bits and the remaining bits as fraction, in i64 here. Source of
the approximations: gemmlowp's fixedpoint.h (Taylor polynomials, barrel shifter, Newton-Raphson).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ingot import ops
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.tflite.file import Quantization
from ingot.frontends.tflite.fixed_point import fixed
from ingot.ir import types as T
from ingot.ir.node import Node, const
from ingot.support.dataclass import dataclass

Array = np.ndarray


def lookup(x: Node, table: Array) -> Node:
    """table[x], whose first entry is for x's least level."""
    min_value = x.dtype.range[0]
    at = ops.cast(x, T.i32)
    return ops.Take(0)(const(table), at if min_value == 0 else ops.sub(at, min_value))


def levels_of(dtype: T.DType) -> Array:
    """Every level, i64. Raises Unsupported for a type of more than 16 bits."""
    if dtype.bits > 16:
        raise Unsupported(f"of {dtype}")
    low, high = dtype.range
    return np.arange(low, high + 1, dtype=np.int64)


@dataclass(frozen=True)
class Word:
    """Integers of `bits` behind their sign, which stand for Q-format numbers."""

    bits: int

    @property
    def one(self) -> int:
        """1 as Q0."""
        return (1 << self.bits) - 1

    def constant(self, value: int) -> int:
        """One that is given for 31 bits."""
        return int(halved(np.array(value), 31 - self.bits))

    def high(self, a: Array | int, b: Array | int) -> Array:
        """a * b / 2^bits, ties up; the one product that is out of range is the greatest number."""
        return np.minimum((np.int64(a) * np.int64(b) + (1 << (self.bits - 1))) >> self.bits, self.one)

    def cut(self, x: Array) -> Array:
        return np.clip(x, -self.one - 1, self.one)

    def doubled(self, x: Array, count: int) -> Array:
        return self.cut(x << count)


LONG, SHORT = Word(31), Word(15)


def halved(x: Array, count: int) -> Array:
    """x / 2^times, ties away from zero."""
    if count == 0:
        return x
    return (x + (1 << (count - 1)) + (x >> 63)) >> count


def multiplied(x: Array, scale: float) -> Array:
    """As `fixed_point.multiplied`, in numpy."""
    m, shift = fixed(scale)
    return halved(LONG.high((x << max(shift, 0)).astype(np.int32).astype(np.int64), m), max(-shift, 0))


def _exp_near_zero(a: Array, w: Word) -> Array:
    """exp of a Q0 in [-1/4, 0)."""
    x = a + (1 << (w.bits - 3))
    x2 = w.high(x, x)
    x3, x4 = w.high(x2, x), w.high(x2, x2)
    terms = halved(w.high(halved(x4, 2) + x3, w.constant(715827883)) + x2, 1)
    middle = w.constant(1895147668)
    return w.cut(middle + w.high(middle, x + terms))


# exp(-2^k) of Q0
_POWERS = (
    (-2, 1672461947), (-1, 1302514674), (0, 790015084), (1, 290630308), (2, 39332535), (3, 720401), (4, 242),
)  # fmt: skip


def exp(a: Array, bits: int, w: Word = LONG) -> Array:
    """Q0 of a Q`bits` that is at most 0."""
    fraction = w.bits - bits
    quarter = 1 << (fraction - 2)
    part = (a & (quarter - 1)) - quarter
    value = _exp_near_zero(w.doubled(part, bits), w)
    rest = part - a
    for power, factor in _POWERS:
        if bits > power:
            value = np.where(rest & (1 << (fraction + power)), w.high(value, w.constant(factor)), value)
    if bits > 5:
        value = np.where(a < -(1 << (fraction + 5)), 0, value)
    return np.where(a == 0, w.one, value)


def _newton(a: Array, w: Word) -> Array:
    """Q2 of 2 / (1 + a), a in Q0 from 0 to 1."""
    half = (a + w.one + 1) >> 1
    x = w.constant(1515870810) + w.high(half, w.constant(-1010580540))
    for _ in range(3):
        x = x + w.doubled(w.high(x, (1 << (w.bits - 2)) - w.high(half, x)), 2)
    return x


def logistic(a: Array, bits: int, w: Word = LONG) -> Array:
    """Q0 of a Q`bits`."""
    positive = w.doubled(_newton(exp(-np.abs(a), bits, w), w), 1)
    return np.where(a == 0, 1 << (w.bits - 1), np.where(a > 0, positive, w.one - positive))


def tanh(a: Array, bits: int, w: Word = LONG) -> Array:
    """Q0 of a Q`bits`."""
    size = w.doubled(_newton(exp(-np.abs(a), bits + 1, w), w) - (1 << (w.bits - 2)), 2)
    return np.sign(a) * size


def radius(bits: int, shift: int, total: int = 31) -> int:
    """The least distance from zero that counts as infinite."""
    return int(np.floor(((1 << bits) - 1) * (1 << (total - bits)) / (1 << shift))) if shift >= 0 else LONG.one


def _high16(a: Array, b: int) -> Array:
    """a * b / 2^15, ties up."""
    return np.minimum((a * b + (1 << 14)) >> 15, (1 << 15) - 1)


def _narrow(x: Array) -> Array:
    return np.clip(x, -(1 << 15), (1 << 15) - 1)


def _fixed16(scale: np.float32) -> tuple[int, int]:
    m, shift = fixed(float(scale))
    return min((m + (1 << 15)) >> 16, (1 << 15) - 1), shift


def hard_swish(q: Array, scale: float, out: float) -> Array:
    """x * min(max(x + 3, 0), 6) / 6 in 16 bits; x and the result are levels minus their zeros."""
    fine = np.float32(1 / 128) * np.float32(scale)
    m, shift = _fixed16(fine / np.float32(out))
    relu_m, relu_shift = _fixed16(fine / np.float32(3 / 32768))
    x = q * 128
    value = _high16(x, m)
    gate = _narrow(x << (relu_shift - 1)) if relu_shift > 0 else x
    gate = _high16(gate, relu_m)
    gate = _narrow(gate * 2) if relu_shift > 0 else halved(gate, -relu_shift)
    product = ((gate + (1 << 15)) >> 1) * value
    # towards zero, against the bias of the earlier products
    return halved(np.sign(product) * (np.abs(product) >> 15), -shift)


def of_real(fn: Callable[[Array], Array], dtype: T.DType, levels: Quantization, out: Quantization) -> Array:
    """A function of the numbers that levels represent, in f32, rounded to the result's levels."""
    x = np.float32(levels.scale) * (levels_of(dtype) - levels.zero).astype(np.float32)
    with np.errstate(all="ignore"):
        y = fn(x).astype(np.float32) * np.float32(np.float32(1) / np.float32(out.scale))
    steps = np.sign(y) * np.floor(np.abs(y.astype(np.float64)) + 0.5) + out.zero
    low, high_ = dtype.range
    return np.clip(np.nan_to_num(steps), low, high_).astype(dtype.numpy)


def quotient(a: Array, b: Array, scale: float) -> Array:
    """a / b * scale of integers of 9 bits, b other than 0, by the reciprocal of b in 31 bits."""
    a, b = np.where(b < 0, -a, a), np.abs(b)
    divisor_bits = np.frexp(b.astype(np.float64))[1]  # bits of b
    inverse = np.minimum(_newton((b << (32 - divisor_bits)) - (1 << 31), LONG) * 2, LONG.one)
    room = 31 - np.frexp(np.abs(np.where(a < 0, ~a, a)).astype(np.float64))[1]
    m, shift = fixed(scale)
    shifted = LONG.high(LONG.high(a << room, inverse), m)
    doublings = room + (divisor_bits - 1) - shift
    half = np.where(doublings > 0, np.int64(1) << np.maximum(doublings - 1, 0), 0)
    return (shifted + half + np.where(doublings > 0, shifted >> 63, 0)) >> doublings
