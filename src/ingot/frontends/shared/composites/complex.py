"""Complex numbers as pairs of real tensors: their arithmetic and functions, for all frontends."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ingot import ops
from ingot.ir.node import Node
from ingot.ir.types import DTYPES
from ingot.support.dataclass import dataclass


@dataclass(frozen=True)
class Complex:
    """A complex tensor: two real ones of one type."""

    real: Node
    imag: Node


def partwise(row: Callable[..., Any], operands: Sequence[object]) -> list[Any]:
    """The results of a row of real tensors that moves or adds elements, applied to both parts of complex operands."""

    def of(part: str) -> Sequence[Any]:
        result = row(*(getattr(v, part) if isinstance(v, Complex) else v for v in operands))
        return result if isinstance(result, Sequence) else (result,)

    pairs = zip(of("real"), of("imag"), strict=True)
    return [Complex(a, b) if isinstance(a, Node) and isinstance(b, Node) else a for a, b in pairs]


# --- arithmetic


def multiply(a: Complex, b: Complex) -> Complex:
    m, plus, minus = ops.Mul(), ops.Add(), ops.Sub()
    return Complex(minus(m(a.real, b.real), m(a.imag, b.imag)), plus(m(a.real, b.imag), m(a.imag, b.real)))


def add(a: Complex, b: Complex) -> Complex:
    return Complex(ops.Add()(a.real, b.real), ops.Add()(a.imag, b.imag))


def subtract(a: Complex, b: Complex) -> Complex:
    return Complex(ops.Sub()(a.real, b.real), ops.Sub()(a.imag, b.imag))


def scale(z: Complex, by: float | Node) -> Complex:
    return Complex(ops.mul(z.real, by), ops.mul(z.imag, by))


def full(value: complex, like: Complex) -> Complex:
    shape, dtype = like.real.shape, like.real.dtype
    return Complex(ops.full(shape, value.real, dtype), ops.full(shape, value.imag, dtype))


def select(pred: Node, a: Complex, b: Complex) -> Complex:
    return Complex(ops.Select()(pred, a.real, b.real), ops.Select()(pred, a.imag, b.imag))


def conj(z: Complex) -> Complex:
    return Complex(z.real, ops.Neg()(z.imag))


def angle(z: Complex) -> Node:
    return ops.Atan2()(z.imag, z.real)


def equal(a: Complex, b: Complex) -> Node:
    return ops.And()(ops.Compare("EQ")(a.real, b.real), ops.Compare("EQ")(a.imag, b.imag))


def not_equal(a: Complex, b: Complex) -> Node:
    return ops.Or()(ops.Compare("NE")(a.real, b.real), ops.Compare("NE")(a.imag, b.imag))


def is_finite(z: Complex) -> Node:
    return ops.And()(ops.IsFinite()(z.real), ops.IsFinite()(z.imag))


def multiply_by_i(z: Complex) -> Complex:
    """i z"""
    return Complex(ops.Neg()(z.imag), z.real)


def divide_by_i(z: Complex) -> Complex:
    """-i z"""
    return Complex(z.imag, ops.Neg()(z.real))


def square(z: Complex) -> Complex:
    """(a - b) (a + b) keeps the digits that a^2 - b^2 loses."""
    twice = ops.mul(ops.Mul()(z.real, z.imag), 2.0)
    return Complex(ops.Mul()(ops.Sub()(z.real, z.imag), ops.Add()(z.real, z.imag)), twice)


def divide(a: Complex, b: Complex) -> Complex:
    """Divides by the larger part of the divisor first (Smith, 1962), so that no square overflows."""
    is_imag_larger = ops.Compare("LT")(ops.Abs()(b.real), ops.Abs()(b.imag))
    large, small = ops.Select()(is_imag_larger, b.imag, b.real), ops.Select()(is_imag_larger, b.real, b.imag)
    zero = ops.compare("EQ", large, 0.0)
    ratio = ops.where(zero, small, ops.Div()(small, large))
    divisor = ops.Add()(large, ops.Mul()(small, ratio))
    m, plus, minus, pick = ops.Mul(), ops.Add(), ops.Sub(), ops.Select()
    real = pick(is_imag_larger, plus(m(a.real, ratio), a.imag), plus(a.real, m(a.imag, ratio)))
    imag = pick(is_imag_larger, minus(m(a.imag, ratio), a.real), minus(a.imag, m(a.real, ratio)))
    return Complex(ops.Div()(real, divisor), ops.Div()(imag, divisor))


def modulus(z: Complex) -> Node:
    """Scaled by the larger part, so that no square overflows; infinite where a part is, even if the other is NaN."""
    a, b = ops.Abs()(z.real), ops.Abs()(z.imag)
    infinite = ops.or_(ops.compare("EQ", a, math.inf), ops.compare("EQ", b, math.inf))
    large, small = ops.Max()(a, b), ops.Min()(a, b)
    ratio = ops.where(ops.compare("EQ", large, 0.0), 0.0, ops.Div()(small, ops.where(infinite, 1.0, large)))
    size = ops.mul(large, ops.Sqrt()(ops.add(ops.Mul()(ratio, ratio), 1.0)))
    return ops.where(infinite, math.inf, size)


def sign(z: Complex) -> Complex:
    """z / |z|, and 0 of 0."""
    size = modulus(z)
    zero = ops.compare("EQ", size, 0.0)
    by = ops.where(zero, 1.0, size)
    return Complex(ops.Div()(z.real, by), ops.Div()(z.imag, by))


# --- functions


def exp(z: Complex) -> Complex:
    """As C's cexp: an infinite or zero radius ignores an angle that is not finite; sin 0 gives an exact 0."""
    radius = ops.Exp()(z.real)
    is_far = ops.and_(ops.compare("EQ", ops.Abs()(z.real), math.inf), ops.Not()(ops.IsFinite()(z.imag)))
    angle = ops.where(is_far, 0.0, z.imag)
    imag = ops.where(ops.compare("EQ", z.imag, 0.0), z.imag, ops.Mul()(radius, ops.Sin()(angle)))
    return Complex(ops.Mul()(radius, ops.Cos()(angle)), imag)


