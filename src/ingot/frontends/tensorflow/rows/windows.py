"""Conventions that convolutions and pools share: where channels lie, and how windows are padded.

TensorFlow's images are [batch, *spatial, channels] unless data_format begins with NC. The graph's convolutions and
pools take channels first: between two of them transposes meet and are none, and the layout pass chooses the order in
memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from ingot import ops
from ingot.frontends.shared.composites.windows import Padding, same_padding
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.tensorflow.values import Call
from ingot.ir.dims import DimLike, dim_max, is_negative
from ingot.ir.node import Node


def permuted(x: Node, permutation: tuple[int, ...]) -> Node:
    """The transpose of `x`; its operand, if `x` is the inverse transpose."""
    if isinstance(x.op, ops.Transpose) and tuple(x.op.permutation[p] for p in permutation) == tuple(range(x.type.rank)):
        return x.inputs[0]
    return ops.transpose(x, permutation)


def is_last(c: Call) -> bool:
    return not c.str("data_format", "NHWC").startswith("NC")


def channels_first(c: Call, x: Node) -> Node:
    """An image with the channel axis after the batch, for any data_format of the node."""
    n = x.type.rank
    return permuted(x, (0, n - 1, *range(1, n - 1))) if is_last(c) else x


def channels_as_given(c: Call, y: Node) -> Node:
    """An image with its channels where data_format has them."""
    n = y.type.rank
    return permuted(y, (0, *range(2, n), 1)) if is_last(c) else y


def spatial(c: Call, name: str, rank: int, default: Sequence[int] = ()) -> tuple[int, ...]:
    """Spatial elements of an attribute that has one for each axis of the image. Raises Unsupported where the others,
    batch and channels, are not 1."""
    values = c.ints(name) or tuple(default)
    if not values:
        return (1,) * (rank - 2)
    if len(values) != rank:
        raise Unsupported(f"{name} = {list(values)}")
    inner, outer = (values[1:-1], (values[0], values[-1])) if is_last(c) else (values[2:], values[:2])
    if outer != (1, 1):
        raise Unsupported(f"{name} = {list(values)}, over batches or channels")
    return inner


def padding_of(
    c: Call, sizes: Sequence[DimLike], kernel: Sequence[int], strides: Sequence[int], dilation: Sequence[int]
) -> Padding:
    """(low, high) of each spatial axis; symbolic where SAME depends on a dynamic size."""
    mode = c.str("padding", "VALID")
    if mode == "EXPLICIT":
        flat = c.ints("explicit_paddings")
        pairs = tuple(zip(flat[::2], flat[1::2], strict=True))
        return pairs[1:-1] if is_last(c) else pairs[2:]
    if mode == "SAME":
        return same_padding(sizes, kernel, strides, dilation)
    if mode != "VALID":
        raise Unsupported(f"padding {mode!r}")
    for size, k, d in zip(sizes, kernel, dilation, strict=True):
        room = size - (k - 1) * d - 1
        if not is_negative(room):  # else there is no window, and the result is empty
            c.walk.require(room, f"a window of {(k - 1) * d + 1} on a size of {size}")
    return ((0, 0),) * len(kernel)


def no_windows(
    image: Node, channels: DimLike, padding: Padding, kernel: Sequence[int], strides: Sequence[int],
    dilation: Sequence[int],
) -> Node | None:  # fmt: skip
    """The result of no elements [n, channels, *counts] of an image [n, c, *sizes] that is too short for a window; None
    for others."""
    rooms = [
        size + low + high - (k - 1) * d - 1
        for size, (low, high), k, d in zip(image.shape[2:], padding, kernel, dilation, strict=True)
    ]
    if not any(map(is_negative, rooms)):
        return None
    counts = (dim_max(room // s + 1, 0) for room, s in zip(rooms, strides, strict=True))
    return ops.full((image.shape[0], channels, *counts), 0, image.dtype)
