"""Vector math: exponentials, logarithms and powers as kernel expressions on f32 and f64, any lanes, no branches, no
calls. Circular functions and their inverses: trigonometry.py.

Each is a range reduction and a polynomial or rational function; the coefficients come from tools/vecmath_fit.py. Error
bounds are measured by tests/ops/test_vecmath.py and listed in docs/ops.md. NaN, infinities, zeros with their sign and
subnormals are handled as IEEE 754 and C have them, unless stated.

The expressions are graphs: subexpressions are shared objects, to be evaluated once each.

Sources: argument reduction after Cody and Waite, "Software Manual for the Elementary Functions" (1980); the shift trick
that turns rounding into an addition after Muller et al., "Handbook of Floating-Point Arithmetic" (2018), section 10.
"""

from __future__ import annotations

from math import inf, nan

from ingot.ir import kernel as k
from ingot.ir.kernel import Expr, Lit
from ingot.ir.types import f32, f64, i32, i64, u32
from ingot.ops.core import coefficients as c
from ingot.ops.core.scalars import power_by_squaring
from ingot.ops.core.words import (
    F32,
    F64,
    above,
    absolute,
    at_least,
    at_most,
    below,
    bits_lit,
    bits_of,
    float_of,
    format_of,
    lit,
    negated,
    plus,
    polynomial,
    quotient,
    root,
    scaled_by,
    table,
    two_product,
    two_sum,
    with_sign,
)

# --- exponentials

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


def decay(x: Expr) -> Expr:
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
    return k.select(below(absolute(x), 2.0 ** -(f.fraction + 3)), x, k.add(half, half))


def logistic(x: Expr) -> Expr:
    """u / (u + u e^-x), -x = n ln2 - r, |r| <= ln2 / 2. The unit u, a power of two, lets the one factor u 2^n reach
    from where e^-x does not count beside 1 to where the quotient is 0."""
    f = format_of(x)
    down = f.bias // 2 + 1
    unit = lit(2.0**-down, x)
    x = at_most(at_least(x, f.exp_range[0]), (down - 3) * f.ln2[0])
    total = _decayed_and_unit(x, unit, down)
    return quotient(unit, k.either(_by_table(x, unit, down), total) if x.dtype == f32 else total)


def _decayed_and_unit(x: Expr, unit: Expr, down: int) -> Expr:
    """u e^-x + u, u = 2^-down."""
    f = format_of(x)
    bias = f.shift + f.bias - down
    shifted = k.fma(x, lit(-2 * f.half_log2e, x), lit(bias, x))
    n = plus(shifted, -bias)
    r = k.fma(n, lit(f.ln2[1], x), k.fma(n, lit(f.ln2[0], x), x))
    tail = table(x, c.EXPM1_F32, c.EXPM1_F64)
    e = polynomial(r, [(-1) ** i * value for i, value in enumerate((1.0, 1.0, *tail))])
    return k.fma(e, _power_of_two(shifted), unit)


def _by_table(x: Expr, unit: Expr, down: int) -> Expr:
    """The same of an f32: -x = n ln2 / 16 - r, |r| <= ln2 / 32. The table's entries lack what the low bits of n add to
    their exponents; what rounding cuts off them is in the terms."""
    shift = F32.shift - 16 * down
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
    return with_sign(quotient(t, plus(t, 2.0)), x)


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
    return k.select(below(a, 1.0), small, with_sign(large, x))


def gelu(x: Expr, narrow: bool = False) -> Expr:
    """x P(x) of an f32, with the normal distribution P: max(x, 0) - |x| P(-|x|), where P(-|x|) is the fourth power of a
    polynomial and 0 from |x| = 5.8 on. NaN at -inf and -0 below -5.8, as from the formula by erf. `narrow`: x is of
    bf16 and so will the result be, for which a sixteenth power of fewer terms is exact enough."""
    a = absolute(x)
    p = polynomial(a, c.GELU_BF16 if narrow else c.GELU_F32)
    for _ in range(4 if narrow else 2):
        p = k.mul(p, p)
    # not max(x, 0): -inf is to give NaN, and other negative numbers -0
    positive = k.mul(x, k.select(above(x, 0.0), lit(1.0, x), lit(0.0, x)))
    return k.select(below(a, 5.8), k.fma(negated(p), a, positive), positive)


