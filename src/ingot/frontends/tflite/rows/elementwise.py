"""Arithmetic, comparisons, choices and activations, element by element."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ingot import ops
from ingot.frontends.shared.composites.complex import Complex
from ingot.frontends.shared.composites.fake_quantization import fake_quantize
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.tflite.call import Call, Table
from ingot.ir import types as T
from ingot.ir.node import Node, Op

row = Table()

_BINARY: dict[str, Callable[..., Node]] = {
    "ADD": ops.add, "SUB": ops.sub, "MUL": ops.mul, "DIV": ops.div, "MAXIMUM": ops.maximum, "MINIMUM": ops.minimum,
    "POW": ops.pow, "FLOOR_MOD": ops.floor_mod, "ATAN2": ops.atan2, "LOGICAL_AND": ops.and_, "LOGICAL_OR": ops.or_,
    "BITWISE_XOR": ops.xor,
}  # fmt: skip
_COMPARISONS = {
    "EQUAL": "EQ", "NOT_EQUAL": "NE", "LESS": "LT", "LESS_EQUAL": "LE", "GREATER": "GT", "GREATER_EQUAL": "GE",
}  # fmt: skip
_UNARY: dict[str, Op] = {
    "ABS": ops.Abs(), "NEG": ops.Neg(), "EXP": ops.Exp(), "LOG": ops.Log(), "SQRT": ops.Sqrt(), "RSQRT": ops.Rsqrt(),
    "SIN": ops.Sin(), "COS": ops.Cos(), "CEIL": ops.Ceil(), "FLOOR": ops.Floor(), "ROUND": ops.RoundEven(),
    "SIGN": ops.Sign(), "LOGICAL_NOT": ops.Not(), "LOGISTIC": ops.Logistic(), "TANH": ops.Tanh(),
    "HARD_SWISH": ops.HardSwish(), "ELU": ops.Elu(),
}  # fmt: skip
_RANGES: dict[str, tuple[int, int | None]] = {
    "RELU": (0, None),
    "RELU6": (0, 6),
    "RELU_N1_TO_1": (-1, 1),
    "RELU_0_TO_1": (0, 1),
}


@row(*_BINARY)
def binary(c: Call) -> Node:
    return c.activation(_BINARY[c.op.name](c.x(0), c.x(1)))


@row(*_COMPARISONS)
def comparison(c: Call) -> Node:
    return compared(c, c.x(0), c.x(1))


def compared(c: Call, a: Node, b: Node) -> Node:
    return ops.compare(_COMPARISONS[c.op.name], a, b)


@row(*_UNARY)
def unary(c: Call) -> Node:
    return _UNARY[c.op.name](c.x())


@row(*_RANGES)
def clipped(c: Call) -> Node:
    return ops.clip(c.x(), *_RANGES[c.op.name])


@row("SQUARE")
def square(c: Call) -> Node:
    return ops.mul(c.x(), c.x())


@row("SQUARED_DIFFERENCE")
def squared_difference(c: Call) -> Node:
    difference = ops.sub(c.x(0), c.x(1))
    return ops.mul(difference, difference)


@row("FLOOR_DIV")
def floor_div(c: Call) -> Node:
    return ops.floor_div(c.x(0), c.x(1))


@row("ADD_N")
def add_n(c: Call) -> Node:
    total, *others = c.xs()
    for x in others:
        total = ops.add(total, x)
    return total


@row("CAST", takes_stored=True)
def cast(c: Call) -> Node:
    x = c.z().real if isinstance(c.values[0], Complex) else c.x()
    return ops.compare("NE", x, 0) if c.type() == T.boolean and x.dtype != T.boolean else ops.cast(x, c.type())


@row("BITCAST", takes_stored=True)
def bitcast(c: Call) -> Node:
    return ops.bitcast(c.x(), c.type())


@row("RIGHT_SHIFT")
def right_shift(c: Call) -> Node:
    op = ops.ShiftRightLogical() if c.x().dtype.kind == "u" else ops.ShiftRightArithmetic()
    # clamp the amount to the type's width
    amount = ops.clip(c.x(1), 0, c.x().dtype.bits - 1)
    return ops.apply(op, c.x(0), amount)


@row("LEAKY_RELU")
def leaky_relu(c: Call) -> Node:
    return ops.LeakyRelu(c.float("alpha"))(c.x())


@row("PRELU")
def prelu(c: Call) -> Node:
    x, alpha = ops.promote(c.x(0), c.x(1))
    return ops.where(ops.compare("GE", x, 0), x, ops.mul(x, alpha))


@row("GELU")
def gelu(c: Call) -> Node:
    return ops.Gelu("tanh" if c.flag("approximate") else "none")(c.x())


@row("SOFTMAX")
def softmax(c: Call) -> Node:
    beta = c.float("beta")
    x = c.x() if beta == 1 else ops.mul(c.x(), beta)
    return ops.Softmax(len(x.shape) - 1)(x)


@row("LOG_SOFTMAX")
def log_softmax(c: Call) -> Node:
    return ops.LogSoftmax(len(c.x().shape) - 1)(c.x())


@row("L2_NORMALIZATION")
def l2_normalization(c: Call) -> Node:
    """x / sqrt(max(sum(x^2), 1e-6^2)) over the last axis."""
    x = c.x()
    total = ops.reduce_sum(ops.mul(x, x), -1, True)
    norm = ops.maximum(ops.Sqrt()(total), 1e-6)
    return c.activation(ops.div(x, norm))


@row("SELECT", "SELECT_V2", is_movement=True)
def select(c: Call) -> Node:
    pred, a, b = c.xs()
    if c.op.name == "SELECT" and len(pred.shape) == 1 and len(a.shape) > 1:
        pred = ops.reshape(pred, (pred.shape[0], *(1,) * (len(a.shape) - 1)))  # one choice for each row
    shape = ops.broadcast_shapes(pred.shape, a.shape, b.shape)
    return ops.where(ops.broadcast_to(pred, shape), ops.broadcast_to(a, shape), ops.broadcast_to(b, shape))


@row("ZEROS_LIKE", takes_stored=True)
def zeros_like(c: Call) -> Node:
    return ops.full(c.x().shape, 0, c.x().dtype)


@row("FAKE_QUANT")
def fake_quant(c: Call) -> Node:
    low, high, bits = c.float("min"), c.float("max"), c.int("num_bits")
    if not (2 <= bits <= 16 and low <= 0 <= high and low < high):
        raise Unsupported(f"{bits} bits from {low} to {high}")
    return fake_quantize(c.x(), np.float32(low), np.float32(high), bits, c.flag("narrow_range"))
