"""What factorizations are for: systems of equations, inverses, determinants. Builders on matrices [..., m, n]."""

from __future__ import annotations

from ingot.ir.dims import DimLike, product
from ingot.ir.node import Node
from ingot.ir.types import i64
from ingot.ops.core.indexing import Sort
from ingot.ops.linalg import matrices as m
from ingot.ops.linalg.cholesky import Cholesky
from ingot.ops.linalg.lu import LU
from ingot.ops.linalg.triangular import TriangularSolve
from ingot.ops.nn import terms as t
from ingot.ops.nn.terms import Term


def transposed(x: Node) -> Node:
    return m.transposed(Term(x)).node


def diagonal(x: Node) -> Node:
    """[..., min(m, n)]."""
    found = m.diagonal(m.as_batch(x))
    return found.reshape((*x.shape[:-2], found.shape[1])).node


def triangle(x: Node, upper: bool = False) -> Node:
    """x on its diagonal and below it (above it), zeros elsewhere."""
    return m.triangle(m.as_batch(x), upper).reshape(x.shape).node


def symmetric(x: Node) -> Node:
    """The symmetric matrix whose lower triangle is x's."""
    return m.symmetric(m.as_batch(x)).reshape(x.shape).node


def solve_triangular(
    a: Node, b: Node, *, upper: bool = False, unit: bool = False, left: bool = True, transpose: bool = False
) -> Node:
    """x with a x = b, or x a = b where not `left`; a^T for a where `transpose`. Of `a` one triangle is read."""
    if transpose == left:
        a, upper = transposed(a), not upper
    if left:
        return TriangularSolve(upper, unit)(a, b)
    return transposed(TriangularSolve(upper, unit)(a, transposed(b)))


def cholesky(x: Node, upper: bool = False) -> Node:
    """The lower (upper) factor, of the same triangle of x."""
    return transposed(Cholesky()(transposed(x))) if upper else Cholesky()(x)


def cholesky_solve(b: Node, factor: Node, upper: bool = False) -> Node:
    """x with a x = b, for a's factor."""
    half = solve_triangular(factor, b, upper=upper, transpose=upper)
    return solve_triangular(factor, half, upper=upper, transpose=not upper)


def reordered(x: Node, order: Node) -> Node:
    """x[..., order, :], an order of rows for each matrix."""
    flat = Term(order).reshape((m.as_batch(x).shape[0], order.shape[-1]))
    return m.rows_at(m.as_batch(x), flat).reshape((*order.shape, x.shape[-1])).node


def inverse_order(order: Node) -> Node:
    """The order that undoes `order`, i64[..., n]."""
    axis = order.type.rank - 1
    return Sort(axis)(order, t.iota(order.shape, axis).node).results[1]


def order_of(pivots: Node, rows: DimLike) -> Node:
    """i64[..., rows]: where rows 0, 1, ... end that change places with rows pivots[..., i], one after the other."""
    *lead, count = pivots.shape
    flat = Term(pivots).cast(i64).reshape((1, product(lead), count))
    order = t.iota((flat.shape[1], rows), 1)
    if rows == 0:
        return order.reshape((*lead, rows)).node

    def swap(i: Term, order: Term, pivots: Term) -> list[Term]:
        to = m.cut(pivots, 2, i).reshape((order.shape[0], 1))
        place = t.iota((1, rows), 1)
        there = m.rows_at(order.expand(2), to).reshape(to.shape)
        here = m.cut(order.expand(0), 2, i).reshape(to.shape)
        return [m.where(place.equals(i), there, m.where(place.equals(to), here, order))]

    return m.repeat(count, [order], swap, [flat])[0].reshape((*lead, rows)).node


def lu_solve(lu: Node, order: Node, b: Node, *, left: bool = True, adjoint: bool = False) -> Node:
    """x with a x = b (x a = b where not `left`), a^T for a where `adjoint`, for a's LU and its order of rows."""
    if not left:
        return transposed(lu_solve(lu, order, transposed(b), adjoint=not adjoint))
    if not adjoint:
        half = solve_triangular(lu, reordered(b, order), unit=True)
        return solve_triangular(lu, half, upper=True)
    half = solve_triangular(lu, b, upper=True, transpose=True)
    return reordered(solve_triangular(lu, half, unit=True, transpose=True), inverse_order(order))


def solve(a: Node, b: Node, left: bool = True) -> Node:
    lu, _, order = LU()(a).results
    return lu_solve(lu, order, b, left=left)


def inverse(a: Node) -> Node:
    return solve(a, m.identity(Term(a)).reshape(a.shape[-2:]).broadcast(a.shape).node)


def determinant(lu: Node, pivots: Node) -> Node:
    """det a of [..., n, n], for a's LU."""
    rows = Term(diagonal(lu))
    return (_sign(pivots, rows) * rows.reduce("prod", (rows.rank - 1,), keepdims=False)).node


def _sign(pivots: Node, like: Term) -> Term:
    """-1 for an odd number of rows that change places."""
    places = Term(pivots)
    stays = places.equals(t.iota(places.shape, places.rank - 1))
    return m.where(stays, t.scalar(1.0, like.dtype), -1.0).reduce("prod", (places.rank - 1,), keepdims=False)
