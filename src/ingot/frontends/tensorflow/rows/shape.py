"""Movement of elements."""

from __future__ import annotations

from collections.abc import Sequence

from ingot import ops
from ingot.frontends.shared.composites import movement
from ingot.frontends.shared.composites.movement import normal_axis
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.shared.sizes import solved
from ingot.frontends.tensorflow.rows import windows
from ingot.frontends.tensorflow.values import Call, Result, Table
from ingot.ir.dims import Dim, DimLike, dim_max, exact_quotient, product
from ingot.ir.node import Const, Node
from ingot.ir.types import i64
from ingot.support.errors import ShapeError

row = Table()


@row("Reshape")
def reshape(c: Call, x: Node, shape: Node) -> Node:
    sizes = c.lengths(shape)
    if -1 in sizes and 0 in sizes and 0 in x.shape:  # zeros are left out on both sides
        rest = exact_quotient(product(d for d in x.shape if d != 0), product(d for d in sizes if d not in (0, -1)))
        sizes = tuple(rest if d == -1 and rest is not None else d for d in sizes)
    try:
        return ops.reshape(x, sizes)
    except ShapeError as error:
        a, b = error.sizes or (0, 0)
        if isinstance(a, int | Dim) and isinstance(b, int | Dim) and solved(a, b) is not None:
            raise  # the importer tries again with them equated
        return movement.checked_reshape(x, sizes, c.walk.require_equal)


@row("ExpandDims")
def expand_dims(c: Call, x: Node, axis: Node) -> Node:
    return ops.expand_dims(x, c.axis(axis, x.type.rank + 1))


@row("Squeeze")
def squeeze(c: Call, x: Node) -> Node:
    axes = c.ints("squeeze_dims") or c.ints("axis")
    return ops.squeeze(x, tuple(normal_axis(a, x.type.rank) for a in axes) if axes else None)


@row("Transpose")
def transpose(c: Call, x: Node, permutation: Node) -> Node:
    return windows.permuted(x, tuple(normal_axis(p, x.type.rank) for p in c.numbers(permutation)))


@row("InvertPermutation")
def invert_permutation(c: Call, x: Node) -> Node:
    places = ops.expand_dims(ops.cast(x, i64), 1)
    return ops.ScatterND("none")(ops.full(x.shape, 0, x.dtype), places, ops.arange(x.shape[0], x.dtype))


@row("ConcatV2")
def concat(c: Call, *operands: Node) -> Node:
    *xs, axis = operands
    return _concat(c, xs, axis)


@row("Concat")
def concat_v1(c: Call, axis: Node, *xs: Node) -> Node:
    return _concat(c, xs, axis)


def _concat(c: Call, xs: list[Node] | tuple[Node, ...], axis: Node) -> Node:
    return ops.concat(xs, c.axis(axis, xs[0].type.rank))


@row("Pack")
def pack(c: Call, *xs: Node) -> Node:
    return ops.stack(xs, c.int("axis", 0))


@row("Unpack")
def unpack(c: Call, x: Node) -> Result:
    axis = normal_axis(c.int("axis", 0), x.type.rank)
    return [ops.index_axis(x, axis, i) for i in range(c.int("num"))]


@row("Split")
def split(c: Call, axis: Node, x: Node) -> Result:
    a, count = c.axis(axis, x.type.rank), c.int("num_split")
    part_size = exact_quotient(x.shape[a], count)
    if part_size is None:
        raise Unsupported(f"of {x.shape[a]} into {count} parts")
    return ops.split(x, (part_size,) * count, a)


@row("SplitV")
def split_v(c: Call, x: Node, sizes: Node, axis: Node) -> Result:
    """One size may be -1: what the others leave."""
    a = c.axis(axis, x.type.rank)
    return ops.split(x, movement.split_sizes(c.sizes(sizes), x.shape[a]), a)


@row("Tile")
def tile(c: Call, x: Node, multiples: Node) -> Node:
    return movement.tile(x, c.lengths(multiples))


