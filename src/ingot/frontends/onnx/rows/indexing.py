"""Gather and scatter."""

from __future__ import annotations

import numpy as np

from ingot import ops
from ingot.frontends.onnx.call import Call, Result, onnx_op
from ingot.frontends.shared.composites.suppression import corners_of, suppress_overlaps
from ingot.ir import types as T
from ingot.ir.dims import dim_min, product
from ingot.ir.node import Const, Node, const


@onnx_op("Gather")
def gather(c: Call) -> Result:
    return ops.Take(c.axis("axis", 0, c.rank()))(c.x(0), c.x(1))


@onnx_op("GatherElements", since=11)
def gather_elements(c: Call) -> Result:
    return ops.GatherElements(c.axis("axis", 0, c.rank()))(c.x(0), c.x(1))


@onnx_op("GatherND", since=11)
@onnx_op("GatherND", domain="com.microsoft")
def gather_nd(c: Call) -> Result:
    return ops.GatherND(c.int("batch_dims", 0))(c.x(0), c.x(1))


@onnx_op("Scatter", since=9)
@onnx_op("ScatterElements", since=11)
def scatter_elements(c: Call) -> Result:
    axis = c.axis("axis", 0, c.rank())
    return ops.ScatterElements(axis, c.str("reduction", "none"))(c.x(0), c.x(1), c.x(2))


@onnx_op("ScatterND", since=11)
def scatter_nd(c: Call) -> Result:
    return ops.ScatterND(c.str("reduction", "none"))(c.x(0), c.x(1), c.x(2))


@onnx_op("TensorScatter", since=24)
def tensor_scatter(c: Call) -> Result:
    """A KV cache update: `update` is written into `past` along `axis`, from each batch entry's write index on."""
    past, update = c.x(0), c.x(1)
    rank = c.rank()
    axis = c.axis("axis", -2, rank)
    shape = update.shape
    positions = ops.iota(shape, axis)
    if c.has(2):
        first = ops.reshape(ops.cast(c.x(2), T.i64), (shape[0], *(1,) * (rank - 1)))
        positions = ops.add(positions, first)
    if c.str("mode", "linear") == "circular":
        positions = ops.floor_mod(positions, past.shape[axis])
    return ops.ScatterElements(axis, "none")(past, positions, update)


@onnx_op("Compress", since=9)
def compress(c: Call) -> Result:
    axis = c.axis("axis", None, c.rank()) if c.has_attr("axis") else None
    x = c.x() if axis is not None else ops.reshape(c.x(), (c.type().size,))
    condition, room = c.x(1), x.shape[axis or 0]
    if condition.shape[0] != room:  # conditions beyond the end of the axis select nothing
        condition = ops.slice_axis(condition, 0, 0, dim_min(condition.shape[0], room))
    if isinstance(c.x(1).op, Const) and isinstance(condition.shape[0], int):
        keep = const(np.flatnonzero(c.array(1)[: condition.shape[0]]).astype(np.int64))
    else:
        keep = c.importer.computed_sizes.true_places(condition, "compress")
    return ops.Take(axis or 0)(x, keep)


@onnx_op("NonZero")
def nonzero(c: Call) -> Result:
    x = c.x()
    if isinstance(x.op, ops.BroadcastInDim) and isinstance(x.inputs[0].op, Const) and x.inputs[0].op.value.size == 1:
        # a constant fill: all positions are nonzero, or none
        count = x.type.size if x.inputs[0].op.value.any() else 0
        places = [ops.reshape(ops.iota(x.shape, axis), (1, -1)) for axis in range(len(x.shape))]
        return ops.slice_axis(ops.concat(places, 0), 1, 0, count) if places else ops.full((0, count), 0, T.i64)
    if isinstance(x.op, Const):
        return const(np.asarray(np.nonzero(np.atleast_1d(x.op.value)), np.int64)[: len(x.shape)])
    flat = c.importer.computed_sizes.true_places(ops.nonzero_mask(x), "nonzero")
    if not x.shape:
        return ops.full((0, flat.shape[0]), 0, T.i64)
    return ops.stack(ops.coordinates(flat, x.shape), 0)


@onnx_op("Unique", since=11)
def unique(c: Call) -> Result:
    axis = c.axis("axis", None, c.rank()) if c.has_attr("axis") else None
    x = c.x() if axis is not None else ops.reshape(c.x(), (c.type().size,))
    n = x.shape[axis or 0]
    rows = x if axis is None else ops.transpose(x, (axis, *(d for d in range(len(x.shape)) if d != axis)))
    rows = ops.reshape(rows, (n, product(rows.shape[1:])))
    groups = ops.equal_rows(rows, nan_equal=True, by_appearance=not c.flag("sorted", 1))
    size = c.importer.computed_sizes.size(groups.count, n, "unique")
    first, counts = (ops.slice_axis(v, 0, 0, size) for v in (groups.first, groups.counts))
    return [ops.Take(axis or 0)(x, first), first, groups.inverse, counts]


@onnx_op("NonMaxSuppression", since=10)
def non_max_suppression(c: Call) -> Result:
    """Rows (batch, class, box), best boxes first. As in ONNX Runtime, the first of boxes with equal scores wins, and
    boxes without an area overlap nothing."""
    boxes, scores = c.x(0), c.x(1)
    batch, classes, n = scores.shape
    if boxes.shape[0] != batch:
        c.importer.require(boxes.shape[0] - batch, "boxes and scores of different batches")
        c.importer.require(batch - boxes.shape[0], "boxes and scores of different batches")
    corners = [ops.index_axis(boxes, 2, i) for i in range(4)]
    if c.flag("center_point_box"):
        x, y, w, h = corners
        half_w, half_h = ops.div(w, 2.0), ops.div(h, 2.0)
        corners = [ops.sub(x, half_w), ops.sub(y, half_h), ops.add(x, half_w), ops.add(y, half_h)]
    else:
        corners = corners_of(boxes, 2)

    def scalar(i: int, default: float, dtype: T.DType) -> Node:
        return ops.cast(ops.reshape(c.x(i), ()), dtype) if c.has(i) else ops.scalar(default, dtype)

    pairs = batch * classes
    corner_rows = [
        ops.reshape(ops.broadcast_to(ops.expand_dims(v, 1), (batch, classes, n)), (pairs, n)) for v in corners
    ]
    min_score = ops.reshape(c.x(4), ()) if c.has(4) else None
    lines, max_boxes, overlap = ops.reshape(scores, (pairs, n)), scalar(2, 0, T.i64), scalar(3, 0.0, boxes.dtype)
    is_kept, order = suppress_overlaps(ops.stack(corner_rows, 1), lines, max_boxes, overlap, min_score)
    flat = c.importer.computed_sizes.true_places(is_kept, "boxes")
    pair, _ = ops.coordinates(flat, is_kept.shape)
    image, category = ops.coordinates(pair, (batch, classes))
    box = ops.Take(0)(ops.reshape(order, (pairs * n,)), flat)
    return ops.stack([image, category, box], 1)
