"""Eigenvalues of matrices that need not be symmetric, by Schur's form: x = q t q^H, q unitary and t upper triangular.

A matrix is reduced to Hessenberg's form by reflections, and then by the QR algorithm with Wilkinson's shifts, one
rotation at a time ("The QR transformation", Francis, 1961; "Matrix Computations", Golub and Van Loan, 7.5). All in
complex numbers, as pairs: those of a real matrix come in pairs that no triangular real form has.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from ingot.ir.dims import dim_max
from ingot.ir.node import Node, Op, Samples
from ingot.ir.types import TensorType, i64
from ingot.ops.core.elementwise import Sqrt
from ingot.ops.core.indexing import Sort
from ingot.ops.core.reduce import ArgReduce
from ingot.ops.linalg import matrices as m
from ingot.ops.linalg import pairs as p
from ingot.ops.linalg.pairs import Pair
from ingot.ops.nn import terms as t
from ingot.ops.nn.terms import Term
from ingot.support.dataclass import dataclass

_SWEEPS = 30  # for each eigenvalue; two or three are usual
_TURN = 0.7548776662466927  # eigenvalues are in the order of re - _TURN * im, by which conjugates are told apart
_NEARLY = 0.9  # of the largest element: the first as large is made positive, whatever two equal ones are rounded to


@dataclass(frozen=True)
class Eig(Op):
    """The eigenvalues w[..., n] of x[..., n, n] and eigenvectors of length 1, the columns of v[..., n, n].

    Inputs: x, or its real and its imaginary part. Results: real and imaginary parts of w, then those of v. Of each
    vector the first among the elements of largest modulus is positive.
    """

    name: ClassVar[str] = "eig"

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        self.expect(len(inputs) in (1, 2), f"expected a matrix or its two parts, got {len(inputs)} operands")
        x = inputs[0]
        m.check_matrices(self, *inputs, square=True)
        self.expect(inputs[-1] == x, f"expected two parts of one type, got {x} and {inputs[-1]}")
        values = x.with_shape(x.shape[:-1])
        return values, values, x, x

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        x = inputs[0].astype(np.complex128)
        if len(inputs) == 2:
            x = x + 1j * inputs[1]
        finite = np.asarray(np.isfinite(x).all((-1, -2), keepdims=True))
        w, v = np.linalg.eig(np.where(finite, x, 0))
        order = np.argsort(np.real(w) - _TURN * np.imag(w), -1, kind="stable")
        w, v = np.take_along_axis(w, order, -1), np.take_along_axis(v, order[..., None, :], -1)
        if x.shape[-1]:
            size = np.abs(v)
            first = (size >= _NEARLY * size.max(-2, keepdims=True)).argmax(-2, keepdims=True)
            v = v * np.exp(-1j * np.angle(np.take_along_axis(v, first, -2)))
        parts = (np.real(w), np.imag(w), np.real(v), np.imag(v))
        masks = (finite[..., 0], finite[..., 0], finite, finite)
        return tuple(np.where(k, y, np.nan).astype(inputs[0].dtype) for y, k in zip(parts, masks, strict=True))

    @m.in_f32
    def lower(self, *inputs: Node) -> tuple[Node, ...]:
        shape = inputs[0].shape
        given = [m.as_batch(x) for x in inputs]
        x = Pair(*given) if len(given) == 2 else p.real(given[0])
        scale = m.magnitude(t.concat([*x.parts], 2))
        triangle, q = schur(x * (1.0 / scale))
        w = triangle.each(m.diagonal)
        if len(given) == 1:
            # as far as a rounding of the matrix may move them, eigenvalues of real matrices are real
            error = float(np.finfo(x.re.dtype.numpy).eps) * 4
            size = t.term(t.absolute(given[0] / scale)).sum((2,)).max((1,)).reshape((x.re.shape[0], 1))
            w = Pair(w.re, m.where(t.term(t.absolute(w.im)) <= size * error, 0.0, w.im))
        v = p.times(q, _triangular_vectors(triangle))
        v = v * (1.0 / v.square().sum((1,)).map(Sqrt()))
        _, order = (Term(n) for n in Sort(1)((w.re - w.im * _TURN).node, t.iota(w.re.shape, 1).node).results)
        w = w.each(lambda y: m.rows_at(y.expand(2), order).reshape(y.shape))
        v = v.each(lambda y: m.transposed(m.rows_at(m.transposed(y), order)))
        v = v * p.phase(_largest(v)).conjugate()
        w = w * scale.reshape((scale.shape[0], 1))
        v = p.where(scale.equals(scale), v, Pair(scale, scale))
        return (
            *(y.reshape(shape[:-1]).node for y in w.parts),
            *(y.reshape(shape).node for y in v.parts),
        )

    @classmethod
    def samples(cls) -> Samples:
        rng = np.random.default_rng(0)
        yield cls(), (rng.normal(size=(2, 3, 3)).astype(np.float32),)
        bad = rng.normal(size=(3, 2, 2))
        bad[0, 1, 0], bad[1] = np.nan, bad[1] * 1e-200
        yield cls(), (bad,)
        yield cls(), (rng.normal(size=(3, 3)), rng.normal(size=(3, 3)))


def schur(x: Pair) -> tuple[Pair, Pair]:
    """(t, q) with x = q t q^H, t upper triangular, for x[b, n, n] of which the largest element is near 1 or 0. Of a
    Hermitian x, t is diagonal."""
    n = x.re.shape[1]
    if n == 0:
        return x, x
    h, q, _ = p.reflected(x, dim_max(n - 2, 0), below=1, similar=True)
    if n == 1:
        return h, q
    sweeps = t.as_term(t.size(n)) * _SWEEPS
    out = m.repeat(sweeps, [*h.parts, *q.parts, t.scalar(0, i64)], _sweep, going=lambda i, *state: state[4] >= 0)
    return Pair(*out[:2]), Pair(*out[2:4])


def _error(x: Term) -> float:
    return float(np.finfo(x.dtype.numpy).eps)


def _sweep(i: Term, hr: Term, hi: Term, qr: Term, qi: Term, end: Term) -> list[Term]:
    """One step of the QR algorithm for the last block of each matrix that is not triangular yet; -1 where none is."""
    h, n = Pair(hr, hi), hr.shape[1]
    row, column = m.row_of(hr), m.column_of(hr)
    own = h.each(m.diagonal).size()
    near = t.maximum(own.slice(1, 0, n - 1) + own.slice(1, 1, n), _error(hr))
    below = m.diagonal(h.size().slice(1, 1, n).slice(2, 0, n - 1))
    # false where a NaN is, which has no end
    active = below > t.term(near) * _error(hr)
    kept = row.equals(column + 1) & active.pad(1, 0, 1, False).expand(1)
    h = p.where((row <= column) | kept, h, 0.0)
    place = t.iota(active.shape, 1)
    last = m.where(active, place, -1).max((1,))
    first = m.where(active, -1, m.where(place < last, place, -1)).max((1,)) + 1
    end = last.reduce("max", (0, 1), keepdims=False)
    begin = m.where(last >= 0, first, t.as_term(t.size(n))).reduce("min", (0, 1), keepdims=False)
    first, last = first.expand(2), last.expand(2)
    now = t.term(t.mod(i, 10)).equals(9)
    shift = _shift(h, last, now)
    count = t.term(t.maximum(end - begin + 1, 0))
    out = m.repeat(count, [*h.parts, qr, qi], _rotate, [begin, first, last, *shift.parts])
    return [*out, end]


def _shift(h: Pair, last: Term, exceptional: Term) -> Pair:
    """[b, 1, 1]: the eigenvalue of the block's last two rows that is nearer to its last element (Wilkinson). Another
    number now and then, as some matrices are turned in circles."""
    row, column = m.row_of(h.re), m.column_of(h.re)

    def at(i: Term, j: Term) -> Pair:
        return p.where(row.equals(i) & column.equals(j), h, 0.0).each(lambda v: v.sum((1, 2)))

    a, b, c, d = at(last, last), at(last, last + 1), at(last + 1, last), at(last + 1, last + 1)
    half, across = (a - d) * 0.5, b * c
    apart = p.root(half * half + across)
    plus, minus = half + apart, half - apart
    larger = p.where(plus.square() >= minus.square(), plus, minus)
    small = larger.size() <= _error(h.re)
    nearer = d - p.where(small, across * 0.0, across.over(p.where(small, p.real(larger.re * 0.0 + 1.0), larger)))
    return p.where(exceptional, Pair(d.re + c.size(), d.im), nearer)


def _rotate(j: Term, hr: Term, hi: Term, qr: Term, qi: Term, begin: Term, *where: Term) -> list[Term]:
    """Rows and columns k and k + 1 turned, so that the element that the last turn put below the diagonal goes."""
    h, q, k = Pair(hr, hi), Pair(qr, qi), begin + j
    first, last, shift = where[0], where[1], Pair(*where[2:])
    rows = h.each(lambda v: m.cut(v, 1, k, 2))
    own, before = (rows.each(lambda v, at=at: m.cut(v, 2, at)) for at in (k, t.term(t.maximum(k - 1, 0))))
    x, y = (
        p.where(first.equals(k), u, v) for u, v in zip(_halves(_less(own, shift), 1), _halves(before, 1), strict=True)
    )
    length = (x.square() + y.square()).map(Sqrt())
    still = (k < first) | (k > last) | length.equals(0.0)
    over = 1.0 / m.where(still, 1.0, length)
    c = m.where(still, 1.0, x.size() * over)
    s = p.where(still, y * 0.0, p.phase(x) * y.conjugate() * over)
    a, b = _halves(rows, 1)
    h = _put(h, a * c + b * s, b * c - a * s.conjugate(), 1, k)
    a, b = _halves(h.each(lambda v: m.cut(v, 2, k, 2)), 2)
    h = _put(h, a * c + b * s.conjugate(), b * c - a * s, 2, k)
    a, b = _halves(q.each(lambda v: m.cut(v, 2, k, 2)), 2)
    q = _put(q, a * c + b * s.conjugate(), b * c - a * s, 2, k)
    return [*h.parts, *q.parts]


def _less(own: Pair, shift: Pair) -> Pair:
    """[b, 2, 1] less a shift in its first row."""
    head = m.row_of(own.re).equals(0)
    return own - p.where(head, shift, 0.0)


def _halves(x: Pair, axis: int) -> tuple[Pair, Pair]:
    return x.each(lambda v: v.slice(axis, 0, 1)), x.each(lambda v: v.slice(axis, 1, 2))


def _put(x: Pair, a: Pair, b: Pair, axis: int, at: Term) -> Pair:
    parts = zip(x.parts, a.parts, b.parts, strict=True)
    return Pair(*(m.put(v, t.concat([u, w], axis), axis, at) for v, u, w in parts))


def _triangular_vectors(x: Pair) -> Pair:
    """Eigenvectors of upper triangular x[b, n, n], of any length. Equal eigenvalues are taken for a rounding apart."""
    n = x.re.shape[1]
    if n == 0:
        return x

    def line(i: Term, vr: Term, vi: Term, xr: Term, xi: Term) -> list[Term]:
        v, x = Pair(vr, vi), Pair(xr, xi)
        at = t.as_term(t.size(n)) - 1 - i
        column = m.column_of(vr)
        values = x.each(lambda y: m.diagonal(y).expand(1))
        apart = values.each(lambda y: m.cut(y, 2, at)) - values
        same = apart.size() <= _error(vr)
        apart = p.where(same, p.real(t.full(values.re.shape, _error(vr), vr.dtype)), apart)
        above = p.where(column > at, x.each(lambda y: m.cut(y, 1, at)), 0.0)
        found = -p.times(above, v).over(apart)
        one = p.real(t.full(values.re.shape, 1.0, vr.dtype))
        found = p.where(column > at, found, p.where(column.equals(at), one, 0.0))
        v = Pair(*(m.put(y, u, 1, at) for y, u in zip(v.parts, found.parts, strict=True)))
        # so that no product overflows
        v = v * (1.0 / t.term(t.maximum(found.size(), 1.0)))
        return [*v.parts, xr, xi]

    none = t.full(x.re.shape, 0.0, x.re.dtype)
    return Pair(*m.repeat(n, [none, none, *x.parts], line)[:2])


def _largest(v: Pair) -> Pair:
    """[b, 1, n]: of each column the first among the elements of largest modulus."""
    size = v.size()
    if v.re.shape[1] == 0:
        return p.real(t.full((v.re.shape[0], 1, 0), 1.0, v.re.dtype))
    large = m.where(size >= size.max((1,)) * _NEARLY, t.full(size.shape, 1.0, size.dtype), 0.0)
    at = large.map(ArgReduce("max", 1)).expand(1)
    return p.where(m.row_of(size).equals(at), v, 0.0).each(lambda y: y.sum((1,)))
