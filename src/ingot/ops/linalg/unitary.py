"""Factorizations of complex matrices, given as two nodes [..., m, n], the real and imaginary parts.

Cholesky factorization and triangular systems use the real matrix with a block [[a, -b], [b, a]] for each element a +
bi. The others use Householder reflections and the Schur form.
"""

from __future__ import annotations

import math

from ingot.ir.dims import DimLike, dim_min
from ingot.ir.node import Node
from ingot.ops.core.indexing import Sort
from ingot.ops.linalg import matrices as m
from ingot.ops.linalg import pairs as p
from ingot.ops.linalg.cholesky import Cholesky
from ingot.ops.linalg.pairs import Pair
from ingot.ops.linalg.schur import schur
from ingot.ops.linalg.triangular import TriangularSolve
from ingot.ops.nn import terms as t
from ingot.ops.nn.terms import Term

Parts = tuple[Node, Node]


def _pair(x: Parts) -> Pair:
    return Pair(*(m.as_batch(v) for v in x))


def _parts(x: Pair, lead: tuple[DimLike, ...]) -> Parts:
    re, im = (v.reshape((*lead, *v.shape[1:])).node for v in x.parts)
    return re, im


def _hermitian(x: Pair) -> Pair:
    """The Hermitian matrix with the lower triangle of x; imaginary parts of the diagonal are not read."""
    strict = x.map(m.strict_triangular_part)
    diagonal = m.where(m.row_of(x.re).equals(m.column_of(x.re)), x.re, 0.0)
    return strict + strict.adjoint() + p.real(diagonal)


def _scale(x: Pair) -> Term:
    """[b, 1, 1]: `matrices.magnitude` of both parts."""
    return m.magnitude(t.concat([*x.parts], 2))


def _interleave(x: Pair) -> Term:
    """The real matrix [b, 2 m, 2 n] with a block [[re, -im], [im, re]] for each element."""
    batch, rows, columns = x.re.shape
    block_rows = [t.concat([a.expand(3), b.expand(3)], 3) for a, b in ((x.re, -x.im), (x.im, x.re))]
    return t.concat([line.expand(2) for line in block_rows], 2).reshape((batch, 2 * rows, 2 * columns))


def _interleave_rows(x: Pair) -> Term:
    """[b, 2 m, n]: the first column of each block."""
    batch, rows, columns = x.re.shape
    return t.concat([v.expand(2) for v in x.parts], 2).reshape((batch, 2 * rows, columns))


