"""Boxes in images: which of overlapping ones are kept, and what an image holds inside them."""

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
    """Which boxes greedy non-maximum suppression keeps: a box stays unless one before it that stays overlaps it by more
    than the threshold.

    Operands: corners x1, y1, x2, y2 as [p, 4, n], in the order of their scores, the best first; how many of the n are
    candidates, i64[p]; how many to keep at most, i64[]; the threshold of intersection over union, as the corners.
    Result: bool[p, n].
    strict: boxes without an area, or whose intersection has none, overlap nothing (ONNX); else the quotient decides
    (torchvision).
    """

    name: ClassVar[str] = "suppress_overlaps"
    strict: bool = False

    def infer(self, *inputs: TensorType) -> TensorType:
        check_count(self, inputs, 4)
        boxes, count, most, threshold = inputs
        self.expect(
            boxes.rank == 3 and boxes.shape[1] == 4 and boxes.dtype.is_float, f"expected floats [p, 4, n], got {boxes}"
        )
        self.expect(count == TensorType(i64, boxes.shape[:1]), f"expected i64[p], got {count}")
        self.expect(most == TensorType(i64), f"expected i64[], got {most}")
        self.expect(threshold == TensorType(boxes.dtype), f"expected a threshold {boxes.dtype}[], got {threshold}")
        return TensorType(boolean, (boxes.shape[0], boxes.shape[2]))

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        boxes, count, most, threshold = inputs
        kept = np.zeros((boxes.shape[0], boxes.shape[2]), bool)
        for p, (x1, y1, x2, y2) in enumerate(boxes):
            area = (x2 - x1) * (y2 - y1)
            alive = np.arange(boxes.shape[2]) < count[p]
            for i in range(int(count[p])):
                if not alive[i] or kept[p].sum() >= most:
                    continue
                kept[p, i] = True
                w = np.minimum(x2[i], x2) - np.maximum(x1[i], x1)
                h = np.minimum(y2[i], y2) - np.maximum(y1[i], y1)
                if not self.strict:
                    w, h = np.maximum(w, 0), np.maximum(h, 0)
                shared = w * h
                over = shared / (area[i] + area - shared) > threshold
                if self.strict:
                    over &= (w > 0) & (h > 0) & (shared > 0) & (area[i] > 0) & (area > 0) & (area[i] + area > shared)
                alive &= ~over
        return kept

    def lower(self, *inputs: Node) -> Node:
        """Every turn of a loop takes the next box that stays, of all p at once, and drops what it overlaps."""
        boxes, count, most, threshold = inputs
        p, _, n = boxes.shape
        if n == 0:
            return b.full((p, n), False, boolean)
        sides = [b.index_axis(boxes, 1, i) for i in range(4)]
        area = b.mul(b.sub(sides[2], sides[0]), b.sub(sides[3], sides[1]))
        place = b.broadcast_to(b.expand_dims(b.arange(n), 0), (p, n))
        alive = b.compare("LT", place, b.expand_dims(count, 1))
        first = b.where(b.compare("GT", count, 0), b.scalar(0, i64), b.scalar(n, i64))
        fixed = (*sides, area, threshold)
        start = (first, b.broadcast_to(most, (p,)), alive, *fixed)
        state = tuple(Input(f"v{i}", x.type)() for i, x in enumerate(start))
        at, left, stays, *rest = state
        active = b.and_(b.compare("LT", at, b.scalar(n, i64)), b.compare("GT", left, 0))
        later = b.and_(b.compare("GT", place, b.expand_dims(at, 1)), b.expand_dims(active, 1))
        stays_on = b.and_(stays, Not()(b.and_(later, self._over(b.expand_dims(at, 1), *rest))))
        following = b.reduce_min(b.where(b.and_(stays_on, later), place, b.scalar(n, i64)), 1)
        after = (b.where(active, following, at), b.sub(left, b.cast(active, i64)), stays_on, *rest)
        done = While(Graph(state, (b.reduce("or", active),)), Graph(state, after))(*start).results
        # what lies behind the last turn was never looked at
        return b.and_(done[2], b.compare("LT", place, b.expand_dims(done[0], 1)))

    def _over(self, at: Node, *rest: Node) -> Node:
        """Whether each box overlaps that at `at` [p, 1]."""
        x1, y1, x2, y2, area, threshold = rest
        own = [GatherElements(1)(v, at) for v in (x1, y1, x2, y2, area)]
        w = b.sub(b.minimum(own[2], x2), b.maximum(own[0], x1))
        h = b.sub(b.minimum(own[3], y2), b.maximum(own[1], y1))
        if not self.strict:
            w, h = b.maximum(w, 0.0), b.maximum(h, 0.0)
        shared = b.mul(w, h)
        both = b.add(own[4], area)
        over = b.compare("GT", b.div(shared, b.sub(both, shared)), threshold)
        if self.strict:
            for positive in (w, h, shared, own[4], area, b.sub(both, shared)):
                over = b.and_(over, b.compare("GT", positive, 0.0))
        return over

    @classmethod
    def samples(cls) -> Samples:
        rng = np.random.default_rng(0)
        low = rng.uniform(0, 5, (3, 2, 40))
        boxes = np.concatenate([low, low + rng.uniform(-0.1, 4, low.shape)], 1).astype(np.float32)
        boxes[0, :, 3] = boxes[0, :, 4]
        boxes[1, 2, 5] = np.nan
        count, most = np.asarray([40, 17, 0]), np.asarray(100)
        for strict in (False, True):
            for threshold in (0.0, 0.3, 1.0):
                yield cls(strict), (boxes, count, most, np.asarray(threshold, np.float32))
            yield cls(strict), (boxes, count, np.asarray(3), np.asarray(0.5, np.float32))
            yield cls(strict), (boxes.astype(np.float64), count, np.asarray(0), np.asarray(0.5))
        yield cls(), (np.zeros((2, 4, 0), np.float32), np.zeros(2, np.int64), most, np.asarray(0.5, np.float32))


