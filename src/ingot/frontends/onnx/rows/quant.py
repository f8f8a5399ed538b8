"""Quantized ops in plain integer and float arithmetic."""

from __future__ import annotations

import numpy as np

from ingot import ops
from ingot.frontends.onnx.call import Call, Result, normal_axis, onnx_op
from ingot.frontends.onnx.rows.common import channel_vector
from ingot.frontends.onnx.rows.elementwise import convert
from ingot.frontends.onnx.rows.nn import convolution
from ingot.frontends.onnx.tensors import Unsupported, dtype_from_code
from ingot.ir import types as T
from ingot.ir.node import Node, const
from ingot.ir.types import DType

_RANGE = {T.u8: (0, 255), T.i8: (-128, 127), T.u16: (0, 65535), T.i16: (-32768, 32767), T.u4: (0, 15), T.i4: (-8, 7)}


def _along(c: Call, p: Node, x: Node, block: int) -> Node:
    """A scale or zero point shaped to broadcast against `x`: one for all, per index of an axis, or per block."""
    if not p.shape or (len(p.shape) == 1 and p.shape[0] == 1 and not block):
        return ops.reshape(p, ())
    axis = normal_axis(c.int("axis", 1), len(x.shape))
    if block:
        spread = ops.broadcast_to(ops.expand_dims(p, axis + 1), (*p.shape[: axis + 1], block, *p.shape[axis + 1 :]))
        merged = ops.reshape(spread, (*p.shape[:axis], -1, *p.shape[axis + 1 :]))
        return ops.slice_axis(merged, axis, 0, x.shape[axis])
    return channel_vector(p, len(x.shape), axis)


def saturated(x: Node, zero: Node | None, dtype: DType, saturate: bool, scale: Node | None = None) -> Node:
    """x / scale (None: 1), rounded half to even, moved by the zero point and cut to `dtype`'s range."""
    if x.dtype == T.f32 and dtype in ops.QUANTIZED:
        step = ops.scalar(1.0) if scale is None else scale
        return ops.apply(ops.Quantize(), x, step, ops.scalar(0, dtype) if zero is None else zero)
    x = x if scale is None else ops.div(x, scale)
    if dtype.is_float:
        return convert(x, dtype, saturate)
    if dtype not in _RANGE:
        raise Unsupported(f"quantization to {dtype}")
    y = ops.RoundEven()(ops.cast(x, T.f32) if x.dtype.bits < 32 else x)
    if zero is not None:
        y = ops.add(y, ops.cast(zero, y.dtype))
    low, high = _RANGE[dtype]
    return ops.cast(ops.clip(y, float(low), float(high)), dtype)


@onnx_op("QuantizeLinear", since=10)
@onnx_op("QuantizeLinear", domain="com.microsoft")
def quantize_linear(c: Call) -> Result:
    x, scale = c.x(0), c.x(1)
    block = c.int("block_size", 0)
    code = c.int("output_dtype", 0)
    dtype = c.type(2).dtype if c.has(2) else dtype_from_code(code) if code else T.u8
    zero = _along(c, c.x(2), x, block) if c.has(2) and not dtype.is_float else None
    precision = c.int("precision", 0)
    wide = dtype_from_code(precision) if precision else x.dtype if x.dtype.is_float else scale.dtype
    step = ops.cast(_along(c, scale, x, block), wide)
    return saturated(ops.cast(x, wide), zero, dtype, c.flag("saturate", 1), step)


@onnx_op("DequantizeLinear", since=10)
@onnx_op("DequantizeLinear", domain="com.microsoft")
def dequantize_linear(c: Call) -> Result:
    x, scale = c.x(0), c.x(1)
    block = c.int("block_size", 0)
    code = c.int("output_dtype", 0)
    dtype = dtype_from_code(code) if code else scale.dtype
    wide = T.f32 if scale.dtype.bits < 32 else scale.dtype
    spread = _along(c, scale, x, block)
    if x.dtype.is_integer:
        zero = _along(c, c.x(2), x, block) if c.has(2) else ops.scalar(0, x.dtype)
        return ops.cast(ops.Dequantize()(x, zero, ops.cast(spread, wide)), dtype)
    y = ops.cast(x, wide)
    if c.has(2):
        y = ops.sub(y, ops.cast(_along(c, c.x(2), x, block), wide))
    return ops.cast(ops.mul(y, ops.cast(spread, wide)), dtype)


