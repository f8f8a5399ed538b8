"""Exponentials, the logistic function, the error function and hyperbolic functions."""

from __future__ import annotations

from collections.abc import Sequence
from math import log, pi

from ingot.ir import kernel as k
from ingot.ir.kernel import Expr
from ingot.ir.kernel.math import coefficients as c
from ingot.ir.kernel.math.words import (
    F32,
    absolute,
    at_least,
    at_most,
    bits_lit,
    bits_of,
    float_of,
    format_of,
    is_above,
    is_below,
    lit,
    negated,
    plus,
    polynomial,
    quotient,
    scaled_by,
    table,
    with_sign,
)
from ingot.ir.types import f32, f64, i32

# 2^(j/16) less what j << 19 adds to its bits, and what its rounding cuts off, relative to it
_EXP2_FOLDED = tuple(float_of(bits_of(v) - (j << 19)) for j, v in enumerate(c.EXP2_HIGH))
_EXP2_REST = tuple(float_of(bits_of(low / high)) for high, low in zip(c.EXP2_HIGH, c.EXP2_LOW, strict=True))


def _power_of_two(shifted: Expr) -> Expr:
    """2^n where the low bits of the float `shifted` hold n + bias: they move into the exponent's place."""
    f = format_of(shifted)
    return k.bitcast(k.binary("shl", k.bitcast(shifted, f.bits), bits_lit(f.fraction, shifted)), shifted.dtype)


def exp(x: Expr, nonpositive: bool = False) -> Expr:
    """e^x. `nonpositive`: x is known to be <= 0 (or NaN), which saves an instruction.

    x = n ln2 + r with an even n, |r| <= ln2: e^x = e^r 2^n, where 2^(n/2) is a normal number on the whole range.
    """
    f = format_of(x)
    x = at_least(x, f.exp_range[0])
    if not nonpositive:
        x = at_most(x, f.exp_range[1])
    # twice the shift rounds to even integers
    shift = 2 * (f.shift + f.bias)
    n = plus(k.fma(x, lit(2 * f.half_log2e, x), lit(shift, x)), -shift)
    r = k.fma(n, lit(-f.ln2[1], x), k.fma(n, lit(-f.ln2[0], x), x))
    return k.ldexp(polynomial(r, (1.0, 1.0, *table(x, c.EXP_F32, c.EXP_F64))), n)


def exp_decay(x: Expr) -> Expr:
    """e^x for x <= 0 (or NaN) as a softmax needs its weights: within 2^-22 of its size down to e^-16, within
    2^-21 below, and 0 from 2^-126.5 on.

    x = n ln2 + r, |r| <= ln2 / 2: e^r 2^n. What f32 cuts off ln2 makes small weights less exact. n = -127 is an
    exponent field of 0, a factor of 0. e^0 is 1: old sums are scaled by it block after block.
    """
    if x.dtype == f64:
        return exp(x, nonpositive=True)
    bias = F32.shift + F32.bias
    x = at_least(x, -F32.bias * F32.ln2[0])
    shifted = k.fma(x, lit(2 * F32.half_log2e, x), lit(bias, x))
    r = k.fma(plus(shifted, -bias), lit(-F32.ln2[0], x), x)
    return k.mul(polynomial(r, c.DECAY_F32), _power_of_two(shifted))


def exp2_narrow(x: Expr) -> Expr:
    """2^x for x <= 0 (or NaN), as exact as f16 will hold it."""
    return exp_decay(k.mul(x, lit(log(2), x)))


