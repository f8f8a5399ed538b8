"""A builder of the regularized incomplete beta function, in f64.

It evaluates the continued fraction DLMF 8.17.22 by Lentz's algorithm, on the side of the mean where it converges fast.
"""

from __future__ import annotations

import math

from ingot.ir.node import Node
from ingot.ir.types import f64
from ingot.ops import special
from ingot.ops.bessel import where
from ingot.ops.build import broadcast_shapes, promote
from ingot.ops.core.elementwise import Abs
from ingot.ops.core.functions import Exp, Log, Log1p
from ingot.ops.incomplete_gamma import Step, iterate_until_converged, replace_zero
from ingot.ops.nn.terms import Term


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
    value_of_side = prefactor * _fraction(first, second, y) / first
    value = where(is_mirrored, 1.0 - value_of_side, value_of_side)
    return where(is_valid, where(inside, value, where(x64 > 0.0, 1.0, 0.0)), math.nan).cast(x.dtype).node


def _fraction(a: Term, b: Term, x: Term) -> Term:
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
