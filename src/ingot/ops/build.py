"""Builders: numpy broadcasting and Python scalars on top of the CORE primitives.

An operand is a node, a Python number, which takes the dtype of the first node, or a symbolic Dim, which becomes its
value. Axes may be negative. loc: the source location of the nodes. Builders raise ShapeError for operands that do not
fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np

from ingot.ir.dims import Dim, DimLike, dim_max, dim_min, exact_quotient, is_negative, product
from ingot.ir.node import Node, Op, const
from ingot.ir.types import DType, Shape, TensorType, f32, i64
from ingot.ops.core.base import show_shape
from ingot.ops.core.binary import (
    Add,
    And,
    Atan2,
    Clamp,
    Compare,
    Convert,
    Div,
    Max,
    Min,
    Mul,
    Or,
    Pow,
    Rem,
    Select,
    Sub,
    Xor,
)
from ingot.ops.core.contraction import DotGeneral
from ingot.ops.core.elementwise import Floor
from ingot.ops.core.reduce import ArgReduce, CumReduce, Reduce
from ingot.ops.core.shape import BroadcastInDim, Concat, Pad, Reshape, Reverse, Slice, Transpose
from ingot.ops.core.source import DimValue, Iota
from ingot.support.errors import ShapeError

Number = int | float | bool
Operand = Node | Number | Dim
Axes = int | Sequence[int] | None


# --- values


def scalar(value: Number | Dim, dtype: DType = f32) -> Node:
    """A constant of rank 0, or the value of a symbolic size.

    Raise ShapeError for a fraction, infinity or NaN as an integer.
    """
    if isinstance(value, Dim):
        return cast(DimValue(value)(), dtype)
    if dtype.is_integer and (value != value or value in (float("inf"), float("-inf")) or value != int(value)):
        raise ShapeError(f"scalar: {value} is no {dtype}", fix="cast the other operand to a float type first")
    return const(np.asarray(value).astype(dtype.numpy))


def full(shape: Shape, value: Number | Dim, dtype: DType = f32, loc: str = "") -> Node:
    """A tensor of `shape` with all elements `value`."""
    return broadcast_to(scalar(value, dtype), shape, loc)


def arange(n: DimLike, dtype: DType = i64, loc: str = "") -> Node:
    """0, 1, ..., n - 1."""
    return Iota(TensorType(dtype, (n,)), 0)(loc=loc)


def iota(shape: Sequence[DimLike], axis: int, dtype: DType = i64) -> Node:
    """Each element's index along `axis`, which is not negative."""
    return Iota(TensorType(dtype, tuple(shape)), axis)()


def cast(x: Node, dtype: DType, loc: str = "") -> Node:
    """x in `dtype`; see `Convert`."""
    return x if x.dtype == dtype else Convert(dtype)(x, loc=loc)


# --- broadcasting


def broadcast_shapes(*shapes: Shape) -> Shape:
    """The broadcast shape under numpy's rules. A symbolic size matches only itself and 1."""
    rank = max((len(s) for s in shapes), default=0)
    out: list[DimLike] = [1] * rank
    for shape in shapes:
        for i, d in enumerate(shape, rank - len(shape)):
            if out[i] == 1:
                out[i] = d
            elif d not in (1, out[i]):
                fix = f"shapes are {', '.join(show_shape(s) for s in shapes)}"
                what = f"broadcast: sizes differ on axis {i - rank}"
                raise ShapeError(what, expected=f"{out[i]} or 1", got=d, fix=fix).between((out[i], d))
    return tuple(out)


def broadcast_to(x: Node, shape: Shape, loc: str = "") -> Node:
    """x broadcast to `shape` under numpy's rules."""
    shape = tuple(shape)
    if x.shape == shape:
        return x
    if len(x.shape) > len(shape) or broadcast_shapes(x.shape, shape) != shape:
        unequal = ((to, d) for d, to in zip(x.shape[::-1], shape[::-1], strict=False) if d not in (1, to))
        what = f"broadcast_to: {x.type} does not broadcast to {show_shape(shape)}"
        raise ShapeError(what).between(next(unequal, None))
    return BroadcastInDim(shape, tuple(range(len(shape) - len(x.shape), len(shape))))(x, loc=loc)


