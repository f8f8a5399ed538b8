"""Quantization: ops of PT2E export and weight-only quantizers (`quantized_decomposed`), and fake quantization.

Torch multiplies by a rounded 1 / scale where these rows divide by the scale: a value half-way between two levels may
round differently.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import torch

from ingot import ops
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.torch.convert import dtype_of
from ingot.frontends.torch.table import Table
from ingot.frontends.torch.values import Context, axis_of, cast, f32, node_of
from ingot.ir.dims import DimLike
from ingot.ir.node import Const, Node, const
from ingot.ir.types import DType, i32

aten = Table()
Parameter = Node | float | int


def _scalar_parameter(p: Parameter, dtype: DType) -> Node:
    """One number for a whole tensor."""
    return ops.reshape(node_of(p, dtype), ())


def _integers(zero: Node) -> Node:
    if zero.dtype.is_float:
        raise Unsupported(f"zero points of {zero.dtype}; expected integers")
    return zero


def _broadcast_along(p: Node, x: Node, axis: int) -> Node:
    """One number for each index of an axis."""
    place = axis_of(axis, x.type.rank)
    return ops.reshape(p, tuple(-1 if a == place else 1 for a in range(x.type.rank)))


def _levels(x: Node, scale: Node, zero: Node, low: int, high: int, dtype: DType) -> Node:
    """round(x / scale) + zero within low ... high."""
    x, scale, zero = cast(x, f32), cast(scale, f32), _integers(zero)
    if dtype not in ops.QUANTIZED_DTYPES:
        y = ops.add(ops.RoundEven()(ops.div(x, scale)), cast(zero, f32))
        return cast(ops.clip(y, float(low), float(high)), dtype)
    y = ops.apply(ops.Quantize(), x, scale, cast(zero, dtype))
    return y if (low, high) == dtype.range else ops.clip(y, low, high)


def _values(q: Node, scale: Node, zero: Node | None, dtype: torch.dtype | None) -> Node:
    """(q - zero) * scale."""
    offset = ops.scalar(0, q.dtype) if zero is None else cast(_integers(zero), q.dtype)
    y = ops.Dequantize()(q, offset, cast(scale, f32))
    return y if dtype is None else cast(y, dtype_of(dtype))


_LIBRARY = "quantized_decomposed"


@aten(f"{_LIBRARY}.quantize_per_tensor.default", f"{_LIBRARY}.quantize_per_tensor.tensor")
def quantize_per_tensor(
    c: Context, x: Node, scale: Parameter, zero_point: Parameter, quant_min: int, quant_max: int, dtype: torch.dtype
) -> Node:
    return _levels(
        x, _scalar_parameter(scale, f32), _scalar_parameter(zero_point, i32), quant_min, quant_max, dtype_of(dtype)
    )


@aten(f"{_LIBRARY}.dequantize_per_tensor.default", f"{_LIBRARY}.dequantize_per_tensor.tensor")
def dequantize_per_tensor(
    c: Context, q: Node, scale: Parameter, zero_point: Parameter, quant_min: int, quant_max: int, dtype: torch.dtype,
    *, out_dtype: torch.dtype | None = None,
) -> Node:  # fmt: skip
    return _values(q, _scalar_parameter(scale, f32), _scalar_parameter(zero_point, i32), out_dtype)


@aten(f"{_LIBRARY}.quantize_per_channel.default")
def quantize_per_channel(
    c: Context, x: Node, scales: Node, zero_points: Node, axis: int, quant_min: int, quant_max: int, dtype: torch.dtype
) -> Node:
    scale, zero = (_broadcast_along(p, x, axis) for p in (scales, zero_points))
    return _levels(x, scale, zero, quant_min, quant_max, dtype_of(dtype))


@aten(f"{_LIBRARY}.dequantize_per_channel.default")
def dequantize_per_channel(
    c: Context, q: Node, scales: Node, zero_points: Node | None, axis: int, quant_min: int, quant_max: int,
    dtype: torch.dtype, *, out_dtype: torch.dtype | None = None,
) -> Node:  # fmt: skip
    zero = None if zero_points is None else _broadcast_along(zero_points, q, axis)
    return _values(q, _broadcast_along(scales, q, axis), zero, out_dtype)


@aten(f"{_LIBRARY}.quantize_per_token.default")
def quantize_per_token(
    c: Context, x: Node, scales: Node, zero_points: Node, quant_min: int, quant_max: int, dtype: torch.dtype
) -> Node:
    return _levels(x, scales, zero_points, quant_min, quant_max, dtype_of(dtype))


@aten(f"{_LIBRARY}.dequantize_per_token.default")
def dequantize_per_token(
    c: Context, q: Node, scales: Node, zero_points: Node, quant_min: int, quant_max: int, dtype: torch.dtype,
    output_dtype: torch.dtype,
) -> Node:  # fmt: skip
    return _values(q, scales, zero_points, output_dtype)


@aten(f"{_LIBRARY}.dequantize_per_channel_group.default")
def dequantize_per_channel_group(
    c: Context, q: Node, scales: Node, zero_points: Node | None, quant_min: int, quant_max: int, dtype: torch.dtype,
    group_size: int, output_dtype: torch.dtype,
) -> Node:  # fmt: skip
    """Rows [M, N] in groups along N: scales and zero points [M, N / group]."""
    width = q.shape[1] if scales.shape[-1] == 1 else group_size
    column: tuple[DimLike, ...] = (-1, 1)
    zero = None if zero_points is None else ops.reshape(zero_points, column)
    return ops.reshape(_values(ops.reshape(q, (-1, width)), ops.reshape(scales, column), zero, output_dtype), q.shape)


# scales and zero points of dynamic quantization


def _least_and_most(x: Node, axis: int | None) -> tuple[Node, Node]:
    """The minimum and the maximum of x and 0, in f32."""
    wide = cast(x, f32)
    axes = tuple(range(x.type.rank)) if axis is None else (axis_of(axis, x.type.rank),)
    low, high = ops.reduce_min(wide, axes, keepdims=True), ops.reduce_max(wide, axes, keepdims=True)
    return ops.minimum(low, 0.0), ops.maximum(high, 0.0)


def _parameters(c: Context, scale: Node, zero: Node) -> tuple[Node, Node]:
    """scale and zero point in the shapes and dtypes of the results."""
    pairs = zip((scale, ops.broadcast_to(zero, scale.shape)), c.results, strict=True)
    scale, zero = (cast(ops.reshape(p, t.shape), t.dtype) for p, t in pairs)
    return scale, zero


@aten(f"{_LIBRARY}.choose_qparams.tensor")
def choose_qparams(
    c: Context, x: Node, quant_min: int, quant_max: int, eps: float, dtype: torch.dtype
) -> tuple[Node, Node]:
    low, high = _least_and_most(x, None)
    scale = ops.maximum(ops.div(ops.sub(high, low), float(quant_max - quant_min)), eps)
    zero = ops.sub(float(quant_min), ops.RoundEven()(ops.div(low, scale)))
    return _parameters(c, scale, ops.clip(zero, float(quant_min), float(quant_max)))


@aten(f"{_LIBRARY}.choose_qparams_symmetric.tensor")
def choose_qparams_symmetric(
    c: Context, x: Node, quant_min: int, quant_max: int, eps: float, dtype: torch.dtype
) -> tuple[Node, Node]:
    low, high = _least_and_most(x, None)
    scale = ops.maximum(ops.div(ops.maximum(ops.Neg()(low), high), float(quant_max - quant_min) / 2), eps)
    return _parameters(c, scale, ops.scalar(128.0 if dtype == torch.uint8 else 0.0, f32))


@aten(f"{_LIBRARY}.choose_qparams_per_token.default")
def choose_qparams_per_token(c: Context, x: Node, dtype: torch.dtype) -> tuple[Node, Node]:
    low, high = _least_and_most(x, -1)
    scale = ops.div(ops.maximum(ops.maximum(ops.Neg()(low), high), 1e-5), 127.0)
    return _parameters(c, scale, ops.scalar(0.0, f32))


@aten(
    f"{_LIBRARY}.choose_qparams_per_token_asymmetric.default",
    f"{_LIBRARY}._choose_qparams_per_token_asymmetric_impl.default",
)
def choose_qparams_per_token_asymmetric(c: Context, x: Node, dtype: torch.dtype) -> tuple[Node, Node]:
    """The zero point is computed from the end of the range where its rounding error is smaller (XNNPACK)."""
    low, high = _least_and_most(x, -1)
    scale = ops.maximum(ops.div(ops.sub(high, low), 255.0), float(np.finfo(np.float32).eps))
    low_level, high_level = ops.div(low, scale), ops.div(high, scale)
    first = ops.compare("GT", ops.add(ops.add(low_level, -128.0), ops.add(high_level, 127.0)), 0.0)
    zero = ops.where(first, ops.sub(-128.0, low_level), ops.sub(127.0, high_level))
    return _parameters(c, scale, ops.RoundEven()(ops.clip(zero, -128.0, 127.0)))


@aten("torchao.choose_scale_float8.default")
def choose_scale_float8(
    c: Context, x: Node, block_size: list[DimLike], float8_dtype: torch.dtype = torch.float8_e4m3fn,
    scale_dtype: torch.dtype = torch.float32, hp_value_lb: float | None = None, hp_value_ub: float | None = None,
) -> Node:  # fmt: skip
    """The largest magnitude of each block divided by the type's largest number, rounded to x's type."""
    if scale_dtype != torch.float32:
        raise Unsupported(f"scales of {scale_dtype}; expected torch.float32")
    counts = c.results[0].shape
    blocks = ops.reshape(ops.Abs()(x), tuple(d for pair in zip(counts, block_size, strict=True) for d in pair))
    max_values = ops.reduce_max(blocks, tuple(range(1, 2 * len(counts), 2)))
    if hp_value_lb is not None:
        max_values = ops.maximum(max_values, hp_value_lb)
    if hp_value_ub is not None:
        max_values = ops.minimum(max_values, hp_value_ub)
    return cast(ops.div(max_values, torch.finfo(float8_dtype).max), f32)


# fake quantization: (quantized and dequantized values, a mask of those within the range)


def _faked(x: Node, scale: Node, zero: Node, low: int, high: int) -> tuple[Node, Node]:
    candidates = (t for t in ops.QUANTIZED_DTYPES if t.range[0] <= low and high <= t.range[1])
    y = _values(_levels(x, scale, zero, low, high, next(candidates, i32)), scale, zero, None)
    level = ops.add(ops.RoundEven()(ops.div(cast(x, f32), cast(scale, f32))), cast(zero, f32))
    is_inside = ops.and_(ops.compare("GE", level, float(low)), ops.compare("LE", level, float(high)))
    return cast(y, x.dtype), is_inside


@aten("fake_quantize_per_tensor_affine_cachemask.default")
def fake_quantize_per_tensor(
    c: Context, x: Node, scale: float, zero_point: int, quant_min: int, quant_max: int
) -> tuple[Node, Node]:
    return _faked(x, _scalar_parameter(scale, f32), _scalar_parameter(zero_point, i32), quant_min, quant_max)


@aten("fake_quantize_per_tensor_affine.default", "fake_quantize_per_tensor_affine.tensor_qparams")
def fake_quantize(c: Context, x: Node, scale: Parameter, zero_point: Parameter, quant_min: int, quant_max: int) -> Node:
    return _faked(x, _scalar_parameter(scale, f32), _scalar_parameter(zero_point, i32), quant_min, quant_max)[0]


@aten("_fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default")
def fake_quantize_where_enabled(
    c: Context, x: Node, scale: Node, zero_point: Node, fake_quant_enabled: Node, quant_min: int, quant_max: int
) -> tuple[Node, Node]:
    y, is_inside = _faked(x, _scalar_parameter(scale, f32), _scalar_parameter(zero_point, i32), quant_min, quant_max)
    is_off = ops.compare("EQ", ops.reshape(fake_quant_enabled, ()), ops.scalar(0, fake_quant_enabled.dtype))
    return ops.where(is_off, x, y), ops.or_(is_off, is_inside)


@aten("fake_quantize_per_channel_affine_cachemask.default")
def fake_quantize_per_channel(
    c: Context, x: Node, scale: Node, zero_point: Node, axis: int, quant_min: int, quant_max: int
) -> tuple[Node, Node]:
    return _faked(x, _broadcast_along(scale, x, axis), _broadcast_along(zero_point, x, axis), quant_min, quant_max)


@aten("fake_quantize_per_channel_affine.default")
def fake_quantize_channels(
    c: Context, x: Node, scale: Node, zero_point: Node, axis: int, quant_min: int, quant_max: int
) -> Node:
    return fake_quantize_per_channel(c, x, scale, zero_point, axis, quant_min, quant_max)[0]


# products


@aten("_int_mm.default")
def int_mm(c: Context, a: Node, b: Node) -> Node:
    """i8 by i8, in i32."""
    return ops.MatMul()(*(ops.Dequantize()(x, ops.scalar(0, x.dtype)) for x in (a, b)))


@aten("_scaled_mm.default")
def scaled_mm(
    c: Context, a: Node, b: Node, scale_a: Node, scale_b: Node, bias: Node | None = None,
    scale_result: Node | None = None, out_dtype: torch.dtype | None = None, use_fast_accum: bool = False,
) -> Node:  # fmt: skip
    """Product of 8-bit floats, with one scale per tensor or one for each row of a and column of b. Sums are as exact as
    the target allows; use_fast_accum makes no difference."""
    m, n, is_per_tensor = a.shape[0], b.shape[1], scale_a.type.size == scale_b.type.size == 1
    if scale_result is not None or not (is_per_tensor or (scale_a.shape, scale_b.shape) == ((m, 1), (1, n))):
        got = f"{scale_a.type} and {scale_b.type}" + ("" if scale_result is None else ", and one of the result")
        raise Unsupported(f"scales {got}; expected one for each operand, or [{m}, 1] and [1, {n}]")
    first, second = (cast(ops.reshape(p, ()) if is_per_tensor else p, f32) for p in (scale_a, scale_b))
    y = ops.DotGeneral(((), ()), ((1,), (0,)), dtype=f32)(a, b)
    y = ops.mul(y, ops.mul(first, second))
    return cast(y if bias is None else ops.add(y, cast(bias, f32)), c.results[0].dtype)


@aten("_weight_int8pack_mm.default")
def weight_int8pack_mm(c: Context, x: Node, weight: Node, scales: Node) -> Node:
    """x [M, K] times i8 [N, K] transposed, with a scale for each of N."""
    w = _values(weight, ops.reshape(scales, (-1, 1)), None, None)
    return cast(ops.linear(cast(x, f32), w), x.dtype)


@aten("_weight_int4pack_mm_for_cpu.default")
def weight_int4pack_mm(c: Context, x: Node, packed: Node, group: int, scales_and_zeros: Node) -> Node:
    """x [M, K] by levels [N, K] of 4 bits, q, each of which is (q - 8) * scale + zero: [K / group, N, 2] of these.

    PyTorch's packing depends on the machine, so levels are unpacked by its product with the identity.
    """
    if not (isinstance(packed.op, Const) and isinstance(scales_and_zeros.op, Const)):
        raise Unsupported("packed levels that are no constants")
    parameters = scales_and_zeros.op.value.astype(np.float32)
    k = parameters.shape[0] * group
    scale, zero = (parameters[..., i].T[..., None] for i in (0, 1))
    if (zero[scale == 0] != 0).any():
        raise Unsupported("groups of levels with a scale of 0 beside an offset")
    levels = _unpacked(packed.op.value, k, group).reshape(-1, k // group, group)
    offset = np.float32(8) - np.divide(zero, scale, out=np.zeros_like(zero), where=scale != 0)
    values = ops.Dequantize()(const(levels.astype(ml_dtypes.uint4)), const(offset), const(scale))
    return cast(ops.linear(cast(x, f32), ops.reshape(values, (-1, k))), x.dtype)


def _unpacked(packed: np.ndarray, k: int, group: int) -> np.ndarray:
    """[N, K] levels from 0 to 15."""
    n = packed.shape[0]
    plain = torch.stack([torch.ones(k // group, n), torch.zeros(k // group, n)], -1)
    levels = torch.ops.aten._weight_int4pack_mm_for_cpu(torch.eye(k), torch.from_numpy(packed.copy()), group, plain)
    return levels.T.numpy() + 8