@row("BroadcastTo")
def broadcast_to(c: Call, x: Node, shape: Node) -> Node:
    return ops.broadcast_to(x, c.lengths(shape))


@row("BroadcastArgs")
def broadcast_args(c: Call, a: Node, b: Node) -> Node:
    return movement.sizes_vector(ops.broadcast_shapes(c.sizes(a), c.sizes(b)), a.dtype)


@row("Pad", "PadV2")
def pad(c: Call, x: Node, paddings: Node, value: Node | None = None) -> Node:
    low, high = _amounts(c, paddings)
    return ops.pad(x, low, high, 0 if value is None else value)


@row("MirrorPad")
def mirror_pad(c: Call, x: Node, paddings: Node) -> Node:
    low, high = _amounts(c, paddings)
    return movement.mirror_pad(x, low, high, repeats_edge=c.str("mode") != "REFLECT")


def _amounts(c: Call, paddings: Node) -> tuple[tuple[DimLike, ...], tuple[DimLike, ...]]:
    flat = c.lengths(paddings)
    return flat[::2], flat[1::2]


@row("ReverseV2")
def reverse(c: Call, x: Node, axes: Node) -> Node:
    return ops.flip(x, tuple(normal_axis(a, x.type.rank) for a in c.numbers(axes)))


@row("ReverseSequence")
def reverse_sequence(c: Call, x: Node, lengths: Node) -> Node:
    axis, batch = (normal_axis(c.int(name, 0), x.type.rank) for name in ("seq_dim", "batch_dim"))
    return movement.reverse_sequence(x, lengths, axis, batch)


@row("Roll")
def roll(c: Call, x: Node, shift: Node, axis: Node) -> Node:
    axes = c.numbers(axis)
    shifts: Sequence[DimLike | Node]
    if isinstance(shift.op, Const):
        shifts = c.numbers(shift)
    else:
        line = ops.reshape(shift, (len(axes),))
        shifts = [ops.index_axis(line, 0, i) for i in range(len(axes))]
    for by, a in zip(shifts, axes, strict=True):
        x = movement.roll(x, normal_axis(a, x.type.rank), by)
    return x


@row("SpaceToDepth", "DepthToSpace")
def blocks(c: Call, x: Node) -> Node:
    """Blocks of an image as channels, and back. A pixel's place in its block comes before its channel."""
    b = c.int("block_size")
    if c.str("data_format", "NHWC") == "NCHW_VECT_C":
        raise Unsupported("of data_format NCHW_VECT_C")
    image = x if windows.is_last(c) else windows.permuted(x, (0, 2, 3, 1))
    y = (movement.space_to_depth if c.op == "SpaceToDepth" else movement.depth_to_space)(image, b)
    return y if windows.is_last(c) else windows.permuted(y, (0, 3, 1, 2))


@row("SpaceToBatchND")
def space_to_batch(c: Call, x: Node, block: Node, paddings: Node) -> Node:
    return movement.space_to_batch(x, c.numbers(block), *_amounts(c, paddings))


@row("BatchToSpaceND")
def batch_to_space(c: Call, x: Node, block: Node, crops: Node) -> Node:
    return movement.batch_to_space(x, c.numbers(block), *_amounts(c, crops))


@row("Slice")
def slice_(c: Call, x: Node, begin: Node, size: Node) -> Node:
    """A size of -1 extends to the end. Starts that are known only at run time are clamped."""
    sizes = c.sizes(size)
    try:
        starts = c.sizes(begin)
    except Unsupported:
        if -1 in sizes:
            raise
        at = [ops.index_axis(begin, 0, i) for i in range(x.type.rank)]
        return ops.DynamicSlice(sizes)(x, *at)
    limits = tuple(d if n == -1 else dim_max(s + n, s) for s, n, d in zip(starts, sizes, x.shape, strict=True))
    return ops.Slice(starts, limits, (1,) * x.type.rank)(x)
