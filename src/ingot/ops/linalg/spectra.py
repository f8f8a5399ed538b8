"""What QR, singular values and eigenvalues are for: orthogonal bases, least squares, inverses of any matrix, e^x."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ingot.ir.dims import DimLike, dim_min
from ingot.ir.node import Node
from ingot.ir.types import f32, i64
from ingot.ops.core.elementwise import Ceil, IsFinite
from ingot.ops.linalg import matrices as m
from ingot.ops.linalg.jacobi import SVD
from ingot.ops.linalg.reflectors import HouseholderQR, Reflect
from ingot.ops.linalg.systems import transposed, triangle
from ingot.ops.nn import terms as t
from ingot.ops.nn.terms import Term


def householder_product(v: Node, tau: Node, columns: DimLike | None = None) -> Node:
    """The first columns (v's, unless told) of the product of reflections."""
    *batch, rows, given = v.shape
    wanted = given if columns is None else columns
    eye = m.identity(Term(v), wanted).reshape((rows, wanted)).broadcast((*batch, rows, wanted))
    return Reflect()(v, tau, eye.node)


def qr(x: Node, complete: bool = False) -> tuple[Node, Node]:
    """q[..., m, k], r[..., k, n] with x = q r; k is m where `complete`, else min(m, n)."""
    packed, tau = HouseholderQR()(x).results
    *_, rows, columns = x.shape
    k = rows if complete else dim_min(rows, columns)
    v = Term(packed).slice(x.type.rank - 1, 0, tau.shape[-1]).node
    return householder_product(v, tau, k), triangle(Term(packed).slice(x.type.rank - 2, 0, k).node, upper=True)


def completed(q: Node) -> Node:
    """Orthonormal columns q[..., m, k], and such that make [..., m, m] of them."""
    *_, rows, columns = q.shape
    axis = q.type.rank - 1
    full, _ = qr(q, complete=True)
    # its r is the identity but for signs: the first columns are q itself
    rest = Term(full).slice(axis, columns, rows)
    return t.concat([Term(q), rest], axis).node


def svd(x: Node, full: bool = False) -> tuple[Node, Node, Node]:
    """u, s, v with x = u diag(s) v^T; `full`: square u and v."""
    u, s, v = SVD()(x).results
    if full:
        u, v = (side if side.shape[-1] == side.shape[-2] else completed(side) for side in (u, v))
    return u, s, v


def pseudo_inverse(x: Node, least: Node) -> Node:
    """x's Moore-Penrose inverse; singular values up to `least`[...] count as 0."""
    u, s, v = SVD()(x).results
    return _product(v, _reciprocal(s, least), transposed(u))


def _reciprocal(s: Node, least: Node) -> Node:
    values = Term(s)
    kept = values > Term(least).expand(values.rank - 1)
    return m.where(kept, 1.0 / m.where(kept, values, 1.0), values * 0.0).node


def _product(left: Node, weights: Node, right: Node) -> Node:
    """left diag(weights) right."""
    a, b = m.as_batch(left), m.as_batch(right)
    scaled = a * Term(weights).reshape((a.shape[0], 1, a.shape[2]))
    return m.times(scaled, b).reshape((*left.shape[:-1], right.shape[-1])).node


def least_squares(a: Node, b: Node, least: Node) -> tuple[Node, Node]:
    """The shortest x[..., n, k] of those with the smallest |a x - b|, and a's singular values; those up to `least`[...]
    count as 0."""
    u, s, v = SVD()(a).results
    projected = m.times(m.transposed(m.as_batch(u)), m.as_batch(b))
    lead = (*s.shape[:-1], s.shape[-1], b.shape[-1])
    return _product(v, _reciprocal(s, least), projected.reshape(lead).node), s


def exponential(x: Node) -> Node:
    """e^x of square matrices: Taylor's series of x / 2^k, whose 1-norm is at most 1, squared k times, by the blocks of
    "On the number of nonscalar multiplications necessary to evaluate polynomials" (Paterson and Stockmeyer, 1973)."""
    a = m.as_batch(x)
    if x.shape[-1] == 0:
        return x
    degree = 11 if x.dtype == f32 else 19
    size = t.absolute(a)
    assert isinstance(size, Term)
    norm = size.sum((1,)).max((2,))
    halvings = (t.log(m.where(norm > 1.0, norm, 1.0)) * (1 / math.log(2))).map(Ceil())
    halvings = m.where(Term(IsFinite()(halvings.node)), halvings, 0.0)
    scaled = a * t.scalar(2.0, a.dtype) ** -halvings
    powers = [m.identity(a).broadcast(a.shape), scaled]
    for _ in range(3):
        powers.append(m.times(powers[-1], scaled))
    out = _block(powers, degree - 3)
    for first in range(degree - 7, -1, -4):
        out = m.times(powers[4], out) + _block(powers, first)

    def square(i: Term, y: Term, halvings: Term) -> list[Term]:
        return [m.where(i.cast(y.dtype) < halvings, m.times(y, y), y)]

    most = halvings.reduce("max", (0, 1, 2), keepdims=False)
    (out,) = m.repeat(most.cast(i64), [out], square, [halvings])
    return out.reshape(x.shape).node


def _block(powers: Sequence[Term], first: int) -> Term:
    """sum_i x^i / (first + i)!, i < 4."""
    out = powers[0] * (1 / math.factorial(first))
    for i in (1, 2, 3):
        out = out + powers[i] * (1 / math.factorial(first + i))
    return out
