"""Arithmetic, comparisons, pools and reductions of levels."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ingot import ops
from ingot.frontends.shared import bodies
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.tflite import tables
from ingot.frontends.tflite.call import Call, Table
from ingot.frontends.tflite.fixed_point import Multiplier, fixed, multiplied, multiplied_wide, rounded_shift
from ingot.frontends.tflite.levels import activation_range, centered, round_away, saturated
from ingot.frontends.tflite.rows import reduce, window
from ingot.frontends.tflite.rows.elementwise import compared
from ingot.ir import types as T
from ingot.ir.dims import product
from ingot.ir.node import Node, const

on_levels = Table()
_MAX_TAPS = 1 << 20  # of a resized axis


def finished(c: Call, y: Node) -> Node:
    """i32 steps from the result's zero as its levels, clamped by the fused activation."""
    result_levels = c.out_levels()
    low, high = activation_range(c.int("activation"), result_levels, c.type())
    return saturated(ops.add(y, result_levels.zero), c.type(), low, high)


@on_levels("ADD", "SUB")
def add(c: Call) -> Node:
    """Both are rescaled to a common scale with 20 more bits (15 for 16-bit levels), and then to the result's."""
    combine = ops.add if c.op.name == "ADD" else ops.sub
    scales = [c.levels(0).scale, c.levels(1).scale, c.out_levels().scale]
    wide = c.type() == T.i16
    if wide and c.op.options.get("pot_scale_int16", True) and all(math.frexp(s)[0] == 0.5 for s in scales):
        return _by_powers(c, [math.frexp(s)[1] for s in scales])
    left_shift = 15 if wide else 20
    common = 2 * max(scales[:2])
    parts = [
        multiplied(ops.mul(centered(c.x(i), c.levels(i)), 1 << left_shift), Multiplier.of(scales[i] / common))
        for i in range(2)
    ]
    by = Multiplier.of(common / ((1 << left_shift) * scales[2]))
    return finished(c, multiplied(combine(parts[0], parts[1]), by))


def _by_powers(c: Call, exponents: list[int]) -> Node:
    """A sum with scales that are powers of two: shifts, and saturation."""
    shifts = [exponents[2] - e for e in exponents[:2]]
    if min(shifts) < 0 or 0 not in shifts or c.op.name != "ADD":
        raise Unsupported("16-bit levels whose scales are powers of two that do not fit")
    parts = [ops.cast(rounded_shift(ops.cast(c.x(i), T.i64), [s]), T.i32) for i, s in enumerate(shifts)]
    low, high = activation_range(c.int("activation"), c.out_levels(), T.i16)
    return saturated(ops.add(parts[0], parts[1]), T.i16, low, high)


@on_levels("MUL")
def mul(c: Call) -> Node:
    a, b = (centered(c.x(i), c.levels(i)) for i in range(2))
    by = Multiplier.of(c.levels(0).scale * c.levels(1).scale / c.out_levels().scale)
    return finished(c, multiplied(ops.mul(a, b), by))


@on_levels("DIV")
def div(c: Call) -> Node:
    """A table of all pairs. Division by 0, which the kernel leaves undefined, gives the greatest or the least level."""
    dividend, by, result_levels, dtype = c.levels(0), c.levels(1), c.out_levels(), c.type()
    if dtype.bits != 8 or c.x(0).dtype != dtype or c.x(1).dtype != dtype:
        raise Unsupported(f"of {c.x(0).dtype} by {c.x(1).dtype} to {dtype}")
    a, b = tables.levels_of(dtype)[:, None] - dividend.zero, tables.levels_of(dtype)[None, :] - by.zero
    scale = dividend.scale / (by.scale * result_levels.scale)
    steps = np.where(b == 0, np.sign(a) << 16, tables.quotient(a, np.where(b == 0, 1, b), scale))
    low, high = activation_range(c.int("activation"), result_levels, dtype)
    table = np.clip(steps + result_levels.zero, low, high).astype(dtype.numpy).reshape(-1)
    lhs, right = (ops.sub(ops.cast(x, T.i32), dtype.range[0]) for x in (c.x(0), c.x(1)))
    return ops.Take(0)(const(table), ops.add(ops.mul(lhs, 256), right))


@on_levels("SQUARED_DIFFERENCE")
def squared_difference(c: Call) -> Node:
    """Both are rescaled to a common scale with 7 more bits."""
    if c.type() != T.i8:
        raise Unsupported(f"of {c.type()}")
    left_shift, scales, result_levels = 7, [c.levels(i).scale for i in range(2)], c.out_levels()
    common = 2 * max(scales)
    parts = [
        multiplied(ops.mul(centered(c.x(i), c.levels(i)), 1 << left_shift), Multiplier.of(scales[i] / common))
        for i in range(2)
    ]
    difference = ops.sub(parts[0], parts[1])
    y = multiplied(
        ops.mul(difference, difference), Multiplier.of(common * common / ((1 << 2 * left_shift) * result_levels.scale))
    )
    return saturated(ops.add(y, result_levels.zero), T.i8)


