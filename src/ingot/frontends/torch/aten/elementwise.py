"""Elementwise arithmetic, comparisons and logic, with PyTorch's type promotion."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ingot import ops
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.torch.table import Table
from ingot.frontends.torch.values import (
    Context,
    Number,
    Operand,
    aligned,
    boolean,
    broadcast_shape,
    cast,
    expand,
    in_f32,
    node_of,
    number,
    promoted,
    scalar_like,
)
from ingot.ir.dims import Dim
from ingot.ir.node import Node, Op
from ingot.ir.types import DTYPES, DType

aten = Table()

Make = Callable[[], Op]


def add(a: Node, b: Node) -> Node:
    return ops.Or()(a, b) if a.dtype == boolean else ops.Add()(a, b)


def sub(a: Node, b: Node) -> Node:
    return ops.Sub()(a, b)


def mul(a: Node, b: Node) -> Node:
    return ops.And()(a, b) if a.dtype == boolean else ops.Mul()(a, b)


def is_true(x: Node) -> Node:
    """x != 0 as bool."""
    return x if x.dtype == boolean else compare("NE", x, scalar_like(0, x))


def compare(direction: str, a: Node, b: Node) -> Node:
    a, b = aligned((a, b))
    return ops.Compare(direction)(a, b)


def select(condition: Node, a: Node, b: Node) -> Node:
    """Select with everything broadcast; `a` and `b` have one dtype."""
    shape = broadcast_shape([condition.shape, a.shape, b.shape])
    return ops.Select()(expand(condition, shape), expand(a, shape), expand(b, shape))


def _unary(name: str, make_op: Make) -> None:
    def unary(c: Context, x: Node) -> Node:
        return make_op()(x)

    aten.add(f"{name}.default", unary)


def _unary_float(name: str, make: Make) -> None:
    def as_float(c: Context, x: Node) -> Node:
        return make()(cast(x, c.dtype))

    aten.add(f"{name}.default", as_float)


def _unary_rounding(name: str, make: Make) -> None:
    def rounding(c: Context, x: Node) -> Node:
        return make()(x) if x.dtype.is_float else x

    aten.add(f"{name}.default", rounding)


for _name in ("neg", "negative", "_neg_view", "_neg_view_copy"):
    _unary(_name, ops.Neg)

for _name, _make in {
    "exp": ops.Exp, "expm1": ops.Expm1, "log": ops.Log, "log1p": ops.Log1p, "sigmoid": ops.Logistic, "tanh": ops.Tanh,
    "sin": ops.Sin, "cos": ops.Cos, "tan": ops.Tan, "asin": ops.Asin, "acos": ops.Acos, "atan": ops.Atan,
    "sinh": ops.Sinh, "cosh": ops.Cosh, "asinh": ops.Asinh, "acosh": ops.Acosh, "atanh": ops.Atanh, "erf": ops.Erf,
    "sqrt": ops.Sqrt, "rsqrt": ops.Rsqrt, "special_expm1": ops.Expm1, "special_expit": ops.Logistic,
    "special_erf": ops.Erf, "special_log1p": ops.Log1p, "arctan": ops.Atan, "arcsin": ops.Asin, "arccos": ops.Acos,
    "arcsinh": ops.Asinh, "arccosh": ops.Acosh, "arctanh": ops.Atanh,
}.items():  # fmt: skip
    _unary_float(_name, _make)

for _name, _make in {"floor": ops.Floor, "ceil": ops.Ceil, "round": ops.RoundEven}.items():
    _unary_rounding(_name, _make)


@aten("abs.default", "absolute.default")
def abs_(c: Context, x: Node) -> Node:
    return x if x.dtype == boolean or x.dtype.kind == "u" else ops.Abs()(x)


@aten("sign.default", "sgn.default")
def sign(c: Context, x: Node) -> Node:
    if x.dtype == boolean:
        return x
    if not x.dtype.is_float:
        return ops.Sign()(x)
    # PyTorch: (x > 0) - (x < 0), so NaN gives 0
    zero = scalar_like(0, x)
    return ops.Sub()(cast(compare("GT", x, zero), x.dtype), cast(compare("LT", x, zero), x.dtype))


@aten("positive.default")
def positive(c: Context, x: Node) -> Node:
    return x


def truncate(x: Node) -> Node:
    """Rounded towards zero; integers unchanged."""
    if not x.dtype.is_float:
        return x
    return select(compare("LT", x, scalar_like(0, x)), ops.Ceil()(x), ops.Floor()(x))


@aten("trunc.default", "fix.default")
def trunc(c: Context, x: Node) -> Node:
    return truncate(x)


@aten("frac.default")
def frac(c: Context, x: Node) -> Node:
    return sub(x, truncate(x))


@aten("round.decimals")
@in_f32
def round_decimals(c: Context, x: Node, *, decimals: int) -> Node:
    if not x.dtype.is_float:
        return x
    scale, x_ = promoted((10.0 ** abs(decimals), x), x.dtype)
    scale = expand(scale, x_.shape)
    if decimals >= 0:
        return ops.Div()(ops.RoundEven()(ops.Mul()(x_, scale)), scale)
    return ops.Mul()(ops.RoundEven()(ops.Div()(x_, scale)), scale)


@aten("reciprocal.default")
def reciprocal(c: Context, x: Node) -> Node:
    return ops.Div()(*aligned((1.0, x), c.dtype))


@aten("square.default")
def square(c: Context, x: Node) -> Node:
    x = cast(x, c.dtype)
    return mul(x, x)


def _logarithm(base: float) -> Callable[[Context, Node], Node]:
    @in_f32
    def log(c: Context, x: Node) -> Node:
        return ops.Mul()(*aligned((ops.Log()(cast(x, c.dtype)), 1.0 / math.log(base)), c.dtype))

    return log


aten.add("log2.default", _logarithm(2))
aten.add("log10.default", _logarithm(10))


@aten("logit.default", "special_logit.default")
def logit(c: Context, x: Node, eps: float | None = None) -> Node:
    x = cast(x, c.dtype)
    if eps is not None:
        x = bounded(x, eps, 1 - eps)
    return ops.Log()(ops.Div()(x, ops.Sub()(*aligned((1.0, x), c.dtype))))


@aten("deg2rad.default")
@in_f32
def deg2rad(c: Context, x: Node) -> Node:
    return ops.Mul()(*aligned((cast(x, c.dtype), math.pi / 180), c.dtype))


@aten("rad2deg.default")
@in_f32
def rad2deg(c: Context, x: Node) -> Node:
    return ops.Mul()(*aligned((cast(x, c.dtype), 180 / math.pi), c.dtype))


@aten("add.Tensor", "add.Scalar")
def add_tensor(c: Context, a: Operand, b: Operand, alpha: Operand = 1) -> Node:
    return _combined(c, add, a, b, alpha)


@aten("sub.Tensor", "sub.Scalar", "subtract.Tensor")
def sub_tensor(c: Context, a: Operand, b: Operand, alpha: Operand = 1) -> Node:
    return _combined(c, sub, a, b, alpha)


@aten("rsub.Tensor", "rsub.Scalar")
def rsub(c: Context, a: Operand, b: Operand, alpha: Operand = 1) -> Node:
    return _combined(c, sub, b, a, alpha)


def _combined(c: Context, combine: Callable[[Node, Node], Node], a: Operand, b: Operand, alpha: Operand) -> Node:
    """a +- b * alpha, with operands converted to the result's dtype first, rounded once."""
    a_, b_, factor = aligned((a, b, alpha), c.dtype)
    if isinstance(alpha, int | float) and alpha == 1:
        return combine(a_, b_)
    return in_f32(lambda c, x, y, by: combine(x, mul(y, by)))(c, a_, b_, factor)


