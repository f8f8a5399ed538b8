"""Resampling: resize with ONNX's and PyTorch's coordinate maps, and padding from x's own elements.

Resize is separable: per axis, a map from output positions to input coordinates, then 1 (nearest), 2 (linear) or 4
(cubic) taps at neighbouring indices with weights. The same formulas run on numpy arrays and, for
symbolic sizes, on terms.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from ingot.ir.dims import Dim, DimLike, ceildiv, dim_max, dim_min, divides, is_static, negative
from ingot.ir.node import Node, Op, Samples
from ingot.ir.types import DType, Shape, TensorType, dtype_of, f32, f64, i64
from ingot.ops.core.base import check_count, check_dims, round_to, show_shape
from ingot.ops.core.shape import Reverse
from ingot.ops.nn import terms as t
from ingot.ops.nn.terms import Operand, Term, Value
from ingot.support.dataclass import dataclass

COORDINATES = (
    "half_pixel",
    "align_corners",
    "asymmetric",
    "pytorch_half_pixel",
    "half_pixel_symmetric",
    "tf_half_pixel_for_nn",
    "tf_crop_and_resize",
)
NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


def _cubic(distance: Value, a: float) -> Value:
    """Keys' kernel (1981) at |distance|."""
    x = t.absolute(distance)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return t.where(x <= 1, near, t.where(x < 2, far, far * 0))


def _triangle(distance: Value) -> Value:
    return t.maximum(1 - t.absolute(distance), 0)


