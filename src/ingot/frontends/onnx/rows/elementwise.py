"""Elementwise ops: arithmetic, comparison, logic, casts, activations."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce as fold_left

import ml_dtypes
import numpy as np

from ingot import ops
from ingot.frontends.onnx.call import Call, Result, onnx_op, register
from ingot.frontends.onnx.rows.common import in_dtype
from ingot.frontends.onnx.tensors import dtype_from_code
from ingot.frontends.shared.refusal import Unsupported
from ingot.ir import types as T
from ingot.ir.dims import clamped_position, product
from ingot.ir.node import Node
from ingot.ir.types import DType
from ingot.ops.core.base import CoreOp

_UNARY: dict[str, type[CoreOp]] = {
    "Abs": ops.Abs, "Acos": ops.Acos, "Acosh": ops.Acosh, "Asin": ops.Asin, "Asinh": ops.Asinh, "Atan": ops.Atan,
    "Atanh": ops.Atanh, "BitwiseNot": ops.Not, "Ceil": ops.Ceil, "Cos": ops.Cos, "Cosh": ops.Cosh, "Erf": ops.Erf,
    "Exp": ops.Exp, "Floor": ops.Floor, "IsNaN": ops.IsNan, "Log": ops.Log, "Neg": ops.Neg, "Not": ops.Not,
    "Round": ops.RoundEven, "Sigmoid": ops.Logistic, "Sign": ops.Sign, "Sin": ops.Sin, "Sinh": ops.Sinh,
    "Sqrt": ops.Sqrt, "Tan": ops.Tan, "Tanh": ops.Tanh,
}  # fmt: skip
for _name, _cls in _UNARY.items():
    register(_name, lambda c, cls=_cls: cls()(c.x()))

_BINARY: dict[str, Callable[[Node, Node], Node]] = {
    "Add": ops.add, "Sub": ops.sub, "Mul": ops.mul, "Div": ops.div, "And": ops.and_, "Or": ops.or_, "Xor": ops.xor,
    "BitwiseAnd": ops.and_, "BitwiseOr": ops.or_, "BitwiseXor": ops.xor,
    "Equal": lambda a, b: ops.compare("EQ", a, b), "Greater": lambda a, b: ops.compare("GT", a, b),
    "GreaterOrEqual": lambda a, b: ops.compare("GE", a, b), "Less": lambda a, b: ops.compare("LT", a, b),
    "LessOrEqual": lambda a, b: ops.compare("LE", a, b),
}  # fmt: skip
for _name, _fn in _BINARY.items():
    register(_name, lambda c, fn=_fn: fn(c.x(0), c.x(1)))

_VARIADIC: dict[str, Callable[[Node, Node], Node]] = {"Max": ops.maximum, "Min": ops.minimum, "Sum": ops.add}
for _name, _fn in _VARIADIC.items():
    register(_name, lambda c, fn=_fn: fold_left(fn, c.xs()))


@onnx_op("Mean")
def mean(c: Call) -> Result:
    return ops.div(fold_left(ops.add, c.xs()), len(c))


@onnx_op("Identity")
def identity(c: Call) -> Result:
    value = c.inputs[0]
    if value is None:
        raise Unsupported("input 0 is missing")
    return [value]  # type: ignore[list-item]


@onnx_op("Reciprocal")
def reciprocal(c: Call) -> Result:
    return ops.div(ops.scalar(1, c.type().dtype), c.x())


@onnx_op("Pow")
def pow_(c: Call) -> Result:
    x, y = c.x(0), c.x(1)
    if x.dtype == y.dtype:
        return ops.pow(x, y)
    if x.dtype.is_integer and y.dtype.is_integer:
        return ops.pow(x, ops.cast(y, x.dtype))
    if x.dtype.is_float and x.dtype.bits >= 32:
        return ops.pow(x, ops.cast(y, x.dtype))
    wide = T.f64 if T.f64 in (x.dtype, y.dtype) or x.dtype.is_integer else T.f32
    return in_dtype(wide, ops.pow, x, y)


@onnx_op("Mod")
def mod(c: Call) -> Result:
    return (ops.rem if c.flag("fmod") else ops.floor_mod)(c.x(0), c.x(1))


@onnx_op("BitShift")
def bit_shift(c: Call) -> Result:
    a, b = ops.promote(c.x(0), c.x(1))
    if c.str("direction") == "LEFT":
        return ops.ShiftLeft()(a, b)
    return (ops.ShiftRightArithmetic() if a.dtype.kind == "i" else ops.ShiftRightLogical())(a, b)


@onnx_op("BitCast")
def bit_cast(c: Call) -> Result:
    x, dtype = c.x(), dtype_from_code(c.int("to"))
    if T.boolean in (x.dtype, dtype):
        # bool and u8 both store 0 and 1 in a byte
        return ops.cast(x, dtype)
    return ops.BitcastConvert(dtype)(x)


@onnx_op("IsInf")
def is_inf(c: Call) -> Result:
    x = c.x()
    positive, negative = c.flag("detect_positive", 1), c.flag("detect_negative", 1)
    hits = [ops.compare("EQ", x, s * np.inf) for s, is_detected in ((1.0, positive), (-1.0, negative)) if is_detected]
    if not hits:
        return ops.full(x.shape, False, T.boolean)
    return fold_left(ops.or_, hits)


@onnx_op("Where")
def where(c: Call) -> Result:
    return ops.where(c.x(0), c.x(1), c.x(2))


# casts


def convert(x: Node, dtype: DType, saturate: bool, round_mode: str = "up") -> Node:
    """Cast. saturate: for a float of at most 8 bits, values beyond its range become its largest. round_mode: up, down
    or nearest, for powers of two (e8m0)."""
    if dtype == T.f8e8m0fnu and x.dtype != dtype:
        return _to_power(ops.cast(x, T.f32), saturate, round_mode)
    if dtype in T.FLOAT_FORMATS and saturate and x.dtype.is_float and x.dtype.bits > 8:
        max_value = float(ml_dtypes.finfo(dtype.numpy).max)
        bounded = ops.minimum(ops.maximum(x, -max_value), max_value)
        x = ops.where(ops.IsNan()(x), x, bounded)
    if dtype is T.boolean and x.dtype != T.boolean:
        return ops.compare("NE", x, ops.scalar(0, x.dtype))
    return ops.cast(x, dtype)


def _to_power(x: Node, saturate: bool, round_mode: str) -> Node:
    """f32 as powers of two (e8m0): the exponent of f32, rounded by its fraction."""
    bits = ops.BitcastConvert(T.i32)(x)
    exponent = ops.and_(ops.ShiftRightLogical()(*ops.promote(bits, 23)), 0xFF)
    fraction = ops.and_(bits, 0x7FFFFF)
    if round_mode not in ("up", "down", "nearest"):
        raise Unsupported(f"round_mode {round_mode!r}")
    min_fraction = {"up": 1, "nearest": 1 << 22, "down": 1 << 23}[round_mode]
    grows = ops.compare("GE", fraction, min_fraction)
    code = ops.add(exponent, ops.cast(grows, T.i32))
    if saturate:
        code = ops.minimum(code, 0xFE)
    # not a number, or more than the largest
    code = ops.where(ops.IsNan()(x), ops.scalar(0xFF, T.i32), ops.minimum(code, 0xFF))
    return ops.BitcastConvert(T.f8e8m0fnu)(ops.cast(code, T.u8))


@onnx_op("Cast")
def cast_row(c: Call) -> Result:
    return convert(c.x(), dtype_from_code(c.int("to")), c.flag("saturate", 1), c.str("round_mode", "up"))


@onnx_op("CastLike")
def cast_like(c: Call) -> Result:
    return convert(c.x(), c.type(1).dtype, c.flag("saturate", 1), c.str("round_mode", "up"))


# clamping


def _limit(x: Node, low: Node | float | None, high: Node | float | None) -> Node:
    # not clamp: for low > high ONNX returns high
    if low is not None:
        x = ops.maximum(x, low)
    return x if high is None else ops.minimum(x, high)


@onnx_op("Clip")
def clip_6(c: Call) -> Result:
    low = c.float("min") if c.has_attr("min") else None
    return _limit(c.x(), low, c.float("max") if c.has_attr("max") else None)


@onnx_op("Clip", since=11)
def clip(c: Call) -> Result:
    return _limit(c.x(), c.opt(1), c.opt(2))


# activations

_ACTIVATIONS: dict[str, Callable[[Call], Callable[..., Node]]] = {
    "Relu": lambda c: ops.Relu(),
    "Elu": lambda c: ops.Elu(c.float("alpha", 1.0)),
    "Celu": lambda c: ops.Celu(c.float("alpha", 1.0)),
    "LeakyRelu": lambda c: ops.LeakyRelu(c.float("alpha", 0.01)),
    "HardSwish": lambda c: ops.HardSwish(),
    "HardSigmoid": lambda c: ops.HardSigmoid(c.float("alpha", 0.2), c.float("beta", 0.5)),
    "Mish": lambda c: ops.Mish(),
    "Softsign": lambda c: ops.Softsign(),
    "ThresholdedRelu": lambda c: ops.ThresholdedRelu(c.float("alpha", 1.0)),
    "Gelu": lambda c: ops.Gelu(c.str("approximate", "none")),
}
for _name, _make in _ACTIVATIONS.items():
    register(_name, lambda c, make=_make: make(c)(c.x()))


@onnx_op("Softplus")
def softplus(c: Call) -> Result:
    # max(x, 0) + log1p(exp(-|x|)): no overflow and no threshold
    x = c.x()
    return ops.add(ops.maximum(x, 0.0), ops.Log1p()(ops.Exp()(ops.Neg()(ops.Abs()(x)))))


@onnx_op("Selu")
def selu(c: Call) -> Result:
    x, alpha, gamma = c.x(), c.float("alpha", 1.6732631921768188), c.float("gamma", 1.0507010221481323)
    positive = ops.compare("GT", x, 0.0)
    negative = ops.mul(ops.Expm1()(ops.where(positive, 0.0, x)), alpha)
    return ops.mul(ops.where(positive, x, negative), gamma)


@onnx_op("PRelu")
def prelu(c: Call) -> Result:
    x = c.x()
    slope = c.x(1)
    return ops.where(ops.compare("LT", x, ops.scalar(0, x.dtype)), ops.mul(x, slope), x)


@onnx_op("Shrink")
def shrink(c: Call) -> Result:
    x = c.x()
    lambd, bias = c.float("lambd", 0.5), c.float("bias", 0.0)
    zero = ops.scalar(0, x.dtype)
    wide = x if x.dtype.is_float else ops.cast(x, T.f64)
    lowered, raised = ops.cast(ops.sub(wide, bias), x.dtype), ops.cast(ops.add(wide, bias), x.dtype)
    is_above, is_below = ops.compare("GT", wide, lambd), ops.compare("LT", wide, -lambd)
    return ops.where(is_below, raised, ops.where(is_above, lowered, zero))


@onnx_op("Swish")
def swish(c: Call) -> Result:
    x, alpha = c.x(), c.float("alpha", 1.0)
    return ops.Silu()(x) if alpha == 1.0 else ops.mul(x, ops.Logistic()(ops.mul(x, alpha)))


# along an axis


def _flattened(c: Call, fn: Callable[[Node], Node]) -> Node:
    """Before opset 13 the input was flattened to a matrix at `axis`, and the op applied to its rows."""
    x = c.x()
    axis = c.int("axis", 1)
    axis = axis + c.rank() if axis < 0 else axis
    matrix = (product(x.shape[:axis]), product(x.shape[axis:]))
    return ops.reshape(fn(ops.reshape(x, matrix)), x.shape)


def _hardmax(x: Node, axis: int) -> Node:
    # marks the first largest element, NaN counting as largest; no argmax, which an empty axis does not have
    largest = ops.compare("EQ", x, ops.reduce_max(x, axis, keepdims=True))
    place = ops.iota(x.shape, axis)
    best = ops.where(ops.or_(largest, ops.compare("NE", x, x)), place, ops.scalar(x.shape[axis], T.i64))
    return ops.cast(ops.compare("EQ", place, ops.reduce_min(best, axis, keepdims=True)), x.dtype)


_AXIS: dict[str, Callable[[Node, int], Node]] = {
    "Softmax": lambda x, axis: ops.Softmax(axis)(x),
    "LogSoftmax": lambda x, axis: ops.LogSoftmax(axis)(x),
    "Hardmax": _hardmax,
}
for _name, _along_axis in _AXIS.items():
    register(_name, lambda c, fn=_along_axis: _flattened(c, lambda x: fn(x, 1)))
    register(_name, lambda c, fn=_along_axis: fn(c.x(), c.axis("axis", -1, c.rank())), since=13)


@onnx_op("Constant")
def constant(c: Call) -> Result:
    # numbers are folded; what arrives here has no tensor form
    raise Unsupported("a constant of this kind")


@onnx_op("Trilu", since=14)
@onnx_op("Trilu", domain="com.microsoft")
def trilu(c: Call) -> Result:
    x = c.x()
    k = clamped_position(c.dims(1)[0]) if c.has(1) else 0
    i, j = (ops.iota(x.shape[-2:], a) for a in (0, 1))
    keep = ops.compare("GE" if c.flag("upper", 1) else "LE", j, ops.add(i, k))
    return ops.where(keep, x, ops.scalar(0, x.dtype))