def expm1(x: Expr) -> Expr:
    """e^x - 1 = 2 (2^(n-1) (e^r - 1) + 2^(n-1) - 1/2) with x = n ln2 + r; the halving keeps n = 128 in range."""
    f = format_of(x)
    clamped = at_most(at_least(x, f.expm1_range[0]), f.expm1_range[1])
    bias = f.shift + f.bias - 1
    shifted = k.fma(clamped, lit(2 * f.half_log2e, x), lit(bias, x))
    n = plus(shifted, -bias)
    r = k.fma(n, lit(-f.ln2[1], x), k.fma(n, lit(-f.ln2[0], x), clamped))
    power = _power_of_two(shifted)
    tail = polynomial(r, table(x, c.EXPM1_F32, c.EXPM1_F64))
    small = k.fma(k.mul(r, r), tail, r)
    half = k.fma(power, small, plus(power, -0.5))
    # below, x itself is the nearest float; this also keeps -0 and subnormals
    return k.select(is_below(absolute(x), 2.0 ** -(f.fraction + 3)), x, k.add(half, half))


def logistic(x: Expr) -> Expr:
    """u / (u + u e^-x), -x = n ln2 - r, |r| <= ln2 / 2. The unit u, a power of two, lets the one factor u 2^n reach
    from where e^-x does not count beside 1 to where the quotient is 0."""
    f = format_of(x)
    unit_exponent = f.bias // 2 + 1
    unit = lit(2.0**-unit_exponent, x)
    x = at_most(at_least(x, f.exp_range[0]), (unit_exponent - 3) * f.ln2[0])
    total = _decayed_and_unit(x, unit, unit_exponent)
    return k.call("quotient", unit, k.either(_by_table(x, unit, unit_exponent), total) if x.dtype == f32 else total)


def _decayed_and_unit(x: Expr, unit: Expr, unit_exponent: int) -> Expr:
    """u e^-x + u, u = 2^-unit_exponent."""
    f = format_of(x)
    bias = f.shift + f.bias - unit_exponent
    shifted = k.fma(x, lit(-2 * f.half_log2e, x), lit(bias, x))
    n = plus(shifted, -bias)
    r = k.fma(n, lit(f.ln2[1], x), k.fma(n, lit(f.ln2[0], x), x))
    tail = table(x, c.EXPM1_F32, c.EXPM1_F64)
    e = polynomial(r, [(-1) ** i * value for i, value in enumerate((1.0, 1.0, *tail))])
    return k.fma(e, _power_of_two(shifted), unit)


def _by_table(x: Expr, unit: Expr, unit_exponent: int) -> Expr:
    """The same of an f32: -x = n ln2 / 16 - r, |r| <= ln2 / 32. The table's entries lack what the low bits of n add to
    their exponents; what rounding cuts off them is in the terms."""
    shift = F32.shift - 16 * unit_exponent
    shifted = k.fma(x, lit(-32 * F32.half_log2e, x), lit(shift, x))
    n = plus(shifted, -shift)
    r = k.fma(n, lit(c.LN2_16[1], x), k.fma(n, lit(c.LN2_16[0], x), x))
    place = k.bitcast(shifted, i32)
    entry = k.bitcast(k.lookup(_EXP2_FOLDED, place, f32), i32)
    power = k.bitcast(k.add(entry, k.binary("shl", place, bits_lit(19, x))), f32)
    terms = k.fma(r, polynomial(r, (-1.0, 1 / 2, -1 / 6)), k.lookup(_EXP2_REST, place, f32))
    return k.add(k.fma(power, terms, power), unit)


def tanh(x: Expr) -> Expr:
    """t / (t + 2) with t = e^(2|x|) - 1; 1 from the clamp on. f32: t = 2^n (e^(2r) - 1) + 2^n - 1, |x| = n ln2 / 2 + r;
    where n is not 0, t is too large for the low part of ln2 to show."""
    if x.dtype == f64:
        t = expm1(scaled_by(absolute(x), -2.0))
        return with_sign(quotient(t, plus(t, 2.0)), x)
    a = at_most(absolute(x), 9.1)
    bias = F32.shift + F32.bias
    shifted = k.fma(a, lit(4 * F32.half_log2e, x), lit(bias, x))
    r = k.fma(plus(shifted, -bias), lit(-F32.ln2[0] / 2, x), a)
    power = _power_of_two(shifted)
    small = k.fma(k.mul(r, r), polynomial(r, c.TANH_F32), k.add(r, r))
    t = k.fma(power, small, plus(power, -1.0))
    return with_sign(k.call("quotient", t, plus(t, 2.0)), x)


