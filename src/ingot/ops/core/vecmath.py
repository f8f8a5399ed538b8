"""Vector math: elementary functions as kernel expressions on f32 and f64, any lanes, no branches, no calls.

Each is a range reduction and a polynomial or rational function; the coefficients come from tools/vecmath_fit.py. Error
bounds are measured by tests/ops/test_vecmath.py and listed in docs/ops.md. NaN, infinities, zeros with their sign and
subnormals are handled as IEEE 754 and C have them, unless stated.

The expressions are graphs: subexpressions are shared objects, to be evaluated once each.

Sources: argument reduction after Cody and Waite, "Software Manual for the Elementary Functions" (1980); the shift trick
that turns rounding into an addition after Muller et al., "Handbook of Floating-Point Arithmetic" (2018), section 10.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, nan

from ingot.ir import kernel as k
from ingot.ir.kernel import Expr, Lit
from ingot.ir.types import DType, f32, f64, i32, i64
from ingot.ops.core import coefficients as c
from ingot.ops.core.scalars import power_by_squaring


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


# --- small words


def _lit(value: float, like: Expr) -> Lit:
    return k.lit(value, like.dtype, like.lanes)


def _int(value: int, like: Expr) -> Lit:
    return k.lit(value, format_of(like).bits, like.lanes)


def _abs(x: Expr) -> Expr:
    return k.unary("abs", x)


def _neg(x: Expr) -> Expr:
    return k.unary("neg", x)


def _sqrt(x: Expr) -> Expr:
    return k.unary("sqrt", x)


def _div(a: Expr, b: Expr) -> Expr:
    return k.binary("div", a, b)


def _scale(x: Expr, value: float) -> Expr:
    return k.mul(x, _lit(value, x))


def _plus(x: Expr, value: float) -> Expr:
    return k.add(x, _lit(value, x))


def _above(x: Expr, value: float) -> Expr:
    return k.binary("gt", x, _lit(value, x))


def _below(x: Expr, value: float) -> Expr:
    return k.binary("lt", x, _lit(value, x))


def _at_most(x: Expr, value: float) -> Expr:
    """min(x, value), NaN kept: one machine instruction where the minimum returns its second operand on NaN."""
    return k.select(_above(x, value), _lit(value, x), x)


def _at_least(x: Expr, value: float) -> Expr:
    return k.select(_below(x, value), _lit(value, x), x)


def _with_sign(magnitude: Expr, x: Expr) -> Expr:
    return k.binary("copysign", magnitude, x)


def _polynomial(x: Expr, coefficients: Sequence[float]) -> Expr:
    """Horner's rule; coefficients lowest first."""
    out: Expr = _lit(coefficients[-1], x)
    for value in reversed(coefficients[:-1]):
        out = k.fma(out, x, _lit(value, x))
    return out


def _tables(x: Expr, narrow: Sequence[float], wide: Sequence[float]) -> Sequence[float]:
    return narrow if x.dtype == f32 else wide


# --- exponentials


def _power_of_two(shifted: Expr) -> Expr:
    """2^n where the low bits of the float `shifted` hold n + bias: they move into the exponent's place."""
    f = format_of(shifted)
    return k.bitcast(k.binary("shl", k.bitcast(shifted, f.bits), _int(f.fraction, shifted)), shifted.dtype)


def exp(x: Expr, nonpositive: bool = False) -> Expr:
    """e^x. `nonpositive`: x is known to be <= 0 (or NaN), as in a softmax, which saves an instruction.

    x = 2 m ln2 + r, |r| <= ln2: e^x = (e^r * 2^m) * 2^m. Halving the exponent keeps both factors normal, so that
    overflow and gradual underflow come from the multiplications, without tests.
    """
    f = format_of(x)
    x = _at_least(x, f.exp_range[0])
    if not nonpositive:
        x = _at_most(x, f.exp_range[1])
    shifted = k.fma(x, _lit(f.half_log2e, x), _lit(f.shift + f.bias, x))
    m = _plus(shifted, -(f.shift + f.bias))
    r = k.fma(m, _lit(-2 * f.ln2[1], x), k.fma(m, _lit(-2 * f.ln2[0], x), x))
    power = _power_of_two(shifted)
    value = _polynomial(r, (1.0, 1.0, *_tables(x, c.EXP_F32, c.EXP_F64)))
    return k.mul(k.mul(value, power), power)