def promote(*operands: Operand, loc: str = "") -> tuple[Node, ...]:
    """The operands as nodes, broadcast to one shape; numbers take the dtype of the first node."""
    first_node = next((o for o in operands if isinstance(o, Node)), None)
    dtype = first_node.dtype if first_node is not None else f32
    nodes = [o if isinstance(o, Node) else scalar(o, dtype) for o in operands]
    shape = broadcast_shapes(*(n.shape for n in nodes))
    return tuple(broadcast_to(n, shape, loc) for n in nodes)


def apply(op: Op, *operands: Operand, loc: str = "") -> Node:
    """The elementwise `op` on the operands, broadcast to one shape."""
    return op(*promote(*operands, loc=loc), loc=loc)


def add(a: Operand, b: Operand, loc: str = "") -> Node:
    return apply(Add(), a, b, loc=loc)


def sub(a: Operand, b: Operand, loc: str = "") -> Node:
    return apply(Sub(), a, b, loc=loc)


def mul(a: Operand, b: Operand, loc: str = "") -> Node:
    return apply(Mul(), a, b, loc=loc)


def div(a: Operand, b: Operand, loc: str = "") -> Node:
    """Quotient; integers truncate towards zero."""
    return apply(Div(), a, b, loc=loc)


def rem(a: Operand, b: Operand, loc: str = "") -> Node:
    """Remainder with the dividend's sign (C's fmod and %)."""
    return apply(Rem(), a, b, loc=loc)


def floor_div(a: Operand, b: Operand, loc: str = "") -> Node:
    """Quotient rounded towards minus infinity (Python's //)."""
    x, y = promote(a, b, loc=loc)
    quotient = Div()(x, y, loc=loc)
    if x.dtype.is_float or x.dtype.kind == "u":
        return Floor()(quotient, loc=loc) if x.dtype.is_float else quotient
    r = Rem()(x, y, loc=loc)
    has_other_sign = xor(compare("LT", r, 0), compare("LT", y, 0))
    return where(and_(has_other_sign, compare("NE", r, 0)), sub(quotient, 1), quotient, loc)


def floor_mod(a: Operand, b: Operand, loc: str = "") -> Node:
    """Remainder with the divisor's sign (Python's %), including the sign of zero."""
    x, y = promote(a, b, loc=loc)
    r = Rem()(x, y, loc=loc)
    if x.dtype.kind == "u":
        return r
    zero = full(r.shape, 0, r.dtype)
    differs = Xor()(Compare("LT")(r, zero), Compare("LT")(y, zero))
    shifted = Select()(And()(differs, Compare("NE")(r, zero)), Add()(r, y), r, loc=loc)
    if not x.dtype.is_float:
        return shifted
    signed = Select()(Compare("LT")(y, zero), full(r.shape, -0.0, r.dtype), zero)
    return Select()(Compare("EQ")(r, zero), signed, shifted, loc=loc)


def pow(a: Operand, b: Operand, loc: str = "") -> Node:
    return apply(Pow(), a, b, loc=loc)


def atan2(a: Operand, b: Operand, loc: str = "") -> Node:
    return apply(Atan2(), a, b, loc=loc)


def maximum(a: Operand, b: Operand, loc: str = "") -> Node:
    return apply(Max(), a, b, loc=loc)


def minimum(a: Operand, b: Operand, loc: str = "") -> Node:
    return apply(Min(), a, b, loc=loc)


def and_(a: Operand, b: Operand, loc: str = "") -> Node:
    return apply(And(), a, b, loc=loc)


def or_(a: Operand, b: Operand, loc: str = "") -> Node:
    return apply(Or(), a, b, loc=loc)


def xor(a: Operand, b: Operand, loc: str = "") -> Node:
    return apply(Xor(), a, b, loc=loc)


def compare(direction: str, a: Operand, b: Operand, loc: str = "") -> Node:
    """direction: EQ NE LT LE GT GE."""
    return apply(Compare(direction), a, b, loc=loc)