def sinh(x: Expr) -> Expr:
    """(t + t / (t + 1)) / 2 with t = e^|x| - 1; f64 beyond 22: e^(|x|/2) squared, which overflows only when it must."""
    a = absolute(x)
    if x.dtype == f32:
        return k.choose(below(a, 86.0), with_sign(_sinh_near(a), x), k.cast(sinh(k.cast(x, f64)), f32))
    t = expm1(a)
    small = scaled_by(k.add(t, quotient(t, plus(t, 1.0))), 0.5)
    half = exp(scaled_by(a, 0.5))
    big = k.mul(scaled_by(half, 0.5), half)
    value = k.select(above(a, 22.0), big, small)
    # 0.5 * (t + t) would round subnormals twice
    return with_sign(k.select(below(a, 2.0**-28), a, value), x)


def _sinh_near(a: Expr) -> Expr:
    """sinh(a) of an f32 from 0 to 86: with a = n ln2 / 16 + f, sinh(n ln2 / 16) cosh f + cosh(n ln2 / 16) sinh f. The
    former are half the sum and the difference of 2^(n/16) and 2^(-n/16) by a table; what rounding cuts off is kept."""
    shifted, n, f, f_low = _sixteenths(a, lit(0.0, a))
    up, up_low = _power_of_sixteenths(shifted, -1)
    down, down_low = _power_of_sixteenths(k.sub(lit(F32.shift, a), n), -1)
    s, co = k.sub(up, down), k.add(up, down)
    s_low = k.add(k.sub(k.sub(up, s), down), k.sub(up_low, down_low))
    co_low = k.add(k.add(k.sub(up, co), down), k.add(up_low, down_low))
    z = k.mul(f, f)
    odd = k.fma(k.mul(f, z), k.fma(z, lit(1 / 120, a), lit(1 / 6, a)), f_low)
    even = k.mul(z, k.fma(z, lit(1 / 24, a), lit(1 / 2, a)))
    high = k.fma(co, f, s)
    low = k.fma(co_low, f, k.fma(s, even, k.fma(co, odd, s_low)))
    return k.add(high, k.add(k.fma(co, f, k.sub(s, high)), low))


def _sixteenths(x: Expr, x_low: Expr) -> tuple[Expr, Expr, Expr, Expr]:
    """(shifted, n, f, low): x + x_low = n ln2 / 16 + f + low, n in the low bits of the f32 `shifted`, f exact."""
    shifted = k.fma(x, lit(32 * F32.half_log2e, x), lit(F32.shift, x))
    n = plus(shifted, -F32.shift)
    return shifted, n, k.fma(n, lit(-c.LN2_16[0], x), x), k.fma(n, lit(-c.LN2_16[1], x), x_low)


def _sixteenths_apart(shifted: Expr) -> tuple[Expr, Expr]:
    """For an n in the low bits of the f32 `shifted`: an integer with those bits, and n // 16 in an exponent's place."""
    place = k.bitcast(shifted, i32)
    return place, k.binary("shl", k.binary("and", place, bits_lit(-16, shifted)), bits_lit(19, shifted))


def _power_of_sixteenths(shifted: Expr, by: int) -> tuple[Expr, Expr]:
    """2^(n/16 + by) in two parts, for an n in the low bits of the f32 `shifted`."""
    place, exponent = _sixteenths_apart(shifted)
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


# --- logarithms


