"""Greedy non-maximum suppression of overlapping boxes, shared by the frameworks' detection ops."""

from __future__ import annotations

from ingot import ops
from ingot.ir.dims import DimLike, dim_min
from ingot.ir.node import Node
from ingot.ir.types import i32, i64


def corners_of(boxes: Node, axis: int) -> list[Node]:
    """x1, y1, x2, y2 of boxes that any two opposite corners describe."""
    y1, x1, y2, x2 = (ops.index_axis(boxes, axis, i) for i in range(4))
    return [ops.minimum(x1, x2), ops.minimum(y1, y2), ops.maximum(x1, x2), ops.maximum(y1, y2)]


def suppress_overlaps(
    corners: Node, scores: Node, max_boxes: Node, overlap: Node, min_score: Node | None
) -> tuple[Node, Node]:
    """A mask of the boxes that are kept, in descending order of score, and that order, both [p, n]. corners: [p, 4, n];
    scores: [p, n]; only those above `min_score` count."""
    is_candidate = ops.full(scores.shape, True, ops.IsNan()(scores).dtype)
    if min_score is not None:
        is_candidate = ops.compare("GT", scores, ops.cast(min_score, scores.dtype))
    is_rejected, places = (
        ops.cast(ops.Not()(is_candidate), i32),
        ops.broadcast_to(ops.arange(scores.shape[1]), scores.shape),
    )
    _, _, order = ops.Sort(1, False, True, 2)(is_rejected, ops.Neg()(scores), places).results
    count = ops.reduce_sum(ops.cast(is_candidate, i64), 1)
    wide = ops.broadcast_to(ops.expand_dims(order, 1), corners.shape)
    ordered_corners = ops.GatherElements(2)(corners, wide)
    is_kept = ops.SuppressOverlaps(strict=True)(
        ordered_corners,
        count,
        ops.cast(ops.reshape(max_boxes, ()), i64),
        ops.cast(ops.reshape(overlap, ()), corners.dtype),
    )
    return is_kept, order


def padded_indices(size: DimLike, is_kept: Node, order: Node) -> Node:
    """The indices of the first `size` boxes that are kept, padded with zeros."""
    n = order.shape[0]
    _, sorted_ = ops.Sort(0, False, True)(ops.cast(ops.Not()(is_kept), i32), order).results
    first = ops.slice_axis(sorted_, 0, 0, dim_min(size, n))
    line = ops.arange(first.shape[0])
    indices = ops.where(ops.compare("LT", line, ops.reduce_sum(ops.cast(is_kept, i64))), first, 0)
    return ops.cast(ops.pad(indices, (0,), (size - first.shape[0],)), i32)


def suppress_in_image(
    boxes: Node, scores: Node, max_boxes: Node, overlap: Node, min_score: Node | None
) -> tuple[Node, Node]:
    """As `suppress_overlaps`, of boxes[n, 4] and scores[n]."""
    corners = ops.expand_dims(ops.stack(corners_of(boxes, 1)), 0)
    is_kept, order = suppress_overlaps(corners, ops.expand_dims(scores, 0), max_boxes, overlap, min_score)
    return ops.index_axis(is_kept, 0, 0), ops.index_axis(order, 0, 0)