def expm1(x: Expr) -> Expr:
    """e^x - 1 = 2 (2^(n-1) (e^r - 1) + 2^(n-1) - 1/2) with x = n ln2 + r; the halving keeps n = 128 in range."""
    f = format_of(x)
    clamped = _at_most(_at_least(x, f.expm1_range[0]), f.expm1_range[1])
    bias = f.shift + f.bias - 1
    shifted = k.fma(clamped, _lit(2 * f.half_log2e, x), _lit(bias, x))
    n = _plus(shifted, -bias)
    r = k.fma(n, _lit(-f.ln2[1], x), k.fma(n, _lit(-f.ln2[0], x), clamped))
    power = _power_of_two(shifted)
    tail = _polynomial(r, _tables(x, c.EXPM1_F32, c.EXPM1_F64))
    small = k.fma(k.mul(r, r), tail, r)
    half = k.fma(power, small, _plus(power, -0.5))
    # below, x itself is the nearest float; this also keeps -0 and subnormals
    return k.select(_below(_abs(x), 2.0 ** -(f.fraction + 3)), x, k.add(half, half))


def logistic(x: Expr) -> Expr:
    """With e = e^-|x| and q = e / (1 + e): e - e q for negative x, else 1 - q. There the error of q hardly counts."""
    e = exp(_neg(_abs(x)), nonpositive=True)
    q = _div(e, _plus(e, 1.0))
    top = k.select(_below(x, 0.0), e, _lit(1.0, x))
    return k.fma(_neg(top), q, top)


def tanh(x: Expr) -> Expr:
    """t / (t + 2) with t = e^(2|x|) - 1 = 2^n (e^(2r) - 1) + 2^n - 1, |x| = n ln2 / 2 + r; 1 from the clamp on."""
    if x.dtype == f64:
        t = expm1(_scale(_abs(x), -2.0))
        return _with_sign(_div(t, _plus(t, 2.0)), x)
    a = _at_most(_abs(x), 9.1)
    bias = F32.shift + F32.bias
    shifted = k.fma(a, _lit(4 * F32.half_log2e, x), _lit(bias, x))
    n = _plus(shifted, -bias)
    r = k.fma(n, _lit(-F32.ln2[1] / 2, x), k.fma(n, _lit(-F32.ln2[0] / 2, x), a))
    power = _power_of_two(shifted)
    small = k.fma(k.mul(r, r), _polynomial(r, c.TANH_F32), k.add(r, r))
    t = k.fma(power, small, _plus(power, -1.0))
    return _with_sign(_div(t, _plus(t, 2.0)), x)


def erf(x: Expr) -> Expr:
    """A polynomial near 0; beyond, f32: 1 - 2^Q(|x|) with a polynomial Q = log2(erfc), f64: 1 - e^(-x^2) g(|x|)."""
    if x.dtype == f32:
        a = _at_most(_abs(x), 4.0)
        z = k.mul(x, x)
        small = k.fma(x, _polynomial(z, c.ERF_SMALL_F32), x)
        exponent = _polynomial(a, c.ERFC_LOG2_F32)
        bias = F32.shift + F32.bias
        shifted = _plus(exponent, bias)
        r = k.sub(exponent, _plus(shifted, -bias))
        large = k.fma(_neg(_polynomial(r, c.EXP2_F32)), _power_of_two(shifted), _lit(1.0, x))
        return k.select(_below(a, c.ERF_SPLIT), small, _with_sign(large, x))
    a = _at_most(_abs(x), 6.0)
    z = k.mul(a, a)
    small = k.fma(x, _polynomial(z, c.ERF_SMALL_F64), x)
    g = _polynomial(_div(_plus(a, -2.0), _plus(a, 2.0)), c.ERFC_F64)
    large = k.fma(_neg(exp(_neg(z), nonpositive=True)), g, _lit(1.0, x))
    return k.select(_below(a, 1.0), small, _with_sign(large, x))


def sinh(x: Expr) -> Expr:
    """(t + t / (t + 1)) / 2 with t = e^|x| - 1; f64 beyond 22: e^(|x|/2) squared, which overflows only when it must."""
    if x.dtype == f32:
        return k.cast(sinh(k.cast(x, f64)), f32)
    a = _abs(x)
    t = expm1(a)
    small = _scale(k.add(t, _div(t, _plus(t, 1.0))), 0.5)
    half = exp(_scale(a, 0.5))
    big = k.mul(_scale(half, 0.5), half)
    value = k.select(_above(a, 22.0), big, small)
    # 0.5 * (t + t) would round subnormals twice
    return _with_sign(k.select(_below(a, 2.0**-28), a, value), x)


