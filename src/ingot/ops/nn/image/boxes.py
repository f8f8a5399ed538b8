"""Boxes in images: non-maximum suppression, and the contents of regions."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from ingot.ir.dims import DimLike
from ingot.ir.node import Graph, Input, Node, Op, Samples
from ingot.ir.types import TensorType, boolean, i64
from ingot.ops import build as b
from ingot.ops.core.base import check_count
from ingot.ops.core.control import While
from ingot.ops.core.elementwise import Floor, Not
from ingot.ops.nn.index import GatherElements, Take
from ingot.support.dataclass import dataclass


@dataclass(frozen=True)
class SuppressOverlaps(Op):
    """Greedy non-maximum suppression: a box is kept unless an earlier kept box overlaps it by more than a threshold.

    Operands: boxes[p, 4, n], floats, the corners x1, y1, x2, y2 in descending order of scores; count i64[p], the number
    of candidates among the n; max_kept i64[]; threshold, a scalar of the boxes' dtype, of the intersection over union.
    Result: bool[p, n], whether each box is kept.

    strict: boxes or intersections with no area never overlap (ONNX NonMaxSuppression); else the quotient decides
    (torchvision).
    """

    name: ClassVar[str] = "suppress_overlaps"
    strict: bool = False

    def infer(self, *inputs: TensorType) -> TensorType:
        check_count(self, inputs, 4)
        boxes, count, max_kept, threshold = inputs
        self.expect(
            boxes.rank == 3 and boxes.shape[1] == 4 and boxes.dtype.is_float, f"expected floats [p, 4, n], got {boxes}"
        )
        self.expect(count == TensorType(i64, boxes.shape[:1]), f"expected i64[p], got {count}")
        self.expect(max_kept == TensorType(i64), f"expected i64[], got {max_kept}")
        self.expect(threshold == TensorType(boxes.dtype), f"expected a threshold {boxes.dtype}[], got {threshold}")
        return TensorType(boolean, (boxes.shape[0], boxes.shape[2]))

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        boxes, count, max_kept, threshold = inputs
        is_kept = np.zeros((boxes.shape[0], boxes.shape[2]), bool)
        for p, (x1, y1, x2, y2) in enumerate(boxes):
            area = (x2 - x1) * (y2 - y1)
            candidates = np.arange(boxes.shape[2]) < count[p]
            for i in range(int(count[p])):
                if not candidates[i] or is_kept[p].sum() >= max_kept:
                    continue
                is_kept[p, i] = True
                w = np.minimum(x2[i], x2) - np.maximum(x1[i], x1)
                h = np.minimum(y2[i], y2) - np.maximum(y1[i], y1)
                if not self.strict:
                    w, h = np.maximum(w, 0), np.maximum(h, 0)
                intersection = w * h
                overlaps = intersection / (area[i] + area - intersection) > threshold
                if self.strict:
                    overlaps &= (
                        (w > 0)
                        & (h > 0)
                        & (intersection > 0)
                        & (area[i] > 0)
                        & (area > 0)
                        & (area[i] + area > intersection)
                    )
                candidates &= ~overlaps
        return is_kept

    def lower(self, *inputs: Node) -> Node:
        """Each iteration of a loop takes the next kept box, for all p at once, and drops the boxes it overlaps."""
        boxes, count, max_kept, threshold = inputs
        p, _, n = boxes.shape
        if n == 0:
            return b.full((p, n), False, boolean)
        corners = [b.index_axis(boxes, 1, i) for i in range(4)]
        area = b.mul(b.sub(corners[2], corners[0]), b.sub(corners[3], corners[1]))
        position = b.broadcast_to(b.expand_dims(b.arange(n), 0), (p, n))
        candidates = b.compare("LT", position, b.expand_dims(count, 1))
        first_box = b.where(b.compare("GT", count, 0), b.scalar(0, i64), b.scalar(n, i64))
        invariant_values = (*corners, area, threshold)
        start = (first_box, b.broadcast_to(max_kept, (p,)), candidates, *invariant_values)
        state = tuple(Input(f"v{i}", x.type)() for i, x in enumerate(start))
        current, remaining, is_kept, *invariants = state
        active = b.and_(b.compare("LT", current, b.scalar(n, i64)), b.compare("GT", remaining, 0))
        later = b.and_(b.compare("GT", position, b.expand_dims(current, 1)), b.expand_dims(active, 1))
        next_kept = b.and_(is_kept, Not()(b.and_(later, self._overlaps(b.expand_dims(current, 1), *invariants))))
        next_box = b.reduce_min(b.where(b.and_(next_kept, later), position, b.scalar(n, i64)), 1)
        next_state = (b.where(active, next_box, current), b.sub(remaining, b.cast(active, i64)), next_kept, *invariants)
        results = While(Graph(state, (b.reduce("or", active),)), Graph(state, next_state))(*start).results
        # boxes after the current one of the last iteration were not examined
        return b.and_(results[2], b.compare("LT", position, b.expand_dims(results[0], 1)))

    def _overlaps(self, current: Node, *invariants: Node) -> Node:
        """Whether each box overlaps box `current` [p, 1]."""
        x1, y1, x2, y2, area, threshold = invariants
        box = [GatherElements(1)(v, current) for v in (x1, y1, x2, y2, area)]
        w = b.sub(b.minimum(box[2], x2), b.maximum(box[0], x1))
        h = b.sub(b.minimum(box[3], y2), b.maximum(box[1], y1))
        if not self.strict:
            w, h = b.maximum(w, 0.0), b.maximum(h, 0.0)
        intersection = b.mul(w, h)
        area_sum = b.add(box[4], area)
        overlaps = b.compare("GT", b.div(intersection, b.sub(area_sum, intersection)), threshold)
        if self.strict:
            for positive in (w, h, intersection, box[4], area, b.sub(area_sum, intersection)):
                overlaps = b.and_(overlaps, b.compare("GT", positive, 0.0))
        return overlaps

    @classmethod
    def samples(cls) -> Samples:
        rng = np.random.default_rng(0)
        low = rng.uniform(0, 5, (3, 2, 40))
        boxes = np.concatenate([low, low + rng.uniform(-0.1, 4, low.shape)], 1).astype(np.float32)
        boxes[0, :, 3] = boxes[0, :, 4]
        boxes[1, 2, 5] = np.nan
        count, max_kept = np.asarray([40, 17, 0]), np.asarray(100)
        for strict in (False, True):
            for threshold in (0.0, 0.3, 1.0):
                yield cls(strict), (boxes, count, max_kept, np.asarray(threshold, np.float32))
            yield cls(strict), (boxes, count, np.asarray(3), np.asarray(0.5, np.float32))
            yield cls(strict), (boxes.astype(np.float64), count, np.asarray(0), np.asarray(0.5))
        yield cls(), (np.zeros((2, 4, 0), np.float32), np.zeros(2, np.int64), max_kept, np.asarray(0.5, np.float32))


def roi_align(
    x: Node, rois: Node, image: Node, out: tuple[int, int], grid: int, *, half_pixel: bool, maximum: bool = False
) -> Node:
    """RoIAlign: regions of images x[n, c, h, w] resampled to [r, c, *out] (He et al. 2017).

    rois: [r, 4], the corners x1, y1, x2, y2 in pixels. image: i64[r], the image of each region. grid: an output is the
    mean of grid * grid bilinear samples. half_pixel: pixel centers are at half-integers, and regions may be smaller
    than a pixel. maximum: the largest weighted neighbor instead of the mean (mode max of ONNX RoiAlign).
    """
    n, channels, height, width = x.shape
    corners = b.sub(rois, 0.5) if half_pixel else rois
    x1, y1, x2, y2 = (b.index_axis(corners, 1, i) for i in range(4))
    sizes = [b.sub(y2, y1), b.sub(x2, x1)]
    if not half_pixel:
        sizes = [b.maximum(s, 1.0) for s in sizes]
    rows = _sample_positions(y1, sizes[0], out[0], grid, height)
    cols = _sample_positions(x1, sizes[1], out[1], grid, width)
    pixels = b.reshape(b.transpose(x, (0, 2, 3, 1)), (n * height * width, channels))
    image = b.expand_dims(image, (1, 2))
    low_weights = [b.sub(1.0, v[2]) for v in (rows, cols)]
    is_inside = b.and_(b.expand_dims(rows[3], 2), b.expand_dims(cols[3], 1))
    parts: list[Node] = []
    for yi, wy in ((rows[0], low_weights[0]), (rows[1], rows[2])):
        for xi, wx in ((cols[0], low_weights[1]), (cols[1], cols[2])):
            row_index = b.add(b.mul(image, height), b.expand_dims(yi, 2))
            flat_index = b.add(b.mul(row_index, width), b.expand_dims(xi, 1))
            weight = b.mul(b.expand_dims(wy, 2), b.expand_dims(wx, 1))
            weight = b.where(is_inside, weight, 0.0)
            parts.append(b.mul(Take(0)(pixels, flat_index), b.expand_dims(weight, 3)))
    split = (rois.shape[0], out[0], grid, out[1], grid, channels)
    if maximum:
        largest = b.maximum(b.maximum(parts[0], parts[1]), b.maximum(parts[2], parts[3]))
        y = b.reduce_max(b.reshape(largest, split), (2, 4))
    else:
        total = b.add(b.add(parts[0], parts[1]), b.add(parts[2], parts[3]))
        y = b.mean(b.reshape(total, split), (2, 4))
    return b.transpose(y, (0, 3, 1, 2))


def _sample_positions(start: Node, size: Node, count: int, grid: int, limit: DimLike) -> tuple[Node, Node, Node, Node]:
    """(low index, high index, weight of high, is inside) along one axis, each [r, count * grid]."""
    samples = b.cast(b.arange(count * grid), start.dtype)
    step = b.div(size, float(count * grid))
    position = b.add(b.expand_dims(start, 1), b.mul(b.expand_dims(step, 1), b.expand_dims(b.add(samples, 0.5), 0)))
    limit_value = b.cast(b.scalar(limit, i64), start.dtype)
    is_inside = b.and_(b.compare("GE", position, -1.0), b.compare("LE", position, limit_value))
    last_index = b.sub(limit_value, 1.0)
    position = b.minimum(b.maximum(position, 0.0), last_index)
    low = Floor()(position)
    high = b.minimum(b.add(low, 1.0), last_index)
    return b.cast(low, i64), b.cast(high, i64), b.sub(position, low), is_inside
