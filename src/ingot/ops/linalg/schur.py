"""Eigenvalues of general matrices by the Schur form x = q t q^H, q unitary and t upper triangular.

A matrix is reduced to Hessenberg form by reflections, and then by the QR algorithm with Wilkinson shifts, one rotation
at a time ("The QR transformation", Francis, 1961; "Matrix Computations", Golub and Van Loan, 7.5). All is complex,
because the complex eigenvalues of a real matrix have no real triangular form.
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

_MAX_SWEEPS_PER_EIGENVALUE = 30  # two or three are usual
_ORDER_WEIGHT = 0.7548776662466927  # eigenvalues are sorted by re - _ORDER_WEIGHT * im, which separates conjugates


@dataclass(frozen=True)
class Eig(Op):
    """The eigenvalues w[..., n] of x[..., n, n] and eigenvectors of length 1, the columns of v[..., n, n].

    Operands: x, or its real and imaginary parts. Results: re w, im w, re v, im v. The first of the elements of largest
    modulus of each vector is real and positive. All is NaN if x has a NaN or an infinity.
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
        order = np.argsort(np.real(w) - _ORDER_WEIGHT * np.imag(w), -1, kind="stable")
        w, v = np.take_along_axis(w, order, -1), np.take_along_axis(v, order[..., None, :], -1)
        if x.shape[-1]:
            size = np.abs(v)
            first = (size >= m.LARGEST_TOLERANCE * size.max(-2, keepdims=True)).argmax(-2, keepdims=True)
            v = v * np.exp(-1j * np.angle(np.take_along_axis(v, first, -2)))
        parts = (np.real(w), np.imag(w), np.real(v), np.imag(v))
        masks = (finite[..., 0], finite[..., 0], finite, finite)
        return tuple(np.where(k, y, np.nan).astype(inputs[0].dtype) for y, k in zip(parts, masks, strict=True))

    @m.in_f32
    def lower(self, *inputs: Node) -> tuple[Node, ...]:
        shape = inputs[0].shape
        parts = [m.as_batch(x) for x in inputs]
        x = Pair(*parts) if len(parts) == 2 else p.real(parts[0])
        scale = m.magnitude(t.concat([*x.parts], 2))
        triangle, q = schur(x * (1.0 / scale))
        w = triangle.map(m.diagonal)
        if len(parts) == 1:
            # imaginary parts within the rounding error of a real matrix become 0
            error = float(np.finfo(x.re.dtype.numpy).eps) * 4
            size = t.term(t.absolute(parts[0] / scale)).sum((2,)).max((1,)).reshape((x.re.shape[0], 1))
            w = Pair(w.re, m.where(t.term(t.absolute(w.im)) <= size * error, 0.0, w.im))
        v = p.matmul(q, _triangular_vectors(triangle))
        v = v * (1.0 / v.square().sum((1,)).map(Sqrt()))
        _, order = (Term(n) for n in Sort(1)((w.re - w.im * _ORDER_WEIGHT).node, t.iota(w.re.shape, 1).node).results)
        w = w.map(lambda y: m.take_rows(y.expand(2), order).reshape(y.shape))
        v = v.map(lambda y: m.transpose(m.take_rows(m.transpose(y), order)))
        v = v * p.phase(_largest_elements(v)).conjugate()
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
        special = rng.normal(size=(3, 2, 2))
        special[0, 1, 0], special[1] = np.nan, special[1] * 1e-200
        yield cls(), (special,)
        yield cls(), (rng.normal(size=(3, 3)), rng.normal(size=(3, 3)))


def schur(x: Pair) -> tuple[Pair, Pair]:
    """(t, q) with x = q t q^H and t upper triangular, for x[b, n, n] whose largest element is near 1 or 0.

    If x is Hermitian, t is diagonal.
    """
    n = x.re.shape[1]
    if n == 0:
        return x, x
    h, q, _ = p.householder(x, dim_max(n - 2, 0), offset=1, similarity=True)
    if n == 1:
        return h, q
    sweeps = t.as_term(t.size(n)) * _MAX_SWEEPS_PER_EIGENVALUE
    out = m.for_loop(sweeps, [*h.parts, *q.parts, t.scalar(0, i64)], _sweep, condition=lambda i, *state: state[4] >= 0)
    return Pair(*out[:2]), Pair(*out[2:4])


