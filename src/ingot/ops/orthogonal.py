"""Builders of orthogonal polynomials of (x, n), in f64; the degree n may be data, and negative degrees give 0.

Chebyshev polynomials of the four kinds (DLMF 18.5.1-4) use trigonometric functions for |x| < 1 and hyperbolic ones
beyond; the others use their recurrence, in a loop up to the largest degree.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

from ingot.ir.node import Graph, Input, Node
from ingot.ir.types import f64
from ingot.ops.bessel import where
from ingot.ops.build import broadcast_shapes, promote
from ingot.ops.core.control import While
from ingot.ops.core.elementwise import Abs, Floor
from ingot.ops.core.functions import Acos, Acosh, Cos, Cosh, Sin, Sinh
from ingot.ops.nn import terms as t
from ingot.ops.nn.terms import Term

Polynomial = Callable[[Node, Node], Node]


def _of_degree(function: Callable[[Term, Term], Term]) -> Polynomial:
    @wraps(function)
    def build(x: Node, n: Node) -> Node:
        x, n = promote(x, n)
        shape = broadcast_shapes(x.shape, n.shape)
        a, degree = (Term(v).cast(f64).broadcast(shape) for v in (x, n))
        degree = where(degree < 0.0, -(-degree).map(Floor()), degree.map(Floor()))
        return where(degree < 0.0, 0.0, function(a, degree)).cast(x.dtype).node

    return build


def _sign(x: Term, n: Term) -> Term:
    """-1 if x is negative and n odd, else 1."""
    is_odd = (n * 0.5 - (n * 0.5).map(Floor())) > 0.0
    return where((x < 0.0) & is_odd, -1.0, 1.0)


def _angle_ratio(x: Term, numerator: Term, denominator: float, sine: bool) -> Term:
    """sin(numerator * angle) / sin(denominator * angle), or of cosines, with cos(angle) = x >= 0.

    Hyperbolic functions for x > 1.
    """
    is_circular = x < 1.0
    angle, arc = where(is_circular, x, 0.0).map(Acos()), where(is_circular, 2.0, x).map(Acosh())
    circular, hyperbolic = (Sin(), Sinh()) if sine else (Cos(), Cosh())
    circular_ratio = (angle * numerator).map(circular) / (angle * denominator).map(circular)
    hyperbolic_ratio = (arc * numerator).map(hyperbolic) / (arc * denominator).map(hyperbolic)
    limit = numerator * (1 / denominator) if sine else 1.0
    return where(x.equals(1.0), limit, where(is_circular, circular_ratio, hyperbolic_ratio))


@_of_degree
def chebyshev_t(x: Term, n: Term) -> Term:
    """The Chebyshev polynomial of the first kind, cos(n arccos x)."""
    a = x.map(Abs())
    is_circular = a <= 1.0
    circular = (where(is_circular, a, 1.0).map(Acos()) * n).map(Cos())
    hyperbolic = (where(is_circular, 1.0, a).map(Acosh()) * n).map(Cosh())
    return _sign(x, n) * where(is_circular, circular, hyperbolic)


@_of_degree
def chebyshev_u(x: Term, n: Term) -> Term:
    """The Chebyshev polynomial of the second kind."""
    return _sign(x, n) * _angle_ratio(x.map(Abs()), n + 1.0, 1.0, sine=True)


def _half_angles(x: Term, n: Term, sine: bool) -> Term:
    """Chebyshev polynomials of the third (cosines) and fourth kind (sines); at -x each is the other up to sign."""
    a = x.map(Abs())
    direct, mirrored = (_angle_ratio(a, n + 0.5, 0.5, sine=s) for s in (sine, not sine))
    return _sign(x, n) * where(x < 0.0, mirrored, direct)


@_of_degree
def chebyshev_v(x: Term, n: Term) -> Term:
    """The Chebyshev polynomial of the third kind."""
    return _half_angles(x, n, sine=False)


@_of_degree
def chebyshev_w(x: Term, n: Term) -> Term:
    """The Chebyshev polynomial of the fourth kind."""
    return _half_angles(x, n, sine=True)


def shifted_polynomial(polynomial: Polynomial) -> Polynomial:
    """`polynomial` of 2 x - 1."""

    def build(x: Node, n: Node) -> Node:
        x, n = promote(x, n)
        return Term(polynomial((Term(x).cast(f64) * 2.0 - 1.0).node, Term(n).cast(f64).node)).cast(x.dtype).node

    return build


def _recurrence(first: Callable[[Term], Term], step: Callable[[Term, Term, Term, Term], Term]) -> Polynomial:
    """P_0 = 1, P_1 = first(x), P_(k+1) = step(k, x, P_k, P_(k-1))."""

    @_of_degree
    def value(x: Term, n: Term) -> Term:
        max_degree = n.reduce("max", range(n.rank), keepdims=False)
        start = first(x)
        state = (t.scalar(1.0, f64), max_degree, x, n, x * 0.0 + 1.0, start)
        k, end, a, degree, previous, current = inputs = [
            Term(Input(f"v{i}", s.node.type)()) for i, s in enumerate(state)
        ]
        going = degree > k
        next_state = (
            k + 1.0,
            end,
            a,
            degree,
            where(going, current, previous),
            where(going, step(k, a, current, previous), current),
        )
        nodes = tuple(i.node for i in inputs)
        loop = While(Graph(nodes, ((k < end).node,)), Graph(nodes, tuple(r.node for r in next_state)))
        result = Term(loop(*(s.node for s in state)).results[5])
        return where(n < 1.0, 1.0, result)

    return value


hermite_he = _recurrence(lambda x: x, lambda k, x, p, q: x * p - k * q)
hermite_h = _recurrence(lambda x: x * 2.0, lambda k, x, p, q: (x * p - k * q) * 2.0)
laguerre_l = _recurrence(lambda x: 1.0 - x, lambda k, x, p, q: ((k * 2.0 + 1.0 - x) * p - k * q) / (k + 1.0))
legendre_p = _recurrence(lambda x: x, lambda k, x, p, q: ((k * 2.0 + 1.0) * x * p - k * q) / (k + 1.0))
