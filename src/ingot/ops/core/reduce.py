"""Reductions: over dimensions, over windows, over prefixes, and the index of an extremum."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

import numpy as np

from ingot.ir.dims import Dim, DimLike, dim_min, is_negative, product
from ingot.ir.node import Cropped, Node, Op, Samples
from ingot.ir.types import Box, TensorType, boolean, dtype_of, i64
from ingot.ops.core.base import (
    Category,
    CoreOp,
    Pairs,
    Perm,
    check_count,
    check_dims,
    dilated_size,
    dilation_constraints,
    identity_of,
    inverse,
    is_full_box,
    permute,
    round_to,
    taps_in_bounds,
    widen,
    window_count,
)
from ingot.ops.core.shape import pad_array
from ingot.support.dataclass import dataclass

_UFUNCS: dict[str, np.ufunc] = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
}


def _check_kind(op: Op, kind: str, x: TensorType, kinds: tuple[str, ...]) -> None:
    op.expect(kind in kinds, f"kind: expected one of {' '.join(kinds)}, got {kind}")
    if kind in ("and", "or"):
        op.expect(not x.dtype.is_float, f"{kind}: expected a bool or integer operand, got {x}")
    if kind in ("sum", "prod"):
        op.expect(x.dtype != boolean, f"{kind}: expected a number operand, got {x}; convert it first")


def _data(*shape: int, dtype: type = np.float32) -> np.ndarray:
    values = np.random.default_rng(len(shape)).integers(-9, 9, shape)
    return (values / 4 if np.dtype(dtype).kind not in "iub" else values).astype(dtype)


class Reduction(CoreOp):
    """Base: reduces entire dimensions of its operand."""

    category: ClassVar[Category] = Category.REDUCTION
    kind: str

    @property
    def reduced(self) -> tuple[int, ...]:
        """The reduced dimensions, ascending."""
        raise NotImplementedError

    def with_dims(self, dims: tuple[int, ...]) -> Reduction:
        """The same reduction over other dimensions, of the same number."""
        raise NotImplementedError


def reduced_dims(node: Node) -> tuple[int, ...]:
    """The dimensions that a reduction node reduces, ascending."""
    assert isinstance(node.op, Reduction)
    return node.op.reduced


@dataclass(frozen=True)
class Reduce(Reduction):
    """The reduction of x over `dims`, which the result does not have. kind: sum, prod, max, min, and, or.

    f16 and bf16 accumulate in f32 (the reference sums f32 in f64). max and min propagate NaN. A reduction of no
    elements gives the identity (`identity_of`): -inf for max of floats, the lowest integer for max of integers.
    """

    name: ClassVar[str] = "reduce"
    kind: str
    dims: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "dims", tuple(sorted(self.dims)))

    @property
    def reduced(self) -> tuple[int, ...]:
        return self.dims

    def with_dims(self, dims: tuple[int, ...]) -> Reduction:
        return replace(self, dims=dims)

    def infer(self, *inputs: TensorType) -> TensorType:
        check_count(self, inputs, 1)
        (x,) = inputs
        _check_kind(self, self.kind, x, tuple(_UFUNCS))
        check_dims(self, self.dims, x.rank, "dims")
        return x.with_shape(tuple(d for axis, d in enumerate(x.shape) if axis not in self.dims))

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        (x,) = inputs
        dtype = dtype_of(x)
        wide = widen(x)
        if wide.dtype == np.float32 and self.kind in ("sum", "prod"):
            wide = wide.astype(np.float64)
        with np.errstate(all="ignore"):
            initial = identity_of(self.kind, dtype)
            out = _UFUNCS[self.kind].reduce(wide, axis=self.dims, dtype=wide.dtype, initial=initial)
            return round_to(out, dtype)

    def permuted(self, perm: Perm, *inputs: TensorType) -> tuple[CoreOp, Perm] | None:
        kept_dims = [axis for axis in range(len(perm)) if axis not in self.dims]
        result = tuple(kept_dims.index(p) for p in perm if p in kept_dims)
        return replace(self, dims=tuple(inverse(perm)[d] for d in self.dims)), result

    def cropped(self, box: Box, *inputs: TensorType) -> Cropped:
        kept_ranges = iter(box)
        return self, (
            tuple((0, d) if axis in self.dims else next(kept_ranges) for axis, d in enumerate(inputs[0].shape)),
        )

    @classmethod
    def samples(cls) -> Samples:
        for kind in ("sum", "prod", "max", "min"):
            yield cls(kind, (1,)), (_data(3, 7, 2),)
            yield cls(kind, (0, 2)), (_data(3, 4, 5, dtype=np.int32),)
            yield cls(kind, (0,)), (_data(0, 3),)
            yield cls(kind, (0, 1)), (_data(5, 9, dtype=np.float16),)
            yield cls(kind, ()), (np.asarray(2, np.uint8),)
        special = np.asarray([[1, np.nan, 2], [np.inf, 1, -np.inf], [np.inf, 1, 2]], np.float32)
        for kind in ("sum", "max", "min"):
            yield cls(kind, (1,)), (special,)
        for kind in ("and", "or", "max", "min"):
            yield cls(kind, (1,)), (np.asarray([[True, False], [True, True], [False, False]]),)
            yield cls(kind, (0,)), (_data(3, 4, dtype=np.int16),)


@dataclass(frozen=True)
class ArgReduce(Reduction):
    """The index (i64) of the maximum or minimum (`kind`) along `dim`, which the result does not have.

    NaN wins over any number. Ties go to the first index, or to the last one if `last`.
    """

    name: ClassVar[str] = "arg_reduce"
    kind: str
    dim: int
    last: bool = False

    @property
    def reduced(self) -> tuple[int, ...]:
        return (self.dim,)

    def with_dims(self, dims: tuple[int, ...]) -> Reduction:
        return replace(self, dim=dims[0])

    def infer(self, *inputs: TensorType) -> TensorType:
        check_count(self, inputs, 1)
        (x,) = inputs
        self.expect(self.kind in ("max", "min"), f"kind: expected max or min, got {self.kind}")
        check_dims(self, (self.dim,), x.rank, "dim")
        self.expect_constraints(*inputs)
        return TensorType(i64, tuple(d for axis, d in enumerate(x.shape) if axis != self.dim))

    def constraints(self, *inputs: TensorType) -> Iterator[tuple[DimLike, str]]:
        (x,) = inputs
        results = product(d for axis, d in enumerate(x.shape) if axis != self.dim)
        yield x.shape[self.dim] - dim_min(results, 1), f"expected at least one element on axis {self.dim}, got {x}"

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        x = widen(inputs[0])
        if not x.size:
            return np.zeros([n for axis, n in enumerate(x.shape) if axis != self.dim], np.int64)
        function = np.argmax if self.kind == "max" else np.argmin
        if self.last:
            return np.asarray(x.shape[self.dim] - 1 - function(np.flip(x, self.dim), axis=self.dim), np.int64)
        return np.asarray(function(x, axis=self.dim), np.int64)

    def permuted(self, perm: Perm, *inputs: TensorType) -> tuple[CoreOp, Perm] | None:
        kept_dims = [axis for axis in range(len(perm)) if axis != self.dim]
        return replace(self, dim=inverse(perm)[self.dim]), tuple(kept_dims.index(p) for p in perm if p != self.dim)

    def cropped(self, box: Box, *inputs: TensorType) -> Cropped:
        return self, ((*box[: self.dim], (0, inputs[0].shape[self.dim]), *box[self.dim :]),)

    @classmethod
    def samples(cls) -> Samples:
        special = np.asarray([[1, np.nan, 2, np.nan], [3, 1, 3, 1]], np.float32)
        for kind in ("max", "min"):
            for last in (False, True):
                yield cls(kind, 1, last), (special,)
                yield cls(kind, 0, last), (_data(9, 3, dtype=np.int32),)
                yield cls(kind, 0, last), (_data(5, dtype=np.float16),)


@dataclass(frozen=True)
class ReduceWindow(CoreOp):
    """The reduction over a window at each position (StableHLO reduce_window). kind: sum, prod, max, min.

    window, strides, padding, dilation (of the window) and base_dilation (of x) have an entry for each axis. Padding and
    the initial value are the identity of the reduction (`identity_of`).
    """

    name: ClassVar[str] = "reduce_window"
    takes_epilogue: ClassVar[bool] = True
    category: ClassVar[Category] = Category.WINDOW
    kind: str
    window: tuple[int, ...]
    strides: tuple[int, ...]
    padding: Pairs
    dilation: tuple[int, ...]
    base_dilation: tuple[int, ...]

    def infer(self, *inputs: TensorType) -> TensorType:
        check_count(self, inputs, 1)
        (x,) = inputs
        _check_kind(self, self.kind, x, ("sum", "prod", "max", "min"))
        attributes = (self.window, self.strides, self.padding, self.dilation, self.base_dilation)
        self.expect(
            all(len(a) == x.rank for a in attributes),
            f"expected {x.rank} windows, strides, paddings and dilations for {x}, got lengths "
            f"{', '.join(str(len(a)) for a in attributes)}",
        )
        positive = (*self.window, *self.strides, *self.dilation, *self.base_dilation)
        self.expect(all(v >= 1 for v in positive), "expected windows, strides and dilations >= 1")
        out: list[DimLike] = []
        for axis, size in enumerate(x.shape):
            padded = dilated_size(size, self.base_dilation[axis]) + sum(self.padding[axis])
            self.expect(
                not is_negative(padded), f"axis {axis}: cropped below nothing by {self.padding[axis]} of {size}"
            )
            out.append(window_count(padded, self.window[axis], self.strides[axis], self.dilation[axis]))
        return x.with_shape(tuple(out))

    def constraints(self, *inputs: TensorType) -> Iterator[tuple[DimLike, str]]:
        return dilation_constraints(inputs[0].shape, self.base_dilation)

    def narrowed(self, x: TensorType) -> ReduceWindow:
        """This op without window taps that read only padding, and without their padding."""
        window, padding = list(self.window), list(self.padding)
        for axis, (size, count) in enumerate(zip(x.shape, self.infer(x).shape, strict=True)):
            (low, high), step = padding[axis], self.dilation[axis]
            if isinstance(size, Dim) or isinstance(count, Dim) or isinstance(low, Dim) or isinstance(high, Dim):
                continue
            if count and size:
                dilated_size = (size - 1) * self.base_dilation[axis] + 1
                taps = taps_in_bounds(dilated_size, window[axis], count, self.strides[axis], (low, high), step)
                padding[axis] = low - taps.start * step, high - (window[axis] - taps.stop) * step
                window[axis] = len(taps)
        return replace(self, window=tuple(window), padding=tuple(padding))

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        (x,) = inputs
        narrowed = self.narrowed(TensorType(dtype_of(x), x.shape))
        return self._reference(x) if narrowed == self else narrowed.reference(x)

    def _reference(self, x: np.ndarray) -> np.ndarray:
        dtype = dtype_of(x)
        shape = self.infer(TensorType(dtype, x.shape)).shape
        wide = widen(x)
        if wide.dtype == np.float32 and self.kind in ("sum", "prod"):
            wide = wide.astype(np.float64)
        start = np.asarray(identity_of(self.kind, dtype), wide.dtype)
        low, high = [p[0] for p in self.padding], [p[1] for p in self.padding]
        padded = pad_array(wide, low, high, tuple(b - 1 for b in self.base_dilation), start)
        out = np.full(tuple(int(d) for d in shape), start)
        if not out.size:
            return round_to(out, dtype)
        with np.errstate(all="ignore"):
            for tap in np.ndindex(*self.window):
                view = tuple(
                    slice(t * d, t * d + (n - 1) * s + 1, s)
                    for t, d, n, s in zip(tap, self.dilation, out.shape, self.strides, strict=True)
                )
                _UFUNCS[self.kind](out, padded[view], out=out)
            return round_to(out, dtype)

    def permuted(self, perm: Perm, *inputs: TensorType) -> tuple[CoreOp, Perm] | None:
        return (
            ReduceWindow(
                self.kind,
                permute(self.window, perm),
                permute(self.strides, perm),
                permute(self.padding, perm),
                permute(self.dilation, perm),
                permute(self.base_dilation, perm),
            ),
            perm,
        )

    @classmethod
    def samples(cls) -> Samples:
        one = (1, 1)
        for kind in ("sum", "max", "min", "prod"):
            yield cls(kind, (1, 3), (1, 2), ((0, 0), (1, 1)), one, one), (_data(2, 7),)
            yield cls(kind, (2, 2), (1, 1), ((0, 1), (1, 0)), (2, 1), (1, 2)), (_data(5, 4, dtype=np.int32),)
            yield cls(kind, (3,), (1,), ((0, 0),), (1,), (1,)), (_data(2),)
            yield cls(kind, (3,), (1,), ((-1, 2),), (1,), (1,)), (_data(6, dtype=np.float16),)
        x = np.asarray([1, np.nan, 2, 3, np.inf, 4], np.float32)
        yield cls("max", (2,), (1,), ((0, 0),), (1,), (1,)), (x,)


@dataclass(frozen=True)
class CumReduce(CoreOp):
    """result[i] = the reduction of x[:i + 1] along `dim`. kind: sum, prod, max, min.

    exclusive: of x[:i] instead. reverse: from the end of the axis.
    """

    name: ClassVar[str] = "cum_reduce"
    category: ClassVar[Category] = Category.SCAN
    kind: str
    dim: int
    reverse: bool = False
    exclusive: bool = False

    def infer(self, *inputs: TensorType) -> TensorType:
        check_count(self, inputs, 1)
        (x,) = inputs
        _check_kind(self, self.kind, x, ("sum", "prod", "max", "min"))
        check_dims(self, (self.dim,), x.rank, "dim")
        return x

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        (x,) = inputs
        dtype = dtype_of(x)
        wide = widen(x)
        if wide.dtype == np.float32 and self.kind in ("sum", "prod"):
            wide = wide.astype(np.float64)
        if self.reverse:
            wide = np.flip(wide, self.dim)
        if self.exclusive and wide.shape[self.dim]:
            start = np.full_like(np.take(wide, [0], self.dim), identity_of(self.kind, dtype))
            wide = np.concatenate([start, np.delete(wide, -1, self.dim)], self.dim)
        with np.errstate(all="ignore"):
            out = _UFUNCS[self.kind].accumulate(wide, axis=self.dim, dtype=wide.dtype)
            return round_to(np.flip(out, self.dim).copy() if self.reverse else out, dtype)

    def permuted(self, perm: Perm, *inputs: TensorType) -> tuple[CoreOp, Perm] | None:
        return replace(self, dim=inverse(perm)[self.dim]), perm

    def cropped(self, box: Box, *inputs: TensorType) -> Cropped:
        return (self, (box,)) if is_full_box(box, inputs[0].shape, [self.dim]) else None

    @classmethod
    def samples(cls) -> Samples:
        for kind in ("sum", "prod", "max", "min"):
            for reverse, exclusive in ((False, False), (True, False), (False, True), (True, True)):
                yield cls(kind, 1, reverse, exclusive), (_data(3, 5),)
            yield cls(kind, 0, False, True), (_data(4, 2, dtype=np.int64),)
            yield cls(kind, 0), (_data(0, 2),)
            yield cls(kind, 0), (_data(6, dtype=np.float16),)
