"""Functions of one variable with known bounds: their slope, their monotonicity and their inflection points."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import nextafter, pi, sqrt, ulp
from typing import cast

from ingot import ops
from ingot.ir.node import Op
from ingot.ops.nn import terms as t
from ingot.ops.nn.terms import Term
from ingot.support.dataclass import dataclass
from ingot.transform.bounds.forms import Elu, Power, Reciprocal, Remainder, Silu, Softplus, Square
from ingot.transform.bounds.rounding import F64_EPSILON, Interval, Rounding, maximum, minimum, outward, where

CONVEX, CONCAVE, S_SHAPED, WAVE, PERIODIC = "convex", "concave", "s-shaped", "wave", "periodic"
REVERSED_S, SAWTOOTH, FLOORED = "reversed s", "sawtooth", "floored sawtooth"
_INF = float("inf")
Domain = tuple[float, float]  # the least and the largest number of it
EVERYWHERE, ABOVE_ZERO, FROM_ZERO, FROM_ONE = (-_INF, _INF), (ulp(0.0), _INF), (0.0, _INF), (1.0, _INF)
TO_ONE, WITHIN_ONE = (-1.0, 1.0), (nextafter(-1.0, 0.0), nextafter(1.0, 0.0))
_LEAST_DISTANCE = 2.0**-60  # to the end of a domain, where a slope is infinite; numbers nearest to 1 are farther away


@dataclass(frozen=True)
class Function:
    """A function f and its derivative, in f64.

    shape: CONVEX; CONCAVE; S_SHAPED: convex below 0 and concave above; WAVE: concave, convex from -inflection to
    inflection, concave; PERIODIC: cos(x - peak); REVERSED_S: concave below 0 and convex above; SAWTOOTH: the remainder
    of x / period with the sign of x; FLOORED: at least 0. minimum: (argument, a lower bound of the value) for a
    function that decreases and then increases. falls: whether it is monotonically decreasing. domain: where it is
    defined. parity: of a function that is described above 0 and defined below it, too: 1 if
    f(-x) = f(x), -1 if f(-x) = -f(x). curvature: an upper bound of |f''| for a WAVE. ulps, slack: the relative and the
    absolute error of the program. error: the largest distance of the op from this function over the real numbers.
    """

    value: Callable[[Term], Term]
    slope: Callable[[Term], Term]
    shape: str
    minimum: tuple[float, float] | None = None
    falls: bool = False
    domain: Domain = EVERYWHERE
    parity: int = 0
    inflection: float = 0.0
    curvature: float = 0.0
    peak: float = 0.0
    period: float = 0.0
    ulps: float = 4.0
    slack: float = 0.0
    error: float = 0.0


def _mapped(op: Op) -> Callable[[Term], Term]:
    return lambda x: x.map(op)


def _logistic_slope(x: Term) -> Term:
    y = t.logistic(x)
    return y * (1.0 - y)


def _tanh_slope(x: Term) -> Term:
    y = t.tanh(x)
    return 1.0 - y * y


def _bell(x: Term) -> Term:
    """The density of the normal distribution."""
    return t.exp(x * x * -0.5) * (1 / sqrt(2 * pi))


def _gelu_slope(x: Term) -> Term:
    return (x * (1 / sqrt(2))).map(ops.Erf()) * 0.5 + 0.5 + x * _bell(x)


_C, _D = sqrt(2 / pi), 0.044715


def _gelu_tanh_slope(x: Term) -> Term:
    y = t.tanh((x + x * x * x * _D) * _C)
    return (y + 1.0) * 0.5 + x * 0.5 * (1.0 - y * y) * (x * x * (3 * _D) + 1.0) * _C


def _silu(x: Term) -> Term:
    return x * t.logistic(x)


def _silu_slope(x: Term) -> Term:
    y = t.logistic(x)
    return y + x * y * (1.0 - y)


def _softplus(x: Term) -> Term:
    positive = t.term(t.maximum(x, 0.0))
    return positive + t.exp(-t.term(t.absolute(x))).map(ops.Log1p())


def _elu(alpha: float) -> tuple[Callable[[Term], Term], Callable[[Term], Term]]:
    def value(x: Term) -> Term:
        return t.term(t.where(x > 0.0, x, t.term(t.minimum(x, 0.0)).map(ops.Expm1()) * alpha))

    def slope(x: Term) -> Term:
        return t.term(t.where(x > 0.0, 1.0, t.exp(t.term(t.minimum(x, 0.0))) * alpha))

    return value, slope


def _from_one(x: Term) -> Term:
    """The slope of acosh, 1 / sqrt(x^2 - 1)."""
    return t.rsqrt(maximum(x - 1.0, _LEAST_DISTANCE)) * t.rsqrt(x + 1.0)


def _to_one(x: Term) -> Term:
    """The slope of asin, 1 / sqrt(1 - x^2)."""
    return t.rsqrt(maximum((1.0 - x) * (x + 1.0), _LEAST_DISTANCE))


def _asinh_slope(x: Term) -> Term:
    """1 / sqrt(x^2 + 1), without the square of a large number."""
    factor = 1.0 / maximum(t.term(t.absolute(x)), 1.0)
    return factor * t.rsqrt((x * factor) * (x * factor) + factor * factor)


def _gelu(op: Op) -> Function:
    tanh = cast("ops.Gelu", op).approximate == "tanh"
    slope = _gelu_tanh_slope if tanh else _gelu_slope
    minimum = (-0.75246, -0.170041) if tanh else (-0.75179, -0.169972)
    # the second derivative is (2 - x^2) times the density, at most sqrt(2 / pi), and so within 1e-7 for the other form
    inflection = 1.4185 if tanh else sqrt(2)
    return Function(_mapped(op), slope, WAVE, minimum, inflection=inflection, curvature=0.81, ulps=8.0, slack=2.0**-23)


def _of_number(op: Op, x: Term, number: float) -> Term:
    return Term(op(x.node, t.full(x.shape, number, x.dtype).node))


def _power(op: Op) -> Function:
    p = cast("Power", op).exponent

    build = partial(Function, lambda x: _of_number(ops.Pow(), x, p), lambda x: _of_number(ops.Pow(), x, p - 1.0) * p)
    if p < 0:
        return build(CONVEX, falls=True, domain=ABOVE_ZERO, parity=1 if p % 2 == 0 else -1 if p % 2 == 1 else 0)
    if p % 2 == 0:
        return build(CONVEX, minimum=(0.0, 0.0))
    if p % 2 == 1:
        return build(REVERSED_S)
    return build(CONVEX if p > 1 else CONCAVE, domain=FROM_ZERO)


def _remainder(op: Op) -> Function:
    form = cast("Remainder", op)
    d = form.divisor

    def signed(x: Term) -> Term:
        return _of_number(ops.Rem(), x, d)

    def floored(x: Term) -> Term:
        y = signed(x)
        return where(y < 0.0, y + d, y)

    def one(x: Term) -> Term:
        return t.full(x.shape, 1.0, x.dtype)

    if form.floored:
        return Function(floored, one, FLOORED, period=d, ulps=0.5, error=d * F64_EPSILON)
    return Function(signed, one, SAWTOOTH, period=d, ulps=0.0)


_FUNCTIONS: dict[type[Op], Callable[[Op], Function]] = {
    ops.Exp: lambda op: Function(_mapped(op), t.exp, CONVEX),
    ops.Expm1: lambda op: Function(_mapped(op), t.exp, CONVEX),
    ops.Log: lambda op: Function(_mapped(op), lambda x: 1.0 / x, CONCAVE, domain=ABOVE_ZERO),
    ops.Sqrt: lambda op: Function(_mapped(op), lambda x: 0.5 * t.rsqrt(x), CONCAVE, domain=FROM_ZERO),
    ops.Rsqrt: lambda op: Function(_mapped(op), lambda x: t.rsqrt(x) / x * -0.5, CONVEX, falls=True, domain=ABOVE_ZERO),
    Reciprocal: lambda op: Function(
        lambda x: 1.0 / x, lambda x: -1.0 / (x * x), CONVEX, falls=True, domain=ABOVE_ZERO, parity=-1
    ),
    Square: lambda op: Function(lambda x: x * x, lambda x: x * 2.0, CONVEX, minimum=(0.0, 0.0), ulps=1.0),
    Power: _power,
    Remainder: _remainder,
    ops.Logistic: lambda op: Function(_mapped(op), _logistic_slope, S_SHAPED),
    ops.Tanh: lambda op: Function(_mapped(op), _tanh_slope, S_SHAPED),
    ops.Erf: lambda op: Function(_mapped(op), lambda x: t.exp(x * x * -1.0) * (2 / sqrt(pi)), S_SHAPED),
    ops.Atan: lambda op: Function(_mapped(op), lambda x: 1.0 / (x * x + 1.0), S_SHAPED),
    ops.Asin: lambda op: Function(_mapped(op), _to_one, REVERSED_S, domain=TO_ONE),
    ops.Acos: lambda op: Function(_mapped(op), lambda x: -_to_one(x), S_SHAPED, falls=True, domain=TO_ONE),
    ops.Sinh: lambda op: Function(_mapped(op), lambda x: x.map(ops.Cosh()), REVERSED_S),
    ops.Cosh: lambda op: Function(_mapped(op), lambda x: x.map(ops.Sinh()), CONVEX, minimum=(0.0, 1.0)),
    ops.Asinh: lambda op: Function(_mapped(op), _asinh_slope, S_SHAPED),
    ops.Acosh: lambda op: Function(_mapped(op), _from_one, CONCAVE, domain=FROM_ONE),
    ops.Atanh: lambda op: Function(_mapped(op), lambda x: 1.0 / ((1.0 - x) * (x + 1.0)), REVERSED_S, domain=WITHIN_ONE),
    ops.Sin: lambda op: Function(_mapped(op), lambda x: x.map(ops.Cos()), PERIODIC, peak=pi / 2),
    ops.Cos: lambda op: Function(_mapped(op), lambda x: -x.map(ops.Sin()), PERIODIC),
    # minimum of x * logistic(x): at -1.27846, -0.27846; its second derivative is at most 1/2 and 0 at 2.3994
    Silu: lambda op: Function(
        _silu, _silu_slope, WAVE, (-1.27846, -0.278465), inflection=2.39936, curvature=0.51, ulps=6.0
    ),
    ops.Gelu: _gelu,
    # 2.1e-9: e^-20, where the op is the identity
    Softplus: lambda op: Function(_softplus, t.logistic, CONVEX, ulps=6.0, error=2.1e-9),
    Elu: lambda op: Function(*_elu(cast("Elu", op).alpha), CONVEX, ulps=6.0),
}


def is_defined(f: Function, x: Interval) -> Term | None:
    """Whether f is defined in all of an interval; None if it is everywhere."""
    low, high = f.domain
    if high == _INF:
        return None if low == -_INF else x.lower >= low
    return (x.lower >= low) & (x.upper <= high)


def function_of(op: Op) -> Function | None:
    """The function that an op of one operand computes; None for other ops."""
    build = _FUNCTIONS.get(type(op))
    return None if build is None else build(op)


def above_zero(x: Interval) -> tuple[Term, Interval]:
    """Which intervals lie below 0, and the intervals with those reflected at 0."""
    is_below = x.upper < 0.0
    return is_below, Interval(where(is_below, -x.upper, x.lower), where(is_below, -x.lower, x.upper))


def interval_of_function(rounding: Rounding, f: Function, x: Interval) -> Interval:
    if f.parity:
        is_below, reflected = above_zero(x)
        y = interval_of_function(rounding, replace(f, parity=0), reflected)
        low, high = (y.lower, y.upper) if f.parity > 0 else (-y.upper, -y.lower)
        return Interval(where(is_below, low, y.lower), where(is_below, high, y.upper))
    ends = f.value(x.lower), f.value(x.upper)
    lower, upper = (ends[1], ends[0]) if f.falls else ends
    if f.shape == PERIODIC:
        low, high = minimum(*ends), maximum(*ends)
        lower, upper = where(_has_peak(f.peak + pi, x), -1.0, low), where(_has_peak(f.peak, x), 1.0, high)
    if f.minimum is not None:
        argmin, least = f.minimum
        lower, upper = minimum(*ends), maximum(*ends)
        contains_argmin = t.term(t.logical_and(x.lower <= argmin + 1e-4, x.upper >= argmin - 1e-4))
        lower = where(contains_argmin, least, lower)
    if f.shape == SAWTOOTH:
        is_line = is_one_tooth(f, x)
        lower = where(is_line, ends[0], where(x.lower >= 0.0, 0.0, maximum(x.lower, -f.period)))
        upper = where(is_line, ends[1], where(x.upper <= 0.0, 0.0, minimum(x.upper, f.period)))
    if f.shape == FLOORED:
        is_line = is_one_tooth(f, x)
        lower, upper = where(is_line, ends[0], 0.0), where(is_line, ends[1], f.period)
    absolute = rounding.floor + f.error + (f.slack if rounding.unit else 0.0)
    lower, upper = outward(lower, upper, rounding.of_function(f.ulps), absolute)
    if (defined := is_defined(f, x)) is not None:
        lower, upper = (where(defined, v, unknown) for v, unknown in ((lower, -_INF), (upper, _INF)))
    return Interval(lower, upper)


def _has_peak(peak: float, x: Interval) -> Term:
    """Whether peak + 2 pi n, for an integer n, may lie in an interval."""
    margin = x.magnitude * (8 * F64_EPSILON) + 1e-9
    periods = [(v - peak) * (0.5 / pi) for v in (x.lower - margin, x.upper + margin)]
    return t.term(t.ceil(periods[0])) <= t.term(t.floor(periods[1]))


def is_one_tooth(f: Function, x: Interval) -> Term:
    """Whether a SAWTOOTH or one that is FLOORED is x less a constant in the whole interval: over the end of a tooth the
    remainder of the upper end is the smaller one. The remainder is exact in f64, and so is the comparison of a rounded
    width with the period; a floored one rounds once."""
    width, rises = x.upper - x.lower, f.value(x.lower) <= f.value(x.upper)
    if f.shape == FLOORED:
        return (width < f.period * (1 - 2.0**-40)) & rises
    is_around_zero = (x.lower > -f.period) & (x.upper < f.period)
    has_one_sign = t.term(t.logical_or(x.lower >= 0.0, x.upper <= 0.0))
    return is_around_zero | (has_one_sign & (width < f.period) & rises)
