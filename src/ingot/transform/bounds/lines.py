"""Linear bounds of functions of one variable: lower.slope x + lower.offset <= f(x) <= upper.slope x + upper.offset.

ReLU and S-shaped functions as in CROWN (Zhang et al., Efficient Neural Network Robustness Certification with General
Activation Functions, NeurIPS 2018); GELU and SiLU by two lines with the chord's slope. Any slope is sound: the offsets
are computed for the rounded slope and include the error of computing them. Softmax has two planes: `planes_of_softmax`.
"""

from __future__ import annotations

from dataclasses import replace
from math import pi

from ingot import ops
from ingot.ir.dims import product
from ingot.ops.nn import terms as t
from ingot.ops.nn.terms import Term
from ingot.support.dataclass import dataclass
from ingot.transform.bounds.forms import Hinge
from ingot.transform.bounds.functions import (
    CONCAVE,
    CONVEX,
    FLOORED,
    PERIODIC,
    REVERSED_S,
    S_SHAPED,
    SAWTOOTH,
    Function,
    above_zero,
    interval_of_function,
    is_defined,
    is_one_tooth,
)
from ingot.transform.bounds.rounding import (
    F64_EPSILON,
    F64_UNDERFLOW,
    Interval,
    Rounding,
    absolute_value,
    maximum,
    minimum,
    outward,
    where,
)

_BISECTIONS = 14
_PERIODS = (-2 * pi, 0.0, 2 * pi)  # offsets of the periods that an interval of half a period may reach
_ERROR = 64 * F64_EPSILON  # of a few operations and two functions
_LEAST_SLOPE = 2.0**-960  # a slope that underflows errs by less than this times _ERROR
_LEAST_SHARE = 1e-250  # of a sum of exponentials: below it logarithms and quotients are not computed


@dataclass(frozen=True, eq=False)
class Line:
    slope: Term
    offset: Term


@dataclass(frozen=True, eq=False)
class Lines:
    lower: Line
    upper: Line

    @property
    def swapped(self) -> Lines:
        """The lines of -f, if these are of f."""
        return Lines(Line(-self.upper.slope, -self.upper.offset), Line(-self.lower.slope, -self.lower.offset))

    @property
    def mirrored(self) -> Lines:
        """The lines of f(-x), if these are of f(x)."""
        return Lines(Line(-self.lower.slope, self.lower.offset), Line(-self.upper.slope, self.upper.offset))


def lines_of_hinge(op: Hinge, x: Interval, alpha: Term | None = None) -> Lines:
    """alpha: the position of the lower line's slope between those of the two sides, from 0 to 1; by default the side
    with the larger part of the interval, which minimizes the area between the lines."""
    if op.right < op.left:
        return lines_of_hinge(Hinge(-op.left, -op.right), x, alpha).swapped
    left, right = op.left, op.right
    l, u = x.lower, x.upper
    chord = (u * right - l * left) / (u - l)
    offset = maximum(l * left - chord * l, u * right - chord * u)
    magnitude = (absolute_value(chord) + (abs(left) + abs(right))) * x.magnitude
    offset = offset + magnitude * _ERROR + F64_UNDERFLOW
    if alpha is None:
        lower_slope = where(u > -l, right, t.full(u.shape, left, u.dtype))
    else:
        lower_slope = alpha * (right - left) + left
        lower_slope = minimum(maximum(lower_slope, left), right)
    zero = t.full(u.shape, 0.0, u.dtype)
    is_right, is_left = l >= 0.0, u <= 0.0

    def linear_or(slope: Term) -> Term:
        return where(is_right, right, where(is_left, left, slope))

    is_linear = t.term(t.logical_or(is_right, is_left))
    return Lines(Line(linear_or(lower_slope), zero), Line(linear_or(chord), where(is_linear, 0.0, offset)))


def lines_of_function(f: Function, x: Interval) -> Lines:
    """Where f is not defined in the whole interval, infinite offsets."""
    if f.parity:
        is_below, reflected = above_zero(x)
        lines = lines_of_function(replace(f, parity=0), reflected)
        below = lines.mirrored if f.parity > 0 else lines.swapped.mirrored
        lower, upper = (
            Line(where(is_below, a.slope, b.slope), where(is_below, a.offset, b.offset))
            for a, b in ((below.lower, lines.lower), (below.upper, lines.upper))
        )
        return Lines(lower, upper)
    lines, defined = _lines_of_shape(f, x), is_defined(f, x)
    if defined is None:
        return lines
    lower, upper = (
        Line(where(defined, line.slope, 0.0), where(defined, line.offset, end))
        for line, end in ((lines.lower, -float("inf")), (lines.upper, float("inf")))
    )
    return Lines(lower, upper)