def log(z: Complex) -> Complex:
    return Complex(log_modulus(z), angle(z))


def log_modulus(z: Complex) -> Node:
    """log |z|; near the unit circle log1p(|z|^2 - 1) / 2, from factors that do not cancel."""
    a, b = ops.Abs()(z.real), ops.Abs()(z.imag)
    large, small = ops.Max()(a, b), ops.Min()(a, b)
    excess = ops.Add()(ops.Mul()(ops.sub(large, 1.0), ops.add(large, 1.0)), ops.Mul()(small, small))
    near = ops.and_(ops.compare("GT", large, 0.5), ops.compare("LT", large, 1.5))
    return ops.where(near, ops.mul(ops.Log1p()(ops.where(near, excess, 0.0)), 0.5), ops.Log()(modulus(z)))


def sqrt(z: Complex) -> Complex:
    """From the part that does not cancel (Kahan, 1987)."""
    size = modulus(z)
    a = ops.Abs()(z.real)
    # halves are added, as the sum itself may overflow
    half = ops.Sqrt()(ops.add(ops.mul(a, 0.5), ops.mul(size, 0.5)))
    zero = ops.compare("EQ", half, 0.0)
    rest = ops.where(zero, 0.0, ops.Div()(ops.mul(ops.Abs()(z.imag), 0.5), ops.where(zero, 1.0, half)))
    is_right = ops.compare("GE", z.real, 0.0)
    real, imag = ops.where(is_right, half, rest), ops.where(is_right, rest, half)
    infinite = ops.compare("EQ", ops.Abs()(z.imag), math.inf)
    real, imag = ops.where(infinite, math.inf, real), ops.where(infinite, math.inf, imag)
    return Complex(real, copysign(imag, z.imag))


def copysign(x: Node, of: Node) -> Node:
    """|x| with the sign bit of `of`."""
    return ops.where(ops.compare("LT", ops.BitcastConvert(DTYPES[f"i{of.dtype.bits}"])(of), 0), ops.Neg()(x), x)


def expm1(z: Complex) -> Complex:
    """exp(a) cos b - 1 = expm1(a) cos b - 2 sin^2(b / 2)"""
    half = ops.Sin()(ops.mul(z.imag, 0.5))
    real = ops.Sub()(ops.Mul()(ops.Expm1()(z.real), ops.Cos()(z.imag)), ops.mul(ops.Mul()(half, half), 2.0))
    return Complex(real, ops.Mul()(ops.Exp()(z.real), ops.Sin()(z.imag)))


