"""Slice: bounds that count from either end, are clamped, or depend on sizes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TypeGuard

import numpy as np

from ingot import ops
from ingot.frontends.onnx.call import Call, Result, normal_axes, normal_axis, onnx_op
from ingot.frontends.onnx.wishes import element_symbols
from ingot.frontends.shared.composites.movement import cut
from ingot.frontends.shared.refusal import Unsupported
from ingot.ir.dims import (
    MAX_SIZE,
    Dim,
    DimLike,
    Interval,
    bounds,
    default_bounds,
    dim_max,
    dim_min,
    narrow_bounds,
    sign_bit,
    symbols_of,
)
from ingot.ir.node import Node, splat_of

# an end this large means "to the end": no axis is longer, which is checked
_OPEN_END = 10**9


def _placed(at: DimLike, size: DimLike) -> DimLike:
    """A position from the front of an axis, where data determines whether `at` counts from the front or the end."""
    return at + sign_bit(at) * size


def _start(c: Call, at: DimLike, size: DimLike) -> DimLike:
    """A slice's start as 0 <= at <= size."""
    if _is_either(c, at):
        return dim_min(dim_max(_placed(at, size), 0), size)
    start = _from_end(at, size)
    return dim_min(dim_max(start, 0) if _is_behind(at) else start, size)


def _is_behind(at: DimLike) -> bool:
    """Whether a position counts from the end of an axis."""
    hi = bounds(at)[1]
    return hi is not None and hi < 0


def _is_either(c: Call, at: DimLike) -> bool:
    """Whether a position may count from the front or from the end. Exporters write `table[512 - n:]` for positions that
    are not negative, so that becomes a bound of the symbol where possible."""
    low = bounds(at)[0]
    return not _is_behind(at) and (low is None or low < 0) and not c.importer.assume(at)


def _from_end(at: DimLike, size: DimLike) -> DimLike:
    """The position from the front of an axis: `at` itself unless it counts from the end."""
    return at + size if _is_behind(at) else at


def _is_assumed(c: Call, size: DimLike) -> bool:
    """Whether `size` >= 0 becomes a bound of its symbol. Not for a symbol that the caller lets be 0, or a size found at
    run time."""
    limits = c.importer.limits
    narrower = narrow_bounds(size, limits) or {}
    keeps_bounds = all(
        low == 0 for name, (low, _) in narrower.items() if (limits.get(name) or default_bounds(name))[0] == 0
    )
    return keeps_bounds and c.importer.assume(size)


def _end(c: Call, at: DimLike, size: DimLike) -> DimLike:
    """A slice's end as 0 <= at <= size.

    x[:, :length] of a table with 512 columns has min(length, 512) of them, and x[:-k] has max(size - k, 0): neither
    would match a tensor of `length` or `size - k` elements. Exporters mean lengths that fit, so that is recorded as a
    bound of the symbol where possible.
    """
    dynamic = isinstance(at, Dim)
    if isinstance(at, int) and at >= _OPEN_END and isinstance(size, Dim):
        if at < MAX_SIZE:
            c.importer.require(at - size, "a slice")
        return size
    if _is_either(c, at):
        return dim_min(dim_max(_placed(at, size), 0), size)
    end = _from_end(at, size)
    if _is_behind(at) and _is_assumed(c, end):
        return end
    if dynamic and isinstance(size, int) and _is_assumed(c, size - end):
        return end
    return dim_min(dim_max(end, 0) if _is_behind(at) else end, size)


def slice_one(c: Call, x: Node, axis: int, start: DimLike, end: DimLike, step: int) -> Node:
    """x[start:end:step] along one axis, with ONNX's clamping."""
    size = x.shape[axis]
    if step > 0 and (element_symbols(start) or element_symbols(end)):
        low, high = (dim_min(dim_max(_placed(at, size), 0), size) for at in (start, end))
        return cut(x, axis, low, dim_max(high, low), step)
    if step > 0:
        low = _start(c, start, size)
        if isinstance(start, int) and isinstance(end, int) and end <= start and (start < 0) == (end < 0):
            return cut(x, axis, low, low, step)
        high = _end(c, end, size)
        # such ends match a tensor that is shorter by as much, so assume that the slice is not empty, unless its start
        # counts from the end and its end from the front
        crosswise = isinstance(end, int) and end >= 0 and _is_behind(start)
        is_nonempty = low == 0 or (isinstance(high, Dim) and not crosswise and _is_assumed(c, high - low))
        high = high if is_nonempty else dim_max(high, low)
        return cut(x, axis, low, high, step)
    # slice the same elements forwards, then flip
    maybe_none: dict[str, Interval] = dict.fromkeys(symbols_of(size), (0, None))
    high = dim_min(dim_max(_backwards(start, size) + 1, 1), size, maybe_none)
    low = dim_min(dim_max(_backwards(end, size) + 1, 0), high, maybe_none)
    return cut(ops.flip(cut(x, axis, low, high), (axis,)), axis, 0, high - low, -step)