def _split(x: Expr) -> tuple[Expr, Expr]:
    """(n, f) with x = 2^n (1 + f), sqrt(1/2) <= 1 + f < sqrt(2), for finite x > 0."""
    f = format_of(x)
    subnormal = below(x, f.tiny)
    up = f.fraction + 2
    n, fraction = _split_normal(k.select(subnormal, scaled_by(x, 2.0**up), x))
    return k.sub(k.cast(n, x.dtype), k.select(subnormal, lit(float(up), x), lit(0.0, x))), fraction


def _split_normal(x: Expr) -> tuple[Expr, Expr]:
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
    return k.select(below(x, inf), k.select(above(x, 0.0), value, edge), x)


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
    return _log_domain(x, _log_of_parts(*_split(x)))


def log1p(x: Expr) -> Expr:
    """1 + x = u + e = 2^n (1 + f + d), where u has rounded: log(u) + d / (1 + f), the quotient by its first terms; near
    0 that is f + d = x."""
    f = format_of(x)
    u = plus(x, 1.0)
    e = k.sub(x, plus(u, -1.0))
    n, fraction = _split_normal(u)
    # 2^-n; so large an n that it has no such power has no e that counts
    down = k.binary("min", n, k.lit(f.bias - 1, n.dtype))
    unit = k.bitcast(k.binary("shl", k.sub(bits_lit(f.bias, x), down), bits_lit(f.fraction, x)), x.dtype)
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
    huge = above(a, 2.0**500)
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
    huge = above(x, 2.0**500)
    value = log1p(k.select(huge, x, k.add(t, root(k.mul(t, plus(t, 2.0))))))
    value = k.select(huge, plus(value, F64.ln2[0]), value)
    return k.select(below(x, 1.0), lit(nan, x), value)


def atanh(x: Expr) -> Expr:
    """log1p(2a / (1 - a)) / 2, a = |x|; NaN beyond 1."""
    if x.dtype == f32:
        return k.cast(atanh(k.cast(x, f64)), f32)
    a = absolute(x)
    value = scaled_by(log1p(quotient(k.add(a, a), k.sub(lit(1.0, x), a))), 0.5)
    return with_sign(k.select(below(a, 2.0**-28), a, value), x)


# --- powers


def cbrt(x: Expr) -> Expr:
    """A guess from a third of the exponent, then Halley's iteration, in f64."""
    if x.dtype == f32:
        return k.cast(_cbrt(k.cast(x, f64), 2), f32)
    a = absolute(x)
    small, huge = below(a, 2.0**-900), above(a, 2.0**900)
    one = lit(1.0, x)
    scaled = k.mul(x, k.select(small, lit(2.0**180, x), k.select(huge, lit(2.0**-180, x), one)))
    back = k.select(small, lit(2.0**-60, x), k.select(huge, lit(2.0**60, x), one))
    return k.mul(_cbrt(scaled, 3), back)


def _cbrt(x: Expr, steps: int) -> Expr:
    a = absolute(x)
    third = k.binary("div", k.bitcast(a, i64), bits_lit(3, x))
    t = k.bitcast(k.add(third, bits_lit(715094163 << 32, x)), f64)
    for _ in range(steps):
        cube = k.mul(k.mul(t, t), t)
        # t + t (a - t^3) / (2 t^3 + a): the correction is small, so its rounding does not count
        t = k.fma(t, quotient(k.sub(a, cube), k.add(k.add(cube, cube), a)), t)
    ordinary = k.binary("and", above(a, 0.0), below(a, inf))
    return k.select(ordinary, with_sign(t, x), x)