def log1p(z: Complex) -> Complex:
    """log |1 + z| = log1p(a (a + 2) + b^2) / 2 where that is small."""
    a, b = z.real, z.imag
    excess = ops.Add()(ops.Mul()(a, ops.add(a, 2.0)), ops.Mul()(b, b))
    shifted = Complex(ops.add(a, 1.0), b)
    near = ops.and_(ops.compare("LT", ops.Abs()(excess), 0.5), ops.compare("LT", ops.Abs()(b), 1.0))
    real = ops.where(near, ops.mul(ops.Log1p()(ops.where(near, excess, 0.0)), 0.5), log_modulus(shifted))
    return Complex(real, ops.Atan2()(b, shifted.real))


def tanh(z: Complex) -> Complex:
    """(sinh 2a + i sin 2b) / (cosh 2a + cos 2b), by t = tanh a and u = tan b so that nothing overflows."""
    t, u = ops.Tanh()(z.real), ops.Tan()(z.imag)
    tu = ops.Mul()(t, u)
    divisor = ops.add(ops.Mul()(tu, tu), 1.0)
    real = ops.Div()(ops.Mul()(t, ops.add(ops.Mul()(u, u), 1.0)), divisor)
    # 1 - t^2 = 1 / cosh^2 a
    cosh = ops.Cosh()(z.real)
    inverse = ops.Div()(ops.full(cosh.shape, 1.0, cosh.dtype), cosh)
    return Complex(real, ops.Div()(ops.Mul()(u, ops.Mul()(inverse, inverse)), divisor))


def sinh(z: Complex) -> Complex:
    return Complex(ops.Mul()(ops.Sinh()(z.real), ops.Cos()(z.imag)), ops.Mul()(ops.Cosh()(z.real), ops.Sin()(z.imag)))


def cosh(z: Complex) -> Complex:
    return Complex(ops.Mul()(ops.Cosh()(z.real), ops.Cos()(z.imag)), ops.Mul()(ops.Sinh()(z.real), ops.Sin()(z.imag)))


def asinh(z: Complex) -> Complex:
    """Kahan (1987), "Branch cuts for complex elementary functions"."""
    return divide_by_i(asin(multiply_by_i(z)))


def asin(z: Complex) -> Complex:
    """Kahan (1987)."""
    one = full(1, z)
    low, high = sqrt(subtract(one, z)), sqrt(add(one, z))
    real = ops.Atan2()(z.real, multiply(low, high).real)
    product = multiply(Complex(low.real, ops.Neg()(low.imag)), high)
    return Complex(real, ops.Asinh()(product.imag))


def acos(z: Complex) -> Complex:
    one = full(1, z)
    low, high = sqrt(subtract(one, z)), sqrt(add(one, z))
    real = ops.mul(ops.Atan2()(low.real, high.real), 2.0)
    product = multiply(Complex(high.real, ops.Neg()(high.imag)), low)
    return Complex(real, ops.Asinh()(product.imag))


def acosh(z: Complex) -> Complex:
    one = full(1, z)
    low, high = sqrt(subtract(z, one)), sqrt(add(z, one))
    real = ops.Asinh()(multiply(Complex(low.real, ops.Neg()(low.imag)), high).real)
    return Complex(real, ops.mul(ops.Atan2()(low.imag, high.real), 2.0))


def atanh(z: Complex) -> Complex:
    """(log1p(z) - log1p(-z)) / 2"""
    return scale(subtract(log1p(z), log1p(Complex(ops.Neg()(z.real), ops.Neg()(z.imag)))), 0.5)


def reciprocal(z: Complex) -> Complex:
    return divide(full(1, z), z)


def tan(z: Complex) -> Complex:
    return divide_by_i(tanh(multiply_by_i(z)))


def sin(z: Complex) -> Complex:
    return divide_by_i(sinh(multiply_by_i(z)))


def cos(z: Complex) -> Complex:
    return cosh(multiply_by_i(z))


def atan(z: Complex) -> Complex:
    return divide_by_i(atanh(multiply_by_i(z)))


def logistic(z: Complex) -> Complex:
    return reciprocal(add(full(1, z), exp(Complex(ops.Neg()(z.real), ops.Neg()(z.imag)))))


def rsqrt(z: Complex) -> Complex:
    return reciprocal(sqrt(z))


def power(a: Complex, b: Complex) -> Complex:
    """exp(b log a); 0 to a positive power is 0, anything to 0 is 1."""
    value = exp(multiply(b, log(a)))
    base, exponent = (ops.and_(ops.compare("EQ", z.real, 0.0), ops.compare("EQ", z.imag, 0.0)) for z in (a, b))
    none = select(exponent, full(1, a), full(0, a))
    return select(ops.or_(exponent, ops.and_(base, ops.compare("GT", b.real, 0.0))), none, value)
