"""Arithmetic, comparisons, activations and special functions, element by element."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial, reduce

import numpy as np

from ingot import ops
from ingot.frontends.shared.composites.complex import Complex
from ingot.frontends.shared.composites.fake_quantization import fake_quantize
from ingot.frontends.shared.composites.folds import window_folds
from ingot.frontends.shared.composites.movement import with_shape
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.tensorflow.values import Call, Table, Value
from ingot.ir.dims import DimLike, floordiv, mod
from ingot.ir.node import Node, Op, const, splat_of
from ingot.ir.types import u8
from ingot.ops import bessel, incomplete, integrals, special

row = Table()

_BINARY: dict[str, Callable[[Node, Node], Node]] = {
    "Add": ops.add, "AddV2": ops.add, "Sub": ops.sub, "Mul": ops.mul, "Maximum": ops.maximum, "Minimum": ops.minimum,
    "Pow": ops.pow, "Atan2": ops.atan2, "LogicalAnd": ops.and_, "LogicalOr": ops.or_, "BitwiseAnd": ops.and_,
    "BitwiseOr": ops.or_, "BitwiseXor": ops.xor, "RealDiv": ops.div, "Div": ops.div, "TruncateDiv": ops.div,
    "TruncateMod": ops.rem, "Mod": ops.rem, "LeftShift": partial(ops.apply, ops.ShiftLeft()),
    "Zeta": special.zeta, "Igamma": incomplete.igamma, "Igammac": incomplete.igammac,
    "Polygamma": special.polygamma,
}  # fmt: skip
_UNARY: dict[str, Op] = {
    "Abs": ops.Abs(), "Neg": ops.Neg(), "Sign": ops.Sign(), "Exp": ops.Exp(), "Expm1": ops.Expm1(), "Log": ops.Log(),
    "Log1p": ops.Log1p(), "Sqrt": ops.Sqrt(), "Rsqrt": ops.Rsqrt(), "Sin": ops.Sin(), "Cos": ops.Cos(),
    "Tan": ops.Tan(), "Asin": ops.Asin(), "Acos": ops.Acos(), "Atan": ops.Atan(), "Sinh": ops.Sinh(),
    "Cosh": ops.Cosh(), "Tanh": ops.Tanh(), "Asinh": ops.Asinh(), "Acosh": ops.Acosh(), "Atanh": ops.Atanh(),
    "Sigmoid": ops.Logistic(), "Erf": ops.Erf(), "Floor": ops.Floor(), "Ceil": ops.Ceil(), "Rint": ops.RoundEven(),
    "IsNan": ops.IsNan(), "IsFinite": ops.IsFinite(), "LogicalNot": ops.Not(), "Invert": ops.Not(),
    "Relu": ops.Relu(), "Elu": ops.Elu(), "Selu": ops.Selu(), "Softsign": ops.Softsign(),
    "Softplus": ops.Softplus(threshold=float("inf")),
}  # fmt: skip
_COMPARISONS = {"Less": "LT", "LessEqual": "LE", "Greater": "GT", "GreaterEqual": "GE", "Equal": "EQ", "NotEqual": "NE"}
_SPECIAL: dict[str, Callable[[Node], Node]] = {
    "PopulationCount": lambda x: ops.cast(ops.PopulationCount()(x), u8),
    "Erfc": special.erfc, "Erfinv": special.erf_inv, "Ndtri": special.ndtri,
    "Lgamma": special.lgamma, "Digamma": special.digamma,
    "Dawsn": integrals.dawson, "Expint": integrals.exponential_integral, "FresnelCos": integrals.fresnel_cos,
    "FresnelSin": integrals.fresnel_sin, "Spence": integrals.spence,
    "BesselI0": special.bessel_i0, "BesselI0e": special.bessel_i0e, "BesselI1": special.bessel_i1,
    "BesselI1e": special.bessel_i1e, "BesselJ0": bessel.bessel_j0, "BesselJ1": bessel.bessel_j1,
    "BesselY0": bessel.bessel_y0, "BesselY1": bessel.bessel_y1, "BesselK0": bessel.bessel_k0,
    "BesselK0e": bessel.bessel_k0e, "BesselK1": bessel.bessel_k1, "BesselK1e": bessel.bessel_k1e,
}  # fmt: skip


@row(*_BINARY)
def binary(c: Call, a: Node, b: Node) -> Node:
    return _BINARY[c.op](a, b)


@row(*_UNARY)
def unary(c: Call, x: Node) -> Node:
    op = _UNARY[c.op]
    if x.dtype.is_integer and c.op in ("Floor", "Ceil", "Rint"):
        return x
    return op(x)


@row(*_COMPARISONS)
def compare(c: Call, a: Node, b: Node) -> Node:
    return ops.compare(_COMPARISONS[c.op], a, b)


@row(*_SPECIAL)
def special_function(c: Call, x: Node) -> Node:
    return _SPECIAL[c.op](x)


@row("AddN")
def add_n(c: Call, *xs: Node) -> Node:
    return reduce(ops.add, xs)


@row("FloorDiv")
def floor_div(c: Call, a: Node, b: Node) -> Node:
    sizes = _of_sizes(c, floordiv, a, b) if a.dtype.is_integer else None
    return ops.floor_div(a, b) if sizes is None else sizes


@row("FloorMod")
def floor_mod(c: Call, a: Node, b: Node) -> Node:
    sizes = _of_sizes(c, mod, a, b) if a.dtype.is_integer else None
    return ops.floor_mod(a, b) if sizes is None else sizes


def _of_sizes(c: Call, rule: Callable[[DimLike, DimLike], DimLike], a: Node, b: Node) -> Node | None:
    """Known sizes divided by a positive number, as sizes; None where they may be negative."""
    divisor = splat_of(b)
    if divisor is None or int(divisor) <= 0 or ops.broadcast_shapes(a.shape, b.shape) != a.shape:
        return None
    try:
        quotients = [ops.scalar(rule(d, int(divisor)), a.dtype) for d in c.sizes(a)]
    except Unsupported:
        return None
    return ops.reshape(ops.stack(quotients), a.shape) if quotients else None


@row("Betainc")
def incomplete_beta(c: Call, a: Node, b: Node, x: Node) -> Node:
    return incomplete.betainc(a, b, x)


@row("DivNoNan")
def div_no_nan(c: Call, a: Node, b: Node) -> Node:
    return ops.where(ops.compare("EQ", b, 0.0), 0.0, ops.div(a, b))


@row("MulNoNan")
def mul_no_nan(c: Call, a: Node, b: Node) -> Node:
    return ops.where(ops.compare("EQ", b, 0.0), 0.0, ops.mul(a, b))


@row("Xlogy", "Xlog1py", "Xdivy")
def x_times(c: Call, x: Node, y: Node) -> Node:
    other = {
        "Xlogy": lambda: ops.mul(x, ops.Log()(y)),
        "Xlog1py": lambda: ops.mul(x, ops.Log1p()(y)),
        "Xdivy": lambda: ops.div(x, y),
    }[c.op]()
    return ops.where(ops.compare("EQ", x, 0.0), 0.0, other)


@row("RightShift")
def right_shift(c: Call, a: Node, b: Node) -> Node:
    return ops.apply(ops.ShiftRightLogical() if a.dtype.kind == "u" else ops.ShiftRightArithmetic(), a, b)


@row("SquaredDifference")
def squared_difference(c: Call, a: Node, b: Node) -> Node:
    d = ops.sub(a, b)
    return ops.mul(d, d)


@row("Square")
def square(c: Call, x: Node) -> Node:
    return ops.mul(x, x)


@row("Reciprocal", "Inv")
def reciprocal(c: Call, x: Node) -> Node:
    return ops.div(ops.full((), 1, x.dtype), x)


@row("Round")
def round_(c: Call, x: Node) -> Node:
    return x if x.dtype.is_integer else ops.RoundEven()(x)


@row("IsInf")
def is_inf(c: Call, x: Node) -> Node:
    return ops.compare("EQ", ops.Abs()(x), float("inf"))


@row("Relu6")
def relu6(c: Call, x: Node) -> Node:
    return ops.clip(x, 0, 6)


@row("LeakyRelu")
def leaky_relu(c: Call, x: Node) -> Node:
    return ops.LeakyRelu(c.float("alpha", 0.2))(x)


@row("ClipByValue")
def clip_by_value(c: Call, x: Node, low: Node, high: Node) -> Node:
    return ops.minimum(ops.maximum(x, low), high)


@row("Cast")
def cast(c: Call, x: Node) -> Value:
    part = c.complex_part("DstT")
    if part is None:
        return ops.cast(x, c.dtype("DstT"))
    return Complex(ops.cast(x, part), ops.full(x.shape, 0, part))


@row("Bitcast")
def bitcast(c: Call, x: Node) -> Node:
    return ops.bitcast(x, c.dtype("type"))


@row("Select")
def select(c: Call, pred: Node, a: Node, b: Node) -> Node:
    """A vector of conditions chooses rows."""
    if pred.type.rank == 1 and a.type.rank > 1:
        pred = ops.reshape(pred, (pred.shape[0], *(1,) * (a.type.rank - 1)))
    return ops.where(pred, a, b)


@row("SelectV2")
def select_v2(c: Call, pred: Node, a: Node, b: Node) -> Node:
    return ops.where(pred, a, b)


@row("ApproximateEqual")
def approximate_equal(c: Call, a: Node, b: Node) -> Node:
    return ops.compare("LT", ops.Abs()(ops.sub(a, b)), c.float("tolerance", 1e-5))


@row("Cumsum", "Cumprod")
def cumulative(c: Call, x: Node, axis: Node) -> Node:
    kind = "sum" if c.op == "Cumsum" else "prod"
    return ops.cumulative(kind, x, c.axis(axis, x.type.rank), c.flag("reverse"), c.flag("exclusive"))


@row("Rank", any_kind=True)
def rank(c: Call, x: object) -> Node:
    if not isinstance(x, Node):
        raise Unsupported("")
    return const(x.type.rank, np.int32)


@row("LogSoftmax")
def log_softmax(c: Call, x: Node) -> Node:
    return ops.LogSoftmax(x.type.rank - 1)(x)


@row("Softmax")
def softmax(c: Call, x: Node) -> Node:
    return ops.Softmax(x.type.rank - 1)(x)


@row("QuantizeAndDequantizeV2", "QuantizeAndDequantizeV4")
def quantize_and_dequantize(c: Call, x: Node, low: Node, high: Node) -> Node:
    """Levels of `num_bits` over the given range; the gradient is that of x, in version 4 within the range."""
    if not c.flag("range_given") or c.int("axis", -1) != -1 or c.str("round_mode", "HALF_TO_EVEN") != "HALF_TO_EVEN":
        raise Unsupported("of a range that is not given, along an axis or of another rounding")
    bits, signed = c.int("num_bits", 8), c.flag("signed_input")
    max_level = float((1 << (bits - 1)) - 1 if signed else (1 << bits) - 1)
    min_level = float(-(1 << (bits - 1)) + bool(c.flag("narrow_range")) if signed else 0)
    a, b = (float(c.array(v).reshape(())) for v in (low, high))
    scales = [
        s for s in ((min_level / a if min_level * a > 0 else None), (max_level / b if max_level * b > 0 else None)) if s
    ]
    scale = float(np.float32(min(scales, default=1.0)))
    clipped = ops.clip(x, float(np.float32(min_level / scale)), float(np.float32(max_level / scale)))
    is_inside = ops.and_(ops.compare("GE", x, a), ops.compare("LE", x, b)) if c.op.endswith("V4") else None
    return ops.straight_through(ops.div(ops.RoundEven()(ops.mul(clipped, scale)), scale), x, is_inside)


@row("FakeQuantWithMinMaxVars", "FakeQuantWithMinMaxVarsPerChannel", "FakeQuantWithMinMaxArgs")
def fake_quant(c: Call, x: Node, *range_: Node) -> Node:
    """Levels of `num_bits`, with a range nudged so that 0 is one of them; the gradient of x within it."""
    if range_:
        low, high = (np.asarray(c.array(v), np.float32) for v in range_)
    else:
        low, high = np.float32(c.float("min", -6.0)), np.float32(c.float("max", 6.0))
    return fake_quantize(x, low, high, c.int("num_bits", 8), c.flag("narrow_range"))


@row("Lbeta")
def log_beta(c: Call, x: Node) -> Node:
    """log B over the last axis: the sum of log-gammas minus the log-gamma of the sum."""
    return ops.sub(ops.reduce_sum(special.lgamma(x), -1), special.lgamma(ops.reduce_sum(x, -1)))


@row("NextAfter")
def next_after(c: Call, x: Node, to: Node) -> Node:
    return special.next_after(x, to)


@row("CumulativeLogsumexp")
def cumulative_logsumexp(c: Call, x: Node, axis: Node) -> Node:
    """Each prefix has a maximum of its own: none is lost beside larger elements behind it."""
    dim, exclusive = c.axis(axis, x.type.rank), c.flag("exclusive")
    n, rank = x.shape[dim], x.type.rank
    if n == 0:
        return x
    y = ops.flip(x, (dim,)) if c.flag("reverse") else x
    low, high = (tuple(v if a == dim else 0 for a in range(rank)) for v in (n - 1 + exclusive, -int(exclusive)))
    y = ops.pad(y, low, high, -math.inf)
    (y,) = window_folds(c.walk.computed_sizes, _log_add_exp, [y], dim, n, c.loc)
    y = with_shape(y, x.shape)
    return ops.flip(y, (dim,)) if c.flag("reverse") else y


def _log_add_exp(a: Sequence[Node], b: Sequence[Node]) -> list[Node]:
    largest = ops.maximum(a[0], b[0])
    rest = ops.Log1p()(ops.Exp()(ops.Neg()(ops.Abs()(ops.sub(a[0], b[0])))))
    return [ops.where(ops.IsFinite()(largest), ops.add(largest, rest), largest)]
