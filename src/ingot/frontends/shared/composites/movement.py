"""Ops that move elements: tiles, mirrored borders, blocks between space, channels and batch, slices by masks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ingot import ops
from ingot.frontends.shared.refusal import Unsupported
from ingot.ir.dims import MAX_SIZE, Dim, DimLike, ceildiv, dim_max, exact_quotient, floordiv, mod, product, sign_bit
from ingot.ir.node import Node, const
from ingot.ir.types import DType, f32, i32, i64
from ingot.support.errors import ShapeError

# (x, axis, begin or None, end or None, step) -> the slice
SliceAxis = Callable[..., Node]


def normal_axis(axis: int, rank: int) -> int:
    """`axis` counted from the front. Raises Unsupported where it is out of range."""
    if not -rank <= axis < rank:
        raise Unsupported(f"axis {axis} of a tensor of rank {rank}")
    return axis % rank


def sizes_vector(dims: Sequence[DimLike], dtype: DType) -> Node:
    return ops.stack([ops.scalar(d, dtype) for d in dims]) if dims else ops.full((0,), 0, dtype)


def range_length(first: DimLike, limit: DimLike, step: DimLike) -> DimLike:
    """The number of integers from `first` before `limit`. Raises Unsupported for a step of 0 or a symbolic one."""
    if not isinstance(step, int) or step == 0:
        raise Unsupported(f"a step of {step}")
    return dim_max(ceildiv(limit - first, step) if step > 0 else ceildiv(first - limit, -step), 0)


def one_hot(indices: Node, depth: DimLike, axis: int, on_value: Node, off_value: Node) -> Node:
    """`off_value` with `on_value` at each index along a new axis of size `depth`; none for an index out of range."""
    line = ops.iota(tuple(depth if i == axis else 1 for i in range(indices.type.rank + 1)), axis, indices.dtype)
    return ops.where(ops.compare("EQ", ops.expand_dims(indices, axis), line), on_value, off_value)


def buckets_of(x: Node, boundaries: Sequence[float] | np.ndarray) -> Node:
    """i32: for each number, how many boundaries are less or equal."""
    is_below = ops.compare("LE", const(np.asarray(boundaries, np.float32)), ops.expand_dims(ops.cast(x, f32), -1))
    return ops.reduce_sum(ops.cast(is_below, i32), -1)


def cut(x: Node, axis: int, start: DimLike, limit: DimLike, step: int = 1) -> Node:
    """x[start:limit:step] along `axis`, 0 <= start <= limit <= size: nothing is clamped."""
    if start == 0 and limit == x.shape[axis] and step == 1:
        return x
    rank = x.type.rank
    starts = tuple(start if i == axis else 0 for i in range(rank))
    limits = tuple(limit if i == axis else d for i, d in enumerate(x.shape))
    return ops.Slice(starts, limits, tuple(step if i == axis else 1 for i in range(rank)))(x)


def with_shape(x: Node, shape: tuple[DimLike, ...]) -> Node:
    """The first elements of `x` along each axis: what counts of a buffer, or all of it, with sizes rewritten as equal
    ones, which Dim cannot prove equal."""
    return x if x.shape == shape else ops.Slice((0,) * len(shape), shape, (1,) * len(shape))(x)


def checked_reshape(
    x: Node, shape: Sequence[DimLike], require_equal: Callable[[DimLike, DimLike, str], None]
) -> Node:  # fmt: skip
    """A reshape that is valid only for some sizes, which `require_equal` makes conditions of the program. A size of -1
    holds the remaining elements; a symbolic one may be -1 in a call."""
    holes = [sign_bit(d) for d in shape]
    known_sizes = [d if hole == 0 else dim_max(d + 2 * hole, 0) for d, hole in zip(shape, holes, strict=True)]
    # unchanged sizes cancel in the quotient of the element counts
    kept_sizes, requested = list(x.shape), list(known_sizes)
    for d in known_sizes:
        if d in kept_sizes:
            kept_sizes.remove(d)
            requested.remove(d)
    quotient = floordiv(product(kept_sizes), dim_max(product(requested), 1))
    sizes = tuple(
        d if hole == 0 else dim_max(d + hole * (quotient - 1), 0) for d, hole in zip(known_sizes, holes, strict=True)
    )
    require_equal(product(sizes), x.type.size, f"a reshape of {x.type}")
    # a slice of everything: it rewrites the size in terms of the result's sizes
    flat = with_shape(ops.reshape(x, (x.type.size,)), (product(sizes),))
    return ops.reshape(flat, sizes)


def tile(x: Node, repeats: Sequence[DimLike]) -> Node:
    """x repeated `repeats[i]` times along axis i."""
    if all(r == 1 for r in repeats):
        return x
    wide = tuple(d for pair in zip(repeats, x.shape, strict=True) for d in pair)
    repeated = ops.BroadcastInDim(wide, tuple(range(1, 2 * x.type.rank, 2)))(x)
    return ops.reshape(repeated, tuple(r * d for r, d in zip(repeats, x.shape, strict=True)))


def mirror_pad(x: Node, low: Sequence[DimLike], high: Sequence[DimLike], *, repeats_edge: bool) -> Node:
    """x between mirror images of its first and last elements. Raises ShapeError where it has fewer than are mirrored:
    for open sizes that is a condition of the program."""
    first = 0 if repeats_edge else 1
    for axis, (low_amount, high_amount) in enumerate(zip(low, high, strict=True)):
        last = x.shape[axis] - first
        head = ops.exact_slice(x, axis, first, first + low_amount)
        tail = ops.exact_slice(x, axis, last - high_amount, last)
        parts = ((ops.flip(head, axis), low_amount), (x, 1), (ops.flip(tail, axis), high_amount))
        x = ops.concat([part for part, n in parts if n != 0], axis)
    return x


def reverse_sequence(x: Node, lengths: Node, axis: int, batch: int) -> Node:
    """Reverse the first `lengths[i]` elements along an axis for each entry i of axis `batch`. Raises ShapeError unless
    there is one length for each entry of the batch."""
    if lengths.shape != (x.shape[batch],):
        error = ShapeError("reverse_sequence", expected=f"lengths of [{x.shape[batch]}]", got=lengths.type)
        raise error.between((x.shape[batch], lengths.shape[0]) if lengths.type.rank == 1 else None)
    positions = ops.reshape(ops.arange(x.shape[axis]), tuple(-1 if i == axis else 1 for i in range(x.type.rank)))
    ends = ops.reshape(ops.cast(lengths, i64), tuple(-1 if i == batch else 1 for i in range(x.type.rank)))
    source = ops.where(ops.compare("LT", positions, ends), ops.sub(ops.sub(ends, 1), positions), positions)
    return ops.GatherElements(axis)(x, ops.broadcast_to(source, x.shape))


def roll(x: Node, axis: int, shift: DimLike | Node) -> Node:
    """result[i] = x[(i - shift) mod size] along an axis. shift: any number, or an integer scalar."""
    size = x.shape[axis]
    if isinstance(shift, int) and abs(shift) > MAX_SIZE:
        shift = ops.scalar(shift, i64)
    if not isinstance(shift, Node):
        cut = mod(-shift, dim_max(size, 1))
        parts = (ops.slice_axis(x, axis, cut, size), ops.slice_axis(x, axis, 0, cut))
        return x if cut == 0 else ops.concat(parts, axis)
    # the remainder is taken first: a shift may be the smallest integer of its type
    source = ops.sub(ops.arange(size), ops.rem(ops.cast(shift, i64), ops.scalar(dim_max(size, 1), i64)))
    source = ops.where(ops.compare("LT", source, 0), ops.add(source, size), source)
    return ops.Take(axis)(x, ops.where(ops.compare("GE", source, ops.scalar(size, i64)), ops.sub(source, size), source))


def gather(x: Node, indices: Node, axis: int, batch: int) -> Node:
    """Slices of x along an axis; the first `batch` axes of x and of the indices are shared. Raises Unsupported for an
    impossible number of these."""
    if not 0 <= batch <= min(axis, indices.type.rank):
        raise Unsupported(f"{batch} batch dimensions before axis {axis}")
    if not batch:
        return ops.Take(axis)(x, indices)
    # move the gathered axis right after the batch axes; the axes between them end up after the indices' axes
    between = axis - batch
    order = [*range(batch), axis, *(i for i in range(batch, x.type.rank) if i != axis)]
    rows = ops.GatherND(batch)(ops.transpose(x, order), ops.expand_dims(indices, -1))
    n = indices.type.rank
    result_order = [*range(batch), *range(n, n + between), *range(batch, n), *range(n + between, rows.type.rank)]
    return ops.transpose(rows, result_order)


def to_dense(indices: Node, shape: Sequence[DimLike], values: Node, default: Node) -> Node:
    """A sparse tensor's values at `indices` [n, rank] (or [n], or one number), `default` elsewhere."""
    rank = indices.type.rank
    indices = indices if rank == 2 else ops.reshape(indices, (-1, 1) if rank else (1, 1))
    values = ops.broadcast_to(values, (indices.shape[0],))
    return ops.ScatterND()(ops.broadcast_to(default, tuple(shape)), ops.cast(indices, i64), values)


