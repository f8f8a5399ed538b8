"""Movement of elements."""

from __future__ import annotations

from ingot import ops
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.tensorflow.rows import windows
from ingot.frontends.tensorflow.values import Call, Result, Table, normal
from ingot.ir.dims import DimLike, dim_max, exact_quotient
from ingot.ir.node import Node, const
from ingot.ir.types import i64

row = Table()


@row("Reshape")
def reshape(c: Call, x: Node, shape: Node) -> Node:
    return ops.reshape(x, c.lengths(shape))


@row("ExpandDims")
def expand_dims(c: Call, x: Node, axis: Node) -> Node:
    return ops.expand_dims(x, c.axis(axis, x.type.rank + 1))


@row("Squeeze")
def squeeze(c: Call, x: Node) -> Node:
    axes = c.ints("squeeze_dims") or c.ints("axis")
    return ops.squeeze(x, tuple(normal(a, x.type.rank) for a in axes) if axes else None)


@row("Transpose")
def transpose(c: Call, x: Node, permutation: Node) -> Node:
    return windows.permuted(x, tuple(normal(p, x.type.rank) for p in c.numbers(permutation)))


@row("InvertPermutation")
def invert_permutation(c: Call, x: Node) -> Node:
    places = ops.expand_dims(ops.cast(x, i64), 1)
    return ops.ScatterND("none")(ops.full(x.shape, 0, x.dtype), places, ops.arange(x.shape[0], x.dtype))


@row("ConcatV2")
def concat(c: Call, *operands: Node) -> Node:
    *xs, axis = operands
    return _joined(c, xs, axis)


@row("Concat")
def concat_v1(c: Call, axis: Node, *xs: Node) -> Node:
    return _joined(c, xs, axis)


def _joined(c: Call, xs: list[Node] | tuple[Node, ...], axis: Node) -> Node:
    return ops.concat(xs, c.axis(axis, xs[0].type.rank))


@row("Pack")
def pack(c: Call, *xs: Node) -> Node:
    return ops.stack(xs, c.int("axis", 0))


@row("Unpack")
def unpack(c: Call, x: Node) -> Result:
    axis = normal(c.int("axis", 0), x.type.rank)
    return [ops.index_axis(x, axis, i) for i in range(c.int("num"))]


@row("Split")
def split(c: Call, axis: Node, x: Node) -> Result:
    a, count = c.axis(axis, x.type.rank), c.int("num_split")
    each = exact_quotient(x.shape[a], count)
    if each is None:
        raise Unsupported(f"of {x.shape[a]} into {count} parts")
    return ops.split(x, (each,) * count, a)


@row("SplitV")
def split_v(c: Call, x: Node, sizes: Node, axis: Node) -> Result:
    """One size may be -1: what the others leave."""
    a, parts = c.axis(axis, x.type.rank), list(c.sizes(sizes))
    if -1 in parts:
        rest: DimLike = x.shape[a]
        for p in parts:
            rest = rest - (0 if p == -1 else p)
        parts[parts.index(-1)] = rest
    return ops.split(x, parts, a)


@row("Tile")
def tile(c: Call, x: Node, multiples: Node) -> Node:
    for axis, times in enumerate(c.lengths(multiples)):
        if times == 1:
            continue
        wide = ops.broadcast_to(ops.expand_dims(x, axis), (*x.shape[:axis], times, *x.shape[axis:]))
        x = ops.reshape(wide, (*x.shape[:axis], times * x.shape[axis], *x.shape[axis + 1 :]))
    return x


@row("BroadcastTo")
def broadcast_to(c: Call, x: Node, shape: Node) -> Node:
    return ops.broadcast_to(x, c.lengths(shape))


@row("BroadcastArgs")
def broadcast_args(c: Call, a: Node, b: Node) -> Node:
    shape = ops.broadcast_shapes(c.sizes(a), c.sizes(b))
    return ops.stack([ops.scalar(d, a.dtype) for d in shape]) if shape else const([], a.dtype.numpy)


@row("Pad", "PadV2")
def pad(c: Call, x: Node, paddings: Node, value: Node | None = None) -> Node:
    low, high = _amounts(c, paddings)
    return ops.pad(x, low, high, 0 if value is None else value)


@row("MirrorPad")
def mirror_pad(c: Call, x: Node, paddings: Node) -> Node:
    low, high = _amounts(c, paddings)
    if c.str("mode") == "REFLECT":
        return ops.PadMode(low, high, "reflect")(x)
    for axis, (before, behind) in enumerate(zip(low, high, strict=True)):
        # symmetric: the edge is repeated, too
        head = ops.flip(ops.slice_axis(x, axis, 0, before), axis)
        tail = ops.flip(ops.slice_axis(x, axis, x.shape[axis] - behind), axis)
        x = ops.concat([head, x, tail], axis)
    return x


def _amounts(c: Call, paddings: Node) -> tuple[tuple[DimLike, ...], tuple[DimLike, ...]]:
    flat = c.lengths(paddings)
    return flat[::2], flat[1::2]


