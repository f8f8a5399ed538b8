"""Quantized ops of com.microsoft, as onnxruntime.quantization writes them, computed on dequantized values."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ingot import ops
from ingot.frontends.onnx.call import Call, Result, Value, find_row, onnx_op, register
from ingot.frontends.onnx.rows.attention import self_attention
from ingot.frontends.onnx.rows.common import ints_of
from ingot.frontends.onnx.rows.quant import (
    centered,
    channels_last,
    channels_second,
    requantized,
    saturated,
    scales_product,
)
from ingot.frontends.shared.levels import unpacked
from ingot.frontends.shared.refusal import Unsupported
from ingot.ir import types as T
from ingot.ir.node import Node, const, deferred_const

MS = "com.microsoft"

# ops computed by the row of a float op, as of opset 13
_FLOAT_OPS = {
    "QLinearAdd": "Add", "QLinearAveragePool": "AveragePool", "QLinearGlobalAveragePool": "GlobalAveragePool",
    "QLinearLeakyRelu": "LeakyRelu", "QLinearMul": "Mul", "QLinearReduceMean": "ReduceMean",
    "QLinearSigmoid": "Sigmoid", "QLinearSoftmax": "Softmax",
}  # fmt: skip


def _stands_for(c: Call, i: int) -> Node:
    """The dequantized input `i`; its scale and zero point follow it."""
    x = c.x(i)
    zero = ops.reshape(c.x(i + 2), ()) if c.has(i + 2) else ops.scalar(0, x.dtype)
    return ops.Dequantize()(x, zero, ops.reshape(c.x(i + 1), ()))


def _levels(c: Call, y: Node, i: int, dtype: T.DType) -> Node:
    """`y` quantized by the scale and the zero point at inputs `i` and `i` + 1."""
    zero = ops.reshape(c.x(i + 1), ()) if c.has(i + 1) else None
    return saturated(y, zero, dtype, True, ops.reshape(c.x(i), ()))


def _by_float_op(c: Call, name: str) -> Result:
    """x, scale, zero for each operand, then a scale and a zero for the result."""
    row = find_row("", name, c.int("opset", 13))
    assert row is not None
    count = (len(c) - 1) // 3
    operands = [_stands_for(c, 3 * i) for i in range(count)]
    last = c.flag("channels_last")
    y = row(replace(c, inputs=tuple(Value(channels_second(x) if last else x) for x in operands)))
    assert isinstance(y, Node)
    return _levels(c, channels_last(y) if last else y, 3 * count, c.type().dtype)


for _name, _op in _FLOAT_OPS.items():
    register(_name, lambda c, op=_op: _by_float_op(c, op), domain=MS)


@onnx_op("QLinearConcat", domain=MS)
def qlinear_concat(c: Call) -> Result:
    parts = [_stands_for(c, i) for i in range(2, len(c), 3)]
    return _levels(c, ops.concat(parts, c.int("axis")), 0, c.type(2).dtype)


@onnx_op("QLinearWhere", domain=MS)
def qlinear_where(c: Call) -> Result:
    return _levels(c, ops.where(c.x(0), _stands_for(c, 1), _stands_for(c, 4)), 7, c.type(1).dtype)


@onnx_op("QGemm", domain=MS)
def qgemm(c: Call) -> Result:
    """Gemm with a bias in i32 at the scale of the products; the result is float where it has no scale."""
    a, a_scale, a_zero, b, b_scale, b_zero = (c.x(i) for i in range(6))
    is_transposed = c.flag("transB")
    column = () if b_zero.type.size == 1 else (-1, 1) if is_transposed else (-1,)
    contracted = (0 if c.flag("transA") else 1,), (1 if is_transposed else 0,)
    sums = ops.DotGeneral(contract=contracted)(
        centered(a, ops.reshape(a_zero, ())), centered(b, ops.reshape(b_zero, column))
    )
    if c.has(6):
        sums = ops.add(sums, c.x(6))
    scale = ops.mul(scales_product(a_scale, b_scale), c.float("alpha", 1.0))
    return requantized(sums, scale, c.x(7), c.x(8)) if c.has(7) else ops.mul(ops.cast(sums, T.f32), scale)


def _product(a: Node, a_zero: Node | None, b: Node, b_zero: Node | None, scale: Node, bias: Node | None) -> Node:
    """The matrix product of quantized operands, as floats."""
    y = ops.mul(ops.cast(ops.MatMul()(centered(a, a_zero), centered(b, b_zero)), scale.dtype), scale)
    return y if bias is None else ops.add(y, bias)


@onnx_op("MatMulIntegerToFloat", domain=MS)
def matmul_integer_to_float(c: Call) -> Result:
    return _product(c.x(0), c.opt(4), c.x(1), c.opt(5), ops.mul(c.x(2), c.x(3)), c.opt(6))


@onnx_op("DynamicQuantizeMatMul", domain=MS)
def dynamic_quantize_matmul(c: Call) -> Result:
    a, scale, zero = ops.dynamic_quantize(c.x(0))
    return _product(a, zero, c.x(1), c.opt(3), ops.mul(scale, c.x(2)), c.opt(4))


@onnx_op("QAttention", domain=MS)
def qattention(c: Call) -> Result:
    packed = _product(c.x(0), c.opt(6), c.x(1), c.opt(7), ops.mul(c.x(3), c.x(4)), c.x(2))
    return self_attention(c, packed, None, c.opt(5), c.opt(8))


LEVEL_DTYPES = {2: T.u4, 4: T.u4, 8: T.u8}  # storage dtypes by bits per level


def levels_of(packed: np.ndarray, bits: int, count: int) -> np.ndarray:
    """The first `count` levels of each line of bytes."""
    return unpacked(packed, bits)[..., :count].view(LEVEL_DTYPES[bits].numpy)


@onnx_op("MatMulNBits", domain=MS)
def matmul_nbits(c: Call) -> Result:
    """x [.., K] times a constant matrix [N, K] of 2, 4 or 8 bits, stored in blocks along K with a scale each."""
    bits, block, k, n = c.int("bits", 4), c.int("block_size"), c.int("K"), c.int("N")
    if bits not in LEVEL_DTYPES or c.has(4):
        raise Unsupported(f"{bits}-bit blocks" if bits not in LEVEL_DTYPES else "a permutation of the rows")
    blocks, dtype = -(-k // max(block, 1)), LEVEL_DTYPES[bits]
    is_well_formed = c.array(1).size * 8 == n * blocks * block * bits and c.array(2).size == n * blocks
    if not is_well_formed or c.array(1).dtype != np.uint8:
        raise Unsupported(f"levels of {c.type(1)} and scales of {c.type(2)} for N = {n}, K = {k} in blocks of {block}")
    packed = c.array(1).reshape(n, blocks, -1)
    levels = deferred_const(T.TensorType(dtype, (n, blocks, block)), lambda: levels_of(packed, bits, block))
    scales = const(c.array(2).reshape(n, blocks, 1).astype(np.float32))
    zeros = ops.scalar(1 << (bits - 1), dtype)
    if c.has(3):
        zero_points = c.array(3)
        packs = zero_points.dtype == np.uint8
        plain = levels_of(zero_points.reshape(n, -1), bits, blocks) if packs else zero_points.astype(np.float32)
        zeros = const(plain.reshape(n, blocks, 1))
    weight = ops.reshape(ops.Dequantize()(levels, zeros, scales), (n, blocks * block))
    x = c.x(0)
    y = ops.cast(ops.linear(ops.cast(x, T.f32), ops.slice_axis(weight, 1, 0, k)), x.dtype)
    return ops.add(y, c.x(5)) if c.has(5) else y


# the values of bitsandbytes' 4-bit levels (Dettmers et al. 2023); of f4, the non-negative half
_F4 = (0.0, 0.005208333333, 0.66666667, 1.0, 0.33333333, 0.5, 0.16666667, 0.25)
_NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip


@onnx_op("MatMulBnb4", domain=MS)
def matmul_bnb4(c: Call) -> Result:
    """x [.., K] times a constant matrix [N, K] of 4-bit floats, high bits first, with a scale per block."""
    k, n, block = c.int("K"), c.int("N"), c.int("block_size")
    table = np.array(_NF4 if c.int("quant_type") == 1 else (*_F4, *(-v for v in _F4)), np.float32)
    packed, scale = c.array(1).reshape(-1), c.array(2).reshape(-1)
    if block < 1 or packed.size != (n * k + 1) // 2 or scale.size != -(-n * k // block):
        raise Unsupported(f"{packed.size} bytes and {scale.size} scales for N = {n}, K = {k} in blocks of {block}")
    values = table[np.stack([packed >> 4, packed & 15], -1).reshape(-1)[: n * k]]
    weight = const((values * np.repeat(scale.astype(np.float32), block)[: n * k]).reshape(n, k))
    x = c.x(0)
    wide = ops.cast(x, T.f32)
    return ops.cast(ops.linear(wide, weight) if c.flag("transB", 1) else ops.MatMul()(wide, weight), x.dtype)


@onnx_op("GatherBlockQuantized", domain=MS)
def gather_block_quantized(c: Call) -> Result:
    """Rows of a constant quantized table with a scale per block of a row. Only gathered rows are unpacked: a 4-bit
    table stays packed in pairs."""
    table, scales, indices, block = c.array(0), c.x(2), c.x(1), c.int("block_size", 128)
    bits = c.int("bits", 4) if table.dtype == np.uint8 else 4
    axis, last = c.axis("gather_axis", 0, table.ndim), table.ndim - 1
    if bits not in (4, 8) or axis == last or c.axis("quantize_axis", 1, table.ndim) != last or not block:
        raise Unsupported("a table but of 4 or 8 bits, quantized along its last axis and read along another")
    count = table.shape[-1] * (8 // bits if table.dtype == np.uint8 else 1)
    (blocks,) = ints_of(scales.shape[-1:], "the blocks of a row")
    # the sign bit of i4 is flipped, so that 0 is in the middle there, too
    default = ops.scalar(0 if table.dtype == T.u4.numpy else 1 << (bits - 1), T.u8)
    zero = _rows_of(c.array(3), axis, indices, bits, blocks) if c.has(3) else default
    scale = ops.expand_dims(ops.Take(axis)(scales, indices), -1)
    q = _rows_of(table, axis, indices, bits, count)
    rank = q.type.rank
    q = ops.pad(q, (0,) * rank, (*(0,) * (rank - 1), blocks * block - count))
    q = ops.reshape(q, (*q.shape[:-1], blocks, block))
    y = ops.Dequantize()(q, ops.expand_dims(zero, -1) if zero.shape else zero, ops.cast(scale, T.f32))
    y = ops.slice_axis(ops.reshape(y, (*y.shape[:-2], blocks * block)), -1, 0, count)
    return ops.cast(y, scales.dtype)


def _rows_of(table: np.ndarray, axis: int, indices: Node, bits: int, count: int) -> Node:
    """`count` unsigned levels of each line of a table, bytes or nibbles, gathered along `axis` by `at`."""
    plain = table.view(np.uint8)
    if table.dtype == T.i4.numpy:
        plain = plain & 15 ^ 8
    if table.dtype != np.uint8 and count % 2 == 0:
        plain = plain[..., ::2] | plain[..., 1::2] << 4
    rows = ops.Take(axis)(const(plain), indices)
    if rows.shape[-1] == count:
        return rows
    pairs = ops.apply(ops.ShiftRightLogical(), ops.expand_dims(rows, -1), const(np.array([0, 4], np.uint8)))
    pairs = ops.reshape(ops.and_(pairs, ops.scalar(15, T.u8)), (*rows.shape[:-1], 2 * rows.shape[-1]))
    return ops.slice_axis(pairs, -1, 0, count)
