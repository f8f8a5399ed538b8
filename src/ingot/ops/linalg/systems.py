"""Builders on matrices [..., m, n]: systems of equations, inverses, determinants."""

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
    """Each matrix transposed."""
    return m.transpose(Term(x)).node


def diagonal(x: Node) -> Node:
    """The diagonal of each matrix, [..., min(m, n)]."""
    result = m.diagonal(m.as_batch(x))
    return result.reshape((*x.shape[:-2], result.shape[1])).node


def triangle(x: Node, upper: bool = False) -> Node:
    """The lower (upper) triangle of x with the diagonal, zeros elsewhere."""
    return m.triangular_part(m.as_batch(x), upper).reshape(x.shape).node


def symmetric(x: Node) -> Node:
    """The symmetric matrix whose lower triangle is x's."""
    return m.symmetric(m.as_batch(x)).reshape(x.shape).node


def solve_triangular(
    a: Node, b: Node, *, upper: bool = False, unit: bool = False, left: bool = True, transpose: bool = False
) -> Node:
    """The solution x of a x = b, or of x a = b unless `left`, for the lower (upper) triangle of a.

    transpose: solve with a^T. unit: the diagonal is taken as ones.
    """
    if transpose == left:
        a, upper = transposed(a), not upper
    if left:
        return TriangularSolve(upper, unit)(a, b)
    return transposed(TriangularSolve(upper, unit)(a, transposed(b)))


def cholesky(x: Node, upper: bool = False) -> Node:
    """The lower (upper) Cholesky factor of x, from the same triangle of x."""
    return transposed(Cholesky()(transposed(x))) if upper else Cholesky()(x)


def cholesky_solve(b: Node, factor: Node, upper: bool = False) -> Node:
    """The solution of a x = b for the Cholesky factor of a."""
    partial = solve_triangular(factor, b, upper=upper, transpose=upper)
    return solve_triangular(factor, partial, upper=upper, transpose=not upper)


def permute_rows(x: Node, order: Node) -> Node:
    """x[..., order, :]: the rows of each matrix in its order."""
    flat = Term(order).reshape((m.as_batch(x).shape[0], order.shape[-1]))
    return m.take_rows(m.as_batch(x), flat).reshape((*order.shape, x.shape[-1])).node


def inverse_permutation(order: Node) -> Node:
    """The inverse of the permutation `order`, i64[..., n]."""
    axis = order.type.rank - 1
    return Sort(axis)(order, t.iota(order.shape, axis).node).results[1]


def permutation_from_pivots(pivots: Node, rows: DimLike) -> Node:
    """i64[..., rows]: the permutation that results from exchanging rows i and pivots[..., i] for i = 0, 1, ..."""
    *lead, count = pivots.shape
    flat = Term(pivots).cast(i64).reshape((1, product(lead), count))
    order = t.iota((flat.shape[1], rows), 1)
    if rows == 0:
        return order.reshape((*lead, rows)).node

    def swap(i: Term, order: Term, pivots: Term) -> list[Term]:
        target = m.dynamic_slice(pivots, 2, i).reshape((order.shape[0], 1))
        position = t.iota((1, rows), 1)
        target_value = m.take_rows(order.expand(2), target).reshape(target.shape)
        current_value = m.dynamic_slice(order.expand(0), 2, i).reshape(target.shape)
        return [m.where(position.equals(i), target_value, m.where(position.equals(target), current_value, order))]

    return m.for_loop(count, [order], swap, [flat])[0].reshape((*lead, rows)).node


def lu_solve(lu: Node, order: Node, b: Node, *, left: bool = True, adjoint: bool = False) -> Node:
    """The solution of a x = b, or of x a = b unless `left`, for the LU of a and its order of rows.

    adjoint: solve with a^T.
    """
    if not left:
        return transposed(lu_solve(lu, order, transposed(b), adjoint=not adjoint))
    if not adjoint:
        partial = solve_triangular(lu, permute_rows(b, order), unit=True)
        return solve_triangular(lu, partial, upper=True)
    partial = solve_triangular(lu, b, upper=True, transpose=True)
    return permute_rows(solve_triangular(lu, partial, unit=True, transpose=True), inverse_permutation(order))


def solve(a: Node, b: Node, left: bool = True) -> Node:
    """The solution of a x = b, or of x a = b unless `left`."""
    lu, _, order = LU()(a).results
    return lu_solve(lu, order, b, left=left)


def inverse(a: Node) -> Node:
    """The inverse of each matrix."""
    return solve(a, m.identity(Term(a)).reshape(a.shape[-2:]).broadcast(a.shape).node)


def determinant(lu: Node, pivots: Node) -> Node:
    """The determinant of a[..., n, n], from its LU."""
    rows = Term(diagonal(lu))
    return (_sign(pivots, rows) * rows.reduce("prod", (rows.rank - 1,), keepdims=False)).node


def _sign(pivots: Node, like: Term) -> Term:
    """The sign of the permutation: -1 for an odd number of exchanges."""
    pivot_rows = Term(pivots)
    is_fixed = pivot_rows.equals(t.iota(pivot_rows.shape, pivot_rows.rank - 1))
    return m.where(is_fixed, t.scalar(1.0, like.dtype), -1.0).reduce("prod", (pivot_rows.rank - 1,), keepdims=False)
