"""Ops of the com.microsoft domain that exporters and graph optimizers write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ingot import ops
from ingot.frontends.onnx.call import Call, Result, Value, normal_axis, onnx_op
from ingot.frontends.onnx.rows.common import ints_of
from ingot.frontends.onnx.rows.nn import conv, convolution, gemm, max_pool
from ingot.frontends.onnx.rows.norm import layer_norm, rms_norm, statistics
from ingot.frontends.onnx.rows.quant import channels_last, channels_second
from ingot.frontends.shared.refusal import Unsupported
from ingot.ir.node import Node

MS = "com.microsoft"


@onnx_op("Gelu", domain=MS)
def gelu(c: Call) -> Result:
    return ops.Gelu("none")(c.x())


@onnx_op("BiasGelu", domain=MS)
def bias_gelu(c: Call) -> Result:
    return ops.Gelu("none")(ops.add(c.x(0), c.x(1)))


@onnx_op("FastGelu", domain=MS)
def fast_gelu(c: Call) -> Result:
    return ops.Gelu("tanh")(ops.add(c.x(0), c.x(1)) if c.has(1) else c.x(0))


@onnx_op("QuickGelu", domain=MS)
def quick_gelu(c: Call) -> Result:
    x = c.x()
    return ops.mul(x, ops.Logistic()(ops.mul(x, c.float("alpha", 1.702))))


@onnx_op("FusedMatMul", "TransposeMatMul", domain=MS)
def fused_matmul(c: Call) -> Result:
    def operand(i: int, swap: str, batch: str) -> Node:
        x = c.x(i)
        rank = len(x.shape)
        if c.flag(batch):
            # [M, B.., K] -> [B.., M, K]
            x = ops.transpose(x, (*range(1, rank - 1), 0, rank - 1))
        return ops.swap_axes(x, rank - 1, rank - 2) if c.flag(swap) and rank > 1 else x

    y = ops.MatMul()(operand(0, "transA", "transBatchA"), operand(1, "transB", "transBatchB"))
    alpha = c.float("alpha", 1.0)
    return y if alpha == 1.0 else ops.mul(y, alpha)


def _activated(y: Node, name: str, params: Sequence[float]) -> Node:
    match name:
        case "":
            return y
        case "Relu":
            return ops.Relu()(y)
        case "Sigmoid":
            return ops.Logistic()(y)
        case "Tanh":
            return ops.Tanh()(y)
        case "LeakyRelu":
            return ops.LeakyRelu(params[0])(y)
        case "Clip":
            return ops.clip(y, params[0], params[1])
        case "HardSigmoid":
            return ops.HardSigmoid(params[0], params[1])(y)
    raise Unsupported(f"activation {name!r}")


@onnx_op("FusedConv", domain=MS)
def fused_conv(c: Call) -> Result:
    y = conv(c)
    assert isinstance(y, Node)
    if c.has(3):
        y = ops.add(y, c.x(3))
    return _activated(y, c.str("activation", ""), c.float_list("activation_params") or (0.0, 0.0))


@onnx_op("NhwcConv", domain=MS)
def nhwc_conv(c: Call) -> Result:
    """x [N, spatial.., C], w [M, spatial.., C / group]."""
    y = convolution(c, channels_second(c.x(0)), channels_second(c.x(1)))
    y = channels_last(y)
    return ops.add(y, c.x(2)) if c.has(2) else y


@onnx_op("NhwcMaxPool", domain=MS)
def nhwc_max_pool(c: Call) -> Result:
    y = max_pool(replace(c, inputs=(Value(channels_second(c.x())),)))
    first = y[0] if isinstance(y, Sequence) else y
    assert isinstance(first, Node)
    return channels_last(first)


@onnx_op("FusedGemm", domain=MS)
def fused_gemm(c: Call) -> Result:
    y = gemm(c)
    assert isinstance(y, Node)
    params = [c.float(f"activation_{n}", default) for n, default in (("alpha", 0.01), ("beta", 0.0))]
    return _activated(y, c.str("activation", ""), params)


@onnx_op("GroupNorm", "SkipGroupNorm", domain=MS)
def group_norm_ms(c: Call) -> Result:
    """x [N, H, W, C] plus an optional skip connection and bias, normalized per group of channels; then maybe SiLU."""
    x, last = c.x(0), c.flag("channels_last", 1)
    if c.has(3):
        skip = c.x(3)
        x = ops.add(x, ops.expand_dims(skip, (1, 2)) if len(skip.shape) == 2 else skip)
        x = ops.add(x, c.x(4)) if c.has(4) else x
    scale, shift = (ops.cast(c.x(i), x.dtype) for i in (1, 2))
    y = ops.GroupNorm(c.int("groups"), c.float("epsilon", 1e-5))(channels_second(x) if last else x, scale, shift)
    y = channels_last(y) if last else y
    return [ops.Silu()(y) if c.flag("activation") else y, x]


@onnx_op("BiasSplitGelu", domain=MS)
def bias_split_gelu(c: Call) -> Result:
    """The first half of x + bias, times GELU of the second."""
    x = ops.add(c.x(0), c.x(1))
    (width,) = ints_of(x.shape[-1:], "the last axis")
    half, gate = ops.split(x, (width // 2, width // 2), -1)
    return ops.mul(half, ops.Gelu("none")(gate))


def _skip_sum(c: Call, bias: int) -> Node:
    total = ops.add(c.x(0), c.x(1))
    return ops.add(total, c.x(bias)) if c.has(bias) else total


@onnx_op("SkipLayerNormalization", domain=MS)
def skip_layer_normalization(c: Call) -> Result:
    x = _skip_sum(c, 4)
    axes, eps = (len(x.shape) - 1,), c.float("epsilon", 1e-12)
    y = layer_norm(x, c.x(2), c.opt(3), axes, eps)
    mean, inverse = statistics(x, axes, eps) if c.is_result_used(1) or c.is_result_used(2) else (None, None)
    return [y, mean, inverse, x]


@onnx_op("SkipSimplifiedLayerNormalization", domain=MS)
def skip_simplified_layer_normalization(c: Call) -> Result:
    x = _skip_sum(c, 3)
    return [rms_norm(x, c.x(2), (len(x.shape) - 1,), c.float("epsilon", 1e-12)), None, None, x]


@onnx_op("EmbedLayerNormalization", domain=MS)
def embed_layer_normalization(c: Call) -> Result:
    """Word, position and segment embeddings summed and normalized; the second result is the mask's row sums."""
    ids, words, positions = c.x(0), c.x(2), c.x(3)
    position_ids = c.x(8) if c.has(8) else ops.arange(ids.shape[1])
    total = ops.add(ops.Take(0)(words, ids), ops.Take(0)(positions, position_ids))
    if c.has(1) and c.has(4):
        total = ops.add(total, ops.Take(0)(c.x(4), c.x(1)))
    axes = (len(total.shape) - 1,)
    y = layer_norm(total, c.x(5), c.x(6), axes, c.float("epsilon", 1e-12))
    index = ops.reduce_sum(c.x(7), 1) if c.has(7) else None
    return [y, index, total]


@onnx_op("BiasAdd", domain=MS)
def bias_add(c: Call) -> Result:
    return ops.add(ops.add(c.x(0), c.x(1)), c.x(2))


@onnx_op("ExpandDims", domain=MS)
def expand_dims(c: Call) -> Result:
    return ops.expand_dims(c.x(0), normal_axis(c.ints(1)[0], c.rank() + 1))


@onnx_op("CDist", domain=MS)
def cdist(c: Call) -> Result:
    """a [M, K], b [N, K] -> [M, N]: distances of rows."""
    differences = ops.sub(ops.expand_dims(c.x(0), 1), ops.expand_dims(c.x(1), 0))
    squares = ops.reduce_sum(ops.mul(differences, differences), 2)
    metric = c.str("metric", "sqeuclidean")
    if metric not in ("euclidean", "sqeuclidean"):
        raise Unsupported(f"metric {metric!r}")
    return ops.Sqrt()(squares) if metric == "euclidean" else squares
