"""Elementwise ops: the partial derivative dy/dx for each operand, times the cotangent."""

from __future__ import annotations

import math
from collections.abc import Callable

from ingot import ops
from ingot.autodiff.table import constant_everywhere, reverse
from ingot.ir.node import Node, Op
from ingot.ir.types import bf16, f16, f32
from ingot.ops import add, div, mul, sub

constant_everywhere(
    ops.Sign, ops.Floor, ops.Ceil, ops.RoundEven, ops.RoundAway, ops.Not, ops.PopulationCount, ops.CountLeadingZeros,
    ops.IsFinite, ops.IsNan, ops.And, ops.Or, ops.Xor, ops.ShiftLeft, ops.ShiftRightArithmetic, ops.ShiftRightLogical,
    ops.Compare, ops.BitcastConvert,
)  # fmt: skip

Partial = Callable[[Node, Node], Node]  # (y, x) -> dy/dx


def _times(f: Partial) -> Callable[[Node, Node], list[Node]]:
    return lambda node, g: [mul(g, f(node, node.inputs[0]))]


def _square(x: Node) -> Node:
    return mul(x, x)


# dy/dx in terms of y or x, whichever is cheaper and more accurate
_UNARY: dict[type[Op], Partial] = {
    ops.Abs: lambda y, x: ops.Sign()(x),
    ops.Neg: lambda y, x: ops.full(x.shape, -1, x.dtype),
    ops.Sqrt: lambda y, x: div(0.5, y),
    ops.Rsqrt: lambda y, x: mul(-0.5, div(y, x)),
    ops.Cbrt: lambda y, x: div(1 / 3, _square(y)),
    ops.Exp: lambda y, x: y,
    ops.Expm1: lambda y, x: add(y, 1),
    ops.Log: lambda y, x: div(1, x),
    ops.Log1p: lambda y, x: div(1, add(x, 1)),
    ops.Logistic: lambda y, x: mul(y, ops.Logistic()(ops.Neg()(x))),
    ops.Tanh: lambda y, x: sub(1, _square(y)),
    ops.Sin: lambda y, x: ops.Cos()(x),
    ops.Cos: lambda y, x: ops.Neg()(ops.Sin()(x)),
    ops.Tan: lambda y, x: add(1, _square(y)),
    ops.Asin: lambda y, x: ops.Rsqrt()(mul(sub(1, x), add(1, x))),
    ops.Acos: lambda y, x: ops.Neg()(ops.Rsqrt()(mul(sub(1, x), add(1, x)))),
    ops.Atan: lambda y, x: div(1, add(1, _square(x))),
    ops.Sinh: lambda y, x: ops.Cosh()(x),
    ops.Cosh: lambda y, x: ops.Sinh()(x),
    ops.Asinh: lambda y, x: ops.Rsqrt()(add(_square(x), 1)),
    ops.Acosh: lambda y, x: ops.Rsqrt()(mul(sub(x, 1), add(x, 1))),
    ops.Atanh: lambda y, x: div(1, mul(sub(1, x), add(1, x))),
    ops.Erf: lambda y, x: mul(2 / math.sqrt(math.pi), ops.Exp()(ops.Neg()(_square(x)))),
}
for _op, _partial in _UNARY.items():
    reverse(_op)(_times(_partial))


@reverse(ops.Gelu)
def _gelu(node: Node, g: Node) -> list[Node]:
    """The derivative of x P(x) is P + x P'. It is rounded to 16 bits once, with the cotangent, as PyTorch's is."""
    assert isinstance(node.op, ops.Gelu)
    (x,) = node.inputs
    dtype = x.dtype
    if dtype in (bf16, f16):
        x, g = ops.cast(x, f32), ops.cast(g, f32)
    if node.op.approximate == "tanh":
        scale = math.sqrt(8 / math.pi)
        u = mul(x, add(mul(_square(x), 0.044715 * scale), scale))
        p = ops.Logistic()(u)
        slope = mul(mul(p, ops.Logistic()(ops.Neg()(u))), add(mul(_square(x), 3 * 0.044715 * scale), scale))
        return [ops.cast(mul(g, add(p, mul(x, slope))), dtype)]
    return [ops.cast(mul(g, ops.GeluDerivative()(x)), dtype)]


