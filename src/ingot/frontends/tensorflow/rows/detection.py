"""Object detection: non-maximum suppression of boxes, crops of regions."""

from __future__ import annotations

from ingot import ops
from ingot.frontends.shared.composites.suppression import (
    corners_of,
    padded_indices,
    suppress_in_image,
    suppress_overlaps,
)
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.shared.sizes import require_equal
from ingot.frontends.tensorflow.values import Call, Result, Table
from ingot.ir.dims import DimLike, dim_max, dim_min
from ingot.ir.node import Node
from ingot.ir.types import f32, i32, i64

row = Table()


_OPS = ("NonMaxSuppression", "NonMaxSuppressionV2", "NonMaxSuppressionV3")


@row(*_OPS)
def non_max_suppression(c: Call, boxes: Node, scores: Node, max_boxes: Node, *limits: Node) -> Node:
    """Indices of the boxes that are kept, best first."""
    overlap = limits[0] if limits else ops.scalar(c.float("iou_threshold", 0.5), boxes.dtype)
    is_kept, order = suppress_in_image(boxes, scores, max_boxes, overlap, limits[1] if len(limits) > 1 else None)
    places = ops.reshape(c.walk.computed_sizes.places(is_kept), (-1,))
    return ops.cast(ops.Take(0)(order, places), i32)


@row("NonMaxSuppressionV4", results=("selected_indices", "valid_outputs"))
def padded_suppression(c: Call, boxes: Node, scores: Node, max_boxes: Node, overlap: Node, min_score: Node) -> Result:
    return list(_chosen(c, boxes, scores, max_boxes, overlap, min_score))


def _chosen(
    c: Call, boxes: Node, scores: Node, max_boxes: Node, overlap: Node, min_score: Node
) -> tuple[Node, Node]:  # fmt: skip
    """Indices, and the number of valid ones."""
    is_kept, order = suppress_in_image(boxes, scores, max_boxes, overlap, min_score)
    valid = ops.reduce_sum(ops.cast(is_kept, i32))
    if c.flag("pad_to_max_output_size"):
        return padded_indices(c.size(max_boxes), is_kept, order), valid
    places = ops.reshape(c.walk.computed_sizes.places(is_kept), (-1,))
    return ops.cast(ops.Take(0)(order, places), i32), valid


@row("NonMaxSuppressionV5", results=("selected_indices", "selected_scores", "valid_outputs"))
def soft_suppression(
    c: Call, boxes: Node, scores: Node, max_boxes: Node, overlap: Node, min_score: Node, sigma: Node
) -> Result:  # fmt: skip
    if float(c.array(sigma).reshape(())) != 0.0:
        raise Unsupported("of scores that decay (soft_nms_sigma)")
    indices, valid = _chosen(c, boxes, scores, max_boxes, overlap, min_score)
    selected = ops.Take(0)(scores, indices)
    is_valid = ops.compare("LT", ops.arange(indices.shape[0]), ops.cast(valid, i64))
    return [indices, ops.where(is_valid, selected, 0.0), valid]


@row("CombinedNonMaxSuppression", results=("nmsed_boxes", "nmsed_scores", "nmsed_classes", "valid_detections"))
def combined(
    c: Call, boxes: Node, scores: Node, per_class: Node, total: Node, overlap: Node, min_score: Node
) -> Result:  # fmt: skip
    """For each image the best boxes of all classes, suppressed class by class, padded with zeros."""
    batch, n, groups, _ = boxes.shape
    classes = scores.shape[2]
    require_equal(boxes.shape[:2], scores.shape[:2], "boxes and scores")
    max_per_class, max_total = c.size(per_class), c.size(total)
    if groups not in (1, classes):
        raise Unsupported(f"boxes of {groups} classes for scores of {classes}")
    wide = ops.broadcast_to(ops.transpose(boxes, (0, 2, 1, 3)), (batch, classes, n, 4))
    lines = ops.reshape(ops.transpose(scores, (0, 2, 1)), (batch * classes, n))
    corners = ops.stack([ops.reshape(v, (batch * classes, n)) for v in corners_of(wide, 3)], 1)
    is_kept, order = suppress_overlaps(corners, lines, per_class, overlap, min_score)
    if c.flag("pad_per_class"):
        max_total = dim_min(max_total, max_per_class * classes)
    # the kept boxes of all classes, best first
    kept_scores = ops.reshape(ops.GatherElements(1)(lines, order), (batch, classes * n))
    is_removed = ops.reshape(ops.cast(ops.Not()(is_kept), i32), (batch, classes * n))
    line = ops.broadcast_to(ops.arange(classes * n), is_removed.shape)
    _, _, order_of_best = ops.Sort(1, False, True, 2)(is_removed, ops.Neg()(kept_scores), line).results
    size = dim_min(max_total, classes * n)
    order_of_best = ops.slice_axis(order_of_best, 1, 0, size)
    valid = ops.minimum(ops.reduce_sum(ops.sub(1, is_removed), 1), ops.scalar(size, i32))
    is_valid = ops.compare("LT", ops.arange(size), ops.cast(ops.expand_dims(valid, 1), i64))
    category = ops.div(order_of_best, ops.scalar(n, i64))
    box = ops.GatherElements(1)(ops.reshape(order, (batch, classes * n)), order_of_best)
    flat = ops.add(ops.mul(category, ops.scalar(n, i64)), box)
    places = ops.broadcast_to(ops.expand_dims(flat, -1), (batch, size, 4))
    best_boxes = ops.GatherElements(1)(ops.reshape(wide, (batch, classes * n, 4)), places)
    if not c.has("clip_boxes") or c.flag("clip_boxes"):
        best_boxes = ops.clip(best_boxes, 0.0, 1.0)
    best = ops.GatherElements(1)(kept_scores, order_of_best)
    results = (
        ops.where(ops.expand_dims(is_valid, -1), best_boxes, 0.0),
        ops.where(is_valid, best, 0.0),
        ops.where(is_valid, ops.cast(category, f32), 0.0),
    )
    grown = [ops.pad(v, (0,) * v.type.rank, (0, max_total - size, *(0,) * (v.type.rank - 2))) for v in results]
    return [*grown, valid]


