"""Gather, scatter and sort, with StableHLO's dimension numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np

from ingot.ir.dims import DimLike
from ingot.ir.node import Op, Samples
from ingot.ir.types import Shape, TensorType, boolean, dtype_of
from ingot.ops.core.base import (
    Category,
    CoreOp,
    Perm,
    check_count,
    check_dims,
    fit_constraints,
    inverse,
    permute,
    round_to,
    widen,
)
from ingot.support.dataclass import dataclass


def _drop(values: Sequence, axes: Sequence[int]) -> tuple:
    return tuple(v for i, v in enumerate(values) if i not in axes)


@dataclass(frozen=True)
class Gather(CoreOp):
    """The slices of x at `indices` (StableHLO gather); start indices are clamped so that each slice is inside x.

    Attributes are StableHLO's gather_dimension_numbers and slice_sizes. Operands: x, integer indices.
    """

    name: ClassVar[str] = "gather"
    costly: ClassVar[bool] = True
    category: ClassVar[Category] = Category.GATHER
    offset_dims: tuple[int, ...]
    collapsed_slice_dims: tuple[int, ...]
    operand_batching_dims: tuple[int, ...]
    start_indices_batching_dims: tuple[int, ...]
    start_index_map: tuple[int, ...]
    index_vector_dim: int
    slice_sizes: Shape

    def infer(self, *inputs: TensorType) -> TensorType:
        check_count(self, inputs, 2)
        x, indices = inputs
        self.expect(indices.dtype.is_integer, f"expected integer indices, got {indices}")
        self.expect(len(self.slice_sizes) == x.rank, f"expected {x.rank} slice sizes, got {self.slice_sizes}")
        dropped_dims = (*self.collapsed_slice_dims, *self.operand_batching_dims)
        check_dims(self, dropped_dims, x.rank, "collapsed and batching dims")
        check_dims(self, (*self.start_index_map, *self.operand_batching_dims), x.rank, "start_index_map")
        check_dims(self, self.start_indices_batching_dims, indices.rank, "start_indices_batching_dims")
        _check_batching(self, x, indices, self.operand_batching_dims, self.start_indices_batching_dims)
        _check_vector(self, indices, self.index_vector_dim, len(self.start_index_map))
        for axis in dropped_dims:
            got = self.slice_sizes[axis]
            self.expect(got == 1, f"slice size of axis {axis}, which is collapsed: expected 1, got {got}")
        self.expect_constraints(*inputs)
        batch = _drop(indices.shape, (self.index_vector_dim,))
        offsets = _drop(self.slice_sizes, dropped_dims)
        rank = len(batch) + len(offsets)
        self.expect(
            len(self.offset_dims) == len(offsets), f"expected {len(offsets)} offset dims, got {self.offset_dims}"
        )
        check_dims(self, self.offset_dims, rank, "offset_dims")
        offset_sizes, batch_sizes = iter(offsets), iter(batch)
        return x.with_shape(tuple(next(offset_sizes if d in self.offset_dims else batch_sizes) for d in range(rank)))

    def constraints(self, *inputs: TensorType) -> Iterator[tuple[DimLike, str]]:
        x, indices = inputs
        return fit_constraints(self.slice_sizes, x.shape, "slice", _drop(indices.shape, (self.index_vector_dim,)))

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        x, indices = inputs
        sizes = tuple(int(d) for d in self.slice_sizes)
        starts = _starts(indices, self.index_vector_dim)
        dropped_dims = (*self.collapsed_slice_dims, *self.operand_batching_dims)
        max_starts = {d: x.shape[d] - sizes[d] for d in range(x.ndim)}
        clamped_starts = [np.clip(s, 0, max_starts[d]) for s, d in zip(starts, self.start_index_map, strict=True)]
        index = _full_index(
            clamped_starts,
            self.start_index_map,
            self.operand_batching_dims,
            _batching_axes(self.start_indices_batching_dims, self.index_vector_dim),
            [n for d, n in enumerate(sizes) if d not in dropped_dims],
            [d for d in range(x.ndim) if d not in dropped_dims],
            x.ndim,
            starts[0].shape if starts else _drop(indices.shape, (self.index_vector_dim,)),
        )
        rank = len(_drop(indices.shape, (self.index_vector_dim,)))
        offsets = len(self.offset_dims)
        shape = (*_drop(indices.shape, (self.index_vector_dim,)), *_drop(sizes, dropped_dims))
        slices = np.broadcast_to(x[index], shape)
        order, batch_dims, offset_dims = [], iter(range(rank)), iter(range(rank, rank + offsets))
        for d in range(rank + offsets):
            order.append(next(offset_dims if d in self.offset_dims else batch_dims))
        return slices.transpose(order).copy()

    def permuted(self, perm: Perm, *inputs: TensorType) -> tuple[CoreOp, Perm] | None:
        """The batch dimensions of the result move to the position of the first dimension of x that is indexed."""
        x, indices = inputs
        if len(perm) != x.rank or indices.rank >= x.rank or self.operand_batching_dims:
            return None
        window_dims = [d for d in range(x.rank) if d not in self.collapsed_slice_dims]
        result_dim = dict(zip(window_dims, self.offset_dims, strict=True))
        rank = indices.rank - (self.index_vector_dim < indices.rank) + len(window_dims)
        batch = [d for d in range(rank) if d not in self.offset_dims]
        anchor = next((d for d in perm if d in self.start_index_map), perm[0])
        order: list[int] = []
        for d in perm:
            order += batch if d == anchor else []
            order += [result_dim[d]] if d in result_dim else []
        new_dim = inverse(perm)
        new = replace(
            self,
            offset_dims=tuple(i for i, d in enumerate(order) if d in self.offset_dims),
            collapsed_slice_dims=tuple(sorted(new_dim[d] for d in self.collapsed_slice_dims)),
            start_index_map=tuple(new_dim[d] for d in self.start_index_map),
            slice_sizes=permute(self.slice_sizes, perm),
        )
        return new, tuple(order)

    @classmethod
    def samples(cls) -> Samples:
        x = np.arange(24, dtype=np.float32).reshape(4, 6)
        rows = np.asarray([[0, 3], [9, -2]], np.int64)
        yield cls((2,), (0,), (), (), (0,), 2, (1, 6)), (x, rows)
        yield cls((0,), (1,), (), (), (1,), 1, (4, 1)), (x, np.asarray([5, 0, 2], np.int32))
        yield cls((1, 2), (), (), (), (1, 0), 1, (2, 3)), (x, np.asarray([[1, 2], [5, 3]], np.int64))
        yield cls((2,), (), (0,), (0,), (1,), 2, (1, 2)), (x, np.asarray([[[1], [4]]] * 4, np.int64))
        yield cls((1,), (0,), (), (), (0,), 1, (1, 6)), (x, np.zeros((0,), np.int64))
        yield cls((), (0,), (), (), (0,), 0, (1,)), (np.arange(5, dtype=np.int8), np.asarray(3, np.int64))


@dataclass(frozen=True)
class Scatter(CoreOp):
    """x with `updates` combined into it at `indices` (StableHLO scatter).

    Operands: x, integer indices, updates of x's dtype. Attributes are StableHLO's scatter_dimension_numbers. kind: set,
    add, mul, max or min. Elements outside x are dropped. For `set` and repeated indices the last update wins. unique:
    no two updates inside x have the same position.
    """

    name: ClassVar[str] = "scatter"
    category: ClassVar[Category] = Category.SCATTER
    kind: str
    update_window_dims: tuple[int, ...]
    inserted_window_dims: tuple[int, ...]
    input_batching_dims: tuple[int, ...]
    scatter_indices_batching_dims: tuple[int, ...]
    scatter_dims_to_operand_dims: tuple[int, ...]
    index_vector_dim: int
    unique: bool = False

    def has_one_window(self, updates: Shape) -> bool:
        """Whether updates of this shape are a single window of x."""
        unit_dims = (n == 1 for d, n in enumerate(updates) if d not in self.update_window_dims)
        return not self.input_batching_dims and all(unit_dims)

    def infer(self, *inputs: TensorType) -> TensorType:
        check_count(self, inputs, 3)
        x, indices, updates = inputs
        kinds = ("set", "add", "mul", "max", "min")
        self.expect(self.kind in kinds, f"kind: expected one of {' '.join(kinds)}, got {self.kind}")
        self.expect(self.kind in ("set", "max", "min") or x.dtype != boolean, f"{self.kind}: expected numbers, got {x}")
        self.expect(indices.dtype.is_integer, f"expected integer indices, got {indices}")
        self.expect(updates.dtype == x.dtype, f"expected updates of {x.dtype}, got {updates}")
        dropped_dims = (*self.inserted_window_dims, *self.input_batching_dims)
        check_dims(self, dropped_dims, x.rank, "inserted and batching dims")
        check_dims(self, (*self.scatter_dims_to_operand_dims, *self.input_batching_dims), x.rank, "operand dims")
        check_dims(self, self.scatter_indices_batching_dims, indices.rank, "scatter_indices_batching_dims")
        check_dims(self, self.update_window_dims, updates.rank, "update_window_dims")
        _check_batching(self, x, indices, self.input_batching_dims, self.scatter_indices_batching_dims)
        _check_vector(self, indices, self.index_vector_dim, len(self.scatter_dims_to_operand_dims))
        self.expect(
            len(self.update_window_dims) + len(dropped_dims) == x.rank,
            f"expected {x.rank - len(dropped_dims)} update window dims for {x}, got {self.update_window_dims}",
        )
        batch = _drop(indices.shape, (self.index_vector_dim,))
        got = _drop(updates.shape, self.update_window_dims)
        self.expect(got == batch, f"expected scatter dims {list(batch)} in the updates {updates}, got {list(got)}")
        self.expect_constraints(*inputs)
        return x

    def constraints(self, *inputs: TensorType) -> Iterator[tuple[DimLike, str]]:
        x, _, updates = inputs
        window_limits = _drop(x.shape, (*self.inserted_window_dims, *self.input_batching_dims))
        windows = [updates.shape[d] for d in self.update_window_dims]
        return fit_constraints(
            windows, window_limits, "window of updates", _drop(updates.shape, self.update_window_dims)
        )

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        x, indices, updates = inputs
        dtype = dtype_of(x)
        dropped_dims = (*self.inserted_window_dims, *self.input_batching_dims)
        window_dims = [d for d in range(x.ndim) if d not in dropped_dims]
        batch_shape = _drop(indices.shape, (self.index_vector_dim,))
        index = _full_index(
            _starts(indices, self.index_vector_dim),
            self.scatter_dims_to_operand_dims,
            self.input_batching_dims,
            _batching_axes(self.scatter_indices_batching_dims, self.index_vector_dim),
            [updates.shape[d] for d in self.update_window_dims],
            window_dims,
            x.ndim,
            batch_shape,
        )
        batch_axes = [d for d in range(updates.ndim) if d not in self.update_window_dims]
        values = widen(updates.transpose(*batch_axes, *self.update_window_dims))
        index = tuple(np.broadcast_to(w, values.shape).reshape(-1) for w in index)
        values = values.reshape(-1)
        in_bounds = np.ones(values.shape, bool)
        for w, n in zip(index, x.shape, strict=True):
            in_bounds &= (w >= 0) & (w < n)
        index, values = tuple(w[in_bounds] for w in index), values[in_bounds]
        out = widen(x).copy()
        with np.errstate(all="ignore"):
            if self.kind == "set":
                out[index] = values
            else:
                _COMBINE[self.kind].at(out, index, values)
        return round_to(out, dtype)

    @classmethod
    def samples(cls) -> Samples:
        x = np.arange(12, dtype=np.float32).reshape(4, 3)
        rows = np.asarray([[0], [3], [0], [7], [-1]], np.int64)
        updates = np.arange(15, dtype=np.float32).reshape(5, 3) - 6
        for kind in (*_COMBINE, "set"):
            yield cls(kind, (1,), (0,), (), (), (0,), 1), (x, rows, updates)
            ints = np.asarray([[1], [1], [2]], np.int32), np.asarray([5, 7, -2], np.int32)
            yield cls(kind, (), (0,), (), (), (0,), 1), (np.arange(4, dtype=np.int32), *ints)
            half_updates = np.asarray([1, 2.5, 1e-3], np.float16)
            yield cls(kind, (), (0,), (), (), (0,), 1), (np.ones(4, np.float16), ints[0], half_updates)
        window = np.asarray([[2, 1], [3, 2]], np.int64), np.ones((2, 2, 2), np.float32)
        yield cls("add", (1, 2), (), (), (), (0, 1), 1), (x, *window)
        batched = np.asarray([[0], [2], [1], [0]], np.int64), np.full((4,), 9, np.float32)
        yield cls("set", (), (1,), (0,), (0,), (1,), 1), (x, *batched)
        yield cls("set", (0,), (0,), (), (), (0,), 0), (x, np.asarray([2]), np.zeros(3, np.float32))
        distinct_rows = np.asarray([[2], [7], [0], [-1]], np.int64), updates[:4]
        yield cls("set", (1,), (0,), (), (), (0,), 1, unique=True), (x, *distinct_rows)


_COMBINE: dict[str, np.ufunc] = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def _check_vector(op: Op, indices: TensorType, vector_dim: int, count: int) -> None:
    op.expect(0 <= vector_dim <= indices.rank, f"index_vector_dim: expected at most {indices.rank}, got {vector_dim}")
    length = indices.shape[vector_dim] if vector_dim < indices.rank else 1
    op.expect(length == count, f"expected index vectors of {count} components, got {length} in {indices}")


def _check_batching(
    op: Op, x: TensorType, indices: TensorType, x_dims: Sequence[int], index_dims: Sequence[int]
) -> None:
    op.expect(
        len(x_dims) == len(index_dims),
        f"expected as many batching dims of x as of indices, got {x_dims} and {index_dims}",
    )
    for i, j in zip(x_dims, index_dims, strict=True):
        op.expect(x.shape[i] == indices.shape[j], f"expected batching dims of one size, got {x} and {indices}")


def _starts(indices: np.ndarray, vector_dim: int) -> list[np.ndarray]:
    """For each component of the index vectors, an array of start indices of the batch shape."""
    if vector_dim == indices.ndim:
        return [_as_i64(indices)]
    return [_as_i64(np.take(indices, i, vector_dim)) for i in range(indices.shape[vector_dim])]


def _as_i64(x: np.ndarray) -> np.ndarray:
    # a u64 index above the i64 range is out of bounds; keep it so
    x = np.minimum(x, np.uint64(2**63 - 1)) if x.dtype == np.uint64 else x
    return np.asarray(x, np.int64)


def _batching_axes(dims: Sequence[int], vector_dim: int) -> list[int]:
    return [d - (d > vector_dim) for d in dims]


def _full_index(
    starts: list[np.ndarray],
    start_dims: Sequence[int],
    batching: Sequence[int],
    batching_axes: Sequence[int],
    windows: Sequence[int],
    window_dims: Sequence[int],
    rank: int,
    batch_shape: tuple[int, ...],
) -> tuple[np.ndarray, ...]:
    """One index array for each axis of the operand, each broadcastable to [*batch, *window]."""
    rank_out = len(batch_shape) + len(windows)
    index = [np.zeros((1,) * rank_out, np.int64) for _ in range(rank)]
    for start, d in zip(starts, start_dims, strict=True):
        index[d] = index[d] + np.reshape(start, (*batch_shape, *(1,) * len(windows)))
    for d, axis in zip(batching, batching_axes, strict=True):
        axis_shape = [-1 if i == axis else 1 for i in range(rank_out)]
        index[d] = index[d] + np.arange(batch_shape[axis]).reshape(axis_shape)
    for i, (n, d) in enumerate(zip(windows, window_dims, strict=True)):
        axis_shape = [-1 if j == len(batch_shape) + i else 1 for j in range(rank_out)]
        index[d] = index[d] + np.arange(n).reshape(axis_shape)
    return tuple(index)


@dataclass(frozen=True)
class Sort(CoreOp):
    """All operands sorted along `dimension` by the first `num_keys` operands, lexicographically (StableHLO sort).

    The operands have one shape. NaN is greater than any number, and -0 equals +0. Ties keep their order, even if
    `stable` is False. count: the number of leading elements to return; None for all.
    """

    name: ClassVar[str] = "sort"
    category: ClassVar[Category] = Category.SORT
    dimension: int
    descending: bool = False
    stable: bool = True
    num_keys: int = 1
    count: DimLike | None = None

    def infer(self, *inputs: TensorType) -> TensorType | tuple[TensorType, ...]:
        self.expect(1 <= self.num_keys <= len(inputs), f"expected at least {self.num_keys} operands, got {len(inputs)}")
        check_dims(self, (self.dimension,), inputs[0].rank, "dimension")
        self.expect(
            all(t.shape == inputs[0].shape for t in inputs),
            f"expected operands of one shape, got {', '.join(map(str, inputs))}",
        )
        self.expect_constraints(*inputs)
        if self.count is not None:
            result_shape = tuple(self.count if d == self.dimension else n for d, n in enumerate(inputs[0].shape))
            inputs = tuple(x.with_shape(result_shape) for x in inputs)
        return inputs[0] if len(inputs) == 1 else inputs

    def constraints(self, *inputs: TensorType) -> Iterator[tuple[DimLike, str]]:
        if self.count is not None:
            size = inputs[0].shape[self.dimension]
            message = f"count: expected at most {size}, the size of dimension {self.dimension}, got {self.count}"
            yield from ((d, message) for d in (self.count, size - self.count))

    def reference(self, *inputs: np.ndarray) -> np.ndarray | tuple[np.ndarray, ...]:
        keys = [_order_key(x) for x in inputs[: self.num_keys]]
        if self.descending:
            keys = [~key for key in keys]
        if len(keys) == 1:
            order = np.argsort(keys[0], axis=self.dimension, kind="stable")
        else:
            order = np.lexsort(keys[::-1], axis=self.dimension)
        if self.count is not None:
            order = np.take(order, range(int(self.count)), self.dimension)
        out = tuple(np.take_along_axis(x, order, self.dimension) for x in inputs)
        return out[0] if len(out) == 1 else out

    @classmethod
    def samples(cls) -> Samples:
        rng = np.random.default_rng(0)
        x = rng.integers(-4, 4, (3, 9)).astype(np.float32)
        x[0, 3], x[1, 2], x[2, 5], x[0, 7] = np.nan, np.inf, -0.0, -np.inf
        tags = np.arange(27, dtype=np.int64).reshape(3, 9)
        for descending in (False, True):
            yield cls(1, descending), (x,)
            yield cls(1, descending), (x, tags)
            yield cls(0, descending, True, 2), (x, -x, tags)
            yield cls(0, descending), (rng.integers(0, 255, 7).astype(np.uint8),)
            yield cls(0, descending), (rng.integers(-99, 99, 7).astype(np.float16), np.arange(7, dtype=np.int32))
            yield cls(1, descending, count=2), (x, tags)
            yield cls(1, descending, count=7), (x, tags)
            yield cls(0, descending, True, 2, count=1), (x, -x, tags)
        yield cls(0), (np.zeros((0, 2), np.float32),)


def _order_key(x: np.ndarray) -> np.ndarray:
    """Integers that sort as x does, NaN last."""
    x = widen(x)
    if x.dtype.kind == "b":
        return x.astype(np.int8)
    if x.dtype.kind != "f":
        return x
    bits = (x + x.dtype.type(0)).view(f"i{x.dtype.itemsize}")  # -0 + 0 = +0
    key = np.where(bits < 0, bits ^ np.iinfo(bits.dtype).max, bits)
    return np.where(np.isnan(x), np.iinfo(bits.dtype).max, key)