@dataclass(frozen=True)
class Resize(Op):
    """x resampled to `sizes` on `axes`.

    mode: nearest, linear, cubic (Keys' kernel with `cubic_a`). coordinates: ONNX's coordinate_transformation_mode.
    scales: output over input sizes as the user gave them; coordinates use them instead of the ratio of sizes (for ONNX
    with sizes, pass the f32 ratios: ONNX Runtime's rounding of ties follows). roi:
    (start, end) per axis for tf_crop_and_resize, in which coordinates outside x give `extrapolation`. exclude_outside:
    taps outside x weigh nothing (else they repeat the edge). antialias: the kernel is stretched by 1 / scale where it
    shrinks x (PyTorch's antialias also excludes outside taps). Integers are computed in f32 and truncated.
    """

    name: ClassVar[str] = "resize"
    sizes: Shape
    axes: tuple[int, ...]
    mode: str = "nearest"
    coordinates: str = "half_pixel"
    nearest_mode: str = "round_prefer_floor"
    cubic_a: float = -0.75
    exclude_outside: bool = False
    scales: tuple[float, ...] | None = None
    antialias: bool = False
    roi: tuple[tuple[float, float], ...] | None = None
    extrapolation: float = 0.0

    def infer(self, *inputs: TensorType) -> TensorType:
        check_count(self, inputs, 1)
        (x,) = inputs
        check_dims(self, self.axes, x.rank, "axes")
        for what, value, choices in (
            ("mode", self.mode, ("nearest", "linear", "cubic")),
            ("coordinates", self.coordinates, COORDINATES),
            ("nearest_mode", self.nearest_mode, NEAREST),
        ):
            self.expect(value in choices, f"{what}: expected one of {' '.join(choices)}, got {value}")
        count = len(self.axes)
        lengths = (len(self.sizes), count if self.scales is None else len(self.scales))
        self.expect(lengths == (count, count), f"expected {count} sizes and scales, got {lengths}")
        crop = self.coordinates == "tf_crop_and_resize"
        self.expect(not crop or (self.roi is not None and len(self.roi) == count), f"roi: expected {count} ranges")
        self.expect(x.dtype.kind != "b" or self.mode == "nearest", f"{self.mode}: expected numbers, got {x}")
        self.expect(not self.antialias or self.mode != "nearest", "antialias: expected mode linear or cubic")
        self.expect_constraints(*inputs)
        shape = list(x.shape)
        for i, (axis, size) in enumerate(zip(self.axes, self.sizes, strict=True)):
            self.expect(not negative(size), f"sizes: expected 0 or more, got {size}")
            settled = is_static((x.shape[axis], size)) or self.scales is not None or self.exclude_outside
            self.expect(
                not self.antialias or settled or x.shape[axis] == size,
                f"axis {axis}: antialias with edge taps expects static sizes or scales, got {x.shape[axis]} to {size}",
            )
            if self.scales is not None:
                self.expect(self.scales[i] > 0, f"scales: expected positive ones, got {self.scales}")
            shape[axis] = size
        return x.with_shape(tuple(shape))

    def constraints(self, *inputs: TensorType) -> Iterator[tuple[DimLike, str]]:
        for axis, size in zip(self.axes, self.sizes, strict=True):
            yield inputs[0].shape[axis] - dim_min(size, 1), f"expected elements on axis {axis}, got {inputs[0]}"

    def _identity(self, i: int, size: DimLike) -> bool:
        """Whether the i-th axis stays as it is; one without elements does at any scale."""
        unscaled = self.scales is None or self.scales[i] == 1 or size == 0
        return size == self.sizes[i] and unscaled and self.coordinates != "tf_crop_and_resize"

    def _position(self, i: int, size: DimLike, dtype: DType) -> Value:
        """Input coordinates of all outputs on the i-th axis, in `dtype`."""
        out = self.sizes[i]
        at = t.arange(out, dtype)
        n, m = t.size(size, dtype), t.size(out, dtype)
        half = at + 0.5
        if self.coordinates == "align_corners":
            # (0 output or) 1 output: coordinate 0
            return at * (n - 1) / t.maximum(m - 1, 1)
        if self.coordinates == "tf_crop_and_resize":
            assert self.roi is not None
            start, end = self.roi[i]
            if out == 1:
                return at + (n - 1) * (0.5 * (start + end))
            return at * ((n - 1) * (end - start) / t.maximum(m - 1, 1)) + (n - 1) * start
        scaled = self._unscale(i, at, n, m)
        centred = self._unscale(i, half, n, m)
        if self.coordinates == "asymmetric":
            return scaled
        if self.coordinates == "tf_half_pixel_for_nn":
            return centred
        if self.coordinates == "pytorch_half_pixel" and out == 1:
            return at
        if self.coordinates == "pytorch_half_pixel" and isinstance(out, Dim):
            return t.where(t.as_term(m) > 1, centred - 0.5, at)
        if self.coordinates == "half_pixel_symmetric" and self.scales is not None:
            return n / 2 * (1 - m / (n * self.scales[i])) + centred - 0.5
        return centred - 0.5

    def _unscale(self, i: int, x: Value, n: Operand, m: Operand) -> Value:
        """x over the scale, rounded as the frameworks round (a tie of nearest hangs on the last bit).

        Without scales: times in / out (PyTorch). With scales: a division (ONNX Runtime), which its rounding modes do
        exactly where the scale is the ratio of the sizes.
        """
        if self.scales is None:
            return x * (n / m)
        scale = self.scales[i]
        exact = self.mode == "nearest" and self.nearest_mode.startswith("round") and not t.is_term(n, m)
        if exact and np.float32(scale) == np.float32(np.asarray(m) / np.asarray(n)):
            return x * n / m
        return x / scale

    def _nearest(self, position: Value, size: DimLike) -> Value:
        rounded = {
            "floor": lambda p: t.floor(p),
            "ceil": lambda p: t.ceil(p),
            "round_prefer_floor": lambda p: t.ceil(p - 0.5),
            "round_prefer_ceil": lambda p: t.floor(p + 0.5),
        }[self.nearest_mode](position)
        return t.clamp(0, t.convert(rounded, i64), t.size(size) - 1)

    def _taps(self, i: int, size: DimLike, dtype: DType) -> list[tuple[Value, Value]]:
        """(index, weight) pairs of the i-th axis: vectors over the outputs. Indices lie inside x."""
        position = self._position(i, size, dtype)
        floor = t.floor(position)
        ratio = position - floor
        first = t.convert(floor, i64)
        steps = (-1, 0, 1, 2) if self.mode == "cubic" else (0, 1)
        stretch = self._stretch(i, size)
        if stretch is not None:
            reach = (2 if self.mode == "cubic" else 1) / stretch
            steps = tuple(range(int(np.floor(-reach)) + 1, int(np.ceil(reach)) + 1))
        last = t.size(size) - 1
        taps: list[tuple[Value, Value]] = []
        for step in steps:
            distance = ratio - step if stretch is None else (ratio - step) * stretch
            weight = _cubic(distance, self.cubic_a) if self.mode == "cubic" else _triangle(distance)
            at = first + step
            inside = t.clamp(0, at, last)
            if self.exclude_outside:
                weight = t.where(t.equals(at, inside), weight, weight * 0)
            taps.append((inside, weight))
        if self.exclude_outside or stretch is not None:
            total = taps[0][1]
            for _, weight in taps[1:]:
                total = total + weight
            taps = [(at, weight / total) for at, weight in taps]
        return taps

    def _stretch(self, i: int, size: DimLike) -> float | None:
        """The scale, where antialiasing widens the kernel by its inverse."""
        if not self.antialias:
            return None
        out = self.sizes[i]
        if self.scales is not None:
            scale = self.scales[i]
        elif isinstance(out, int) and isinstance(size, int):
            scale = out / size
        else:
            return None
        return scale if scale < 1 else None

    def _outside(self, i: int, size: DimLike, dtype: DType) -> Value | None:
        """Where tf_crop_and_resize extrapolates."""
        if self.coordinates != "tf_crop_and_resize":
            return None
        position = self._position(i, size, dtype)
        return t.either(position < 0, position > t.size(size, dtype) - 1)

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        (x,) = inputs
        dtype = dtype_of(x)
        work = f64 if dtype == f64 else f32
        y = x if self.mode == "nearest" else t.exact(x) if dtype.is_float else x.astype(np.float64)
        # what shrinks first: an axis that grows while another is still long may need a thousand times the result
        growth = [int(out) / max(x.shape[axis], 1) for out, axis in zip(self.sizes, self.axes, strict=True)]
        for i in np.argsort(growth, kind="stable").tolist():
            axis, size = self.axes[i], int(x.shape[self.axes[i]])
            if self._identity(i, size) or not y.size:
                y = np.take(y, np.zeros(int(self.sizes[i]), int), axis) if not y.size else y
                continue
            form = [-1 if d == axis else 1 for d in range(x.ndim)]
            if self.mode == "nearest":
                y = np.take(y, np.asarray(self._nearest(self._position(i, size, work), size)), axis)
            else:
                parts = [
                    self._part(np.take(y, np.asarray(at), axis), np.asarray(weight).reshape(form))
                    for at, weight in self._taps(i, size, work)
                ]
                y = np.sum(parts, axis=0)
        for i, axis in enumerate(self.axes):
            outside = self._outside(i, x.shape[axis], work)
            if outside is not None:
                form = [-1 if d == axis else 1 for d in range(x.ndim)]
                y = np.where(np.asarray(outside).reshape(form), y.dtype.type(self.extrapolation), y)
        return round_to(np.trunc(y) if dtype.is_integer and y.dtype.kind == "f" else y, dtype)

    def _part(self, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """What elements add to a result: in windows as wide as the scale demands, nothing where they weigh nothing."""
        return np.where(weight == 0, 0, x * weight) if self.antialias else x * weight

    def lower(self, *inputs: Node) -> Node:
        (node,) = inputs
        x = Term(node)
        if self.mode != "nearest":
            x = t.floating(node) if node.dtype.is_float else x.cast(f32)
        work = f64 if node.dtype == f64 else f32
        # the outermost last, where most elements are: neighbours along the others are computed alike
        for i, axis in sorted(enumerate(self.axes), key=lambda pair: -pair[1]):
            size = node.shape[axis]
            if not self._identity(i, size):
                x = self._axis(x, i, axis, size, work)
        for i, axis in enumerate(self.axes):
            outside = self._outside(i, node.shape[axis], work)
            if outside is not None:
                mask = t.as_term(outside).spread(x.shape, (axis,))
                x = t.term(t.where(mask, self.extrapolation, x))
        return x.cast(node.dtype).node

    def _axis(self, x: Term, i: int, axis: int, size: DimLike, work: DType) -> Term:
        """x resampled on one axis."""
        if self.mode == "nearest":
            factor = self._repeats(i, size)
            if factor is not None:
                return _repeat(x, axis, factor)
            return t.take(x, self._nearest(self._position(i, size, work), size), axis)
        if self.antialias:
            return self._windowed(x, i, axis, size, work)
        out: Term | None = None
        for at, weight in self._taps(i, size, work):
            part = t.take(x, at, axis)
            part = part * t.as_term(weight, work).cast(x.dtype).spread(part.shape, (axis,))
            out = part if out is None else out + part
        assert out is not None
        return out

    def _repeats(self, i: int, size: DimLike) -> int | None:
        """k where output j is input j // k."""
        factor = divides(self.sizes[i], size)
        if not isinstance(factor, int) or factor < 1 or size == 0:
            return None
        index = self._nearest(self._position(i, size, f32), size) if isinstance(size, int) else None
        if isinstance(size, int) and isinstance(index, np.ndarray):
            return factor if np.array_equal(index, np.repeat(np.arange(size), factor)) else None
        scaled = self.scales is None or self.scales[i] == factor
        rounds = self.nearest_mode.startswith("round")
        plain = self.coordinates in ("half_pixel", "pytorch_half_pixel", "half_pixel_symmetric") and rounds
        floors = self.coordinates in ("asymmetric", "tf_half_pixel_for_nn") and self.nearest_mode == "floor"
        return factor if scaled and (plain or floors) else None

    def _windowed(self, x: Term, i: int, axis: int, size: DimLike, work: DType) -> Term:
        """Antialiasing has as many taps as the scale demands: windows as rows, times their weights. A product with an
        [out, in] matrix would spread NaN and infinities to all outputs by its zeros."""
        stretch = self._stretch(i, size)
        if stretch is not None or is_static((size, self.sizes[i])) or not self.exclude_outside:
            start, count, weight = _rows(self._taps(i, size, work), size)
        else:
            start, count, weight = self._open_rows(i, size, work)
        rows = t.windows(x, start, count, axis)
        spread = t.as_term(weight, work).cast(x.dtype).spread(rows.shape, (axis, axis + 1))
        # what weighs nothing is no part of a window
        part = t.where(spread.equals(0), 0, rows * spread)
        return t.term(part).sum((axis + 1,), keepdims=False)

    def _open_rows(self, i: int, size: DimLike, work: DType) -> tuple[Value, DimLike, Value]:
        """As `_rows` where the scale is known at run time only, taps outside x excluded."""
        out, half = self.sizes[i], 2 if self.mode == "cubic" else 1
        position = t.as_term(self._position(i, size, work))
        shrink = t.minimum(t.term(t.as_term(t.size(out, work)) / t.size(size, work)), 1)
        count = dim_min(2 * dim_max(ceildiv(half * size, out), half) + 1, size)
        first = t.convert(t.ceil(position - half / t.term(t.as_term(shrink))), i64)
        start = t.clamp(0, first, t.size(size - count))
        places = t.term(t.as_term(start)).expand(1) + t.as_term(t.arange(count))
        distance = (position.expand(1) - places.cast(work)) * shrink
        weight = t.term(_cubic(distance, self.cubic_a) if self.mode == "cubic" else _triangle(distance))
        return start, count, weight / weight.sum((1,))

    @classmethod
    def samples(cls) -> Samples:
        x = _data(2, 2, 5, 7)
        for mode in ("nearest", "linear", "cubic"):
            for coordinates in COORDINATES[:-1]:
                yield cls((8, 4), (2, 3), mode, coordinates), (x,)
                yield cls((3, 1), (2, 3), mode, coordinates), (x,)
                yield cls((8, 5), (2, 3), mode, coordinates, scales=(1.7, 0.8)), (x,)
            for exclude in (False, True):
                for antialias in (False, True)[: 1 + (mode != "nearest")]:
                    yield cls((3, 9), (2, 3), mode, exclude_outside=exclude, antialias=antialias), (x,)
                    yield (
                        cls((2, 3), (3, 2), mode, exclude_outside=exclude, antialias=antialias, scales=(0.3, 0.7)),
                        (x,),
                    )
                    if antialias:
                        holes = _holes()
                        if mode == "cubic":  # the signs of its weights that are 0 but for rounding tell nothing
                            holes[np.isinf(holes)] = np.nan
                        yield cls((3, 9), (2, 3), mode, exclude_outside=exclude, antialias=True), (holes,)
            crop = {"coordinates": "tf_crop_and_resize", "roi": ((0.2, 0.9), (-0.2, 1.1)), "extrapolation": 9.5}
            yield cls((4, 6), (2, 3), mode, **crop), (x,)
            yield cls((1, 6), (2, 3), mode, **crop), (x,)
            yield cls((10, 21), (2, 3), mode), (x,)
            yield cls((9,), (2,), mode), (_data(1, 2, 4).astype(np.float16),)
            yield cls((9,), (2,), mode), (_data(1, 2, 4).astype(np.float64),)
            yield cls((5,), (1,), mode, "asymmetric"), (np.arange(0, 240, 30, dtype=np.uint8).reshape(1, 4, 2),)
            yield cls((3,), (1,), mode), (np.zeros((0, 4), np.float32),)
            yield cls((0, 3), (1, 2), mode, "asymmetric", scales=(2.0, 1.5)), (np.zeros((4, 0, 2), np.float32),)
        for nearest in NEAREST:
            for coordinates in COORDINATES[:-1]:
                yield cls((7, 12), (2, 3), "nearest", coordinates, nearest), (x,)
                yield cls((10, 21), (2, 3), "nearest", coordinates, nearest), (x,)


def _repeat(x: Term, axis: int, factor: int) -> Term:
    """Each element `factor` times in a row."""
    shape = (*x.shape[: axis + 1], factor, *x.shape[axis + 1 :])
    dims = [d for d in range(len(shape)) if d != axis + 1]
    return x.spread(shape, dims).reshape((*x.shape[:axis], x.shape[axis] * factor, *x.shape[axis + 1 :]))


def _rows(taps: list[tuple[Value, Value]], size: DimLike) -> tuple[Value, DimLike, Value]:
    """The taps as windows of one length: their first indices [out], the length and the weights [out, length]. Taps at
    one index add up."""
    count = dim_min(len(taps), size)
    start = t.minimum(taps[0][0], t.size(size - count))
    places = t.arange(count)
    total: Value | None = None
    for at, weight in taps:
        if t.is_term(at, start, places, weight):
            hit = t.as_term(places).equals(t.term(t.as_term(at) - start).expand(1))
            part = t.where(hit, t.term(t.as_term(weight)).expand(1), 0.0)
        else:
            part = np.where(np.asarray(at - start)[:, None] == places, np.asarray(weight)[:, None], 0)
        total = part if total is None else total + part
    assert total is not None
    return start, count, total


def _holes() -> np.ndarray:
    x = _data(1, 2, 24, 20)
    x[0, 0, 2, 3], x[0, 1, 0, 0], x[0, 1, 20, 19] = np.nan, np.inf, -np.inf
    return x


def _data(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


@dataclass(frozen=True)
class PadMode(Op):
    """x padded from its own elements. mode: reflect (the edge once), edge, wrap; as numpy.pad. Negative pads crop."""

    name: ClassVar[str] = "pad_mode"
    low: Shape
    high: Shape
    mode: str

    def infer(self, *inputs: TensorType) -> TensorType:
        check_count(self, inputs, 1)
        (x,) = inputs
        self.expect(self.mode in ("reflect", "edge", "wrap"), f"mode: expected reflect, edge or wrap, got {self.mode}")
        lengths = (len(self.low), len(self.high))
        self.expect(lengths == (x.rank, x.rank), f"expected {x.rank} lows and highs for {x}, got {lengths}")
        shape = tuple(d + a + b for d, a, b in zip(x.shape, self.low, self.high, strict=True))
        self.expect(not any(map(negative, shape)), f"{x} cropped below nothing: {show_shape(shape)}")
        self.expect_constraints(*inputs)
        return x.with_shape(shape)

    def constraints(self, *inputs: TensorType) -> Iterator[tuple[DimLike, str]]:
        for n, low, high in zip(inputs[0].shape, self.low, self.high, strict=True):
            if (low, high) != (0, 0):
                yield n - dim_min(n + low + high, 1), f"expected elements to pad with, got {inputs[0]}"

    def _source(self, size: DimLike, low: DimLike, out: DimLike) -> Value:
        """The input index of each output index."""
        at, n = t.arange(out) - t.size(low), t.size(size)
        if self.mode == "edge":
            return t.clamp(0, at, n - 1)
        if self.mode == "wrap":
            return t.mod(at, n)
        period = t.maximum(n * 2 - 2, 1)
        back = t.mod(at, period)
        return t.minimum(back, period - back) if size != 1 else back

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        (x,) = inputs
        for axis, (low, high) in enumerate(zip(self.low, self.high, strict=True)):
            size = x.shape[axis]
            index = np.arange(-int(low), size + int(high))
            if self.mode == "edge":
                index = np.clip(index, 0, size - 1)
            elif self.mode == "wrap":
                index = index % max(size, 1)
            else:
                period = max(2 * size - 2, 1)
                index = index % period
                index = np.where(index >= size, period - index, index)
            x = np.take(x, index, axis)
        return x

    def lower(self, *inputs: Node) -> Node:
        x = Term(inputs[0])
        for axis, (low, high) in enumerate(zip(self.low, self.high, strict=True)):
            size = x.shape[axis]
            if low == 0 and high == 0:
                continue
            pieces = self._pieces(x, axis, low, high)
            x = t.concat(pieces, axis) if pieces else t.take(x, self._source(size, low, size + low + high), axis)
        return x.node

    def _pieces(self, x: Term, axis: int, low: DimLike, high: DimLike) -> list[Term]:
        """x between what lies before and behind it along `axis`: lines that are copied, where a lookup would gather.
        Nothing where it would take more than one piece on a side, or sizes are not known."""
        size = x.shape[axis]
        if not isinstance(size, int) or not isinstance(low, int) or not isinstance(high, int) or min(low, high) < 0:
            return []

        def part(start: int, stop: int) -> Term:
            piece = x.slice(axis, start, stop)
            return piece.map(Reverse((axis,))) if self.mode == "reflect" else piece

        def edge(at: int, count: int) -> Term:
            shape = tuple(count if d == axis else n for d, n in enumerate(x.shape))
            return x.slice(axis, at, at + 1).broadcast(shape)

        match self.mode:
            case "edge" if size > 0:
                around = edge(0, low), edge(size - 1, high)
            case "wrap" if max(low, high) <= size:
                around = part(size - low, size), part(0, high)
            case "reflect" if max(low, high) < size:
                around = part(1, low + 1), part(size - 1 - high, size - 1)
            case _:
                return []
        return [p for p in (around[0], x, around[1]) if p.shape[axis] != 0]

    @classmethod
    def samples(cls) -> Samples:
        x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
        for mode in ("reflect", "edge", "wrap"):
            yield cls((0, 1, 2), (1, 2, 3), mode), (x,)
            yield cls((0, 7, 0), (0, 11, 9), mode), (x,)
            yield cls((0, -1, 2), (0, 1, -3), mode), (x,)
            yield cls((2, 0), (1, 0), mode), (np.arange(3, dtype=np.int8).reshape(1, 3),)
            yield cls((1,), (1,), mode), (np.asarray([True, False]),)