def erf(x: Expr) -> Expr:
    """f32: 1 - (1 - e/4)^4 with e = |x| S(|x|), where squaring 1 - e as 1 - e (2 - e) keeps small e exact and damps the
    errors of large ones. f64: a polynomial near 0; beyond, 1 - e^(-x^2) g(|x|)."""
    if x.dtype == f32:
        a = at_most(absolute(x), 4.1)
        first, *rest = c.ERF_F32
        z = k.mul(a, a)
        # in two halves: the longest chain of all functions
        p = k.fma(polynomial(z, rest[1::2]), a, polynomial(z, rest[::2]))
        e = k.fma(a, lit(first, x), k.mul(a, p))
        e = k.fma(scaled_by(e, -1 / 8), e, e)
        e = k.fma(scaled_by(e, -1 / 4), e, e)
        return with_sign(e, x)
    a = at_most(absolute(x), 6.0)
    z = k.mul(a, a)
    small = k.fma(x, polynomial(z, c.ERF_SMALL_F64), x)
    g = polynomial(quotient(plus(a, -2.0), plus(a, 2.0)), c.ERFC_F64)
    large = k.fma(negated(exp(negated(z), nonpositive=True)), g, lit(1.0, x))
    return k.select(is_below(a, 1.0), small, with_sign(large, x))


def gelu(x: Expr, narrow: bool = False) -> Expr:
    """x P(x) of an f32, with the normal distribution P: max(x, 0) - |x| P(-|x|), where P(-|x|) is the fourth power of a
    polynomial and 0 from |x| = 5.8 on. NaN at -inf and -0 below -5.8, as from the formula by erf. `narrow`: x is of
    bf16 and so will the result be, for which a sixteenth power of fewer terms is exact enough. Of f64 by erf."""
    if x.dtype == f64:
        return k.mul(scaled_by(x, 0.5), plus(erf(scaled_by(x, 0.5**0.5)), 1.0))
    a = absolute(x)
    p = _power_of_polynomial(a, c.GELU_BF16, 16) if narrow else _power_of_polynomial(a, c.GELU_F32, 4)
    # not max(x, 0): -inf is to give NaN, and other negative numbers -0
    positive = k.mul(x, k.select(is_above(x, 0.0), lit(1.0, x), lit(0.0, x)))
    return k.select(is_below(a, 5.8), k.fma(negated(p), a, positive), positive)


def gelu_derivative(x: Expr) -> Expr:
    """P(x) + x P'(x), with P as in `gelu`: P(x) is P(-|x|), or 1 minus that for x > 0. NaN at infinities, as x P' is.
    Its error is relative to 1, as it has a zero at -0.75."""
    square = scaled_by(k.mul(x, x), -0.5)
    if x.dtype == f64:
        p, power = scaled_by(plus(erf(scaled_by(x, 0.5**0.5)), 1.0), 0.5), exp(square, nonpositive=True)
    else:
        a = absolute(x)
        tail = k.select(is_below(a, 5.8), _power_of_polynomial(a, c.GELU_F32, 4), lit(0.0, x))
        p = k.select(is_above(x, 0.0), plus(negated(tail), 1.0), tail)
        power = exp_decay(square)
    return k.fma(x, scaled_by(power, (2 * pi) ** -0.5), p)


def _power_of_polynomial(x: Expr, coefficients: Sequence[float], power: int) -> Expr:
    """A power, of two, of a polynomial."""
    p = polynomial(x, coefficients)
    while power > 1:
        p, power = k.mul(p, p), power // 2
    return p