def _deinterleave_rows(x: Term) -> Pair:
    """The inverse of `_interleave_rows`."""
    batch, rows, columns = x.shape
    blocks = x.reshape((batch, rows // 2, 2, columns))
    return Pair(*(blocks.slice(2, i, i + 1).reshape((batch, rows // 2, columns)) for i in (0, 1)))


def complex_cholesky(x: Parts, upper: bool = False) -> Parts:
    """l with x = l l^H from the lower triangle of x, or u with x = u^H u from the upper one."""
    lead, pair = x[0].shape[:-2], _pair(x)
    n = pair.re.shape[1]
    factor = Term(Cholesky()(_interleave(_hermitian(pair.adjoint() if upper else pair)).node))
    columns = factor.reshape((*factor.shape[:2], n, 2)).slice(3, 0, 1).reshape((*factor.shape[:2], n))
    out = _deinterleave_rows(columns)
    return _parts(out.adjoint() if upper else out, lead)


def complex_solve_triangular(
    a: Parts, b: Parts, *, upper: bool = False, unit: bool = False, left: bool = True, transpose: str = "N"
) -> Parts:
    """The solution of a x = b, or of x a = b unless `left`. transpose: "T" solves with a^T, "C" with a^H."""
    lead, matrix, rhs = a[0].shape[:-2], _pair(a), _pair(b)
    if transpose == "C":
        matrix = matrix.conjugate()
    if (transpose != "N") == left:
        matrix, upper = matrix.map(m.transpose), not upper
    if not left:
        rhs = rhs.map(m.transpose)
    if not unit:
        inverse = p.real(t.full((*matrix.re.shape[:2], 1), 1.0, matrix.re.dtype)).divide(
            matrix.map(lambda v: m.diagonal(v).expand(2))
        )
        matrix, rhs = matrix * inverse, rhs * inverse
    matrix = matrix.map(lambda v: m.strict_triangular_part(v, upper))
    x = _deinterleave_rows(
        Term(TriangularSolve(upper, unit=True)(_interleave(matrix).node, _interleave_rows(rhs).node))
    )
    return _parts(x if left else x.map(m.transpose), lead)


def complex_qr(x: Parts, complete: bool = False) -> tuple[Parts, Parts]:
    """(q, r) with x = q r; the diagonal of r is real."""
    lead, pair = x[0].shape[:-2], _pair(x)
    _, rows, columns = pair.re.shape
    k = dim_min(rows, columns)
    scale = _scale(pair)
    r, q, _ = p.householder(pair * (1.0 / scale), k)
    phases = p.phase(r.map(lambda v: m.diagonal(v).expand(2)))
    phases = phases * m.where(phases.re < 0.0, -1.0, t.full(phases.re.shape, 1.0, phases.re.dtype))
    n_rest = rows - k
    factors = Pair(phases.re.pad(1, 0, n_rest, 1.0), phases.im.pad(1, 0, n_rest, 0.0))
    q, r = q * factors.map(m.transpose), r * factors.conjugate() * scale
    r = p.where(
        m.row_of(r.re) < m.column_of(r.re), r, p.where(m.row_of(r.re).equals(m.column_of(r.re)), p.real(r.re), 0.0)
    )
    if not complete:
        q, r = q.map(lambda v: v.slice(2, 0, k)), r.map(lambda v: v.slice(1, 0, k))
    return _parts(q, lead), _parts(r, lead)


def complex_eigh(x: Parts) -> tuple[Node, Parts]:
    """Eigenvalues, ascending, and orthonormal eigenvectors of the Hermitian matrix with the lower triangle of x."""
    lead, pair = x[0].shape[:-2], _hermitian(_pair(x))
    scale = _scale(pair)
    w, v = _hermitian_eigh(pair * (1.0 / scale))
    return (w * scale.reshape((scale.shape[0], 1))).reshape((*lead, w.shape[1])).node, _parts(v, lead)


def _hermitian_eigh(x: Pair, descending: bool = False) -> tuple[Term, Pair]:
    triangle, q = schur(x)
    values = m.diagonal(triangle.re)
    w, order = (Term(n) for n in Sort(1, descending)(values.node, t.iota(values.shape, 1).node).results)
    return w, q.map(lambda v: m.transpose(m.take_rows(m.transpose(v), order)))


def complex_svd(x: Parts, full: bool = False) -> tuple[Parts, Node, Parts]:
    """(u, s, v) with x = u diag(s) v^H: the eigenvectors (u, v) of [[0, x], [x^H, 0]], whose eigenvalues are s and
    -s."""
    lead, pair = x[0].shape[:-2], _pair(x)
    _, rows, columns = pair.re.shape
    k = dim_min(rows, columns)
    scale = _scale(pair)
    pair = pair * (1.0 / scale)
    augmented = Pair(
        *(
            t.concat([a.pad(2, rows, 0, 0.0), b.pad(2, 0, columns, 0.0)], 1)
            for a, b in zip(pair.parts, pair.adjoint().parts, strict=True)
        )
    )
    w, q = _hermitian_eigh(augmented, descending=True)
    s = t.term(t.maximum(w.slice(1, 0, k), 0.0)) * scale.reshape((scale.shape[0], 1))
    halves = (q.map(lambda v: v.slice(1, 0, rows)), q.map(lambda v: v.slice(1, rows, rows + columns)))
    u, v = (_basis(half.map(lambda y: y.slice(2, 0, k)), full) for half in halves)
    return _parts(u, lead), s.reshape((*lead, k)).node, _parts(v, lead)


def _basis(x: Pair, full: bool) -> Pair:
    """Orthonormal columns in the directions of the columns of x[b, m, k]; zero columns become orthogonal to the
    others."""
    _, rows, k = x.re.shape
    r, q, _ = p.householder(x * math.sqrt(2.0), k)
    phases = p.phase(r.map(lambda v: m.diagonal(v).expand(1)))
    q = q * Pair(phases.re.pad(2, 0, rows - k, 1.0), phases.im.pad(2, 0, rows - k, 0.0))
    return q if full else q.map(lambda v: v.slice(2, 0, k))
