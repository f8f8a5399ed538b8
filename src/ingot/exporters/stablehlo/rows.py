"""StableHLO for each CORE op without a region."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ingot import ops
from ingot.exporters.stablehlo.emitter import Emitter, row, type_of
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.stablehlo.syntax import Attribute, Dense, Ints, Number, Raw
from ingot.frontends.stablehlo.types import show
from ingot.ir.dims import DimLike, is_static
from ingot.ir.node import Const, Graph, Input, Node
from ingot.ir.types import Shape, boolean, f32, i32, i64, static_shape, u64

_CHLO = (ops.Acos, ops.Acosh, ops.Asin, ops.Asinh, ops.Atan, ops.Atanh, ops.Cosh, ops.Sinh, ops.Erf)
_PLAIN = (
    ops.Abs, ops.Add, ops.And, ops.Atan2, ops.Cbrt, ops.Ceil, ops.Clamp, ops.Cos, ops.CountLeadingZeros, ops.Div,
    ops.Exp, ops.Expm1, ops.Floor, ops.IsFinite, ops.Log, ops.Log1p, ops.Logistic, ops.Max, ops.Min, ops.Mul, ops.Neg,
    ops.Not, ops.Or, ops.PopulationCount, ops.Rem, ops.RoundAway, ops.RoundEven, ops.Rsqrt, ops.Select,
    ops.ShiftLeft, ops.ShiftRightArithmetic, ops.ShiftRightLogical, ops.Sign, ops.Sin, ops.Sqrt, ops.Sub, ops.Tan,
    ops.Tanh, ops.Xor,
)  # fmt: skip


def _ints(values: Sequence[DimLike]) -> Ints:
    return Ints(static_shape(tuple(values)))


@row(*_PLAIN)
def plain(e: Emitter, n: Node, xs: list[str]) -> str:
    if n.dtype.kind == "u" and isinstance(n.op, ops.Abs):
        return xs[0]
    if n.dtype.kind == "u" and isinstance(n.op, ops.Sign):
        positive = e.compare("NE", xs[0], e.full(0, n.dtype, n.shape), n.dtype, n.shape)
        return e.convert(positive, n.dtype, n.shape)
    return e.one(n.op.name, xs, type_of(n))


@row(*_CHLO)
def of_chlo(e: Emitter, n: Node, xs: list[str]) -> str:
    return e.one(f"chlo.{n.op.name}", xs, type_of(n))


@row(ops.Gelu)
def gelu(e: Emitter, n: Node, xs: list[str]) -> str:
    """Decomposed in f32 or wider, and rounded once."""
    assert isinstance(n.op, ops.Gelu)
    x = ops.cast(n.inputs[0], f32) if n.dtype.bits < 32 else n.inputs[0]
    if n.op.approximate == "tanh":
        u = ops.mul(x, ops.add(ops.mul(ops.mul(x, x), 0.044715 * math.sqrt(8 / math.pi)), math.sqrt(8 / math.pi)))
        y = ops.mul(x, ops.Logistic()(u))
    else:
        y = ops.mul(ops.mul(x, 0.5), ops.add(ops.Erf()(ops.mul(x, math.sqrt(0.5))), 1))
    return e.value(ops.cast(y, n.dtype))


@row(ops.GeluDerivative)
def gelu_derivative(e: Emitter, n: Node, xs: list[str]) -> str:
    """Decomposed in f32 or wider, and rounded once."""
    x = ops.cast(n.inputs[0], f32) if n.dtype.bits < 32 else n.inputs[0]
    p = ops.mul(ops.add(ops.Erf()(ops.mul(x, math.sqrt(0.5))), 1), 0.5)
    density = ops.mul(ops.Exp()(ops.mul(ops.mul(x, x), -0.5)), 1 / math.sqrt(2 * math.pi))
    return e.value(ops.cast(ops.add(p, ops.mul(x, density)), n.dtype))


@row(ops.IsNan)
def is_nan(e: Emitter, n: Node, xs: list[str]) -> str:
    return e.compare("NE", xs[0], xs[0], n.inputs[0].dtype, n.shape)


@row(ops.Compare)
def compare(e: Emitter, n: Node, xs: list[str]) -> str:
    assert isinstance(n.op, ops.Compare)
    a, b = xs
    return e.compare(n.op.direction, a, b, n.inputs[0].dtype, n.shape)


@row(ops.Convert)
def convert(e: Emitter, n: Node, xs: list[str]) -> str:
    """A float that does not fit an integer type becomes its lowest value, as in Ingot; XLA saturates."""
    source, dtype = n.inputs[0].dtype, n.dtype
    if not source.is_float or not dtype.is_integer:
        if dtype == boolean:
            return e.compare("NE", xs[0], e.full(0, source, n.shape), source, n.shape)
        return e.convert(xs[0], dtype, n.shape)
    x, wide = xs[0], source if source.bits >= 32 else f32
    if wide != source:
        x = e.convert(x, wide, n.shape)
    if dtype == u64:
        converted = e.convert(x, u64, n.shape)
        low = e.compare("LT", x, e.full(-(2.0**63), wide, n.shape), wide, n.shape)
        nan = e.compare("NE", x, x, wide, n.shape)
        is_invalid = e.one("or", [low, nan], show(boolean, n.shape))
        high = e.compare("GE", x, e.full(2.0**64, wide, n.shape), wide, n.shape)
        negative = e.convert(e.convert(x, i64, n.shape), u64, n.shape)
        is_below = e.compare("LT", x, e.full(0, wide, n.shape), wide, n.shape)
        value = e.one("select", [is_below, negative, converted], type_of(n))
        value = e.one("select", [high, e.full(0, u64, n.shape), value], type_of(n))
        return e.one("select", [is_invalid, e.full(1 << 63, u64, n.shape), value], type_of(n))
    middle = i64 if dtype.bits == 64 or (dtype.bits == 32 and dtype.kind == "u") else i32
    low, high = float(middle.range[0]), float(middle.range[1] + 1)
    is_above = e.compare("GE", x, e.full(low, wide, n.shape), wide, n.shape)
    is_below = e.compare("LT", x, e.full(high, wide, n.shape), wide, n.shape)
    inside = e.one("and", [is_above, is_below], show(boolean, n.shape))
    converted = e.convert(x, middle, n.shape)
    value = e.one("select", [inside, converted, e.full(middle.range[0], middle, n.shape)], show(middle, n.shape))
    return value if middle == dtype else e.convert(value, dtype, n.shape)


@row(ops.BitcastConvert)
def bitcast(e: Emitter, n: Node, xs: list[str]) -> str:
    return e.one("bitcast_convert", xs, type_of(n))


@row(ops.Quantize)
def quantize(e: Emitter, n: Node, xs: list[str]) -> str:
    """round(x / scale) + zero, clamped to the type's range."""
    x, scale, zero = (v if i.dtype == f32 else e.convert(v, f32, n.shape) for v, i in zip(xs, n.inputs, strict=True))
    wide = show(f32, n.shape)
    steps = e.one("divide", [x, scale], wide)
    shifted = e.one("add", [e.one("round_nearest_even", [steps], wide), zero], wide)
    low, high = (e.full(float(v), f32, n.shape) for v in n.dtype.range)
    inside = e.one("clamp", [low, shifted, high], wide)
    nan = e.compare("NE", shifted, shifted, f32, n.shape)
    return e.convert(e.one("select", [nan, low, inside], wide), n.dtype, n.shape)


