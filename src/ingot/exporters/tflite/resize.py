"""TFLite operators for resized images."""

from __future__ import annotations

import numpy as np

from ingot import ops
from ingot.exporters.tflite.emitter import CHANNELS_LAST, Emitter, in_order, row, shape_of
from ingot.ir.node import Node

_BILINEAR = ("half_pixel", "pytorch_half_pixel", "half_pixel_symmetric", "align_corners", "asymmetric")


@row(ops.Resize)
def resize(e: Emitter, n: Node) -> tuple[int, str]:
    assert isinstance(n.op, ops.Resize)
    op, shape = n.op, in_order(CHANNELS_LAST, shape_of(n))
    name = "RESIZE_BILINEAR" if op.mode == "linear" else "RESIZE_NEAREST_NEIGHBOR"
    table = "ResizeBilinear" if op.mode == "linear" else "ResizeNearestNeighbor"
    options = {"align_corners": op.coordinates == "align_corners", "half_pixel_centers": "half_pixel" in op.coordinates}
    if op.mode == "nearest":  # whole repetitions
        options = {"align_corners": False, "half_pixel_centers": False}
    return e.add(
        name, [e.get(n.inputs[0], CHANNELS_LAST), e.ints(*shape[1:3])], shape, table, options, node=n
    ), CHANNELS_LAST


def has_operator(n: Node, op: ops.Resize) -> bool:
    """Whether TFLite has this operator: it resizes images by the ratio of their sizes, bilinearly or by repetition."""
    (x,) = n.inputs
    if x.type.rank != 4 or op.axes != (2, 3) or str(n.dtype) != "f32" or op.antialias or op.roi:
        return False
    before, after = shape_of(x)[2:], shape_of(n)[2:]
    ratios = tuple(float(np.float32(b / a)) for a, b in zip(before, after, strict=True))
    if op.scales is not None and tuple(float(np.float32(s)) for s in op.scales) != ratios:
        return False
    if op.mode == "linear":
        return min(after) > 1 and op.coordinates in _BILINEAR
    is_repetition = all(b % a == 0 for a, b in zip(before, after, strict=True))
    is_floor = op.coordinates in ("asymmetric", "tf_half_pixel_for_nn") and op.nearest_mode == "floor"
    is_rounding = op.coordinates in ("half_pixel", "pytorch_half_pixel") and op.nearest_mode.startswith("round")
    return op.mode == "nearest" and is_repetition and (is_floor or is_rounding)