def _lines_of_shape(f: Function, x: Interval) -> Lines:
    if f.shape == CONVEX:
        return Lines(_tangent(f, x.center, x, -1), _chord(f, x))
    if f.shape == CONCAVE:
        mirrored = Function(lambda v: -f.value(v), lambda v: -f.slope(v), CONVEX, error=f.error)
        return _lines_of_shape(mirrored, x).swapped
    if f.shape == REVERSED_S:
        mirrored = Function(lambda v: -f.value(v), lambda v: -f.slope(v), S_SHAPED, error=f.error)
        return _lines_of_shape(mirrored, x).swapped
    if f.shape == PERIODIC:
        return _periodic(f, x)
    if f.shape in (SAWTOOTH, FLOORED):
        return _sawtooth(f, x)
    return _s_shaped(f, x) if f.shape == S_SHAPED else _wave(f, x)


@dataclass(frozen=True, eq=False)
class Plane:
    """factor * (x - sum(weights * x)) + offset, the sum along the axes of a softmax."""

    factor: Term
    weights: Term
    offset: Term


def planes_of_softmax(
    exp: Function, x: Interval, p: Interval, visible: Term | None, dims: tuple[int, ...]
) -> tuple[Plane, Plane]:
    """A plane below and one above p = e^x / sum(e^x), tangents at the center c of the bounds in Wei et al., Convex
    Bounds on the Softmax Function with Applications to Robustness Verification, AISTATS 2023; constants where these are
    closer at c. x, p: intervals of the scores and of the result. visible: a mask; hidden elements have no term.

    Below: e^x / sum(chord(x)), log-convex; its tangents are  v (2 + x - c - sum(chord(x)) / a), where a = sum(chord(c))
    and v = e^c / a. Above, with the logarithm y = x - log(sum(e^x)) of p: chord(y) of e^y, which is concave in x, or
    the chord of 1 / s for the sum s of e^(x_j - x). Tangents of both are multiples of  x - sum(q x),  q = softmax(c).
    """

    def shown(v: Term, hidden: float = 0.0) -> Term:
        return v if visible is None else where(visible, v, hidden)

    def total(v: Term) -> Term:
        return v.sum(dims).broadcast(v.shape)

    count = product(x.lower.shape[d] for d in dims)
    assert isinstance(count, int)
    error = (count + 64) * 2 * F64_EPSILON
    top = shown(x.upper, -1e300).max(dims).broadcast(x.upper.shape)
    top = where(top > -1e299, top, 0.0)  # all are hidden
    shifted = Interval(*outward(x.lower - top, x.upper - top, F64_EPSILON))
    center, magnitude = shown(shifted.center), shown(shifted.magnitude)
    chord = _chord(exp, shifted)
    slope, intercept = shown(chord.slope), shown(chord.offset)

    sum_of_chords = total(slope * center + intercept)
    sum_of_chords = where(sum_of_chords > 0.25, sum_of_chords, 1.0)
    exponentials = shown(exp.value(center))
    value = exponentials / sum_of_chords
    value = where((value > _LEAST_SHARE) & (value > p.lower), value, 0.0)
    weights, intercepts = slope / sum_of_chords, total(intercept) / sum_of_chords
    weighted = total(weights * magnitude)
    to_unshifted = top * (total(weights) - 1.0)
    sizes = absolute_value(intercepts) + magnitude + weighted + absolute_value(top) * (total(weights) + 1.0) + 4.0
    offset = value * (2.0 - intercepts - center + to_unshifted - sizes * error)
    lower = Plane(value, weights, where(value > 0.0, offset, p.lower))

    sum_of_exponentials = total(exponentials)
    sum_of_exponentials = where(sum_of_exponentials > 0.0, sum_of_exponentials, 1.0)
    q = exponentials / sum_of_exponentials
    log_sum, mean = t.log(sum_of_exponentials), total(q * center)
    sizes = magnitude + total(q * magnitude) + absolute_value(log_sum) + absolute_value(top) + 4.0

    has_lower = p.lower > _LEAST_SHARE
    least = shifted.lower - t.log(total(shown(exp.value(shifted.upper))) + 1.0)
    least_y = where(has_lower, t.log(where(has_lower, p.lower, 1.0)), least)
    most_y = minimum(t.log(maximum(p.upper, _LEAST_SHARE)), 0.0)
    most_y = maximum(most_y, least_y)
    y = Interval(*outward(least_y, most_y, _ERROR, _ERROR))
    of_y = _chord(exp, y)
    is_open = q > _LEAST_SHARE
    q_or_one = where(is_open, q, 1.0)
    at_center = of_y.slope * t.log(q_or_one) + of_y.offset
    by_y = Line(of_y.slope, of_y.offset + of_y.slope * (mean - log_sum + sizes * error))

    both = where(has_lower & is_open, p.lower * p.upper, 0.0) / q_or_one
    by_sum = Line(both, p.lower + p.upper - both * (1.0 + center - mean - sizes * error))
    is_by_sum = has_lower & is_open & (p.lower + p.upper - both < at_center)
    factor, offset = (where(is_by_sum, a, b) for a, b in ((by_sum.slope, by_y.slope), (by_sum.offset, by_y.offset)))
    is_plane = is_open & (where(is_by_sum, p.lower + p.upper - both, at_center) < p.upper)
    offset = offset + absolute_value(offset) * error + F64_UNDERFLOW
    upper = Plane(where(is_plane, factor, 0.0), q, where(is_plane, offset, p.upper))
    return lower, upper