def cosh(x: Expr) -> Expr:
    """e/2 + 1/(2e) with e = e^(|x|/2) squared."""
    if x.dtype == f32:
        return k.cast(cosh(k.cast(x, f64)), f32)
    half = exp(_scale(_abs(x), 0.5))
    e = k.mul(_scale(half, 0.5), half)
    return k.add(e, _div(_lit(0.25, x), e))


# --- logarithms


def _split(x: Expr) -> tuple[Expr, Expr]:
    """(n, f) with x = 2^n (1 + f), sqrt(1/2) <= 1 + f < sqrt(2), for finite x > 0."""
    f = format_of(x)
    subnormal = _below(x, f.tiny)
    up = f.fraction + 2
    scaled = k.select(subnormal, _scale(x, 2.0**up), x)
    bits = k.bitcast(scaled, f.bits)
    root_half = 0x3F3504F3 if x.dtype == f32 else 0x3FE6A09E667F3BCD
    n = k.binary("ashr", k.sub(bits, _int(root_half, x)), _int(f.fraction, x))
    mantissa = k.bitcast(k.sub(bits, k.binary("shl", n, _int(f.fraction, x))), x.dtype)
    exponent = k.sub(k.cast(n, x.dtype), k.select(subnormal, _lit(float(up), x), _lit(0.0, x)))
    return exponent, _plus(mantissa, -1.0)


def _log_domain(x: Expr, value: Expr) -> Expr:
    """`value` for 0 < x < inf; -inf at 0, NaN below, inf at inf."""
    edge = k.select(k.binary("eq", x, _lit(0.0, x)), _lit(-inf, x), _lit(nan, x))
    return k.select(_below(x, inf), k.select(_above(x, 0.0), value, edge), x)


def log(x: Expr) -> Expr:
    """n ln2 + log(1 + f)."""
    n, f = _split(x)
    hi, lo = (_lit(v, x) for v in format_of(x).ln2)
    if x.dtype == f32:
        z = k.mul(f, f)
        rest = k.fma(k.mul(z, f), _polynomial(f, c.LOG_F32), k.mul(n, lo))
        value = k.fma(n, hi, k.add(f, k.fma(z, _lit(-0.5, x), rest)))
        return _log_domain(x, value)
    s = _div(f, _plus(f, 2.0))
    z = k.mul(s, s)
    half = k.mul(_scale(f, 0.5), f)
    rest = k.mul(_scale(z, 2.0), _polynomial(z, c.LOG_F64))
    inner = k.fma(s, k.add(half, rest), k.mul(n, lo))
    value = k.fma(n, hi, k.sub(f, k.sub(half, inner)))
    return _log_domain(x, value)


def log1p(x: Expr) -> Expr:
    """log(u) + e / u, where 1 + x = u + e exactly."""
    if x.dtype == f32:
        wide = log1p(k.cast(x, f64))
        return k.select(_below(_abs(x), 2.0**-26), x, k.cast(wide, f32))
    u = _plus(x, 1.0)
    b = _plus(u, -1.0)
    e = k.add(k.sub(x, b), k.sub(_lit(1.0, x), k.sub(u, b)))
    inside = k.binary("and", _above(u, 0.0), _below(u, inf))
    value = k.add(log(u), k.select(inside, _div(e, u), _lit(0.0, x)))
    return k.select(_below(_abs(x), 2.0**-55), x, value)


def asinh(x: Expr) -> Expr:
    """log1p(a + a^2 / (1 + sqrt(1 + a^2))), a = |x|; log(a) + log 2 where a^2 overflows."""
    if x.dtype == f32:
        return k.cast(asinh(k.cast(x, f64)), f32)
    a = _abs(x)
    huge = _above(a, 2.0**500)
    z = k.mul(a, a)
    argument = k.add(a, _div(z, _plus(_sqrt(_plus(z, 1.0)), 1.0)))
    value = log1p(k.select(huge, a, argument))
    value = k.select(huge, _plus(value, F64.ln2[0]), value)
    return _with_sign(value, x)