def _times(x: Node, factor: Operand) -> Node:
    if isinstance(factor, int | float) and factor == 1:
        return x
    return mul(*aligned((x, factor), x.dtype))


@aten("mul.Tensor", "mul.Scalar", "multiply.Tensor", "multiply.Scalar")
def mul_tensor(c: Context, a: Operand, b: Operand) -> Node:
    return combine_exactly(c, mul, a, b)


def combine_exactly(c: Context, combine: Callable[[Node, Node], Node], a: Operand, b: Operand) -> Node:
    """`combine` of the operands, where a number is not rounded to the result's dtype first."""

    def exact(c: Context, a: Operand, b: Operand) -> Node:
        return combine(*aligned((a, b), c.dtype))

    is_exact = all(v.dtype == c.dtype if isinstance(v, Node) else _is_exact(c.dtype, v) for v in (a, b))
    return (exact if is_exact else in_f32(exact))(c, a, b)


def _is_exact(dtype: DType, value: Operand) -> bool:
    return isinstance(value, int | float) and float(number(value, dtype)) == value


@aten("pow.Tensor_Tensor", "pow.Scalar", "float_power.Tensor_Tensor", "float_power.Scalar")
def power(c: Context, a: Operand, b: Operand) -> Node:
    return ops.Pow()(*aligned((a, b), c.dtype))