def _chord_slope(f: Function, x: Interval) -> Term:
    """The slope of the chord; the derivative for an interval of a few ulps, where the chord's slope is noise."""
    width = x.upper - x.lower
    is_wide = width > (x.magnitude + 1.0) * 1e-9
    chord = (f.value(x.upper) - f.value(x.lower)) / where(is_wide, width, 1.0)
    return where(is_wide, chord, f.slope(x.center))


def _chord(f: Function, x: Interval) -> Line:
    """The chord as an upper line, for a convex f: f minus the line is largest at an end."""
    slope = _chord_slope(f, x)
    ends = [f.value(v) - slope * v for v in (x.lower, x.upper)]
    magnitude = maximum(absolute_value(f.value(x.lower)), absolute_value(f.value(x.upper)))
    error = (magnitude + (absolute_value(slope) + _LEAST_SLOPE) * x.magnitude) * _ERROR + (F64_UNDERFLOW + f.error)
    return Line(slope, maximum(*ends) + error)


def _tangent(f: Function, point: Term, x: Interval, side: int) -> Line:
    """side: 1 for a line above f, -1 for one below."""
    slope, value = f.slope(point), f.value(point)
    size = absolute_value(value) + (absolute_value(slope) + _LEAST_SLOPE) * x.magnitude * 2.0
    error = size * _ERROR + (F64_UNDERFLOW + f.error)
    offset = value - slope * point
    return Line(slope, offset + error if side > 0 else offset - error)


def _s_shaped(f: Function, x: Interval) -> Lines:
    """The lower line of f is the upper line of -f(-x), mirrored at the origin."""
    mirrored = Function(lambda v: -f.value(-v), lambda v: f.slope(-v), S_SHAPED)
    upper = _above_s(f, x)
    mirrored_upper = _above_s(mirrored, Interval(-x.upper, -x.lower))
    return Lines(Line(mirrored_upper.slope, -mirrored_upper.offset), upper)


def _above_s(f: Function, x: Interval) -> Line:
    """The upper line of an f that is convex below 0 and concave above: the chord if it does not cross f, else a tangent
    at a point above 0. The tangent is above f where f is concave, and where f is convex if it is at the lower end."""
    chord = _chord(f, x)
    start = f.value(x.lower)
    low, high = t.full(start.shape, 0.0, start.dtype), maximum(x.upper, 0.0)
    for _ in range(_BISECTIONS):
        middle = (low + high) * 0.5
        is_above = f.value(middle) + f.slope(middle) * (x.lower - middle) >= start
        low, high = where(is_above, low, middle), where(is_above, middle, high)
    touching = where(x.lower >= 0.0, x.center, high)
    tangent = _tangent(f, touching, x, 1)
    convex = t.term(t.logical_and(x.lower < 0.0, f.slope(x.upper) >= chord.slope))
    is_chord = t.term(t.logical_or(x.upper <= 0.0, convex))
    return Line(where(is_chord, chord.slope, tangent.slope), where(is_chord, chord.offset, tangent.offset))


