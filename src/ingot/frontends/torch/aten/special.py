"""Functions whose formulas lose accuracy in their own dtype, by cancellation or by magnified rounding of operands."""

from __future__ import annotations

import math
from collections.abc import Callable

from ingot import ops
from ingot.frontends.torch.aten.create import filled
from ingot.frontends.torch.table import Table
from ingot.frontends.torch.values import Context, Operand, aligned, cast, expand, f64, node_of, scalar_like, wide
from ingot.ir.node import Node
from ingot.ops import bessel, incomplete, orthogonal, special

aten = Table()


@aten("exp2.default", "special_exp2.default")
def exp2(c: Context, x: Node) -> Node:
    # exp(x log 2) would have an error of x times the rounding of its operand
    return ops.Pow()(*aligned((2.0, cast(x, c.dtype)), c.dtype))


@aten("sinc.default", "special_sinc.default")
def sinc(c: Context, x: Node) -> Node:
    angle = ops.mul(cast(cast(x, c.dtype), wide(c.dtype)), math.pi)
    at_zero = ops.compare("EQ", angle, 0.0)
    return cast(ops.where(at_zero, 1.0, ops.div(ops.Sin()(angle), ops.where(at_zero, 1.0, angle))), c.dtype)


@aten("angle.default")
def angle(c: Context, x: Node) -> Node:
    """The angle of a real number: 0, or pi if it is negative."""
    x = cast(x, c.dtype)
    phase = ops.where(ops.compare("LT", x, 0.0), math.pi, filled(x.shape, 0, x.dtype))
    return ops.where(ops.IsNan()(x), x, phase)


def _unary(name: str, function: Callable[[Node], Node]) -> None:
    """A row of one operand that is computed in f64."""

    def row(c: Context, x: Node) -> Node:
        return cast(function(cast(cast(x, c.dtype), f64)), c.dtype)

    aten.add(name, row)


for _name, _function in {
    "bessel_j0": bessel.bessel_j0, "bessel_j1": bessel.bessel_j1, "bessel_y0": bessel.bessel_y0,
    "bessel_y1": bessel.bessel_y1, "modified_bessel_k0": bessel.bessel_k0, "modified_bessel_k1": bessel.bessel_k1,
    "scaled_modified_bessel_k0": bessel.bessel_k0e, "scaled_modified_bessel_k1": bessel.bessel_k1e,
    "spherical_bessel_j0": bessel.spherical_bessel_j0, "airy_ai": bessel.airy_ai,
    "modified_bessel_i0": special.bessel_i0, "modified_bessel_i1": special.bessel_i1, "i0e": special.bessel_i0e,
    "i1": special.bessel_i1, "i1e": special.bessel_i1e, "erfcx": special.erfcx, "ndtri": special.ndtri,
    "erfc": special.erfc,
}.items():  # fmt: skip
    _unary(f"special_{_name}.default", _function)
for _name, _function in {
    "i0": special.bessel_i0,
    "erfc": special.erfc,
    "erfinv": special.erf_inv,
    "lgamma": special.lgamma,
}.items():
    _unary(f"{_name}.default", _function)


def _binary(name: str, function: Callable[[Node, Node], Node], overloads: tuple[str, ...]) -> None:
    """A row of two operands, either of which may be a number, that is computed in f64."""

    def row(c: Context, x: Operand, n: Operand) -> Node:
        a, b = (expand(cast(node_of(v, c.dtype), f64), c.shape) for v in (x, n))
        return cast(function(a, b), c.dtype)

    for overload in overloads:
        aten.add(f"{name}.{overload}", row)


for _name, _polynomial in {
    "chebyshev_polynomial_t": orthogonal.chebyshev_t,
    "chebyshev_polynomial_u": orthogonal.chebyshev_u,
    "chebyshev_polynomial_v": orthogonal.chebyshev_v,
    "chebyshev_polynomial_w": orthogonal.chebyshev_w,
    "shifted_chebyshev_polynomial_t": orthogonal.shifted_polynomial(orthogonal.chebyshev_t),
    "shifted_chebyshev_polynomial_u": orthogonal.shifted_polynomial(orthogonal.chebyshev_u),
    "shifted_chebyshev_polynomial_v": orthogonal.shifted_polynomial(orthogonal.chebyshev_v),
    "shifted_chebyshev_polynomial_w": orthogonal.shifted_polynomial(orthogonal.chebyshev_w),
    "hermite_polynomial_h": orthogonal.hermite_h,
    "hermite_polynomial_he": orthogonal.hermite_he,
    "laguerre_polynomial_l": orthogonal.laguerre_l,
    "legendre_polynomial_p": orthogonal.legendre_p,
}.items():
    _binary(f"special_{_name}", _polynomial, ("default", "x_scalar", "n_scalar"))
_binary("special_zeta", special.zeta, ("default", "self_scalar", "other_scalar"))
_binary("igamma", incomplete.igamma, ("default",))
_binary("igammac", incomplete.igammac, ("default",))


@aten("digamma.default")
def digamma(c: Context, x: Node) -> Node:
    """The digamma function; infinite at 0, with a sign by the sign of the zero."""
    x = cast(cast(x, c.dtype), f64)
    pole = ops.div(-1.0, x)
    return cast(ops.where(ops.compare("EQ", x, 0.0), pole, special.digamma(x)), c.dtype)


@aten("polygamma.default")
def polygamma(c: Context, n: int, x: Node) -> Node:
    if n == 0:
        return digamma(c, x)
    x = cast(cast(x, c.dtype), f64)
    return cast(special.polygamma(scalar_like(n, x), x), c.dtype)