def where(pred: Node, a: Operand, b: Operand, loc: str = "") -> Node:
    """pred ? a : b."""
    x, y = promote(a, b, loc=loc)
    shape = broadcast_shapes(pred.shape, x.shape)
    return Select()(*(broadcast_to(n, shape, loc) for n in (pred, x, y)), loc=loc)


def clip(
    x: Node, low: Operand | None = None, high: Operand | None = None, loc: str = "", *, open: bool = False
) -> Node:
    """min(max(x, low), high); a bound of None does not limit. open: see `Clamp`; only for two bounds."""
    if low is None:
        return x if high is None else minimum(x, high, loc)
    if high is None:
        return maximum(x, low, loc)
    value, lo, hi = promote(x, low, high, loc=loc)
    return Clamp(open)(lo, value, hi, loc=loc)


# --- shape


def _axis(axis: int, rank: int) -> int:
    if not -rank <= axis < rank:
        raise ShapeError(f"axis {axis} is out of range", expected=f"an axis in [{-rank}, {rank})")
    return axis % rank


def _axes(axes: Axes, rank: int) -> tuple[int, ...]:
    if axes is None:
        return tuple(range(rank))
    axis_list = (axes,) if isinstance(axes, int) else tuple(axes)
    return tuple(sorted({_axis(a, rank) for a in axis_list}))


def reshape(x: Node, shape: Shape, loc: str = "") -> Node:
    """x in another `shape`; one size may be -1 and is inferred from the others, also symbolic ones."""
    shape = tuple(shape)
    inferred_axes = [i for i, d in enumerate(shape) if d == -1]
    if len(inferred_axes) > 1:
        raise ShapeError("reshape: expected one -1 at most", got=show_shape(shape), where=loc or None)
    if inferred_axes:
        known_size = product(d for d in shape if d != -1)
        inferred = None if known_size == 0 else exact_quotient(x.type.size, known_size)
        if inferred is None:
            raise ShapeError(f"reshape: {x.type} does not split into {show_shape(shape)}", where=loc or None)
        shape = (*shape[: inferred_axes[0]], inferred, *shape[inferred_axes[0] + 1 :])
    return x if shape == x.shape else Reshape(shape)(x, loc=loc)


def transpose(x: Node, permutation: Sequence[int] | None = None, loc: str = "") -> Node:
    """x with its axes in the order of `permutation`, reversed by default."""
    rank = len(x.shape)
    perm = tuple(reversed(range(rank))) if permutation is None else tuple(_axis(p, rank) for p in permutation)
    return x if perm == tuple(range(rank)) else Transpose(perm)(x, loc=loc)


def swap_axes(x: Node, a: int, b: int, loc: str = "") -> Node:
    """x with axes `a` and `b` exchanged."""
    perm = list(range(len(x.shape)))
    perm[a], perm[b] = perm[b], perm[a]
    return transpose(x, perm, loc)


def expand_dims(x: Node, axes: int | Sequence[int], loc: str = "") -> Node:
    """x with new axes of size 1 at the positions `axes` of the result."""
    new_axes = (axes,) if isinstance(axes, int) else tuple(axes)
    rank = len(x.shape) + len(new_axes)
    positions = {_axis(a, rank) for a in new_axes}
    if len(positions) != len(new_axes):
        raise ShapeError("expand_dims: axes repeat", got=new_axes, where=loc or None)
    sizes = iter(x.shape)
    return reshape(x, tuple(1 if i in positions else next(sizes) for i in range(rank)), loc)


def squeeze(x: Node, axes: Axes = None, loc: str = "") -> Node:
    """x without `axes`, which must have size 1; by default without all axes of size 1."""
    if axes is None:
        dropped = tuple(i for i, d in enumerate(x.shape) if d == 1)
    else:
        dropped = _axes(axes, len(x.shape))
    for a in dropped:
        if x.shape[a] != 1:
            raise ShapeError(f"squeeze: axis {a} of {x.type}", expected="1", got=x.shape[a], where=loc or None)
    return reshape(x, tuple(d for i, d in enumerate(x.shape) if i not in dropped), loc)