@aten("pow.Tensor_Scalar", "float_power.Tensor_Scalar")
def power_scalar(c: Context, x: Node, exponent: Operand) -> Node:
    x = cast(x, c.dtype)
    if isinstance(exponent, Dim | Number | Node):
        return ops.Pow()(*aligned((x, exponent), c.dtype))
    if exponent == 1:
        return x
    if exponent == 2:
        return ops.Mul()(x, x)
    if exponent == 3:
        # PyTorch rounds the square of bf16, not of f16
        return (_cube if x.dtype.name == "bf16" else in_f32(_cube))(c, x)
    if x.dtype.is_float and exponent in (0.5, -0.5, -1):
        if exponent == -1:
            return ops.Div()(*aligned((1.0, x), c.dtype))
        return ops.Sqrt()(x) if exponent == 0.5 else ops.Rsqrt()(x)
    return ops.Pow()(*aligned((x, exponent), c.dtype))


def _cube(c: Context, x: Node) -> Node:
    return ops.Mul()(ops.Mul()(x, x), x)


def _binary(name: str, make: Make, integer_as_float: bool = False) -> None:
    def binary(c: Context, a: Operand, b: Operand) -> Node:
        return make()(*aligned((a, b), c.dtype))

    aten.add(name, binary)


def _extreme(make: Make, logical: Make) -> Callable[[Context, Node, Node], Node]:
    def extreme(c: Context, a: Node, b: Node) -> Node:
        a, b = aligned((a, b), c.dtype)
        return logical()(a, b) if a.dtype == boolean else make()(a, b)

    return extreme


def _number(make: Make, logical: Make, preferred: str) -> Callable[[Context, Node, Node], Node]:
    """The extreme that ignores NaN. Of equal operands, the first gets the gradient."""
    extreme_of = _extreme(make, logical)

    def extreme(c: Context, a: Node, b: Node) -> Node:
        a, b = aligned((a, b), c.dtype)
        if not a.dtype.is_float:
            return extreme_of(c, a, b)
        return ops.Select()(ops.Or()(compare(preferred, a, b), ops.IsNan()(b)), a, b)

    return extreme


for _name in ("maximum.default", "max.other"):
    aten.add(_name, _extreme(ops.Max, ops.Or))
for _name in ("minimum.default", "min.other"):
    aten.add(_name, _extreme(ops.Min, ops.And))
aten.add("fmax.default", _number(ops.Max, ops.Or, "GE"))
aten.add("fmin.default", _number(ops.Min, ops.And, "LE"))
_binary("atan2.default", ops.Atan2)
_binary("arctan2.default", ops.Atan2)


