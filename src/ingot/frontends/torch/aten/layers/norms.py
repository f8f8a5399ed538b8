"""Normalizations."""

from __future__ import annotations

from collections.abc import Sequence

from ingot import ops
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.torch.aten.create import filled
from ingot.frontends.torch.aten.layers.nn import add_channels
from ingot.frontends.torch.aten.reduce import norm
from ingot.frontends.torch.aten.shape import reshape
from ingot.frontends.torch.table import Table
from ingot.frontends.torch.values import Context, axis_of, cast, expand, node_of, wide
from ingot.ir.dims import DimLike, product
from ingot.ir.node import Node

aten = Table()


def _channels(x: Node, value: Node | None, default: float) -> Node:
    """A per-channel parameter, or a constant where it is absent."""
    return filled((x.shape[1],), default, x.dtype) if value is None else value


def _batch_stats(x: Node, weight: Node | None, bias: Node | None, eps: float) -> Node:
    """Batch normalization by the batch's own statistics."""
    return _with_moments(x, weight, bias, eps)[0]


def _with_moments(x: Node, weight: Node | None, bias: Node | None, eps: float) -> tuple[Node, Node, Node]:
    """As `_batch_stats`, and the batch's mean and variance. 16-bit results are rounded once, at the end."""
    axes = tuple(i for i in range(x.type.rank) if i != 1)
    normalized, mean, variance = ops.Standardize(axes, float(eps))(cast(x, wide(x.dtype))).results
    if weight is not None:
        normalized = ops.Mul()(normalized, ops.BroadcastInDim(normalized.shape, (1,))(cast(weight, normalized.dtype)))
    return cast(add_channels(normalized, bias), x.dtype), mean, variance


def batch_norm_of(
    x: Node, weight: Node | None, bias: Node | None, mean: Node | None, var: Node | None, eps: float
) -> Node:
    if mean is None or var is None:
        return _batch_stats(x, weight, bias, eps)
    if x.type.size == 0:  # of any rank
        return x
    return ops.BatchNorm(float(eps))(x, _channels(x, weight, 1), _channels(x, bias, 0), mean, var)


@aten("batch_norm.default", by_name=True)
def batch_norm(
    c: Context, x: Node, weight: Node | None, bias: Node | None, running_mean: Node | None, running_var: Node | None,
    *, training: bool, eps: float, **unused: object,
) -> Node:  # fmt: skip
    if training and running_mean is not None:
        raise Unsupported("batch_norm in training mode")
    return batch_norm_of(x, weight, bias, running_mean, running_var, eps)


@aten("_native_batch_norm_legit_no_training.default")
def batch_norm_inference(
    c: Context, x: Node, weight: Node | None, bias: Node | None, mean: Node, var: Node, momentum: float, eps: float
) -> tuple[Node | None, ...]:
    # the statistics that training would save are empty or 0
    saved = (filled(t.shape, 0, t.dtype) for t in c.results[1:])
    return batch_norm_of(x, weight, bias, mean, var, eps), *saved


@aten("_native_batch_norm_legit.no_stats")
def batch_norm_without_stats(
    c: Context, x: Node, weight: Node | None, bias: Node | None, training: bool, momentum: float, eps: float
) -> tuple[Node | None, ...]:
    axes = tuple(i for i in range(x.type.rank) if i != 1)
    return _batch_stats(x, weight, bias, eps), *_statistics(c, x, axes, eps)


