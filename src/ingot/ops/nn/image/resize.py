"""Resize with the coordinate maps of ONNX and PyTorch.

It is separable: per axis, a map from output positions to input coordinates, then 1 (nearest), 2 (linear) or 4
(cubic) weighted taps at neighboring indices. The same formulas run on numpy arrays and, for symbolic sizes, on terms.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from ingot.ir.dims import Dim, DimLike, ceildiv, dim_max, dim_min, exact_quotient, is_negative, is_static
from ingot.ir.node import Node, Op, Samples
from ingot.ir.types import DType, Shape, TensorType, dtype_of, f32, f64, i64
from ingot.ops.core.base import check_count, check_dims, round_to
from ingot.ops.nn import terms as t
from ingot.ops.nn.terms import Operand, Term, Value
from ingot.support.dataclass import dataclass

COORDINATE_MODES = (
    "half_pixel",
    "align_corners",
    "asymmetric",
    "pytorch_half_pixel",
    "half_pixel_symmetric",
    "tf_half_pixel_for_nn",
    "tf_crop_and_resize",
)
NEAREST_MODES = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
_MIN_STRETCH = 2.0**-14  # of a kernel by a scale: each of the elements that it reaches is a tap


def _cubic(distance: Value, a: float) -> Value:
    """Keys' kernel (1981) at |distance|."""
    x = t.absolute(distance)
    inner = ((a + 2) * x - (a + 3)) * x * x + 1
    outer = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return t.where(x <= 1, inner, t.where(x < 2, outer, outer * 0))


def _triangle(distance: Value) -> Value:
    return t.maximum(1 - t.absolute(distance), 0)


