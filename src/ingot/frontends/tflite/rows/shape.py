"""What moves elements or makes shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ingot import ops
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.tflite.call import Call, Table
from ingot.ir import types as T
from ingot.ir.dims import DimLike, product
from ingot.ir.node import Node

row = Table()


def axis_of(axis: int, rank: int) -> int:
    if not -rank <= axis < rank:
        raise Unsupported(f"axis {axis} of rank {rank}")
    return axis % rank


def vector(dims: Sequence[DimLike], dtype: T.DType) -> Node:
    """Sizes as a tensor."""
    return ops.stack([ops.scalar(d, dtype) for d in dims]) if dims else ops.full((0,), 0, dtype)


@row("RESHAPE", moves=True)
def reshape(c: Call) -> Node:
    if c.has(1):
        shape = c.dims(1)
    else:
        # files of old say [0] for a scalar
        shape = c.list("new_shape") if c.list("new_shape") != (0,) else ()
    return ops.reshape(c.x(), shape, c.loc)


@row("SQUEEZE", moves=True)
def squeeze(c: Call) -> Node:
    axes = c.list("squeeze_dims")
    return ops.squeeze(c.x(), axes or None, c.loc)


@row("EXPAND_DIMS", moves=True)
def expand_dims(c: Call) -> Node:
    return ops.expand_dims(c.x(), c.ints(1)[0], c.loc)


@row("TRANSPOSE", moves=True)
def transpose(c: Call) -> Node:
    return ops.transpose(c.x(), c.ints(1), c.loc)


@row("SLICE", moves=True)
def slice_(c: Call) -> Node:
    x, sizes = c.x(), c.dims(2)
    try:
        starts = c.dims(1)
    except Unsupported:
        return _dynamic_slice(c, x, sizes)
    for axis, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        stop = x.shape[axis] if size == -1 else start + size
        x = ops.slice_axis(x, axis, start, stop, loc=c.loc)
    return x


def _dynamic_slice(c: Call, x: Node, sizes: Sequence[DimLike]) -> Node:
    if any(isinstance(d, int) and d < 0 for d in sizes):
        raise Unsupported("a size up to the end from a start that only the run knows")
    starts = [ops.index_axis(c.x(1), 0, i) for i in range(len(sizes))]
    return ops.DynamicSlice(tuple(sizes))(x, *starts, loc=c.loc)


@row("STRIDED_SLICE", moves=True)
def strided_slice(c: Call) -> Node:
    """Python's x[begin:end:stride, ...], the special indices of an axis told by bits."""
    x, begins, ends, strides = c.x(), c.dims(1), c.dims(2), c.ints(3)
    masks = {name: c.int(f"{name}_mask") for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")}

    def has(name: str, i: int) -> bool:
        return bool(masks[name] >> i & 1)

    axis = 0
    shrunk: list[int] = []
    given = sum(not has("new_axis", i) and not has("ellipsis", i) for i in range(len(begins)))
    if given > len(x.shape):
        raise Unsupported(f"{given} indices of rank {len(x.shape)}")
    rest = len(x.shape) - given
    for i, (begin, end, stride) in enumerate(zip(begins, ends, strides, strict=True)):
        if has("ellipsis", i):
            axis, rest = axis + rest, 0
        elif has("new_axis", i):
            x = ops.expand_dims(x, axis, c.loc)
            axis += 1
        elif has("shrink_axis", i):
            at = begin + x.shape[axis] if isinstance(begin, int) and begin < 0 else begin
            x = ops.slice_axis(x, axis, at, at + 1, loc=c.loc)
            shrunk.append(axis)
            axis += 1
        else:
            last = begin + end if c.flag("offset") else end
            start, stop = (None if has("begin", i) else begin), (None if has("end", i) else last)
            x = ops.slice_axis(x, axis, start, stop, stride, c.loc)
            axis += 1
    return ops.squeeze(x, shrunk, c.loc) if shrunk else x


@row("SPLIT", moves=True)
def split(c: Call) -> tuple[Node, ...]:
    # the axis comes first
    axis, x, count = axis_of(c.ints(0)[0], len(c.x(1).shape)), c.x(1), len(c.results)
    size = x.shape[axis]
    if not isinstance(size, int) or size % count:
        raise Unsupported(f"an axis of {size} in {count} parts")
    return ops.split(x, [size // count] * count, axis, c.loc)


@row("SPLIT_V", moves=True)
def split_v(c: Call) -> tuple[Node, ...]:
    x, sizes, axis = c.x(0), list(c.dims(1)), axis_of(c.ints(2)[0], len(c.x(0).shape))
    if -1 in sizes:
        hole = sizes.index(-1)
        sizes[hole] = x.shape[axis] - sum(d for i, d in enumerate(sizes) if i != hole)
    return ops.split(x, sizes, axis, c.loc)


@row("CONCATENATION")
def concatenation(c: Call) -> Node:
    return c.activation(ops.concat(c.xs(), c.int("axis"), c.loc))


@row("PACK", moves=True)
def pack(c: Call) -> Node:
    return ops.stack(c.xs(), c.int("axis"), c.loc)


@row("UNPACK", moves=True)
def unpack(c: Call) -> tuple[Node, ...]:
    return tuple(ops.index_axis(c.x(), c.int("axis"), i, c.loc) for i in range(len(c.results)))


def _pads(c: Call) -> tuple[tuple[DimLike, ...], tuple[DimLike, ...]]:
    dims = c.dims(1)
    return dims[::2], dims[1::2]


@row("PAD", "PADV2", moves=True)
def pad(c: Call) -> Node:
    x = c.x()
    # of levels: what stands for 0
    zero = c.levels().zero if c.is_quantized() else 0
    value = ops.reshape(c.x(2), ()) if c.has(2) else ops.scalar(zero, x.dtype)
    return ops.pad(x, *_pads(c), value, loc=c.loc)


@row("MIRROR_PAD", moves=True)
def mirror_pad(c: Call) -> Node:
    x, (lows, highs) = c.x(), _pads(c)
    if c.int("mode") == 0:
        return ops.PadMode(lows, highs, "reflect")(x, loc=c.loc)
    for axis, (low, high) in enumerate(zip(lows, highs, strict=True)):
        if not isinstance(low, int) or not isinstance(high, int):
            raise Unsupported("symmetric padding by symbolic sizes")
        size = x.shape[axis]
        parts = [ops.flip(ops.slice_axis(x, axis, 0, low), axis)] if low else []
        parts += [x]
        parts += [ops.flip(ops.slice_axis(x, axis, size - high, size), axis)] if high else []
        x = ops.concat(parts, axis, c.loc)
    return x


@row("TILE", moves=True)
def tile(c: Call) -> Node:
    x, repeats = c.x(), c.dims(1)
    wide = tuple(n for r, d in zip(repeats, x.shape, strict=True) for n in (r, d))
    spread = ops.BroadcastInDim(wide, tuple(range(1, 2 * len(x.shape), 2)))(x, loc=c.loc)
    return ops.reshape(spread, tuple(r * d for r, d in zip(repeats, x.shape, strict=True)), c.loc)


@row("BROADCAST_TO", moves=True)
def broadcast_to(c: Call) -> Node:
    return ops.broadcast_to(c.x(), c.dims(1), c.loc)


@row("BROADCAST_ARGS")
def broadcast_args(c: Call) -> Node:
    return vector(ops.broadcast_shapes(c.dims(0), c.dims(1)), c.type())


@row("FILL", stored=True)
def fill(c: Call) -> Node:
    return ops.broadcast_to(c.x(1), c.dims(0), c.loc)


@row("REVERSE_V2", moves=True)
def reverse(c: Call) -> Node:
    return ops.flip(c.x(), c.ints(1), c.loc)


@row("SHAPE", stored=True)
def shape(c: Call) -> Node:
    return vector(c.x().shape, c.type())


@row("RANK", stored=True)
def rank(c: Call) -> Node:
    return ops.scalar(len(c.x().shape), c.type())


@row("RANGE")
def range_(c: Call) -> Node:
    dtype = c.type()
    if dtype.is_float:
        values = [_known(c, i) for i in range(3)]
        count: DimLike = max(0, math.ceil((values[1] - values[0]) / values[2]))
    else:
        (start,), (stop,), (step,) = (c.dims(i) for i in range(3))
        if not isinstance(step, int) or step == 0:
            raise Unsupported(f"a step of {step}")
        span = stop - start if step > 0 else start - stop
        count = -(-span // abs(step)) if isinstance(span, int) else _ceil(span, abs(step))
        count = max(0, count) if isinstance(count, int) else count
    places = ops.arange(count, dtype, c.loc)
    return ops.add(ops.mul(places, c.x(2)), c.x(0), c.loc)


def _ceil(size: DimLike, by: int) -> DimLike:
    return (size + (by - 1)) // by


def _known(c: Call, i: int) -> float:
    (value,) = c.importer.sizes.elements(c.x(i)).reshape(-1)
    return float(value)


@row("SPACE_TO_DEPTH", moves=True)
def space_to_depth(c: Call) -> Node:
    """[n, h b, w b, c] -> [n, h, w, b b c]"""
    b, (n, h, w, depth) = c.int("block_size"), c.x().shape
    blocks = ops.reshape(c.x(), (n, h // b, b, w // b, b, depth), c.loc)
    return ops.reshape(ops.transpose(blocks, (0, 1, 3, 2, 4, 5)), (n, h // b, w // b, b * b * depth), c.loc)


@row("DEPTH_TO_SPACE", moves=True)
def depth_to_space(c: Call) -> Node:
    """[n, h, w, b b c] -> [n, h b, w b, c]"""
    b, (n, h, w, depth) = c.int("block_size"), c.x().shape
    blocks = ops.reshape(c.x(), (n, h, w, b, b, depth // (b * b)), c.loc)
    return ops.reshape(ops.transpose(blocks, (0, 1, 3, 2, 4, 5)), (n, h * b, w * b, depth // (b * b)), c.loc)


@row("SPACE_TO_BATCH_ND", moves=True)
def space_to_batch(c: Call) -> Node:
    """[n, h b, ...] -> [b n, h, ...] of a padded x; blocks' places are the batch's outermost part."""
    x, blocks, pads = c.x(), c.ints(1), c.dims(2)
    spatial, rest = len(blocks), x.shape[1 + len(blocks) :]
    lows, highs = ((0, *pads[i::2], *(0,) * len(rest)) for i in range(2))
    zero = c.levels().zero if c.is_quantized() else 0
    x = ops.pad(x, lows, highs, ops.scalar(zero, x.dtype), loc=c.loc)
    sizes = x.shape[1 : 1 + spatial]
    split = [n for d, b in zip(sizes, blocks, strict=True) for n in (d // b, b)]
    x = ops.reshape(x, (x.shape[0], *split, *rest), c.loc)
    places, cells = range(2, 2 * spatial + 1, 2), range(1, 2 * spatial + 1, 2)
    x = ops.transpose(x, (*places, 0, *cells, *range(1 + 2 * spatial, len(x.shape))), c.loc)
    return ops.reshape(x, (product(x.shape[: spatial + 1]), *x.shape[spatial + 1 :]), c.loc)


@row("BATCH_TO_SPACE_ND", moves=True)
def batch_to_space(c: Call) -> Node:
    """The inverse, of which crops are then cut off."""
    x, blocks, crops = c.x(), c.ints(1), c.dims(2)
    spatial, rest = len(blocks), x.shape[1 + len(blocks) :]
    sizes = x.shape[1 : 1 + spatial]
    x = ops.reshape(x, (*blocks, x.shape[0] // math.prod(blocks), *sizes, *rest), c.loc)
    order = [a for i in range(spatial) for a in (spatial + 1 + i, i)]
    x = ops.transpose(x, (spatial, *order, *range(2 * spatial + 1, len(x.shape))), c.loc)
    x = ops.reshape(x, (x.shape[0], *(d * b for d, b in zip(sizes, blocks, strict=True)), *rest), c.loc)
    for i in range(spatial):
        low, high = crops[2 * i], crops[2 * i + 1]
        x = ops.slice_axis(x, 1 + i, low, x.shape[1 + i] - high, loc=c.loc)
    return x


@row("DYNAMIC_UPDATE_SLICE", moves=True)
def dynamic_update_slice(c: Call) -> Node:
    starts = [ops.index_axis(c.x(2), 0, i) for i in range(len(c.x().shape))]
    return ops.DynamicUpdateSlice()(c.x(0), c.x(1), *starts, loc=c.loc)


@row("DENSIFY", moves=True)
def densify(c: Call) -> Node:
    """Sparse constants are spelt out where they are read."""
    return c.x()
