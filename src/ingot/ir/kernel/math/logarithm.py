"""Logarithms, and the inverses of hyperbolic functions, which are made of them."""

from __future__ import annotations

from math import inf, nan

from ingot.ir import kernel as k
from ingot.ir.kernel import Expr
from ingot.ir.kernel.math import coefficients as c
from ingot.ir.kernel.math.words import (
    F64,
    absolute,
    bits_lit,
    format_of,
    is_above,
    is_below,
    lit,
    negated,
    plus,
    polynomial,
    quotient,
    root,
    scaled_by,
    with_sign,
)
from ingot.ir.types import f32, f64


def split(x: Expr) -> tuple[Expr, Expr]:
    """(n, f) with x = 2^n (1 + f), sqrt(1/2) <= 1 + f < sqrt(2), for finite x > 0."""
    f = format_of(x)
    subnormal = is_below(x, f.tiny)
    scale_exponent = f.fraction + 2
    n, fraction = split_normal(k.select(subnormal, scaled_by(x, 2.0**scale_exponent), x))
    return k.sub(k.cast(n, x.dtype), k.select(subnormal, lit(float(scale_exponent), x), lit(0.0, x))), fraction


def split_normal(x: Expr) -> tuple[Expr, Expr]:
    """The same for normal x, n as an integer."""
    f = format_of(x)
    bits = k.bitcast(x, f.bits)
    root_half = 0x3F3504F3 if x.dtype == f32 else 0x3FE6A09E667F3BCD
    n = k.binary("ashr", k.sub(bits, bits_lit(root_half, x)), bits_lit(f.fraction, x))
    mantissa = k.bitcast(k.sub(bits, k.binary("shl", n, bits_lit(f.fraction, x))), x.dtype)
    return n, plus(mantissa, -1.0)


def _log_domain(x: Expr, value: Expr) -> Expr:
    """`value` for 0 < x < inf; -inf at 0, NaN below, inf at inf."""
    edge = k.select(k.binary("eq", x, lit(0.0, x)), lit(-inf, x), lit(nan, x))
    return k.select(is_below(x, inf), k.select(is_above(x, 0.0), value, edge), x)


def _log_of_parts(n: Expr, f: Expr, little: Expr | None = None) -> Expr:
    """n ln2 + log(1 + f) + little."""
    hi, lo = (lit(v, f) for v in format_of(f).ln2)
    low = k.mul(n, lo) if little is None else k.fma(n, lo, little)
    if f.dtype == f32:
        z = k.mul(f, f)
        rest = k.fma(k.mul(z, f), polynomial(f, c.LOG_F32), low)
        return k.fma(n, hi, k.add(f, k.fma(z, lit(-0.5, f), rest)))
    s = quotient(f, plus(f, 2.0))
    z = k.mul(s, s)
    half = k.mul(scaled_by(f, 0.5), f)
    rest = k.mul(scaled_by(z, 2.0), polynomial(z, c.LOG_F64))
    inner = k.fma(s, k.add(half, rest), low)
    return k.fma(n, hi, k.sub(f, k.sub(half, inner)))


def log(x: Expr) -> Expr:
    return _log_domain(x, _log_of_parts(*split(x)))


def log1p(x: Expr) -> Expr:
    """1 + x = u + e = 2^n (1 + f + d), where u has rounded: log(u) + d / (1 + f), the quotient by its first terms; near
    0 that is f + d = x."""
    f = format_of(x)
    u = plus(x, 1.0)
    e = k.sub(x, plus(u, -1.0))
    n, fraction = split_normal(u)
    # 2^-n; so large an n that it has no such power has no e that counts
    unit_exponent = k.binary("min", n, k.lit(f.bias - 1, n.dtype))
    unit = k.bitcast(k.binary("shl", k.sub(bits_lit(f.bias, x), unit_exponent), bits_lit(f.fraction, x)), x.dtype)
    d = k.mul(e, unit)
    little = k.fma(d, k.fma(fraction, fraction, negated(fraction)), d)
    value = _log_of_parts(k.cast(n, x.dtype), fraction, little)
    return with_sign(_log_domain(u, value), x)


def log1p_unit(x: Expr) -> Expr:
    """log1p(x) of 0 <= x <= 1 (or NaN), where 1 + x needs no exponent."""
    return log1p(x) if x.dtype == f64 else k.mul(x, polynomial(x, c.LOG1P_UNIT))


def asinh(x: Expr) -> Expr:
    """log1p(a + a^2 / (1 + sqrt(1 + a^2))), a = |x|; log(a) + log 2 where a^2 overflows."""
    if x.dtype == f32:
        return k.cast(asinh(k.cast(x, f64)), f32)
    a = absolute(x)
    huge = is_above(a, 2.0**500)
    z = k.mul(a, a)
    argument = k.add(a, quotient(z, plus(root(plus(z, 1.0)), 1.0)))
    value = log1p(k.select(huge, a, argument))
    value = k.select(huge, plus(value, F64.ln2[0]), value)
    return with_sign(value, x)


def acosh(x: Expr) -> Expr:
    """log1p(t + sqrt(2 t + t^2)), t = x - 1; NaN below 1."""
    if x.dtype == f32:
        return k.cast(acosh(k.cast(x, f64)), f32)
    t = plus(x, -1.0)
    huge = is_above(x, 2.0**500)
    value = log1p(k.select(huge, x, k.add(t, root(k.mul(t, plus(t, 2.0))))))
    value = k.select(huge, plus(value, F64.ln2[0]), value)
    return k.select(is_below(x, 1.0), lit(nan, x), value)


def atanh(x: Expr) -> Expr:
    """log1p(2a / (1 - a)) / 2, a = |x|; NaN beyond 1."""
    if x.dtype == f32:
        return k.cast(atanh(k.cast(x, f64)), f32)
    a = absolute(x)
    value = scaled_by(log1p(quotient(k.add(a, a), k.sub(lit(1.0, x), a))), 0.5)
    return with_sign(k.select(is_below(a, 2.0**-28), a, value), x)