def flatten(x: Node, start: int = 0, end: int = -1, loc: str = "") -> Node:
    """x with axes start..end (inclusive) merged into one; a scalar becomes [1]."""
    if not x.shape:
        return reshape(x, (1,), loc)
    a, b = _axis(start, len(x.shape)), _axis(end, len(x.shape))
    return reshape(x, (*x.shape[:a], product(x.shape[a : b + 1]), *x.shape[b + 1 :]), loc)


def concat(xs: Sequence[Node], axis: int = 0, loc: str = "") -> Node:
    """The operands joined along `axis`."""
    if len(xs) == 1:
        return xs[0]
    return Concat(_axis(axis, len(xs[0].shape)))(*xs, loc=loc)


def stack(xs: Sequence[Node], axis: int = 0, loc: str = "") -> Node:
    """Operands of one shape, joined along a new `axis`."""
    new_axis = _axis(axis, len(xs[0].shape) + 1)
    return concat([expand_dims(x, new_axis, loc) for x in xs], new_axis, loc)


def slice_axis(
    x: Node, axis: int, start: DimLike | None = None, stop: DimLike | None = None, step: int = 1, loc: str = ""
) -> Node:
    """x[..., start:stop:step, ...] under Python's rules: negative indices count from the end, others are clamped.

    If the bounds of a symbolic size do not decide whether a stop is within it, the stop becomes min(stop, size).
    """
    a = _axis(axis, len(x.shape))
    size = x.shape[a]
    if step == 0:
        raise ShapeError("slice: expected a step other than 0", where=loc or None)
    if step < 0:
        # x[start:stop:-s] is a slice of the reversed x, with indices from the other end
        first = None if start is None else size - 1 - _wrap_index(start, size)
        last = None if stop is None else size - 1 - _wrap_index(stop, size)
        flipped = Reverse((a,))(x, loc=loc)
        return _slice(flipped, a, 0 if first is None else first, size if last is None else last, -step, loc)
    ends = 0 if start is None else _wrap_index(start, size), size if stop is None else _wrap_index(stop, size)
    return _slice(x, a, *ends, step, loc)


def exact_slice(x: Node, axis: int, start: DimLike, stop: DimLike, step: int = 1, loc: str = "") -> Node:
    """x[start:stop:step] along an axis that has these elements, which is a condition where sizes are open."""
    if start == 0 and stop == x.shape[axis] and step == 1:
        return x
    starts = tuple(start if i == axis else 0 for i in range(len(x.shape)))
    stops = tuple(stop if i == axis else d for i, d in enumerate(x.shape))
    return Slice(starts, stops, tuple(step if i == axis else 1 for i in range(len(x.shape))))(x, loc=loc)


def _wrap_index(index: DimLike, size: DimLike) -> DimLike:
    return index + size if is_negative(index) else index


def _slice(x: Node, axis: int, low: DimLike, high: DimLike, step: int, loc: str) -> Node:
    size = x.shape[axis]
    low = dim_min(dim_max(low, 0), size)
    high = dim_max(dim_min(dim_max(high, 0), size), low)
    return exact_slice(x, axis, low, high, step, loc)


def index_axis(x: Node, axis: int, at: DimLike, loc: str = "") -> Node:
    """x[..., at, ...], without the axis; a negative `at` counts from the end."""
    a = _axis(axis, len(x.shape))
    first = _wrap_index(at, x.shape[a])
    return squeeze(slice_axis(x, a, first, first + 1, 1, loc), a, loc)


def split(x: Node, sizes: Sequence[DimLike], axis: int = 0, loc: str = "") -> tuple[Node, ...]:
    """x split into pieces of `sizes`, none negative, along `axis`. Raise ShapeError unless the sizes add up to it."""
    a = _axis(axis, len(x.shape))
    ends: list[DimLike] = [0, *accumulate(sizes)]
    if ends[-1] != x.shape[a]:
        raise ShapeError(f"split: axis {a} of {x.type}", expected=f"sizes that sum to {x.shape[a]}", got=tuple(sizes))
    return tuple(exact_slice(x, a, lo, hi, loc=loc) for lo, hi in pairwise(ends))


