"""Orthogonal polynomials of any degree, which may be data: builders of (x, n), in f64, 0 for negative degrees.

Chebyshev's four kinds (DLMF 18.5.1-4) by circular functions for |x| < 1, by hyperbolic ones beyond; the others by their
recurrence, in a loop to the largest degree.
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
    """-1 for negative x and odd n."""
    odd = (n * 0.5 - (n * 0.5).map(Floor())) > 0.0
    return where((x < 0.0) & odd, -1.0, 1.0)


def _ratio(x: Term, top: Term, bottom: float, sine: bool) -> Term:
    """sin(top angle) / sin(bottom angle) with cos(angle) = x >= 0, or of cosines; hyperbolic where x > 1."""
    inside = x < 1.0
    angle, arc = where(inside, x, 0.0).map(Acos()), where(inside, 2.0, x).map(Acosh())
    circular, hyperbolic = (Sin(), Sinh()) if sine else (Cos(), Cosh())
    near = (angle * top).map(circular) / (angle * bottom).map(circular)
    far = (arc * top).map(hyperbolic) / (arc * bottom).map(hyperbolic)
    limit = top * (1 / bottom) if sine else 1.0
    return where(x.equals(1.0), limit, where(inside, near, far))


@_of_degree
def chebyshev_t(x: Term, n: Term) -> Term:
    a = x.map(Abs())
    inside = a <= 1.0
    near = (where(inside, a, 1.0).map(Acos()) * n).map(Cos())
    far = (where(inside, 1.0, a).map(Acosh()) * n).map(Cosh())
    return _sign(x, n) * where(inside, near, far)


@_of_degree
def chebyshev_u(x: Term, n: Term) -> Term:
    return _sign(x, n) * _ratio(x.map(Abs()), n + 1.0, 1.0, sine=True)


def _half_angles(x: Term, n: Term, sine: bool) -> Term:
    """Chebyshev's third kind (cosines) and fourth (sines), which are each other's at -x but for the sign."""
    a = x.map(Abs())
    own, other = (_ratio(a, n + 0.5, 0.5, sine=s) for s in (sine, not sine))
    return _sign(x, n) * where(x < 0.0, other, own)


@_of_degree
def chebyshev_v(x: Term, n: Term) -> Term:
    return _half_angles(x, n, sine=False)


@_of_degree
def chebyshev_w(x: Term, n: Term) -> Term:
    return _half_angles(x, n, sine=True)


def shifted(polynomial: Polynomial) -> Polynomial:
    """`polynomial` of 2 x - 1."""

    def build(x: Node, n: Node) -> Node:
        x, n = promote(x, n)
        return Term(polynomial((Term(x).cast(f64) * 2.0 - 1.0).node, Term(n).cast(f64).node)).cast(x.dtype).node

    return build


def _recurrence(first: Callable[[Term], Term], step: Callable[[Term, Term, Term, Term], Term]) -> Polynomial:
    """P_0 = 1, P_1 = first(x), P_(k+1) = step(k, x, P_k, P_(k-1))."""

    @_of_degree
    def value(x: Term, n: Term) -> Term:
        most = n.reduce("max", range(n.rank), keepdims=False)
        start = first(x)
        state = (t.scalar(1.0, f64), most, x, n, x * 0.0 + 1.0, start)
        k, end, a, degree, last, now = inputs = [Term(Input(f"v{i}", s.node.type)()) for i, s in enumerate(state)]
        going = degree > k
        renewed = (k + 1.0, end, a, degree, where(going, now, last), where(going, step(k, a, now, last), now))
        nodes = tuple(i.node for i in inputs)
        loop = While(Graph(nodes, ((k < end).node,)), Graph(nodes, tuple(r.node for r in renewed)))
        result = Term(loop(*(s.node for s in state)).results[5])
        return where(n < 1.0, 1.0, result)

    return value


hermite_he = _recurrence(lambda x: x, lambda k, x, p, q: x * p - k * q)
hermite_h = _recurrence(lambda x: x * 2.0, lambda k, x, p, q: (x * p - k * q) * 2.0)
laguerre_l = _recurrence(lambda x: 1.0 - x, lambda k, x, p, q: ((k * 2.0 + 1.0 - x) * p - k * q) / (k + 1.0))
legendre_p = _recurrence(lambda x: x, lambda k, x, p, q: ((k * 2.0 + 1.0) * x * p - k * q) / (k + 1.0))