@row("ReverseV2")
def reverse(c: Call, x: Node, axes: Node) -> Node:
    return ops.flip(x, tuple(normal(a, x.type.rank) for a in c.numbers(axes)))


@row("ReverseSequence")
def reverse_sequence(c: Call, x: Node, lengths: Node) -> Node:
    """Along an axis the first `lengths[batch]` elements from behind, the others as they are."""
    along, batch = c.int("seq_dim"), c.int("batch_dim", 0)
    size = x.shape[along]
    at = ops.reshape(ops.arange(size), tuple(size if i == along else 1 for i in range(x.type.rank)))
    ends = ops.reshape(ops.cast(lengths, i64), tuple(-1 if i == batch else 1 for i in range(x.type.rank)))
    place = ops.where(ops.compare("LT", at, ends), ops.sub(ops.sub(ends, 1), at), at)
    return ops.GatherElements(along)(x, ops.broadcast_to(place, x.shape))


@row("Roll")
def roll(c: Call, x: Node, shift: Node, axis: Node) -> Node:
    for by, a in zip(c.numbers(shift), c.numbers(axis), strict=True):
        dim = normal(a, x.type.rank)
        size = x.shape[dim]
        if size == 0:
            continue
        cut = by % size if isinstance(size, int) else by
        if not isinstance(size, int) and by < 0:
            cut = size + by
        x = ops.concat([ops.slice_axis(x, dim, size - cut), ops.slice_axis(x, dim, 0, size - cut)], dim)
    return x


@row("SpaceToDepth", "DepthToSpace")
def blocks(c: Call, x: Node) -> Node:
    """Blocks of an image as channels, and back. A pixel's place in its block comes before its channel."""
    b = c.int("block_size")
    if c.str("data_format", "NHWC") == "NCHW_VECT_C":
        raise Unsupported("of data_format NCHW_VECT_C")
    image = x if windows.is_last(c) else windows.permuted(x, (0, 2, 3, 1))
    n, h, w, channels = image.shape
    if c.op == "SpaceToDepth":
        cut = ops.reshape(image, (n, _part(h, b), b, _part(w, b), b, channels))
        y = ops.reshape(ops.transpose(cut, (0, 1, 3, 2, 4, 5)), (n, _part(h, b), _part(w, b), b * b * channels))
    else:
        cut = ops.reshape(image, (n, h, w, b, b, _part(channels, b * b)))
        y = ops.reshape(ops.transpose(cut, (0, 1, 3, 2, 4, 5)), (n, h * b, w * b, _part(channels, b * b)))
    return y if windows.is_last(c) else windows.permuted(y, (0, 3, 1, 2))


def _part(size: DimLike, by: int) -> DimLike:
    found = exact_quotient(size, by)
    if found is None:
        raise Unsupported(f"blocks of {by} in a size of {size}")
    return found


@row("SpaceToBatchND")
def space_to_batch(c: Call, x: Node, block: Node, paddings: Node) -> Node:
    b = c.numbers(block)
    low, high = _amounts(c, paddings)
    k, rest = len(b), (0,) * (x.type.rank - len(b) - 1)
    x = ops.pad(x, (0, *low, *rest), (0, *high, *rest))
    sizes = [_part(d, by) for d, by in zip(x.shape[1:], b, strict=False)]
    tail = x.shape[k + 1 :]
    cut = ops.reshape(x, (x.shape[0], *(v for pair in zip(sizes, b, strict=True) for v in pair), *tail))
    order = [2 * i + 2 for i in range(k)] + [0] + [2 * i + 1 for i in range(k)]
    moved = ops.transpose(cut, (*order, *range(2 * k + 1, len(cut.shape))))
    total: DimLike = x.shape[0]
    for by in b:
        total = total * by
    return ops.reshape(moved, (total, *sizes, *tail))


@row("BatchToSpaceND")
def batch_to_space(c: Call, x: Node, block: Node, crops: Node) -> Node:
    b = c.numbers(block)
    low, high = _amounts(c, crops)
    k, times = len(b), 1
    for by in b:
        times *= by
    batch, tail = _part(x.shape[0], times), x.shape[k + 1 :]
    cut = ops.reshape(x, (*b, batch, *x.shape[1:]))
    order = [k, *(v for i in range(k) for v in (k + 1 + i, i))]
    moved = ops.transpose(cut, (*order, *range(2 * k + 1, len(cut.shape))))
    whole = ops.reshape(moved, (batch, *(d * by for d, by in zip(x.shape[1:], b, strict=False)), *tail))
    rest = (0,) * len(tail)
    return ops.pad(whole, (0, *(0 - v for v in low), *rest), (0, *(0 - v for v in high), *rest))


@row("Slice")
def slice_(c: Call, x: Node, begin: Node, size: Node) -> Node:
    """A size of -1: to the end. Starts that only the run knows are clamped."""
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
