"""Activations."""

from __future__ import annotations

from collections.abc import Callable

from ingot import ops
from ingot.autodiff import pullback
from ingot.frontends.shared.composites.movement import cut
from ingot.frontends.torch.aten.algebra.linalg import scaled
from ingot.frontends.torch.aten.create import filled
from ingot.frontends.torch.aten.elementwise import bounded, compare, select
from ingot.frontends.torch.aten.shape import reshape
from ingot.frontends.torch.table import Table
from ingot.frontends.torch.values import Context, Operand, axis_of, in_f32, node_of, number, scalar_like
from ingot.ir.node import Node, Op

aten = Table()


def _add_activation(name: str, make: Callable[[], Op]) -> None:
    def activation(c: Context, x: Node) -> Node:
        return make()(x)

    aten.add(f"{name}.default", activation)


for _name, _make in {"silu": ops.Silu, "hardswish": ops.HardSwish, "mish": ops.Mish, "selu": ops.Selu}.items():
    _add_activation(_name, _make)


@aten("relu.default")
def relu(c: Context, x: Node) -> Node:
    return ops.Relu()(x)


@aten("relu6.default")
def relu6(c: Context, x: Node) -> Node:
    return bounded(x, 0, 6, open=True)


@aten("gelu.default")
def gelu(c: Context, x: Node, *, approximate: str = "none") -> Node:
    return ops.Gelu(approximate)(x)


@aten("gelu_backward.default")
@in_f32
def gelu_backward(c: Context, grad_output: Node, x: Node, *, approximate: str = "none") -> Node:
    return pullback(ops.Gelu(approximate), x, grad_output)


@aten("hardsigmoid.default")
def hardsigmoid(c: Context, x: Node) -> Node:
    return ops.HardSigmoid(1 / 6, 0.5)(x)


@aten("hardtanh.default")
def hardtanh(c: Context, x: Node, min_val: Operand = -1, max_val: Operand = 1) -> Node:
    return bounded(x, min_val, max_val, open=True)


@aten("leaky_relu.default")
def leaky_relu(c: Context, x: Node, negative_slope: float = 0.01) -> Node:
    return ops.LeakyRelu(float(negative_slope))(x)


@aten("elu.default")
def elu(c: Context, x: Node, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Node:
    if input_scale == 1:
        return scaled(ops.Elu(float(alpha))(x), scale)
    zero = filled(x.shape, 0, x.dtype)
    positive = ops.Compare("GT")(x, zero)
    negative = scaled(ops.Expm1()(scaled(ops.Select()(positive, zero, x), input_scale)), alpha)
    return scaled(ops.Select()(positive, x, negative), scale)


@aten("celu.default")
def celu(c: Context, x: Node, alpha: float = 1.0) -> Node:
    return ops.Celu(float(alpha))(x)


@aten("prelu.default", "_prelu_kernel.default")
def prelu(c: Context, x: Node, weight: Node) -> Node:
    if not x.type.rank:
        weight = reshape(weight, ())
    elif weight.type.rank == 1 and x.type.rank > 1:
        weight = reshape(weight, (weight.shape[0], *((1,) * (x.type.rank - 2))))
    return ops.PRelu()(x, weight)


@aten("softplus.default")
def softplus(c: Context, x: Node, beta: float = 1, threshold: float = 20) -> Node:
    return ops.Softplus(float(beta), float(threshold))(x)


@aten("softsign.default")
def softsign(c: Context, x: Node) -> Node:
    return ops.Softsign()(x)


@aten("tanhshrink.default")
def tanhshrink(c: Context, x: Node) -> Node:
    return ops.Sub()(x, ops.Tanh()(x))


@aten("softshrink.default")
def softshrink(c: Context, x: Node, lambd: float = 0.5) -> Node:
    return ops.Softshrink(float(lambd))(x)


@aten("hardshrink.default")
def hardshrink(c: Context, x: Node, lambd: float = 0.5) -> Node:
    return ops.Hardshrink(float(number(lambd, x.dtype)))(x)


@aten("threshold.default")
@in_f32
def threshold(c: Context, x: Node, threshold: float, value: float) -> Node:
    # x <= threshold gives the value, so NaN stays
    return select(compare("LE", x, scalar_like(threshold, x)), node_of(value, x.dtype), x)


@aten("log_sigmoid.default")
@in_f32
def log_sigmoid(c: Context, x: Node) -> Node:
    """min(x, 0) - log1p(exp(-|x|))"""
    low = ops.Min()(x, filled(x.shape, 0, x.dtype))
    return ops.Sub()(low, ops.Log1p()(ops.Exp()(ops.Neg()(ops.Abs()(x)))))


@aten("log_sigmoid_forward.default")
def log_sigmoid_forward(c: Context, x: Node) -> tuple[Node, Node]:
    """(as above, exp(-|x|), which the backward pass reads)."""
    return log_sigmoid(c, x), ops.Exp()(ops.Neg()(ops.Abs()(x)))


@aten("glu.default")
@in_f32
def glu(c: Context, x: Node, dim: int = -1) -> Node:
    axis = axis_of(dim, x.type.rank)
    size = x.shape[axis]
    half = size // 2
    return ops.Mul()(cut(x, axis, 0, half), ops.Logistic()(cut(x, axis, half, half + half)))