def split_sizes(sizes: Sequence[DimLike], total: DimLike) -> list[DimLike]:
    """Sizes of parts, of which one may be -1: the remainder."""
    rest = total
    for d in sizes:
        rest = rest - (0 if d == -1 else d)
    return [rest if d == -1 else d for d in sizes]


# --- blocks


def divide_exactly(size: DimLike, by: int) -> DimLike:
    """Raises Unsupported where `by` does not divide the size."""
    part = exact_quotient(size, by)
    if part is None:
        raise Unsupported(f"blocks of {by} in a size of {size}")
    return part


def space_to_depth(x: Node, b: int) -> Node:
    """[n, h b, w b, c] -> [n, h, w, b b c]"""
    n, rows, columns, channels = x.shape
    h, w = divide_exactly(rows, b), divide_exactly(columns, b)
    blocks = ops.transpose(ops.reshape(x, (n, h, b, w, b, channels)), (0, 1, 3, 2, 4, 5))
    return ops.reshape(blocks, (n, h, w, b * b * channels))


def depth_to_space(x: Node, b: int) -> Node:
    """[n, h, w, b b c] -> [n, h b, w b, c]"""
    n, h, w, depth = x.shape
    channels = divide_exactly(depth, b * b)
    blocks = ops.transpose(ops.reshape(x, (n, h, w, b, b, channels)), (0, 1, 3, 2, 4, 5))
    return ops.reshape(blocks, (n, h * b, w * b, channels))