def _wave(f: Function, x: Interval) -> Lines:
    """Two lines with the chord's slope s through the extremes of f(v) - s v: at the ends, or where f' = s, which holds
    at most once in each of the three ranges where f' is monotone."""
    slope = _chord_slope(f, x)

    def gap(v: Term) -> Term:
        return f.value(v) - slope * v

    def critical(first: float, last: float, rises: bool) -> Term:
        low = minimum(maximum(x.lower, first), x.upper) if first > -10 else x.lower
        high = maximum(minimum(x.upper, last), low) if last < 10 else x.upper
        for _ in range(_BISECTIONS):
            middle = (low + high) * 0.5
            is_behind = f.slope(middle) > slope if rises else f.slope(middle) < slope
            low, high = where(is_behind, low, middle), where(is_behind, middle, high)
        return (low + high) * 0.5

    ends = [gap(x.lower), gap(x.upper)]
    step = (x.upper - x.lower) * 2.0**-_BISECTIONS
    magnitude = (
        absolute_value(f.value(x.lower)) + absolute_value(f.value(x.upper)) + absolute_value(slope) * x.magnitude
    )
    error = step * step * f.curvature + magnitude * _ERROR + 1e-9  # 1e-9: of the inflection point
    lowest_gap = minimum(minimum(*ends), gap(critical(-f.inflection, f.inflection, True)))
    outer_gaps = [gap(critical(-20.0, -f.inflection, False)), gap(critical(f.inflection, 20.0, False))]
    highest_gap = maximum(maximum(*ends), maximum(*outer_gaps))
    return Lines(Line(slope, lowest_gap - error), Line(slope, highest_gap + error))


def _periodic(f: Function, x: Interval) -> Lines:
    """Two lines with the chord's slope s through the extremes of cos(v - peak) - s v: at the ends, or where
    -sin(v - peak) = s. Constants for an interval wider than half a period."""
    is_narrow = x.upper - x.lower <= pi
    slope = where(is_narrow, minimum(maximum(_chord_slope(f, x), -1.0), 1.0), 0.0)
    nearest_peak = t.term(t.round_even((x.center - f.peak) * (0.5 / pi))) * (2 * pi) + f.peak
    angle = slope.map(ops.Asin())
    critical_points = [
        nearest_peak + sign * angle + (side + period) for sign, side in ((-1.0, 0.0), (1.0, pi)) for period in _PERIODS
    ]
    clamped = [minimum(maximum(v, x.lower), x.upper) for v in critical_points]
    gaps = [f.value(v) - slope * v for v in (x.lower, x.upper, *clamped)]
    lowest_gap, highest_gap = gaps[0], gaps[0]
    for gap in gaps[1:]:
        lowest_gap, highest_gap = minimum(lowest_gap, gap), maximum(highest_gap, gap)
    # a critical point errs by a few ulps of its terms, and the gap by the square of that
    error = (absolute_value(slope) * x.magnitude + 1.0) * _ERROR + _square(x.magnitude * _ERROR + 1e-9)
    low, high = where(is_narrow, lowest_gap - error, -1.0), where(is_narrow, highest_gap + error, 1.0)
    return Lines(Line(slope, low), Line(slope, high))


def _sawtooth(f: Function, x: Interval) -> Lines:
    """x less a constant within a tooth, else constants."""
    is_line, ends = is_one_tooth(f, x), interval_of_function(Rounding(), f, x)
    offset, error = f.value(x.lower) - x.lower, x.magnitude * _ERROR + (F64_UNDERFLOW + f.error)
    slope = where(is_line, t.full(x.lower.shape, 1.0, x.lower.dtype), 0.0)
    return Lines(
        Line(slope, where(is_line, offset - error, ends.lower)), Line(slope, where(is_line, offset + error, ends.upper))
    )


def _square(x: Term) -> Term:
    return x * x
