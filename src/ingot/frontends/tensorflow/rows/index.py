"""Slices, gathers and scatters."""

from __future__ import annotations

from collections.abc import Sequence

from ingot import ops
from ingot.frontends.shared.composites import movement
from ingot.frontends.shared.composites.movement import normal_axis
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.tensorflow.values import Call, Table
from ingot.ir.dims import DimLike
from ingot.ir.node import Const, Node
from ingot.ir.types import i32, i64

row = Table()


@row("StridedSlice")
def strided_slice(c: Call, x: Node, begin: Node, end: Node, strides: Node) -> Node:
    def slice_axis(x: Node, axis: int, start: DimLike | Node | None, stop: DimLike | Node | None, step: int) -> Node:
        if isinstance(start, Node) or isinstance(stop, Node):
            return _slice_of_computed_size(c, x, axis, start, stop, step)
        return ops.slice_axis(x, axis, start, stop, step)

    masks = {name: c.int(f"{name}_mask", 0) for name in movement.MASKS}
    return movement.strided_slice(x, c.elements(begin), c.elements(end), c.numbers(strides), masks, slice_axis)


def _slice_of_computed_size(
    c: Call, x: Node, axis: int, start: DimLike | Node | None, stop: DimLike | Node | None, step: int
) -> Node:
    """A slice whose bounds and size are found at run time."""
    if step != 1 or not c.walk.may_find([v for v in (start, stop) if isinstance(v, Node)]):
        raise Unsupported("a slice whose ends only the run knows, with steps or in a loop or branch")
    n = ops.scalar(x.shape[axis], i64)

    def place(end: DimLike | Node | None, missing: Node) -> Node:
        if end is None:
            return missing
        position = ops.cast(end, i64) if isinstance(end, Node) else ops.scalar(end, i64)
        return ops.clip(ops.where(ops.compare("LT", position, 0), ops.add(position, n), position), 0, n)

    first = place(start, ops.scalar(0, i64))
    count = ops.maximum(ops.sub(place(stop, n), first), 0)
    size = c.walk.computed_sizes.size(count, x.shape[axis], "slice")
    return ops.Take(axis)(x, ops.add(ops.arange(size), first))


@row("GatherV2", "Gather")
def gather(c: Call, x: Node, indices: Node, axis: Node | None = None) -> Node:
    batch = c.int("batch_dims", 0)
    batch = normal_axis(batch, indices.type.rank + 1)
    dim = batch if axis is None else c.axis(axis, x.type.rank)
    if isinstance(indices.op, Const) and indices.type.rank == 0:
        return ops.index_axis(x, dim, int(indices.op.value))
    return movement.gather(x, indices, dim, batch)


@row("GatherNd")
def gather_nd(c: Call, x: Node, indices: Node) -> Node:
    return ops.GatherND(0)(x, indices)


@row("ScatterNd")
def scatter_nd(c: Call, indices: Node, updates: Node, shape: Node) -> Node:
    """Updates of the same element are added."""
    return ops.ScatterND("add")(ops.full(c.lengths(shape), 0, updates.dtype), _as_i64(indices), updates)


_SCATTER_KINDS = {"Update": "none", "Add": "add", "Max": "max", "Min": "min"}


@row("TensorScatterUpdate", "TensorScatterAdd", "TensorScatterMax", "TensorScatterMin")
def tensor_scatter(c: Call, x: Node, indices: Node, updates: Node) -> Node:
    return ops.ScatterND(_SCATTER_KINDS[c.op.removeprefix("TensorScatter")])(x, _as_i64(indices), updates)


@row("TensorScatterSub")
def tensor_scatter_sub(c: Call, x: Node, indices: Node, updates: Node) -> Node:
    return ops.ScatterND("add")(x, _as_i64(indices), ops.Neg()(updates))


def _as_i64(indices: Node) -> Node:
    return ops.cast(indices, i64)


@row("DynamicStitch", "ParallelDynamicStitch")
def dynamic_stitch(c: Call, *operands: Node) -> Node:
    """Rows at constant indices of the result."""
    half = len(operands) // 2
    indices, data = operands[:half], operands[half:]
    places = [c.array(i).reshape(-1) for i in indices]
    count = 1 + max((int(p.max()) for p in places if p.size), default=-1)
    tail = data[0].shape[indices[0].type.rank :]
    out: list[Node | None] = [None] * count
    for index, rows, at in zip(indices, data, places, strict=True):
        flat = ops.reshape(rows, (index.type.size, *tail))
        for k, place in enumerate(at):
            out[int(place)] = ops.index_axis(flat, 0, k)
    zero = ops.full(tail, 0, data[0].dtype)
    return ops.stack([r if r is not None else zero for r in out])


@row("TensorStridedSliceUpdate")
def strided_update(c: Call, x: Node, begin: Node, end: Node, strides: Node, value: Node) -> Node:
    """x[begin:end] = value for full axes and steps of 1."""
    if any(s != 1 for s in c.numbers(strides)) or any(c.int(f"{m}_mask", 0) for m in ("ellipsis", "new_axis")):
        raise Unsupported("with steps, new axes or an ellipsis")
    first = c.elements(begin)
    drop, open_first = c.int("shrink_axis_mask", 0), c.int("begin_mask", 0)
    starts: list[Node] = []
    shape: list[DimLike] = []
    sizes: Sequence[DimLike] = value.shape
    for axis, size in enumerate(x.shape):
        low = 0 if axis >= len(first) or open_first >> axis & 1 else first[axis]
        starts.append(ops.cast(low, i64) if isinstance(low, Node) else ops.scalar(_front(low, size), i64))
        if axis < len(first) and drop >> axis & 1:
            shape.append(1)
        else:
            shape.append(sizes[0])
            sizes = sizes[1:]
    return ops.DynamicUpdateSlice()(x, ops.reshape(value, tuple(shape)), *starts)


def _front(index: DimLike, size: DimLike) -> DimLike:
    return index + size if isinstance(index, int) and index < 0 else index


@row("Where")
def where(c: Call, x: Node) -> Node:
    return c.walk.computed_sizes.places(x)


@row("Unique", results=("y", "idx"))
def unique(c: Call, x: Node) -> tuple[Node, Node]:
    values, places, _ = c.walk.computed_sizes.unique(x)
    return values, ops.cast(places, c.dtype("out_idx", i32))


@row("UniqueWithCounts", results=("y", "idx", "count"))
def unique_with_counts(c: Call, x: Node) -> tuple[Node, Node, Node]:
    values, *others = c.walk.computed_sizes.unique(x)
    places, counts = (ops.cast(v, c.dtype("out_idx", i32)) for v in others)
    return values, places, counts
