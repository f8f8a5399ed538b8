"""Quantized ops in plain integer and float arithmetic. Those of com.microsoft: quant_contrib.py."""

from __future__ import annotations

from ingot import ops
from ingot.frontends.onnx.call import Call, Result, normal_axis, onnx_op
from ingot.frontends.onnx.rows.common import channel_vector
from ingot.frontends.onnx.rows.elementwise import convert
from ingot.frontends.onnx.rows.nn import convolution
from ingot.frontends.onnx.tensors import dtype_from_code
from ingot.frontends.shared.refusal import Unsupported
from ingot.ir import types as T
from ingot.ir.node import Node
from ingot.ir.types import DType


def _broadcast_along(c: Call, p: Node, x: Node, block: int) -> Node:
    """A scale or zero point shaped to broadcast against `x`: per tensor, per index of an axis, or per block."""
    if not p.shape or (len(p.shape) == 1 and p.shape[0] == 1 and not block):
        return ops.reshape(p, ())
    axis = normal_axis(c.int("axis", 1), len(x.shape))
    if block:
        repeated = ops.broadcast_to(ops.expand_dims(p, axis + 1), (*p.shape[: axis + 1], block, *p.shape[axis + 1 :]))
        merged = ops.reshape(repeated, (*p.shape[:axis], -1, *p.shape[axis + 1 :]))
        return ops.slice_axis(merged, axis, 0, x.shape[axis])
    return channel_vector(p, len(x.shape), axis)


def saturated(x: Node, zero: Node | None, dtype: DType, saturate: bool, scale: Node | None = None) -> Node:
    """x / scale (None: 1), rounded half to even, shifted by the zero point and clamped to `dtype`'s range."""
    if x.dtype == T.f32 and dtype in ops.QUANTIZED_DTYPES:
        step = ops.scalar(1.0) if scale is None else scale
        return ops.quantize(x, step, ops.scalar(0, dtype) if zero is None else zero)
    x = x if scale is None else ops.div(x, scale)
    if dtype.is_float:
        return convert(x, dtype, saturate)
    if not dtype.is_integer or dtype.bits > 16:
        raise Unsupported(f"quantization to {dtype}")
    y = ops.RoundEven()(ops.cast(x, T.f32) if x.dtype.bits < 32 else x)
    if zero is not None:
        y = ops.add(y, ops.cast(zero, y.dtype))
    low, high = dtype.range
    return ops.cast(ops.clip(y, float(low), float(high)), dtype)


@onnx_op("QuantizeLinear", since=10)
@onnx_op("QuantizeLinear", domain="com.microsoft")
def quantize_linear(c: Call) -> Result:
    x, scale = c.x(0), c.x(1)
    block = c.int("block_size", 0)
    code = c.int("output_dtype", 0)
    dtype = c.type(2).dtype if c.has(2) else dtype_from_code(code) if code else T.u8
    zero = _broadcast_along(c, c.x(2), x, block) if c.has(2) and not dtype.is_float else None
    precision = c.int("precision", 0)
    wide = dtype_from_code(precision) if precision else x.dtype if x.dtype.is_float else scale.dtype
    step = ops.cast(_broadcast_along(c, scale, x, block), wide)
    return saturated(ops.cast(x, wide), zero, dtype, c.flag("saturate", 1), step)


@onnx_op("DequantizeLinear", since=10)
@onnx_op("DequantizeLinear", domain="com.microsoft")
def dequantize_linear(c: Call) -> Result:
    x, scale = c.x(0), c.x(1)
    block = c.int("block_size", 0)
    code = c.int("output_dtype", 0)
    dtype = dtype_from_code(code) if code else scale.dtype
    wide = T.f32 if scale.dtype.bits < 32 else scale.dtype
    axis = normal_axis(c.int("axis", 1), len(x.shape)) if block else 0
    if block and x.dtype.is_integer and scale.shape[axis] * block == x.shape[axis]:
        # blocks as a dimension of their own, so that a matrix of few bits stays one
        zero = ops.expand_dims(c.x(2), axis + 1) if c.has(2) else ops.scalar(0, x.dtype)
        levels = ops.reshape(x, (*scale.shape[: axis + 1], block, *x.shape[axis + 1 :]))
        y = ops.Dequantize()(levels, zero, ops.cast(ops.expand_dims(scale, axis + 1), wide))
        return ops.cast(ops.reshape(y, x.shape), dtype)
    step = _broadcast_along(c, scale, x, block)
    zero = _broadcast_along(c, c.x(2), x, block) if c.has(2) else ops.scalar(0, x.dtype)
    return ops.cast(ops.Dequantize()(x, zero, ops.cast(step, wide)), dtype)


