"""Singular values and eigenvalues by one-sided Jacobi rotations.

The rows of x are rotated in pairs until they are orthogonal: then x = v s u^T, with the rotations' product v, the rows'
lengths s and their directions u ("Inversion of matrices by biorthogonalization", Hestenes, 1958). Half of all rows meet
the other half at once, in the order of a round robin ("The solution of singular-value and symmetric eigenvalue problems
on multiprocessor arrays", Brent and Luk, 1985).

A symmetric matrix plus so much of the identity that it is positive has its eigenvectors as v.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from ingot.ir.dims import DimLike, at_most
from ingot.ir.node import Node, Op, Samples
from ingot.ir.types import TensorType
from ingot.ops.core.base import check_count
from ingot.ops.core.elementwise import Sqrt
from ingot.ops.core.indexing import Sort
from ingot.ops.core.reduce import ArgReduce
from ingot.ops.linalg import matrices as m
from ingot.ops.linalg.reflectors import HouseholderQR, Reflect
from ingot.ops.nn import terms as t
from ingot.ops.nn.terms import Term
from ingot.support.dataclass import dataclass

_SWEEPS = 40  # quadratic convergence takes 6 to 10


@dataclass(frozen=True)
class Eigh(Op):
    """The eigenvalues w[..., n] of symmetric x[..., n, n], ascending, and eigenvectors, the columns of v[..., n, n].

    The lower triangle of x is read. Of each vector the first among the elements of largest size is positive.
    """

    name: ClassVar[str] = "eigh"

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        check_count(self, inputs, 1)
        (x,) = inputs
        m.check_matrices(self, x, square=True)
        return x.with_shape(x.shape[:-1]), x

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        x = inputs[0]
        lower = np.tril(x.astype(np.float64))
        full = lower + np.tril(lower, -1).swapaxes(-1, -2)
        finite = np.asarray(np.isfinite(full).all((-1, -2), keepdims=True))
        w, v = np.linalg.eigh(np.where(finite, full, 0))
        v = v * _signs(v)
        return np.where(finite[..., 0], w, np.nan).astype(x.dtype), np.where(finite, v, np.nan).astype(x.dtype)

    @m.in_f32
    def lower(self, *inputs: Node) -> tuple[Node, ...]:
        x = m.as_batch(inputs[0])
        n = x.shape[1]
        scale = m.magnitude(m.triangle(x))
        x = m.symmetric(x) / scale
        size = t.absolute(x)
        assert isinstance(size, Term)
        # no eigenvalue is larger than the largest sum of a row
        shift = size.sum((2,)).max((1,))
        _, v = _orthogonal(x + m.identity(x) * shift, vectors=True)
        values = (v * m.times(v, x)).sum((2,), keepdims=False)
        values, order = _sorted(values)
        v = m.rows_at(v, order)
        v = v * _sign_of(v, values)
        w = values * scale.reshape((scale.shape[0], 1))
        return w.reshape(inputs[0].shape[:-1]).node, m.transposed(v).reshape((*inputs[0].shape[:-2], n, n)).node

    @classmethod
    def samples(cls) -> Samples:
        rng = np.random.default_rng(0)
        yield cls(), (rng.normal(size=(2, 5, 5)).astype(np.float32),)
        bad = rng.normal(size=(3, 3, 3))
        bad[0, 1, 0], bad[1, 2, 2], bad[2] = np.nan, np.inf, bad[2] * 1e-200
        yield cls(), (bad,)


@dataclass(frozen=True)
class SVD(Op):
    """u[..., m, k], s[..., k] descending and v[..., n, k] with x[..., m, n] = u diag(s) v^T, k = min(m, n).

    Of each column of v (of u where x is wide) the first among the elements of largest size is positive. Which of m and
    n is larger has to be known.
    """

    name: ClassVar[str] = "svd"

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        check_count(self, inputs, 1)
        (x,) = inputs
        m.check_matrices(self, x)
        *batch, rows, columns = x.shape
        k = min(rows, columns) if isinstance(rows, int) and isinstance(columns, int) else _smaller(self, rows, columns)
        return x.with_shape((*batch, rows, k)), x.with_shape((*batch, k)), x.with_shape((*batch, columns, k))

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        x = inputs[0].astype(np.float64)
        finite = np.asarray(np.isfinite(x).all((-1, -2), keepdims=True))
        u, s, v = np.linalg.svd(np.where(finite, x, 0), full_matrices=False)
        v = v.swapaxes(-1, -2)
        sign = _signs(u if x.shape[-2] < x.shape[-1] else v)
        out = (
            np.where(finite, u * sign, np.nan),
            np.where(finite[..., 0], s, np.nan),
            np.where(finite, v * sign, np.nan),
        )
        return tuple(y.astype(inputs[0].dtype) for y in out)

    @m.in_f32
    def lower(self, *inputs: Node) -> tuple[Node, ...]:
        *batch, rows, columns = inputs[0].shape
        if not at_most(columns, rows):
            v, s, u = SVD()(m.transposed(Term(inputs[0])).node).results
            return u, s, v
        x = m.as_batch(inputs[0])
        scale = m.magnitude(x)
        x = x / scale
        packed, tau = HouseholderQR()(x.node).results
        tall = rows != columns
        core = m.triangle(Term(packed).slice(1, 0, columns), upper=True) if tall else x
        lines, v = _orthogonal(m.transposed(core), vectors=True)
        s, order = _sorted((lines * lines).sum((2,), keepdims=False).map(Sqrt()), descending=True)
        lines, v = m.rows_at(lines, order), m.rows_at(v, order)
        # the directions of the lines; where these have no length, what is orthogonal to the others
        u = _directions(m.transposed(lines))
        if tall:
            u = Term(Reflect()(packed, tau, m.padded(u, rows, columns).node))
        sign = _sign_of(v, s)
        u, v = u * m.transposed(sign), m.transposed(v * sign)
        s = s * scale.reshape((scale.shape[0], 1))
        return (
            u.reshape((*batch, rows, columns)).node,
            s.reshape((*batch, columns)).node,
            v.reshape((*batch, columns, columns)).node,
        )

    @classmethod
    def samples(cls) -> Samples:
        rng = np.random.default_rng(0)
        yield cls(), (rng.normal(size=(2, 3, 5)).astype(np.float32),)
        bad = rng.normal(size=(3, 3, 3))
        bad[0, 1, 0], bad[1, 2, 2], bad[2] = np.nan, np.inf, bad[2] * 1e-200
        yield cls(), (bad,)


def _smaller(op: Op, rows: DimLike, columns: DimLike) -> DimLike:
    """The smaller of two sizes; which it is has to be known."""
    op.expect(
        at_most(rows, columns) or at_most(columns, rows),
        f"expected sizes of which one is known to be the smaller, got {rows} and {columns}",
    )
    return rows if at_most(rows, columns) else columns


def singular_values(x: Node) -> Node:
    """s[..., min(m, n)], descending."""
    *batch, rows, columns = x.shape
    given = m.as_batch(x if at_most(columns, rows) else m.transposed(Term(x)))
    k = given.shape[2]
    scale = m.magnitude(given)
    given = given / scale
    if given.shape[1] != k:
        given = m.triangle(Term(HouseholderQR()(given.node).results[0]).slice(1, 0, k), upper=True)
    lines, _ = _orthogonal(m.transposed(given), vectors=False)
    s, _ = _sorted((lines * lines).sum((2,), keepdims=False).map(Sqrt()), descending=True)
    return (s * scale.reshape((scale.shape[0], 1))).reshape((*batch, k)).node


def _orthogonal(x: Term, vectors: bool) -> tuple[Term, Term]:
    """(v^T x, v^T) with orthogonal rows v^T x, for x[b, n, w]; nothing in the place of v^T where not `vectors`."""
    batch, n, width = x.shape
    if n == 0:
        return x, m.transposed(x)
    half = (n + 1) // 2
    rounds = 2 * half - 1
    turns = t.concat([x, m.identity(x).broadcast((batch, n, n))], 2) if vectors else x
    turns = turns.pad(1, 0, 2 * half - n, 0.0)
    # products of rows are off by this much of their lengths' product, and rows that are shorter are off by their length
    error = float(np.finfo(x.dtype.numpy).eps)
    least = (x * x).sum((1, 2)).map(Sqrt()) * error
    # where each row goes: the first stays, the others go around
    place = t.iota((2 * half,), 0)
    size = t.as_term(t.size(half))
    before = m.where(place < 2, size * place, place - 1)
    # of two rows both stay
    last = m.where(size > 1, size - 1, 1)
    source = m.where(place < size, before, m.where(place < size * 2 - 1, place + 1, last))
    source = m.where(place.equals(0), 0, source)

    def turn(i: Term, x: Term, worst: Term, least: Term, source: Term) -> list[Term]:
        top, bottom = x.slice(1, 0, half), x.slice(1, half, 2 * half)
        p, q = top.slice(2, 0, width), bottom.slice(2, 0, width)
        a, b, g = (p * p).sum((2,)), (q * q).sum((2,)), (p * q).sum((2,))
        bound = t.maximum(a.map(Sqrt()), least)
        other = t.maximum(b.map(Sqrt()), least)
        angle = t.absolute(g) / (bound * other)
        assert isinstance(angle, Term)
        active = angle > error
        zeta = (b - a) / (m.where(active, g, 1.0) * 2.0)
        size = t.absolute(zeta)
        assert isinstance(size, Term)
        tangent = 1.0 / (size + (size * size + 1.0).map(Sqrt()))
        tangent = m.where(active, m.where(zeta < 0.0, -tangent, tangent), 0.0)
        cosine = t.rsqrt(tangent * tangent + 1.0)
        sine = cosine * tangent
        turned = t.concat([top * cosine - bottom * sine, top * sine + bottom * cosine], 1)
        # matrices with a NaN have no end
        before = m.where(_every(i, rounds), 0.0, worst)
        size = m.where(active, angle, 0.0)
        now = m.where(size > before, size, before).reduce("max", (0, 1, 2), keepdims=False)
        return [t.take(turned, source, 1), now]

    def going(i: Term, x: Term, worst: Term) -> Term:
        amid = t.mod(i, t.size(rounds))
        assert isinstance(amid, Term)
        return (amid > 0) | (worst > error * 8)

    start = [turns, t.scalar(float("inf"), x.dtype)]
    turns = m.repeat(rounds * _SWEEPS, start, turn, [least, source], going)[0].slice(1, 0, n)
    return turns.slice(2, 0, width), turns.slice(2, width, turns.shape[2])


def _every(i: Term, count: DimLike) -> Term:
    """Whether i is a multiple of `count`."""
    rest = t.mod(i, t.size(count))
    assert isinstance(rest, Term)
    return rest.equals(0)


def _sorted(x: Term, descending: bool = False) -> tuple[Term, Term]:
    """x[b, n] in order, and where each came from."""
    values, order = Sort(1, descending)(x.node, t.iota(x.shape, 1).node).results
    return Term(values), Term(order)


def _directions(x: Term) -> Term:
    """Orthonormal columns: those of x[b, m, k], which are orthogonal, over their lengths."""
    packed, tau = HouseholderQR()(x.node).results
    q = Term(Reflect()(packed, tau, m.identity(x, x.shape[2]).broadcast(x.shape).node))
    length = m.diagonal(Term(packed)).expand(1)
    return q * m.where(length < 0.0, -1.0, m.where(length.equals(length), t.scalar(1.0, x.dtype), float("nan")))


def _sign_of(rows: Term, values: Term) -> Term:
    """[b, k, 1]: the sign of each row's first element of largest size, NaN for rows of no value."""
    size = t.absolute(rows)
    assert isinstance(size, Term)
    if rows.shape[2] == 0:
        return t.full((rows.shape[0], rows.shape[1], 1), 1.0, rows.dtype)
    at = size.map(ArgReduce("max", 2)).expand(2)
    chosen = m.where(m.column_of(rows).equals(at), rows, 0.0).sum((2,))
    sign = m.where(chosen < 0.0, -1.0, t.scalar(1.0, rows.dtype))
    return m.where(values.equals(values).expand(2), sign, float("nan"))


def _signs(columns: np.ndarray) -> np.ndarray:
    if not columns.shape[-2]:
        return np.ones((*columns.shape[:-2], 1, columns.shape[-1]))
    at = np.abs(columns).argmax(-2, keepdims=True)
    return np.where(np.take_along_axis(columns, at, -2) < 0, -1.0, 1.0)