def _backwards(at: DimLike, size: DimLike) -> DimLike:
    """A bound of a slice with a negative step, from the front; -1 where it lies before the front for any size."""
    low = bounds(at)[0]
    if element_symbols(at) or (not _is_behind(at) and (low is None or low < 0)):
        return _placed(at, size)
    if not _is_behind(at):
        return at
    return -1 if isinstance(at, int) and at <= -MAX_SIZE else at + size


@onnx_op("Slice")
def slice_1(c: Call) -> Result:
    starts, ends = c.int_list("starts"), c.int_list("ends")
    axes = c.int_list("axes", range(len(starts)))
    return _slice(c, starts, ends, axes, (1,) * len(starts))


@onnx_op("Slice", since=10)
def slice_(c: Call) -> Result:
    if c.value(1).sym is None and not c.importer.wish(c.x(1), exact=False):
        with suppress(Unsupported):  # it may be known at run time
            return _window(c)
    starts, ends = c.dims(1), c.dims(2)
    axes = c.ints(3) if c.has(3) else tuple(range(len(starts)))
    steps = c.ints(4) if c.has(4) else (1,) * len(starts)
    return _slice(c, starts, ends, axes, steps)


def _slice(
    c: Call, starts: Sequence[DimLike], ends: Sequence[DimLike], axes: Sequence[int], steps: Sequence[int]
) -> Node:
    x = c.x()
    for start, end, axis, step in zip(starts, ends, normal_axes(axes, c.rank()), steps, strict=True):
        if step == 0:
            raise Unsupported("a slice with step 0")
        x = slice_one(c, x, axis, start, end, step)
    return x


def _window(c: Call) -> Node:
    """x[i : i + k] with i that varies between the iterations of a loop: exactly k elements."""
    x, (start, first), (end, last) = c.x(), _offset(c.x(1)), _offset(c.x(2))
    if start is not end or c.x(1).type.size != 1 or (c.has(4) and c.ints(4) != (1,)):
        raise Unsupported(f"a slice from {c.proto.input[1]!r}, which a loop changes, but to as many elements behind it")
    axis = normal_axis(c.ints(3)[0] if c.has(3) else 0, c.rank())
    sizes = tuple(last - first if i == axis else d for i, d in enumerate(x.shape))
    begin = ops.reshape(c.x(1), ())
    begin = ops.where(ops.compare("LT", begin, 0), ops.add(begin, ops.scalar(x.shape[axis], begin.dtype)), begin)
    zero = ops.scalar(0, begin.dtype)
    return ops.DynamicSlice(sizes)(x, *(begin if i == axis else zero for i in range(len(sizes))))


def _offset(n: Node) -> tuple[Node, int]:
    """(x, k) for an integer of one element that is computed as x + k, for integral x and k, possibly in floats."""
    base, offset = n, 0
    while base.type.size == 1:
        if isinstance(base.op, ops.Reshape | ops.BroadcastInDim | ops.Convert):
            base = base.inputs[0]
            continue
        constants = [splat_of(i) for i in base.inputs]
        if isinstance(base.op, ops.Add) and _is_whole(constants[0]):
            base, offset = base.inputs[1], offset + int(constants[0])
        elif isinstance(base.op, ops.Add | ops.Sub) and _is_whole(constants[1]):
            base, offset = (
                base.inputs[0],
                offset + (int(constants[1]) if isinstance(base.op, ops.Add) else -int(constants[1])),
            )
        else:
            break
    # for x between -1 and 0, int(x + 1) is not int(x) + 1
    return (base, offset) if base.dtype.is_integer else (n, 0)


def _is_whole(value: np.generic | None) -> TypeGuard[np.generic]:
    return value is not None and float(value).is_integer()
