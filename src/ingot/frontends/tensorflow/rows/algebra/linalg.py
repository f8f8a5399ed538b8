"""Linear algebra on the last two axes."""

from __future__ import annotations

from ingot import ops
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.tensorflow.values import Call, Result, Table
from ingot.ir.node import Node
from ingot.ir.types import i32
from ingot.ops import linalg

row = Table()


@row("Cholesky")
def cholesky(c: Call, a: Node) -> Node:
    return linalg.cholesky(a)


@row("MatrixInverse")
def inverse(c: Call, a: Node) -> Node:
    return linalg.inverse(linalg.transposed(a) if c.flag("adjoint") else a)


@row("MatrixSolve")
def solve(c: Call, a: Node, b: Node) -> Node:
    return linalg.solve(linalg.transposed(a) if c.flag("adjoint") else a, b)


@row("MatrixTriangularSolve", "BatchMatrixTriangularSolve")
def solve_triangular(c: Call, a: Node, b: Node) -> Node:
    lower = c.flag("lower") if c.has("lower") else True
    batch = ops.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = (ops.broadcast_to(x, (*batch, *x.shape[-2:])) for x in (a, b))
    return linalg.solve_triangular(a, b, upper=not lower, transpose=c.flag("adjoint"))


@row("MatrixDeterminant")
def determinant(c: Call, a: Node) -> Node:
    lu, pivots, _ = ops.LU()(a).results
    return linalg.determinant(lu, pivots)


@row("LogMatrixDeterminant", results=("sign", "log_abs_determinant"))
def log_determinant(c: Call, a: Node) -> Result:
    """The sign is the product of the factors' signs, as the product of the factors may overflow."""
    lu, pivots, _ = ops.LU()(a).results
    factors = linalg.diagonal(lu)
    is_unmoved = ops.compare("EQ", pivots, ops.cast(ops.arange(pivots.shape[-1]), pivots.dtype))
    negations = ops.where(is_unmoved, ops.scalar(1.0, a.dtype), -1.0)
    sign = ops.reduce("prod", ops.mul(negations, ops.Sign()(factors)), -1)
    return [sign, ops.reduce_sum(ops.Log()(ops.Abs()(factors)), -1)]


@row("Qr", results=("q", "r"))
def qr(c: Call, a: Node) -> Result:
    return linalg.qr(a, c.flag("full_matrices"))


@row("Svd", results=("s", "u", "v"))
def svd(c: Call, a: Node) -> Result:
    if c.has("compute_uv") and not c.flag("compute_uv"):
        empty = ops.full((0,), 0, a.dtype)
        return [linalg.singular_values(a), empty, empty]
    u, s, v = linalg.svd(a, c.flag("full_matrices"))
    return [s, u, v]


@row("SelfAdjointEigV2", results=("e", "v"))
def eigh(c: Call, a: Node) -> Result:
    values, vectors = ops.Eigh()(a).results
    computes_vectors = not c.has("compute_v") or c.flag("compute_v")
    return [values, vectors if computes_vectors else ops.full((0,), 0, a.dtype)]


@row("Lu", results=("lu", "p"))
def lu(c: Call, a: Node) -> Result:
    factors, _, order = ops.LU()(a).results
    return [factors, ops.cast(order, c.dtype("output_idx_type", i32))]


@row("MatrixSolveLs")
def least_squares(c: Call, a: Node, b: Node, l2: Node) -> Node:
    """By the normal equations of the smaller side, as TensorFlow's fast path."""
    if c.has("fast") and not c.flag("fast"):
        raise Unsupported("of matrices that lack a rank (fast=False)")
    rows, columns = a.shape[-2:]
    if not isinstance(rows, int) or not isinstance(columns, int):
        raise Unsupported(f"of {a.type}")
    transposed, product = linalg.transposed(a), ops.MatMul()
    tall = rows >= columns
    gram = product(transposed, a) if tall else product(a, transposed)
    line = ops.arange(min(rows, columns))
    on = ops.compare("EQ", ops.expand_dims(line, 1), ops.expand_dims(line, 0))
    gram = ops.add(gram, ops.where(on, ops.cast(l2, a.dtype), 0.0))
    factor = linalg.cholesky(gram)
    if tall:
        return linalg.cholesky_solve(product(transposed, b), factor)
    return product(transposed, linalg.cholesky_solve(b, factor))


@row("MatrixExponential")
def exponential(c: Call, a: Node) -> Node:
    return linalg.exponential(a)


@row("Cross")
def cross(c: Call, a: Node, b: Node) -> Node:
    """The cross product of vectors of three along the last axis."""
    x, y = ([ops.index_axis(v, -1, i) for i in range(3)] for v in (a, b))
    cyclic_pairs = ((1, 2), (2, 0), (0, 1))
    return ops.stack([ops.sub(ops.mul(x[i], y[j]), ops.mul(x[j], y[i])) for i, j in cyclic_pairs], -1)
