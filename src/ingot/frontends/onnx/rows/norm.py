"""Normalizations."""

from __future__ import annotations

from ingot import ops
from ingot.frontends.onnx.call import Call, Result, onnx_op
from ingot.frontends.onnx.tensors import dtype_from_code
from ingot.frontends.shared.refusal import Unsupported
from ingot.ir import types as T
from ingot.ir.dims import exact_quotient
from ingot.ir.node import Node


@onnx_op("BatchNormalization")
def batch_norm(c: Call) -> Result:
    x, scale, bias, mean, var = (c.x(i) for i in range(5))
    eps = c.float("epsilon", 1e-5)
    if not c.flag("training_mode"):  # `import_trainable` sets it before opset 14, too
        if c.version < 14 and c.is_result_used(1):
            raise Unsupported("batch normalization in training mode")
        return ops.BatchNorm(eps)(x, scale, bias, mean, var)
    axes = tuple(a for a in range(c.rank()) if a != 1)
    keep = c.float("momentum", 0.9)
    now_mean, now_var = ops.mean(x, axes), ops.var(x, axes)
    y = ops.BatchNorm(eps)(x, scale, bias, ops.cast(now_mean, mean.dtype), ops.cast(now_var, var.dtype))
    blended = [
        ops.add(ops.mul(running, keep), ops.mul(ops.cast(current, running.dtype), 1.0 - keep))
        for running, current in ((mean, now_mean), (var, now_var))
    ]
    return [y, *blended]


@onnx_op("InstanceNormalization")
def instance_norm(c: Call) -> Result:
    return ops.InstanceNorm(c.float("epsilon", 1e-5))(c.x(0), c.x(1), c.x(2))


@onnx_op("GroupNormalization", since=18)
def group_norm_18(c: Call) -> Result:
    """Scale and bias per group."""
    x, groups = c.x(), c.int("num_groups")
    group_size = exact_quotient(x.shape[1], groups)
    if group_size is None:
        raise Unsupported(f"{x.shape[1]} channels do not divide into {groups} groups")

    def per_channel(v: Node) -> Node:
        return ops.reshape(ops.broadcast_to(ops.expand_dims(v, 1), (groups, group_size)), (-1,))

    return ops.GroupNorm(groups, c.float("epsilon", 1e-5))(x, per_channel(c.x(1)), per_channel(c.x(2)))


@onnx_op("GroupNormalization", since=21)
def group_norm(c: Call) -> Result:
    """Scale and bias per channel."""
    return ops.GroupNorm(c.int("num_groups"), c.float("epsilon", 1e-5))(c.x(0), c.x(1), c.x(2))


def layer_norm(x: Node, scale: Node | None, bias: Node | None, axes: tuple[int, ...], eps: float) -> Node:
    shape = tuple(x.shape[a] for a in axes)
    if scale is None and bias is not None:
        return ops.add(ops.LayerNorm(axes, eps)(x), ops.broadcast_to(bias, x.shape))
    # a parameter that varies along axes that are not normalized is applied separately
    if any(
        p is not None and (len(p.shape) > len(axes) or ops.broadcast_shapes(p.shape, shape) != shape)
        for p in (scale, bias)
    ):
        y = ops.LayerNorm(axes, eps)(x)
        y = y if scale is None else ops.mul(y, ops.broadcast_to(scale, y.shape))
        return y if bias is None else ops.add(y, ops.broadcast_to(bias, y.shape))
    params = [ops.broadcast_to(p, shape) for p in (scale, bias) if p is not None]
    return ops.LayerNorm(axes, eps)(x, *params)


def statistics(x: Node, axes: tuple[int, ...], eps: float) -> tuple[Node, Node]:
    """Mean and 1 / standard deviation over `axes`, kept as size 1."""
    wide = ops.cast(x, T.f32) if x.dtype.bits < 32 else x
    return ops.mean(wide, axes, keepdims=True), ops.Rsqrt()(ops.add(ops.var(wide, axes, keepdims=True), eps))


@onnx_op("LayerNormalization")
@onnx_op("LayerNormalization", domain="com.microsoft")
def layer_normalization(c: Call) -> Result:
    x = c.x()
    axes = tuple(range(c.axis("axis", -1, c.rank()), c.rank()))
    eps = c.float("epsilon", 1e-5)
    y = layer_norm(x, c.opt(1), c.opt(2), axes, eps)
    if not (c.is_result_used(1) or c.is_result_used(2)):
        return y
    stash = dtype_from_code(c.int("stash_type", 1))
    mean, inverse = statistics(x, axes, eps)
    return [y, ops.cast(mean, stash), ops.cast(inverse, stash)]


def rms_norm(x: Node, scale: Node | None, axes: tuple[int, ...], eps: float) -> Node:
    shape = tuple(x.shape[a] for a in axes)
    if scale is None:
        return ops.RMSNorm(axes, eps)(x)
    if len(scale.shape) > len(axes) or ops.broadcast_shapes(scale.shape, shape) != shape:
        return ops.mul(ops.RMSNorm(axes, eps)(x), ops.broadcast_to(scale, x.shape))
    return ops.RMSNorm(axes, eps)(x, ops.broadcast_to(scale, shape))


@onnx_op("RMSNormalization", since=23)
@onnx_op("SimplifiedLayerNormalization")
@onnx_op("SimplifiedLayerNormalization", domain="com.microsoft")
def rms_normalization(c: Call) -> Result:
    x = c.x()
    axes = tuple(range(c.axis("axis", -1, c.rank()), c.rank()))
    eps = c.float("epsilon", 1e-5)
    y = rms_norm(x, c.opt(1), axes, eps)
    if not c.is_result_used(1):
        return y
    wide = ops.cast(x, T.f32)
    return [y, ops.Rsqrt()(ops.add(ops.mean(ops.mul(wide, wide), axes, keepdims=True), eps))]


@onnx_op("LRN")
def lrn(c: Call) -> Result:
    alpha, beta, bias = c.float("alpha", 1e-4), c.float("beta", 0.75), c.float("bias", 1.0)
    return ops.LocalResponseNorm(c.int("size"), alpha, beta, bias)(c.x())


@onnx_op("LpNormalization")
def lp_normalization(c: Call) -> Result:
    x, axis, p = c.x(), c.axis("axis", -1, c.rank()), c.int("p", 2)
    size = ops.Abs()(x) if p == 1 else ops.mul(x, x)
    total = ops.reduce_sum(size, axis, keepdims=True)
    norm = total if p == 1 else ops.Sqrt()(total)
    # ONNX: a zero vector stays zero
    zero = ops.scalar(0, x.dtype)
    return ops.where(ops.compare("EQ", norm, zero), zero, ops.div(x, norm))


@onnx_op("MeanVarianceNormalization")
def mean_variance_normalization(c: Call) -> Result:
    x = c.x()
    axes = c.int_list("axes", (0, 2, 3))
    deviation = ops.sub(x, ops.mean(x, axes, keepdims=True))
    deviation_root = ops.Sqrt()(ops.mean(ops.mul(deviation, deviation), axes, keepdims=True))
    return ops.div(deviation, ops.add(deviation_root, 1e-9))
