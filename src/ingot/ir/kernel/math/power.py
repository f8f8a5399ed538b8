"""Powers and cube roots."""

from __future__ import annotations

from math import inf, nan

from ingot.ir import kernel as k
from ingot.ir.kernel import Expr, Lit
from ingot.ir.kernel.math import coefficients as c
from ingot.ir.kernel.math.exponential import exp, sixteenths, sixteenths_apart
from ingot.ir.kernel.math.logarithm import log, split
from ingot.ir.kernel.math.words import (
    absolute,
    bits_lit,
    is_above,
    is_below,
    lit,
    negated,
    plus,
    polynomial,
    power_by_squaring,
    quotient,
    root,
    scaled_by,
    two_product,
    two_sum,
    with_sign,
)
from ingot.ir.types import f32, f64, i32, i64, u32


def cbrt(x: Expr) -> Expr:
    """A guess from a third of the exponent, then Halley's iteration, in f64."""
    if x.dtype == f32:
        return k.cast(_cbrt(k.cast(x, f64), 2), f32)
    a = absolute(x)
    small, huge = is_below(a, 2.0**-900), is_above(a, 2.0**900)
    one = lit(1.0, x)
    scaled = k.mul(x, k.select(small, lit(2.0**180, x), k.select(huge, lit(2.0**-180, x), one)))
    rescale = k.select(small, lit(2.0**-60, x), k.select(huge, lit(2.0**60, x), one))
    return k.mul(_cbrt(scaled, 3), rescale)


def _cbrt(x: Expr, steps: int) -> Expr:
    a = absolute(x)
    third = k.binary("div", k.bitcast(a, i64), bits_lit(3, x))
    t = k.bitcast(k.add(third, bits_lit(715094163 << 32, x)), f64)
    for _ in range(steps):
        cube = k.mul(k.mul(t, t), t)
        # t + t (a - t^3) / (2 t^3 + a): the correction is small, so its rounding does not count
        t = k.fma(t, quotient(k.sub(a, cube), k.add(k.add(cube, cube), a)), t)
    ordinary = k.binary("and", is_above(a, 0.0), is_below(a, inf))
    return k.select(ordinary, with_sign(t, x), x)


def pow(x: Expr, y: Expr) -> Expr:
    """x^y as C's pow. A literal y of -2 to 4 or +-1/2, in f32 of -16 to 16, takes the direct way."""
    if isinstance(y, Lit) and y.value in (0.0, 1.0, 2.0, 3.0, 4.0):
        return power_by_squaring(x, int(y.value))
    if isinstance(y, Lit) and y.value in (-1.0, -2.0):
        return power_by_squaring(quotient(lit(1.0, x), x), -int(y.value))
    if isinstance(y, Lit) and y.value == -0.5:
        return quotient(lit(1.0, x), pow(x, lit(0.5, x)))
    if isinstance(y, Lit) and y.value == 0.5:
        # pow(-0, 1/2) = +0 and pow(-inf, 1/2) = +inf, unlike sqrt
        return k.select(k.binary("eq", x, lit(-inf, x)), lit(inf, x), root(plus(x, 0.0)))
    if x.dtype == f32:
        a, b = k.cast(x, f64), k.cast(y, f64)
        if isinstance(y, Lit) and abs(y.value) <= 16 and y.value == int(y.value):
            power = power_by_squaring(a, abs(int(y.value)))
            return k.cast(power if y.value > 0 else quotient(lit(1.0, a), power), f32)
        near, usual = _power_near(x, y)
        far = _signed_power(a, b, exp(k.mul(b, log(absolute(a)))))
        return k.select_uniform(usual, near, k.cast(far, f32))
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
    exponent_log = k.fma(n, ln2, k.lookup(c.LOG_HIGH, place, f32))
    low = k.fma(n, ln2_low, k.lookup(c.LOG_LOW, place, f32))
    half = scaled_by(r, -0.5)
    near = k.fma(half, r, r)
    near_low = k.fma(half, r, k.sub(r, near))
    high = k.add(exponent_log, near)
    high_low = k.sub(near, k.sub(high, exponent_log))
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
    shifted, _, f, f_low = sixteenths(p, p_low)
    f = k.add(f, f_low)
    e = k.fma(k.mul(f, f), polynomial(f, c.EXP_TABLE_TAIL), f)
    place, exponent = sixteenths_apart(shifted)
    unit = k.lookup(c.EXP2_HIGH, place, f32)
    value = k.add(unit, k.fma(unit, e, k.lookup(c.EXP2_LOW, place, f32)))
    value = k.bitcast(k.add(k.bitcast(value, i32), exponent), f32)
    return value, k.binary("and", normal, is_below(absolute(p), 87.0))


def _signed_power(x: Expr, y: Expr, magnitude: Expr) -> Expr:
    """x^y from |x|^y: the sign, and the cases that logarithms miss."""
    is_integer = k.binary("eq", k.unary("trunc", y), y)
    halved = scaled_by(y, 0.5)
    odd = k.binary("and", is_integer, k.binary("ne", k.unary("trunc", halved), halved))
    negative = k.binary("lt", k.bitcast(x, i64), bits_lit(0, x))
    zero = k.binary("eq", x, lit(0.0, x))
    a = absolute(x)
    infinite_y = k.binary("eq", absolute(y), lit(inf, y))
    unit = k.binary("eq", a, lit(1.0, x))
    one = lit(1.0, x)
    value = k.select(k.binary("and", unit, infinite_y), one, magnitude)
    value = k.select(k.binary("and", negative, odd), negated(value), value)
    defined = k.binary("or", is_integer, k.binary("or", zero, k.binary("eq", a, lit(inf, x))))
    undefined = k.binary("and", is_below(x, 0.0), k.unary("not", defined))
    value = k.select(undefined, lit(nan, x), value)
    trivial = k.binary("or", k.binary("eq", y, lit(0.0, y)), k.binary("eq", x, one))
    return k.select(trivial, one, value)


def _log_pair(a: Expr) -> tuple[Expr, Expr]:
    """log(a) as an unevaluated sum with about 2^-68 relative error, for 0 < a < inf."""
    n, f = split(a)
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
    ordinary = k.binary("and", is_above(a, 0.0), is_below(a, inf))
    plain = k.select(k.binary("eq", a, lit(0.0, a)), lit(-inf, a), a)
    high = k.select(ordinary, high, plain)
    p = k.mul(y, high)
    p_low = k.fma(y, low, k.fma(y, high, negated(p)))
    e = exp(p)
    inside = k.binary("and", is_below(absolute(p), inf), is_below(e, inf))
    return k.select(inside, k.fma(e, p_low, e), e)
