"""Functions that a formula in their own dtype would get wrong where digits cancel or a rounded operand is magnified."""

from __future__ import annotations

import math
from collections.abc import Callable

from ingot import ops
from ingot.frontends.torch.aten.create import filled
from ingot.frontends.torch.table import Table
from ingot.frontends.torch.values import Context, Operand, aligned, cast, expand, f64, node_of, wide
from ingot.ir.node import Node
from ingot.ops import bessel, orthogonal

aten = Table()

_TAIL = 2.5  # from where on erfc is a continued fraction
_TERMS = 24  # of it: 1e-12 at _TAIL


@aten("exp2.default", "special_exp2.default")
def exp2(c: Context, x: Node) -> Node:
    # exp(x log 2) is off by x times the rounding of its operand
    return ops.Pow()(*aligned((2.0, cast(x, c.dtype)), c.dtype))


@aten("erfc.default", "special_erfc.default")
def erfc(c: Context, x: Node) -> Node:
    """1 - erf(x), in the tail by its continued fraction; in f64, as 1 - erf cancels."""
    x = cast(cast(x, c.dtype), f64)
    tail = ops.mul(ops.Exp()(ops.Neg()(ops.mul(x, x))), _scaled_tail(x))
    return cast(ops.where(ops.compare("GT", x, _TAIL), tail, ops.sub(1.0, ops.Erf()(x))), c.dtype)


def _scaled_tail(x: Node) -> Node:
    """exp(x^2) erfc(x) from _TAIL on: Laplace's continued fraction (Abramowitz and Stegun 7.1.14),
    1 / (x sqrt(pi) (1 + r / (1 + 2 r / (1 + 3 r / ...)))), r = 1 / (2 x^2).
    """
    r = ops.div(0.5, ops.mul(x, x))
    fraction = ops.add(ops.mul(r, float(_TERMS)), 1.0)
    for k in range(_TERMS - 1, 0, -1):
        fraction = ops.add(ops.div(ops.mul(r, float(k)), fraction), 1.0)
    return ops.div(1.0, ops.mul(ops.mul(x, math.sqrt(math.pi)), fraction))


@aten("special_erfcx.default")
def erfcx(c: Context, x: Node) -> Node:
    """exp(x^2) erfc(x)."""
    x = cast(cast(x, c.dtype), f64)
    near = ops.mul(ops.Exp()(ops.mul(x, x)), ops.sub(1.0, ops.Erf()(x)))
    return cast(ops.where(ops.compare("GT", x, _TAIL), _scaled_tail(x), near), c.dtype)


@aten("sinc.default", "special_sinc.default")
def sinc(c: Context, x: Node) -> Node:
    angle = ops.mul(cast(cast(x, c.dtype), wide(c.dtype)), math.pi)
    at_zero = ops.compare("EQ", angle, 0.0)
    return cast(ops.where(at_zero, 1.0, ops.div(ops.Sin()(angle), ops.where(at_zero, 1.0, angle))), c.dtype)


@aten("angle.default")
def angle(c: Context, x: Node) -> Node:
    """Of a number on the real axis: 0, or pi where it is negative."""
    x = cast(x, c.dtype)
    turned = ops.where(ops.compare("LT", x, 0.0), math.pi, filled(x.shape, 0, x.dtype))
    return ops.where(ops.IsNan()(x), x, turned)


def _unary(name: str, function: Callable[[Node], Node]) -> None:
    """A row of one operand that is computed in f64."""

    def row(c: Context, x: Node) -> Node:
        return cast(function(cast(cast(x, c.dtype), f64)), c.dtype)

    aten.add(name, row)


for _name, _function in {
    "bessel_j0": bessel.bessel_j0,
    "bessel_j1": bessel.bessel_j1,
    "bessel_y0": bessel.bessel_y0,
    "bessel_y1": bessel.bessel_y1,
    "modified_bessel_k0": bessel.bessel_k0,
    "modified_bessel_k1": bessel.bessel_k1,
    "scaled_modified_bessel_k0": bessel.bessel_k0e,
    "scaled_modified_bessel_k1": bessel.bessel_k1e,
    "spherical_bessel_j0": bessel.spherical_bessel_j0,
    "airy_ai": bessel.airy_ai,
}.items():
    _unary(f"special_{_name}.default", _function)


def _binary(name: str, function: Callable[[Node, Node], Node]) -> None:
    """A row of two operands, of which either may be a number, that is computed in f64."""

    def row(c: Context, x: Operand, n: Operand) -> Node:
        a, b = (expand(cast(node_of(v, c.dtype), f64), c.shape) for v in (x, n))
        return cast(function(a, b), c.dtype)

    for overload in ("default", "x_scalar", "n_scalar"):
        aten.add(f"{name}.{overload}", row)


for _name, _polynomial in {
    "chebyshev_polynomial_t": orthogonal.chebyshev_t,
    "chebyshev_polynomial_u": orthogonal.chebyshev_u,
    "chebyshev_polynomial_v": orthogonal.chebyshev_v,
    "chebyshev_polynomial_w": orthogonal.chebyshev_w,
    "shifted_chebyshev_polynomial_t": orthogonal.shifted(orthogonal.chebyshev_t),
    "shifted_chebyshev_polynomial_u": orthogonal.shifted(orthogonal.chebyshev_u),
    "shifted_chebyshev_polynomial_v": orthogonal.shifted(orthogonal.chebyshev_v),
    "shifted_chebyshev_polynomial_w": orthogonal.shifted(orthogonal.chebyshev_w),
    "hermite_polynomial_h": orthogonal.hermite_h,
    "hermite_polynomial_he": orthogonal.hermite_he,
    "laguerre_polynomial_l": orthogonal.laguerre_l,
    "legendre_polynomial_p": orthogonal.legendre_p,
}.items():
    _binary(f"special_{_name}", _polynomial)
