"""Sampling an image at arbitrary coordinates."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product as cartesian
from typing import ClassVar

import numpy as np

from ingot.ir.dims import DimLike
from ingot.ir.node import Node, Op, Samples
from ingot.ir.types import TensorType, dtype_of, i64
from ingot.ops.core.base import check_count, fit_constraints, round_to
from ingot.ops.core.indexing import Gather
from ingot.ops.core.shape import Transpose
from ingot.ops.nn import terms as t
from ingot.ops.nn.terms import Operand, Term, Value
from ingot.support.dataclass import dataclass

_KEYS_A = -0.75


@dataclass(frozen=True)
class GridSample(Op):
    """x[N,C,*S] sampled at grid[N,*T,len(S)] -> [N,C,*T] (ONNX GridSample, torch.nn.functional.grid_sample).

    The last dimension of grid is a coordinate vector (x, y, ...), the last spatial axis first; [-1, 1] spans an axis.
    mode: nearest (ties to even), linear or cubic (Keys' kernel, a = -0.75). padding (outside x): zeros, border or
    reflection. align_corners: -1 and 1 are the centers of the corner elements, else their outer edges.
    """

    name: ClassVar[str] = "grid_sample"
    mode: str = "linear"
    padding: str = "zeros"
    align_corners: bool = False

    def infer(self, *inputs: TensorType) -> TensorType:
        check_count(self, inputs, 2)
        x, grid = inputs
        self.expect(self.mode in ("nearest", "linear", "cubic"), f"mode: expected nearest, linear, cubic: {self.mode}")
        choices = ("zeros", "border", "reflection")
        self.expect(self.padding in choices, f"padding: expected one of {' '.join(choices)}, got {self.padding}")
        self.expect(x.dtype.is_float and grid.dtype.is_float, f"expected float operands, got {x} and {grid}")
        is_matching = (
            x.rank >= 3 and grid.rank == x.rank and grid.shape[-1] == x.rank - 2 and x.shape[0] == grid.shape[0]
        )
        self.expect(is_matching, f"expected x [N,C,*S] and a grid [N,*T,{x.rank - 2}], got {x} and {grid}")
        self.expect_constraints(*inputs)
        return x.with_shape((*x.shape[:2], *grid.shape[1:-1]))

    def constraints(self, *inputs: TensorType) -> Iterator[tuple[DimLike, str]]:
        x, grid = inputs
        return fit_constraints((1,) * (x.rank - 2), x.shape[2:], "sample", grid.shape[:-1])

    def _coordinate(self, g: Value, size: DimLike) -> Value:
        """The input coordinate of a grid value."""
        n = t.size(size, _dtype(g))
        if self.align_corners:
            coordinate = (g + 1) * ((n - 1) * 0.5)
        else:
            coordinate = ((g + 1) * n - 1) * 0.5
        if self.mode == "cubic":
            # padding applies to each tap
            return coordinate
        return self._apply_padding(coordinate, size)

    def _apply_padding(self, coordinate: Value, size: DimLike) -> Value:
        """`coordinate` moved inside x by border or reflection padding."""
        if self.padding == "zeros":
            return coordinate
        n = t.size(size, _dtype(coordinate))
        if self.padding == "reflection":
            low = 0.0 if self.align_corners else -0.5
            span = n - 1 if self.align_corners else n
            # an axis of size 1 has nothing to reflect
            divisor = t.maximum(span, 1) if self.align_corners else span
            distance = t.absolute(coordinate - low)
            periods = t.floor(distance / divisor)
            remainder = distance - periods * divisor
            is_odd = periods - t.floor(periods * 0.5) * 2
            reflected = t.where(t.equals(is_odd, 0), remainder + low, span - remainder + low)
            coordinate = t.where(t.equals(span, 0), coordinate * 0, reflected) if self.align_corners else reflected
        # NaN, and what overflows on its way back, is the first element, as in PyTorch and ONNX Runtime
        return t.clamp(0, t.where(t.equals(coordinate, coordinate), coordinate, 0.0), n - 1)

    def _axis(self, g: Value, size: DimLike) -> list[tuple[Value, Value, Value]]:
        """The taps of one axis: (index clamped into x, weight, whether the tap is inside x)."""
        coordinate = self._coordinate(g, size)
        if self.mode == "nearest":
            return [self._tap(t.round_even(coordinate), None, size)]
        floor = t.floor(coordinate)
        ratio = coordinate - floor
        if self.mode == "linear":
            return [self._tap(floor, 1 - ratio, size), self._tap(floor + 1, ratio, size)]
        return [self._tap(self._apply_padding(floor + k, size), _keys(ratio - k), size) for k in (-1, 0, 1, 2)]

    def _tap(self, coordinate: Value, weight: Value | None, size: DimLike) -> tuple[Value, Value, Value]:
        n = t.size(size, _dtype(coordinate))
        in_bounds = t.logical_and(coordinate >= 0, coordinate <= n - 1)
        index = t.convert(
            t.where(
                in_bounds, coordinate, t.clamp(0, t.where(t.equals(coordinate, coordinate), coordinate, 0.0), n - 1)
            ),
            i64,
        )
        return index, in_bounds if weight is None else weight, in_bounds

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        x, grid = t.as_f64(inputs[0]), t.as_f64(inputs[1])
        spatial = x.ndim - 2
        out = np.zeros((*x.shape[:1], *grid.shape[1:-1], x.shape[1]))
        n = np.arange(x.shape[0]).reshape(-1, *(1,) * spatial)
        channels_last = np.moveaxis(x, 1, -1)
        with np.errstate(all="ignore"):
            axes = [self._axis(grid[..., spatial - 1 - i], x.shape[i + 2]) for i in range(spatial)]
            for taps in cartesian(*axes):
                value = channels_last[(n, *(np.asarray(index) for index, _, _ in taps))]
                for _, weight, in_bounds in taps:
                    value = np.where(np.asarray(in_bounds)[..., None], value, 0)
                    if self.mode != "nearest":
                        value = value * np.asarray(weight)[..., None]
                out = out + value
        return round_to(np.moveaxis(out, -1, 1), dtype_of(inputs[0]))

    def lower(self, *inputs: Node) -> Node:
        x, grid = t.widen_narrow(inputs[0]), t.widen_narrow(inputs[1])
        grid = grid.cast(x.dtype)
        spatial = x.rank - 2
        grid_shape = grid.shape[:-1]
        parts = [grid.slice(spatial + 1, i, i + 1).reshape(grid_shape) for i in range(spatial)]
        axes = [self._axis(parts[spatial - 1 - i], x.shape[i + 2]) for i in range(spatial)]
        # the axis of the channels, which a sample reads together where they are side by side in memory
        source = inputs[0].op
        channels = x.rank - 1 if isinstance(source, Transpose) and source.permutation[1] == x.rank - 1 else 1
        dims = tuple(d for d in range(1, x.rank) if d != channels)
        image = x if channels == 1 else x.transpose((0, *range(2, x.rank), 1))
        sizes = tuple(n if d == channels else 1 for d, n in enumerate(image.shape))
        gather = Gather((channels,), dims, (0,), (0,), dims, spatial + 1, sizes)
        shape = (*grid_shape[:channels], x.shape[1], *grid_shape[channels:])
        dims_of_weight = (0, *dims)
        out: Term | None = None
        for taps in cartesian(*axes):
            index = t.concat([t.as_term(at).expand(spatial + 1) for at, _, _ in taps], spatial + 1)
            value = Term(gather(image.node, index.node))
            for _, weight, in_bounds in taps:
                if self.padding == "zeros":
                    masked = t.where(t.as_term(in_bounds).spread(shape, dims_of_weight), value, 0.0)
                    assert isinstance(masked, Term)
                    value = masked
                if self.mode != "nearest":
                    value = value * t.as_term(weight).spread(shape, dims_of_weight)
            out = value if out is None else out + value
        assert out is not None
        out = out if channels == 1 else out.transpose((0, channels, *range(1, channels)))
        return out.cast(inputs[0].dtype).node

    @classmethod
    def samples(cls) -> Samples:
        rng = np.random.default_rng(0)
        x = rng.normal(size=(2, 3, 5, 4)).astype(np.float32)
        grid = (rng.normal(size=(2, 3, 6, 2)) * 1.2).astype(np.float32)
        grid[0, 0, 0], grid[0, 0, 1], grid[0, 0, 2] = (1, 1), (-1, -1), (0, 9.3)
        for mode in ("nearest", "linear", "cubic"):
            for padding in ("zeros", "border", "reflection"):
                for align in (False, True):
                    yield cls(mode, padding, align), (x, grid)
        volume = rng.normal(size=(1, 2, 3, 4, 5)).astype(np.float32)
        at = rng.normal(size=(1, 2, 2, 3, 3)).astype(np.float32)
        yield cls("linear", "border"), (volume, at)
        yield cls("nearest"), (volume, at)
        yield cls("linear", "reflection", True), (x[:, :, :1], grid)
        outside = grid.copy()
        outside[0, 0, :, 0] = (np.nan, np.inf, -np.inf, 9.3, -7.2, 0.5)
        for padding in ("zeros", "border", "reflection"):
            for mode in ("nearest", "linear"):
                yield cls(mode, padding), (x, outside)
        yield cls(), (x.astype(np.float16), grid.astype(np.float16))


def _keys(distance: Value) -> Value:
    """Keys' cubic kernel (1981)."""
    x = t.absolute(distance)
    inner = ((_KEYS_A + 2) * x - (_KEYS_A + 3)) * x * x + 1
    outer = ((_KEYS_A * x - 5 * _KEYS_A) * x + 8 * _KEYS_A) * x - 4 * _KEYS_A
    return t.where(x <= 1, inner, outer)


def _dtype(x: Operand):
    return x.dtype if isinstance(x, Term) else dtype_of(np.asarray(x))