def power(x: Expr, y: Expr) -> Expr:
    """x^y as C's pow. A literal y of -2 to 4 or +-1/2, in f32 of -16 to 16, takes the direct way."""
    if isinstance(y, Lit) and y.value in (0.0, 1.0, 2.0, 3.0, 4.0):
        return power_by_squaring(x, int(y.value))
    if isinstance(y, Lit) and y.value in (-1.0, -2.0):
        return power_by_squaring(quotient(lit(1.0, x), x), -int(y.value))
    if isinstance(y, Lit) and y.value == -0.5:
        return quotient(lit(1.0, x), power(x, lit(0.5, x)))
    if isinstance(y, Lit) and y.value == 0.5:
        # pow(-0, 1/2) = +0 and pow(-inf, 1/2) = +inf, unlike sqrt
        return k.select(k.binary("eq", x, lit(-inf, x)), lit(inf, x), root(plus(x, 0.0)))
    if x.dtype == f32:
        a, b = k.cast(x, f64), k.cast(y, f64)
        if isinstance(y, Lit) and abs(y.value) <= 16 and y.value == int(y.value):
            whole = power_by_squaring(a, abs(int(y.value)))
            return k.cast(whole if y.value > 0 else quotient(lit(1.0, a), whole), f32)
        near, usual = _power_near(x, y)
        far = _signed_power(a, b, exp(k.mul(b, log(absolute(a)))))
        return k.choose(usual, near, k.cast(far, f32))
    return _signed_power(x, y, _power_f64(absolute(x), y))


def _log_by_table(x: Expr) -> tuple[Expr, Expr]:
    """log(x) in two parts, within 2^-35 of its size, for a normal f32 x.

    x = 2^n z, and z times a short c of a table is 1 + r exactly, |r| < 0.0212: n ln2 - log c + r - r^2/2 + r^3 T(r).
    The sums of the first four keep what rounding cuts off (Tang, "Table-Driven Implementation of the Logarithm Function
    in IEEE Floating-Point Arithmetic", 1990).
    """
    bits = k.bitcast(x, i32)
    above_start = k.sub(bits, bits_lit(c.LOG_START, x))
    place = k.binary("lshr", above_start, bits_lit(18, x))
    exponent = k.binary("and", above_start, bits_lit(-(1 << 23), x))
    n, z = k.cast(exponent, f32), k.bitcast(k.sub(bits, exponent), f32)
    r = k.fma(z, k.lookup(c.LOG_INVERSES, place, f32), lit(-1.0, x))
    ln2, ln2_low = (lit(v * 2.0**-23, x) for v in c.LN2_SHORT)
    whole = k.fma(n, ln2, k.lookup(c.LOG_HIGH, place, f32))
    low = k.fma(n, ln2_low, k.lookup(c.LOG_LOW, place, f32))
    half = scaled_by(r, -0.5)
    near = k.fma(half, r, r)
    near_low = k.fma(half, r, k.sub(r, near))
    high = k.add(whole, near)
    high_low = k.sub(near, k.sub(high, whole))
    tail = polynomial(r, [-2 * value for value in c.LOG_TABLE_TAIL])
    low = k.fma(k.mul(half, r), k.mul(r, tail), low)
    return high, k.add(low, k.add(high_low, near_low))


def _power_near(x: Expr, y: Expr) -> tuple[Expr, Expr]:
    """(x^y, where that holds) of f32: for normal positive x and results that are normal numbers.

    e^p = 2^(n/16) e^f, |f| <= ln2 / 32: 2^(j/16) of a table, e^f, and an integer power of two, which goes into the
    exponent's place.
    """
    high, low = _log_by_table(x)
    p = k.mul(y, high)
    p_low = k.fma(y, low, k.fma(y, high, negated(p)))
    first = k.binary("sub", k.bitcast(x, u32), k.lit(0x00800000, u32, x.lanes))
    normal = k.binary("lt", first, k.lit(0x7F000000, u32, x.lanes))
    shifted, _, f, f_low = _sixteenths(p, p_low)
    f = k.add(f, f_low)
    e = k.fma(k.mul(f, f), polynomial(f, c.EXP_TABLE_TAIL), f)
    place, exponent = _sixteenths_apart(shifted)
    unit = k.lookup(c.EXP2_HIGH, place, f32)
    value = k.add(unit, k.fma(unit, e, k.lookup(c.EXP2_LOW, place, f32)))
    value = k.bitcast(k.add(k.bitcast(value, i32), exponent), f32)
    return value, k.binary("and", normal, below(absolute(p), 87.0))


