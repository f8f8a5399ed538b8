"""Builders of special functions, computed in f64 and rounded once.

Gamma functions use Stirling's series from 8 up, which eight steps of the recurrence reach, and the reflection formula
below 1/2 (Abramowitz and Stegun 6.1.41, 6.3.18, 6.4). Modified Bessel functions use Chebyshev series as Cephes does
(Moshier 1989), with coefficients computed with 40 digits: of exp(-x) I(x), or exp(-x) I(x) / x for order 1, up to 8,
and of exp(-x) sqrt(x) I(x) in 16 / x - 1 beyond.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ingot.ir.node import Node
from ingot.ir.types import DTYPES, f64
from ingot.ops import build as ops
from ingot.ops.core.binary import BitcastConvert
from ingot.ops.core.elementwise import Abs, Floor, IsNan, RoundEven, Sqrt
from ingot.ops.core.functions import Erf, Exp, Log, Log1p, Sin, Tan

_RECURRENCE_STEPS = 8
# B_2k / (2k (2k - 1)) and B_2k / 2k, k = 1 ...
_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156)
_DIGAMMA = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12)
# B_2k / (2k)!, k = 1 ...: Abramowitz and Stegun 23.2
_BERNOULLI = tuple(b / math.factorial(2 * k) for k, b in enumerate(
    (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510), 1))  # fmt: skip
_ZETA_TERMS = 12
_INF, _NAN = math.inf, math.nan


def _series(z: Node, coefficients: Sequence[float]) -> Node:
    """The polynomial in 1 / z^2 with `coefficients`, the constant term first."""
    return _horner(ops.div(1.0, ops.mul(z, z)), coefficients)


def _horner(x: Node, coefficients: Sequence[float]) -> Node:
    """The polynomial in x with `coefficients`, the constant term first."""
    value: Node | float = coefficients[-1]
    for c in coefficients[-2::-1]:
        value = ops.add(ops.mul(x, value), c)
    assert isinstance(value, Node)
    return value


def _pole_distance(a: Node) -> Node:
    """a minus the nearest integer."""
    return ops.sub(a, RoundEven()(a))


def lgamma(x: Node) -> Node:
    """log |gamma(x)|; infinite at 0 and the negative integers."""
    a = ops.cast(x, f64)
    is_reflected = ops.compare("LT", a, 0.5)
    z = ops.where(is_reflected, ops.sub(1.0, a), a)
    small = ops.compare("LT", z, float(_RECURRENCE_STEPS))
    product = ops.where(small, z, 1.0)
    for i in range(1, _RECURRENCE_STEPS):
        product = ops.mul(product, ops.where(small, ops.add(z, float(i)), 1.0))
    shifted = ops.where(small, ops.add(z, float(_RECURRENCE_STEPS)), z)
    value = ops.mul(ops.sub(shifted, 0.5), ops.sub(Log()(shifted), 1.0))
    value = ops.add(ops.add(value, 0.5 * math.log(2 * math.pi) - 0.5), ops.div(_series(shifted, _STIRLING), shifted))
    value = ops.where(ops.compare("EQ", z, _INF), _INF, ops.sub(value, Log()(product)))
    sine = Abs()(Sin()(ops.mul(math.pi, _pole_distance(a))))
    reflected = ops.sub(ops.sub(math.log(math.pi), Log()(sine)), value)
    reflected = ops.where(ops.compare("EQ", a, -_INF), _INF, reflected)
    return ops.cast(ops.where(is_reflected, reflected, value), x.dtype)


def digamma(x: Node) -> Node:
    """The derivative of lgamma; NaN at 0 and the negative integers."""
    a = ops.cast(x, f64)
    is_reflected = ops.compare("LT", a, 0.5)
    z = ops.where(is_reflected, ops.sub(1.0, a), a)
    small = ops.compare("LT", z, float(_RECURRENCE_STEPS))
    recurrence = ops.full(z.shape, 0.0, f64)
    for i in range(_RECURRENCE_STEPS):
        recurrence = ops.add(recurrence, ops.where(small, ops.div(1.0, ops.add(z, float(i))), 0.0))
    shifted = ops.where(small, ops.add(z, float(_RECURRENCE_STEPS)), z)
    square = ops.div(1.0, ops.mul(shifted, shifted))
    value = ops.sub(
        ops.sub(Log()(shifted), ops.div(0.5, shifted)), ops.add(ops.mul(square, _series(shifted, _DIGAMMA)), recurrence)
    )
    value = ops.where(ops.compare("EQ", z, _INF), _INF, value)
    distance = _pole_distance(a)
    reflected = ops.sub(value, ops.div(math.pi, Tan()(ops.mul(math.pi, distance))))
    pole = ops.or_(ops.compare("EQ", distance, 0.0), ops.compare("EQ", a, -_INF))
    return ops.cast(ops.where(is_reflected, ops.where(pole, _NAN, reflected), value), x.dtype)


def zeta(s: Node, q: Node) -> Node:
    """The Hurwitz zeta function, the sum of (q + k)^-s over k >= 0.

    NaN for s < 1, infinite at s = 1 and if q is 0 or a negative integer. For other negative q, s must be an integer,
    else NaN: with q = -m + f, the m negative terms are, up to sign, the terms of zeta(s, 1 - f) before 1 - q.
    """
    s, q = ops.promote(s, q)
    shape = ops.broadcast_shapes(s.shape, q.shape)
    order, start = (ops.broadcast_to(ops.cast(v, f64), shape) for v in (s, q))
    negative = ops.compare("LT", start, 0.0)
    fraction = ops.sub(start, Floor()(start))
    starts = (ops.where(negative, fraction, start), ops.sub(1.0, fraction), ops.sub(1.0, start))
    value, mirrored, mirrored_tail = ops.split(_zeta(ops.expand_dims(order, 0), ops.stack(starts)), (1, 1, 1))
    value, mirrored, mirrored_tail = (ops.squeeze(v, 0) for v in (value, mirrored, mirrored_tail))
    is_odd = ops.compare("NE", _pole_distance(ops.mul(order, 0.5)), 0.0)
    finite_sum = ops.sub(mirrored, mirrored_tail)
    reflected = ops.add(value, ops.where(is_odd, ops.sub(0.0, finite_sum), finite_sum))
    reflected = ops.where(ops.compare("EQ", _pole_distance(order), 0.0), reflected, _NAN)
    value = ops.where(negative, reflected, value)
    pole = ops.and_(ops.compare("LE", start, 0.0), ops.compare("EQ", _pole_distance(start), 0.0))
    value = ops.where(ops.compare("EQ", start, _INF), 0.0, value)
    value = ops.where(ops.or_(pole, ops.compare("EQ", order, 1.0)), _INF, value)
    return ops.cast(ops.where(ops.compare("LT", order, 1.0), _NAN, value), s.dtype)


def _zeta(order: Node, start: Node) -> Node:
    """zeta(order, start) for start > 0: the first terms of the sum, and the Euler-Maclaurin formula for the others."""
    negative = ops.sub(0.0, order)
    value = ops.full(start.shape, 0.0, f64)
    for i in range(_ZETA_TERMS):
        value = ops.add(value, ops.pow(ops.add(start, float(i)), negative))
    a = ops.add(start, float(_ZETA_TERMS))
    power = ops.pow(a, negative)
    value = ops.add(value, ops.add(ops.div(ops.mul(power, a), ops.sub(order, 1.0)), ops.mul(power, 0.5)))
    factor, power = order, ops.div(power, a)
    for k, b in enumerate(_BERNOULLI):
        value = ops.add(value, ops.mul(ops.mul(power, factor), b))
        factor = ops.mul(factor, ops.mul(ops.add(order, float(2 * k + 1)), ops.add(order, float(2 * k + 2))))
        power = ops.div(power, ops.mul(a, a))
    return value


def polygamma(n: Node, x: Node) -> Node:
    """(-1)^(n + 1) n! zeta(n + 1, x), and digamma(x) for n = 0; NaN if n is negative or not an integer."""
    n, x = ops.promote(n, x)
    order = ops.cast(n, f64)
    is_integer = ops.and_(ops.compare("EQ", _pole_distance(order), 0.0), ops.compare("GE", order, 0.0))
    next_order = ops.add(order, 1.0)
    is_odd = ops.compare("NE", _pole_distance(ops.mul(order, 0.5)), 0.0)
    size = ops.mul(Exp()(lgamma(next_order)), zeta(next_order, ops.cast(x, f64)))
    value = ops.where(is_odd, size, ops.sub(0.0, size))
    value = ops.where(ops.compare("EQ", order, 0.0), digamma(ops.cast(x, f64)), value)
    return ops.cast(ops.where(is_integer, value, _NAN), x.dtype)


# --- the error function


_ERFC_TAIL_START = 2.5  # erfc is a continued fraction for larger x
_FRACTION_TERMS = 24  # its error at _ERFC_TAIL_START is 1e-12


def erfc(x: Node) -> Node:
    """1 - erf(x), in the tail by a continued fraction."""
    a = ops.cast(x, f64)
    tail = ops.mul(Exp()(ops.sub(0.0, ops.mul(a, a))), _scaled_tail(a))
    return ops.cast(ops.where(ops.compare("GT", a, _ERFC_TAIL_START), tail, ops.sub(1.0, Erf()(a))), x.dtype)


def erfcx(x: Node) -> Node:
    """exp(x^2) erfc(x)."""
    a = ops.cast(x, f64)
    value = ops.mul(Exp()(ops.mul(a, a)), ops.sub(1.0, Erf()(a)))
    return ops.cast(ops.where(ops.compare("GT", a, _ERFC_TAIL_START), _scaled_tail(a), value), x.dtype)


def _scaled_tail(a: Node) -> Node:
    """erfcx for a >= _ERFC_TAIL_START: Laplace's continued fraction (Abramowitz and Stegun 7.1.14),
    1 / (x sqrt(pi) (1 + r / (1 + 2 r / (1 + 3 r / ...)))), r = 1 / (2 x^2).
    """
    r = ops.div(0.5, ops.mul(a, a))
    fraction = ops.add(ops.mul(r, float(_FRACTION_TERMS)), 1.0)
    for k in range(_FRACTION_TERMS - 1, 0, -1):
        fraction = ops.add(ops.div(ops.mul(r, float(k)), fraction), 1.0)
    return ops.div(1.0, ops.mul(ops.mul(a, math.sqrt(math.pi)), fraction))


# Giles, "Approximating the erfinv function" (2012): in w - 2.5 for w = -log(1 - x^2) < 5, in sqrt(w) - 3 beyond
_ERF_INV_CENTER = (
    2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503, -0.00417768164,
    0.246640727, 1.50140941,
)  # fmt: skip
_ERF_INV_TAIL = (
    -0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613, 0.00943887047,
    1.00167406, 2.83297682,
)  # fmt: skip


def erf_inv(x: Node) -> Node:
    """y with erf(y) = x, infinite at 1 and -1: Giles' polynomials and two steps of Halley's method."""
    a = ops.cast(x, f64)
    w = ops.sub(0.0, Log1p()(ops.sub(0.0, ops.mul(a, a))))
    is_central = ops.compare("LT", w, 5.0)
    inner, outer = (
        _horner(ops.sub(w, 2.5), _ERF_INV_CENTER[::-1]),
        _horner(ops.sub(Sqrt()(w), 3.0), _ERF_INV_TAIL[::-1]),
    )
    y = ops.mul(a, ops.where(is_central, inner, outer))
    for _ in range(2):
        slope = ops.mul(Exp()(ops.sub(0.0, ops.mul(y, y))), 2 / math.sqrt(math.pi))
        step = ops.div(ops.sub(Erf()(y), a), slope)
        y = ops.sub(y, ops.div(step, ops.add(1.0, ops.mul(y, step))))
    is_bound = ops.compare("EQ", Abs()(a), 1.0)
    return ops.cast(ops.where(is_bound, ops.mul(a, _INF), y), x.dtype)


# Wichura, "Algorithm AS 241" (1988), PPND16: quotients of polynomials in 0.180625 - (p - 1/2)^2 in the middle, in
# sqrt(-log(p)) - 1.6 up to 5, in sqrt(-log(p)) - 5 beyond; the constant term first
_QUANTILES = (
    (
        (3.3871328727963666080, 133.14166789178437745, 1971.5909503065514427, 13731.693765509461125,
         45921.953931549871457, 67265.770927008700853, 33430.575583588128105, 2509.0809287301226727),
        (1.0, 42.313330701600911252, 687.18700749205790830, 5394.1960214247511077, 21213.794301586595867,
         39307.895800092710610, 28729.085735721942674, 5226.4952788528545610),
    ),
    (
        (1.42343711074968357734, 4.63033784615654529590, 5.76949722146069140550, 3.64784832476320460504,
         1.27045825245236838258, 0.241780725177450611770, 0.0227238449892691845833, 7.74545014278341407640e-4),
        (1.0, 2.05319162663775882187, 1.67638483018380384940, 0.689767334985100004550, 0.148103976427480074590,
         0.0151986665636164571966, 5.47593808499534494600e-4, 1.05075007164441684324e-9),
    ),
    (
        (6.65790464350110377720, 5.46378491116411436990, 1.78482653991729133580, 0.296560571828504891230,
         0.0265321895265761230930, 1.24266094738807843860e-3, 2.71155556874348757815e-5, 2.01033439929228813265e-7),
        (1.0, 0.599832206555887937690, 0.136929880922735805310, 0.0148753612908506148525, 7.86869131145613259100e-4,
         1.84631831751005468180e-5, 1.42151175831644588870e-7, 2.04426310338993978564e-15),
    ),
)  # fmt: skip


def ndtri(p: Node) -> Node:
    """The quantile function of the standard normal distribution (Wichura 1988); infinite at 0 and 1, NaN outside."""
    a = ops.cast(p, f64)
    q = ops.sub(a, 0.5)
    is_lower = ops.compare("LT", q, 0.0)
    tail = Sqrt()(ops.sub(0.0, Log()(ops.where(is_lower, a, ops.sub(1.0, a)))))
    arguments = ops.sub(0.180625, ops.mul(q, q)), ops.sub(tail, 1.6), ops.sub(tail, 5.0)
    middle, near_tail, far_tail = (
        ops.div(_horner(argument, numerator), _horner(argument, denominator))
        for argument, (numerator, denominator) in zip(arguments, _QUANTILES, strict=True)
    )
    far_tail = ops.where(ops.compare("LE", tail, 5.0), near_tail, far_tail)
    outer = ops.where(ops.compare("EQ", tail, _INF), _INF, far_tail)
    outer = ops.where(is_lower, ops.sub(0.0, outer), outer)
    y = ops.where(ops.compare("LE", Abs()(q), 0.425), ops.mul(q, middle), outer)
    return ops.cast(y, p.dtype)


# --- modified Bessel functions of the first kind


_I0_SERIES = (
    0.6767952744094761, -0.3046826723431984, 0.17162090152220877, -0.09490109704804764, 0.04930528423967071,
    -0.02373741480589947, 0.010546460394594998, -0.004324309995050576, 0.0016394756169413357, -0.0005763755745385824,
    0.00018850288509584165, -5.754195010082104e-05, 1.6448448070728896e-05, -4.4167383584587505e-06,
    1.1173875391201037e-06, -2.670793853940612e-07, 6.046995022541919e-08, -1.300025009986248e-08,
    2.6598237246823866e-09, -5.189795601635263e-10, 9.675809035373237e-11, -1.726826291441556e-11,
    2.95505266312964e-12, -4.856446783111929e-13, 7.676185498604936e-14, -1.1685332877993451e-14,
    1.715391285555133e-15, -2.431279846547955e-16, 3.3307945188222384e-17, -4.4153416464793395e-18,
)  # fmt: skip
_I0_ASYMPTOTIC = (
    0.8044904110141088, 0.0033691164782556943, 6.889758346916825e-05, 2.8913705208347567e-06, 2.0489185894690638e-07,
    2.266668990498178e-08, 3.3962320257083865e-09, 4.94060238822497e-10, 1.1889147107846439e-11,
    -3.1499165279632416e-11, -1.3215811840447713e-11, -1.7941785315068062e-12, 7.180124451383666e-13,
    3.8527783827421426e-13, 1.54008621752141e-14, -4.150569347287222e-14, -9.554846698828307e-15,
    3.8116806693526224e-15, 1.7725601330565263e-15, -3.425485619677219e-16, -2.8276239805165836e-16,
    3.461222867697461e-17, 4.46562142029676e-17, -4.830504485944182e-18, -7.233180487874754e-18,
    9.921475412173699e-19, 1.193650890845982e-18,
)  # fmt: skip
_I1_SERIES = (
    0.25258718644363365, -0.17641651835783406, 0.1026436586898471, -0.05294598120809499, 0.024726449030626516,
    -0.010564084894626197, 0.004156422944312888, -0.0015135724506312532, 0.0005122859561685758,
    -0.00016176081582589674, 4.781565107550054e-05, -1.3273163656039436e-05, 3.4702513081376785e-06,
    -8.568720264695455e-07, 2.0032947535521353e-07, -4.445059128796328e-08, 9.381537386495773e-09,
    -1.8872497517228294e-09, 3.625590281552117e-10, -6.663489723502027e-11, 1.1736186298890901e-11,
    -1.9839743977649436e-12, 3.223793365945575e-13, -5.042185504727912e-14, 7.600684294735408e-15,
    -1.1055969477353862e-15, 1.5536319577362005e-16, -2.111421214358166e-17, 2.7779141127610464e-18,
)  # fmt: skip
_I1_ASYMPTOTIC = (
    0.7785762350182801, -0.009761097491361469, -0.00011058893876262371, -3.882564808877691e-06,
    -2.512236237870209e-07, -2.6314688468895196e-08, -3.835380385964237e-09, -5.589743462196584e-10,
    -1.8974958123505413e-11, 3.2526035830154884e-11, 1.4125807436613782e-11, 2.0356285441470896e-12,
    -7.198551776245908e-13, -4.0835511110921974e-13, -2.1015418427726643e-14, 4.272440016711951e-14,
    1.0420276984128802e-14, -3.8144030724370075e-15, -1.8803547755107825e-15, 3.3082023109209285e-16,
    2.96262899764595e-16, -3.209525921993424e-17, -4.6503053684893586e-17, 4.414348323071708e-18,
    7.517296310842105e-18, -9.314178867326884e-19, -1.242193275194891e-18,
)  # fmt: skip


def _chebyshev(t: Node, coefficients: Sequence[float]) -> Node:
    """c0 / 2 + c1 T1(t) + c2 T2(t) + ..., by Clenshaw's recurrence."""
    previous = value = ops.full(t.shape, 0.0, f64)
    for c in coefficients[:0:-1]:
        previous, value = value, ops.add(ops.sub(ops.mul(ops.mul(t, 2.0), value), previous), c)
    return ops.add(ops.sub(ops.mul(t, value), previous), coefficients[0] / 2)