@reverse(ops.GeluDerivative)
def _gelu_derivative(node: Node, g: Node) -> list[Node]:
    """The derivative of P + x P' is 2 P' - x (x P'), which is 0 where x^2 overflows."""
    (x,) = node.inputs
    density = mul(ops.Exp()(mul(_square(x), -0.5)), 1 / math.sqrt(2 * math.pi))
    return [mul(g, sub(mul(density, 2), mul(x, mul(x, density))))]


@reverse(ops.Relu)
def _relu(node: Node, g: Node) -> list[Node]:
    """0 at 0, as in PyTorch and JAX; computed from the result, so that the operand need not be kept."""
    return [ops.where(ops.compare("LE", node, 0), ops.full(g.shape, 0, g.dtype), g)]


@reverse(ops.Convert)
def _convert(node: Node, g: Node) -> list[Node | None]:
    (x,) = node.inputs
    return [ops.cast(g, x.dtype) if x.dtype.is_float and node.dtype.is_float else None]


@reverse(ops.Add)
def _add(node: Node, g: Node) -> list[Node]:
    return [g, g]


@reverse(ops.Sub)
def _sub(node: Node, g: Node) -> list[Node]:
    return [g, ops.Neg()(g)]


@reverse(ops.Mul)
def _mul(node: Node, g: Node) -> list[Node]:
    a, b = node.inputs
    return [mul(g, b), mul(g, a)]


@reverse(ops.Div)
def _div(node: Node, g: Node) -> list[Node]:
    _, b = node.inputs
    return [div(g, b), ops.Neg()(mul(g, div(node, b)))]


@reverse(ops.Rem)
def _rem(node: Node, g: Node) -> list[Node]:
    a, b = node.inputs
    # a = b * quotient + remainder
    quotient = ops.RoundEven()(div(sub(a, node), b))
    return [g, ops.Neg()(mul(g, quotient))]


@reverse(ops.Max, ops.Min)
def _extreme(node: Node, g: Node) -> list[Node]:
    """Equal operands get half of the cotangent each, as in PyTorch and JAX."""
    a, b = node.inputs
    zero = ops.full(g.shape, 0, g.dtype)
    of_a = ops.where(ops.compare("EQ", a, b), mul(g, 0.5), ops.where(ops.compare("EQ", a, node), g, zero))
    return [of_a, sub(g, of_a)]


@reverse(ops.Pow)
def _pow(node: Node, g: Node) -> list[Node]:
    a, b = node.inputs
    zero = ops.full(g.shape, 0, g.dtype)
    of_a = mul(b, ops.pow(a, sub(b, 1)))
    of_b = mul(node, ops.Log()(a))
    # a^0 is constant in a, and 0^b is constant in b for b > 0
    constant = ops.and_(ops.compare("EQ", a, 0), ops.compare("GE", b, 0))
    return [
        mul(g, ops.where(ops.compare("EQ", b, 0), zero, of_a)),
        mul(g, ops.where(constant, zero, of_b)),
    ]


@reverse(ops.Atan2)
def _atan2(node: Node, g: Node) -> list[Node]:
    a, b = node.inputs
    factor = div(g, add(_square(a), _square(b)))
    return [mul(factor, b), ops.Neg()(mul(factor, a))]


@reverse(ops.Select)
def _select(node: Node, g: Node) -> list[Node | None]:
    chosen, *_ = node.inputs
    zero = ops.full(g.shape, 0, g.dtype)
    return [None, ops.where(chosen, g, zero), ops.where(chosen, zero, g)]


@reverse(ops.Clamp)
def _clamp(node: Node, g: Node) -> list[Node]:
    """A bound has the gradient where x is beyond it; otherwise x has it, also at the bounds unless `open`."""
    assert isinstance(node.op, ops.Clamp)
    low, x, high = node.inputs
    zero = ops.full(g.shape, 0, g.dtype)
    is_above, is_below = ops.compare("GT", x, high), ops.compare("LT", x, low)
    is_outside = ops.or_(is_above, is_below)
    if node.op.open:
        is_outside = ops.or_(ops.compare("GE", x, high), ops.compare("LE", x, low))
    return [
        ops.where(ops.and_(is_below, ops.compare("LE", low, high)), g, zero),
        ops.where(is_outside, zero, g),
        ops.where(ops.or_(is_above, ops.and_(is_below, ops.compare("GT", low, high))), g, zero),
    ]
