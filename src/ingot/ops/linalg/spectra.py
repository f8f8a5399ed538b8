"""Builders on QR and SVD: orthogonal bases, least squares, pseudo-inverses; and the matrix exponential."""

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
    """The first `columns` columns (by default as many as v has) of the product of the reflections v, tau."""
    *batch, rows, n_vectors = v.shape
    n_columns = n_vectors if columns is None else columns
    eye = m.identity(Term(v), n_columns).reshape((rows, n_columns)).broadcast((*batch, rows, n_columns))
    return Reflect()(v, tau, eye.node)


def qr(x: Node, complete: bool = False) -> tuple[Node, Node]:
    """(q[..., m, k], r[..., k, n]) with x = q r; k is m if `complete`, else min(m, n)."""
    packed, tau = HouseholderQR()(x).results
    *_, rows, columns = x.shape
    k = rows if complete else dim_min(rows, columns)
    v = Term(packed).slice(x.type.rank - 1, 0, tau.shape[-1]).node
    return householder_product(v, tau, k), triangle(Term(packed).slice(x.type.rank - 2, 0, k).node, upper=True)


def completed(q: Node) -> Node:
    """The orthonormal columns q[..., m, k], completed to an orthogonal matrix [..., m, m]."""
    *_, rows, columns = q.shape
    axis = q.type.rank - 1
    full, _ = qr(q, complete=True)
    # the r of q is the identity up to signs, so the first columns are q
    extra_columns = Term(full).slice(axis, columns, rows)
    return t.concat([Term(q), extra_columns], axis).node


def svd(x: Node, full: bool = False) -> tuple[Node, Node, Node]:
    """(u, s, v) with x = u diag(s) v^T; u and v are square if `full`."""
    u, s, v = SVD()(x).results
    if full:
        u, v = (factor if factor.shape[-1] == factor.shape[-2] else completed(factor) for factor in (u, v))
    return u, s, v


def pseudo_inverse(x: Node, tolerance: Node) -> Node:
    """The Moore-Penrose inverse of x; singular values up to `tolerance`[...] count as 0."""
    u, s, v = SVD()(x).results
    return _product(v, _reciprocal(s, tolerance), transposed(u))


def _reciprocal(s: Node, tolerance: Node) -> Node:
    values = Term(s)
    is_nonzero = values > Term(tolerance).expand(values.rank - 1)
    return m.where(is_nonzero, 1.0 / m.where(is_nonzero, values, 1.0), values * 0.0).node


def _product(lhs: Node, weights: Node, rhs: Node) -> Node:
    """lhs diag(weights) rhs."""
    a, b = m.as_batch(lhs), m.as_batch(rhs)
    scaled = a * Term(weights).reshape((a.shape[0], 1, a.shape[2]))
    return m.matmul(scaled, b).reshape((*lhs.shape[:-1], rhs.shape[-1])).node


def least_squares(a: Node, b: Node, tolerance: Node) -> tuple[Node, Node]:
    """The least-squares solution x[..., n, k] of a x = b of minimal norm, and the singular values of a.

    Singular values up to `tolerance`[...] count as 0.
    """
    u, s, v = SVD()(a).results
    projected = m.matmul(m.transpose(m.as_batch(u)), m.as_batch(b))
    shape = (*s.shape[:-1], s.shape[-1], b.shape[-1])
    return _product(v, _reciprocal(s, tolerance), projected.reshape(shape).node), s


def exponential(x: Node) -> Node:
    """The matrix exponential: the Taylor series of x / 2^k, whose 1-norm is at most 1, squared k times.

    The series is evaluated in blocks ("On the number of nonscalar multiplications necessary to evaluate polynomials",
    Paterson and Stockmeyer, 1973).
    """
    a = m.as_batch(x)
    if x.shape[-1] == 0:
        return x
    degree = 11 if x.dtype == f32 else 19
    absolute = t.absolute(a)
    assert isinstance(absolute, Term)
    norm = absolute.sum((1,)).max((2,))
    halvings = (t.log(m.where(norm > 1.0, norm, 1.0)) * (1 / math.log(2))).map(Ceil())
    halvings = m.where(Term(IsFinite()(halvings.node)), halvings, 0.0)
    scaled = a * t.scalar(2.0, a.dtype) ** -halvings
    powers = [m.identity(a).broadcast(a.shape), scaled]
    for _ in range(3):
        powers.append(m.matmul(powers[-1], scaled))
    out = _taylor_block(powers, degree - 3)
    for first in range(degree - 7, -1, -4):
        out = m.matmul(powers[4], out) + _taylor_block(powers, first)

    def square(i: Term, y: Term, halvings: Term) -> list[Term]:
        return [m.where(i.cast(y.dtype) < halvings, m.matmul(y, y), y)]

    max_halvings = halvings.reduce("max", (0, 1, 2), keepdims=False)
    (out,) = m.for_loop(max_halvings.cast(i64), [out], square, [halvings])
    return out.reshape(x.shape).node


def _taylor_block(powers: Sequence[Term], first: int) -> Term:
    """The sum of x^i / (first + i)! over i < 4."""
    out = powers[0] * (1 / math.factorial(first))
    for i in (1, 2, 3):
        out = out + powers[i] * (1 / math.factorial(first + i))
    return out