def _epsilon(x: Term) -> float:
    return float(np.finfo(x.dtype.numpy).eps)


def _sweep(i: Term, hr: Term, hi: Term, qr: Term, qi: Term, end: Term) -> list[Term]:
    """One QR step on the last block of each matrix that is not yet triangular.

    The last value of the state is the end of the longest such block, -1 if there is none.
    """
    h, n = Pair(hr, hi), hr.shape[1]
    row, column = m.row_of(hr), m.column_of(hr)
    diagonal_moduli = h.map(m.diagonal).modulus()
    scale = t.maximum(diagonal_moduli.slice(1, 0, n - 1) + diagonal_moduli.slice(1, 1, n), _epsilon(hr))
    subdiagonal = m.diagonal(h.modulus().slice(1, 1, n).slice(2, 0, n - 1))
    # false for NaN, so that NaN does not prolong the loop
    active = subdiagonal > t.term(scale) * _epsilon(hr)
    is_active_below = row.equals(column + 1) & active.pad(1, 0, 1, False).expand(1)
    h = p.where((row <= column) | is_active_below, h, 0.0)
    position = t.iota(active.shape, 1)
    last = m.where(active, position, -1).max((1,))
    first = m.where(active, -1, m.where(position < last, position, -1)).max((1,)) + 1
    end = last.reduce("max", (0, 1), keepdims=False)
    begin = m.where(last >= 0, first, t.as_term(t.size(n))).reduce("min", (0, 1), keepdims=False)
    first, last = first.expand(2), last.expand(2)
    is_exceptional = t.term(t.mod(i, 10)).equals(9)
    shift = _shift(h, last, is_exceptional)
    count = t.term(t.maximum(end - begin + 1, 0))
    out = m.for_loop(count, [*h.parts, qr, qi], _rotate, [begin, first, last, *shift.parts])
    return [*out, end]


def _shift(h: Pair, last: Term, exceptional: Term) -> Pair:
    """[b, 1, 1]: the Wilkinson shift, the eigenvalue of the block's last 2x2 block that is nearer to its last element.

    exceptional: another shift, because some matrices cycle under Wilkinson shifts.
    """
    row, column = m.row_of(h.re), m.column_of(h.re)

    def at(i: Term, j: Term) -> Pair:
        return p.where(row.equals(i) & column.equals(j), h, 0.0).map(lambda v: v.sum((1, 2)))

    a, b, c, d = at(last, last), at(last, last + 1), at(last + 1, last), at(last + 1, last + 1)
    half, off_diagonal = (a - d) * 0.5, b * c
    root = p.sqrt(half * half + off_diagonal)
    plus, minus = half + root, half - root
    larger = p.where(plus.square() >= minus.square(), plus, minus)
    small = larger.modulus() <= _epsilon(h.re)
    nearer = d - p.where(
        small, off_diagonal * 0.0, off_diagonal.divide(p.where(small, p.real(larger.re * 0.0 + 1.0), larger))
    )
    return p.where(exceptional, Pair(d.re + c.modulus(), d.im), nearer)