def sinh(x: Expr) -> Expr:
    """(t + t / (t + 1)) / 2 with t = e^|x| - 1; f64 beyond 22: e^(|x|/2) squared, which overflows only when it must."""
    a = absolute(x)
    if x.dtype == f32:
        return k.select_uniform(is_below(a, 86.0), with_sign(_sinh_near(a), x), k.cast(sinh(k.cast(x, f64)), f32))
    t = expm1(a)
    small = scaled_by(k.add(t, quotient(t, plus(t, 1.0))), 0.5)
    half = exp(scaled_by(a, 0.5))
    big = k.mul(scaled_by(half, 0.5), half)
    value = k.select(is_above(a, 22.0), big, small)
    # 0.5 * (t + t) would round subnormals twice
    return with_sign(k.select(is_below(a, 2.0**-28), a, value), x)


def _sinh_near(a: Expr) -> Expr:
    """sinh(a) of an f32 from 0 to 86: with a = n ln2 / 16 + f, sinh(n ln2 / 16) cosh f + cosh(n ln2 / 16) sinh f. The
    former are half the sum and the difference of 2^(n/16) and 2^(-n/16) by a table; what rounding cuts off is kept."""
    shifted, n, f, f_low = sixteenths(a, lit(0.0, a))
    growing, growing_low = _power_of_sixteenths(shifted, -1)
    decaying, decaying_low = _power_of_sixteenths(k.sub(lit(F32.shift, a), n), -1)
    s, co = k.sub(growing, decaying), k.add(growing, decaying)
    s_low = k.add(k.sub(k.sub(growing, s), decaying), k.sub(growing_low, decaying_low))
    co_low = k.add(k.add(k.sub(growing, co), decaying), k.add(growing_low, decaying_low))
    z = k.mul(f, f)
    odd = k.fma(k.mul(f, z), k.fma(z, lit(1 / 120, a), lit(1 / 6, a)), f_low)
    even = k.mul(z, k.fma(z, lit(1 / 24, a), lit(1 / 2, a)))
    high = k.fma(co, f, s)
    low = k.fma(co_low, f, k.fma(s, even, k.fma(co, odd, s_low)))
    return k.add(high, k.add(k.fma(co, f, k.sub(s, high)), low))


def sixteenths(x: Expr, x_low: Expr) -> tuple[Expr, Expr, Expr, Expr]:
    """(shifted, n, f, low): x + x_low = n ln2 / 16 + f + low, n in the low bits of the f32 `shifted`, f exact."""
    shifted = k.fma(x, lit(32 * F32.half_log2e, x), lit(F32.shift, x))
    n = plus(shifted, -F32.shift)
    return shifted, n, k.fma(n, lit(-c.LN2_16[0], x), x), k.fma(n, lit(-c.LN2_16[1], x), x_low)


def sixteenths_apart(shifted: Expr) -> tuple[Expr, Expr]:
    """For an n in the low bits of the f32 `shifted`: an integer with those bits, and n // 16 in an exponent's place."""
    place = k.bitcast(shifted, i32)
    return place, k.binary("shl", k.binary("and", place, bits_lit(-16, shifted)), bits_lit(19, shifted))


def _power_of_sixteenths(shifted: Expr, by: int) -> tuple[Expr, Expr]:
    """2^(n/16 + by) in two parts, for an n in the low bits of the f32 `shifted`."""
    place, exponent = sixteenths_apart(shifted)
    power = k.bitcast(k.add(exponent, bits_lit((F32.bias + by) << 23, shifted)), f32)
    high, low = (k.mul(k.lookup(part, place, f32), power) for part in (c.EXP2_HIGH, c.EXP2_LOW))
    return high, low


def cosh(x: Expr) -> Expr:
    """e/2 + 1/(2e) with e = e^(|x|/2) squared."""
    if x.dtype == f32:
        return k.cast(cosh(k.cast(x, f64)), f32)
    half = exp(scaled_by(absolute(x), 0.5))
    e = k.mul(scaled_by(half, 0.5), half)
    return k.add(e, quotient(lit(0.25, x), e))
