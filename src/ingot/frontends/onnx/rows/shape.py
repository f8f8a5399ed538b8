"""Shape and data movement: reshape, slice, concat, pad, tile, ranges, blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from ingot import ops
from ingot.frontends.onnx.call import Call, Result, normal_axes, normal_axis, onnx_op, seek_multiple
from ingot.frontends.onnx.rows.common import check_table, checked_size, parts_of
from ingot.frontends.onnx.symbolic import Element, UnknownSize, cast
from ingot.frontends.onnx.tensors import dtype_from_code
from ingot.frontends.onnx.wishes import element_symbols
from ingot.frontends.shared.composites import movement
from ingot.frontends.shared.composites.movement import cut
from ingot.frontends.shared.refusal import Unsupported
from ingot.ir import types as T
from ingot.ir.dims import (
    Dim,
    DimLike,
    ceildiv,
    dim_max,
    dim_min,
    exact_quotient,
    floordiv,
    is_computed,
    product,
    symbols_of,
    zero_bit,
)
from ingot.ir.node import Const, Node, const
from ingot.ir.types import Shape

# the largest factor by which a reshape is assumed to divide a dynamic size
_MAX_FACTOR = 4096


@onnx_op("Reshape")
def reshape(c: Call) -> Result:
    x = c.x()
    shape = list(c.dims(1))
    if c.flag("allowzero"):
        if 0 in shape and -1 in shape:
            raise Unsupported(f"reshape of {x.type} to {shape}: a -1 beside a 0 that is a size")
    else:
        # 0 keeps the input's size
        if any(isinstance(d, int) and d == 0 and i >= c.rank() for i, d in enumerate(shape)):
            raise Unsupported(f"reshape of {x.type} to {shape}: a 0 beyond the input's rank")
        shape = [
            d + zero_bit(d) * x.shape[i] if i < c.rank() and (element_symbols(d) or d == 0) else d
            for i, d in enumerate(shape)
        ]
    if any(map(element_symbols, shape)):
        return movement.checked_reshape(x, shape, c.importer.require_equal)
    if any(isinstance(d, int) and d == -1 for d in shape) and x.type.size == 0:
        other_sizes = [d for d in shape if d != -1]
        shape = [0 if d == -1 else d for d in shape] if product(other_sizes) != 0 else shape
    if not _divisible(x.shape, shape):
        with suppress(Unsupported):  # if it is refused, the op below reports the error
            return movement.checked_reshape(x, shape, c.importer.require_equal)
    return ops.reshape(x, tuple(shape))


def _divisible(old: Shape, new: Sequence[DimLike]) -> bool:
    """Whether a reshape is valid for all sizes, or for none. Raises Equation where it is valid for all multiples of
    some factor: exporters that assume as much write `[b, n] -> [b, n // 16, 16]` without declaring it at the input."""
    has_wildcard = any(d == -1 for d in new)
    old_size, new_size = product(old), product(d for d in new if d != -1)

    def fits(old_size: DimLike, new_size: DimLike) -> bool:
        return old_size == new_size or (has_wildcard and exact_quotient(old_size, new_size) is not None)

    if fits(old_size, new_size) or (isinstance(old_size, int) and isinstance(new_size, int)):
        return True
    total = math.prod(d for d in new if isinstance(d, int) and d > 1)
    factors = (factor for factor in range(2, min(total, _MAX_FACTOR) + 1) if total % factor == 0)
    # prefer the last axis to the batch
    sizes = (name for d in reversed(old) for name in sorted(symbols_of(d)))
    names = dict.fromkeys(name for name in sizes if not is_computed(name))  # those are what the run finds
    seek_multiple(fits, (old_size, new_size), factors, list(names))
    return False


@onnx_op("Flatten")
def flatten(c: Call) -> Result:
    x = c.x()
    axis = c.int("axis", 1)
    axis = axis + c.rank() if axis < 0 else axis
    return ops.reshape(x, (product(x.shape[:axis]), product(x.shape[axis:])))


@onnx_op("Transpose")
def transpose(c: Call) -> Result:
    return ops.transpose(c.x(), c.int_list("perm", range(c.rank() - 1, -1, -1)))


def _axes(c: Call) -> tuple[int, ...] | None:
    if c.has(1):
        return c.ints(1)
    return c.int_list("axes") if c.has_attr("axes") else None


@onnx_op("Squeeze")
def squeeze(c: Call) -> Result:
    axes = _axes(c)
    if axes is None:
        # the rank must be known at import
        for d in c.shape():
            if isinstance(d, Dim):
                c.importer.require(d - 2, f"a squeeze of {c.type()} without axes: the size {d} is 1 or not")
    x = c.x()
    for axis in axes or ():
        c.importer.require_equal(c.shape()[normal_axis(axis, c.rank())], 1, f"a squeeze of {c.type()}")
        x = cut(x, normal_axis(axis, c.rank()), 0, 1, 1)
    return ops.squeeze(x, axes)


@onnx_op("Unsqueeze")
def unsqueeze(c: Call) -> Result:
    return ops.expand_dims(c.x(), _axes(c) or ())


@onnx_op("Expand")
def expand(c: Call) -> Result:
    target, shape = c.dims(1), c.shape(0)
    if any(map(element_symbols, target)):
        rank = max(len(target), len(shape))
        pairs = zip(*((1,) * (rank - len(dims)) + dims for dims in (target, shape)), strict=True)
        return ops.broadcast_to(c.x(), tuple(_expanded(c, d, size) for d, size in pairs))
    return ops.broadcast_to(c.x(), ops.broadcast_shapes(shape, target))


def _expanded(c: Call, target: DimLike, size: DimLike) -> DimLike:
    """A size broadcast to one that data may determine: 1 to any size, others to themselves or 1."""
    if size == 1 or target == 1:
        return size if target == 1 else checked_size(c, target)
    c.importer.require_equal((target - 1) * (target - size), 0, f"an expansion of {size} to {target}")
    return size


@onnx_op("Concat")
def concat(c: Call) -> Result:
    return ops.concat(c.xs(), c.int("axis", 1))


@onnx_op("Split")
def split(c: Call) -> Result:
    x = c.x()
    axis = c.axis("axis", 0, c.rank())
    sizes: Sequence[DimLike] = c.dims(1) if c.has(1) else c.int_list("split", ())
    if not sizes:
        count = c.int("num_outputs", c.result_count)
        if count != c.result_count:
            raise Unsupported(f"a split into {count} parts with {c.result_count} results")
        sizes = _equal_sizes(c, x.shape[axis], count)
    return parts_of(c, x, axis, sizes)


def _equal_sizes(c: Call, size: DimLike, count: int) -> list[DimLike]:
    """The sizes of `count` parts of an axis: the last may be smaller if an attribute says so, else all are equal."""
    if not c.has_attr("num_outputs"):
        even = exact_quotient(size, count)
        if even is None:
            even = floordiv(size, count)
            c.importer.require_equal(even * count, size, f"a split of {size} into {count} equal parts")
        return [even] * count
    part_size = ceildiv(size, count)
    if exact_quotient(size, count) is not None:
        return [part_size] * count
    return [dim_min(part_size, dim_max(size - i * part_size, 0)) for i in range(count)]


# slices


# padding


@onnx_op("Pad")
def pad_2(c: Call) -> Result:
    amounts = c.int_list("pads") if c.has_attr("pads") else c.int_list("paddings")
    return _pad(c, c.x(), amounts, ops.scalar(c.float("value", 0.0), c.type().dtype))


@onnx_op("Pad", since=11)
@onnx_op("Pad", domain="com.microsoft")
def pad(c: Call) -> Result:
    x = c.x()
    amounts = list(c.dims(1))
    if c.has(3):
        axes = normal_axes(c.ints(3), c.rank())
        amounts_per_axis: list[DimLike] = [0] * (2 * c.rank())
        for i, a in enumerate(axes):
            amounts_per_axis[a], amounts_per_axis[a + c.rank()] = amounts[i], amounts[i + len(axes)]
        amounts = amounts_per_axis
    value = c.opt(2)
    fill = ops.scalar(0, x.dtype) if value is None else ops.reshape(value, ())
    return _pad(c, x, amounts, fill)


def _pad(c: Call, x: Node, amounts: Sequence[DimLike], fill: Node) -> Node:
    rank = len(x.shape)
    if len(amounts) != 2 * rank:
        raise Unsupported(f"pads: expected {2 * rank} amounts, got {len(amounts)}")
    low, high = tuple(amounts[:rank]), tuple(amounts[rank:])
    mode = c.str("mode", "constant")
    if mode == "constant" and not any(map(element_symbols, amounts)):
        return ops.pad(x, low, high, fill)
    crop = [dim_max(-d, 0) if isinstance(d, int) or element_symbols(d) else 0 for d in amounts]
    for a in range(rank):
        end = x.shape[a] - crop[a + rank]
        c.importer.require(end - crop[a], f"pads that cut {x.shape[a]} down to less than nothing")
        x = cut(x, a, crop[a], end)
    grow = tuple(dim_max(d, 0) if isinstance(d, int) or element_symbols(d) else d for d in amounts)
    if mode == "constant":
        return ops.pad(x, grow[:rank], grow[rank:], fill)
    return x if not any(d != 0 for d in grow) else ops.PadMode(grow[:rank], grow[rank:], mode)(x)


@onnx_op("Tile")
def tile(c: Call) -> Result:
    x = c.x()
    repeats = [checked_size(c, d) for d in c.dims(1)]
    if len(repeats) != c.rank():
        raise Unsupported(f"repeats: expected {c.rank()} numbers, got {len(repeats)}")
    return movement.tile(x, repeats)


# values from sizes


@onnx_op("ConstantOfShape")
def constant_of_shape(c: Call) -> Result:
    value = c.attr("value")
    array = value if isinstance(value, np.ndarray) else np.zeros(1, np.float32)
    shape = tuple(checked_size(c, d) for d in c.dims(0))
    return ops.broadcast_to(const(array.reshape(())), shape)


@onnx_op("Range")
@onnx_op("Range", domain="com.microsoft")
def range_(c: Call) -> Result:
    is_integer = c.type(0).dtype.is_integer
    bounds_ = [c.sym(i) if is_integer else c.value(i).sym for i in range(3)]
    if any(b is None for b in bounds_):
        return _constant_range(c)
    try:
        start, limit, delta = (_as_size(b.items.reshape(-1)[0]) for b in bounds_ if b is not None)
    except UnknownSize:
        return _constant_range(c)
    dtype = c.type(0).dtype
    if isinstance(delta, Dim) or delta == 0:
        return _constant_range(c)
    span = limit - start if delta > 0 else start - limit
    count = ceildiv(span, abs(delta))
    if element_symbols(span) or not c.importer.assume(span):
        count = dim_max(count, 0)
    steps = ops.arange(count, dtype)
    if delta != 1:
        steps = ops.mul(steps, delta)
    return steps if isinstance(start, int) and start == 0 else ops.add(steps, start)


def _as_size(v: Element) -> DimLike:
    """A size or an integral number, whatever its dtype (`torch.arange(width, dtype=torch.float32)`)."""
    if isinstance(v, float) and v.is_integer():
        return int(v)
    if isinstance(v, int | Dim):
        return v
    raise UnknownSize


def _constant_range(c: Call) -> Node:
    if not all(isinstance(x.op, Const) for x in c.xs()):
        return _computed_range(c)
    start, limit, delta = (c.array(i).reshape(()) for i in range(3))
    if delta == 0:
        raise Unsupported("a range with step 0")
    count = np.ceil((np.float64(limit) - np.float64(start)) / np.float64(delta))
    if not count < np.inf:
        raise Unsupported(f"a range from {start} to {limit} in steps of {delta} has no end")
    count = max(0.0, count)
    check_table(count)
    return const((np.arange(int(count)) * delta + start).astype(start.dtype))


def _computed_range(c: Call) -> Node:
    """A range whose length is found at run time."""
    if any([c.importer.wish(x, exact=True) for x in c.xs()]):
        raise Unsupported("its inputs must be known at compile time")
    start, limit, delta = (ops.reshape(x, ()) for x in c.xs())
    a, b, step = (ops.cast(x, T.f64) for x in (start, limit, delta))
    # a step of 0 gives an infinity, which is no valid size
    count = ops.maximum(ops.Ceil()(ops.div(ops.sub(b, a), step)), 0.0)
    sizes = c.importer.elements_as_sizes(ops.cast(count, T.i64))
    assert sizes is not None
    return ops.add(ops.mul(ops.arange(sizes.dims()[0], start.dtype), delta), start)


@onnx_op("EyeLike")
def eye_like(c: Call) -> Result:
    dtype = dtype_from_code(c.int("dtype")) if c.has_attr("dtype") else c.type().dtype
    i, j = (ops.iota(c.shape(), a) for a in (0, 1))
    return ops.cast(ops.compare("EQ", j, ops.add(i, c.int("k", 0))), dtype)


# blocks


@onnx_op("DepthToSpace")
def depth_to_space(c: Call) -> Result:
    x, b = c.x(), c.int("blocksize")
    n, ch, h, w = x.shape
    depth = exact_quotient(ch, b * b)
    if depth is None:
        raise Unsupported(f"{ch} channels do not divide into blocks of {b}x{b}")
    if c.str("mode", "DCR") == "DCR":
        parts = ops.transpose(ops.reshape(x, (n, b, b, depth, h, w)), (0, 3, 4, 1, 5, 2))
    else:
        parts = ops.transpose(ops.reshape(x, (n, depth, b, b, h, w)), (0, 1, 4, 2, 5, 3))
    return ops.reshape(parts, (n, depth, h * b, w * b))


@onnx_op("SpaceToDepth")
def space_to_depth(c: Call) -> Result:
    x, b = c.x(), c.int("blocksize")
    n, ch, h, w = x.shape
    rows, cols = floordiv(h, b), floordiv(w, b)
    for axis, count, size in ((2, rows, h), (3, cols, w)):
        if count * b != size:
            c.importer.require_equal(count * b, size, f"an image of {h}x{w} in blocks of {b}x{b}")
            x = cut(x, axis, 0, count * b)
    split_ = ops.reshape(x, (n, ch, rows, b, cols, b))
    order = (0, 3, 5, 1, 2, 4) if c.str("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    return ops.reshape(ops.transpose(split_, order), (n, ch * b * b, rows, cols))


@onnx_op("CenterCropPad", since=18)
def center_crop_pad(c: Call) -> Result:
    x = c.x()
    axes = normal_axes(c.int_list("axes", range(c.rank())), c.rank())
    for axis, target in zip(axes, c.dims(1), strict=True):
        target, size = checked_size(c, target), x.shape[axis]
        start = floordiv(dim_max(size - target, 0), 2)
        x = cut(x, axis, start, start + dim_min(size, target))
        missing = target - x.shape[axis]
        low_amount = floordiv(missing, 2)
        low, high = (tuple(d if i == axis else 0 for i in range(c.rank())) for d in (low_amount, missing - low_amount))
        x = ops.pad(x, low, high)
    return x


@onnx_op("ReverseSequence")
def reverse_sequence(c: Call) -> Result:
    batch, time = c.int("batch_axis", 1), c.int("time_axis", 0)
    if {batch, time} != {0, 1}:
        raise Unsupported(f"batch_axis {batch} and time_axis {time}: expected 0 and 1, or 1 and 0")
    return movement.reverse_sequence(c.x(0), c.x(1), time, batch)


def axis_of(c: Call, i: int, rank: int) -> int:
    """An axis given as input `i`."""
    return normal_axis(c.ints(i)[0], rank)


@onnx_op("CumSum", since=11)
def cum_sum(c: Call) -> Result:
    axis = axis_of(c, 1, c.rank())
    return ops.cumulative("sum", c.x(), axis, c.flag("reverse"), c.flag("exclusive"))


@onnx_op("CumProd", since=26)
def cum_prod(c: Call) -> Result:
    axis = axis_of(c, 1, c.rank())
    return ops.cumulative("prod", c.x(), axis, c.flag("reverse"), c.flag("exclusive"))


@onnx_op("OneHot", since=9)
def one_hot(c: Call) -> Result:
    indices, values = c.x(0), c.x(2)
    try:
        # the depth may be a float
        (depth,) = cast(c.sym(1), T.i64).dims()
    except UnknownSize:
        raise Unsupported("a depth that is no size") from None
    depth = checked_size(c, depth)
    axis = normal_axis(c.int("axis", -1), c.rank() + 1)
    i = ops.cast(indices, T.i64)
    i = ops.where(ops.compare("LT", i, 0), ops.add(i, depth), i)
    off_value, on_value = (ops.index_axis(values, 0, k) for k in (0, 1))
    return movement.one_hot(i, depth, axis, on_value, off_value)