def acosh(x: Expr) -> Expr:
    """log1p(t + sqrt(2 t + t^2)), t = x - 1; NaN below 1."""
    if x.dtype == f32:
        return k.cast(acosh(k.cast(x, f64)), f32)
    t = _plus(x, -1.0)
    huge = _above(x, 2.0**500)
    value = log1p(k.select(huge, x, k.add(t, _sqrt(k.mul(t, _plus(t, 2.0))))))
    value = k.select(huge, _plus(value, F64.ln2[0]), value)
    return k.select(_below(x, 1.0), _lit(nan, x), value)


def atanh(x: Expr) -> Expr:
    """log1p(2a / (1 - a)) / 2, a = |x|; NaN beyond 1."""
    if x.dtype == f32:
        return k.cast(atanh(k.cast(x, f64)), f32)
    a = _abs(x)
    value = _scale(log1p(_div(k.add(a, a), k.sub(_lit(1.0, x), a))), 0.5)
    return _with_sign(k.select(_below(a, 2.0**-28), a, value), x)


# --- trigonometry


def _reduce_f32(x: Expr) -> tuple[Expr, Expr]:
    """(quadrant, r) of an f32: x = quadrant * pi/2 + r, in f64; exact enough on the whole range of f32.

    24 significant bits spread over at most two of the windows of 26 bits that lie above 2^24. Each window's integer
    times (its unit modulo 2 pi) is exact in f64, and so is their sum.
    """
    rest = k.cast(x, f64)
    turned, low = _lit(0.0, rest), _lit(0.0, rest)
    for unit, high_part, low_part in c.TURNS:
        count = k.unary("trunc", _scale(rest, 1 / unit))
        rest = k.fma(count, _lit(-unit, rest), rest)
        turned = k.fma(count, _lit(high_part, rest), turned)
        low = k.fma(count, _lit(low_part, rest), low)
    total = k.add(rest, turned)
    shifted = k.fma(k.add(total, low), _lit(c.TWO_OVER_PI, rest), _lit(F64.shift, rest))
    j = _plus(shifted, -F64.shift)
    r = k.fma(j, _lit(-c.HALF_PI[1], rest), k.fma(j, _lit(-c.HALF_PI[0], rest), total))
    return k.bitcast(shifted, i64), k.add(r, low)


def _reduce_f64(x: Expr) -> tuple[Expr, Expr, Expr]:
    """(quadrant, r, tail): x = quadrant * pi/2 + r + tail for |x| <= 2^51."""
    shifted = k.fma(x, _lit(c.TWO_OVER_PI, x), _lit(F64.shift, x))
    j = _plus(shifted, -F64.shift)
    first = k.fma(j, _lit(-c.HALF_PI[0], x), x)  # exact: a multiple of 2^-52 below 2
    product = _scale(j, c.HALF_PI[1])
    product_low = k.fma(j, _lit(c.HALF_PI[1], x), _neg(product))
    r = k.sub(first, product)
    lost = k.sub(k.sub(first, r), product)
    return k.bitcast(shifted, i64), r, k.fma(j, _lit(-c.HALF_PI[2], x), k.sub(lost, product_low))


def _sine_and_cosine(r: Expr, narrow: bool) -> tuple[Expr, Expr]:
    """For |r| <= pi/4. `narrow`: to f32's precision."""
    z = k.mul(r, r)
    sine = k.fma(k.mul(z, r), _polynomial(z, c.SIN_F32 if narrow else c.SIN_F64), r)
    quartic = k.mul(k.mul(z, z), _polynomial(z, c.COS_F32 if narrow else c.COS_F64))
    half = _scale(z, 0.5)
    one = _lit(1.0, r)
    rounded = k.sub(one, half)
    cosine = k.add(rounded, k.add(k.sub(k.sub(one, rounded), half), quartic))
    return sine, cosine


def _in_domain(x: Expr, value: Expr) -> Expr:
    """f64: NaN beyond |x| = 2^51, where the reduction would be wrong."""
    return k.select(k.binary("le", _abs(x), _lit(2.0**51, x)), value, _lit(nan, x))


def _bit(quadrant: Expr, mask: int) -> Expr:
    zero = k.lit(0, quadrant.dtype, quadrant.lanes)
    return k.binary("ne", k.binary("and", quadrant, k.lit(mask, quadrant.dtype, quadrant.lanes)), zero)


