"""Normalizations."""

from __future__ import annotations

from ingot import ops
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.tensorflow.rows import windows
from ingot.frontends.tensorflow.values import Call, Result, Table
from ingot.ir.node import Node

row = Table()

_RESULTS = ("y", "batch_mean", "batch_variance", "reserve_space_1", "reserve_space_2", "reserve_space_3")


@row("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3", results=_RESULTS)
def batch_norm(c: Call, x: Node, scale: Node, offset: Node, mean: Node, variance: Node) -> Result:
    """Statistics are given, or, in training, those of the batch."""
    image = windows.channels_first(c, x)
    eps = c.float("epsilon", 1e-4)
    if c.flag("is_training") or not c.has("is_training"):
        return _of_batch(c, image, scale, offset, eps)
    y = windows.channels_as_given(c, ops.BatchNorm(eps)(image, scale, offset, mean, variance))
    return [y, mean, variance, mean, variance, mean]


def _of_batch(c: Call, image: Node, scale: Node, offset: Node, eps: float) -> Result:
    if c.float("exponential_avg_factor", 1.0) != 1.0:
        raise Unsupported("in training, with a running average")
    axes = tuple(i for i in range(image.type.rank) if i != 1)
    mean = ops.mean(ops.cast(image, scale.dtype), axes)
    variance = ops.var(ops.cast(image, scale.dtype), axes)
    y = windows.channels_as_given(c, ops.BatchNorm(eps)(image, scale, offset, mean, variance))
    # the variance that is handed out is the unbiased one
    count = ops.scalar(image.type.size, scale.dtype)
    per = ops.div(count, ops.scalar(image.shape[1], scale.dtype))
    unbiased = ops.mul(variance, ops.div(per, ops.maximum(ops.sub(per, 1), 1)))
    return [y, mean, unbiased, mean, variance, mean]


@row("LRN")
def local_response(c: Call, x: Node) -> Node:
    """Over the last axis; a window of 2 * depth_radius + 1, whose sum is not divided by its size."""
    size = 2 * c.int("depth_radius", 5) + 1
    bias, alpha, beta = c.float("bias", 1.0), c.float("alpha", 1.0), c.float("beta", 0.5)
    n = x.type.rank
    image = windows.permuted(x, (0, n - 1, *range(1, n - 1)))
    y = ops.LocalResponseNorm(size, alpha * size, beta, bias)(image)
    return windows.permuted(y, (0, *range(2, n), 1))
