"""The regularized incomplete gamma functions, as builders in f64.

P by its power series up to x = a + 1 and Q by Legendre's continued fraction beyond (DLMF 8.11.4, 8.9.2), each in a loop
until no element changes; for large a and x near it both take about sqrt(a) steps, and from 10^4 on Temme's uniform
expansion takes their place (DLMF 8.12.3, 8.12.4; its first term, right to 1e-9).
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

_LARGE = 1e4
_STEPS = 2000
_EXACT = 1e-16
# of Temme's first coefficient around eta = 0 (DLMF 8.12.9)
_TEMME = (-1 / 3, 1 / 12, -2 / 135, 1 / 864, 1 / 2835, -139 / 777600)


# the next state, and 1 where it changed
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
    large = a > _LARGE
    below = x <= a + 1.0
    # what an element does not need is computed of harmless operands
    plain_a, plain_x = where(finite & (a <= _LARGE), a, 1.0), where(finite & (a <= _LARGE), x, 1.0)
    log_gamma = Term(special.lgamma(plain_a.node))
    front = (plain_a * plain_x.map(Log()) - plain_x - log_gamma).map(Exp())
    lower = front * _series(plain_a, where(plain_x <= plain_a + 1.0, plain_x, 0.0))
    above = front * _fraction(plain_a, where(plain_x <= plain_a + 1.0, plain_a + 2.0, plain_x))
    value = where(below, 1.0 - lower, above) if upper else where(below, lower, 1.0 - above)
    value = where(large, _uniform(where(finite & large, a, 1.0), where(finite & large, x, 1.0), upper), value)
    # the limits
    none, all_ = (1.0, 0.0) if upper else (0.0, 1.0)
    value = where(x.equals(0.0) | a.equals(math.inf), none, value)
    value = where((a.equals(0.0) & (x > 0.0)) | (x.equals(math.inf) & (a < math.inf)), all_, value)
    zero = a.equals(0.0) & x.equals(0.0)
    infinite = a.equals(math.inf) & x.equals(math.inf)
    inside = (a >= 0.0) & (x >= 0.0)
    return where(inside, where(zero | infinite, math.nan, value), math.nan).cast(x_.dtype).node


def until_settled(state: list[Term], step: Callable[..., Step]) -> list[Term]:
    """`step` (k, *state) -> (state, changed) until nothing changes, at most _STEPS times."""
    first = [t.scalar(1.0, f64), t.scalar(True, boolean), *state]
    inputs = [Term(Input(f"v{i}", s.node.type)()) for i, s in enumerate(first)]
    renewed, changed = step(*(inputs[0], *inputs[2:]))
    going = changed.reduce("max", range(changed.rank), keepdims=False) > 0.0
    out = (inputs[0] + 1.0, going & (inputs[0] < float(_STEPS)), *renewed)
    nodes = tuple(i.node for i in inputs)
    loop = While(Graph(nodes, (nodes[1],)), Graph(nodes, tuple(o.node for o in out)))
    return [Term(r) for r in loop(*(s.node for s in first)).results[2:]]


def _series(a: Term, x: Term) -> Term:
    """1 / a + x / (a (a + 1)) + ..."""

    def step(k: Term, a: Term, x: Term, term: Term, total: Term) -> Step:
        term = term * x / (a + k)
        return (a, x, term, total + term), where(term > total * _EXACT, 1.0, 0.0)

    return until_settled([a, x, 1.0 / a, 1.0 / a], step)[3]


def _fraction(a: Term, x: Term) -> Term:
    """1 / (x + 1 - a - 1 (1 - a) / (x + 3 - a - 2 (2 - a) / (x + 5 - a - ...))), by Lentz's algorithm."""

    def step(k: Term, a: Term, b: Term, c: Term, d: Term, h: Term) -> Step:
        numerator, b = k * (a - k), b + 2.0
        d, c = 1.0 / off_zero(numerator * d + b), off_zero(b + numerator / c)
        factor = c * d
        return (a, b, c, d, h * factor), where((factor - 1.0).map(Abs()) > 4 * _EXACT, 1.0, 0.0)

    b = x + 1.0 - a
    d = 1.0 / off_zero(b)
    return until_settled([a, b, b * 0.0 + 1e300, d, d], step)[4]


def off_zero(x: Term) -> Term:
    return where(x.equals(0.0), 1e-300, x)


def _uniform(a: Term, x: Term, upper: bool) -> Term:
    """erfc(+-eta sqrt(a / 2)) / 2 +- exp(-a eta^2 / 2) / sqrt(2 pi a) C(eta), eta^2 / 2 = x / a - 1 - log(x / a)."""
    m = (x - a) / a
    near = m.map(Abs()) < 0.01
    # m - log(1 + m) cancels for small m
    power, series = m * m, m * 0.0
    for n in range(2, 10):
        series, power = series + power * ((-1) ** n / n), power * m
    half_square = where(near, series, m - m.map(Log1p()))
    eta = where(m < 0.0, -1.0, 1.0) * (half_square * 2.0).map(Sqrt())
    small = eta.map(Abs()) < 0.05
    polynomial = eta * 0.0
    for c in reversed(_TEMME):
        polynomial = polynomial * eta + c
    coefficient = where(small, polynomial, 1.0 / where(small, 1.0, m) - 1.0 / where(small, 1.0, eta))
    rest = (-(a * half_square)).map(Exp()) / (a * (2 * math.pi)).map(Sqrt()) * coefficient
    side = eta * (a * 0.5).map(Sqrt())
    tail = Term(special.erfc((side if upper else -side).node)) * 0.5
    return tail + rest if upper else tail - rest