@aten("hypot.default")
@in_f32
def hypot(c: Context, a: Node, b: Node) -> Node:
    a, b = (ops.Abs()(x) for x in aligned((a, b), c.dtype))
    # scaled by the larger so that the squares cannot overflow; inf wins over NaN as in C
    large, small = ops.Max()(a, b), ops.Min()(a, b)
    zero = expand(scalar_like(0, a), a.shape)
    one = expand(scalar_like(1, a), a.shape)
    ratio = ops.Div()(small, ops.Select()(ops.Compare("EQ")(large, zero), one, large))
    value = ops.Mul()(large, ops.Sqrt()(ops.Add()(one, ops.Mul()(ratio, ratio))))
    infinity = expand(scalar_like(math.inf, a), a.shape)
    is_infinite = ops.Or()(ops.Compare("EQ")(a, infinity), ops.Compare("EQ")(b, infinity))
    return ops.Select()(is_infinite, infinity, value)


@aten("logaddexp.default")
@in_f32
def logaddexp(c: Context, a: Node, b: Node) -> Node:
    a, b = aligned((a, b), c.dtype)
    difference = ops.Neg()(ops.Abs()(ops.Sub()(a, b)))
    value = ops.Add()(ops.Max()(a, b), ops.Log1p()(ops.Exp()(difference)))
    # equal infinities: their difference is NaN
    is_equal_infinity = ops.And()(ops.Compare("EQ")(a, b), ops.Not()(ops.IsFinite()(a)))
    return ops.Select()(is_equal_infinity, a, value)


@aten("xlogy.Tensor", "xlogy.Scalar_Self", "xlogy.Scalar_Other", "special_xlogy.default")
def xlogy(c: Context, x: Operand, y: Operand) -> Node:
    x_, y_ = aligned((x, y), c.dtype)
    zero = expand(scalar_like(0, x_), x_.shape)
    finite = ops.And()(ops.Compare("GT")(y_, zero), ops.IsFinite()(y_))
    # log(1) where x is 0, so that the gradient is not NaN there
    is_guarded = ops.And()(ops.Compare("EQ")(x_, zero), ops.Not()(finite))
    logarithm = ops.Log()(ops.Select()(is_guarded, expand(scalar_like(1, y_), y_.shape), y_))
    value = ops.Add()(ops.Mul()(x_, logarithm), zero)  # no zero is negative
    return ops.Select()(ops.IsNan()(y_), y_, value)


@aten("copysign.Tensor", "copysign.Scalar")
def copysign(c: Context, a: Operand, b: Operand) -> Node:
    a_, b_ = aligned((a, b), c.dtype)
    size = ops.Abs()(a_)
    return ops.Select()(_sign_bit(b_), ops.Neg()(size), size)


def _sign_bit(x: Node) -> Node:
    """The sign bit of floats, which zeros and NaN have, too."""
    if x.dtype.is_float:
        x = ops.BitcastConvert(DTYPES[f"i{x.dtype.bits}"])(x)
    return compare("LT", x, scalar_like(0, x))


@aten("signbit.default")
def signbit(c: Context, x: Node) -> Node:
    if x.dtype == boolean:
        return compare("NE", x, x)
    return _sign_bit(x)


@aten("heaviside.default")
def heaviside(c: Context, x: Node, values: Node) -> Node:
    x, values = aligned((x, values))
    zero = expand(scalar_like(0, x), x.shape)
    if x.dtype == boolean:
        return ops.Select()(x, x, values)
    step = cast(ops.Compare("GT")(x, zero), x.dtype)
    return ops.Select()(ops.Compare("EQ")(x, zero), values, step)


