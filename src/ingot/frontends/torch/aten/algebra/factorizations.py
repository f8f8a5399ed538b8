"""Factorizations of matrices, and solvers based on them.

Where PyTorch raises an error (no Cholesky factor, a singular matrix), a compiled program gives NaN or infinities.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ingot import ops
from ingot.frontends.shared.composites.movement import cut
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.torch.aten.create import filled
from ingot.frontends.torch.aten.shape import reshape
from ingot.frontends.torch.table import Table
from ingot.frontends.torch.values import Complex, Context, Number, Operand, cast, expand, i64
from ingot.ir.dims import DimLike, dim_max, dim_min
from ingot.ir.node import Node
from ingot.ir.types import Shape, i32
from ingot.ops import linalg

aten = Table()


def _batched(*xs: Node) -> tuple[Node, ...]:
    """The matrices, broadcast to one batch shape."""
    batch = ops.broadcast_shapes(*(x.shape[:-2] for x in xs))
    return tuple(expand(x, (*batch, *x.shape[-2:])) for x in xs)


def failed(bad: Node) -> Node:
    """LAPACK's info: the first bad position in the last dimension, counted from 1, or 0."""
    axis = bad.type.rank - 1
    places = ops.cast(ops.add(ops.iota(bad.shape, axis), 1), i64)
    none = filled(places.shape, 2**31 - 1, i64)
    first = ops.reduce_min(ops.Select()(bad, places, none), axis)
    return cast(ops.where(ops.compare("LT", first, 2**31 - 1), first, ops.scalar(0, i64)), i32)


def _one_based(pivots: Node) -> Node:
    """Pivots counted from 1, as in LAPACK."""
    return cast(ops.add(pivots, 1), i32)


def _identity(shape: Sequence[DimLike], dtype_source: Node) -> Node:
    shape = tuple(shape)
    rows, columns = (ops.iota(shape, axis) for axis in (len(shape) - 2, len(shape) - 1))
    return cast(ops.Compare("EQ")(rows, columns), dtype_source.dtype)


@aten("linalg_cholesky_ex.default")
def cholesky_ex(c: Context, x: Node, *, upper: bool = False, check_errors: bool = False) -> tuple[Node, Node]:
    factor = linalg.cholesky(x, upper)
    return factor, failed(ops.IsNan()(linalg.diagonal(factor)))


@aten("cholesky.default")
def cholesky(c: Context, x: Node, upper: bool = False) -> Node:
    return linalg.cholesky(x, upper)


@aten("cholesky_solve.default")
def cholesky_solve(c: Context, b: Node, factor: Node, upper: bool = False) -> Node:
    return linalg.cholesky_solve(*_batched(b, factor), upper=upper)


@aten("cholesky_inverse.default")
def cholesky_inverse(c: Context, factor: Node, upper: bool = False) -> Node:
    return linalg.cholesky_solve(_identity(factor.shape, factor), factor, upper)


