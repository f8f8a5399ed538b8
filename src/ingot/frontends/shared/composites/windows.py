"""Padding of windows, and TensorFlow's sampling coordinates of a resized image."""

from __future__ import annotations

from collections.abc import Sequence

from ingot import ops
from ingot.frontends.shared.refusal import Unsupported
from ingot.ir.dims import Dim, DimLike, ceildiv, dim_max, is_static
from ingot.ir.node import Node

Pairs = tuple[tuple[int, int], ...]
Padding = tuple[tuple[DimLike, DimLike], ...]


def same_total(size: DimLike, kernel: int, stride: int, dilation: int) -> DimLike:
    """The total "SAME" padding of an axis, for ceil(size / stride) windows; negative where they do not cover it."""
    window = (kernel - 1) * dilation + 1
    return window - 1 if stride == 1 else (ceildiv(size, stride) - 1) * stride + window - size


def same_padding(
    sizes: Sequence[DimLike], kernel: Sequence[int], strides: Sequence[int], dilation: Sequence[int]
) -> Padding:
    """(low, high) of each axis for ceil(size / stride) results; an odd element goes to the high end."""
    totals = [dim_max(same_total(*axis), 0) for axis in zip(sizes, kernel, strides, dilation, strict=True)]
    return tuple((total // 2, total - total // 2) for total in totals)


def pad_first(x: Node, padding: Padding, fill: float, axis: int) -> tuple[Node, Pairs]:
    """x and the padding that remains for the windowed op: dynamic or negative padding becomes a separate op. axis: of
    the first pair."""
    fixed = tuple((low, high) for low, high in padding if isinstance(low, int) and isinstance(high, int))
    if len(fixed) == len(padding) and all(p >= 0 for pair in fixed for p in pair):
        return x, fixed
    trailing_zeros = (0,) * (x.type.rank - axis - len(padding))
    low, high = ((*(0,) * axis, *(pair[i] for pair in padding), *trailing_zeros) for i in (0, 1))
    return ops.pad(x, low, high, fill), ((0, 0),) * len(padding)


def average_pool(
    x: Node, kernel: Sequence[int], strides: Sequence[int], padding: Padding, dilation: Sequence[int],
    ceil_mode: bool = False, count_include_pad: bool = False,
) -> Node:  # fmt: skip
    """Of x[n, c, *spatial]. Padding of dynamic sizes is a separate op, so where it does not count, the elements of each
    window are counted."""
    window = tuple(kernel), tuple(strides)
    is_fixed = not any(isinstance(p, Dim) for pair in padding for p in pair)
    image, pairs = pad_first(x, padding, 0, 2)
    if is_fixed or count_include_pad:
        return ops.AvgPool(*window, pairs, tuple(dilation), ceil_mode, count_include_pad)(image)
    counts, _ = pad_first(ops.full((1, 1, *x.shape[2:]), 1, x.dtype), padding, 0, 2)
    total = ops.AvgPool(*window, pairs, tuple(dilation), ceil_mode, divisor=1)
    return ops.div(total(image), total(counts))


def static_sizes(sizes: Sequence[DimLike], what: str) -> tuple[int, ...]:
    """Raises Unsupported where one is symbolic."""
    if not is_static(sizes):
        raise Unsupported(f"{what} of symbolic sizes {', '.join(map(str, sizes))}")
    return tuple(int(d) for d in sizes)


def resize_linear(x: Node, sizes: Sequence[DimLike], align_corners: bool, half_pixel: bool) -> Node:
    """x[n, h, w, c] to other sizes of h and w."""
    return ops.Resize(tuple(sizes), (1, 2), "linear", _coordinates(align_corners, half_pixel))(x)


def resize_nearest(x: Node, sizes: Sequence[DimLike], align_corners: bool, half_pixel: bool) -> Node:
    coordinates = _coordinates(align_corners, half_pixel)
    # floor((i + 0.5) * scale): half a pixel is added and not subtracted again
    rounding = "floor" if coordinates == "asymmetric" else "round_prefer_ceil"
    return ops.Resize(tuple(sizes), (1, 2), "nearest", coordinates, rounding)(x)


def _coordinates(align_corners: bool, half_pixel: bool) -> str:
    return "align_corners" if align_corners else "half_pixel" if half_pixel else "asymmetric"