@onnx_op("DynamicQuantizeLinear", since=11)
def dynamic_quantize_linear(c: Call) -> Result:
    return list(ops.dynamic_quantize(c.x()))


def centered(x: Node, zero: Node | None) -> Node:
    """x - zero in i32."""
    return ops.Dequantize()(x, ops.scalar(0, x.dtype) if zero is None else zero)


def _rows(p: Node) -> Node:
    """A zero point or scale per row of a matrix."""
    return p if len(p.shape) != 1 or p.shape[0] == 1 else ops.expand_dims(p, 1)


@onnx_op("MatMulInteger", since=10)
def matmul_integer(c: Call) -> Result:
    return ops.MatMul()(centered(c.x(0), _rows(c.x(2)) if c.has(2) else None), centered(c.x(1), c.opt(3)))


def scales_product(a: Node, b: Node) -> Node:
    return ops.mul(ops.cast(a, T.f32), ops.cast(b, T.f32))


def requantized(sums: Node, scale: Node, y_scale: Node, y_zero: Node) -> Node:
    """Sums of products in units of `scale`, quantized to a result's levels."""
    ratio = ops.div(scale, ops.cast(y_scale, T.f32))
    return saturated(ops.mul(ops.cast(sums, T.f32), ratio), y_zero, y_zero.dtype, True)


@onnx_op("QLinearMatMul", since=10)
def qlinear_matmul(c: Call) -> Result:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = (c.x(i) for i in range(8))
    sums = ops.MatMul()(centered(a, _rows(a_zero)), centered(b, b_zero))
    return requantized(sums, scales_product(_rows(a_scale), b_scale), y_scale, y_zero)


def _per_output(p: Node, rank: int) -> Node:
    """A filter's zero point or scale: one, or one per output channel."""
    return ops.reshape(p, () if p.type.size == 1 else (-1, *(1,) * (rank - 1)))


def _convolved(c: Call, x: Node, x_zero: Node | None, w: Node, w_zero: Node | None) -> Node:
    """The convolution's sums in i32; x has a single zero point."""
    x_zero_scalar = None if x_zero is None else ops.reshape(x_zero, ())
    return convolution(
        c, centered(x, x_zero_scalar), centered(w, None if w_zero is None else _per_output(w_zero, len(w.shape)))
    )


@onnx_op("ConvInteger", since=10)
def conv_integer(c: Call) -> Result:
    return _convolved(c, c.x(0), c.opt(2), c.x(1), c.opt(3))


@onnx_op("QLinearConv", since=10)
@onnx_op("QLinearConv", domain="com.microsoft")
def qlinear_conv(c: Call) -> Result:
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = (c.x(i) for i in range(8))
    last, rank = c.flag("channels_last"), len(x.shape)
    sums = _convolved(c, channels_second(x) if last else x, x_zero, w, w_zero)
    if c.has(8):
        sums = ops.add(sums, channel_vector(c.x(8), rank))
    per_channel = ops.reshape(w_scale, ()) if w_scale.type.size == 1 else channel_vector(w_scale, rank)
    scale = scales_product(ops.reshape(x_scale, ()), per_channel)
    y = requantized(sums, scale, ops.reshape(y_scale, ()), ops.reshape(y_zero, ()))
    return channels_last(y) if last else y


def channels_second(x: Node) -> Node:
    return ops.transpose(x, (0, len(x.shape) - 1, *range(1, len(x.shape) - 1)))


def channels_last(x: Node) -> Node:
    return ops.transpose(x, (0, *range(2, len(x.shape)), 1))


@onnx_op("BipolarQuant", domain="onnx.brevitas")
@onnx_op("BipolarQuant", domain="qonnx.custom_op.general")
@onnx_op("BipolarQuant", domain="finn.custom_op.general")
def bipolar_quant(c: Call) -> Result:
    """QONNX's quantization to two levels: scale where x / scale >= 0, else -scale (Pappalardo et al. 2022)."""
    x, scale = c.x(0), c.x(1)
    signs = ops.where(ops.compare("GE", ops.div(x, scale), 0.0), 1.0, -1.0)
    return ops.mul(ops.cast(signs, x.dtype), scale)
