"""The vocabulary of this room: a float format's constants, and small expressions."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from ingot.ir import kernel as k
from ingot.ir.kernel import Expr, Lit
from ingot.ir.types import DType, f32, i32, i64
from ingot.support.dataclass import dataclass


@dataclass(frozen=True)
class Format:
    """Constants of a float format."""

    bits: DType  # the integer type of the same width
    fraction: int  # bits of the fraction
    bias: int
    ln2: tuple[float, float]  # high and low part
    half_log2e: float
    tiny: float  # smallest normal
    exp_range: tuple[float, float]  # beyond it exp is 0 or inf
    expm1_range: tuple[float, float]

    @property
    def shift(self) -> float:
        """Adding it rounds to an integer, which then is in the low bits."""
        return 1.5 * 2.0**self.fraction


F32 = Format(
    i32,
    23,
    127,
    (0.6931471824645996, -1.9046542121259336e-09),
    0.7213475108146667,
    2.0**-126,
    (-104.0, 100.0),
    (-30.0, 89.0),
)
F64 = Format(
    i64,
    52,
    1023,
    (0.6931471805599453, 2.3190468138462996e-17),
    0.7213475204444817,
    2.0**-1022,
    (-746.0, 720.0),
    (-60.0, 710.0),
)


def format_of(x: Expr) -> Format:
    return F32 if x.dtype == f32 else F64


def lit(value: float, like: Expr) -> Lit:
    return k.lit(value, like.dtype, like.lanes, like.tile)


def bits_lit(value: int, like: Expr) -> Lit:
    return k.lit(value, format_of(like).bits, like.lanes)


def bits_of(value: float) -> int:
    """Of the nearest f32, as an i32."""
    return struct.unpack("<i", struct.pack("<f", value))[0]


def float_of(bits: int) -> float:
    """The f32 with these bits."""
    return struct.unpack("<f", struct.pack("<i", bits))[0]


def absolute(x: Expr) -> Expr:
    return k.unary("abs", x)


def negated(x: Expr) -> Expr:
    return k.unary("neg", x)


def root(x: Expr) -> Expr:
    return k.unary("sqrt", x)


def quotient(a: Expr, b: Expr) -> Expr:
    return k.binary("div", a, b)


def scaled_by(x: Expr, value: float) -> Expr:
    return k.mul(x, lit(value, x))


def plus(x: Expr, value: float) -> Expr:
    return k.add(x, lit(value, x))


def is_above(x: Expr, value: float) -> Expr:
    return k.binary("gt", x, lit(value, x))


def is_below(x: Expr, value: float) -> Expr:
    return k.binary("lt", x, lit(value, x))


def at_most(x: Expr, value: float) -> Expr:
    """min(x, value), NaN kept: one machine instruction where the minimum returns its second operand on NaN."""
    return k.select(is_above(x, value), lit(value, x), x)


def at_least(x: Expr, value: float) -> Expr:
    return k.select(is_below(x, value), lit(value, x), x)


def with_sign(magnitude: Expr, x: Expr) -> Expr:
    return k.binary("copysign", magnitude, x)


def polynomial(x: Expr, coefficients: Sequence[float]) -> Expr:
    """Horner's rule; coefficients lowest first."""
    out: Expr = lit(coefficients[-1], x)
    for value in reversed(coefficients[:-1]):
        out = k.fma(out, x, lit(value, x))
    return out


def table(x: Expr, narrow: Sequence[float], wide: Sequence[float]) -> Sequence[float]:
    return narrow if x.dtype == f32 else wide


def two_sum(a: Expr, b: Expr) -> tuple[Expr, Expr]:
    """(s, e) with a + b = s + e exactly (Knuth)."""
    s = k.add(a, b)
    t = k.sub(s, a)
    return s, k.add(k.sub(a, k.sub(s, t)), k.sub(b, t))


def two_product(a: Expr, b: Expr) -> tuple[Expr, Expr]:
    p = k.mul(a, b)
    return p, k.fma(a, b, negated(p))


def power_by_squaring(x: Expr, n: int) -> Expr:
    """x ** n for a literal n >= 0."""
    if n == 0:
        return lit(1.0 if x.dtype.is_float else 1, x)
    result: Expr | None = None
    while n:
        if n & 1:
            result = x if result is None else k.mul(result, x)
        n >>= 1
        if n:
            x = k.mul(x, x)
    assert result is not None
    return result