@aten("_native_batch_norm_legit_functional.default")
def batch_norm_and_next_statistics(
    c: Context, x: Node, weight: Node | None, bias: Node | None, running_mean: Node, running_var: Node,
    training: bool, momentum: float, eps: float,
) -> tuple[Node | None, ...]:  # fmt: skip
    if not training:
        saved = (filled(t.shape, 0, t.dtype) for t in c.results[1:3])
        return batch_norm_of(x, weight, bias, running_mean, running_var, eps), *saved, running_mean, running_var
    normalized, mean, variance = _with_moments(x, weight, bias, eps)
    scale = ops.Rsqrt()(ops.add(variance, eps))
    count = product(d for i, d in enumerate(x.shape) if i != 1)
    # the unbiased variance of a single value is NaN, like PyTorch's 0 / 0
    unbiased = ops.mul(variance, ops.div(node_of(count, variance.dtype), node_of(count - 1, variance.dtype)))
    next_statistics = (
        ops.add(ops.mul(current, momentum), ops.mul(cast(running, current.dtype), 1 - momentum))
        for running, current in ((running_mean, mean), (running_var, unbiased))
    )
    # their types differ between CPUs and GPUs
    return normalized, *(cast(v, t.dtype) for v, t in zip((mean, scale, *next_statistics), c.results[1:], strict=True))


def _affine(weight: Node | None, bias: Node | None, shape: Sequence[DimLike], x: Node) -> tuple[Node, ...]:
    """The optional scale and bias as trailing operands; a bias alone needs a scale of ones before it."""
    if bias is None:
        return () if weight is None else (weight,)
    return (filled(shape, 1, x.dtype) if weight is None else weight, bias)


@aten("native_batch_norm_backward.default")
def batch_norm_backward(
    c: Context, cotangent: Node, x: Node, weight: Node | None, running_mean: Node | None, running_var: Node | None,
    mean: Node | None, scale: Node | None, training: bool, eps: float, output_mask: Sequence[bool],
) -> tuple[Node | None, ...]:  # fmt: skip
    """Gradients of x, weight and bias. mean, scale (1 / deviation): of the batch, saved by the forward pass.
    By torch's decomposition."""
    if not training:
        mean = running_mean
        scale = None if running_var is None else ops.Rsqrt()(ops.add(cast(running_var, wide(running_var.dtype)), eps))
    if mean is None or scale is None:
        raise Unsupported("batch_norm's gradient without statistics")
    types = iter(c.results)  # of the wanted gradients
    wide_dtype = wide(x.dtype)
    g, x, mean, scale = (cast(v, wide_dtype) for v in (cotangent, x, mean, scale))
    axes = tuple(i for i in range(x.type.rank) if i != 1)
    count = node_of(product(x.shape[i] for i in axes), wide_dtype)

    def over_channels(channels: Node) -> Node:
        return ops.BroadcastInDim(x.shape, (1,))(channels)

    centered = ops.Sub()(x, over_channels(mean))
    total, product_sums = ops.Reduce("sum", axes)(g), ops.Reduce("sum", axes)(ops.Mul()(g, centered))
    factor = scale if weight is None else ops.Mul()(scale, cast(weight, wide_dtype))
    if training:
        slope = ops.Mul()(ops.div(product_sums, count), ops.Mul()(scale, scale))
        g = ops.Sub()(ops.Sub()(g, ops.Mul()(centered, over_channels(slope))), over_channels(ops.div(total, count)))
    gradients = ops.Mul()(g, over_channels(factor)), ops.Mul()(product_sums, scale), total
    return tuple(
        cast(v, next(types).dtype) if is_wanted else None for v, is_wanted in zip(gradients, output_mask, strict=True)
    )


@aten("layer_norm.default")
def layer_norm(
    c: Context, x: Node, normalized_shape: Sequence[DimLike], weight: Node | None = None, bias: Node | None = None,
    eps: float = 1e-5, cudnn_enable: bool = True,
) -> Node:  # fmt: skip
    axes = _trailing_axes(x, normalized_shape)
    return ops.LayerNorm(axes, float(eps))(x, *_affine(weight, bias, normalized_shape, x))


@aten("native_layer_norm.default")
def native_layer_norm(
    c: Context, x: Node, normalized_shape: Sequence[DimLike], weight: Node | None, bias: Node | None, eps: float
) -> tuple[Node | None, ...]:
    axes = _trailing_axes(x, normalized_shape)
    return layer_norm(c, x, normalized_shape, weight, bias, eps), *_statistics(c, x, axes, eps)


