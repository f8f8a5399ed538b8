"""The regularized incomplete beta function, as a builder in f64: its continued fraction by Lentz's algorithm (DLMF
8.17.22), on the side of the mean where it converges soon."""

from __future__ import annotations

import math

from ingot.ir.node import Node
from ingot.ir.types import f64
from ingot.ops import special
from ingot.ops.bessel import where
from ingot.ops.build import broadcast_shapes, promote
from ingot.ops.core.elementwise import Abs
from ingot.ops.core.functions import Exp, Log, Log1p
from ingot.ops.incomplete_gamma import Step, off_zero, until_settled
from ingot.ops.nn.terms import Term


def betainc(a: Node, b: Node, x: Node) -> Node:
    """I_x(a, b), the integral of t^(a - 1) (1 - t)^(b - 1) from 0 to x over that to 1. NaN unless a and b are positive
    and finite and 0 <= x <= 1."""
    a, b, x = promote(a, b, x)
    shape = broadcast_shapes(a.shape, b.shape, x.shape)
    p, q, at = (Term(v).cast(f64).broadcast(shape) for v in (a, b, x))
    fits = (p > 0.0) & (q > 0.0) & (p < math.inf) & (q < math.inf) & (at >= 0.0) & (at <= 1.0)
    inside = fits & (at > 0.0) & (at < 1.0)
    # what an element does not need is computed of harmless operands
    p, q, place = where(inside, p, 1.0), where(inside, q, 1.0), where(inside, at, 0.5)
    whole, left, right = (Term(special.lgamma(v.node)) for v in (p + q, p, q))
    front = (p * place.map(Log()) + q * (-place).map(Log1p()) + whole - left - right).map(Exp())
    far = place > (p + 1.0) / (p + q + 2.0)
    own, other, y = where(far, q, p), where(far, p, q), where(far, 1.0 - place, place)
    part = front * _fraction(own, other, y) / own
    value = where(far, 1.0 - part, part)
    return where(fits, where(inside, value, where(at > 0.0, 1.0, 0.0)), math.nan).cast(x.dtype).node


def _fraction(a: Term, b: Term, x: Term) -> Term:
    """1 / (1 + d1 / (1 + d2 / (1 + ...))), two of its terms with each step."""

    def step(m: Term, a: Term, b: Term, x: Term, c: Term, d: Term, h: Term) -> Step:
        even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0))
        for term in (even, odd):
            d, c = 1.0 / off_zero(1.0 + term * d), off_zero(1.0 + term / c)
            h = h * d * c
        return (a, b, x, c, d, h), where((d * c - 1.0).map(Abs()) > 1e-15, 1.0, 0.0)

    d = 1.0 / off_zero(1.0 - (a + b) * x / (a + 1.0))
    return until_settled([a, b, x, x * 0.0 + 1.0, d, d], step)[5]
