"""Ops that move elements or make shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ingot import ops
from ingot.frontends.shared.composites import movement
from ingot.frontends.shared.composites.movement import normal_axis, sizes_vector
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.tflite.call import Call, Table
from ingot.ir.dims import DimLike
from ingot.ir.node import Node

row = Table()


@row("RESHAPE", is_movement=True)
def reshape(c: Call) -> Node:
    if c.has(1):
        shape = c.dims(1)
    else:
        # old files write [0] for a scalar
        shape = c.list("new_shape") if c.list("new_shape") != (0,) else ()
    return ops.reshape(c.x(), shape)


@row("SQUEEZE", is_movement=True)
def squeeze(c: Call) -> Node:
    axes = c.list("squeeze_dims")
    return ops.squeeze(c.x(), axes or None)


@row("EXPAND_DIMS", is_movement=True)
def expand_dims(c: Call) -> Node:
    return ops.expand_dims(c.x(), c.ints(1)[0])


@row("TRANSPOSE", is_movement=True)
def transpose(c: Call) -> Node:
    return ops.transpose(c.x(), c.ints(1))


@row("SLICE", is_movement=True)
def slice_(c: Call) -> Node:
    x, sizes = c.x(), c.dims(2)
    try:
        starts = c.dims(1)
    except Unsupported:
        return _dynamic_slice(c, x, sizes)
    for axis, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        stop = x.shape[axis] if size == -1 else start + size
        x = ops.slice_axis(x, axis, start, stop)
    return x


def _dynamic_slice(c: Call, x: Node, sizes: Sequence[DimLike]) -> Node:
    if any(isinstance(d, int) and d < 0 for d in sizes):
        raise Unsupported("a size up to the end from a start that only the run knows")
    starts = [ops.index_axis(c.x(1), 0, i) for i in range(len(sizes))]
    return ops.DynamicSlice(tuple(sizes))(x, *starts)


@row("STRIDED_SLICE", is_movement=True)
def strided_slice(c: Call) -> Node:
    """Python's x[begin:end:stride, ...], with masks for an axis's special indices."""
    starts, ends = c.dims(1), c.dims(2)
    if c.flag("offset"):
        ends = tuple(b + e for b, e in zip(starts, ends, strict=True))
    masks = {name: c.int(f"{name}_mask") for name in movement.MASKS}
    return movement.strided_slice(c.x(), starts, ends, c.ints(3), masks, ops.slice_axis)


@row("SPLIT", is_movement=True)
def split(c: Call) -> tuple[Node, ...]:
    # the axis comes first
    axis, x, count = normal_axis(c.ints(0)[0], len(c.x(1).shape)), c.x(1), len(c.results)
    size = x.shape[axis]
    if not isinstance(size, int) or size % count:
        raise Unsupported(f"an axis of {size} in {count} parts")
    return ops.split(x, [size // count] * count, axis)


@row("SPLIT_V", is_movement=True)
def split_v(c: Call) -> tuple[Node, ...]:
    x, axis = c.x(0), normal_axis(c.ints(2)[0], len(c.x(0).shape))
    return ops.split(x, movement.split_sizes(c.dims(1), x.shape[axis]), axis)


@row("CONCATENATION")
def concatenation(c: Call) -> Node:
    return c.activation(ops.concat(c.xs(), c.int("axis")))


@row("PACK", is_movement=True)
def pack(c: Call) -> Node:
    return ops.stack(c.xs(), c.int("axis"))


@row("UNPACK", is_movement=True)
def unpack(c: Call) -> tuple[Node, ...]:
    return tuple(ops.index_axis(c.x(), c.int("axis"), i) for i in range(len(c.results)))


def _pads(c: Call) -> tuple[tuple[DimLike, ...], tuple[DimLike, ...]]:
    dims = c.dims(1)
    return dims[::2], dims[1::2]


@row("PAD", "PADV2", is_movement=True)
def pad(c: Call) -> Node:
    x = c.x()
    # for levels: the one that represents 0
    zero = c.levels().zero if c.is_quantized() else 0
    value = ops.reshape(c.x(2), ()) if c.has(2) else ops.scalar(zero, x.dtype)
    return ops.pad(x, *_pads(c), value)


@row("MIRROR_PAD", is_movement=True)
def mirror_pad(c: Call) -> Node:
    return movement.mirror_pad(c.x(), *_pads(c), repeats_edge=c.int("mode") != 0)


@row("TILE", is_movement=True)
def tile(c: Call) -> Node:
    return movement.tile(c.x(), c.dims(1))


@row("BROADCAST_TO", is_movement=True)
def broadcast_to(c: Call) -> Node:
    return ops.broadcast_to(c.x(), c.dims(1))


@row("BROADCAST_ARGS")
def broadcast_args(c: Call) -> Node:
    return sizes_vector(ops.broadcast_shapes(c.dims(0), c.dims(1)), c.type())


@row("FILL", takes_stored=True)
def fill(c: Call) -> Node:
    return ops.broadcast_to(c.x(1), c.dims(0))


@row("REVERSE_V2", is_movement=True)
def reverse(c: Call) -> Node:
    return ops.flip(c.x(), c.ints(1))


@row("SHAPE", takes_stored=True)
def shape(c: Call) -> Node:
    return sizes_vector(c.x().shape, c.type())


@row("RANK", takes_stored=True)
def rank(c: Call) -> Node:
    return ops.scalar(len(c.x().shape), c.type())


@row("RANGE")
def range_(c: Call) -> Node:
    dtype = c.type()
    if dtype.is_float:
        values = [_known_number(c, i) for i in range(3)]
        count: DimLike = max(0, math.ceil((values[1] - values[0]) / values[2]))
    else:
        (start,), (stop,), (step,) = (c.dims(i) for i in range(3))
        count = movement.range_length(start, stop, step)
    places = ops.arange(count, dtype)
    return ops.add(ops.mul(places, c.x(2)), c.x(0))


def _known_number(c: Call, i: int) -> float:
    (value,) = c.importer.sizes.elements(c.x(i)).reshape(-1)
    return float(value)


@row("SPACE_TO_DEPTH", is_movement=True)
def space_to_depth(c: Call) -> Node:
    return movement.space_to_depth(c.x(), c.int("block_size"))


@row("DEPTH_TO_SPACE", is_movement=True)
def depth_to_space(c: Call) -> Node:
    return movement.depth_to_space(c.x(), c.int("block_size"))


@row("SPACE_TO_BATCH_ND", is_movement=True)
def space_to_batch(c: Call) -> Node:
    low, high = c.dims(2)[::2], c.dims(2)[1::2]
    return movement.space_to_batch(c.x(), c.ints(1), low, high, c.levels().zero if c.is_quantized() else 0)


@row("BATCH_TO_SPACE_ND", is_movement=True)
def batch_to_space(c: Call) -> Node:
    return movement.batch_to_space(c.x(), c.ints(1), c.dims(2)[::2], c.dims(2)[1::2])


@row("DYNAMIC_UPDATE_SLICE", is_movement=True)
def dynamic_update_slice(c: Call) -> Node:
    starts = [ops.index_axis(c.x(2), 0, i) for i in range(len(c.x().shape))]
    return ops.DynamicUpdateSlice()(c.x(0), c.x(1), *starts)


@row("DENSIFY", is_movement=True)
def densify(c: Call) -> Node:
    """Sparse constants are spelt out where they are read."""
    return c.x()
