"""What convolutions and pools share: where channels lie, and how windows are padded.

TensorFlow's images are [batch, *spatial, channels] unless data_format begins with NC. The graph's convolutions and
pools take channels first: between two of them transposes meet and are none, and the layout pass chooses the order in
memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from ingot import ops
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.tensorflow.values import Call
from ingot.ir.dims import Dim, DimLike, ceildiv, dim_max
from ingot.ir.node import Node

Pairs = tuple[tuple[int, int], ...]
Padding = tuple[tuple[DimLike, DimLike], ...]


def permuted(x: Node, permutation: tuple[int, ...]) -> Node:
    """A transpose that takes back the one that made `x`, if it does."""
    if isinstance(x.op, ops.Transpose) and tuple(x.op.permutation[p] for p in permutation) == tuple(range(x.type.rank)):
        return x.inputs[0]
    return ops.transpose(x, permutation)


def is_last(c: Call) -> bool:
    return not c.str("data_format", "NHWC").startswith("NC")


def first(c: Call, x: Node) -> Node:
    """An image with its channels behind the batch, wherever the node's data_format has them."""
    n = x.type.rank
    return permuted(x, (0, n - 1, *range(1, n - 1))) if is_last(c) else x


def back(c: Call, y: Node) -> Node:
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
    out: list[tuple[DimLike, DimLike]] = []
    for size, k, s, d in zip(sizes, kernel, strides, dilation, strict=True):
        window = (k - 1) * d + 1
        if mode == "VALID":
            room = size - window
            c.walk.require(room, f"a window of {window} on a size of {size}")
            out.append((0, 0))
            continue
        if mode != "SAME":
            raise Unsupported(f"padding {mode!r}")
        total = window - 1 if s == 1 else dim_max((ceildiv(size, s) - 1) * s + window - size, 0)
        out.append((total // 2, total - total // 2))
    return tuple(out)


def padded(x: Node, padding: Padding, fill: float) -> tuple[Node, Pairs]:
    """Padding that is dynamic as an op of its own, other padding as it is."""
    fixed = tuple((low, high) for low, high in padding if isinstance(low, int) and isinstance(high, int))
    if len(fixed) == len(padding):
        return x, fixed
    low, high = ((0, 0, *(pair[i] for pair in padding)) for i in (0, 1))
    return ops.pad(x, low, high, fill), ((0, 0),) * len(padding)


def static(sizes: Sequence[DimLike], what: str) -> tuple[int, ...]:
    if any(isinstance(d, Dim) for d in sizes):
        raise Unsupported(f"{what} of dynamic size")
    return tuple(int(d) for d in sizes)
