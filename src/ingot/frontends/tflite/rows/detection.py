"""Boxes of detectors: TFLite_Detection_PostProcess, one of LiteRT's custom ops."""

from __future__ import annotations

import numpy as np

from ingot import ops
from ingot.frontends.shared.composites.suppression import padded_indices, suppress_in_image
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.tflite.call import Call, Table, holds_levels
from ingot.frontends.tflite.flexbuffer import numbers
from ingot.frontends.tflite.levels import dequantized
from ingot.ir import types as T
from ingot.ir.node import Const, Node, const

row, custom = Table(), Table()


@custom("TFLite_Detection_PostProcess")
def detection_post_process(c: Call) -> tuple[Node, Node, Node, Node]:
    """Boxes [1, n, 4], classes and scores [1, n], and their number [1], after non-maximum suppression ("fast": once for
    all classes). Operands: codes [1, a, 4], scores of classes [1, a, k], anchors [a, 4]."""
    options = numbers(c.op.raw.tobytes())
    max_detections, classes_per_box = (
        int(options.get("max_detections", 0)),
        int(options.get("max_classes_per_detection", 1)),
    )
    if options.get("use_regular_nms"):
        raise Unsupported("suppression class by class")
    codes, scores, anchors = (_numbers(c, i) for i in range(3))
    count, classes = anchors.shape[0], int(options.get("num_classes", 0))
    offset = scores.shape[-1] - classes  # a class for the background comes first
    if not isinstance(count, int) or not isinstance(offset, int) or offset < 0:
        raise Unsupported(f"scores {scores.type} of {classes} classes")
    if not (0 < max_detections <= count and 0 < classes_per_box <= classes):
        raise Unsupported(
            f"{max_detections} detections of {classes_per_box} classes, of {count} anchors and {classes} classes"
        )
    scores = ops.slice_axis(ops.reshape(scores, (count, -1)), 1, offset)
    scales = [np.float32(options.get(f"{name}_scale", 0.0)) for name in "yxhw"]
    boxes = _decoded(ops.reshape(codes, (count, -1)), anchors, scales)

    best, order = ops.TopK(count, 0)(ops.reduce_max(scores, 1)).results
    sorted_ = ops.transpose(ops.Take(0)(boxes, order))  # y1 x1 y2 x2, which overlap as x1 y1 x2 y2 do
    threshold = const(np.float32(options.get("nms_score_threshold", 0.0)))
    candidates = ops.reduce_sum(ops.cast(ops.compare("GE", best, threshold), T.i64), keepdims=True)
    is_kept = ops.SuppressOverlaps(strict=True)(
        ops.expand_dims(sorted_, 0), candidates, const(np.int64(max_detections)),
        const(np.float32(options.get("nms_iou_threshold", 0.0))),
    )  # fmt: skip
    is_kept = ops.reshape(is_kept, (count,))
    # the kept ones first, in their order
    places = ops.where(is_kept, ops.sub(count, ops.arange(count, T.i32)), 0)
    rank, at = ops.TopK(max_detections, 0)(places).results
    is_present = ops.compare("GT", rank, 0)
    kept_order = ops.Take(0)(order, at)
    values, labels = ops.TopK(classes_per_box, 1)(ops.Take(0)(scores, kept_order)).results

    def padded_rows(x: Node) -> Node:
        """x[boxes, classes, ...] as [1, boxes * classes, ...], zeros where there is no box."""
        mask = ops.reshape(is_present, (max_detections, *(1,) * (len(x.shape) - 1)))
        masked = ops.where(ops.broadcast_to(mask, x.shape), x, ops.full(x.shape, 0, x.dtype))
        return ops.reshape(masked, (1, max_detections * classes_per_box, *x.shape[2:]))

    repeated = ops.broadcast_to(
        ops.expand_dims(ops.Take(0)(boxes, kept_order), 1), (max_detections, classes_per_box, 4)
    )
    number = ops.cast(ops.reduce_sum(ops.cast(is_kept, T.i32), keepdims=True), T.f32)
    return padded_rows(repeated), padded_rows(ops.cast(labels, T.f32)), padded_rows(values), number


def _numbers(c: Call, i: int) -> Node:
    return dequantized(c.x(i), c.levels(i)) if holds_levels(c.tensors[i]) else c.x(i)


def _decoded(codes: Node, anchors: Node, scales: list[np.float32]) -> Node:
    """y1 x1 y2 x2 [a, 4] of codes y x h w, by anchors y x h w."""
    if not all(scales):
        raise Unsupported("a scale of 0")
    y, x, h, w = (ops.div(ops.index_axis(codes, 1, i), const(s)) for i, s in enumerate(scales))
    ay, ax, ah, aw = (ops.index_axis(anchors, 1, i) for i in range(4))
    middle = [ops.add(ops.mul(y, ah), ay), ops.add(ops.mul(x, aw), ax)]
    half = [ops.mul(ops.mul(ops.Exp()(size), a), 0.5) for size, a in ((h, ah), (w, aw))]
    ends = [op(m, s) for op in (ops.sub, ops.add) for m, s in zip(middle, half, strict=True)]
    return ops.stack(ends, 1)


@row("NON_MAX_SUPPRESSION_V4", "NON_MAX_SUPPRESSION_V5")
def non_max_suppression(c: Call) -> tuple[Node, ...]:
    """Operands: boxes, scores, the maximum number, the overlap from which boxes are suppressed, the minimum score.
    Results: indices, padded with zeros, (in V5 their scores) and their number."""
    boxes, scores, (max_boxes,) = c.x(0), c.x(1), c.dims(2)
    soft = c.op.name.endswith("V5")
    if soft and _number(c, 5):
        raise Unsupported("of scores that decay (a sigma)")
    # an overlap equal to the threshold is suppressed, too
    overlap = float(np.nextafter(_number(c, 3), np.float32(-np.inf)))
    is_kept, order = suppress_in_image(
        boxes, scores, ops.scalar(max_boxes, T.i64), ops.scalar(overlap, boxes.dtype), c.x(4)
    )
    indices, count = padded_indices(max_boxes, is_kept, order), ops.reduce_sum(ops.cast(is_kept, T.i32))
    if not soft:
        return indices, count
    is_valid = ops.compare("LT", ops.arange(max_boxes), ops.cast(count, T.i64))
    return indices, ops.where(is_valid, ops.Take(0)(scores, indices), 0.0), count


def _number(c: Call, i: int) -> np.float32:
    node = c.x(i)
    if not isinstance(node.op, Const):
        raise Unsupported(f"operand {i}, which only the run knows")
    return np.float32(node.op.value.reshape(()))
