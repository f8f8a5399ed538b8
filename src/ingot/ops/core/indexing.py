"""Gather, scatter and sort, with StableHLO's dimension numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np

from ingot.ir.dims import DimLike
from ingot.ir.node import Op, Samples
from ingot.ir.types import Shape, TensorType, boolean, dtype_of
from ingot.ops.core.base import Category, CoreOp, Perm, check_count, check_dims, finish, inverse, permute, widen, within
from ingot.support.dataclass import dataclass


def _without(values: Sequence, axes: Sequence[int]) -> tuple:
    return tuple(v for i, v in enumerate(values) if i not in axes)


@dataclass(frozen=True)
class Gather(CoreOp):
    """Slices of x at `indices`, with StableHLO's dimension numbers; starts are clamped so that each slice fits."""

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
        gone = (*self.collapsed_slice_dims, *self.operand_batching_dims)
        check_dims(self, gone, x.rank, "collapsed and batching dims")
        check_dims(self, (*self.start_index_map, *self.operand_batching_dims), x.rank, "start_index_map")
        check_dims(self, self.start_indices_batching_dims, indices.rank, "start_indices_batching_dims")
        _check_batching(self, x, indices, self.operand_batching_dims, self.start_indices_batching_dims)
        _check_vector(self, indices, self.index_vector_dim, len(self.start_index_map))
        for axis in gone:
            got = self.slice_sizes[axis]
            self.expect(got == 1, f"slice size of axis {axis}, which is collapsed: expected 1, got {got}")
        self.expect_constraints(*inputs)
        batch = _without(indices.shape, (self.index_vector_dim,))
        offsets = _without(self.slice_sizes, gone)
        rank = len(batch) + len(offsets)
        self.expect(
            len(self.offset_dims) == len(offsets), f"expected {len(offsets)} offset dims, got {self.offset_dims}"
        )
        check_dims(self, self.offset_dims, rank, "offset_dims")
        in_offset, in_batch = iter(offsets), iter(batch)
        return x.with_shape(tuple(next(in_offset if d in self.offset_dims else in_batch) for d in range(rank)))

    def constraints(self, *inputs: TensorType) -> Iterator[tuple[DimLike, str]]:
        return within(self.slice_sizes, inputs[0].shape, "slice")

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        x, indices = inputs
        sizes = tuple(int(d) for d in self.slice_sizes)
        starts = _starts(indices, self.index_vector_dim)
        gone = (*self.collapsed_slice_dims, *self.operand_batching_dims)
        limit = {d: x.shape[d] - sizes[d] for d in range(x.ndim)}
        clamped = [np.clip(s, 0, limit[d]) for s, d in zip(starts, self.start_index_map, strict=True)]
        where = _full_index(
            clamped,
            self.start_index_map,
            self.operand_batching_dims,
            _batching_axes(self.start_indices_batching_dims, self.index_vector_dim),
            [n for d, n in enumerate(sizes) if d not in gone],
            [d for d in range(x.ndim) if d not in gone],
            x.ndim,
            starts[0].shape if starts else _without(indices.shape, (self.index_vector_dim,)),
        )
        rank = len(_without(indices.shape, (self.index_vector_dim,)))
        offsets = len(self.offset_dims)
        shape = (*_without(indices.shape, (self.index_vector_dim,)), *_without(sizes, gone))
        picked = np.broadcast_to(x[where], shape)
        order, at_batch, at_offset = [], iter(range(rank)), iter(range(rank, rank + offsets))
        for d in range(rank + offsets):
            order.append(next(at_offset if d in self.offset_dims else at_batch))
        return picked.transpose(order).copy()

    def permuted(self, perm: Perm, *inputs: TensorType) -> tuple[CoreOp, Perm] | None:
        """Slices of x in its new order; what the indices index stands where the first dimension that they choose in
        does."""
        x, indices = inputs
        if len(perm) != x.rank or indices.rank >= x.rank or self.operand_batching_dims:
            return None
        kept = [d for d in range(x.rank) if d not in self.collapsed_slice_dims]
        offset = dict(zip(kept, self.offset_dims, strict=True))
        rank = indices.rank - (self.index_vector_dim < indices.rank) + len(kept)
        batch = [d for d in range(rank) if d not in self.offset_dims]
        chosen = next((d for d in perm if d in self.start_index_map), perm[0])
        order: list[int] = []
        for d in perm:
            order += batch if d == chosen else []
            order += [offset[d]] if d in offset else []
        at = inverse(perm)
        new = replace(
            self,
            offset_dims=tuple(i for i, d in enumerate(order) if d in self.offset_dims),
            collapsed_slice_dims=tuple(sorted(at[d] for d in self.collapsed_slice_dims)),
            start_index_map=tuple(at[d] for d in self.start_index_map),
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
    """x with `updates` combined in at `indices` (StableHLO's dimension numbers). kind: set add mul max min.

    Elements that land outside x are dropped. With `set` and repeated indices the last update wins. unique: what lands
    inside x lands in places of its own.
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
        """Whether updates of this shape are one window of the operand."""
        alone = (n == 1 for d, n in enumerate(updates) if d not in self.update_window_dims)
        return not self.input_batching_dims and all(alone)

    def infer(self, *inputs: TensorType) -> TensorType:
        check_count(self, inputs, 3)
        x, indices, updates = inputs
        kinds = ("set", "add", "mul", "max", "min")
        self.expect(self.kind in kinds, f"kind: expected one of {' '.join(kinds)}, got {self.kind}")
        self.expect(self.kind in ("set", "max", "min") or x.dtype != boolean, f"{self.kind}: expected numbers, got {x}")
        self.expect(indices.dtype.is_integer, f"expected integer indices, got {indices}")
        self.expect(updates.dtype == x.dtype, f"expected updates of {x.dtype}, got {updates}")
        gone = (*self.inserted_window_dims, *self.input_batching_dims)
        check_dims(self, gone, x.rank, "inserted and batching dims")
        check_dims(self, (*self.scatter_dims_to_operand_dims, *self.input_batching_dims), x.rank, "operand dims")
        check_dims(self, self.scatter_indices_batching_dims, indices.rank, "scatter_indices_batching_dims")
        check_dims(self, self.update_window_dims, updates.rank, "update_window_dims")
        _check_batching(self, x, indices, self.input_batching_dims, self.scatter_indices_batching_dims)
        _check_vector(self, indices, self.index_vector_dim, len(self.scatter_dims_to_operand_dims))
        self.expect(
            len(self.update_window_dims) + len(gone) == x.rank,
            f"expected {x.rank - len(gone)} update window dims for {x}, got {self.update_window_dims}",
        )
        batch = _without(indices.shape, (self.index_vector_dim,))
        got = _without(updates.shape, self.update_window_dims)
        self.expect(got == batch, f"expected scatter dims {list(batch)} in the updates {updates}, got {list(got)}")
        self.expect_constraints(*inputs)
        return x

    def constraints(self, *inputs: TensorType) -> Iterator[tuple[DimLike, str]]:
        x, _, updates = inputs
        gone = (*self.inserted_window_dims, *self.input_batching_dims)
        windows = tuple(updates.shape[d] for d in self.update_window_dims)
        return within(windows, _without(x.shape, gone), "window of updates")

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        x, indices, updates = inputs
        dtype = dtype_of(x)
        gone = (*self.inserted_window_dims, *self.input_batching_dims)
        kept = [d for d in range(x.ndim) if d not in gone]
        batch_shape = _without(indices.shape, (self.index_vector_dim,))
        where = _full_index(
            _starts(indices, self.index_vector_dim),
            self.scatter_dims_to_operand_dims,
            self.input_batching_dims,
            _batching_axes(self.scatter_indices_batching_dims, self.index_vector_dim),
            [updates.shape[d] for d in self.update_window_dims],
            kept,
            x.ndim,
            batch_shape,
        )
        batch_axes = [d for d in range(updates.ndim) if d not in self.update_window_dims]
        values = widen(updates.transpose(*batch_axes, *self.update_window_dims))
        where = tuple(np.broadcast_to(w, values.shape).reshape(-1) for w in where)
        values = values.reshape(-1)
        inside = np.ones(values.shape, bool)
        for w, n in zip(where, x.shape, strict=True):
            inside &= (w >= 0) & (w < n)
        where, values = tuple(w[inside] for w in where), values[inside]
        out = widen(x).copy()
        with np.errstate(all="ignore"):
            if self.kind == "set":
                out[where] = values
            else:
                _COMBINE[self.kind].at(out, where, values)
        return finish(out, dtype)

    @classmethod
    def samples(cls) -> Samples:
        x = np.arange(12, dtype=np.float32).reshape(4, 3)
        rows = np.asarray([[0], [3], [0], [7], [-1]], np.int64)
        updates = np.arange(15, dtype=np.float32).reshape(5, 3) - 6
        for kind in (*_COMBINE, "set"):
            yield cls(kind, (1,), (0,), (), (), (0,), 1), (x, rows, updates)
            ints = np.asarray([[1], [1], [2]], np.int32), np.asarray([5, 7, -2], np.int32)
            yield cls(kind, (), (0,), (), (), (0,), 1), (np.arange(4, dtype=np.int32), *ints)
            half = np.asarray([1, 2.5, 1e-3], np.float16)
            yield cls(kind, (), (0,), (), (), (0,), 1), (np.ones(4, np.float16), ints[0], half)
        window = np.asarray([[2, 1], [3, 2]], np.int64), np.ones((2, 2, 2), np.float32)
        yield cls("add", (1, 2), (), (), (), (0, 1), 1), (x, *window)
        batched = np.asarray([[0], [2], [1], [0]], np.int64), np.full((4,), 9, np.float32)
        yield cls("set", (), (1,), (0,), (0,), (1,), 1), (x, *batched)
        yield cls("set", (0,), (0,), (), (), (0,), 0), (x, np.asarray([2]), np.zeros(3, np.float32))
        apart = np.asarray([[2], [7], [0], [-1]], np.int64), updates[:4]
        yield cls("set", (1,), (0,), (), (), (0,), 1, unique=True), (x, *apart)


_COMBINE: dict[str, np.ufunc] = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def _check_vector(op: Op, indices: TensorType, at: int, count: int) -> None:
    op.expect(0 <= at <= indices.rank, f"index_vector_dim: expected at most {indices.rank}, got {at}")
    length = indices.shape[at] if at < indices.rank else 1
    op.expect(length == count, f"expected index vectors of {count} components, got {length} in {indices}")


def _check_batching(op: Op, x: TensorType, indices: TensorType, xs: Sequence[int], ixs: Sequence[int]) -> None:
    op.expect(len(xs) == len(ixs), f"expected as many batching dims of x as of indices, got {xs} and {ixs}")
    for i, j in zip(xs, ixs, strict=True):
        op.expect(x.shape[i] == indices.shape[j], f"expected batching dims of one size, got {x} and {indices}")


def _starts(indices: np.ndarray, at: int) -> list[np.ndarray]:
    """One array of start indices, of the batch shape, per component of the index vectors."""
    if at == indices.ndim:
        return [_signed(indices)]
    return [_signed(np.take(indices, i, at)) for i in range(indices.shape[at])]


def _signed(x: np.ndarray) -> np.ndarray:
    # a u64 index beyond i64 is out of any bounds: keep it large
    x = np.minimum(x, np.uint64(2**63 - 1)) if x.dtype == np.uint64 else x
    return np.asarray(x, np.int64)


def _batching_axes(dims: Sequence[int], vector: int) -> list[int]:
    return [d - (d > vector) for d in dims]


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
    """An index array per axis of the operand, each broadcastable to [*batch, *window]."""
    total = len(batch_shape) + len(windows)
    index = [np.zeros((1,) * total, np.int64) for _ in range(rank)]
    for start, d in zip(starts, start_dims, strict=True):
        index[d] = index[d] + np.reshape(start, (*batch_shape, *(1,) * len(windows)))
    for d, axis in zip(batching, batching_axes, strict=True):
        form = [-1 if i == axis else 1 for i in range(total)]
        index[d] = index[d] + np.arange(batch_shape[axis]).reshape(form)
    for i, (n, d) in enumerate(zip(windows, window_dims, strict=True)):
        form = [-1 if j == len(batch_shape) + i else 1 for j in range(total)]
        index[d] = index[d] + np.arange(n).reshape(form)
    return tuple(index)


@dataclass(frozen=True)
class Sort(CoreOp):
    """Every operand reordered along `dimension` so that the first `num_keys` ascend (or descend) lexicographically.

    NaN counts as greater than any number and -0 equals +0. Ties keep their order (also when `stable` is False). keep:
    how many of them the results have, the first ones; None: all.
    """

    name: ClassVar[str] = "sort"
    category: ClassVar[Category] = Category.SORT
    dimension: int
    descending: bool = False
    stable: bool = True
    num_keys: int = 1
    keep: DimLike | None = None

    def infer(self, *inputs: TensorType) -> TensorType | tuple[TensorType, ...]:
        self.expect(1 <= self.num_keys <= len(inputs), f"expected at least {self.num_keys} operands, got {len(inputs)}")
        check_dims(self, (self.dimension,), inputs[0].rank, "dimension")
        self.expect(
            all(t.shape == inputs[0].shape for t in inputs),
            f"expected operands of one shape, got {', '.join(map(str, inputs))}",
        )
        self.expect_constraints(*inputs)
        if self.keep is not None:
            kept = tuple(self.keep if d == self.dimension else n for d, n in enumerate(inputs[0].shape))
            inputs = tuple(x.with_shape(kept) for x in inputs)
        return inputs[0] if len(inputs) == 1 else inputs

    def constraints(self, *inputs: TensorType) -> Iterator[tuple[DimLike, str]]:
        if self.keep is not None:
            size = inputs[0].shape[self.dimension]
            message = f"keep: expected at most {size}, the size of dimension {self.dimension}, got {self.keep}"
            yield from ((d, message) for d in (self.keep, size - self.keep))

    def reference(self, *inputs: np.ndarray) -> np.ndarray | tuple[np.ndarray, ...]:
        keys = [_order_key(x) for x in inputs[: self.num_keys]]
        if self.descending:
            keys = [~key for key in keys]
        if len(keys) == 1:
            order = np.argsort(keys[0], axis=self.dimension, kind="stable")
        else:
            order = np.lexsort(keys[::-1], axis=self.dimension)
        if self.keep is not None:
            order = np.take(order, range(int(self.keep)), self.dimension)
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
            yield cls(1, descending, keep=2), (x, tags)
            yield cls(1, descending, keep=7), (x, tags)
            yield cls(0, descending, True, 2, keep=1), (x, -x, tags)
        yield cls(0), (np.zeros((0, 2), np.float32),)


def _order_key(x: np.ndarray) -> np.ndarray:
    """Integers in the order of x, NaN last."""
    x = widen(x)
    if x.dtype.kind == "b":
        return x.astype(np.int8)
    if x.dtype.kind != "f":
        return x
    bits = (x + x.dtype.type(0)).view(f"i{x.dtype.itemsize}")  # -0 + 0 = +0
    key = np.where(bits < 0, bits ^ np.iinfo(bits.dtype).max, bits)
    return np.where(np.isnan(x), np.iinfo(bits.dtype).max, key)