def roi_align(
    x: Node, rois: Node, image: Node, out: tuple[int, int], grid: int, *, half_pixel: bool, maximum: bool = False
) -> Node:
    """Regions [r, 4] (x1, y1, x2, y2 in pixels) of images x[n, c, h, w] as [r, c, *out], means of grid * grid bilinear
    samples each (He et al. 2017). image: i64[r], which one. half_pixel: pixels' centers lie at halves, and a region may
    be smaller than a pixel. maximum: the largest weighted neighbour instead of the mean, as ONNX has it."""
    n, channels, height, width = x.shape
    corners = b.sub(rois, 0.5) if half_pixel else rois
    x1, y1, x2, y2 = (b.index_axis(corners, 1, i) for i in range(4))
    sizes = [b.sub(y2, y1), b.sub(x2, x1)]
    if not half_pixel:
        sizes = [b.maximum(s, 1.0) for s in sizes]
    rows = _places(y1, sizes[0], out[0], grid, height)
    cols = _places(x1, sizes[1], out[1], grid, width)
    pixels = b.reshape(b.transpose(x, (0, 2, 3, 1)), (n * height * width, channels))
    image = b.expand_dims(image, (1, 2))
    ones = [b.sub(1.0, v[2]) for v in (rows, cols)]
    inside = b.and_(b.expand_dims(rows[3], 2), b.expand_dims(cols[3], 1))
    parts: list[Node] = []
    for yi, wy in ((rows[0], ones[0]), (rows[1], rows[2])):
        for xi, wx in ((cols[0], ones[1]), (cols[1], cols[2])):
            line = b.add(b.mul(image, height), b.expand_dims(yi, 2))
            flat = b.add(b.mul(line, width), b.expand_dims(xi, 1))
            weight = b.mul(b.expand_dims(wy, 2), b.expand_dims(wx, 1))
            weight = b.where(inside, weight, 0.0)
            parts.append(b.mul(Take(0)(pixels, flat), b.expand_dims(weight, 3)))
    split = (rois.shape[0], out[0], grid, out[1], grid, channels)
    if maximum:
        most = b.maximum(b.maximum(parts[0], parts[1]), b.maximum(parts[2], parts[3]))
        y = b.reduce_max(b.reshape(most, split), (2, 4))
    else:
        total = b.add(b.add(parts[0], parts[1]), b.add(parts[2], parts[3]))
        y = b.mean(b.reshape(total, split), (2, 4))
    return b.transpose(y, (0, 3, 1, 2))


def _places(start: Node, size: Node, count: int, grid: int, limit: DimLike) -> tuple[Node, Node, Node, Node]:
    """Along one axis, for each region [r] and sample [count*grid]: (low index, high index, weight of high, inside)."""
    samples = b.cast(b.arange(count * grid), start.dtype)
    step = b.div(size, float(count * grid))
    at = b.add(b.expand_dims(start, 1), b.mul(b.expand_dims(step, 1), b.expand_dims(b.add(samples, 0.5), 0)))
    last = b.cast(b.scalar(limit, i64), start.dtype)
    inside = b.and_(b.compare("GE", at, -1.0), b.compare("LE", at, last))
    most = b.sub(last, 1.0)
    at = b.minimum(b.maximum(at, 0.0), most)
    low = Floor()(at)
    high = b.minimum(b.add(low, 1.0), most)
    return b.cast(low, i64), b.cast(high, i64), b.sub(at, low), inside
