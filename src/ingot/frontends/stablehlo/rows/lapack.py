"""LAPACK calls, to which JAX lowers linear algebra for CPUs: lapack_<s or d><routine>_ffi.

The letters that LAPACK's routines take (uplo, side, ...) are the call's configuration. `info` is 0 but where a matrix
has no Cholesky factor.
"""

from __future__ import annotations

from collections.abc import Callable

from ingot import ops
from ingot.frontends.shared.composites.complex import Complex
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.stablehlo.rows.control import CUSTOM
from ingot.frontends.stablehlo.syntax import Number
from ingot.frontends.stablehlo.values import Call, Row
from ingot.ir.node import Node
from ingot.ir.types import i32
from ingot.ops import linalg


def _lapack(routine: str) -> Callable[[Row], Row]:
    return CUSTOM(*(f"target.lapack_{kind}{routine}_ffi" for kind in "sd"))


def _letter(c: Call, name: str) -> str:
    config = c.attributes.get("mhlo.backend_config") or c.attributes.get("backend_config")
    value = config.get(name) if isinstance(config, dict) else None
    if not isinstance(value, Number):
        raise Unsupported(f"no {name} in its configuration")
    return chr(int(value))


def _info(x: Node) -> Node:
    return ops.full(x.shape[:-2], 0, i32)


def _unread(c: Call, result: int) -> Node:
    type = c.types[result]
    if type is None:
        raise Unsupported("a result that is no tensor")
    sizes = [d for d in type.shape if d is not None]
    if len(sizes) < len(type.shape):
        raise Unsupported("of open sizes")
    return ops.full(tuple(sizes), 0, type.dtype)


@_lapack("potrf")
def potrf(c: Call, a: Node) -> tuple[Node, Node]:
    factor = linalg.cholesky(a, upper=_letter(c, "uplo") == "U")
    failed = ops.reduce("or", ops.IsNan()(linalg.diagonal(factor)), -1)
    return factor, ops.cast(failed, i32)


@_lapack("getrf")
def getrf(c: Call, a: Node) -> tuple[Node, Node, Node]:
    """Rows are counted from 1."""
    factors, pivots, _ = ops.LU()(a).results
    return factors, ops.cast(ops.add(pivots, 1), i32), _info(a)


@_lapack("geqrf")
def geqrf(c: Call, a: Node) -> tuple[Node, ...]:
    return ops.HouseholderQR()(a).results


@_lapack("orgqr")
def orgqr(c: Call, v: Node, tau: Node) -> Node:
    return linalg.householder_product(ops.slice_axis(v, -1, 0, tau.shape[-1]), tau, v.shape[-1])


@_lapack("syevd")
def syevd(c: Call, a: Node) -> tuple[Node, Node, Node]:
    values, vectors = ops.Eigh()(linalg.transposed(a) if _letter(c, "uplo") == "U" else a).results
    return vectors, values, _info(a)


@_lapack("geev")
def geev(c: Call, a: Node) -> tuple[object, ...]:
    """(real parts of the values, imaginary parts, left vectors, right vectors, info). The left ones are refused."""
    if _letter(c, "compute_left") != "N":
        raise Unsupported("left eigenvectors")
    values, imaginary, vectors, rest = ops.Eig()(a).results
    return values, imaginary, Complex(vectors, rest), Complex(vectors, rest), _info(a)


@_lapack("gesdd")
def gesdd(c: Call, a: Node) -> tuple[Node, ...]:
    """(the overwritten a, s, u, v^T, info). The first is never read, and u and v^T only if they are requested."""
    mode = _letter(c, "mode")
    if mode == "N":
        return a, linalg.singular_values(a), _unread(c, 2), _unread(c, 3), _info(a)
    u, s, v = linalg.svd(a, full=mode == "A")
    return a, s, u, linalg.transposed(v), _info(a)


@_lapack("trsm")
def trsm(c: Call, a: Node, b: Node) -> Node:
    return linalg.solve_triangular(
        a, b, upper=_letter(c, "uplo") == "U", unit=_letter(c, "diag") == "U", left=_letter(c, "side") == "L",
        transpose=_letter(c, "trans_x") in "TC",
    )  # fmt: skip