@aten("nan_to_num.default")
def nan_to_num(
    c: Context, x: Node, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> Node:
    if not x.dtype.is_float:
        return x
    limit = _largest(x.dtype)
    high = limit if posinf is None else posinf
    low = -limit if neginf is None else neginf
    x_ = select(ops.IsNan()(x), scalar_like(0.0 if nan is None else nan, x), x)
    x_ = select(compare("EQ", x_, scalar_like(math.inf, x)), scalar_like(high, x), x_)
    return select(compare("EQ", x_, scalar_like(-math.inf, x)), scalar_like(low, x), x_)


def _largest(dtype: DType) -> float:
    return {"f64": float(np.finfo(np.float64).max), "f32": float(np.finfo(np.float32).max), "f16": 65504.0}.get(
        dtype.name, 3.3895313892515355e38
    )


@aten("where.self", "where.ScalarSelf", "where.ScalarOther", "where.Scalar")
def where(c: Context, condition: Node, a: Operand, b: Operand) -> Node:
    return select(is_true(condition), *promoted((a, b), c.dtype))


@aten("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(c: Context, x: Node, mask: Node, value: Operand) -> Node:
    return select(is_true(mask), node_of(value, x.dtype), x)


def bounded(x: Node, low: Operand | None, high: Operand | None, *, open: bool = False) -> Node:
    """min(max(x, low), high) in x's dtype; NaN stays NaN. A Clamp even for one bound: x gets the gradient at bounds."""
    low = ops.identity_of("max", x.dtype) if low is None else low
    high = ops.identity_of("min", x.dtype) if high is None else high
    value, lo, hi = aligned((x, low, high), x.dtype)
    return ops.Clamp(open)(lo, value, hi)


@aten("clamp.default", "clamp.Tensor", "clip.default", "clip.Tensor")
def clamp(c: Context, x: Node, min: Operand | None = None, max: Operand | None = None) -> Node:
    return bounded(cast(x, c.dtype), min, max)


@aten("clamp_min.default", "clamp_min.Tensor")
def clamp_min(c: Context, x: Node, min: Operand) -> Node:
    return bounded(cast(x, c.dtype), min, None)


@aten("clamp_max.default", "clamp_max.Tensor")
def clamp_max(c: Context, x: Node, max: Operand) -> Node:
    return bounded(cast(x, c.dtype), None, max)


@aten("lerp.Scalar", "lerp.Tensor")
@in_f32
def lerp(c: Context, start: Node, end: Node, weight: Operand) -> Node:
    a, b, w = aligned((start, end, weight), c.dtype)
    difference = ops.Sub()(b, a)
    near = ops.Add()(a, ops.Mul()(w, difference))
    upper_half = ops.Sub()(b, ops.Mul()(difference, ops.Sub()(expand(scalar_like(1, w), w.shape), w)))
    # as PyTorch: the form that is exact at the nearer end
    return ops.Select()(ops.Compare("LT")(ops.Abs()(w), expand(scalar_like(0.5, w), w.shape)), near, upper_half)


@aten("addcmul.default")
@in_f32
def addcmul(c: Context, x: Node, a: Node, b: Node, *, value: Operand = 1) -> Node:
    x_, a_, b_ = aligned((x, a, b), c.dtype)
    return ops.Add()(x_, _times(ops.Mul()(a_, b_), value))


@aten("prims.fma.default")
def fma(c: Context, a: Node, b: Operand, x: Operand) -> Node:
    """a b + x, rounded as torch's decomposition; dynamo emits it for lerp and add in `torch.optim`."""
    a_, b_, x_ = aligned((a, b, x), c.dtype)
    return ops.Add()(ops.Mul()(a_, b_), x_)


@aten("addcdiv.default")
@in_f32
def addcdiv(c: Context, x: Node, a: Node, b: Node, *, value: Operand = 1) -> Node:
    x_, a_, b_ = aligned((x, a, b), c.dtype)
    return ops.Add()(x_, _times(ops.Div()(a_, b_), value))


@aten("equal.default", "is_nonzero.default", "allclose.default")
def reads_value(c: Context, *args: object, **kwargs: object) -> Node:
    raise Unsupported("its result is a Python value that depends on the data")