def _circular(x: Expr, quarter: int) -> Expr:
    """sin(x + quarter * pi/2)."""
    if x.dtype == f32:
        quadrant, wide = _reduce_f32(x)
        quadrant, r = k.cast(quadrant, i32), k.cast(wide, f32)
        sine, cosine = _sine_and_cosine(r, True)
    else:
        quadrant, r, tail = _reduce_f64(x)
        sine, cosine = _sine_and_cosine(r, False)
        half = k.fma(k.mul(r, r), _lit(-0.5, x), _lit(1.0, x))
        sine, cosine = k.fma(tail, half, sine), k.fma(_neg(tail), r, cosine)
    if quarter:
        quadrant = k.add(quadrant, k.lit(quarter, quadrant.dtype, quadrant.lanes))
    value = k.select(_bit(quadrant, 1), cosine, sine)
    value = k.select(_bit(quadrant, 2), _neg(value), value)
    if not quarter:
        value = k.select(_below(_abs(x), 2.0**-13 if x.dtype == f32 else 2.0**-28), x, value)
    return value if x.dtype == f32 else _in_domain(x, value)


def sin(x: Expr) -> Expr:
    """f32: every argument; f64: |x| <= 2^51, NaN beyond."""
    return _circular(x, 0)


def cos(x: Expr) -> Expr:
    """f32: every argument; f64: |x| <= 2^51, NaN beyond."""
    return _circular(x, 1)


def tan(x: Expr) -> Expr:
    """sin / cos or -cos / sin by quadrant, in f64. f64: |x| <= 2^51, NaN beyond."""
    narrow = x.dtype == f32
    if narrow:
        quadrant, r = _reduce_f32(x)
        sine, cosine = _sine_and_cosine(r, True)
    else:
        quadrant, r, tail = _reduce_f64(x)
        sine, cosine = _sine_and_cosine(r, False)
        half = k.fma(k.mul(r, r), _lit(-0.5, x), _lit(1.0, x))
        sine, cosine = k.fma(tail, half, sine), k.fma(_neg(tail), r, cosine)
    odd = _bit(quadrant, 1)
    value = _div(k.select(odd, _neg(cosine), sine), k.select(odd, sine, cosine))
    value = k.select(_below(_abs(x), 2.0**-13 if narrow else 2.0**-28), x, k.cast(value, x.dtype))
    return value if narrow else _in_domain(x, value)


def _atan_core(top: Expr, bottom: Expr) -> Expr:
    """atan(top / bottom) for 0 <= top, 0 <= bottom, with one division: brought below tan(pi/8)."""
    dtype = top.dtype
    steep = k.binary("gt", top, _scale(bottom, 2.414213562373095))
    middle = k.binary("gt", top, _scale(bottom, 0.41421356237309503))
    upper = k.select(steep, _neg(bottom), k.select(middle, k.sub(top, bottom), top))
    lower = k.select(steep, top, k.select(middle, k.add(top, bottom), bottom))
    t = _div(upper, lower)
    z = k.mul(t, t)
    series = k.fma(k.mul(z, t), _polynomial(z, _tables(t, c.ATAN_F32, c.ATAN_F64)), t)
    half, quarter = (c.HALF_PI_F32, c.QUARTER_PI_F32) if dtype == f32 else (c.HALF_PI, c.QUARTER_PI)
    zero = _lit(0.0, top)
    high = k.select(steep, _lit(half[0], top), k.select(middle, _lit(quarter[0], top), zero))
    low = k.select(steep, _lit(half[1], top), k.select(middle, _lit(quarter[1], top), zero))
    return k.add(high, k.add(series, low))


def atan(x: Expr) -> Expr:
    return _with_sign(_atan_core(_abs(x), _lit(1.0, x)), x)


def atan2(y: Expr, x: Expr) -> Expr:
    """The angle of (x, y). f32 in f64, where nothing over- or underflows; f64 operands are scaled off the limits."""
    if y.dtype == f32:
        return k.cast(atan2(k.cast(y, f64), k.cast(x, f64)), f32)
    a, b = _abs(y), _abs(x)
    both_infinite = k.binary("and", k.binary("eq", a, _lit(inf, a)), k.binary("eq", b, _lit(inf, b)))
    a, b = k.select(both_infinite, _lit(1.0, a), a), k.select(both_infinite, _lit(1.0, b), b)
    larger = k.select(k.binary("gt", a, b), a, b)
    one = _lit(1.0, a)
    up_or_down = k.select(_below(larger, 2.0**-500), _lit(2.0**500, a), one)
    scale = k.select(_above(larger, 2.0**500), _lit(2.0**-200, a), up_or_down)
    a, b = k.mul(a, scale), k.mul(b, scale)
    origin = k.binary("and", k.binary("eq", a, _lit(0.0, a)), k.binary("eq", b, _lit(0.0, b)))
    angle = _atan_core(a, k.select(origin, one, b))
    negative = k.binary("lt", k.bitcast(x, i64), _int(0, x))
    angle = k.select(negative, k.add(k.sub(_lit(c.PI[0], a), angle), _lit(c.PI[1], a)), angle)
    # a NaN x takes part in nothing but b
    return _with_sign(k.select(k.binary("ne", x, x), x, angle), y)


