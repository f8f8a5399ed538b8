"""Elementwise operations."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ingot import ops
from ingot.frontends.shared.composites.complex import Complex
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.shared.sizes import require_one_shape
from ingot.frontends.stablehlo import literals
from ingot.frontends.stablehlo.syntax import Dense, Number
from ingot.frontends.stablehlo.values import Call, Table
from ingot.ir.node import Node, Op, const
from ingot.ir.types import DTYPES, DType, boolean, f32
from ingot.ops import special

row = Table()

_OPS: dict[str, Op] = {
    "add": ops.Add(), "subtract": ops.Sub(), "multiply": ops.Mul(), "divide": ops.Div(), "remainder": ops.Rem(),
    "maximum": ops.Max(), "minimum": ops.Min(), "power": ops.Pow(), "atan2": ops.Atan2(), "and": ops.And(),
    "or": ops.Or(), "xor": ops.Xor(), "shift_left": ops.ShiftLeft(),
    "shift_right_arithmetic": ops.ShiftRightArithmetic(), "shift_right_logical": ops.ShiftRightLogical(),
    "abs": ops.Abs(), "negate": ops.Neg(), "sign": ops.Sign(), "floor": ops.Floor(), "ceil": ops.Ceil(),
    "round_nearest_even": ops.RoundEven(), "round_nearest_afz": ops.RoundAway(), "sqrt": ops.Sqrt(),
    "rsqrt": ops.Rsqrt(), "cbrt": ops.Cbrt(), "exponential": ops.Exp(), "exponential_minus_one": ops.Expm1(),
    "log": ops.Log(), "log_plus_one": ops.Log1p(), "logistic": ops.Logistic(), "sine": ops.Sin(), "cosine": ops.Cos(),
    "tan": ops.Tan(), "tanh": ops.Tanh(), "not": ops.Not(), "popcnt": ops.PopulationCount(),
    "count_leading_zeros": ops.CountLeadingZeros(), "is_finite": ops.IsFinite(), "chlo.tan": ops.Tan(),
    "chlo.asin": ops.Asin(), "chlo.acos": ops.Acos(), "chlo.atan": ops.Atan(), "chlo.sinh": ops.Sinh(),
    "chlo.cosh": ops.Cosh(), "chlo.asinh": ops.Asinh(), "chlo.acosh": ops.Acosh(), "chlo.atanh": ops.Atanh(),
    "chlo.erf": ops.Erf(),
}  # fmt: skip
# chlo's ops with numpy's broadcasting
_BROADCAST = (
    "add", "and", "atan2", "divide", "maximum", "minimum", "multiply", "or", "power", "remainder", "shift_left",
    "shift_right_arithmetic", "shift_right_logical", "subtract", "xor",
)  # fmt: skip


def _row(op: Op) -> Callable[..., Node]:
    def apply(c: Call, *xs: Node) -> Node:
        require_one_shape(xs, c.op.name)
        return op(*xs, loc=c.loc)

    return apply


for _name, _op in _OPS.items():
    row(_name)(_row(_op))


def _broadcasting(op: Op) -> Callable[..., Node]:
    def apply(c: Call, *xs: Node) -> Node:
        return ops.apply(op, *xs, loc=c.loc)

    return apply


for _name in _BROADCAST:
    row(f"chlo.broadcast_{_name}")(_broadcasting(_OPS[_name]))


def ordered(x: Node) -> Node:
    """Floats as integers that order as IEEE's totalOrder does: -NaN < -inf < ... < -0 < +0 < ... < NaN."""
    signed = DTYPES[f"i{x.dtype.bits}"]
    bits = ops.BitcastConvert(signed)(x)
    lowest = ops.full(x.shape, signed.range[1], signed)
    return ops.where(ops.compare("LT", bits, 0), ops.xor(bits, lowest), bits)


@row("compare")
def compare(c: Call, a: Node, b: Node) -> Node:
    require_one_shape((a, b), c.op.name)
    if c.word("compare_type", "") == "TOTALORDER" and a.dtype.is_float:
        a, b = ordered(a), ordered(b)
    return ops.Compare(c.word("comparison_direction"))(a, b, loc=c.loc)


@row("chlo.broadcast_compare")
def broadcast_compare(c: Call, a: Node, b: Node) -> Node:
    return ops.compare(c.word("comparison_direction"), a, b, c.loc)


@row("select", "chlo.broadcast_select")
def select(c: Call, pred: Node, a: Node, b: Node) -> Node:
    return ops.where(pred, a, b, c.loc)


@row("clamp")
def clamp(c: Call, low: Node, x: Node, high: Node) -> Node:
    return ops.Clamp(open=True)(ops.broadcast_to(low, x.shape), x, ops.broadcast_to(high, x.shape), loc=c.loc)


@row("optimization_barrier")
def optimization_barrier(c: Call, *xs: object) -> tuple[object, ...]:
    return xs


