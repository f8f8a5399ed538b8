"""Factorizations of matrices and triangular systems (formulas: Giles, "Collected matrix derivative results",
2008; Walter and Lehmann, "Algorithmic differentiation of linear algebra functions", 2010).

The gradient of a symmetric operand is symmetric although only one triangle is read, as in PyTorch and JAX.
"""

from __future__ import annotations

from collections.abc import Sequence

from ingot import ops
from ingot.autodiff.table import RULES, no_rule, reverse
from ingot.ir.node import Node
from ingot.ops.linalg import matrices as m
from ingot.ops.linalg.systems import inverse_permutation, permute_rows, solve_triangular
from ingot.ops.nn import terms as t
from ingot.ops.nn.terms import Term


def _batches(*nodes: Node) -> list[Term]:
    return [m.as_batch(x) for x in nodes]


def _or_zeros(results: Sequence[Node], cotangents: Sequence[Node | None]) -> list[Node]:
    return [ops.full(y.shape, 0, y.dtype) if g is None else g for y, g in zip(results, cotangents, strict=True)]


def _symmetrized(x: Term, like: Node) -> Node:
    return ((x + m.transpose(x)) * 0.5).reshape(like.shape).node


def _diagonal_matrix(x: Term) -> Term:
    """[b, n] as [b, n, n]."""
    rows = x.expand(2)
    return m.where(m.row_of(rows).equals(t.iota((1, 1, rows.shape[1]), 2)), rows, 0.0)


def _over_gaps(gaps: Term, x: Term) -> Term:
    """x / gaps, where gaps[i, j] is the difference of values j and i; 0 on the diagonal."""
    is_diagonal = m.row_of(x).equals(m.column_of(x))
    return m.where(is_diagonal, 0.0, x / m.where(is_diagonal, 1.0, gaps))


@reverse(ops.TriangularSolve)
def _triangular_solve(node: Node, g: Node) -> list[Node]:
    """a x = b: the cotangent of b is a^-T g, that of a is the triangle of -(a^-T g) x^T."""
    op, (a, _) = node.op, node.inputs
    assert isinstance(op, ops.TriangularSolve)
    of_b = solve_triangular(a, g, upper=op.upper, unit=op.unit, transpose=True)
    rows, x = _batches(of_b, node)
    of_a = -m.matmul(rows, m.transpose(x))
    triangle = m.strict_triangular_part(of_a, op.upper) if op.unit else m.triangular_part(of_a, op.upper)
    return [triangle.reshape(a.shape).node, of_b]


def _lower_half(x: Term) -> Term:
    """The lower triangle with half of the diagonal."""
    return (m.triangular_part(x) + m.strict_triangular_part(x)) * 0.5


@reverse(ops.Cholesky)
def _cholesky(node: Node, g: Node) -> list[Node]:
    """l^-T half(l^T g) l^-1."""
    factor, cotangent = _batches(node, g)
    inner = _lower_half(m.matmul(m.transpose(factor), cotangent)).node
    half_solved = solve_triangular(factor.node, inner, transpose=True)
    return [_symmetrized(Term(solve_triangular(factor.node, half_solved, left=False)), node.inputs[0])]


def _lu(node: Node, cotangents: Sequence[Node | None]) -> list[Node | None]:
    """l^-T (strict(l^T g) + upper(g u^T)) u^-T with the rows permuted back to the order of x; square matrices only."""
    (x,), (packed, _, order), g = node.inputs, node.results, cotangents[0]
    if g is None:
        return [None]
    if x.shape[-1] != x.shape[-2]:
        raise no_rule(node, "matrices that are not square")
    factors, cotangent = _batches(packed, g)
    lower = m.strict_triangular_part(factors) + m.identity(factors)
    of_lower = m.matmul(m.transpose(lower), m.strict_triangular_part(cotangent))
    of_upper = m.matmul(m.triangular_part(cotangent, upper=True), m.transpose(m.triangular_part(factors, upper=True)))
    inner = (m.strict_triangular_part(of_lower) + m.triangular_part(of_upper, upper=True)).node
    half_solved = solve_triangular(factors.node, inner, unit=True, transpose=True)
    of_x = (
        Term(solve_triangular(factors.node, half_solved, upper=True, left=False, transpose=True)).reshape(x.shape).node
    )
    return [permute_rows(of_x, inverse_permutation(order))]


def _eigh(node: Node, cotangents: Sequence[Node | None]) -> list[Node | None]:
    """v (diag(gw) + (v^T gv) / (w_j - w_i)) v^T."""
    (x,), (w, v) = node.inputs, node.results
    if all(g is None for g in cotangents):
        return [None]
    of_values, of_v = _or_zeros(node.results, cotangents)
    vectors, of_vectors = _batches(v, of_v)
    values, diagonal = (Term(y).reshape(vectors.shape[:2]) for y in (w, of_values))
    inner = _diagonal_matrix(diagonal)
    if cotangents[1] is not None:
        inner = inner + _over_gaps(values.expand(1) - values.expand(2), m.matmul(m.transpose(vectors), of_vectors))
    return [_symmetrized(m.matmul(m.matmul(vectors, inner), m.transpose(vectors)), x)]


def _svd(node: Node, cotangents: Sequence[Node | None]) -> list[Node | None]:
    """u (skew(u^T gu) / e s + s skew(v^T gv) / e + diag(gs)) v^T with e = s_j^2 - s_i^2, plus the components outside
    the column spaces of u and v."""
    (x,), (u, s, v) = node.inputs, node.results
    if all(g is None for g in cotangents):
        return [None]
    of_u, of_values, of_v = _or_zeros(node.results, cotangents)
    left, right, of_left, of_right = _batches(u, v, of_u, of_v)
    values, diagonal = (Term(y).reshape((left.shape[0], left.shape[2])) for y in (s, of_values))
    inner, right_transposed = _diagonal_matrix(diagonal), m.transpose(right)
    gaps = (values * values).expand(1) - (values * values).expand(2)
    outside: list[Term] = []
    if cotangents[0] is not None:
        inside = m.matmul(m.transpose(left), of_left)
        inner = inner + _over_gaps(gaps, inside - m.transpose(inside)) * values.expand(1)
        outside.append(m.matmul((of_left - m.matmul(left, inside)) / values.expand(1), right_transposed))
    if cotangents[2] is not None:
        inside = m.matmul(right_transposed, of_right)
        inner = inner + values.expand(2) * _over_gaps(gaps, inside - m.transpose(inside))
        rest = (of_right - m.matmul(right, inside)) / values.expand(1)
        outside.append(m.matmul(left, m.transpose(rest)))
    of_x = m.matmul(m.matmul(left, inner), right_transposed)
    for part in outside:
        of_x = of_x + part
    return [of_x.reshape(x.shape).node]


RULES[ops.LU], RULES[ops.Eigh], RULES[ops.SVD] = _lu, _eigh, _svd
