"""Singular values and eigenvalues of symmetric matrices by one-sided Jacobi rotations.

The rows of x are rotated in pairs until they are orthogonal: then x = v s u^T, with v the product of the rotations, s
the lengths of the rows and u their directions ("Inversion of matrices by biorthogonalization", Hestenes, 1958). Each
round rotates half of the rows with the other half, in round-robin order ("The solution of singular-value and symmetric
eigenvalue problems on multiprocessor arrays", Brent and Luk, 1985).

For a symmetric matrix, shifted by a multiple of the identity to be positive definite, v are the eigenvectors.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from ingot.ir.dims import DimLike, is_at_most
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

_MAX_SWEEPS = 40  # usually 6 to 10, as convergence is quadratic


@dataclass(frozen=True)
class Eigh(Op):
    """(w, v) of a symmetric x[..., n, n]: eigenvalues w[..., n], ascending, and eigenvectors, the columns of v[..., n,
    n].

    Only the lower triangle of x is read. The first element of each vector that is at least 0.9 of its largest in
    magnitude is positive. All is NaN if x has a NaN or an infinity.
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
        scale = m.magnitude(m.triangular_part(x))
        x = m.symmetric(x) / scale
        absolute = t.absolute(x)
        assert isinstance(absolute, Term)
        # no eigenvalue exceeds the largest absolute row sum
        shift = absolute.sum((2,)).max((1,))
        _, v = _orthogonalize_rows(x + m.identity(x) * shift, vectors=True)
        values = (v * m.matmul(v, x)).sum((2,), keepdims=False)
        values, order = _sort(values)
        v = m.take_rows(v, order)
        v = v * _sign_of(v, values)
        w = values * scale.reshape((scale.shape[0], 1))
        return w.reshape(inputs[0].shape[:-1]).node, m.transpose(v).reshape((*inputs[0].shape[:-2], n, n)).node

    @classmethod
    def samples(cls) -> Samples:
        rng = np.random.default_rng(0)
        yield cls(), (rng.normal(size=(2, 5, 5)).astype(np.float32),)
        special = rng.normal(size=(3, 3, 3))
        special[0, 1, 0], special[1, 2, 2], special[2] = np.nan, np.inf, special[2] * 1e-200
        yield cls(), (special,)