def _trailing_axes(x: Node, shape: Sequence[DimLike]) -> tuple[int, ...]:
    return tuple(range(x.type.rank - len(shape), x.type.rank))


def _statistics(c: Context, x: Node, axes: Sequence[int], eps: float) -> tuple[Node, ...]:
    """(mean, 1 / deviation) over `axes`, a norm's second and third results, from the moments that it computes."""
    _, center, variance = ops.Standardize(tuple(axes), float(eps))(cast(x, wide(x.dtype))).results
    scale = ops.Rsqrt()(ops.Add()(variance, filled(variance.shape, eps, variance.dtype)))
    return tuple(cast(reshape(v, t.shape), t.dtype) for v, t in zip((center, scale), c.results[1:], strict=True))


@aten("rms_norm.default")
def rms_norm(
    c: Context, x: Node, normalized_shape: Sequence[DimLike], weight: Node | None = None, eps: float | None = None
) -> Node:
    axes = _trailing_axes(x, normalized_shape)
    # by default the epsilon of the dtype of computation
    epsilon = {"f64": 2.0**-52, "f32": 2.0**-23}[wide(x.dtype).name] if eps is None else eps
    return ops.RMSNorm(axes, float(epsilon))(x, *_affine(weight, None, normalized_shape, x))


@aten("_fused_rms_norm.default")
def fused_rms_norm(
    c: Context, x: Node, normalized_shape: Sequence[DimLike], weight: Node | None, eps: float | None
) -> tuple[Node | None, ...]:
    return rms_norm(c, x, normalized_shape, weight, eps), None


@aten("group_norm.default")
def group_norm(
    c: Context, x: Node, num_groups: int, weight: Node | None = None, bias: Node | None = None, eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Node:  # fmt: skip
    return ops.GroupNorm(num_groups, float(eps))(x, *_scale_and_bias(x, weight, bias))


def _scale_and_bias(x: Node, weight: Node | None, bias: Node | None) -> tuple[Node, ...]:
    if weight is None and bias is None:
        return ()
    return _channels(x, weight, 1), _channels(x, bias, 0)


@aten("native_group_norm.default", by_name=True)
def native_group_norm(
    c: Context, x: Node, weight: Node | None, bias: Node | None, *, group: int, eps: float, **unused: object
) -> tuple[Node | None, ...]:
    grouped = reshape(x, (x.shape[0], group, product(x.shape[1:]) // group))
    return group_norm(c, x, group, weight, bias, eps), *_statistics(c, grouped, (2,), eps)


@aten("instance_norm.default", by_name=True)
def instance_norm(
    c: Context, x: Node, weight: Node | None, bias: Node | None, running_mean: Node | None, running_var: Node | None,
    *, use_input_stats: bool, eps: float, **unused: object,
) -> Node:  # fmt: skip
    if not use_input_stats:
        return batch_norm_of(x, weight, bias, running_mean, running_var, eps)
    if running_mean is not None:
        raise Unsupported("instance_norm that updates its statistics")
    return ops.InstanceNorm(float(eps))(x, *_scale_and_bias(x, weight, bias))


@aten("_weight_norm.default")
def weight_norm(c: Context, v: Node, g: Node, dim: int = 0) -> Node:
    """g * v / |v|, the norm over all axes but `dim` (Salimans and Kingma 2016)."""
    return weight_norm_interface(c, v, g, dim)[0]


@aten("_weight_norm_interface.default")
def weight_norm_interface(c: Context, v: Node, g: Node, dim: int = 0) -> tuple[Node, Node]:
    """(as above, the norms)."""
    keep = axis_of(dim, v.type.rank)
    axes = [i for i in range(v.type.rank) if i != keep]
    length = norm(v, 2.0, axes, True)
    return ops.Mul()(v, expand(ops.Div()(expand(g, length.shape), length), v.shape)), length
