"""Ops that move elements: each cotangent moves back, and those of several copies of an element are added."""

from __future__ import annotations

from ingot import ops
from ingot.autodiff.table import constant_everywhere, reverse
from ingot.ir.dims import DimLike
from ingot.ir.node import Node

constant_everywhere(ops.Iota, ops.DimValue)


@reverse(ops.BroadcastInDim)
def _broadcast(node: Node, g: Node) -> list[Node]:
    op, (x,) = node.op, node.inputs
    assert isinstance(op, ops.BroadcastInDim)
    kept_dims = [d for axis, d in enumerate(op.dims) if x.shape[axis] == node.shape[d]]
    summed_dims = [d for d in range(len(node.shape)) if d not in kept_dims]
    summed = ops.reduce_sum(g, summed_dims) if summed_dims else g
    remaining = sorted(kept_dims)
    order = [remaining.index(d) for d in kept_dims]
    transposed = summed if order == sorted(order) else ops.Transpose(tuple(order))(summed)
    return [transposed if transposed.shape == x.shape else ops.Reshape(x.shape)(transposed)]


@reverse(ops.Reshape)
def _reshape(node: Node, g: Node) -> list[Node]:
    return [ops.Reshape(node.inputs[0].shape)(g)]


@reverse(ops.Transpose)
def _transpose(node: Node, g: Node) -> list[Node]:
    assert isinstance(node.op, ops.Transpose)
    permutation = node.op.permutation
    return [ops.Transpose(tuple(permutation.index(d) for d in range(len(permutation))))(g)]


def spread(
    g: Node, starts: tuple[DimLike, ...], steps: tuple[int, ...], shape: tuple[DimLike, ...], fill: Node | None = None
) -> Node:
    """A value of `shape`, filled with zeros or `fill`, with the elements of g from `starts` on at strides `steps`."""
    fill = ops.scalar(0, g.dtype) if fill is None else fill
    if any(d == 0 for d in g.shape):
        return ops.broadcast_to(fill, shape)
    ends = tuple(lo + (n - 1) * step + 1 for lo, n, step in zip(starts, g.shape, steps, strict=True))
    high = tuple(size - end for size, end in zip(shape, ends, strict=True))
    return ops.Pad(starts, high, tuple(step - 1 for step in steps))(g, fill)


@reverse(ops.Slice)
def _slice(node: Node, g: Node) -> list[Node]:
    assert isinstance(node.op, ops.Slice)
    return [spread(g, node.op.start, node.op.strides, node.inputs[0].shape)]


@reverse(ops.Windows)
def _windows(node: Node, g: Node) -> list[Node]:
    op, (x,) = node.op, node.inputs
    assert isinstance(op, ops.Windows)
    total: Node | None = None
    for tap in range(op.size):
        part = ops.index_axis(g, op.dim + 1, tap)
        starts = tuple(tap * op.dilation if d == op.dim else 0 for d in range(len(x.shape)))
        steps = tuple(op.step if d == op.dim else 1 for d in range(len(x.shape)))
        spread_part = spread(part, starts, steps, x.shape)
        total = spread_part if total is None else ops.Add()(total, spread_part)
    assert total is not None
    return [total]


@reverse(ops.Pad)
def _pad(node: Node, g: Node) -> list[Node]:
    op, (x, _) = node.op, node.inputs
    assert isinstance(op, ops.Pad)
    zero = ops.scalar(0, g.dtype)
    if any(d == 0 for d in x.shape):
        return [ops.full(x.shape, 0, g.dtype), ops.reduce_sum(g)]
    rank = len(x.shape)
    cropped = ops.Pad(tuple(-d for d in op.low), tuple(-d for d in op.high), (0,) * rank)(g, zero)
    steps = tuple(i + 1 for i in op.interior)
    of_x = cropped if set(steps) <= {1} else ops.Slice((0,) * rank, cropped.shape, steps)(cropped)
    return [of_x, ops.sub(ops.reduce_sum(g), ops.reduce_sum(of_x))]


@reverse(ops.Concat)
def _concat(node: Node, g: Node) -> list[Node]:
    assert isinstance(node.op, ops.Concat)
    axis = node.op.dimension
    return list(ops.split(g, [x.shape[axis] for x in node.inputs], axis))


@reverse(ops.Reverse)
def _reverse(node: Node, g: Node) -> list[Node]:
    return [node.op(g)]


@reverse(ops.DynamicSlice)
def _dynamic_slice(node: Node, g: Node) -> list[Node | None]:
    x, *starts = node.inputs
    zeros = ops.full(x.shape, 0, g.dtype)
    return [ops.DynamicUpdateSlice()(zeros, g, *starts), *(None for _ in starts)]


@reverse(ops.DynamicUpdateSlice)
def _dynamic_update_slice(node: Node, g: Node) -> list[Node | None]:
    _, update, *starts = node.inputs
    zeros = ops.full(update.shape, 0, g.dtype)
    of_update = ops.DynamicSlice(update.shape)(g, *starts)
    return [ops.DynamicUpdateSlice()(g, zeros, *starts), of_update, *(None for _ in starts)]


def moved_last(x: Node, axes: tuple[int, ...]) -> Node:
    """x with `axes` moved to the end and flattened to one axis."""
    other_axes = [d for d in range(len(x.shape)) if d not in axes]
    transposed = ops.Transpose((*other_axes, *axes))(x)
    return ops.flatten(transposed, len(other_axes), -1) if axes else ops.expand_dims(transposed, -1)


def moved_back(x: Node, axes: tuple[int, ...], like: Node) -> Node:
    """The inverse of `moved_last`, with the shape of `like`."""
    other_axes = [d for d in range(len(like.shape)) if d not in axes]
    order = (*other_axes, *axes)
    split = ops.Reshape(tuple(like.shape[d] for d in order))(x)
    return ops.Transpose(tuple(order.index(d) for d in range(len(order))))(split)
