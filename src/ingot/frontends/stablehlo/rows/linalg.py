"""Fourier transforms and linear algebra."""

from __future__ import annotations

from ingot import ops
from ingot.frontends.shared.composites import fourier
from ingot.frontends.shared.composites.complex import Complex
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.stablehlo.rows.control import CUSTOM
from ingot.frontends.stablehlo.values import Call, Table
from ingot.ir.node import Node
from ingot.ir.types import i32
from ingot.ops import linalg

row, on_complex = Table(), Table()


def _lengths(c: Call, x: Node) -> tuple[int, ...]:
    lengths = c.ints("fft_length")
    if any(not isinstance(d, int) for d in x.shape[-len(lengths) :]):
        raise Unsupported("of a length that only the run knows")
    return lengths


@row("fft")
def rfft(c: Call, x: Node) -> Complex:
    if c.word("fft_type") != "RFFT":
        raise Unsupported(f"{c.word('fft_type')} of real numbers")
    return fourier.rfft(x, _lengths(c, x))


@on_complex("fft")
def fft(c: Call, z: Complex) -> Complex | Node:
    kind, lengths = c.word("fft_type"), _lengths(c, z.real)
    return fourier.irfft(z, lengths) if kind == "IRFFT" else fourier.fft(z, len(lengths), kind == "IFFT")


@row("cholesky")
def cholesky(c: Call, a: Node) -> Node:
    """NaN throughout where there is no factor, as in XLA."""
    factor = linalg.cholesky(a, upper=not c.flag("lower"))
    failed = ops.reduce("or", ops.IsNan()(linalg.diagonal(factor)), -1)
    return ops.where(ops.expand_dims(ops.expand_dims(failed, -1), -1), ops.scalar(float("nan"), a.dtype), factor)


@row("triangular_solve")
def triangular_solve(c: Call, a: Node, b: Node) -> Node:
    how = c.word("transpose_a", "NO_TRANSPOSE")
    return linalg.solve_triangular(
        a,
        b,
        upper=not c.flag("lower"),
        unit=c.flag("unit_diagonal"),
        left=c.flag("left_side"),
        transpose=how in ("TRANSPOSE", "ADJOINT"),
    )


# custom calls of JAX's lowering for TPUs


@CUSTOM("target.LuDecomposition")
def lu(c: Call, x: Node) -> tuple[Node, ...]:
    factors, pivots, order = ops.LU()(x).results
    return factors, ops.cast(pivots, i32), ops.cast(order, i32)


@CUSTOM("target.Qr")
def qr(c: Call, x: Node) -> tuple[Node, ...]:
    return ops.HouseholderQR()(x).results


@CUSTOM("target.ProductOfElementaryHouseholderReflectors")
def householder_product(c: Call, v: Node, tau: Node) -> Node:
    k = tau.shape[-1]
    return linalg.householder_product(ops.slice_axis(v, -1, 0, k), tau, v.shape[-1])


@CUSTOM("target.Eigh")
def eigh(c: Call, x: Node) -> tuple[Node, Node]:
    upper = "lower=0" in c.text("backend_config")
    w, v = ops.Eigh()(linalg.transposed(x) if upper else x).results
    return v, w
