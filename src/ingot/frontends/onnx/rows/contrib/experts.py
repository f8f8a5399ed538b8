"""Mixtures of experts of com.microsoft: each token is processed by its k best-scored experts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ingot import ops
from ingot.frontends.onnx.call import Call, Result, onnx_op
from ingot.frontends.onnx.rows.contrib.quant_contrib import LEVEL_DTYPES, levels_of
from ingot.frontends.shared.refusal import Unsupported
from ingot.ir import types as T
from ingot.ir.node import Node, const

MS = "com.microsoft"
_ACTIVATIONS: dict[str, Callable[[Node], Node]] = {
    "relu": lambda x: ops.Relu()(x),
    "gelu": lambda x: ops.Gelu("tanh")(x),
    "silu": lambda x: ops.Silu()(x),
    "identity": lambda x: x,
}
# weights [experts, outputs, inputs] and biases [experts, outputs] of a layer
Layer = tuple[Node, Node | None]


def _gated(c: Call, x: Node) -> Node:
    """SwiGLU of interleaved pairs [.., 2 * width], gate first."""
    pairs = ops.reshape(x, (*x.shape[:-1], -1, 2))
    gate, line = (ops.index_axis(pairs, len(x.shape), i) for i in range(2))
    if c.has_attr("swiglu_limit"):
        limit = c.float("swiglu_limit")
        gate, line = ops.minimum(gate, limit), ops.clip(line, -limit, limit)
    activated = ops.mul(gate, ops.Logistic()(ops.mul(gate, c.float("activation_alpha", 1.0))))
    return ops.mul(activated, ops.add(line, c.float("activation_beta", 0.0)))


def _mixture(c: Call, first: Layer, second: Layer, weights: Node | None, normalized: bool) -> Node:
    """Rows of x are sorted by expert, each group is multiplied by its expert's matrices, and the order is restored.
    weights: factors of the experts' results [tokens, E]; None: the softmax of the router's scores."""
    name = c.str("activation_type", "relu")
    if name not in (*_ACTIVATIONS, "swiglu") or (name == "swiglu" and c.int("swiglu_fusion", 0) != 1):
        raise Unsupported(f"activation {name!r} but of one product with its parts in turn")
    if c.flag("use_sparse_mixer"):
        raise Unsupported("a sparse mixer")
    k, experts = c.int("k", 1), first[0].shape[0]
    x = ops.reshape(c.x(0), (-1, c.shape(0)[-1]))
    scores = ops.reshape(c.x(1), (-1, experts))
    tokens = x.shape[0]
    gates, expert_ids = ops.TopK(k, 1, True, True)(ops.Softmax(1)(scores)).results
    if weights is not None:
        gates = ops.GatherElements(1)(ops.reshape(weights, (-1, experts)), expert_ids)
    if normalized:
        gates = ops.div(gates, ops.reduce_sum(gates, 1, keepdims=True))
    expert = ops.reshape(expert_ids, (-1,))
    sorted_experts, order = ops.Sort(0)(expert, ops.iota(expert.shape, 0)).results
    ends = ops.reduce_sum(
        ops.cast(ops.compare("LE", ops.expand_dims(sorted_experts, 1), ops.arange(experts)), T.i64), 0
    )

    def layer(x: Node, weight: Node, bias: Node | None) -> Node:
        y = ops.GroupedMatMul()(x, ops.transpose(weight, (0, 2, 1)), ends)
        return y if bias is None else ops.add(y, ops.Take(0)(bias, sorted_experts))

    inner = layer(ops.Take(0)(x, ops.div(order, k)), *first)
    inner = _gated(c, inner) if name == "swiglu" else _ACTIVATIONS[name](inner)
    y = layer(inner, *second)
    _, place = ops.Sort(0)(order, ops.iota(expert.shape, 0)).results
    parts = ops.reshape(ops.Take(0)(y, place), (tokens, k, y.shape[1]))
    total = ops.reduce_sum(ops.mul(parts, ops.expand_dims(ops.cast(gates, y.dtype), 2)), 1)
    return ops.reshape(total, c.shape(0))


@onnx_op("MoE", domain=MS)
def moe(c: Call) -> Result:
    """x [.., H], router [tokens, E], fc1 [E, N, H] and bias, fc2 [E, H, I] and bias."""
    if c.has(6):
        raise Unsupported("a third layer")
    return _mixture(c, (c.x(2), c.opt(3)), (c.x(4), c.opt(5)), None, c.flag("normalize_routing_weights"))


@onnx_op("QMoE", domain=MS)
def qmoe(c: Call) -> Result:
    """As MoE, with quantized weights [E, N, H * bits / 8] and a scale for each row or each block of one. The softmax is
    over the chosen experts' scores only, unless weights are given separately."""
    if c.has(8) or c.str("quant_type", "int") != "int" or c.int("weights_prepacked", -1) == 1:
        raise Unsupported("a third layer, floats of 4 or 8 bits, or weights packed for one machine")
    normalized = not c.has(14) or c.flag("normalize_routing_weights")
    return _mixture(c, (_weight(c, 2, 11, 1), c.opt(4)), (_weight(c, 5, 12, 2), c.opt(7)), c.opt(14), normalized)


def _weight(c: Call, i: int, zero: int, layer: int) -> Node:
    bits = c.int(f"fc{layer}_expert_weight_bits", c.int("expert_weight_bits", 4))
    if bits not in LEVEL_DTYPES:
        raise Unsupported(f"weights of {bits} bits")
    packed, scale = c.array(i), c.array(i + 1).astype(np.float32)
    experts, rows, width = packed.shape
    inputs = width * 8 // bits
    blocks = scale.shape[2] if scale.ndim == 3 else 1
    levels = const(levels_of(packed, bits, inputs).reshape(experts, rows, blocks, -1))
    zeros = ops.scalar(1 << (bits - 1), LEVEL_DTYPES[bits])
    if c.has(zero):
        zero_points = c.array(zero)
        line = zero_points if zero_points.ndim == 3 else zero_points.reshape(experts, 1, -1)
        plain = levels_of(line, bits, blocks if zero_points.ndim == 3 else rows)
        zeros = const(plain.reshape(experts, rows, blocks, 1))
    weight = ops.Dequantize()(levels, zeros, const(scale.reshape(experts, rows, blocks, 1)))
    return ops.cast(ops.reshape(weight, (experts, rows, inputs)), c.type(0).dtype)