@on_levels("NEG")
def negative(c: Call) -> Node:
    """The kernel negates levels, for zeros of 0; in 8 or 16 bits, where the least level is its own negative."""
    same_scales(c, (0,))
    if c.levels().zero:
        raise Unsupported("of levels whose zero is not 0")
    return ops.Neg()(c.x())


@on_levels("MAXIMUM", "MINIMUM")
def extreme(c: Call) -> Node:
    same_scales(c, (0, 1))
    return (ops.maximum if c.op.name == "MAXIMUM" else ops.minimum)(c.x(0), c.x(1))


def same_scales(c: Call, operands: tuple[int, ...]) -> None:
    """Raise Unsupported unless these operands' levels are the result's."""
    result_levels = c.out_levels()
    for i in operands:
        levels = c.levels(i)
        if (levels.scales, levels.zeros) != (result_levels.scales, result_levels.zeros):
            raise Unsupported("of levels with several scales")


@on_levels("EQUAL", "NOT_EQUAL", "LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL")
def comparison(c: Call) -> Node:
    """Both in units of 1/256."""
    parts = [
        multiplied(ops.mul(centered(c.x(i), c.levels(i)), 1 << 8), Multiplier.of(c.levels(i).scale)) for i in range(2)
    ]
    return compared(c, *parts)


@on_levels("RELU", "RELU6", "RELU_N1_TO_1", "RELU_0_TO_1")
def relu(c: Call) -> Node:
    levels, result_levels = c.levels(), c.out_levels()
    y = ops.add(
        multiplied(centered(c.x(), levels), Multiplier.of(levels.scale / result_levels.scale)), result_levels.zero
    )
    low, high = {"RELU": (0, None), "RELU6": (0, 6), "RELU_N1_TO_1": (-1, 1), "RELU_0_TO_1": (0, 1)}[c.op.name]
    ends = [
        None
        if end is None
        else result_levels.zero + round_away(float(np.float32(end) / np.float32(result_levels.scale)))
        for end in (low, high)
    ]
    return saturated(y, c.type(), *ends)


@on_levels("LEAKY_RELU")
def leaky_relu(c: Call) -> Node:
    levels, result_levels, x = c.levels(), c.out_levels(), centered(c.x(), c.levels())
    alpha = float(np.float32(c.float("alpha")))
    positive, negative = (
        multiplied(x, Multiplier.of(s))
        for s in (levels.scale / result_levels.scale, levels.scale * alpha / result_levels.scale)
    )
    return finished(c, ops.where(ops.compare("GE", x, 0), positive, negative))


@on_levels("PRELU")
def prelu(c: Call) -> Node:
    x, alpha = ops.promote(centered(c.x(0), c.levels(0)), centered(c.x(1), c.levels(1)))
    scale, result_scale = c.levels().scale, c.out_levels().scale
    positive = multiplied(x, Multiplier.of(scale / result_scale))
    negative = multiplied(ops.mul(x, alpha), Multiplier.of(scale * c.levels(1).scale / result_scale))
    return finished(c, ops.where(ops.compare("GE", x, 0), positive, negative))


@on_levels("CONCATENATION")
def concatenation(c: Call) -> Node:
    result_levels = c.out_levels()
    parts: list[Node] = []
    for i, x in enumerate(c.xs()):
        levels = c.levels(i)
        if (levels.scale, levels.zero) == (result_levels.scale, result_levels.zero):
            parts.append(x)
        elif c.type() == T.u8:
            # in f32, as in the kernel
            factor = np.float32(levels.scale) * (np.float32(1) / np.float32(result_levels.scale))
            y = ops.add(ops.mul(ops.cast(x, T.f32), const(factor)), const(np.float32(-levels.zero) * factor))
            parts.append(saturated(ops.add(ops.cast(ops.RoundAway()(y), T.i32), result_levels.zero), T.u8))
        else:
            raise Unsupported("of levels with several scales")
    return ops.concat(parts, c.int("axis"))


@on_levels("AVERAGE_POOL_2D")
def average_pool(c: Call) -> Node:
    """Integer division of the sums of levels, ties away from zero."""
    w, kernel = window.pool_window(c)
    x = ops.cast(c.x(), T.i32)
    total, count = window.fold(c, "sum", x, w, kernel), window.counts(c, x, w, kernel)
    low, high = activation_range(c.int("activation"), c.out_levels(), c.type())
    return saturated(quotient(total, count), c.type(), low, high)


def quotient(total: Node, count: Node) -> Node:
    half = ops.div(count, 2)
    rounding = ops.where(ops.compare("GT", total, 0), half, ops.Neg()(half))
    return ops.div(ops.add(total, rounding), count)


