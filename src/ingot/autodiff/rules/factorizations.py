"""Factorizations of matrices and triangular systems, by their formulas (Giles, "Collected matrix derivative results",
2008; Walter and Lehmann, "Algorithmic differentiation of linear algebra functions", 2010).

Of symmetric operands the gradient is symmetric, though one triangle is read, as in PyTorch and JAX.
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


def _given(results: Sequence[Node], cotangents: Sequence[Node | None]) -> list[Node]:
    return [ops.full(y.shape, 0, y.dtype) if g is None else g for y, g in zip(results, cotangents, strict=True)]


def _symmetric(x: Term, like: Node) -> Node:
    return ((x + m.transpose(x)) * 0.5).reshape(like.shape).node


def _on_diagonal(x: Term) -> Term:
    """[b, n] as [b, n, n]."""
    rows = x.expand(2)
    return m.where(m.row_of(rows).equals(t.iota((1, 1, rows.shape[1]), 2)), rows, 0.0)


def _between(gaps: Term, x: Term) -> Term:
    """x over the gaps of two values each; 0 on the diagonal."""
    own = m.row_of(x).equals(m.column_of(x))
    return m.where(own, 0.0, x / m.where(own, 1.0, gaps))


@reverse(ops.TriangularSolve)
def _triangular_solve(node: Node, g: Node) -> list[Node]:
    """a x = b: of b it is a^-T g, of a the triangle of -(a^-T g) x^T."""
    op, (a, _) = node.op, node.inputs
    assert isinstance(op, ops.TriangularSolve)
    of_b = solve_triangular(a, g, upper=op.upper, unit=op.unit, transpose=True)
    rows, x = _batches(of_b, node)
    of_a = -m.matmul(rows, m.transpose(x))
    kept = m.strict_triangular_part(of_a, op.upper) if op.unit else m.triangular_part(of_a, op.upper)
    return [kept.reshape(a.shape).node, of_b]


def _lower_half(x: Term) -> Term:
    """The lower triangle with half of the diagonal."""
    return (m.triangular_part(x) + m.strict_triangular_part(x)) * 0.5


@reverse(ops.Cholesky)
def _cholesky(node: Node, g: Node) -> list[Node]:
    """l^-T half(l^T g) l^-1."""
    factor, cotangent = _batches(node, g)
    inner = _lower_half(m.matmul(m.transpose(factor), cotangent)).node
    left = solve_triangular(factor.node, inner, transpose=True)
    return [_symmetric(Term(solve_triangular(factor.node, left, left=False)), node.inputs[0])]


def _lu(node: Node, cotangents: Sequence[Node | None]) -> list[Node | None]:
    """l^-T (strict(l^T g) + upper(g u^T)) u^-T, of square matrices, in the order of x's rows."""
    (x,), (packed, _, order), g = node.inputs, node.results, cotangents[0]
    if g is None:
        return [None]
    if x.shape[-1] != x.shape[-2]:
        raise no_rule(node, "matrices that are not square")
    both, cotangent = _batches(packed, g)
    lower = m.strict_triangular_part(both) + m.identity(both)
    of_lower = m.matmul(m.transpose(lower), m.strict_triangular_part(cotangent))
    of_upper = m.matmul(m.triangular_part(cotangent, upper=True), m.transpose(m.triangular_part(both, upper=True)))
    inner = (m.strict_triangular_part(of_lower) + m.triangular_part(of_upper, upper=True)).node
    left = solve_triangular(both.node, inner, unit=True, transpose=True)
    whole = Term(solve_triangular(both.node, left, upper=True, left=False, transpose=True)).reshape(x.shape).node
    return [permute_rows(whole, inverse_permutation(order))]


def _eigh(node: Node, cotangents: Sequence[Node | None]) -> list[Node | None]:
    """v (diag(gw) + (v^T gv) / (w_j - w_i)) v^T."""
    (x,), (w, v) = node.inputs, node.results
    if all(g is None for g in cotangents):
        return [None]
    of_w, of_v = _given(node.results, cotangents)
    vectors, turned = _batches(v, of_v)
    values, slopes = (Term(y).reshape(vectors.shape[:2]) for y in (w, of_w))
    inner = _on_diagonal(slopes)
    if cotangents[1] is not None:
        inner = inner + _between(values.expand(1) - values.expand(2), m.matmul(m.transpose(vectors), turned))
    return [_symmetric(m.matmul(m.matmul(vectors, inner), m.transpose(vectors)), x)]


def _svd(node: Node, cotangents: Sequence[Node | None]) -> list[Node | None]:
    """u (skew(u^T gu) / e s + s skew(v^T gv) / e + diag(gs)) v^T, e = s_j^2 - s_i^2, and what leaves the spaces of u
    and v."""
    (x,), (u, s, v) = node.inputs, node.results
    if all(g is None for g in cotangents):
        return [None]
    of_u, of_s, of_v = _given(node.results, cotangents)
    left, right, by_left, by_right = _batches(u, v, of_u, of_v)
    sizes, slopes = (Term(y).reshape((left.shape[0], left.shape[2])) for y in (s, of_s))
    inner, back = _on_diagonal(slopes), m.transpose(right)
    gaps = (sizes * sizes).expand(1) - (sizes * sizes).expand(2)
    outside: list[Term] = []
    if cotangents[0] is not None:
        inside = m.matmul(m.transpose(left), by_left)
        inner = inner + _between(gaps, inside - m.transpose(inside)) * sizes.expand(1)
        outside.append(m.matmul((by_left - m.matmul(left, inside)) / sizes.expand(1), back))
    if cotangents[2] is not None:
        inside = m.matmul(back, by_right)
        inner = inner + sizes.expand(2) * _between(gaps, inside - m.transpose(inside))
        rest = (by_right - m.matmul(right, inside)) / sizes.expand(1)
        outside.append(m.matmul(left, m.transpose(rest)))
    found = m.matmul(m.matmul(left, inner), back)
    for part in outside:
        found = found + part
    return [found.reshape(x.shape).node]


RULES[ops.LU], RULES[ops.Eigh], RULES[ops.SVD] = _lu, _eigh, _svd
