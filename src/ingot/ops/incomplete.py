"""Builders of the regularized incomplete gamma and beta functions, in f64.

P is computed by its power series for x <= a + 1, and Q by Legendre's continued fraction for larger x (DLMF 8.11.4,
8.9.2), each in a loop until all elements converge. For large a and x near a both take about sqrt(a) steps; from a =
10^4 on, the first term of Temme's uniform expansion replaces them (DLMF 8.12.3, 8.12.4; error 1e-9).

The incomplete beta function is the continued fraction DLMF 8.17.22 by Lentz's algorithm, on the side of the mean where
it converges fast.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ingot.ir.node import Graph, Input, Node
from ingot.ir.types import boolean, f64
from ingot.ops import special
from ingot.ops.bessel import where
from ingot.ops.build import broadcast_shapes, promote
from ingot.ops.core.control import While
from ingot.ops.core.elementwise import Abs, Sqrt
from ingot.ops.core.functions import Exp, Log, Log1p
from ingot.ops.nn import terms as t
from ingot.ops.nn.terms import Term

_UNIFORM_MIN_A = 1e4
_MAX_STEPS = 2000
_RELATIVE_ERROR = 1e-16
# the Taylor series of Temme's first coefficient at eta = 0 (DLMF 8.12.9)
_TEMME = (-1 / 3, 1 / 12, -2 / 135, 1 / 864, 1 / 2835, -139 / 777600)


# (next state, 1 where it has not converged)
Step = tuple[tuple[Term, ...], Term]


def igamma(a: Node, x: Node) -> Node:
    """P(a, x) = 1 / gamma(a) times the integral of exp(-t) t^(a - 1) from 0 to x; NaN for negative operands."""
    return _regularized(a, x, upper=False)


def igammac(a: Node, x: Node) -> Node:
    """Q(a, x) = 1 - P(a, x)."""
    return _regularized(a, x, upper=True)


def _regularized(shape_: Node, x_: Node, upper: bool) -> Node:
    shape_, x_ = promote(shape_, x_)
    shape = broadcast_shapes(shape_.shape, x_.shape)
    a, x = (Term(v).cast(f64).broadcast(shape) for v in (shape_, x_))
    finite = (a > 0.0) & (x > 0.0) & (a < math.inf) & (x < math.inf)
    use_uniform = a > _UNIFORM_MIN_A
    use_series = x <= a + 1.0
    # branches that an element does not use get harmless operands
    safe_a, safe_x = where(finite & (a <= _UNIFORM_MIN_A), a, 1.0), where(finite & (a <= _UNIFORM_MIN_A), x, 1.0)
    log_gamma = Term(special.lgamma(safe_a.node))
    prefactor = (safe_a * safe_x.map(Log()) - safe_x - log_gamma).map(Exp())
    lower_value = prefactor * _series(safe_a, where(safe_x <= safe_a + 1.0, safe_x, 0.0))
    upper_value = prefactor * _gamma_fraction(safe_a, where(safe_x <= safe_a + 1.0, safe_a + 2.0, safe_x))
    value = (
        where(use_series, 1.0 - lower_value, upper_value)
        if upper
        else where(use_series, lower_value, 1.0 - upper_value)
    )
    value = where(
        use_uniform, _uniform(where(finite & use_uniform, a, 1.0), where(finite & use_uniform, x, 1.0), upper), value
    )
    # limits
    at_zero, at_infinity = (1.0, 0.0) if upper else (0.0, 1.0)
    value = where(x.equals(0.0) | a.equals(math.inf), at_zero, value)
    value = where((a.equals(0.0) & (x > 0.0)) | (x.equals(math.inf) & (a < math.inf)), at_infinity, value)
    both_zero = a.equals(0.0) & x.equals(0.0)
    both_infinite = a.equals(math.inf) & x.equals(math.inf)
    is_valid = (a >= 0.0) & (x >= 0.0)
    return where(is_valid, where(both_zero | both_infinite, math.nan, value), math.nan).cast(x_.dtype).node


def iterate_until_converged(state: list[Term], step: Callable[..., Step]) -> list[Term]:
    """The state after iterating `step` (k, *state) -> (state, changed) until none changes, at most _MAX_STEPS times."""
    initial_state = [t.scalar(1.0, f64), t.scalar(True, boolean), *state]
    inputs = [Term(Input(f"v{i}", s.node.type)()) for i, s in enumerate(initial_state)]
    next_state, changed = step(*(inputs[0], *inputs[2:]))
    going = changed.reduce("max", range(changed.rank), keepdims=False) > 0.0
    out = (inputs[0] + 1.0, going & (inputs[0] < float(_MAX_STEPS)), *next_state)
    nodes = tuple(i.node for i in inputs)
    loop = While(Graph(nodes, (nodes[1],)), Graph(nodes, tuple(o.node for o in out)))
    return [Term(r) for r in loop(*(s.node for s in initial_state)).results[2:]]


def _series(a: Term, x: Term) -> Term:
    """1 / a + x / (a (a + 1)) + ..."""

    def step(k: Term, a: Term, x: Term, term: Term, total: Term) -> Step:
        term = term * x / (a + k)
        return (a, x, term, total + term), where(term > total * _RELATIVE_ERROR, 1.0, 0.0)

    return iterate_until_converged([a, x, 1.0 / a, 1.0 / a], step)[3]


def _gamma_fraction(a: Term, x: Term) -> Term:
    """1 / (x + 1 - a - 1 (1 - a) / (x + 3 - a - 2 (2 - a) / (x + 5 - a - ...))), by Lentz's algorithm."""

    def step(k: Term, a: Term, b: Term, c: Term, d: Term, h: Term) -> Step:
        numerator, b = k * (a - k), b + 2.0
        d, c = 1.0 / replace_zero(numerator * d + b), replace_zero(b + numerator / c)
        factor = c * d
        return (a, b, c, d, h * factor), where((factor - 1.0).map(Abs()) > 4 * _RELATIVE_ERROR, 1.0, 0.0)

    b = x + 1.0 - a
    d = 1.0 / replace_zero(b)
    return iterate_until_converged([a, b, b * 0.0 + 1e300, d, d], step)[4]


