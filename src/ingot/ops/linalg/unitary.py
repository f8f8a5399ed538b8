"""Factorizations of complex matrices, whose real and imaginary parts are two nodes [..., m, n].

Cholesky's and what is solved by triangles are those of the real matrix that has [[a, -b], [b, a]] in the place of each
a + bi. The others come from Householder's reflections and Schur's form.
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
    """The matrix whose lower triangle is x's; imaginary parts of its diagonal are not read."""
    strict = x.each(m.strict_triangle)
    diagonal = m.where(m.row_of(x.re).equals(m.column_of(x.re)), x.re, 0.0)
    return strict + strict.adjoint() + p.real(diagonal)


def _scale(x: Pair) -> Term:
    """[b, 1, 1] as `matrices.magnitude`, of both parts."""
    return m.magnitude(t.concat([*x.parts], 2))


def _interleaved(x: Pair) -> Term:
    """[b, 2 m, 2 n]."""
    batch, rows, columns = x.re.shape
    lines = [t.concat([a.expand(3), b.expand(3)], 3) for a, b in ((x.re, -x.im), (x.im, x.re))]
    return t.concat([line.expand(2) for line in lines], 2).reshape((batch, 2 * rows, 2 * columns))


def _of_columns(x: Pair) -> Term:
    """[b, 2 m, n]: of each block the first column."""
    batch, rows, columns = x.re.shape
    return t.concat([v.expand(2) for v in x.parts], 2).reshape((batch, 2 * rows, columns))


def _from_columns(x: Term) -> Pair:
    batch, rows, columns = x.shape
    blocks = x.reshape((batch, rows // 2, 2, columns))
    return Pair(*(blocks.slice(2, i, i + 1).reshape((batch, rows // 2, columns)) for i in (0, 1)))


def complex_cholesky(x: Parts, upper: bool = False) -> Parts:
    """l with x = l l^H, of the lower triangle of x; u with x = u^H u of the upper."""
    lead, given = x[0].shape[:-2], _pair(x)
    n = given.re.shape[1]
    factor = Term(Cholesky()(_interleaved(_hermitian(given.adjoint() if upper else given)).node))
    columns = factor.reshape((*factor.shape[:2], n, 2)).slice(3, 0, 1).reshape((*factor.shape[:2], n))
    out = _from_columns(columns)
    return _parts(out.adjoint() if upper else out, lead)


def complex_solve_triangular(
    a: Parts, b: Parts, *, upper: bool = False, unit: bool = False, left: bool = True, transpose: str = "N"
) -> Parts:
    """x with a x = b, or x a = b where not `left`; for a its transpose ("T") or its adjoint ("C")."""
    lead, matrix, sides = a[0].shape[:-2], _pair(a), _pair(b)
    if transpose == "C":
        matrix = matrix.conjugate()
    if (transpose != "N") == left:
        matrix, upper = matrix.each(m.transposed), not upper
    if not left:
        sides = sides.each(m.transposed)
    if not unit:
        inverse = p.real(t.full((*matrix.re.shape[:2], 1), 1.0, matrix.re.dtype)).over(
            matrix.each(lambda v: m.diagonal(v).expand(2))
        )
        matrix, sides = matrix * inverse, sides * inverse
    matrix = matrix.each(lambda v: m.strict_triangle(v, upper))
    x = _from_columns(Term(TriangularSolve(upper, unit=True)(_interleaved(matrix).node, _of_columns(sides).node)))
    return _parts(x if left else x.each(m.transposed), lead)


def complex_qr(x: Parts, complete: bool = False) -> tuple[Parts, Parts]:
    """(q, r) with a real diagonal of r."""
    lead, given = x[0].shape[:-2], _pair(x)
    _, rows, columns = given.re.shape
    k = dim_min(rows, columns)
    scale = _scale(given)
    r, q, _ = p.reflected(given * (1.0 / scale), k)
    turn = p.phase(r.each(lambda v: m.diagonal(v).expand(2)))
    turn = turn * m.where(turn.re < 0.0, -1.0, t.full(turn.re.shape, 1.0, turn.re.dtype))
    rest = rows - k
    factors = Pair(turn.re.pad(1, 0, rest, 1.0), turn.im.pad(1, 0, rest, 0.0))
    q, r = q * factors.each(m.transposed), r * factors.conjugate() * scale
    r = p.where(
        m.row_of(r.re) < m.column_of(r.re), r, p.where(m.row_of(r.re).equals(m.column_of(r.re)), p.real(r.re), 0.0)
    )
    if not complete:
        q, r = q.each(lambda v: v.slice(2, 0, k)), r.each(lambda v: v.slice(1, 0, k))
    return _parts(q, lead), _parts(r, lead)


def complex_eigh(x: Parts) -> tuple[Node, Parts]:
    """Eigenvalues, ascending, and orthonormal eigenvectors of the Hermitian matrix whose lower triangle is x's."""
    lead, given = x[0].shape[:-2], _hermitian(_pair(x))
    scale = _scale(given)
    w, v = _of_hermitian(given * (1.0 / scale))
    return (w * scale.reshape((scale.shape[0], 1))).reshape((*lead, w.shape[1])).node, _parts(v, lead)


def _of_hermitian(x: Pair, descending: bool = False) -> tuple[Term, Pair]:
    triangle, q = schur(x)
    values = m.diagonal(triangle.re)
    w, order = (Term(n) for n in Sort(1, descending)(values.node, t.iota(values.shape, 1).node).results)
    return w, q.each(lambda v: m.transposed(m.rows_at(m.transposed(v), order)))


def complex_svd(x: Parts, full: bool = False) -> tuple[Parts, Node, Parts]:
    """u, s and v with x = u diag(s) v^H: eigenvectors (u, v) of [[0, x], [x^H, 0]], whose eigenvalues are s and -s."""
    lead, given = x[0].shape[:-2], _pair(x)
    _, rows, columns = given.re.shape
    k = dim_min(rows, columns)
    scale = _scale(given)
    given = given * (1.0 / scale)
    both = Pair(
        *(
            t.concat([a.pad(2, rows, 0, 0.0), b.pad(2, 0, columns, 0.0)], 1)
            for a, b in zip(given.parts, given.adjoint().parts, strict=True)
        )
    )
    w, q = _of_hermitian(both, descending=True)
    s = t.term(t.maximum(w.slice(1, 0, k), 0.0)) * scale.reshape((scale.shape[0], 1))
    found = (q.each(lambda v: v.slice(1, 0, rows)), q.each(lambda v: v.slice(1, rows, rows + columns)))
    u, v = (_basis(half.each(lambda y: y.slice(2, 0, k)), full) for half in found)
    return _parts(u, lead), s.reshape((*lead, k)).node, _parts(v, lead)


def _basis(x: Pair, full: bool) -> Pair:
    """Orthonormal columns in the directions of x[b, m, k]; where these are none, what is orthogonal to the others."""
    _, rows, k = x.re.shape
    r, q, _ = p.reflected(x * math.sqrt(2.0), k)
    turn = p.phase(r.each(lambda v: m.diagonal(v).expand(1)))
    q = q * Pair(turn.re.pad(2, 0, rows - k, 1.0), turn.im.pad(2, 0, rows - k, 0.0))
    return q if full else q.each(lambda v: v.slice(2, 0, k))