@onnx_op("DynamicQuantizeLinear", since=11)
def dynamic_quantize_linear(c: Call) -> Result:
    x = c.x()
    low = ops.minimum(ops.reduce_min(x), 0.0)
    high = ops.maximum(ops.reduce_max(x), 0.0)
    scale = ops.div(ops.sub(high, low), 255.0)
    # all zeros: any scale does
    safe = ops.where(ops.compare("EQ", scale, 0.0), ops.scalar(1.0, T.f32), scale)
    zero = saturated(ops.sub(0.0, ops.div(low, safe)), None, T.u8, True)
    y = saturated(x, zero, T.u8, True, safe)
    return [y, scale, zero]


def _centred(x: Node, zero: Node | None) -> Node:
    return ops.Dequantize()(x, ops.scalar(0, x.dtype) if zero is None else zero)


def _rows(p: Node | None) -> Node | None:
    """A zero point or scale per row of a matrix."""
    return p if p is None or len(p.shape) != 1 or p.shape[0] == 1 else ops.expand_dims(p, 1)


@onnx_op("MatMulInteger", since=10)
def matmul_integer(c: Call) -> Result:
    return ops.MatMul()(_centred(c.x(0), _rows(c.opt(2))), _centred(c.x(1), c.opt(3)))


@onnx_op("QLinearMatMul", since=10)
def qlinear_matmul(c: Call) -> Result:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = (c.x(i) for i in range(8))
    whole = ops.MatMul()(_centred(a, _rows(a_zero)), _centred(b, b_zero))
    scale = ops.div(ops.mul(ops.cast(_rows(a_scale) or a_scale, T.f32), ops.cast(b_scale, T.f32)),
                    ops.cast(y_scale, T.f32))
    return saturated(ops.mul(ops.cast(whole, T.f32), scale), y_zero, y_zero.dtype, True)


def _per_output(p: Node | None, rank: int) -> Node | None:
    """A filter's zero point or scale: one, or one per output channel."""
    return p if p is None or p.type.size == 1 else ops.reshape(p, (-1, *(1,) * (rank - 1)))


def _scalar(p: Node | None) -> Node | None:
    return p if p is None else ops.reshape(p, ())


@onnx_op("ConvInteger", since=10)
def conv_integer(c: Call) -> Result:
    x, w = c.x(0), c.x(1)
    zero = _per_output(c.opt(3), len(w.shape))
    zero = _scalar(zero) if zero is not None and zero.type.size == 1 else zero
    return convolution(c, _centred(x, _scalar(c.opt(2))), _centred(w, zero))


@onnx_op("QLinearConv", since=10)
def qlinear_conv(c: Call) -> Result:
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = (c.x(i) for i in range(8))
    rank = len(x.shape)
    w_zero_ = _scalar(w_zero) if w_zero.type.size == 1 else _per_output(w_zero, rank)
    whole = convolution(c, _centred(x, _scalar(x_zero)), _centred(w, w_zero_))
    if c.has(8):
        whole = ops.add(whole, channel_vector(c.x(8), rank))
    per_channel = ops.reshape(w_scale, ()) if w_scale.type.size == 1 else channel_vector(w_scale, rank)
    scale = ops.div(ops.mul(ops.reshape(x_scale, ()), per_channel), ops.reshape(y_scale, ()))
    return saturated(ops.mul(ops.cast(whole, T.f32), scale), ops.reshape(y_zero, ()), y_zero.dtype, True)


@onnx_op("MatMulNBits", domain="com.microsoft")
def matmul_nbits(c: Call) -> Result:
    """x [.., K] times a constant 4- or 8-bit matrix [N, K], stored in blocks along K with a scale each."""
    bits, block, k, n = c.int("bits", 4), c.int("block_size"), c.int("K"), c.int("N")
    if bits not in (4, 8) or c.has(4):
        raise Unsupported(f"{bits}-bit blocks" if bits not in (4, 8) else "a permutation of the rows")
    blocks = -(-k // block)
    packed = c.array(1).reshape(n, blocks, -1)
    levels = np.stack([packed & 15, packed >> 4], -1).reshape(n, blocks, -1) if bits == 4 else packed
    scales = c.array(2).reshape(n, blocks, 1).astype(np.float32)
    zeros = np.full((n, blocks, 1), 1 << (bits - 1), np.float32)
    if c.has(3):
        given = c.array(3)
        if given.dtype == np.uint8 and bits == 4:
            pairs = given.reshape(n, -1)
            zeros = np.stack([pairs & 15, pairs >> 4], -1).reshape(n, -1)[:, :blocks, None].astype(np.float32)
        else:
            zeros = given.reshape(n, blocks, 1).astype(np.float32)
    weight = ((levels[..., :block].astype(np.float32) - zeros) * scales).reshape(n, -1)[:, :k]
    x = c.x(0)
    w = ops.cast(const(np.ascontiguousarray(weight)), x.dtype)
    y = ops.linear(x, w)
    return ops.add(y, c.x(5)) if c.has(5) else y