def replace_zero(x: Term) -> Term:
    """x with zeros replaced by a tiny number, for Lentz's algorithm."""
    return where(x.equals(0.0), 1e-300, x)


def _uniform(a: Term, x: Term, upper: bool) -> Term:
    """erfc(+-eta sqrt(a / 2)) / 2 +- exp(-a eta^2 / 2) / sqrt(2 pi a) C(eta), eta^2 / 2 = x / a - 1 - log(x / a)."""
    m = (x - a) / a
    is_small = m.map(Abs()) < 0.01
    # m - log(1 + m) cancels for small m
    power, series = m * m, m * 0.0
    for n in range(2, 10):
        series, power = series + power * ((-1) ** n / n), power * m
    half_square = where(is_small, series, m - m.map(Log1p()))
    eta = where(m < 0.0, -1.0, 1.0) * (half_square * 2.0).map(Sqrt())
    is_near_zero = eta.map(Abs()) < 0.05
    polynomial = eta * 0.0
    for c in reversed(_TEMME):
        polynomial = polynomial * eta + c
    coefficient = where(
        is_near_zero, polynomial, 1.0 / where(is_near_zero, 1.0, m) - 1.0 / where(is_near_zero, 1.0, eta)
    )
    correction = (-(a * half_square)).map(Exp()) / (a * (2 * math.pi)).map(Sqrt()) * coefficient
    argument = eta * (a * 0.5).map(Sqrt())
    tail = Term(special.erfc((argument if upper else -argument).node)) * 0.5
    return tail + correction if upper else tail - correction


def betainc(a: Node, b: Node, x: Node) -> Node:
    """I_x(a, b): the integral of t^(a - 1) (1 - t)^(b - 1) from 0 to x, divided by that from 0 to 1.

    NaN unless a and b are positive and finite and 0 <= x <= 1.
    """
    a, b, x = promote(a, b, x)
    shape = broadcast_shapes(a.shape, b.shape, x.shape)
    p, q, x64 = (Term(v).cast(f64).broadcast(shape) for v in (a, b, x))
    is_valid = (p > 0.0) & (q > 0.0) & (p < math.inf) & (q < math.inf) & (x64 >= 0.0) & (x64 <= 1.0)
    inside = is_valid & (x64 > 0.0) & (x64 < 1.0)
    # branches that an element does not use get harmless operands
    p, q, safe_x = where(inside, p, 1.0), where(inside, q, 1.0), where(inside, x64, 0.5)
    lgamma_sum, lgamma_p, lgamma_q = (Term(special.lgamma(v.node)) for v in (p + q, p, q))
    prefactor = (p * safe_x.map(Log()) + q * (-safe_x).map(Log1p()) + lgamma_sum - lgamma_p - lgamma_q).map(Exp())
    is_mirrored = safe_x > (p + 1.0) / (p + q + 2.0)
    first, second, y = where(is_mirrored, q, p), where(is_mirrored, p, q), where(is_mirrored, 1.0 - safe_x, safe_x)
    value_of_side = prefactor * _beta_fraction(first, second, y) / first
    value = where(is_mirrored, 1.0 - value_of_side, value_of_side)
    return where(is_valid, where(inside, value, where(x64 > 0.0, 1.0, 0.0)), math.nan).cast(x.dtype).node


def _beta_fraction(a: Term, b: Term, x: Term) -> Term:
    """1 / (1 + d1 / (1 + d2 / (1 + ...))), evaluated two terms a step."""

    def step(m: Term, a: Term, b: Term, x: Term, c: Term, d: Term, h: Term) -> Step:
        even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0))
        for term in (even, odd):
            d, c = 1.0 / replace_zero(1.0 + term * d), replace_zero(1.0 + term / c)
            h = h * d * c
        return (a, b, x, c, d, h), where((d * c - 1.0).map(Abs()) > 1e-15, 1.0, 0.0)

    d = 1.0 / replace_zero(1.0 - (a + b) * x / (a + 1.0))
    return iterate_until_converged([a, b, x, x * 0.0 + 1.0, d, d], step)[5]