def _asin_parts(x: Expr) -> tuple[Expr, Expr, Expr]:
    """(a, small, s): small: a <= 1/2; s = asin(a) when small, else asin(sqrt((1 - a) / 2))."""
    a = _abs(x)
    small = k.binary("le", a, _lit(0.5, x))
    z = k.select(small, k.mul(a, a), _scale(k.sub(_lit(1.0, x), a), 0.5))
    root = k.select(small, a, _sqrt(z))
    s = k.fma(k.mul(z, root), _polynomial(z, _tables(x, c.ASIN_F32, c.ASIN_F64)), root)
    return a, small, s


def asin(x: Expr) -> Expr:
    """pi/2 - 2 asin(sqrt((1 - a) / 2)) beyond 1/2; NaN beyond 1."""
    _, small, s = _asin_parts(x)
    half = c.HALF_PI_F32 if x.dtype == f32 else c.HALF_PI
    large = k.sub(_lit(half[0], x), k.sub(k.add(s, s), _lit(half[1], x)))
    return _with_sign(k.select(small, s, large), x)


def acos(x: Expr) -> Expr:
    """pi/2 - asin(x); 2 asin(sqrt((1 - a) / 2)) beyond 1/2, from pi on the negative side."""
    _, small, s = _asin_parts(x)
    half, whole = (c.HALF_PI_F32, c.PI_F32) if x.dtype == f32 else (c.HALF_PI, c.PI)
    near = k.sub(_lit(half[0], x), k.sub(_with_sign(s, x), _lit(half[1], x)))
    twice = k.add(s, s)
    far = k.select(_below(x, 0.0), k.sub(_lit(whole[0], x), k.sub(twice, _lit(whole[1], x))), twice)
    return k.select(small, near, far)


# --- powers


def cbrt(x: Expr) -> Expr:
    """A guess from a third of the exponent, then Halley's iteration, in f64."""
    if x.dtype == f32:
        return k.cast(_cbrt(k.cast(x, f64), 2), f32)
    a = _abs(x)
    small, huge = _below(a, 2.0**-900), _above(a, 2.0**900)
    one = _lit(1.0, x)
    scaled = k.mul(x, k.select(small, _lit(2.0**180, x), k.select(huge, _lit(2.0**-180, x), one)))
    back = k.select(small, _lit(2.0**-60, x), k.select(huge, _lit(2.0**60, x), one))
    return k.mul(_cbrt(scaled, 3), back)


def _cbrt(x: Expr, steps: int) -> Expr:
    a = _abs(x)
    third = k.binary("div", k.bitcast(a, i64), _int(3, x))
    t = k.bitcast(k.add(third, _int(715094163 << 32, x)), f64)
    for _ in range(steps):
        cube = k.mul(k.mul(t, t), t)
        # t + t (a - t^3) / (2 t^3 + a): the correction is small, so its rounding does not count
        t = k.fma(t, _div(k.sub(a, cube), k.add(k.add(cube, cube), a)), t)
    ordinary = k.binary("and", _above(a, 0.0), _below(a, inf))
    return k.select(ordinary, _with_sign(t, x), x)


def power(x: Expr, y: Expr) -> Expr:
    """x^y as C's pow. A literal y of -1, 0, 1/2, 1, 2, 3 or 4 takes the direct way."""
    if isinstance(y, Lit) and y.value in (0.0, 1.0, 2.0, 3.0, 4.0):
        return power_by_squaring(x, int(y.value))
    if isinstance(y, Lit) and y.value == -1.0:
        return _div(_lit(1.0, x), x)
    if isinstance(y, Lit) and y.value == 0.5:
        # pow(-0, 1/2) = +0 and pow(-inf, 1/2) = +inf, unlike sqrt
        return k.select(k.binary("eq", x, _lit(-inf, x)), _lit(inf, x), _sqrt(_plus(x, 0.0)))
    if x.dtype == f32:
        x, y = k.cast(x, f64), k.cast(y, f64)
        return k.cast(_signed_power(x, y, exp(k.mul(y, log(_abs(x))))), f32)
    return _signed_power(x, y, _power_f64(_abs(x), y))


