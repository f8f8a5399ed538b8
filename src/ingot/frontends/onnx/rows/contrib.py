"""Ops of the com.microsoft domain that exporters and graph optimizers write."""

from __future__ import annotations

from ingot import ops
from ingot.frontends.onnx.call import Call, Result, onnx_op
from ingot.frontends.onnx.rows.nn import conv
from ingot.frontends.onnx.rows.norm import layer_norm, rms_norm, statistics
from ingot.frontends.onnx.tensors import Unsupported
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


@onnx_op("FusedConv", domain=MS)
def fused_conv(c: Call) -> Result:
    y = conv(c)
    assert isinstance(y, Node)
    if c.has(3):
        y = ops.add(y, c.x(3))
    name = c.str("activation", "")
    params = list(c.float_list("activation_params") or [0.0, 0.0])
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


def _skip_sum(c: Call, bias: int) -> Node:
    total = ops.add(c.x(0), c.x(1))
    return ops.add(total, c.x(bias)) if c.has(bias) else total


@onnx_op("SkipLayerNormalization", domain=MS)
def skip_layer_normalization(c: Call) -> Result:
    x = _skip_sum(c, 4)
    axes, eps = (len(x.shape) - 1,), c.float("epsilon", 1e-12)
    y = layer_norm(x, c.x(2), c.opt(3), axes, eps)
    mean, inverse = statistics(x, axes, eps) if c.wants(1) or c.wants(2) else (None, None)
    return [y, mean, inverse, x]


@onnx_op("SkipSimplifiedLayerNormalization", domain=MS)
def skip_simplified_layer_normalization(c: Call) -> Result:
    x = _skip_sum(c, 3)
    return [rms_norm(x, c.x(2), (len(x.shape) - 1,), c.float("epsilon", 1e-12)), None, None, x]


@onnx_op("EmbedLayerNormalization", domain=MS)
def embed_layer_normalization(c: Call) -> Result:
    """Word, position and segment embeddings summed and normalized; a mask's row sums as second result."""
    ids, words, positions = c.x(0), c.x(2), c.x(3)
    at = c.x(8) if c.has(8) else ops.arange(ids.shape[1])
    total = ops.add(ops.Take(0)(words, ids), ops.Take(0)(positions, at))
    if c.has(1) and c.has(4):
        total = ops.add(total, ops.Take(0)(c.x(4), c.x(1)))
    axes = (len(total.shape) - 1,)
    y = layer_norm(total, c.x(5), c.x(6), axes, c.float("epsilon", 1e-12))
    index = ops.reduce_sum(c.x(7), 1) if c.has(7) else None
    return [y, index, total]


@onnx_op("BiasAdd", domain=MS)
def bias_add(c: Call) -> Result:
    return ops.add(ops.add(c.x(0), c.x(1)), c.x(2))