@row(ops.Pow)
def power(e: Emitter, n: Node, xs: list[str]) -> str:
    x, y = n.inputs
    if n.dtype.is_float or isinstance(y.op, Const):
        return e.one("power", xs, type_of(n))
    return e.value(_integer_power(x, y))


def _integer_power(x: Node, y: Node) -> Node:
    """x ** y by repeated squaring: XLA's `power` differs for huge y."""
    is_signed = x.dtype.kind == "i"
    zero, one = (ops.broadcast_to(ops.scalar(v, x.dtype), x.shape) for v in (0, 1))
    state = tuple(Input(label, x.type)() for label in ("base", "power", "result"))
    base, exponent, result = state
    greatest = ops.Reduce("max", tuple(range(len(x.shape))))(exponent) if x.shape else exponent
    cond = Graph(state, (ops.Compare("NE")(greatest, ops.scalar(0, x.dtype)),))
    odd = ops.Compare("NE")(ops.And()(exponent, one), zero)
    half_exponent = ops.ShiftRightLogical()(exponent, one)
    body = Graph(state, (ops.Mul()(base, base), half_exponent, ops.Select()(odd, ops.Mul()(result, base), result)))
    positive = ops.While(cond, body)(x, ops.Max()(y, zero) if is_signed else y, one).results[2]
    if not is_signed:
        return positive
    minus = ops.Neg()(one)
    sign = ops.Select()(ops.Compare("NE")(ops.And()(y, one), zero), minus, one)
    negative = ops.Select()(ops.Compare("EQ")(x, one), one, ops.Select()(ops.Compare("EQ")(x, minus), sign, zero))
    return ops.Select()(ops.Compare("LT")(y, zero), negative, positive)


# --- views


@row(Const)
def constant(e: Emitter, n: Node, xs: list[str]) -> str:
    assert isinstance(n.op, Const)
    return e.constant(n.op.value)


@row(ops.DimValue)
def dim_value(e: Emitter, n: Node, xs: list[str]) -> str:
    assert isinstance(n.op, ops.DimValue)
    return e.convert(e.size(n.op.dim), n.dtype, ())