@dataclass(frozen=True)
class Resize(Op):
    """x resampled to `sizes` on `axes` (ONNX Resize, torch.nn.functional.interpolate).

    mode: nearest, linear or cubic (Keys' kernel with `cubic_a`). coordinates: ONNX's coordinate_transformation_mode.
    scales: output / input size for each axis, if the user gave them; coordinates use them instead of the ratio of sizes
    (for ONNX models with sizes, pass the f32 ratios, to round ties as ONNX Runtime does). roi: (start, end) for each
    axis for tf_crop_and_resize, where coordinates outside x give `extrapolation`. exclude_outside: taps outside x have
    weight 0; otherwise they repeat the edge. antialias: when shrinking, the kernel is stretched by 1 / scale (PyTorch's
    antialias also excludes outside taps). Integers are computed in f32 and truncated.
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
            ("coordinates", self.coordinates, COORDINATE_MODES),
            ("nearest_mode", self.nearest_mode, NEAREST_MODES),
        ):
            self.expect(value in choices, f"{what}: expected one of {' '.join(choices)}, got {value}")
        count = len(self.axes)
        lengths = (len(self.sizes), count if self.scales is None else len(self.scales))
        self.expect(lengths == (count, count), f"expected {count} sizes and scales, got {lengths}")
        crops = self.coordinates == "tf_crop_and_resize"
        self.expect(not crops or (self.roi is not None and len(self.roi) == count), f"roi: expected {count} ranges")
        self.expect(x.dtype.kind != "b" or self.mode == "nearest", f"{self.mode}: expected numbers, got {x}")
        self.expect(not self.antialias or self.mode != "nearest", "antialias: expected mode linear or cubic")
        self.expect_constraints(*inputs)
        shape = list(x.shape)
        for i, (axis, size) in enumerate(zip(self.axes, self.sizes, strict=True)):
            self.expect(not is_negative(size), f"sizes: expected 0 or more, got {size}")
            is_supported = is_static((x.shape[axis], size)) or self.scales is not None or self.exclude_outside
            self.expect(
                not self.antialias or is_supported or x.shape[axis] == size,
                f"axis {axis}: antialias with edge taps expects static sizes or scales, got {x.shape[axis]} to {size}",
            )
            self.expect(self.scales is None or self.scales[i] > 0, f"scales: expected positive ones, got {self.scales}")
            stretch = self._stretch(i, x.shape[axis])
            self.expect(stretch is None or stretch >= _MIN_STRETCH, f"antialias: expected scales >= {_MIN_STRETCH:g}")
            shape[axis] = size
        return x.with_shape(tuple(shape))

    def constraints(self, *inputs: TensorType) -> Iterator[tuple[DimLike, str]]:
        for axis, size in zip(self.axes, self.sizes, strict=True):
            yield inputs[0].shape[axis] - dim_min(size, 1), f"expected elements on axis {axis}, got {inputs[0]}"

    def is_identity(self, i: int, size: DimLike) -> bool:
        """Whether axis i is unchanged; an axis without elements is, at any scale."""
        unscaled = self.scales is None or self.scales[i] == 1 or size == 0
        return size == self.sizes[i] and unscaled and self.coordinates != "tf_crop_and_resize"

    def _position(self, i: int, size: DimLike, dtype: DType) -> Value:
        """The input coordinates of all outputs on axis i, in `dtype`."""
        out = self.sizes[i]
        position = t.arange(out, dtype)
        n, m = t.size(size, dtype), t.size(out, dtype)
        half = position + 0.5
        if self.coordinates == "align_corners":
            # one output (or none): coordinate 0
            return position * (n - 1) / t.maximum(m - 1, 1)
        if self.coordinates == "tf_crop_and_resize":
            assert self.roi is not None
            start, end = self.roi[i]
            if out == 1:
                return position + (n - 1) * (0.5 * (start + end))
            return position * ((n - 1) * (end - start) / t.maximum(m - 1, 1)) + (n - 1) * start
        scaled = self._unscale(i, position, n, m)
        centered = self._unscale(i, half, n, m)
        if self.coordinates == "asymmetric":
            return scaled
        if self.coordinates == "tf_half_pixel_for_nn":
            return centered
        if self.coordinates == "pytorch_half_pixel" and out == 1:
            return position
        if self.coordinates == "pytorch_half_pixel" and isinstance(out, Dim):
            return t.where(t.as_term(m) > 1, centered - 0.5, position)
        if self.coordinates == "half_pixel_symmetric" and self.scales is not None:
            return n / 2 * (1 - m / (n * self.scales[i])) + centered - 0.5
        return centered - 0.5

    def _unscale(self, i: int, x: Value, n: Operand, m: Operand) -> Value:
        """x / scale with the rounding of the frameworks, because ties of mode nearest depend on the last bit.

        Without scales: x * (in / out) (PyTorch). With scales: a division (ONNX Runtime), which is exact for its
        rounding modes if the scale is the ratio of the sizes.
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
        """The taps of axis i: (index, weight), vectors over the outputs. Indices are inside x."""
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
            index = first + step
            clamped = t.clamp(0, index, last)
            if self.exclude_outside:
                weight = t.where(t.equals(index, clamped), weight, weight * 0)
            taps.append((clamped, weight))
        if self.exclude_outside or stretch is not None:
            total = taps[0][1]
            for _, weight in taps[1:]:
                total = total + weight
            taps = [(index, weight / total) for index, weight in taps]
        return taps

    def reads(self, i: int, size: DimLike, dtype: DType) -> list[tuple[Value, Value]]:
        """What the outputs of axis i, of static sizes, read: (index, weight) for each tap, vectors over the outputs."""
        if self.mode != "nearest":
            return self._taps(i, size, dtype)
        return [(self._nearest(self._position(i, size, dtype), size), np.ones(int(self.sizes[i])))]

    def _stretch(self, i: int, size: DimLike) -> float | None:
        """The scale if antialiasing stretches the kernel by its inverse, else None."""
        if not self.antialias:
            return None
        out = self.sizes[i]
        if self.scales is not None:
            scale = self.scales[i]
        elif isinstance(out, int) and isinstance(size, int):
            scale = out / size
        else:
            return None
        return scale if scale < 1 and out != 0 else None

    def _extrapolated(self, i: int, size: DimLike, dtype: DType) -> Value | None:
        """The outputs of axis i that tf_crop_and_resize extrapolates; None for other modes."""
        if self.coordinates != "tf_crop_and_resize":
            return None
        position = self._position(i, size, dtype)
        return t.logical_or(position < 0, position > t.size(size, dtype) - 1)

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        (x,) = inputs
        dtype = dtype_of(x)
        compute_dtype = f64 if dtype == f64 else f32
        y = x if self.mode == "nearest" else t.as_f64(x) if dtype.is_float else x.astype(np.float64)
        # shrinking axes first: enlarging an axis while another is still long may need far more memory than the result
        growth = [int(out) / max(x.shape[axis], 1) for out, axis in zip(self.sizes, self.axes, strict=True)]
        for i in np.argsort(growth, kind="stable").tolist():
            axis, size = self.axes[i], int(x.shape[self.axes[i]])
            if self.is_identity(i, size) or not y.size:
                y = np.take(y, np.zeros(int(self.sizes[i]), int), axis) if not y.size else y
                continue
            axis_shape = [-1 if d == axis else 1 for d in range(x.ndim)]
            if self.mode == "nearest":
                y = np.take(y, np.asarray(self._nearest(self._position(i, size, compute_dtype), size)), axis)
            else:
                parts = [
                    self._weighted(np.take(y, np.asarray(index), axis), np.asarray(weight).reshape(axis_shape))
                    for index, weight in self._taps(i, size, compute_dtype)
                ]
                y = np.sum(parts, axis=0)
        for i, axis in enumerate(self.axes):
            outside = self._extrapolated(i, x.shape[axis], compute_dtype)
            if outside is not None:
                axis_shape = [-1 if d == axis else 1 for d in range(x.ndim)]
                y = np.where(np.asarray(outside).reshape(axis_shape), y.dtype.type(self.extrapolation), y)
        return round_to(np.trunc(y) if dtype.is_integer and y.dtype.kind == "f" else y, dtype)

    def _weighted(self, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """x * weight; with antialiasing, elements of weight 0 contribute nothing, even if they are NaN or infinite."""
        return np.where(weight == 0, 0, x * weight) if self.antialias else x * weight

    def lower(self, *inputs: Node) -> Node:
        (node,) = inputs
        x = Term(node)
        if self.mode != "nearest":
            x = t.widen_narrow(node) if node.dtype.is_float else x.cast(f32)
        compute_dtype = f64 if node.dtype == f64 else f32
        # the innermost axis first, the outermost last, where there are the most elements
        for i, axis in sorted(enumerate(self.axes), key=lambda pair: -pair[1]):
            size = node.shape[axis]
            if not self.is_identity(i, size):
                x = self._resample(x, i, axis, size, compute_dtype)
        for i, axis in enumerate(self.axes):
            outside = self._extrapolated(i, node.shape[axis], compute_dtype)
            if outside is not None:
                mask = t.as_term(outside).spread(x.shape, (axis,))
                x = t.term(t.where(mask, self.extrapolation, x))
        return x.cast(node.dtype).node

    def _resample(self, x: Term, i: int, axis: int, size: DimLike, compute_dtype: DType) -> Term:
        """x resampled on `axis`, the i-th of `axes`."""
        if self.mode == "nearest":
            factor = self._repeat_factor(i, size)
            if factor is not None:
                return t.repeat(x, axis, factor)
            return t.take(x, self._nearest(self._position(i, size, compute_dtype), size), axis)
        if self.antialias:
            return self._resample_antialiased(x, i, axis, size, compute_dtype)
        out: Term | None = None
        for index, weight in self._taps(i, size, compute_dtype):
            part = t.take(x, index, axis)
            part = part * t.as_term(weight, compute_dtype).cast(x.dtype).spread(part.shape, (axis,))
            out = part if out is None else out + part
        assert out is not None
        return out

    def _repeat_factor(self, i: int, size: DimLike) -> int | None:
        """The factor k for which output j is input j // k; None if there is no such factor."""
        factor = exact_quotient(self.sizes[i], size)
        if not isinstance(factor, int) or factor < 1 or size == 0:
            return None
        index = self._nearest(self._position(i, size, f32), size) if isinstance(size, int) else None
        if isinstance(size, int) and isinstance(index, np.ndarray):
            return factor if np.array_equal(index, np.repeat(np.arange(size), factor)) else None
        integer_scale = self.scales is None or self.scales[i] == factor
        is_rounding = self.nearest_mode.startswith("round")
        rounds_half_pixel = (
            self.coordinates in ("half_pixel", "pytorch_half_pixel", "half_pixel_symmetric") and is_rounding
        )
        floors_asymmetric = self.coordinates in ("asymmetric", "tf_half_pixel_for_nn") and self.nearest_mode == "floor"
        return factor if integer_scale and (rounds_half_pixel or floors_asymmetric) else None

    def _resample_antialiased(self, x: Term, i: int, axis: int, size: DimLike, compute_dtype: DType) -> Term:
        """x resampled on `axis` with antialiasing: the sum over windows of elements times weights.

        The number of taps depends on the scale. A product with an [out, in] matrix would spread NaN and infinities to
        all outputs through its zeros.
        """
        stretch = self._stretch(i, size)
        if stretch is not None or is_static((size, self.sizes[i])) or not self.exclude_outside:
            start, count, weight = _windows(self._taps(i, size, compute_dtype), size)
        else:
            start, count, weight = self._symbolic_windows(i, size, compute_dtype)
        rows = t.windows(x, start, count, axis)
        weights = t.as_term(weight, compute_dtype).cast(x.dtype).spread(rows.shape, (axis, axis + 1))
        # elements of weight 0 contribute nothing, even NaN
        part = t.where(weights.equals(0), 0, rows * weights)
        return t.term(part).sum((axis + 1,), keepdims=False)

    def _symbolic_windows(self, i: int, size: DimLike, compute_dtype: DType) -> tuple[Value, DimLike, Value]:
        """As `_windows`, for a scale known only at run time; taps outside x are excluded."""
        out, radius = self.sizes[i], 2 if self.mode == "cubic" else 1
        position = t.as_term(self._position(i, size, compute_dtype))
        shrink = t.minimum(t.term(t.as_term(t.size(out, compute_dtype)) / t.size(size, compute_dtype)), 1)
        count = dim_min(2 * dim_max(ceildiv(radius * size, out), radius) + 1, size)
        first = t.convert(t.ceil(position - radius / t.term(t.as_term(shrink))), i64)
        start = t.clamp(0, first, t.size(size - count))
        positions = t.term(t.as_term(start)).expand(1) + t.as_term(t.arange(count))
        distance = (position.expand(1) - positions.cast(compute_dtype)) * shrink
        weight = t.term(_cubic(distance, self.cubic_a) if self.mode == "cubic" else _triangle(distance))
        return start, count, weight / weight.sum((1,))

    @classmethod
    def samples(cls) -> Samples:
        x = _data(2, 2, 5, 7)
        for mode in ("nearest", "linear", "cubic"):
            for coordinates in COORDINATE_MODES[:-1]:
                yield cls((8, 4), (2, 3), mode, coordinates), (x,)
                yield cls((3, 1), (2, 3), mode, coordinates), (x,)
                yield cls((8, 5), (2, 3), mode, coordinates, scales=(1.7, 0.8)), (x,)
            for exclude_outside in (False, True):
                for antialias in (False, True)[: 1 + (mode != "nearest")]:
                    yield cls((3, 9), (2, 3), mode, exclude_outside=exclude_outside, antialias=antialias), (x,)
                    yield (
                        cls(
                            (2, 3),
                            (3, 2),
                            mode,
                            exclude_outside=exclude_outside,
                            antialias=antialias,
                            scales=(0.3, 0.7),
                        ),
                        (x,),
                    )
                    if antialias:
                        special = _special_values()
                        if mode == "cubic":  # weights that are 0 up to rounding have either sign
                            special[np.isinf(special)] = np.nan
                        yield cls((3, 9), (2, 3), mode, exclude_outside=exclude_outside, antialias=True), (special,)
            crop = {"coordinates": "tf_crop_and_resize", "roi": ((0.2, 0.9), (-0.2, 1.1)), "extrapolation": 9.5}
            yield cls((4, 6), (2, 3), mode, **crop), (x,)
            yield cls((1, 6), (2, 3), mode, **crop), (x,)
            yield cls((10, 21), (2, 3), mode), (x,)
            yield cls((9,), (2,), mode), (_data(1, 2, 4).astype(np.float16),)
            yield cls((9,), (2,), mode), (_data(1, 2, 4).astype(np.float64),)
            yield cls((5,), (1,), mode, "asymmetric"), (np.arange(0, 240, 30, dtype=np.uint8).reshape(1, 4, 2),)
            yield cls((3,), (1,), mode), (np.zeros((0, 4), np.float32),)
            yield cls((0, 3), (1, 2), mode, "asymmetric", scales=(2.0, 1.5)), (np.zeros((4, 0, 2), np.float32),)
        for nearest in NEAREST_MODES:
            for coordinates in COORDINATE_MODES[:-1]:
                yield cls((7, 12), (2, 3), "nearest", coordinates, nearest), (x,)
                yield cls((10, 21), (2, 3), "nearest", coordinates, nearest), (x,)


def _windows(taps: list[tuple[Value, Value]], size: DimLike) -> tuple[Value, DimLike, Value]:
    """The taps as windows of equal length: first indices [out], the length, and weights [out, length].

    The weights of taps at the same index are added.
    """
    count = dim_min(len(taps), size)
    start = t.minimum(taps[0][0], t.size(size - count))
    positions = t.arange(count)
    total: Value | None = None
    for index, weight in taps:
        if t.is_term(index, start, positions, weight):
            matches = t.as_term(positions).equals(t.term(t.as_term(index) - start).expand(1))
            part = t.where(matches, t.term(t.as_term(weight)).expand(1), 0.0)
        else:
            part = np.where(np.asarray(index - start)[:, None] == positions, np.asarray(weight)[:, None], 0)
        total = part if total is None else total + part
    assert total is not None
    return start, count, total


def _special_values() -> np.ndarray:
    x = _data(1, 2, 24, 20)
    x[0, 0, 2, 3], x[0, 1, 0, 0], x[0, 1, 20, 19] = np.nan, np.inf, -np.inf
    return x


def _data(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)