@aten("linalg_solve_triangular.default")
def solve_triangular(
    c: Context, a: Node, b: Node, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Node:
    return linalg.solve_triangular(*_batched(a, b), upper=upper, unit=unitriangular, left=left)


@aten("triangular_solve.default")
def triangular_solve(
    c: Context, b: Node, a: Node, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> tuple[Node, Node]:
    a, b = _batched(a, b)
    return linalg.solve_triangular(a, b, upper=upper, unit=unitriangular, transpose=transpose), a


@aten("linalg_lu_factor_ex.default")
def lu_factor_ex(c: Context, x: Node, *, pivot: bool = True, check_errors: bool = False) -> tuple[Node, ...]:
    _with_pivots(pivot)
    lu, pivots, _ = ops.LU()(x).results
    diagonal = linalg.diagonal(lu)
    return lu, _one_based(pivots), failed(ops.compare("EQ", diagonal, ops.scalar(0, diagonal.dtype)))


def _with_pivots(pivot: bool) -> None:
    if not pivot:
        raise Unsupported("without pivots")


@aten("linalg_ldl_factor_ex.default")
def ldl_factor_ex(c: Context, x: Node, *, hermitian: bool = False, check_errors: bool = False) -> tuple[Node, ...]:
    factors, pivots, info = ops.LDL()(x).results
    return factors, cast(pivots, i32), info


@aten("linalg_ldl_solve.default")
def ldl_solve(c: Context, ld: Node, pivots: Node, b: Node, *, hermitian: bool = False) -> Node:
    ld, b = _batched(ld, b)
    return linalg.ldl_solve(ld, expand(pivots, ld.shape[:-1]), b)


@aten("linalg_lu.default")
def lu(c: Context, x: Node, *, pivot: bool = True) -> tuple[Node, ...]:
    _with_pivots(pivot)
    factors, _, order = ops.LU()(x).results
    return _unpacked(factors, order)


def _unpacked(lu: Node, order: Node) -> tuple[Node, Node, Node]:
    """P, L and U with x = P L U."""
    *lead, rows, columns = lu.shape
    k = dim_min(rows, columns)
    lower = linalg.triangle(cut(lu, len(lead) + 1, 0, k))
    diagonal = ops.Compare("EQ")(ops.iota(lower.shape, len(lead)), ops.iota(lower.shape, len(lead) + 1))
    lower = ops.Select()(diagonal, filled(lower.shape, 1, lower.dtype), lower)
    shape = (*lead, rows, rows)
    places = expand(ops.expand_dims(order, len(lead)), shape)
    permutation = cast(ops.Compare("EQ")(ops.iota(shape, len(lead)), places), lu.dtype)
    return permutation, lower, linalg.triangle(cut(lu, len(lead), 0, k), upper=True)


@aten("lu_unpack.default")
def lu_unpack(
    c: Context, lu: Node, pivots: Node, unpack_data: bool = True, unpack_pivots: bool = True
) -> tuple[Node, ...]:
    order = linalg.permutation_from_pivots(_from_zero(pivots), lu.shape[-2])
    parts = _unpacked(lu, order)
    wanted_parts = (unpack_pivots, unpack_data, unpack_data)
    return tuple(
        part if is_wanted else filled(t.shape, 0, t.dtype)
        for part, is_wanted, t in zip(parts, wanted_parts, c.results, strict=True)
    )


def _from_zero(pivots: Node) -> Node:
    return ops.sub(cast(pivots, i64), 1)


@aten("linalg_lu_solve.default")
def lu_solve(c: Context, lu: Node, pivots: Node, b: Node, *, left: bool = True, adjoint: bool = False) -> Node:
    order = linalg.permutation_from_pivots(_from_zero(pivots), lu.shape[-2])
    lu, b = _batched(lu, b)
    return linalg.lu_solve(lu, expand(order, lu.shape[:-1]), b, left=left, adjoint=adjoint)


@aten("_linalg_solve_ex.default")
def solve_ex(c: Context, a: Node, b: Node, *, left: bool = True, check_errors: bool = False) -> tuple[Node, ...]:
    return solved(a, b, c.results[0].shape, left), *lu_factor_ex(c, a)


def solved(a: Node, b: Node, shape: Shape, left: bool) -> Node:
    """x of this shape with a x = b, or x a = b where not `left`."""
    lu, _, order = ops.LU()(a).results
    # b is a vector or a batch of vectors
    vector = b.type.rank == 1 or (b.type.rank + 1 == a.type.rank and b.shape == a.shape[:-1])
    columns = ops.expand_dims(b, b.type.rank) if vector else b
    wide, columns = _batched(lu, columns)
    x = linalg.lu_solve(wide, expand(order, wide.shape[:-1]), columns, left=left or vector)
    return reshape(x, shape)


@aten("linalg_inv_ex.default")
def inv_ex(c: Context, a: Node, *, check_errors: bool = False) -> tuple[Node, Node]:
    _, _, info = lu_factor_ex(c, a)
    return linalg.inverse(a), info


@aten("geqrf.default")
def geqrf(c: Context, x: Node) -> tuple[Node, ...]:
    return ops.HouseholderQR()(x).results


@aten("linalg_qr.default")
def qr(c: Context, x: Node, mode: str = "reduced") -> tuple[Node, Node]:
    q, r = linalg.qr(x, mode == "complete")
    return (filled((0,), 0, x.dtype) if mode == "r" else q), r


@aten("linalg_householder_product.default", "orgqr.default")
def householder_product(c: Context, v: Node, tau: Node) -> Node:
    return linalg.householder_product(_with_columns(v, tau), tau, v.shape[-1])


def _with_columns(v: Node, tau: Node) -> Node:
    """The Householder vectors that have a factor in tau."""
    return cut(v, v.type.rank - 1, 0, tau.shape[-1])


@aten("ormqr.default")
def ormqr(c: Context, v: Node, tau: Node, b: Node, left: bool = True, transpose: bool = False) -> Node:
    v = _with_columns(v, tau)
    if left:
        return ops.Reflect(transpose)(v, tau, b)
    return linalg.transposed(ops.Reflect(not transpose)(v, tau, linalg.transposed(b)))


@aten("_linalg_svd.default")
def svd(
    c: Context, x: Node, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None
) -> tuple[Node, ...]:
    if not compute_uv:
        return tuple(
            linalg.singular_values(x) if i == 1 else filled(t.shape, 0, t.dtype) for i, t in enumerate(c.results)
        )
    u, s, v = linalg.svd(x, full_matrices)
    return u, s, linalg.transposed(v)


@aten("_linalg_eigh.default")
def eigh(c: Context, x: Node, UPLO: str = "L", compute_v: bool = True) -> tuple[Node, Node]:
    w, v = ops.Eigh()(linalg.transposed(x) if UPLO.upper() == "U" else x).results
    return w, (v if compute_v else filled(c.results[1].shape, 0, x.dtype))


@aten("linalg_eig.default")
def eig(c: Context, x: Node | Complex) -> tuple[Complex, Complex]:
    values, imaginary, vectors, imaginary_vectors = ops.Eig()(*(x.parts if isinstance(x, Complex) else (x,))).results
    return Complex(values, imaginary), Complex(vectors, imaginary_vectors)


@aten("linalg_eigvals.default", "_linalg_eigvals.default")
def eigvals(c: Context, x: Node | Complex) -> Complex:
    return eig(c, x)[0]


@aten("linalg_matrix_exp.default")
def matrix_exp(c: Context, x: Node) -> Node:
    return linalg.exponential(x)


@aten("linalg_pinv.atol_rtol_tensor")
def pinv(c: Context, x: Node, *, atol: Node | None = None, rtol: Node | None = None, hermitian: bool = False) -> Node:
    if hermitian:
        # the upper triangle is not read
        x = linalg.symmetric(x)
    return linalg.pseudo_inverse(x, _smallest_singular_value(x, atol, rtol))


def _smallest_singular_value(x: Node, atol: Operand | None, rtol: Operand | None) -> Node:
    """The bound up to which singular values count as 0: atol, or rtol times the largest. By default, rtol is the
    machine epsilon times the larger size."""
    batch = x.shape[:-2]

    def broadcast(value: Operand) -> Node:
        if isinstance(value, Number):
            value = value.node
        return expand(cast(value, x.dtype) if isinstance(value, Node) else ops.scalar(value, x.dtype), batch)

    threshold = filled(batch, 0, x.dtype) if atol is None else broadcast(atol)
    if rtol is None:
        default = ops.mul(broadcast(dim_max(x.shape[-2], x.shape[-1])), float(np.finfo(x.dtype.numpy).eps))
        zero = filled(batch, 0, x.dtype)
        relative = default if atol is None else ops.where(ops.compare("GT", threshold, 0.0), zero, default)
    else:
        relative = broadcast(rtol)
    if not x.shape[-1] or not x.shape[-2]:
        return threshold
    largest = ops.reduce_max(linalg.singular_values(x), -1)
    return ops.maximum(threshold, ops.mul(relative, largest))


@aten("linalg_lstsq.default")
def lstsq(c: Context, a: Node, b: Node, rcond: Operand | None = None, *, driver: str | None = None) -> tuple[Node, ...]:
    vector = b.type.rank + 1 == a.type.rank
    rhs = ops.expand_dims(b, b.type.rank) if vector else b
    a, rhs = _batched(a, rhs)
    threshold = _smallest_singular_value(a, None, rcond)
    x, s = linalg.least_squares(a, rhs, threshold)
    is_significant = ops.compare("GT", s, ops.expand_dims(threshold, -1))
    rank = ops.reduce_sum(cast(is_significant, i64), -1)
    x = reshape(x, c.results[0].shape)
    *_, residuals, ranks, values = c.results
    other_results: list[Node] = []
    for result, is_wanted in ((None, residuals), (rank, ranks), (s, values)):
        empty = any(d == 0 for d in is_wanted.shape)
        if not empty and result is None:
            error = ops.sub(ops.MatMul()(a, reshape(x, (*a.shape[:-2], a.shape[-1], rhs.shape[-1]))), rhs)
            result = ops.reduce_sum(ops.mul(error, error), -2)
        other_results.append(filled(is_wanted.shape, 0, is_wanted.dtype) if empty or result is None else result)
    return x, *other_results