def pad(x: Node, low: Shape, high: Shape, value: Operand = 0, interior: Sequence[int] = (), loc: str = "") -> Node:
    """x padded with `value`; negative amounts crop. interior: see `Pad`."""
    interiors = tuple(interior) or (0,) * len(x.shape)
    if not any(d != 0 for d in (*low, *high, *interiors)):
        return x
    fill = value if isinstance(value, Node) else scalar(value, x.dtype)
    return Pad(tuple(low), tuple(high), interiors)(x, fill, loc=loc)


def flip(x: Node, axes: Axes = None, loc: str = "") -> Node:
    """x reversed along `axes`, by default all."""
    return Reverse(_axes(axes, len(x.shape)))(x, loc=loc)


# --- reductions


def reduce(kind: str, x: Node, axes: Axes = None, keepdims: bool = False, loc: str = "") -> Node:
    """The reduction of x over `axes`, by default all. kind: sum, prod, max, min, and, or."""
    dims = _axes(axes, len(x.shape))
    y = Reduce(kind, dims)(x, loc=loc) if dims else x
    return reshape(y, _keepdims_shape(x, dims), loc) if keepdims else y


def _keepdims_shape(x: Node, dims: tuple[int, ...]) -> Shape:
    return tuple(1 if i in dims else d for i, d in enumerate(x.shape))


def reduce_sum(x: Node, axes: Axes = None, keepdims: bool = False, loc: str = "") -> Node:
    return reduce("sum", x, axes, keepdims, loc)


def reduce_prod(x: Node, axes: Axes = None, keepdims: bool = False, loc: str = "") -> Node:
    return reduce("prod", x, axes, keepdims, loc)


def reduce_max(x: Node, axes: Axes = None, keepdims: bool = False, loc: str = "") -> Node:
    return reduce("max", x, axes, keepdims, loc)


def reduce_min(x: Node, axes: Axes = None, keepdims: bool = False, loc: str = "") -> Node:
    return reduce("min", x, axes, keepdims, loc)


def mean(x: Node, axes: Axes = None, keepdims: bool = False, loc: str = "") -> Node:
    """The mean over `axes`; f16 and bf16 are averaged in f32 and rounded once."""
    wide = cast(x, f32, loc) if x.dtype.is_float and x.dtype.bits < 32 else x
    count = product(x.shape[a] for a in _axes(axes, len(x.shape)))
    return cast(div(reduce("sum", wide, axes, keepdims, loc), count, loc), x.dtype, loc)


def var(x: Node, axes: Axes = None, keepdims: bool = False, correction: int = 0, loc: str = "") -> Node:
    """The sum of squared deviations from the mean over `axes`, divided by n - correction."""
    wide = cast(x, f32, loc) if x.dtype.is_float and x.dtype.bits < 32 else x
    deviation = sub(wide, mean(wide, axes, True, loc), loc)
    total = reduce("sum", mul(deviation, deviation, loc), axes, keepdims, loc)
    count = product(x.shape[a] for a in _axes(axes, len(x.shape)))
    return cast(div(total, dim_max(count - correction, 0), loc), x.dtype, loc)


def arg_reduce(kind: str, x: Node, axis: int, keepdims: bool = False, last: bool = False, loc: str = "") -> Node:
    """The index (i64) of the maximum or minimum along `axis`; see `ArgReduce`."""
    a = _axis(axis, len(x.shape))
    y = ArgReduce(kind, a, last)(x, loc=loc)
    return reshape(y, _keepdims_shape(x, (a,)), loc) if keepdims else y


def cumulative(kind: str, x: Node, axis: int, reverse: bool = False, exclusive: bool = False, loc: str = "") -> Node:
    """The prefix reduction of x along `axis`; see `CumReduce`. kind: sum, prod, max, min."""
    return CumReduce(kind, _axis(axis, len(x.shape)), reverse, exclusive)(x, loc=loc)


# --- products


def linear(x: Node, w: Node, b: Node | None = None, loc: str = "") -> Node:
    """x[..., K] w[N, K]^T (+ b[N]) -> [..., N]."""
    y = DotGeneral(contract=((len(x.shape) - 1,), (1,)))(x, w, loc=loc)
    return y if b is None else add(y, b, loc)