def _signed_power(x: Expr, y: Expr, magnitude: Expr) -> Expr:
    """x^y from |x|^y: the sign, and the cases that logarithms miss."""
    whole = k.binary("eq", k.unary("trunc", y), y)
    halved = _scale(y, 0.5)
    odd = k.binary("and", whole, k.binary("ne", k.unary("trunc", halved), halved))
    negative = k.binary("lt", k.bitcast(x, i64), _int(0, x))
    zero = k.binary("eq", x, _lit(0.0, x))
    a = _abs(x)
    infinite_y = k.binary("eq", _abs(y), _lit(inf, y))
    unit = k.binary("eq", a, _lit(1.0, x))
    one = _lit(1.0, x)
    value = k.select(k.binary("and", unit, infinite_y), one, magnitude)
    value = k.select(k.binary("and", negative, odd), _neg(value), value)
    defined = k.binary("or", whole, k.binary("or", zero, k.binary("eq", a, _lit(inf, x))))
    undefined = k.binary("and", _below(x, 0.0), k.unary("not", defined))
    value = k.select(undefined, _lit(nan, x), value)
    trivial = k.binary("or", k.binary("eq", y, _lit(0.0, y)), k.binary("eq", x, one))
    return k.select(trivial, one, value)


def _two_sum(a: Expr, b: Expr) -> tuple[Expr, Expr]:
    """(s, e) with a + b = s + e exactly (Knuth)."""
    s = k.add(a, b)
    t = k.sub(s, a)
    return s, k.add(k.sub(a, k.sub(s, t)), k.sub(b, t))


def _two_product(a: Expr, b: Expr) -> tuple[Expr, Expr]:
    p = k.mul(a, b)
    return p, k.fma(a, b, _neg(p))


def _log_pair(a: Expr) -> tuple[Expr, Expr]:
    """log(a) as an unevaluated sum with about 2^-68 relative error, for 0 < a < inf."""
    n, f = _split(a)
    two = _lit(2.0, a)
    d, d_low = _two_sum(two, f)
    s = _div(f, d)
    s_low = _div(k.sub(k.fma(_neg(s), d, f), k.mul(s, d_low)), d)
    z, z_low = _two_product(s, s)
    z_low = k.fma(_scale(s, 2.0), s_low, z_low)
    # log(1+f) = 2 s (1 + z (1/3 + z R(z))); 1/3 as a pair, the rest is small
    third = (_lit(1 / 3, a), _lit(1.850371707708594e-17, a))
    rest = k.mul(z, _polynomial(z, c.LOG_F64_REST))
    q, q_low = _two_sum(third[0], rest)
    q_low = k.add(q_low, third[1])
    w, w_low = _two_product(z, q)
    w_low = k.add(w_low, k.fma(z, q_low, k.mul(z_low, q)))
    v, v_low = _two_product(s, w)
    v_low = k.add(v_low, k.fma(s, w_low, k.mul(s_low, w)))
    total, error = _two_sum(s, v)
    error = k.add(error, k.add(s_low, v_low))
    total, error = _scale(total, 2.0), _scale(error, 2.0)
    high = _scale(n, c.LN2_EXACT[0])  # exact: 41 bits times 11 bits
    total, lost = _two_sum(high, total)
    return total, k.add(lost, k.fma(n, _lit(c.LN2_EXACT[1], a), error))


def _power_f64(a: Expr, y: Expr) -> Expr:
    """a^y for a >= 0 through a logarithm in two parts."""
    high, low = _log_pair(a)
    high, low = _two_sum(high, low)
    ordinary = k.binary("and", _above(a, 0.0), _below(a, inf))
    plain = k.select(k.binary("eq", a, _lit(0.0, a)), _lit(-inf, a), a)
    high = k.select(ordinary, high, plain)
    p = k.mul(y, high)
    p_low = k.fma(y, low, k.fma(y, high, _neg(p)))
    e = exp(p)
    inside = k.binary("and", _below(_abs(p), inf), _below(e, inf))
    return k.select(inside, k.fma(e, p_low, e), e)