@on_levels("MAX_POOL_2D")
def max_pool(c: Call) -> Node:
    x, (w, kernel) = c.x(), window.pool_window(c)
    low, high = activation_range(c.int("activation"), c.out_levels(), c.type())
    return saturated(window.fold(c, "max", x, w, kernel, x.dtype.range[0]), c.type(), low, high)


@on_levels("REDUCE_MAX", "REDUCE_MIN")
def reduce_extreme(c: Call) -> Node:
    same_scales(c, (0,))
    return ops.reduce(c.op.name.removeprefix("REDUCE_").lower(), c.x(), reduce.axes(c), c.flag("keep_dims"))


@on_levels("MEAN", "SUM")
def mean(c: Call) -> Node:
    """A sum in integers; a mean's divisor is folded into the scale."""
    levels, result_levels, axes = c.levels(), c.out_levels(), reduce.axes(c)
    total = ops.reduce_sum(centered(c.x(), levels), axes, c.flag("keep_dims"))
    m, shift = fixed(levels.scale / result_levels.scale)
    if c.op.name == "MEAN":
        count = product(c.x().shape[a] for a in axes)
        if not isinstance(count, int) or count < 1:
            raise Unsupported(f"a mean of {count} levels")
        extra_bits = min(count.bit_length() - 1, 32, 31 + shift)
        m, shift = (m << extra_bits) // count, shift - extra_bits
    return saturated(ops.add(multiplied(total, Multiplier((m,), (shift,))), result_levels.zero), c.type())


@on_levels("REDUCE_PROD")
def product_of_levels(c: Call) -> Node:
    """One factor after the other; each partial product is scaled by its share of the total scale."""
    levels, result_levels, axes, x = c.levels(), c.out_levels(), reduce.axes(c), c.x()
    kept_axes = tuple(a for a in range(x.type.rank) if a not in axes)
    count, shape = product(x.shape[a] for a in axes), tuple(x.shape[a] for a in kept_axes)
    if not isinstance(count, int) or count < 1:
        raise Unsupported(f"a product of {count} levels")
    by = Multiplier.of(levels.scale / result_levels.scale ** (1 / count))
    rows = ops.reshape(ops.transpose(centered(x, levels), (*axes, *kept_axes)), (count, *shape))

    def body(values: Sequence[Node]) -> tuple[Node, ...]:
        i, total, factors = values
        factor = ops.Take(0)(factors, i)
        scaled_product = multiplied_wide(ops.mul(ops.cast(total, T.i64), ops.cast(factor, T.i64)), by)
        return ops.add(i, 1), scaled_product, factors

    start = (ops.scalar(1, T.i32), ops.index_axis(rows, 0, 0), rows)
    total = bodies.loop(c.importer.computed_sizes, start, lambda v: ops.compare("LT", v[0], count), body, c.loc)[1]
    y = saturated(ops.add(multiplied_wide(ops.cast(total, T.i64), by), result_levels.zero), c.type())
    return ops.reshape(y, tuple(1 if a in axes else d for a, d in enumerate(x.shape))) if c.flag("keep_dims") else y


@on_levels("RESIZE_BILINEAR")
def resize_bilinear(c: Call) -> Node:
    """Linear resizing of signed levels with 10-bit weights."""
    x, sizes = c.x(), c.ints(1)
    if x.dtype == T.u8:
        raise Unsupported(f"of {x.dtype}")
    same_scales(c, (0,))
    wide = T.i32 if x.dtype == T.i8 else T.i64
    y = ops.cast(x, wide)
    for axis, size in zip((1, 2), sizes, strict=True):
        n = x.shape[axis]
        if not isinstance(n, int) or not 0 < size <= _MAX_TAPS:
            raise Unsupported(f"from a size {n} to {size}")
        low, high, weight = _taps(c, n, size)
        shape = [-1 if a == axis else 1 for a in range(4)]
        upper_weight = const(weight.reshape(shape).astype(wide.numpy))
        low_values, high_values = (ops.Take(axis)(y, const(v)) for v in (low, high))
        y = ops.add(ops.mul(low_values, ops.sub(1 << 10, upper_weight)), ops.mul(high_values, upper_weight))
    half = ops.where(ops.compare("GT", y, 0), ops.full(y.shape, 1 << 19, wide), ops.full(y.shape, -(1 << 19), wide))
    return ops.cast(ops.div(ops.add(y, half), 1 << 20), x.dtype)


def _taps(c: Call, n: int, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each output position, the indices of the elements below and above, and the latter's weight in 1/1024."""
    corners = c.flag("align_corners") and size > 1
    source_span, parts = (n - 1, size - 1) if corners else (n, size)
    step = ((1 << 10) * source_span + parts // 2) // parts
    at = np.arange(size, dtype=np.int32) * step
    if c.flag("half_pixel_centers"):
        at = at + step // 2 - (1 << 9)
    low = np.maximum(np.trunc(at / 1024), 0).astype(np.int32)
    high = np.minimum(np.trunc((at + 1023) / 1024), n - 1).astype(np.int32)
    return low, high, (at - 1024 * low).astype(np.int32)