def _signed_power(x: Expr, y: Expr, magnitude: Expr) -> Expr:
    """x^y from |x|^y: the sign, and the cases that logarithms miss."""
    whole = k.binary("eq", k.unary("trunc", y), y)
    halved = scaled_by(y, 0.5)
    odd = k.binary("and", whole, k.binary("ne", k.unary("trunc", halved), halved))
    negative = k.binary("lt", k.bitcast(x, i64), bits_lit(0, x))
    zero = k.binary("eq", x, lit(0.0, x))
    a = absolute(x)
    infinite_y = k.binary("eq", absolute(y), lit(inf, y))
    unit = k.binary("eq", a, lit(1.0, x))
    one = lit(1.0, x)
    value = k.select(k.binary("and", unit, infinite_y), one, magnitude)
    value = k.select(k.binary("and", negative, odd), negated(value), value)
    defined = k.binary("or", whole, k.binary("or", zero, k.binary("eq", a, lit(inf, x))))
    undefined = k.binary("and", below(x, 0.0), k.unary("not", defined))
    value = k.select(undefined, lit(nan, x), value)
    trivial = k.binary("or", k.binary("eq", y, lit(0.0, y)), k.binary("eq", x, one))
    return k.select(trivial, one, value)


def _log_pair(a: Expr) -> tuple[Expr, Expr]:
    """log(a) as an unevaluated sum with about 2^-68 relative error, for 0 < a < inf."""
    n, f = _split(a)
    two = lit(2.0, a)
    d, d_low = two_sum(two, f)
    s = quotient(f, d)
    s_low = quotient(k.sub(k.fma(negated(s), d, f), k.mul(s, d_low)), d)
    z, z_low = two_product(s, s)
    z_low = k.fma(scaled_by(s, 2.0), s_low, z_low)
    # log(1+f) = 2 s (1 + z (1/3 + z R(z))); 1/3 as a pair, the rest is small
    third = (lit(1 / 3, a), lit(1.850371707708594e-17, a))
    rest = k.mul(z, polynomial(z, c.LOG_F64_REST))
    q, q_low = two_sum(third[0], rest)
    q_low = k.add(q_low, third[1])
    w, w_low = two_product(z, q)
    w_low = k.add(w_low, k.fma(z, q_low, k.mul(z_low, q)))
    v, v_low = two_product(s, w)
    v_low = k.add(v_low, k.fma(s, w_low, k.mul(s_low, w)))
    total, error = two_sum(s, v)
    error = k.add(error, k.add(s_low, v_low))
    total, error = scaled_by(total, 2.0), scaled_by(error, 2.0)
    high = scaled_by(n, c.LN2_EXACT[0])  # exact: 41 bits times 11 bits
    total, lost = two_sum(high, total)
    return total, k.add(lost, k.fma(n, lit(c.LN2_EXACT[1], a), error))


def _power_f64(a: Expr, y: Expr) -> Expr:
    """a^y for a >= 0 through a logarithm in two parts."""
    high, low = _log_pair(a)
    high, low = two_sum(high, low)
    ordinary = k.binary("and", above(a, 0.0), below(a, inf))
    plain = k.select(k.binary("eq", a, lit(0.0, a)), lit(-inf, a), a)
    high = k.select(ordinary, high, plain)
    p = k.mul(y, high)
    p_low = k.fma(y, low, k.fma(y, high, negated(p)))
    e = exp(p)
    inside = k.binary("and", below(absolute(p), inf), below(e, inf))
    return k.select(inside, k.fma(e, p_low, e), e)
