"""Pools."""

from __future__ import annotations

from ingot import ops
from ingot.frontends.tensorflow.rows import windows
from ingot.frontends.tensorflow.values import Call, Table
from ingot.ir.dims import Dim
from ingot.ir.node import Node

row = Table()


def _of(c: Call, image: Node) -> tuple[tuple[int, ...], tuple[int, ...], windows.Padding, tuple[int, ...]]:
    n = image.type.rank
    kernel, strides = windows.spatial(c, "ksize", n), windows.spatial(c, "strides", n)
    dilation = (1,) * (n - 2)
    return kernel, strides, windows.padding_of(c, image.shape[2:], kernel, strides, dilation), dilation


@row("MaxPool", "MaxPool3D")
def max_pool(c: Call, x: Node) -> Node:
    image = windows.first(c, x)
    kernel, strides, around, dilation = _of(c, image)
    image, padding = windows.padded(image, around, ops.identity_of("max", x.dtype))
    return windows.back(c, ops.MaxPool(kernel, strides, padding, dilation)(image))


@row("AvgPool", "AvgPool3D")
def avg_pool(c: Call, x: Node) -> Node:
    """Padding does not count."""
    image = windows.first(c, x)
    kernel, strides, around, dilation = _of(c, image)
    if not any(isinstance(p, Dim) for pair in around for p in pair):
        image, padding = windows.padded(image, around, 0)
        return windows.back(c, ops.AvgPool(kernel, strides, padding, dilation)(image))
    inside, _ = windows.padded(ops.full((1, 1, *image.shape[2:]), 1, x.dtype), around, 0)
    image, padding = windows.padded(image, around, 0)
    total = ops.AvgPool(kernel, strides, padding, dilation, divisor=1)
    return windows.back(c, ops.div(total(image), total(inside)))
