"""Pools."""

from __future__ import annotations

from collections.abc import Sequence

from ingot import ops
from ingot.frontends.shared.composites import movement
from ingot.frontends.shared.composites.windows import Padding, average_pool, pad_first, static_sizes
from ingot.frontends.tensorflow.rows import windows
from ingot.frontends.tensorflow.values import Call, Result, Table
from ingot.ir.dims import DimLike
from ingot.ir.node import Node
from ingot.ir.types import i64

row = Table()


def _pool_window(c: Call, image: Node) -> tuple[tuple[int, ...], tuple[int, ...], Padding, tuple[int, ...]]:
    n = image.type.rank
    kernel, strides = windows.spatial(c, "ksize", n), windows.spatial(c, "strides", n)
    dilation = (1,) * (n - 2)
    return kernel, strides, windows.padding_of(c, image.shape[2:], kernel, strides, dilation), dilation


@row("MaxPool", "MaxPool3D")
def max_pool(c: Call, x: Node) -> Node:
    image = windows.channels_first(c, x)
    kernel, strides, padding_amounts, dilation = _pool_window(c, image)
    y = windows.no_windows(image, image.shape[1], padding_amounts, kernel, strides, dilation)
    if y is None:
        image, padding = pad_first(image, padding_amounts, ops.identity_of("max", x.dtype), 2)
        y = ops.MaxPool(kernel, strides, padding, dilation)(image)
    return windows.channels_as_given(c, y)


@row("AvgPool", "AvgPool3D")
def avg_pool(c: Call, x: Node) -> Node:
    """Padding does not count."""
    image = windows.channels_first(c, x)
    kernel, strides, padding_amounts, dilation = _pool_window(c, image)
    y = windows.no_windows(image, image.shape[1], padding_amounts, kernel, strides, dilation)
    if y is None:
        y = average_pool(image, kernel, strides, padding_amounts, dilation)
    return windows.channels_as_given(c, y)


@row("Dilation2D")
def dilation(c: Call, x: Node, w: Node) -> Node:
    """The largest sum of a pixel and its weight in each window (greyscale morphology); padding does not count."""
    image = windows.channels_first(c, x)
    window = static_sizes(w.shape[:2], "a kernel")
    strides, rates = windows.spatial(c, "strides", 4), windows.spatial(c, "rates", 4)
    padding_amounts = windows.padding_of(c, image.shape[2:], window, strides, rates)
    none = windows.no_windows(image, image.shape[1], padding_amounts, window, strides, rates)
    if none is not None:
        return windows.channels_as_given(c, none)
    low, high = ((0, 0, *(pair[i] for pair in padding_amounts)) for i in (0, 1))
    image = ops.pad(image, low, high, ops.identity_of("max", x.dtype))
    reach = [(k - 1) * r for k, r in zip(window, rates, strict=True)]
    counts = [(n - d - 1) // s + 1 for n, d, s in zip(image.shape[2:], reach, strides, strict=True)]
    out: Node | None = None
    for i in range(window[0]):
        for j in range(window[1]):
            part = image
            for axis, (at, n, s, r) in enumerate(zip((i, j), counts, strides, rates, strict=True)):
                first = at * r
                part = movement.cut(part, axis + 2, first, first + (n - 1) * s + 1, s)
            weight = ops.reshape(ops.index_axis(ops.index_axis(w, 0, i), 0, j), (-1, 1, 1))
            value = ops.add(part, weight)
            out = value if out is None else ops.maximum(out, value)
    assert out is not None
    return windows.channels_as_given(c, out)


def _in_unpadded(places: Node, width: DimLike, padding: Padding, sizes: Sequence[DimLike]) -> Node:
    """Flat places in the image without its padding. A window of smallest numbers alone has its first place, which may
    be padding: the nearest element is the window's first."""
    wide = ops.scalar(width, i64)
    row, column = (
        ops.clip(ops.sub(at, ops.scalar(low, i64)), 0, size - 1)
        for at, (low, _), size in zip((ops.div(places, wide), ops.rem(places, wide)), padding, sizes, strict=True)
    )
    return ops.add(ops.mul(row, ops.scalar(sizes[1], i64)), column)


@row("MaxPoolWithArgmax", results=("output", "argmax"))
def max_pool_with_argmax(c: Call, x: Node) -> Result:
    """Places count in an image [rows, columns, channels], or in all of the batch."""
    image = windows.channels_first(c, x)
    batch, channels, rows, columns = image.shape
    kernel, strides, padding_amounts, dilation = _pool_window(c, image)
    none = windows.no_windows(image, channels, padding_amounts, kernel, strides, dilation)
    if none is not None:
        y = windows.channels_as_given(c, none)
        return [y, ops.cast(y, c.dtype("Targmax", i64))]
    image, padding = pad_first(image, padding_amounts, ops.identity_of("max", x.dtype), 2)
    values, places = ops.MaxPoolIndices(kernel, strides, padding, dilation)(image).results
    if image.shape[2:] != (rows, columns):
        places = _in_unpadded(places, image.shape[3], padding_amounts, (rows, columns))
    channel = ops.reshape(ops.arange(channels), (1, channels, 1, 1))
    flat = ops.add(ops.mul(places, ops.scalar(channels, i64)), channel)
    if c.flag("include_batch_in_index"):
        first = ops.mul(ops.reshape(ops.arange(batch), (batch, 1, 1, 1)), ops.scalar(channels * rows * columns, i64))
        flat = ops.add(flat, first)
    return [windows.channels_as_given(c, values), ops.cast(windows.channels_as_given(c, flat), c.dtype("Targmax", i64))]
