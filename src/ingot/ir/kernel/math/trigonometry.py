"""Circular functions and their inverses."""

from __future__ import annotations

from math import inf

import numpy as np

from ingot.ir import kernel as k
from ingot.ir.kernel import Expr
from ingot.ir.kernel.math import coefficients as c
from ingot.ir.kernel.math.words import (
    F32,
    F64,
    absolute,
    bits_lit,
    is_above,
    is_below,
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
from ingot.ir.types import f32, f64, i32, i64, u32

# 17 angles in tables whose length is a power of two
_ANGLES, _ANGLES_LOW = ((*angles, *((0.0,) * 15)) for angles in (c.ATAN_HIGH, c.ATAN_LOW))


def _reduce_f32(x: Expr) -> tuple[Expr, Expr]:
    """(quadrant, r) of an f32: x = quadrant * pi/2 + r, in f64; exact enough on the whole range of f32.

    24 significant bits spread over at most two of the windows of 26 bits that lie above 2^24. Each window's integer
    times (its unit modulo 2 pi) is exact in f64, and so is their sum.
    """
    rest = k.cast(x, f64)
    product, low = lit(0.0, rest), lit(0.0, rest)
    for unit, high_part, low_part in c.TURNS:
        count = k.unary("trunc", scaled_by(rest, 1 / unit))
        rest = k.fma(count, lit(-unit, rest), rest)
        product = k.fma(count, lit(high_part, rest), product)
        low = k.fma(count, lit(low_part, rest), low)
    total = k.add(rest, product)
    shifted = k.fma(k.add(total, low), lit(c.TWO_OVER_PI, rest), lit(F64.shift, rest))
    j = plus(shifted, -F64.shift)
    r = k.fma(j, lit(-c.HALF_PI[1], rest), k.fma(j, lit(-c.HALF_PI[0], rest), total))
    return k.bitcast(shifted, i64), k.add(r, low)


def _near_f32(x: Expr) -> tuple[Expr, Expr, Expr]:
    """(quadrant, sine, cosine) of an f32 up to 2^15 in f32, pi/2 in three parts: what the first leaves is exact, and
    the last counts for sines of small r only."""
    high, middle, low = c.HALF_PI_F32
    shifted = k.fma(x, lit(c.TWO_OVER_PI, x), lit(F32.shift, x))
    j = plus(shifted, -F32.shift)
    r = k.fma(j, lit(-middle, x), k.fma(j, lit(-high, x), x))
    z = k.mul(r, r)
    sine = k.add(r, k.fma(k.mul(z, r), polynomial(z, c.SIN_F32), scaled_by(j, -low)))
    return k.bitcast(shifted, i32), sine, polynomial(z, (1.0, -0.5, *c.COS_F32))


def _reduce_f64(x: Expr) -> tuple[Expr, Expr, Expr]:
    """(quadrant, r, tail): x = quadrant * pi/2 + r + tail for |x| <= 2^51."""
    shifted = k.fma(x, lit(c.TWO_OVER_PI, x), lit(F64.shift, x))
    j = plus(shifted, -F64.shift)
    first = k.fma(j, lit(-c.HALF_PI[0], x), x)  # exact: a multiple of 2^-52 below 2
    product = scaled_by(j, c.HALF_PI[1])
    product_low = k.fma(j, lit(c.HALF_PI[1], x), negated(product))
    r = k.sub(first, product)
    lost = k.sub(k.sub(first, r), product)
    return k.bitcast(shifted, i64), r, k.fma(j, lit(-c.HALF_PI[2], x), k.sub(lost, product_low))


def _reduce_far_f64(x: Expr) -> tuple[Expr, Expr, Expr]:
    """(quadrant, r, tail) as `_reduce_f64`, for |x| >= 2^51 (Payne and Hanek 1983).

    x = m 2^(16 q) with m below 2^69 and, unless q is 0, whole: the multiples of 4 in (2^(16 q) 2 / pi) count for
    nothing. Of the products with what remains of it, in four floats, only the last is not exact.
    """
    exponent = k.binary("and", k.binary("lshr", k.bitcast(x, i64), bits_lit(52, x)), bits_lit(0x7FF, x))
    q = k.binary("lshr", k.binary("max", k.sub(exponent, bits_lit(1075, x)), bits_lit(0, x)), bits_lit(4, x))
    scale_exponent = k.sub(bits_lit(1023, x), k.binary("shl", q, bits_lit(4, x)))
    m = k.mul(x, k.bitcast(k.binary("shl", scale_exponent, bits_lit(52, x)), f64))
    (p0, e0), (p1, e1), (p2, e2) = (two_product(m, k.lookup(t, q, f64)) for t in c.TURNS_FAR[:3])
    p3 = k.mul(m, k.lookup(c.TURNS_FAR[3], q, f64))
    total, low = two_sum(_modulo_4(p0), _modulo_4(e0))
    total, lower = two_sum(total, _modulo_4(p1))
    shifted = plus(total, F64.shift)
    total = k.sub(total, plus(shifted, -F64.shift))
    rest = k.add(e2, p3)
    for term in (e1, p2, low, lower):
        total, lost = two_sum(total, term)
        rest = k.add(rest, lost)
    total, rest = two_sum(total, rest)
    r, tail = two_product(total, lit(c.HALF_PI[0], x))
    tail = k.fma(total, lit(c.HALF_PI[1], x), k.fma(rest, lit(c.HALF_PI[0], x), tail))
    return k.bitcast(shifted, i64), r, tail


def _modulo_4(x: Expr) -> Expr:
    return k.fma(k.unary("trunc", scaled_by(x, 0.25)), lit(-4.0, x), x)


def _sine_and_cosine_f64(r: Expr, tail: Expr) -> tuple[Expr, Expr]:
    sine, cosine = _sine_and_cosine(r, False)
    half = k.fma(k.mul(r, r), lit(-0.5, r), lit(1.0, r))
    return k.fma(tail, half, sine), k.fma(negated(tail), r, cosine)


def _sine_and_cosine(r: Expr, narrow: bool) -> tuple[Expr, Expr]:
    """For |r| <= pi/4. `narrow`: to f32's precision."""
    z = k.mul(r, r)
    sine = k.fma(k.mul(z, r), polynomial(z, c.SIN_F32 if narrow else c.SIN_F64), r)
    quartic = k.mul(k.mul(z, z), polynomial(z, c.COS_F32 if narrow else c.COS_F64))
    half = scaled_by(z, 0.5)
    one = lit(1.0, r)
    rounded = k.sub(one, half)
    cosine = k.add(rounded, k.add(k.sub(k.sub(one, rounded), half), quartic))
    return sine, cosine


def _bit(quadrant: Expr, mask: int) -> Expr:
    zero = k.lit(0, quadrant.dtype, quadrant.lanes)
    return k.binary("ne", k.binary("and", quadrant, k.lit(mask, quadrant.dtype, quadrant.lanes)), zero)


def _circular(x: Expr, quarter: int) -> Expr:
    """sin(x + quarter * pi/2)."""
    if x.dtype == f32:
        quadrant, wide = _reduce_f32(x)
        far = _by_quadrant(k.cast(quadrant, i32), *_sine_and_cosine(k.cast(wide, f32), True), quarter)
        near = _by_quadrant(*_near_f32(x), quarter)
        value = k.select_uniform(k.binary("le", absolute(x), lit(2.0**15, x)), near, far)
    else:
        near, far = (
            _by_quadrant(quadrant, *_sine_and_cosine_f64(r, tail), quarter)
            for quadrant, r, tail in (_reduce_f64(x), _reduce_far_f64(x))
        )
        value = k.select_uniform(_is_near_f64(x), near, far)
    if not quarter:
        value = k.select(is_below(absolute(x), 2.0**-13 if x.dtype == f32 else 2.0**-28), x, value)
    return value


def _is_near_f64(x: Expr) -> Expr:
    return k.binary("le", absolute(x), lit(2.0**51, x))


def _by_quadrant(quadrant: Expr, sine: Expr, cosine: Expr, quarter: int) -> Expr:
    if quarter:
        quadrant = k.add(quadrant, k.lit(quarter, quadrant.dtype, quadrant.lanes))
    value = k.select(_bit(quadrant, 1), cosine, sine)
    return k.select(_bit(quadrant, 2), negated(value), value)


def sin(x: Expr) -> Expr:
    return _circular(x, 0)


def cos(x: Expr) -> Expr:
    return _circular(x, 1)


def tan(x: Expr) -> Expr:
    """sin / cos or -cos / sin by quadrant, in f64."""
    if x.dtype == f32:
        quadrant, r = _reduce_f32(x)
        value = k.cast(_tangent(quadrant, *_sine_and_cosine(r, True)), f32)
        return k.select(is_below(absolute(x), 2.0**-13), x, value)
    near, far = (
        _tangent(quadrant, *_sine_and_cosine_f64(r, tail)) for quadrant, r, tail in (_reduce_f64(x), _reduce_far_f64(x))
    )
    return k.select(is_below(absolute(x), 2.0**-28), x, k.select_uniform(_is_near_f64(x), near, far))


def _tangent(quadrant: Expr, sine: Expr, cosine: Expr) -> Expr:
    odd = _bit(quadrant, 1)
    return quotient(k.select(odd, negated(cosine), sine), k.select(odd, sine, cosine))


def _atan_core(top: Expr, bottom: Expr) -> Expr:
    """atan(top / bottom) for 0 <= top, 0 <= bottom, with one division: brought below tan(pi/8)."""
    dtype = top.dtype
    steep = k.binary("gt", top, scaled_by(bottom, 2.414213562373095))
    middle = k.binary("gt", top, scaled_by(bottom, 0.41421356237309503))
    upper = k.select(steep, negated(bottom), k.select(middle, k.sub(top, bottom), top))
    lower = k.select(steep, top, k.select(middle, k.add(top, bottom), bottom))
    t = quotient(upper, lower)
    z = k.mul(t, t)
    series = k.fma(k.mul(z, t), polynomial(z, table(t, c.ATAN_F32, c.ATAN_F64)), t)
    half, quarter = (c.HALF_PI_F32, c.QUARTER_PI_F32) if dtype == f32 else (c.HALF_PI, c.QUARTER_PI)
    zero = lit(0.0, top)
    high = k.select(steep, lit(half[0], top), k.select(middle, lit(quarter[0], top), zero))
    low = k.select(steep, lit(half[1], top), k.select(middle, lit(quarter[1], top), zero))
    return k.add(high, k.add(series, low))


def atan(x: Expr) -> Expr:
    return with_sign(_atan_core(absolute(x), lit(1.0, x)), x)


def atan2(y: Expr, x: Expr) -> Expr:
    """The angle of (x, y). f32 near the limits in f64; f64 operands are scaled off the limits."""
    if y.dtype == f32:
        near, usual = _atan2_near(y, x)
        return k.select_uniform(usual, near, k.cast(atan2(k.cast(y, f64), k.cast(x, f64)), f32))
    a, b = absolute(y), absolute(x)
    both_infinite = k.binary("and", k.binary("eq", a, lit(inf, a)), k.binary("eq", b, lit(inf, b)))
    a, b = k.select(both_infinite, lit(1.0, a), a), k.select(both_infinite, lit(1.0, b), b)
    larger = k.select(k.binary("gt", a, b), a, b)
    one = lit(1.0, a)
    up_or_down = k.select(is_below(larger, 2.0**-500), lit(2.0**500, a), one)
    scale = k.select(is_above(larger, 2.0**500), lit(2.0**-200, a), up_or_down)
    a, b = k.mul(a, scale), k.mul(b, scale)
    origin = k.binary("and", k.binary("eq", a, lit(0.0, a)), k.binary("eq", b, lit(0.0, b)))
    angle = _in_quadrant(_atan_core(a, k.select(origin, one, b)), y, x)
    # a NaN x takes part in nothing but b
    return k.select(k.binary("ne", x, x), x, angle)


def _atan2_near(y: Expr, x: Expr) -> tuple[Expr, Expr]:
    """(the angle of (x, y), where that holds) of f32: the larger one from 2^-80 to 2^40, the other 0 or from 2^-80.

    With c the multiple of 1/16 next to low / high: atan(c) + atan(t), t = (low - c high) / (high + c low), |t| <= 1/32.
    Tables and multiples of pi/2 are in two parts, of which the first add up exactly; t and its sum with them keep what
    rounding cuts off.
    """

    def bits(value: float) -> Expr:
        return k.lit(int(np.float32(value).view(np.uint32)), u32, x.lanes)

    a, b = (k.bitcast(absolute(v), u32) for v in (y, x))
    steep = k.binary("gt", a, b)
    is_left = k.binary("lt", k.bitcast(x, i32), bits_lit(0, x))
    # as integers, so that NaN is the largest; 0 - 1 is larger still
    large, small = k.binary("max", a, b), k.binary("min", a, b)
    inside = k.binary("le", k.sub(large, bits(2.0**-80)), k.sub(bits(2.0**40), bits(2.0**-80)))
    one = k.lit(1, u32, x.lanes)
    usual = k.binary("and", inside, k.binary("ge", k.sub(small, one), k.sub(bits(2.0**-80), one)))
    high, low = k.bitcast(large, f32), k.bitcast(small, f32)
    shifted = plus(quotient(low, high), F32.shift / 16)
    place, step = k.bitcast(shifted, i32), plus(shifted, -F32.shift / 16)
    top, bottom = k.fma(negated(step), high, low), k.fma(step, low, high)
    inverse = quotient(lit(1.0, x), bottom)
    t = k.mul(top, inverse)
    rest = k.fma(negated(t), bottom, top)
    rest = k.fma(negated(t), k.fma(step, low, k.sub(high, bottom)), rest)
    z = k.mul(t, t)
    little = k.fma(rest, inverse, k.lookup(_ANGLES_LOW, place, f32))
    little = k.fma(k.mul(z, t), polynomial(z, c.ATAN_TABLE_TAIL), little)
    base, base_low = (
        k.select(steep, lit(half, x), k.select(is_left, lit(2 * half, x), lit(0.0, x))) for half in c.HALF_PI_SHORT
    )
    angle_sign = k.select(k.binary("xor", steep, is_left), lit(-1.0, x), lit(1.0, x))
    base = k.fma(angle_sign, k.lookup(_ANGLES, place, f32), base)
    angle = k.fma(angle_sign, t, base)
    lost = k.fma(angle_sign, t, k.sub(base, angle))
    angle = k.add(angle, k.add(lost, k.fma(angle_sign, little, base_low)))
    return with_sign(angle, y), usual


def _in_quadrant(angle: Expr, y: Expr, x: Expr) -> Expr:
    """The angle of (x, y) from that of (|x|, |y|)."""
    negative = k.binary("lt", k.bitcast(x, i64), bits_lit(0, x))
    supplement = k.add(k.sub(lit(c.PI[0], angle), angle), lit(c.PI[1], angle))
    return with_sign(k.select(negative, supplement, angle), y)


def _asin_parts(x: Expr) -> tuple[Expr, Expr, Expr]:
    """(a, small, s): small: a <= 1/2; s = asin(a) when small, else asin(sqrt((1 - a) / 2))."""
    a = absolute(x)
    small = k.binary("le", a, lit(0.5, x))
    z = k.select(small, k.mul(a, a), scaled_by(k.sub(lit(1.0, x), a), 0.5))
    base = k.select(small, a, root(z))
    s = k.fma(k.mul(z, base), polynomial(z, table(x, c.ASIN_F32, c.ASIN_F64)), base)
    return a, small, s


def asin(x: Expr) -> Expr:
    """pi/2 - 2 asin(sqrt((1 - a) / 2)) beyond 1/2; NaN beyond 1."""
    _, small, s = _asin_parts(x)
    half = c.HALF_PI_F32 if x.dtype == f32 else c.HALF_PI
    large = k.sub(lit(half[0], x), k.sub(k.add(s, s), lit(half[1], x)))
    return with_sign(k.select(small, s, large), x)


def acos(x: Expr) -> Expr:
    """pi/2 - asin(x); 2 asin(sqrt((1 - a) / 2)) beyond 1/2, from pi on the negative side."""
    _, small, s = _asin_parts(x)
    half_pi, pi = (c.HALF_PI_F32, c.PI_F32) if x.dtype == f32 else (c.HALF_PI, c.PI)
    near = k.sub(lit(half_pi[0], x), k.sub(with_sign(s, x), lit(half_pi[1], x)))
    twice = k.add(s, s)
    far = k.select(is_below(x, 0.0), k.sub(lit(pi[0], x), k.sub(twice, lit(pi[1], x))), twice)
    return k.select(small, near, far)
