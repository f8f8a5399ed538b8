"""Products of levels: sums in integers, rescaled to the result's scale as the reference kernels do."""

from __future__ import annotations

from dataclasses import replace

from ingot import ops
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.tflite.call import Call, Table
from ingot.frontends.tflite.fixed_point import Multiplier, multiplied, multiplied_wide
from ingot.frontends.tflite.levels import activation_range, centered, saturated
from ingot.frontends.tflite.rows import contraction, window
from ingot.ir import types as T
from ingot.ir.node import Node

on_levels = Table()


def weights(c: Call, i: int) -> Node:
    """q - zero of operand `i`, i32."""
    q = c.levels(i)
    if len(q.zeros) > 1 and any(q.zeros):
        raise Unsupported("zeros for each channel")
    return centered(c.x(i), replace(q, zeros=q.zeros[:1]))


def sums(c: Call, product: Node, bias: int | None) -> Node:
    """A product, with the bias of operand `bias`; of i64 where x has 16 bits and the bias is not of 32."""
    if bias is None or not c.has(bias):
        return product
    return ops.add(product, ops.cast(c.x(bias), product.dtype))


def is_wide(c: Call, i: int, bias: int) -> bool:
    """Whether sums are i64: of values of 16 bits, unless a bias of 32 says otherwise."""
    return c.x(i).dtype == T.i16 and not (c.has(bias) and c.x(bias).dtype == T.i32)


def scaled(c: Call, total: Node, scales: tuple[int, int], is_rounded_once: bool = False) -> Node:
    """Sums of products of operands `scales` (values, weights) as the result's levels."""
    x, w, result_levels = c.levels(scales[0]), c.levels(scales[1]), c.out_levels()
    by = Multiplier.of(*(x.scale * s / result_levels.scale for s in w.scales))
    y = (
        multiplied_wide(total, by)
        if total.dtype == T.i64 and not is_rounded_once
        else multiplied(total, by, is_rounded_once)
    )
    low, high = activation_range(c.int("activation"), result_levels, c.type())
    return saturated(ops.add(y, result_levels.zero), c.type(), low, high)


def operands(c: Call, x: int, w: int, bias: int) -> tuple[Node, Node]:
    dtype = T.i64 if is_wide(c, x, bias) else T.i32
    return ops.cast(centered(c.x(x), c.levels(x)), dtype), ops.cast(weights(c, w), dtype)


@on_levels("CONV_2D")
def conv_2d(c: Call) -> Node:
    x, kernel = operands(c, 0, 1, 2)
    y = window.convolve(c, x, kernel, window.spatial_window(c), "OHWI", window.groups_of(x, kernel))
    return scaled(c, sums(c, y, 2), (0, 1))


@on_levels("DEPTHWISE_CONV_2D")
def depthwise_conv_2d(c: Call) -> Node:
    x, kernel = operands(c, 0, 1, 2)
    y = window.convolve(c, x, kernel, window.spatial_window(c), "IHWO", window.channels(x))
    return scaled(c, sums(c, y, 2), (0, 1))


@on_levels("TRANSPOSE_CONV")
def transpose_conv(c: Call) -> Node:
    x, kernel = operands(c, 2, 1, 3)
    return scaled(c, sums(c, window.transposed(c, x, kernel, c.dims(0)[1:3]), 3), (2, 1))


@on_levels("FULLY_CONNECTED")
def fully_connected(c: Call) -> Node:
    x, kernel = operands(c, 0, 1, 2)
    k = kernel.shape[1]
    y = ops.linear(ops.reshape(x, (-1, k)), kernel)
    # a single scale for all weights is applied with one rounding, and so are scales of 64-bit sums
    is_rounded_once = len(c.levels(1).scales) == 1 or y.dtype == T.i64
    return contraction.unflattened(c, scaled(c, sums(c, y, 2), (0, 1), is_rounded_once))


@on_levels("BATCH_MATMUL")
def batch_matmul(c: Call) -> Node:
    operands = contraction.sides(c)
    wide = operands[0].dtype == T.i16
    a, b = (ops.cast(centered(x, c.levels(i)), T.i64 if wide else T.i32) for i, x in enumerate(operands))
    return scaled(c, ops.MatMul()(a, b), (0, 1))