@row(ops.Iota)
def iota(e: Emitter, n: Node, xs: list[str]) -> str:
    assert isinstance(n.op, ops.Iota)
    attributes: dict[str, Attribute] = {"iota_dimension": Number(str(n.op.dimension), "i64")}
    if is_static(n.shape):
        return e.one("iota", [], type_of(n), attributes)
    return e.one("dynamic_iota", [e.shape(n.shape)], type_of(n), attributes)


@row(ops.BroadcastInDim)
def broadcast_in_dim(e: Emitter, n: Node, xs: list[str]) -> str:
    assert isinstance(n.op, ops.BroadcastInDim)
    return e.broadcast(xs[0], n.op.dims, n.dtype, n.shape)


@row(ops.Reshape)
def reshape(e: Emitter, n: Node, xs: list[str]) -> str:
    if is_static(n.shape) and is_static(n.inputs[0].shape):
        return e.one("reshape", xs, type_of(n))
    return e.one("dynamic_reshape", [xs[0], e.shape(n.shape)], type_of(n))


@row(ops.Transpose)
def transpose(e: Emitter, n: Node, xs: list[str]) -> str:
    assert isinstance(n.op, ops.Transpose)
    return e.one("transpose", xs, type_of(n), {"permutation": Ints(n.op.permutation)})


@row(ops.Reverse)
def reverse(e: Emitter, n: Node, xs: list[str]) -> str:
    assert isinstance(n.op, ops.Reverse)
    return e.one("reverse", xs, type_of(n), {"dimensions": Ints(n.op.dims)})


@row(ops.Concat)
def concatenate(e: Emitter, n: Node, xs: list[str]) -> str:
    assert isinstance(n.op, ops.Concat)
    return e.one("concatenate", xs, type_of(n), {"dimension": Number(str(n.op.dimension), "i64")})


@row(ops.Slice)
def slice_(e: Emitter, n: Node, xs: list[str]) -> str:
    assert isinstance(n.op, ops.Slice)
    return sliced(e, xs[0], n.op.start, n.op.limit, n.op.strides, type_of(n), n.inputs[0].shape)


def sliced(e: Emitter, x: str, start: Shape, limit: Shape, strides: Sequence[int], type: str, of: Shape) -> str:
    if is_static((*start, *limit, *of)):
        names = ("start_indices", "limit_indices", "strides")
        return e.one("slice", [x], type, dict(zip(names, map(_ints, (start, limit, strides)), strict=True)))
    return e.one("real_dynamic_slice", [x, e.shape(start), e.shape(limit), e.shape(strides)], type)


@row(ops.Pad)
def pad(e: Emitter, n: Node, xs: list[str]) -> str:
    assert isinstance(n.op, ops.Pad)
    amounts = (n.op.low, n.op.high, n.op.interior)
    if is_static((*n.op.low, *n.op.high)):
        names = ("edge_padding_low", "edge_padding_high", "interior_padding")
        return e.one("pad", xs, type_of(n), dict(zip(names, map(_ints, amounts), strict=True)))
    return e.one("dynamic_pad", [*xs, *map(e.shape, amounts)], type_of(n))


@row(ops.Windows)
def windows(e: Emitter, n: Node, xs: list[str]) -> str:
    """A gather at the start of each window plus each position within it."""
    (x,) = n.inputs
    assert isinstance(n.op, ops.Windows)
    grid = n.shape[n.op.dim : n.op.dim + 2]
    first, element = (ops.iota(grid, d) for d in (0, 1))
    positions = ops.add(ops.mul(first, n.op.step), ops.mul(element, n.op.dilation))
    rank, dim = x.type.rank, n.op.dim
    offsets = tuple(d if d < dim else d + 1 for d in range(rank) if d != dim)
    sizes = tuple(1 if d == dim else s for d, s in enumerate(x.shape))
    gathered = ops.Gather(offsets, (dim,), (), (), (dim,), 2, sizes)(x, positions)
    if gathered.type != n.type:
        raise Unsupported(f"windows as {n.type}")
    return e.value(gathered)


@row(ops.DynamicSlice)
def dynamic_slice(e: Emitter, n: Node, xs: list[str]) -> str:
    x, *starts = xs
    shape = n.inputs[0].shape
    wide_starts = [e.convert(s, i64, ()) if i.dtype != i64 else s for s, i in zip(starts, n.inputs[1:], strict=True)]
    if is_static((*n.shape, *shape)):
        return e.one("dynamic_slice", [x, *wide_starts], type_of(n), {"slice_sizes": _ints(n.shape)})
    clamped = [_clamped(e, s, d, w) for s, d, w in zip(wide_starts, shape, n.shape, strict=True)]
    rank = f"tensor<{len(shape)}xi32>"
    start = e.one("concatenate", clamped, rank, {"dimension": Number("0", "i64")})
    limit = e.one("add", [start, e.shape(n.shape)], rank)
    return e.one("real_dynamic_slice", [x, start, limit, e.shape((1,) * len(shape))], type_of(n))


