"""Factorizations of complex matrices, and solvers based on them (`ops/linalg/unitary.py`)."""

from __future__ import annotations

from ingot import ops
from ingot.frontends.torch.aten.algebra import factorizations
from ingot.frontends.torch.aten.complex import on_complex, pair
from ingot.frontends.torch.aten.create import filled
from ingot.frontends.torch.values import Complex, Context, expand
from ingot.ir.node import Node
from ingot.ops import linalg

on_complex("linalg_eig.default")(factorizations.eig)
on_complex("linalg_eigvals.default", "_linalg_eigvals.default")(factorizations.eigvals)

Parts = tuple[Node, Node]


def _parts(z: object, c: Context) -> Parts:
    parts = pair(z, c)
    return parts.real, parts.imaginary


def _batched(*matrices: Parts) -> tuple[Parts, ...]:
    """The matrices, broadcast to one batch shape."""
    batch = ops.broadcast_shapes(*(re.shape[:-2] for re, _ in matrices))
    broadcast = ([expand(v, (*batch, *v.shape[-2:])) for v in parts] for parts in matrices)
    return tuple((re, im) for re, im in broadcast)


@on_complex("linalg_cholesky_ex.default")
def cholesky_ex(c: Context, z: object, *, upper: bool = False, check_errors: bool = False) -> tuple[Complex, Node]:
    re, im = linalg.complex_cholesky(_parts(z, c), upper)
    return Complex(re, im), factorizations.failed(ops.IsNan()(linalg.diagonal(re)))


@on_complex("cholesky.default")
def cholesky(c: Context, z: object, upper: bool = False) -> Complex:
    return Complex(*linalg.complex_cholesky(_parts(z, c), upper))


@on_complex("cholesky_solve.default")
def cholesky_solve(c: Context, b: object, factor: object, upper: bool = False) -> Complex:
    x, half = _batched(_parts(b, c), _parts(factor, c))
    for adjoint in (upper, not upper):
        x = linalg.complex_solve_triangular(half, x, upper=upper, transpose="C" if adjoint else "N")
    return Complex(*x)


@on_complex("linalg_solve_triangular.default")
def solve_triangular(
    c: Context, a: object, b: object, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Complex:
    matrix, rhs = _batched(_parts(a, c), _parts(b, c))
    return Complex(*linalg.complex_solve_triangular(matrix, rhs, upper=upper, unit=unitriangular, left=left))


@on_complex("triangular_solve.default")
def triangular_solve(
    c: Context, b: object, a: object, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> tuple[Complex, Complex]:
    matrix, rhs = _batched(_parts(a, c), _parts(b, c))
    mode = "T" if transpose else "N"
    x = linalg.complex_solve_triangular(matrix, rhs, upper=upper, unit=unitriangular, transpose=mode)
    return Complex(*x), Complex(*matrix)


@on_complex("linalg_qr.default")
def qr(c: Context, z: object, mode: str = "reduced") -> tuple[Complex, Complex]:
    q, r = linalg.complex_qr(_parts(z, c), mode == "complete")
    return (_empty_result(c, 0) if mode == "r" else Complex(*q)), Complex(*r)


@on_complex("_linalg_eigh.default")
def eigh(c: Context, z: object, UPLO: str = "L", compute_v: bool = True) -> tuple[Node, Complex]:
    re, im = _parts(z, c)
    if UPLO.upper() == "U":
        re, im = linalg.transposed(re), ops.Neg()(linalg.transposed(im))
    w, v = linalg.complex_eigh((re, im))
    return w, (Complex(*v) if compute_v else _empty_result(c, 1))


@on_complex("_linalg_svd.default")
def svd(
    c: Context, z: object, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None
) -> tuple[Complex, Node, Complex]:
    u, s, (re, im) = linalg.complex_svd(_parts(z, c), full_matrices)
    if not compute_uv:
        return _empty_result(c, 0), s, _empty_result(c, 2)
    return Complex(*u), s, Complex(linalg.transposed(re), ops.Neg()(linalg.transposed(im)))


def _empty_result(c: Context, result: int) -> Complex:
    """An empty result, for one that was not requested."""
    kind = c.results[result]
    return Complex(filled(kind.shape, 0, kind.dtype))