@row("CropAndResize")
def crop_and_resize(c: Call, image: Node, boxes: Node, index: Node, size: Node) -> Node:
    """Regions, given in fractions of the image's sides, resized to one size."""
    rows, columns = image.shape[1:3]
    height, width = c.lengths(size)
    y1, x1, y2, x2 = (ops.index_axis(boxes, 1, i) for i in range(4))
    y_places, x_places = _places(y1, y2, height, rows), _places(x1, x2, width, columns)
    is_inside = ops.and_(ops.expand_dims(_within(y_places, rows), 2), ops.expand_dims(_within(x_places, columns), 1))
    crops = (boxes.shape[0], height, width)
    batch = ops.reshape(ops.cast(index, i64), (boxes.shape[0], 1, 1))

    def at(y: Node, x: Node) -> Node:
        """Pixels of rows y[n, height] and columns x[n, width]; those outside are masked later."""
        y = ops.expand_dims(ops.clip(ops.cast(y, i64), 0, rows - 1), 2)
        x = ops.expand_dims(ops.clip(ops.cast(x, i64), 0, columns - 1), 1)
        places = ops.stack([ops.broadcast_to(v, crops) for v in (batch, y, x)], -1)
        return ops.cast(ops.GatherND(0)(image, places), f32)

    if c.str("method", "bilinear") == "nearest":
        value = at(ops.RoundAway()(y_places), ops.RoundAway()(x_places))
    else:
        top, left = ops.Floor()(y_places), ops.Floor()(x_places)
        bottom, right = ops.Ceil()(y_places), ops.Ceil()(x_places)
        dy = ops.expand_dims(ops.expand_dims(ops.sub(y_places, top), 2), 3)
        dx = ops.expand_dims(ops.expand_dims(ops.sub(x_places, left), 1), 3)
        upper, lower = (_between(at(y, left), at(y, right), dx) for y in (top, bottom))
        value = _between(upper, lower, dy)
    return ops.where(ops.expand_dims(is_inside, 3), value, c.float("extrapolation_value", 0.0))


def _between(a: Node, b: Node, fraction: Node) -> Node:
    return ops.add(a, ops.mul(ops.sub(b, a), fraction))


def _places(first: Node, last: Node, count: DimLike, size: DimLike) -> Node:
    """f32[n, count]: the positions of the samples along an axis; one sample is in the middle."""
    end = ops.scalar(size - 1, f32)
    step = ops.div(ops.mul(ops.sub(last, first), end), ops.scalar(dim_max(count - 1, 1), f32))
    middle = ops.mul(ops.mul(ops.add(first, last), 0.5), end)
    start = ops.where(ops.compare("EQ", ops.scalar(count, i64), 1), middle, ops.mul(first, end))
    line = ops.mul(ops.expand_dims(step, 1), ops.arange(count, f32))
    return ops.add(ops.expand_dims(start, 1), line)


def _within(positions: Node, size: DimLike) -> Node:
    return ops.and_(ops.compare("GE", positions, 0.0), ops.compare("LE", positions, ops.scalar(size - 1, f32)))
