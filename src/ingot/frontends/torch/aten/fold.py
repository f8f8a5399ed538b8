"""Rearrangements of elements between channels and space, and sliding windows: pixel shuffles, unfold and fold."""

from __future__ import annotations

from collections.abc import Sequence

from ingot import ops
from ingot.frontends.shared.composites.movement import cut
from ingot.frontends.torch.aten.shape import reshape, select_index
from ingot.frontends.torch.table import Table
from ingot.frontends.torch.values import Context, axis_of, scalar_like, with_shape
from ingot.ir.dims import DimLike
from ingot.ir.node import Node

aten = Table()


@aten("pixel_shuffle.default")
def pixel_shuffle(c: Context, x: Node, upscale_factor: int) -> Node:
    *lead, channels, h, w = x.shape
    r, n = upscale_factor, len(lead)
    x = reshape(x, (*lead, channels // (r * r), r, r, h, w))
    x = ops.transpose(x, (*range(n), n, n + 3, n + 1, n + 4, n + 2))
    return reshape(x, c.shape)


@aten("pixel_unshuffle.default")
def pixel_unshuffle(c: Context, x: Node, downscale_factor: int) -> Node:
    *lead, channels, h, w = x.shape
    r, n = downscale_factor, len(lead)
    x = reshape(x, (*lead, channels, h // r, r, w // r, r))
    x = ops.transpose(x, (*range(n), n, n + 2, n + 4, n + 1, n + 3))
    return reshape(x, c.shape)


@aten("channel_shuffle.default", "native_channel_shuffle.default")
def channel_shuffle(c: Context, x: Node, groups: int) -> Node:
    n, channels, *spatial = x.shape
    split_ = reshape(x, (n, groups, channels // groups, *spatial))
    return reshape(ops.swap_axes(split_, 1, 2), x.shape)


@aten("unfold.default", "unfold_copy.default")
def unfold(c: Context, x: Node, dimension: int, size: int, step: int) -> Node:
    """Windows of `size` every `step` along one axis, as a new last axis."""
    if not x.type.rank:
        return reshape(x, (1,))
    axis = axis_of(dimension, x.type.rank)
    parts = _windows(x, axis, size, step, c.shape[axis])
    return ops.transpose(parts, [i for i in range(x.type.rank + 1) if i != axis] + [axis])


def _windows(x: Node, axis: int, size: int, step: int, count: DimLike, dilation: int = 1) -> Node:
    """`count` windows of `size` elements every `step` along `axis`, which becomes two axes: size, count."""
    if size == step and dilation == 1:
        covered = cut(x, axis, 0, count * size)
        return ops.swap_axes(reshape(covered, (*x.shape[:axis], count, size, *x.shape[axis + 1 :])), axis, axis + 1)
    windows = ops.Windows(axis, size, step, dilation)(x)
    return ops.swap_axes(with_shape(windows, (*x.shape[:axis], count, size, *x.shape[axis + 1 :])), axis, axis + 1)


@aten("im2col.default")
def im2col(
    c: Context, x: Node, kernel_size: Sequence[int], dilation: Sequence[int], padding: Sequence[int],
    stride: Sequence[int],
) -> Node:  # fmt: skip
    """nn.Unfold: (N, C, H, W) -> (N, C * kh * kw, oh * ow)."""
    batched = x.type.rank == 4
    if not batched:
        x = ops.expand_dims(x, 0)
    n, channels, h, w = x.shape
    sizes = [h + 2 * padding[0], w + 2 * padding[1]]
    x = ops.Pad((0, 0, *padding), (0, 0, *padding), (0, 0, 0, 0))(x, scalar_like(0, x))
    counts = [(s - d * (k - 1) - 1) // t + 1 for s, k, d, t in zip(sizes, kernel_size, dilation, stride, strict=True)]
    x = _windows(x, 2, kernel_size[0], stride[0], counts[0], dilation[0])
    x = _windows(x, 4, kernel_size[1], stride[1], counts[1], dilation[1])
    taps = kernel_size[0] * kernel_size[1]
    columns_ = reshape(ops.swap_axes(x, 3, 4), (n, channels * taps, counts[0] * counts[1]))
    return columns_ if batched else reshape(columns_, c.shape)


@aten("col2im.default")
def col2im(
    c: Context, x: Node, output_size: Sequence[DimLike], kernel_size: Sequence[int], dilation: Sequence[int],
    padding: Sequence[int], stride: Sequence[int],
) -> Node:  # fmt: skip
    """nn.Fold: (N, C * kh * kw, L) -> (N, C, H, W), overlaps summed."""
    batched = x.type.rank == 3
    if not batched:
        x = ops.expand_dims(x, 0)
    n, rows, _ = x.shape
    taps = kernel_size[0] * kernel_size[1]
    channels = rows // taps
    padded = [s + 2 * p for s, p in zip(output_size, padding, strict=True)]
    counts = [(s - d * (k - 1) - 1) // t + 1 for s, k, d, t in zip(padded, kernel_size, dilation, stride, strict=True)]
    x = reshape(x, (n, channels, taps, *counts))
    total: Node | None = None
    for i in range(taps):
        part = select_index(x, 2, i)
        low = [(i // kernel_size[1]) * dilation[0], (i % kernel_size[1]) * dilation[1]]
        high = [s - lo - ((m - 1) * t + 1) for s, lo, m, t in zip(padded, low, counts, stride, strict=True)]
        # the fold's padding is cropped by negative pads
        low = [lo - p for lo, p in zip(low, padding, strict=True)]
        high = [hi - p for hi, p in zip(high, padding, strict=True)]
        padded_part = ops.Pad((0, 0, *low), (0, 0, *high), (0, 0, *(t - 1 for t in stride)))(part, scalar_like(0, part))
        total = padded_part if total is None else ops.Add()(total, padded_part)
    assert total is not None, "a kernel has at least one tap"
    return total if batched else reshape(total, c.shape)