def space_to_batch(
    x: Node, block: Sequence[int], low: Sequence[DimLike], high: Sequence[DimLike], fill: float = 0
) -> Node:
    """[n, h b, ...] -> [b n, h, ...] of a padded x: the position in a block is the outermost part of the batch."""
    k, tail = len(block), x.shape[len(block) + 1 :]
    x = ops.pad(x, (0, *low, *(0,) * len(tail)), (0, *high, *(0,) * len(tail)), ops.scalar(fill, x.dtype))
    sizes = [divide_exactly(d, b) for d, b in zip(x.shape[1 : k + 1], block, strict=True)]
    cut = ops.reshape(x, (x.shape[0], *(v for pair in zip(sizes, block, strict=True) for v in pair), *tail))
    order = (*range(2, 2 * k + 1, 2), 0, *range(1, 2 * k + 1, 2), *range(2 * k + 1, cut.type.rank))
    return ops.reshape(ops.transpose(cut, order), (x.shape[0] * math.prod(block), *sizes, *tail))


def batch_to_space(x: Node, block: Sequence[int], low: Sequence[DimLike], high: Sequence[DimLike]) -> Node:
    """The inverse, from which `low` and `high` elements are then cropped."""
    k, tail = len(block), x.shape[len(block) + 1 :]
    batch, sizes = divide_exactly(x.shape[0], math.prod(block)), x.shape[1 : k + 1]
    cut = ops.reshape(x, (*block, batch, *sizes, *tail))
    order = (k, *(v for i in range(k) for v in (k + 1 + i, i)), *range(2 * k + 1, cut.type.rank))
    result = ops.reshape(ops.transpose(cut, order), (batch, *map(product, zip(sizes, block, strict=True)), *tail))
    for axis, (low_amount, high_amount) in enumerate(zip(low, high, strict=True), 1):
        result = ops.slice_axis(result, axis, low_amount, result.shape[axis] - high_amount)
    return result


# --- slices by masks

MASKS = ("begin", "end", "ellipsis", "new_axis", "shrink_axis")


def _element(x: Node, axis: int, index: DimLike | Node) -> Node:
    """x[index] along an axis. A size that may be out of range is clamped, as an index that only the run knows is."""
    if isinstance(index, Dim):
        row = ops.slice_axis(x, axis, index, index + 1)
        if row.shape[axis] == 1:
            return ops.squeeze(row, axis)
        index = ops.scalar(index, i64)
    return ops.Take(axis)(x, index) if isinstance(index, Node) else ops.index_axis(x, axis, index)


def strided_slice(
    x: Node, starts: Sequence[DimLike | Node], ends: Sequence[DimLike | Node], steps: Sequence[int],
    masks: Mapping[str, int], slice_axis: SliceAxis,
) -> Node:  # fmt: skip
    """numpy's basic indexing, encoded in masks: bit i applies to element i of `starts`."""

    def has(name: str, i: int) -> bool:
        return bool(masks[name] >> i & 1)

    axis = 0
    count = sum(not has("new_axis", i) and not has("ellipsis", i) for i in range(len(steps)))
    if count > x.type.rank:
        raise Unsupported(f"{count} indices of rank {x.type.rank}")
    for i, (begin, end, step) in enumerate(zip(starts, ends, steps, strict=True)):
        if has("ellipsis", i):
            # skip the axes that the following elements do not use; those that add an axis use none
            axis = x.type.rank - sum(not has("new_axis", k) for k in range(i + 1, len(steps)))
        elif has("new_axis", i):
            x = ops.expand_dims(x, axis)
            axis += 1
        elif has("shrink_axis", i):
            x = _element(x, axis, begin)
        else:
            x = slice_axis(x, axis, None if has("begin", i) else begin, None if has("end", i) else end, step)
            axis += 1
    return x
