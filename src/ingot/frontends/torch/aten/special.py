"""Functions that a formula in their own dtype would get wrong where digits cancel or a rounded operand is magnified."""

from __future__ import annotations

import math

from ingot import ops
from ingot.frontends.torch.aten.create import filled
from ingot.frontends.torch.table import Table
from ingot.frontends.torch.values import Context, aligned, cast, wide
from ingot.ir.node import Node
from ingot.ir.types import f64

aten = Table()

_TAIL = 2.5  # from where on erfc is a continued fraction
_TERMS = 24  # of it: 1e-12 at _TAIL


@aten("exp2.default", "special_exp2.default")
def exp2(c: Context, x: Node) -> Node:
    # exp(x log 2) is off by x times the rounding of its operand
    return ops.Pow()(*aligned((2.0, cast(x, c.dtype)), c.dtype))


@aten("erfc.default", "special_erfc.default")
def erfc(c: Context, x: Node) -> Node:
    """1 - erf(x), in the tail Laplace's continued fraction (Abramowitz and Stegun 7.1.14); in f64, as 1 - erf cancels.

    erfc(x) = exp(-x^2) / (x sqrt(pi) (1 + r / (1 + 2 r / (1 + 3 r / ...)))), r = 1 / (2 x^2)
    """
    x = cast(cast(x, c.dtype), f64)
    square = ops.mul(x, x)
    r = ops.div(0.5, square)
    fraction = ops.add(ops.mul(r, float(_TERMS)), 1.0)
    for k in range(_TERMS - 1, 0, -1):
        fraction = ops.add(ops.div(ops.mul(r, float(k)), fraction), 1.0)
    tail = ops.div(ops.Exp()(ops.Neg()(square)), ops.mul(ops.mul(x, math.sqrt(math.pi)), fraction))
    return cast(ops.where(ops.compare("GT", x, _TAIL), tail, ops.sub(1.0, ops.Erf()(x))), c.dtype)


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
