"""Pooling over the spatial dimensions of x[N,C,*S], with the output sizes of PyTorch and of ONNX since opset 19.

In ceil mode a window may extend past the padded input, but must start inside the input or its low padding. In either
mode, an input that is shorter than a window by less than a stride has one window, and one that is shorter by less than
two strides has none (ONNX Runtime, whose division rounds towards zero; PyTorch refuses both).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product as combinations
from math import prod
from typing import ClassVar

import numpy as np

from ingot.ir.dims import Dim, DimLike, dim_min, product
from ingot.ir.node import Node, Op, Samples
from ingot.ir.types import Shape, TensorType, dtype_of, i64
from ingot.ops.core.base import Pairs, check_count, identity_of, round_to, taps_in_bounds, widen
from ingot.ops.core.binary import Pow
from ingot.ops.core.elementwise import Abs, IsNan
from ingot.ops.core.reduce import ReduceWindow
from ingot.ops.nn import terms as t
from ingot.ops.nn.terms import Term, Value
from ingot.support.dataclass import dataclass


@dataclass(frozen=True)
class Axis:
    """One pooled dimension: its input size and its window."""

    size: DimLike
    kernel: int
    stride: int
    low: int
    high: int
    dilation: int
    ceil_mode: bool

    @property
    def span(self) -> int:
        return (self.kernel - 1) * self.dilation + 1

    @property
    def slack(self) -> DimLike:
        """How much longer the padded input is than a window."""
        return self.size + self.low + self.high - self.span

    @property
    def is_short(self) -> bool:
        return isinstance(self.slack, int) and -2 * self.stride < self.slack < 0

    @property
    def count(self) -> DimLike:
        """The number of windows."""
        if not self.ceil_mode and not self.is_short:
            return self.slack // self.stride + 1
        starts = (self.size + self.low + self.stride - 1) // self.stride
        return dim_min((self.slack + self.stride - 1) // self.stride + 1, starts)

    @property
    def reach(self) -> DimLike:
        """The high padding with which exactly `count` windows fit."""
        if not self.ceil_mode and not self.is_short:
            return self.high
        padding = (self.count - 1) * self.stride + self.span - self.size - self.low
        return max(padding, 0) if isinstance(padding, int) else padding

    def element_counts(self, include_pad: bool) -> Value:
        """The number of elements of the input (of the padded input if `include_pad`) in each window."""
        start = t.arange(self.count) * self.stride - self.low
        first, end = (-self.low, self.size + self.high) if include_pad else (0, self.size)
        # taps before `first` and before `end`
        taps_before_start = t.div_floor(t.maximum(first - start, 0) + (self.dilation - 1), self.dilation)
        taps_before_end = t.div_floor(t.maximum(t.size(end) - start, 0) + (self.dilation - 1), self.dilation)
        return t.maximum(t.minimum(taps_before_end, self.kernel) - taps_before_start, 0)


@dataclass(frozen=True)
class Pool(Op):
    """Base: windows over the spatial dimensions of x[N,C,*S] -> [N,C,*S'] (see `Axis.count` for S').

    kernel, strides, padding (low, high) and dilation have an entry for each spatial dimension. ceil_mode: round the
    number of windows up.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    padding: Pairs
    dilation: tuple[int, ...]
    ceil_mode: bool = False

    def axes(self, shape: Shape) -> tuple[Axis, ...]:
        parts = zip(shape[2:], self.kernel, self.strides, self.padding, self.dilation, strict=True)
        return tuple(Axis(size, k, s, low, high, d, self.ceil_mode) for size, k, s, (low, high), d in parts)

    def infer(self, *inputs: TensorType) -> TensorType:
        check_count(self, inputs, 1)
        (x,) = inputs
        spatial = len(self.kernel)
        self.expect(x.rank == spatial + 2, f"expected x of rank {spatial + 2} (N, C and {spatial} sizes), got {x}")
        lengths = tuple(len(a) for a in (self.strides, self.padding, self.dilation))
        self.expect(lengths == (spatial,) * 3, f"expected {spatial} strides, paddings and dilations, got {lengths}")
        positive = (*self.kernel, *self.strides, *self.dilation)
        self.expect(all(v >= 1 for v in positive), "expected kernel, strides and dilations >= 1")
        self.expect(x.dtype.kind != "b", f"expected a number operand, got {x}")
        for i, axis in enumerate(self.axes(x.shape)):
            is_matching = isinstance(axis.slack, Dim) or axis.slack >= 0 or axis.is_short
            self.expect(is_matching, f"spatial axis {i}: a window of {axis.span} exceeds the padded size of {x}")
        return x.with_shape((*x.shape[:2], *(axis.count for axis in self.axes(x.shape))))

    def window(self, kind: str, shape: Shape) -> ReduceWindow:
        """The reduction `kind` of each window; padding is the identity."""
        return ReduceWindow(
            kind,
            (1, 1, *self.kernel),
            (1, 1, *self.strides),
            ((0, 0), (0, 0), *((axis.low, axis.reach) for axis in self.axes(shape))),  # type: ignore[arg-type]
            (1, 1, *self.dilation),
            (1,) * len(shape),
        )

    def taps(self, x: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """For each tap of the window: its values at all outputs, and whether they are inside x."""
        axes = self.axes(x.shape)
        counts = [int(axis.count) for axis in axes]
        tap_ranges = (
            taps_in_bounds(int(a.size), a.kernel, n, a.stride, (int(a.low), int(a.reach)), a.dilation)
            for a, n in zip(axes, counts, strict=True)
        )
        for tap in combinations(*tap_ranges):
            in_bounds = np.ones(counts, bool)
            values = x
            for i, (axis, k) in enumerate(zip(axes, tap, strict=True)):
                index = np.arange(counts[i]) * axis.stride - axis.low + k * axis.dilation
                axis_in_bounds = (index >= 0) & (index < int(axis.size))
                in_bounds &= axis_in_bounds.reshape([-1 if j == i else 1 for j in range(len(axes))])
                values = np.take(values, np.clip(index, 0, max(int(axis.size) - 1, 0)), i + 2)
            yield values, np.broadcast_to(in_bounds, values.shape)


def _samples(cls: type[Pool], *, dtypes: Sequence[type] = (np.float32, np.float16, np.float64)) -> Samples:
    one = (1, 1)
    x = sample_image(2, 3, 9, 10)
    yield cls((3, 2), (2, 2), ((1, 1), (0, 0)), one), (x,)
    yield cls((3, 3), (2, 2), ((1, 1), (1, 1)), one, True), (x,)
    yield cls((2, 3), (3, 2), ((1, 0), (0, 1)), (2, 1), True), (x,)
    yield cls((2, 2), (5, 4), ((1, 1), (1, 1)), one, True), (sample_image(1, 1, 6, 7),)
    yield cls((3,), (1,), ((1, 1),), (1,)), (sample_image(2, 2, 5),)
    yield cls((4,), (3,), ((2, 2),), (1,), True), (sample_image(1, 2, 7),)
    yield cls((2, 2, 2), (2, 1, 2), ((0, 0), (1, 1), (0, 1)), (1, 1, 1)), (sample_image(1, 2, 4, 3, 5),)
    yield cls((2,), (2,), ((0, 0),), (1,)), (sample_image(0, 2, 5),)
    for dtype in dtypes:
        yield cls((3, 3), (2, 2), ((1, 1), (1, 1)), one), (sample_image(1, 2, 7, 7).astype(dtype),)


def sample_image(*shape: int) -> np.ndarray:
    return (np.random.default_rng(sum(shape)).integers(-64, 65, shape) / 8).astype(np.float32)


def _special_values() -> np.ndarray:
    x = sample_image(1, 2, 6, 6)
    x[0, 0, 1, 1], x[0, 0, 1, 2], x[0, 1, :3, :3], x[0, 1, 5, 5] = np.nan, np.nan, -np.inf, np.inf
    return x


@dataclass(frozen=True)
class MaxPool(Pool):
    """The largest element of each window, NaN if it contains one; padding is ignored (ONNX MaxPool)."""

    name: ClassVar[str] = "max_pool"

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        (x,) = inputs
        wide, out = widen(x), None
        lowest = np.asarray(identity_of("max", dtype_of(x)), wide.dtype)
        for values, in_bounds in self.taps(wide):
            values = np.where(in_bounds, values, lowest)
            out = values if out is None else np.maximum(out, values)
        assert out is not None
        return round_to(out, dtype_of(x))

    def lower(self, *inputs: Node) -> Node:
        return self.window("max", inputs[0].shape)(*inputs)

    @classmethod
    def samples(cls) -> Samples:
        yield from _samples(cls, dtypes=(np.float16, np.float64, np.int8, np.uint8, np.int64))
        yield cls((3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1)), (_special_values(),)


@dataclass(frozen=True)
class MaxPoolIndices(Pool):
    """MaxPool and the index of each maximum: i64, flat over the spatial dimensions of x, as in PyTorch.

    The first of equal elements wins, and the last NaN over all. A window of only padding has index -1.
    """

    name: ClassVar[str] = "max_pool_indices"

    def infer(self, *inputs: TensorType) -> tuple[TensorType, TensorType]:  # type: ignore[override]
        y = super().infer(*inputs)
        return y, y.with_dtype(i64)

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        (x,) = inputs
        wide = widen(x)
        positions = np.broadcast_to(np.arange(prod(x.shape[2:])).reshape(x.shape[2:]), x.shape)
        lowest = np.asarray(identity_of("max", dtype_of(x)), wide.dtype)
        best: np.ndarray | None = None
        index = np.zeros(0, np.int64)
        for (values, in_bounds), (position, _) in zip(self.taps(wide), self.taps(positions), strict=True):
            values, position = np.where(in_bounds, values, lowest), np.where(in_bounds, position, -1)
            if best is None:
                best, index = values, position
                continue
            wins = (values > best) | np.isnan(values) | ((index < 0) & (position >= 0) & ~np.isnan(best))
            best, index = np.where(wins, values, best), np.where(wins, position, index)
        assert best is not None
        return round_to(best, dtype_of(x)), index.astype(np.int64)

    def lower(self, *inputs: Node) -> tuple[Node, Node]:
        """Indices are computed separably, along the last axis first, so that ties go to the first in row-major order.

        The maxima are computed apart from them, because often only the maxima are used.
        """
        (node,) = inputs
        lowest = identity_of("max", node.dtype)
        x, spatial = Term(node), node.shape[2:]
        positions = t.iota((product(spatial),), 0).reshape(spatial).broadcast(node.shape)
        for i in reversed(range(len(self.kernel))):
            axis = self.axes(node.shape)[i]
            is_padded = axis.low != 0 or axis.reach != 0
            x, positions = x.pad(i + 2, axis.low, axis.reach, lowest), positions.pad(i + 2, axis.low, axis.reach, -1)
            x, positions = self._reduce_axis(x, positions, i + 2, axis, is_padded)
        return self.window("max", node.shape)(node), positions.node

    def _reduce_axis(self, x: Term, positions: Term, dim: int, axis: Axis, is_padded: bool) -> tuple[Term, Term]:
        """The maxima along one axis and their positions, tap by tap."""
        length = (axis.count - 1) * axis.stride + 1
        best, index = x.slice(dim, 0, length, axis.stride), positions.slice(dim, 0, length, axis.stride)
        for k in range(1, axis.kernel):
            start = k * axis.dilation
            value = x.slice(dim, start, start + length, axis.stride)
            position = positions.slice(dim, start, start + length, axis.stride)
            wins = value > best
            if x.dtype.is_float:
                wins = wins | value.map(IsNan())
            if is_padded:
                replaces_padding = (index < 0) & (position >= 0)
                wins = wins | (replaces_padding & best.equals(best) if x.dtype.is_float else replaces_padding)
            best, index = _select(wins, value, best), _select(wins, position, index)
        return best, index

    @classmethod
    def samples(cls) -> Samples:
        yield from _samples(cls, dtypes=(np.float16, np.int8, np.int64))
        yield cls((3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1)), (_special_values(),)
        yield cls((3, 2), (1, 1), ((1, 1), (1, 1)), (2, 2)), (np.zeros((1, 1, 5, 5), np.float32),)


def _select(condition: Term, a: Term, b: Term) -> Term:
    return t.term(t.where(condition, a, b))


@dataclass(frozen=True)
class AvgPool(Pool):
    """The mean of each window, or its sum divided by `divisor` if that is given (torch.nn.AvgPool2d, ONNX AveragePool).

    count_include_pad: padding counts as zeros; elements of a ceil-mode window beyond the padding never count. Integers
    truncate.
    """

    name: ClassVar[str] = "avg_pool"
    count_include_pad: bool = False
    divisor: int | None = None

    def infer(self, *inputs: TensorType) -> TensorType:
        self.expect(self.divisor != 0, "divisor: expected a number other than 0")
        return super().infer(*inputs)

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        (x,) = inputs
        total: np.ndarray | int = 0
        for values, in_bounds in self.taps(t.as_f64(x)):
            total = total + np.where(in_bounds, values, 0)
        if self.divisor is not None:
            count: np.ndarray | int = self.divisor
        else:
            low, high = ([0, 0, *(p[side] for p in self.padding)] for side in (0, 1))
            shape = [int(n) for n in x.shape]
            if self.count_include_pad:
                shape = [n + a + b for n, a, b in zip(shape, low, high, strict=True)]
                unpadded = AvgPool(
                    self.kernel, self.strides, ((0, 0),) * len(self.kernel), self.dilation, self.ceil_mode
                )
            else:
                unpadded = self
            count = _count_taps(unpadded, shape, [int(a.count) for a in self.axes(x.shape)])
        if isinstance(total, np.ndarray) and total.dtype.kind in "iu":
            return round_to(np.trunc(total / count), dtype_of(x))
        return round_to(np.asarray(total / count), dtype_of(x))

    def lower(self, *inputs: Node) -> Node:
        (node,) = inputs
        x = t.widen_narrow(node)
        total = x.map(self.window("sum", node.shape))
        if self.divisor is not None:
            return (total / self.divisor).cast(node.dtype).node
        axes = self.axes(node.shape)
        counts = [axis.element_counts(self.count_include_pad) for axis in axes]
        count: Value | int = 1
        for i, c in enumerate(counts):
            if isinstance(c, np.ndarray) and c.size and (c == c[0]).all():
                count = count * int(c[0])
                continue
            column_shape = (-1, *(1,) * (len(axes) - 1 - i))
            column = c.expand(*range(1, len(axes) - i)) if isinstance(c, Term) else c.reshape(column_shape)
            if isinstance(count, Term) or (
                isinstance(column, np.ndarray) and column.size * np.size(count) > _MAX_COUNT_ELEMENTS
            ):
                column = t.as_term(column)
            count = column * count
        if isinstance(count, int):
            return (total / max(count, 1)).cast(node.dtype).node
        divisor = t.convert(t.maximum(count, 1), x.dtype)
        return (total / divisor).cast(node.dtype).node

    @classmethod
    def samples(cls) -> Samples:
        yield from _samples(cls)
        one = (1, 1)
        x = sample_image(2, 3, 9, 10)
        for ceil in (False, True):
            for include in (False, True):
                yield cls((3, 3), (2, 2), ((1, 1), (1, 1)), one, ceil, include), (x,)
                yield cls((2, 3), (3, 2), ((1, 0), (1, 1)), (2, 3), ceil, include), (x,)
                yield cls((3, 3), (2, 3), ((1, 1), (1, 1)), one, ceil, include, 7), (x,)
        yield cls((2, 2), (2, 2), ((0, 0), (0, 0)), one), (x.astype(np.int64),)


_MAX_COUNT_ELEMENTS = 1 << 20  # of a table of counts; larger ones are multiplied from per-axis counts at run time


def _count_taps(pool: Pool, shape: Sequence[int], counts: Sequence[int]) -> np.ndarray:
    """The number of elements of `shape` in each of `counts` windows, by enumeration."""
    total = np.zeros(tuple(counts), np.int64)
    parts = tuple(zip(pool.strides, pool.padding, pool.dilation, shape[2:], strict=True))
    for tap in np.ndindex(*pool.kernel):
        in_bounds = np.ones(tuple(counts), bool)
        for i, (k, (stride, (low, _), dilation, size)) in enumerate(zip(tap, parts, strict=True)):
            index = np.arange(counts[i]) * stride - low + k * dilation
            in_bounds &= ((index >= 0) & (index < size)).reshape([-1 if j == i else 1 for j in range(len(counts))])
        total += in_bounds
    return np.maximum(total, 1)


@dataclass(frozen=True)
class LpPool(Pool):
    """(sum |x|^p)^(1/p) over each window, for floats (ONNX LpPool)."""

    name: ClassVar[str] = "lp_pool"
    p: int = 2

    def infer(self, *inputs: TensorType) -> TensorType:
        self.expect(self.p >= 1, f"p: expected at least 1, got {self.p}")
        self.expect(inputs[0].dtype.is_float, f"expected a float operand, got {inputs[0]}")
        return super().infer(*inputs)

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        (x,) = inputs
        total: np.ndarray | int = 0
        for values, in_bounds in self.taps(t.as_f64(x)):
            total = total + np.where(in_bounds, np.abs(values) ** self.p, 0)
        return round_to(np.asarray(total) ** (1 / self.p), dtype_of(x))

    def lower(self, *inputs: Node) -> Node:
        (node,) = inputs
        x = t.widen_narrow(node)
        powers = x * x if self.p == 2 else x.map(Abs())
        if self.p > 2:
            powers = _power(powers, self.p)
        total = powers.map(self.window("sum", node.shape))
        out = total if self.p == 1 else _power(total, 1 / self.p)
        return out.cast(node.dtype).node

    @classmethod
    def samples(cls) -> Samples:
        yield from _samples(cls)
        for p in (1, 3):
            yield cls((3, 2), (2, 1), ((1, 1), (0, 1)), (1, 2), False, p), (sample_image(2, 3, 9, 10),)


def _power(x: Term, exponent: float) -> Term:
    y = t.scalar(exponent, x.dtype).broadcast(x.shape)
    return Term(Pow()(x.node, y.node))
