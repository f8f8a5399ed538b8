"""Slice: bounds that count from either end, are clamped, or depend on sizes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TypeGuard

import numpy as np

from ingot import ops
from ingot.frontends.onnx.call import Call, Result, normal_axes, normal_axis, onnx_op
from ingot.frontends.onnx.rows.common import cut
from ingot.frontends.onnx.wishes import told_symbols
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

# an end as large stands for all there is: no axis is longer, and that is checked
_OPEN_END = 10**9


def _placed(at: DimLike, size: DimLike) -> DimLike:
    """A place on an axis from its front, where data tells whether it is counted from there."""
    return at + sign_bit(at) * size


def _start(c: Call, at: DimLike, size: DimLike) -> DimLike:
    """A slice's start as 0 <= at <= size."""
    if _is_either(c, at):
        return dim_min(dim_max(_placed(at, size), 0), size)
    start = _from_end(at, size)
    return dim_min(dim_max(start, 0) if _is_behind(at) else start, size)


def _is_behind(at: DimLike) -> bool:
    """Whether a place is counted from an axis's end."""
    hi = bounds(at)[1]
    return hi is not None and hi < 0


def _is_either(c: Call, at: DimLike) -> bool:
    """Whether a place may be counted from an axis's front or from its end. Exporters write `table[512 - n:]` for what
    is not negative, so that becomes a bound of the symbol where one can be found."""
    low = bounds(at)[0]
    return not _is_behind(at) and (low is None or low < 0) and not c.importer.assume(at)


def _from_end(at: DimLike, size: DimLike) -> DimLike:
    """A place from an axis's front: `at` itself, if it is none from the end."""
    return at + size if _is_behind(at) else at


def _is_assumed(c: Call, size: DimLike) -> bool:
    """Whether `size` >= 0 becomes a bound of its symbol. One that may be 0 as the caller says, or that the run finds,
    stays so."""
    limits = c.importer.limits
    narrower = narrow_bounds(size, limits) or {}
    keeps_bounds = all(
        low == 0 for name, (low, _) in narrower.items() if (limits.get(name) or default_bounds(name))[0] == 0
    )
    return keeps_bounds and c.importer.assume(size)


def _end(c: Call, at: DimLike, size: DimLike) -> DimLike:
    """A slice's end as 0 <= at <= size.

    x[:, :length] of a table with 512 columns has min(length, 512) of them, and x[:-k] max(size - k, 0): neither would
    meet what has `length` or `size - k` elements. Exporters write them for lengths that fit, so that is recorded as a
    bound of the symbol where one can be found.
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
    if step > 0 and (told_symbols(start) or told_symbols(end)):
        low, high = (dim_min(dim_max(_placed(at, size), 0), size) for at in (start, end))
        return cut(x, axis, low, dim_max(high, low), step)
    if step > 0:
        low = _start(c, start, size)
        high = _end(c, end, size)
        # ends are there to meet what is shorter by as much: no empty slice, but where they are counted crosswise
        crosswise = isinstance(end, int) and end >= 0 and _is_behind(start)
        meets = low == 0 or (isinstance(high, Dim) and not crosswise and _is_assumed(c, high - low))
        high = high if meets else dim_max(high, low)
        return cut(x, axis, low, high, step)
    # the same elements forwards, then from their other end
    maybe_none: dict[str, Interval] = dict.fromkeys(symbols_of(size), (0, None))
    high = dim_min(dim_max(_backwards(start, size) + 1, 1), size, maybe_none)
    low = dim_min(dim_max(_backwards(end, size) + 1, 0), high, maybe_none)
    return cut(ops.flip(cut(x, axis, low, high, 1), (axis,)), axis, 0, high - low, -step)


def _backwards(at: DimLike, size: DimLike) -> DimLike:
    """A bound of a slice that goes backwards, from the front; -1 where it is in front of an axis of any size."""
    low = bounds(at)[0]
    if told_symbols(at) or (not _is_behind(at) and (low is None or low < 0)):
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
        with suppress(Unsupported):  # the run may find where it is
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
    """x[i : i + k] where each iteration of a loop has another i: k elements, which have to be there."""
    x, (start, first), (end, last) = c.x(), _offset(c.x(1)), _offset(c.x(2))
    if start is not end or c.x(1).type.size != 1 or (c.has(4) and c.ints(4) != (1,)):
        raise Unsupported(f"a slice from {c.proto.input[1]!r}, which a loop changes, but to as many elements behind it")
    axis = normal_axis(c.ints(3)[0] if c.has(3) else 0, c.rank())
    sizes = tuple(last - first if i == axis else d for i, d in enumerate(x.shape))
    at = ops.reshape(c.x(1), ())
    at = ops.where(ops.compare("LT", at, 0), ops.add(at, ops.scalar(x.shape[axis], at.dtype)), at)
    zero = ops.scalar(0, at.dtype)
    return ops.DynamicSlice(sizes)(x, *(at if i == axis else zero for i in range(len(sizes))))


def _offset(n: Node) -> tuple[Node, int]:
    """(x, k) for an integer of one element that is computed as x + k, of whole numbers x and k, also in floats."""
    at, offset = n, 0
    while at.type.size == 1:
        if isinstance(at.op, ops.Reshape | ops.BroadcastInDim | ops.Convert):
            at = at.inputs[0]
            continue
        known = [splat_of(i) for i in at.inputs]
        if isinstance(at.op, ops.Add) and _is_whole(known[0]):
            at, offset = at.inputs[1], offset + int(known[0])
        elif isinstance(at.op, ops.Add | ops.Sub) and _is_whole(known[1]):
            at, offset = at.inputs[0], offset + (int(known[1]) if isinstance(at.op, ops.Add) else -int(known[1]))
        else:
            break
    # int(x + 1) is not int(x) + 1 for x between -1 and 0
    return (at, offset) if at.dtype.is_integer else (n, 0)


def _is_whole(value: np.generic | None) -> TypeGuard[np.generic]:
    return value is not None and float(value).is_integer()