def _rotate(j: Term, hr: Term, hi: Term, qr: Term, qi: Term, begin: Term, *operands: Term) -> list[Term]:
    """Rotate rows and columns k and k + 1 to eliminate the element that the previous rotation put below the
    diagonal."""
    h, q, k = Pair(hr, hi), Pair(qr, qi), begin + j
    first, last, shift = operands[0], operands[1], Pair(*operands[2:])
    rows = h.map(lambda v: m.dynamic_slice(v, 1, k, 2))
    current, previous = (
        rows.map(lambda v, at=at: m.dynamic_slice(v, 2, at)) for at in (k, t.term(t.maximum(k - 1, 0)))
    )
    x, y = (
        p.where(first.equals(k), u, v)
        for u, v in zip(_halves(_subtract_shift(current, shift), 1), _halves(previous, 1), strict=True)
    )
    length = (x.square() + y.square()).map(Sqrt())
    is_identity = (k < first) | (k > last) | length.equals(0.0)
    inverse_length = 1.0 / m.where(is_identity, 1.0, length)
    c = m.where(is_identity, 1.0, x.modulus() * inverse_length)
    s = p.where(is_identity, y * 0.0, p.phase(x) * y.conjugate() * inverse_length)
    a, b = _halves(rows, 1)
    h = _update_halves(h, a * c + b * s, b * c - a * s.conjugate(), 1, k)
    a, b = _halves(h.map(lambda v: m.dynamic_slice(v, 2, k, 2)), 2)
    h = _update_halves(h, a * c + b * s.conjugate(), b * c - a * s, 2, k)
    a, b = _halves(q.map(lambda v: m.dynamic_slice(v, 2, k, 2)), 2)
    q = _update_halves(q, a * c + b * s.conjugate(), b * c - a * s, 2, k)
    return [*h.parts, *q.parts]


def _subtract_shift(column: Pair, shift: Pair) -> Pair:
    """column[b, 2, 1] with the shift subtracted from its first row."""
    head = m.row_of(column.re).equals(0)
    return column - p.where(head, shift, 0.0)


def _halves(x: Pair, axis: int) -> tuple[Pair, Pair]:
    return x.map(lambda v: v.slice(axis, 0, 1)), x.map(lambda v: v.slice(axis, 1, 2))


def _update_halves(x: Pair, a: Pair, b: Pair, axis: int, index: Term) -> Pair:
    parts = zip(x.parts, a.parts, b.parts, strict=True)
    return Pair(*(m.dynamic_update(v, t.concat([u, w], axis), axis, index) for v, u, w in parts))


def _triangular_vectors(x: Pair) -> Pair:
    """Eigenvectors of an upper triangular x[b, n, n], of any length; equal eigenvalues are separated by a rounding."""
    n = x.re.shape[1]
    if n == 0:
        return x

    def substitute_row(i: Term, vr: Term, vi: Term, xr: Term, xi: Term) -> list[Term]:
        v, x = Pair(vr, vi), Pair(xr, xi)
        index = t.as_term(t.size(n)) - 1 - i
        column = m.column_of(vr)
        values = x.map(lambda y: m.diagonal(y).expand(1))
        difference = values.map(lambda y: m.dynamic_slice(y, 2, index)) - values
        is_equal = difference.modulus() <= _epsilon(vr)
        difference = p.where(is_equal, p.real(t.full(values.re.shape, _epsilon(vr), vr.dtype)), difference)
        values_above = p.where(column > index, x.map(lambda y: m.dynamic_slice(y, 1, index)), 0.0)
        vector = -p.matmul(values_above, v).divide(difference)
        one = p.real(t.full(values.re.shape, 1.0, vr.dtype))
        vector = p.where(column > index, vector, p.where(column.equals(index), one, 0.0))
        v = Pair(*(m.dynamic_update(y, u, 1, index) for y, u in zip(v.parts, vector.parts, strict=True)))
        # so that no product overflows
        v = v * (1.0 / t.term(t.maximum(vector.modulus(), 1.0)))
        return [*v.parts, xr, xi]

    zeros = t.full(x.re.shape, 0.0, x.re.dtype)
    return Pair(*m.for_loop(n, [zeros, zeros, *x.parts], substitute_row)[:2])


def _largest_elements(v: Pair) -> Pair:
    """[b, 1, n]: the first of the elements of largest modulus of each column."""
    size = v.modulus()
    if v.re.shape[1] == 0:
        return p.real(t.full((v.re.shape[0], 1, 0), 1.0, v.re.dtype))
    large = m.where(size >= size.max((1,)) * m.LARGEST_TOLERANCE, t.full(size.shape, 1.0, size.dtype), 0.0)
    index = large.map(ArgReduce("max", 1)).expand(1)
    return p.where(m.row_of(size).equals(index), v, 0.0).map(lambda y: y.sum((1,)))