def _clamped(e: Emitter, start: str, size: DimLike, window: DimLike) -> str:
    narrow = e.convert(start, i32, ())
    inside = e.one("clamp", [e.scalar(0, i32), narrow, e.size(size - window)], "tensor<i32>")
    return e.one("reshape", [inside], "tensor<1xi32>")


@row(ops.DynamicUpdateSlice)
def dynamic_update_slice(e: Emitter, n: Node, xs: list[str]) -> str:
    starts = [e.convert(s, i64, ()) if i.dtype != i64 else s for s, i in zip(xs[2:], n.inputs[2:], strict=True)]
    return e.one("dynamic_update_slice", [*xs[:2], *starts], type_of(n))


@row(ops.Gather)
def gather(e: Emitter, n: Node, xs: list[str]) -> str:
    g = n.op
    assert isinstance(g, ops.Gather)
    numbers = fields("gather", {
        "offset_dims": g.offset_dims, "collapsed_slice_dims": g.collapsed_slice_dims,
        "operand_batching_dims": g.operand_batching_dims,
        "start_indices_batching_dims": g.start_indices_batching_dims, "start_index_map": g.start_index_map,
    }, g.index_vector_dim)  # fmt: skip
    if is_static(g.slice_sizes):
        return e.one("gather", xs, type_of(n), {"dimension_numbers": numbers, "slice_sizes": _ints(g.slice_sizes)})
    return e.one("dynamic_gather", [*xs, e.shape(g.slice_sizes)], type_of(n), {"dimension_numbers": numbers})


def fields(name: str, fields: dict[str, tuple[int, ...]], vector: int) -> Raw:
    entries = [f"{k} = [{', '.join(map(str, v))}]" for k, v in fields.items() if v]
    return Raw(f"#stablehlo.{name}<{', '.join([*entries, f'index_vector_dim = {vector}'])}>")


# --- contractions


_HIGHEST: list[Attribute] = [Raw("#stablehlo<precision HIGHEST>")] * 2


@row(ops.DotGeneral)
def dot_general(e: Emitter, n: Node, xs: list[str]) -> str:
    d = n.op
    assert isinstance(d, ops.DotGeneral)
    kinds = zip(("batching", "contracting"), (d.batch, d.contract), strict=True)
    entries = [
        f"{side}_{kind}_dimensions = [{', '.join(map(str, dims))}]"
        for kind, sides in kinds
        for side, dims in zip(("lhs", "rhs"), sides, strict=True)
        if dims
    ]
    attributes: dict[str, Attribute] = {
        "dot_dimension_numbers": Raw(f"#stablehlo.dot<{', '.join(entries)}>"),
        "precision_config": _HIGHEST,
    }
    return e.one("dot_general", _same_kind(e, n, xs), type_of(n), attributes)


def _same_kind(e: Emitter, n: Node, xs: list[str]) -> list[str]:
    """The operands, converted to the result's type if their types differ."""
    if len({i.dtype for i in n.inputs}) == 1:
        return xs
    return [x if i.dtype == n.dtype else e.convert(x, n.dtype, i.shape) for x, i in zip(xs, n.inputs, strict=True)]


@row(ops.Convolution)
def convolution(e: Emitter, n: Node, xs: list[str]) -> str:
    c = n.op
    assert isinstance(c, ops.Convolution)
    letters = {"N": "b", "C": "f", "O": "o", "I": "i"} | {s: str(i) for i, s in enumerate(c.spatial)}
    x, w, y = (f"[{', '.join(letters[s] for s in layout)}]" for layout in (c.lhs_layout, c.rhs_layout, c.out_layout))
    attributes: dict[str, Attribute] = {
        "dimension_numbers": Raw(f"#stablehlo.conv<{x}x{w}->{y}>"),
        "window_strides": Ints(c.strides),
        "padding": pairs(c.padding),
        "lhs_dilation": Ints(c.lhs_dilation),
        "rhs_dilation": Ints(c.rhs_dilation),
        "feature_group_count": Number(str(c.feature_groups), "i64"),
        "batch_group_count": Number(str(c.batch_groups), "i64"),
        "precision_config": _HIGHEST,
    }
    return e.one("convolution", _same_kind(e, n, xs), type_of(n), attributes)


def pairs(pairs: Sequence[tuple[int, int]]) -> Dense:
    body = ", ".join(f"[{a}, {b}]" for a, b in pairs)
    return Dense(f"[{body}]" if pairs else "", f"tensor<{len(pairs)}x2xi64>")


# --- control