@row("chlo.square")
def square(c: Call, x: Node) -> Node:
    return ops.Mul()(x, x, loc=c.loc)


@row("chlo.conj")
def conj(c: Call, x: Node) -> Node:
    return x


@row("chlo.is_inf", "chlo.is_pos_inf", "chlo.is_neg_inf")
def is_inf(c: Call, x: Node) -> Node:
    sign = {"chlo.is_inf": 0, "chlo.is_pos_inf": 1, "chlo.is_neg_inf": -1}[c.op.name]
    return ops.compare("EQ", x if sign else ops.Abs()(x), float("inf") * (sign or 1), c.loc)


# --- between types


@row("convert")
def convert(c: Call, x: Node) -> Node | Complex:
    y = converted(x, c.dtype, c.loc)
    return Complex(y, ops.full(y.shape, 0, y.dtype)) if c.type.complex else y


def converted(x: Node, dtype: DType, loc: str = "") -> Node:
    """Numbers outside an integer's range are clamped and NaN becomes 0, as in XLA."""
    if not x.dtype.is_float or not dtype.is_integer:
        return ops.cast(x, dtype, loc)
    low, high = dtype.range
    wide = ops.cast(x, f32) if x.dtype.bits < 32 else x
    # the greatest integer may not be a float: from the next power of two on, it is selected explicitly
    top = float(high + 1)
    truncated = ops.Convert(dtype)(ops.where(ops.compare("GE", wide, float(low)), wide, float(low)))
    capped = ops.where(ops.compare("GE", wide, top), ops.scalar(high, dtype), truncated)
    return ops.where(ops.IsNan()(wide), ops.scalar(0, dtype), capped, loc)


@row("bitcast_convert")
def bitcast_convert(c: Call, x: Node) -> Node:
    """Between widths, the parts of the wider element are the last dimension, least significant first."""
    if x.dtype != c.dtype and boolean in (x.dtype, c.dtype):
        raise Unsupported(f"from {x.dtype} to {c.dtype}")
    return ops.bitcast(x, c.dtype, c.loc)


@row("reduce_precision")
def reduce_precision(c: Call, x: Node) -> Node:
    """Rounded to even to fewer exponent and mantissa bits: overflow gives infinity, underflow a signed zero."""
    return rounded(x, c.int("exponent_bits"), c.int("mantissa_bits"))


def rounded(x: Node, exponent_bits: int, mantissa_bits: int) -> Node:
    """As XLA's: on the bits, subnormal results become 0."""
    info = _FLOAT_FORMATS.get(x.dtype.name)
    if info is None:
        raise Unsupported(f"of {x.dtype}")
    exponent, mantissa = info
    word = DTYPES[f"u{x.dtype.bits}"]
    bits = ops.BitcastConvert(word)(x)
    sign_bit = 1 << (word.bits - 1)
    if mantissa_bits < mantissa:
        drop = mantissa - mantissa_bits
        last = ops.and_(ops.ShiftRightLogical()(bits, ops.full(x.shape, drop, word)), 1)
        bias = ops.add(last, (1 << (drop - 1)) - 1)
        bits = ops.and_(ops.add(bits, bias), (1 << word.bits) - (1 << drop))
    if exponent_bits < exponent:
        magnitude = ops.and_(bits, sign_bit - 1)
        sign = ops.and_(bits, sign_bit)
        bias, reduced = (1 << (exponent - 1)) - 1, (1 << (exponent_bits - 1)) - 1
        greatest, least = (bias + reduced) << mantissa | ((1 << mantissa) - 1), (bias - reduced + 1) << mantissa
        infinite = ((1 << exponent) - 1) << mantissa
        bits = ops.where(ops.compare("GT", magnitude, greatest), ops.or_(sign, infinite), bits)
        bits = ops.where(ops.compare("LT", magnitude, least), sign, bits)
    y = ops.BitcastConvert(x.dtype)(bits)
    return ops.where(ops.IsNan()(x), x, y)


_FLOAT_FORMATS = {"f64": (11, 52), "f32": (8, 23), "f16": (5, 10), "bf16": (8, 7)}


@row("chlo.next_after", "chlo.broadcast_next_after")
def next_after(c: Call, x: Node, towards: Node) -> Node:
    return special.next_after(x, towards)


# --- constants


@row("constant", "chlo.constant")
def constant(c: Call) -> Node | Complex:
    value = c.attributes.get("value")
    if isinstance(value, Number):
        value = Dense(value.text, c.op.results[0][1])
    if not isinstance(value, Dense):
        raise Unsupported(f"value = {value}")
    if not value.type.startswith("tensor<") or "!quant" in value.type:
        value = Dense(value.body, c.op.results[0][1])
    arrays = [const(np.asarray(a), loc=c.loc) for a in literals.arrays(value, c.importer.module.resources)]
    return Complex(*arrays) if len(arrays) == 2 else arrays[0]