def _bessel(order: int, x: Node) -> Node:
    """exp(-|x|) I(x) of `order` 0 or 1."""
    series, asymptotic = ((_I0_SERIES, _I0_ASYMPTOTIC), (_I1_SERIES, _I1_ASYMPTOTIC))[order]
    signed = ops.cast(x, f64)
    a = Abs()(signed)
    small = ops.compare("LE", a, 8.0)
    low = _chebyshev(ops.where(small, ops.sub(ops.mul(a, 0.25), 1.0), 0.0), series)
    if order:
        low = ops.mul(low, a)
    high = ops.div(_chebyshev(ops.where(small, 0.0, ops.sub(ops.div(16.0, a), 1.0)), asymptotic), Sqrt()(a))
    value = ops.where(small, low, high)
    if order:
        value = ops.where(ops.compare("LT", signed, 0.0), ops.sub(0.0, value), value)
    return ops.cast(ops.where(IsNan()(signed), signed, value), x.dtype)


def bessel_i0e(x: Node) -> Node:
    return _bessel(0, x)


def bessel_i1e(x: Node) -> Node:
    return _bessel(1, x)


def bessel_i0(x: Node) -> Node:
    return _unscaled(bessel_i0e, x)


def bessel_i1(x: Node) -> Node:
    return _unscaled(bessel_i1e, x)


def _unscaled(function: Callable[[Node], Node], x: Node) -> Node:
    a = ops.cast(x, f64)
    return ops.cast(ops.mul(Exp()(Abs()(a)), function(a)), x.dtype)


# --- bits


def next_after(x: Node, y: Node) -> Node:
    """The float next to x in the direction of y: floats of one sign are ordered as the integers of their bits."""
    x, y = ops.promote(x, y)
    word = DTYPES[f"i{x.dtype.bits}"]
    bits, target = BitcastConvert(word)(x), BitcastConvert(word)(y)
    smallest = ops.or_(ops.and_(target, word.range[0]), 1)
    is_away_from_zero = ops.compare("EQ", ops.compare("LT", x, y), ops.compare("GT", x, 0.0))
    step = ops.where(is_away_from_zero, ops.scalar(1, word), ops.scalar(-1, word))
    neighbour_bits = ops.where(ops.compare("EQ", x, 0.0), smallest, ops.add(bits, step))
    result = BitcastConvert(x.dtype)(ops.where(ops.compare("EQ", x, y), target, neighbour_bits))
    return ops.where(ops.or_(IsNan()(x), IsNan()(y)), ops.scalar(math.nan, x.dtype), result)