@dataclass(frozen=True)
class SVD(Op):
    """(u, s, v) with x[..., m, n] = u diag(s) v^T: u[..., m, k], s[..., k] descending, v[..., n, k], k = min(m, n).

    The first element of each column of v (of u if m < n) that is at least 0.9 of its largest in magnitude is positive.
    For symbolic m and n it must be known which is larger. All is NaN if x has a NaN or an infinity.
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
        if not is_at_most(columns, rows):
            v, s, u = SVD()(m.transpose(Term(inputs[0])).node).results
            return u, s, v
        x = m.as_batch(inputs[0])
        scale = m.magnitude(x)
        x = x / scale
        packed, tau = HouseholderQR()(x.node).results
        is_tall = rows != columns
        core = m.triangular_part(Term(packed).slice(1, 0, columns), upper=True) if is_tall else x
        rows_of_core, v = _orthogonalize_rows(m.transpose(core), vectors=True)
        s, order = _sort((rows_of_core * rows_of_core).sum((2,), keepdims=False).map(Sqrt()), descending=True)
        rows_of_core, v = m.take_rows(rows_of_core, order), m.take_rows(v, order)
        # the directions of the rows; zero rows get directions orthogonal to the others
        u = _normalize_columns(m.transpose(rows_of_core))
        if is_tall:
            u = Term(Reflect()(packed, tau, m.pad_to(u, rows, columns).node))
        sign = _sign_of(v, s)
        u, v = u * m.transpose(sign), m.transpose(v * sign)
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
        special = rng.normal(size=(3, 3, 3))
        special[0, 1, 0], special[1, 2, 2], special[2] = np.nan, np.inf, special[2] * 1e-200
        yield cls(), (special,)


def _smaller(op: Op, rows: DimLike, columns: DimLike) -> DimLike:
    """The smaller of two sizes. Raise ShapeError if it is unknown which is smaller."""
    op.expect(
        is_at_most(rows, columns) or is_at_most(columns, rows),
        f"expected sizes of which one is known to be the smaller, got {rows} and {columns}",
    )
    return rows if is_at_most(rows, columns) else columns


def singular_values(x: Node) -> Node:
    """The singular values of x[..., m, n], s[..., min(m, n)], descending."""
    *batch, rows, columns = x.shape
    x_batch = m.as_batch(x if is_at_most(columns, rows) else m.transpose(Term(x)))
    k = x_batch.shape[2]
    scale = m.magnitude(x_batch)
    x_batch = x_batch / scale
    if x_batch.shape[1] != k:
        x_batch = m.triangular_part(Term(HouseholderQR()(x_batch.node).results[0]).slice(1, 0, k), upper=True)
    rotated, _ = _orthogonalize_rows(m.transpose(x_batch), vectors=False)
    s, _ = _sort((rotated * rotated).sum((2,), keepdims=False).map(Sqrt()), descending=True)
    return (s * scale.reshape((scale.shape[0], 1))).reshape((*batch, k)).node


def _orthogonalize_rows(x: Term, vectors: bool) -> tuple[Term, Term]:
    """(v^T x, v^T) for x[b, n, w], with orthogonal rows v^T x; without `vectors`, v^T has no columns."""
    batch, n, width = x.shape
    if n == 0:
        return x, m.transpose(x)
    half = (n + 1) // 2
    rounds = 2 * half - 1
    rows = t.concat([x, m.identity(x).broadcast((batch, n, n))], 2) if vectors else x
    rows = rows.pad(1, 0, 2 * half - n, 0.0)
    # the error of a product of rows relative to their lengths, and the length below which a row is only rounding error
    error = float(np.finfo(x.dtype.numpy).eps)
    min_length = (x * x).sum((1, 2)).map(Sqrt()) * error
    # the source of each row in a round robin: the first stays, the others rotate
    position = t.iota((2 * half,), 0)
    size = t.as_term(t.size(half))
    top_source = m.where(position < 2, size * position, position - 1)
    # two rows both stay
    last_source = m.where(size > 1, size - 1, 1)
    source = m.where(position < size, top_source, m.where(position < size * 2 - 1, position + 1, last_source))
    source = m.where(position.equals(0), 0, source)

    def rotate(i: Term, x: Term, max_angle: Term, min_length: Term, source: Term) -> list[Term]:
        upper, lower = x.slice(1, 0, half), x.slice(1, half, 2 * half)
        p, q = upper.slice(2, 0, width), lower.slice(2, 0, width)
        a, b, g = (p * p).sum((2,)), (q * q).sum((2,)), (p * q).sum((2,))
        p_length = t.maximum(a.map(Sqrt()), min_length)
        q_length = t.maximum(b.map(Sqrt()), min_length)
        angle = t.absolute(g) / (p_length * q_length)
        assert isinstance(angle, Term)
        active = angle > error
        zeta = (b - a) / (m.where(active, g, 1.0) * 2.0)
        size = t.absolute(zeta)
        assert isinstance(size, Term)
        tangent = 1.0 / (size + (size * size + 1.0).map(Sqrt()))
        tangent = m.where(active, m.where(zeta < 0.0, -tangent, tangent), 0.0)
        cosine = t.rsqrt(tangent * tangent + 1.0)
        sine = cosine * tangent
        rotated = t.concat([upper * cosine - lower * sine, upper * sine + lower * cosine], 1)
        # comparisons with NaN are false, so a matrix with NaN does not prolong the loop
        previous_max = m.where(_is_multiple(i, rounds), 0.0, max_angle)
        size = m.where(active, angle, 0.0)
        next_max = m.where(size > previous_max, size, previous_max).reduce("max", (0, 1, 2), keepdims=False)
        return [t.take(rotated, source, 1), next_max]

    def is_unfinished(i: Term, x: Term, max_angle: Term) -> Term:
        round_in_sweep = t.mod(i, t.size(rounds))
        assert isinstance(round_in_sweep, Term)
        return (round_in_sweep > 0) | (max_angle > error * 8)

    start = [rows, t.scalar(float("inf"), x.dtype)]
    rows = m.for_loop(rounds * _MAX_SWEEPS, start, rotate, [min_length, source], is_unfinished)[0].slice(1, 0, n)
    return rows.slice(2, 0, width), rows.slice(2, width, rows.shape[2])


def _is_multiple(i: Term, count: DimLike) -> Term:
    """Whether i is a multiple of `count`."""
    remainder = t.mod(i, t.size(count))
    assert isinstance(remainder, Term)
    return remainder.equals(0)


def _sort(x: Term, descending: bool = False) -> tuple[Term, Term]:
    """x[b, n] sorted, and the source index of each element."""
    values, order = Sort(1, descending)(x.node, t.iota(x.shape, 1).node).results
    return Term(values), Term(order)


def _normalize_columns(x: Term) -> Term:
    """The orthogonal columns of x[b, m, k], scaled to length 1."""
    packed, tau = HouseholderQR()(x.node).results
    q = Term(Reflect()(packed, tau, m.identity(x, x.shape[2]).broadcast(x.shape).node))
    length = m.diagonal(Term(packed)).expand(1)
    return q * m.where(length < 0.0, -1.0, m.where(length.equals(length), t.scalar(1.0, x.dtype), float("nan")))


def _sign_of(rows: Term, values: Term) -> Term:
    """[b, k, 1]: the sign of the first large element of each row, NaN if its value is NaN."""
    size = t.absolute(rows)
    assert isinstance(size, Term)
    if rows.shape[2] == 0:
        return t.full((rows.shape[0], rows.shape[1], 1), 1.0, rows.dtype)
    is_large = size >= size.max((2,)) * m.LARGEST_TOLERANCE
    index = m.where(is_large, t.full(size.shape, 1.0, size.dtype), 0.0).map(ArgReduce("max", 2)).expand(2)
    first = m.where(m.column_of(rows).equals(index), rows, 0.0).sum((2,))
    sign = m.where(first < 0.0, -1.0, t.scalar(1.0, rows.dtype))
    return m.where(values.equals(values).expand(2), sign, float("nan"))


def _signs(columns: np.ndarray) -> np.ndarray:
    if not columns.shape[-2]:
        return np.ones((*columns.shape[:-2], 1, columns.shape[-1]))
    size = np.abs(columns)
    index = (size >= m.LARGEST_TOLERANCE * size.max(-2, keepdims=True)).argmax(-2, keepdims=True)
    return np.where(np.take_along_axis(columns, index, -2) < 0, -1.0, 1.0)
