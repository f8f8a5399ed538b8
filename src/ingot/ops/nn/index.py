"""Gathers and scatters with the semantics of numpy, PyTorch and ONNX.

Negative indices count from the end. Frameworks raise for an index out of range; compiled code cannot, so gathers clamp
it and scatters drop the element. A gather along an axis without elements must have an empty result.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar

import ml_dtypes
import numpy as np

from ingot.ir.dims import Dim, DimLike, dim_min, product
from ingot.ir.node import Const, Node, Op, Samples
from ingot.ir.types import Shape, TensorType, dtype_of, i64
from ingot.ops.core.base import check_count, check_dims, expect_equal, round_to, widen
from ingot.ops.core.indexing import Gather, Scatter
from ingot.ops.core.shape import BroadcastInDim, Reshape
from ingot.ops.nn import terms as t
from ingot.ops.nn.terms import Operand, Term
from ingot.support.dataclass import dataclass

_SCATTER_KINDS = {"none": "set", "add": "add", "mul": "mul", "max": "max", "min": "min"}


def _check_indices(op: Op, indices: TensorType) -> None:
    op.expect(indices.dtype.is_integer, f"expected integer indices, got {indices}")


def _nonempty_constraints(x: TensorType, axes: Iterable[int], indices: Shape) -> Iterator[tuple[DimLike, str]]:
    """Constraints: x must have elements on `axes`, unless there are no indices."""
    n_required = dim_min(product(indices), 1)
    yield from ((x.shape[d] - n_required, f"expected elements on axis {d}, got {x}") for d in axes)


def wrap_indices(indices: np.ndarray, sizes: np.ndarray | int) -> np.ndarray:
    """`indices` with negative ones counted from the end; those out of range stay out of range."""
    index = indices.astype(np.int64)
    return np.where(index < 0, index + sizes, index)


def wrap_index_node(indices: Node, sizes: Operand) -> Term:
    """`wrap_indices` as a term; sizes: a scalar, or a vector along the last dimension."""
    x = Term(indices)
    if x.dtype.kind != "i":
        return x
    if isinstance(indices.op, Const) and (indices.op.value >= 0).all():
        return x
    if x.dtype.bits < 64:
        x = x.cast(i64)
    return t.term(t.where(x < 0, x + sizes, x))


def _row_indices(indices: Node, axis: int) -> Node | None:
    """The vector of indices along `axis` if all other axes only repeat it (entire rows are selected), else None."""
    op = indices.op
    if indices.type.rank < 2 or not isinstance(op, BroadcastInDim):
        return None
    (x,) = indices.inputs
    varying_dims = [d for d, n in zip(op.dims, x.shape, strict=True) if n != 1]
    if varying_dims != [axis] or indices.shape[axis] not in x.shape:
        return None
    return Reshape((indices.shape[axis],))(x)


def _size_vector(sizes: Sequence[DimLike]) -> Operand:
    """`sizes` as an i64 vector."""
    if not any(isinstance(d, Dim) for d in sizes):
        return np.asarray(sizes, np.int64)
    return t.concat([t.as_term(t.size(d)).reshape((1,)) for d in sizes], 0)


def sample_values(*shape: int, dtype: type = np.float32) -> np.ndarray:
    return (np.arange(int(np.prod(shape))).reshape(shape) - 3).astype(dtype)


def _indices(low: int, high: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).integers(low, high, shape)


@dataclass(frozen=True)
class Take(Op):
    """numpy.take(x, indices, axis), of shape [*x.shape[:axis], *indices.shape, *x.shape[axis + 1:]] (ONNX Gather).

    With axis 0 it is an embedding lookup.
    """

    name: ClassVar[str] = "take"
    axis: int = 0

    def infer(self, *inputs: TensorType) -> TensorType:
        check_count(self, inputs, 2)
        x, indices = inputs
        check_dims(self, (self.axis,), x.rank, "axis")
        _check_indices(self, indices)
        self.expect_constraints(*inputs)
        return x.with_shape((*x.shape[: self.axis], *indices.shape, *x.shape[self.axis + 1 :]))

    def constraints(self, *inputs: TensorType) -> Iterator[tuple[DimLike, str]]:
        return _nonempty_constraints(inputs[0], (self.axis,), inputs[1].shape)

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        x, indices = inputs
        index = wrap_indices(indices, x.shape[self.axis])
        return np.take(x, np.clip(index, 0, x.shape[self.axis] - 1), self.axis)

    def lower(self, *inputs: Node) -> Node:
        x, indices = inputs
        return t.take(Term(x), wrap_index_node(indices, t.size(x.shape[self.axis])), self.axis).node

    @classmethod
    def samples(cls) -> Samples:
        x = sample_values(5, 4, 3)
        for axis in range(3):
            yield cls(axis), (x, _indices(-3, 3, 2, 3))
        yield cls(0), (x, np.asarray(-1, np.int32))
        yield cls(1), (x, np.asarray([0, 9, -9]))
        yield cls(1), (x, np.zeros((0, 2), np.int64))
        yield cls(0), (x, np.asarray([4, 0], np.uint8))
        yield cls(0), (x.astype(ml_dtypes.bfloat16), np.asarray([[4, 0]], np.int32))
        yield cls(0), (x > 7, np.asarray([[4, 0]], np.int32))


@dataclass(frozen=True)
class GatherElements(Op):
    """result[i, j, k] = x[i, indices[i, j, k], k], for axis 1 (torch.gather, ONNX GatherElements).

    indices may be smaller than x on the other axes.
    """

    name: ClassVar[str] = "gather_elements"
    axis: int = 0

    def infer(self, *inputs: TensorType) -> TensorType:
        check_count(self, inputs, 2)
        x, indices = inputs
        _check_indices(self, indices)
        check_dims(self, (self.axis,), x.rank, "axis")
        self.expect(x.rank == indices.rank, f"expected indices of rank {x.rank}, got {indices}")
        self.expect_constraints(*inputs)
        return x.with_shape(indices.shape)

    def constraints(self, *inputs: TensorType) -> Iterator[tuple[DimLike, str]]:
        yield from _coverage_constraints(inputs[0], inputs[1], self.axis)
        yield from _nonempty_constraints(inputs[0], (self.axis,), inputs[1].shape)

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        x, indices = inputs
        size = x.shape[self.axis]
        index = np.clip(wrap_indices(indices, size), 0, size - 1)
        part = x[tuple(slice(None) if d == self.axis else slice(n) for d, n in enumerate(indices.shape))]
        return np.take_along_axis(part, index, self.axis)

    def lower(self, *inputs: Node) -> Node:
        x, indices = Term(inputs[0]), inputs[1]
        others = tuple(d for d in range(x.rank) if d != self.axis)
        for d in others:
            x = x.slice(d, 0, indices.shape[d])
        row_indices = _row_indices(indices, self.axis)
        if row_indices is not None:
            return t.take(x, wrap_index_node(row_indices, t.size(x.shape[self.axis])), self.axis).node
        index = wrap_index_node(indices, t.size(x.shape[self.axis]))
        gather = Gather((), (self.axis,), others, others, (self.axis,), x.rank, (1,) * x.rank)
        return gather(x.node, index.node)

    @classmethod
    def samples(cls) -> Samples:
        x = sample_values(3, 4, 5)
        yield cls(0), (x, _indices(-3, 3, 2, 4, 5))
        yield cls(1), (x, _indices(-4, 4, 3, 7, 5))
        yield cls(2), (x, _indices(0, 5, 2, 3, 1).astype(np.int32))
        yield cls(0), (sample_values(4), np.asarray([1, 9, -9]))
        yield cls(1), (x, np.zeros((3, 0, 5), np.int64))
        yield cls(0), (x[:0], np.zeros((0, 2, 5), np.int64))


def _coverage_constraints(x: TensorType, indices: TensorType, axis: int) -> Iterator[tuple[DimLike, str]]:
    """Constraints: indices must not be larger than x on axes other than `axis`."""
    for d, (size, n) in enumerate(zip(x.shape, indices.shape, strict=True)):
        if d != axis:
            yield size - n, f"axis {d}: expected at most {size} indices, got {n}"


@dataclass(frozen=True)
class GatherND(Op):
    """result[b..., i..., s...] = x[b..., *indices[b..., i..., :], s...], with `batch_dims` dimensions b (ONNX
    GatherND)."""

    name: ClassVar[str] = "gather_nd"
    batch_dims: int = 0

    def infer(self, *inputs: TensorType) -> TensorType:
        check_count(self, inputs, 2)
        x, indices = inputs
        depth = _check_vectors(self, x, indices, self.batch_dims)
        message = f"expected {self.batch_dims} equal batch dimensions, got {x} and {indices}"
        expect_equal(self, x.shape[: self.batch_dims], indices.shape[: self.batch_dims], message)
        self.expect_constraints(*inputs)
        return x.with_shape((*indices.shape[:-1], *x.shape[self.batch_dims + depth :]))

    def constraints(self, *inputs: TensorType) -> Iterator[tuple[DimLike, str]]:
        x, indices = inputs
        depth = _check_vectors(self, x, indices, self.batch_dims)
        return _nonempty_constraints(x, range(self.batch_dims, self.batch_dims + depth), indices.shape[:-1])

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        x, indices = inputs
        b, depth = self.batch_dims, indices.shape[-1]
        sizes = np.asarray(x.shape[b : b + depth])
        index = np.clip(wrap_indices(indices, sizes), 0, sizes - 1)
        grid = np.ix_(*(np.arange(n) for n in indices.shape[:b])) if b else ()
        grid = tuple(g.reshape(*g.shape, *(1,) * (indices.ndim - 1 - b)) for g in grid)
        return x[(*grid, *np.moveaxis(index, -1, 0))]

    def lower(self, *inputs: Node) -> Node:
        x, indices = inputs
        b, depth, rank = self.batch_dims, int(indices.shape[-1]), len(indices.shape)
        index = wrap_index_node(indices, _size_vector(x.shape[b : b + depth]))
        batch, mapped = tuple(range(b)), tuple(range(b, b + depth))
        window = len(x.shape) - b - depth
        sizes = (*(1,) * (b + depth), *x.shape[b + depth :])
        gather = Gather(tuple(range(rank - 1, rank - 1 + window)), mapped, batch, batch, mapped, rank - 1, sizes)
        return gather(x, index.node)

    @classmethod
    def samples(cls) -> Samples:
        x = sample_values(2, 3, 4)
        yield cls(), (x, _indices(-2, 2, 5, 2))
        yield cls(), (x, _indices(0, 2, 3, 2, 3).astype(np.int32))
        yield cls(), (x, np.asarray([[1], [-1], [7]]))
        yield cls(1), (x, _indices(-3, 3, 2, 1))
        yield cls(1), (x, _indices(0, 3, 2, 5, 2))
        yield cls(2), (x, _indices(0, 4, 2, 3, 1))
        yield cls(), (x[:, :0], np.zeros((0, 2), np.int64))
        yield cls(1), (x[:0], np.zeros((0, 5, 2), np.int64))


def _check_vectors(op: Op, x: TensorType, indices: TensorType, batch: int) -> int:
    """The number of components of an index vector, after checking the operands."""
    _check_indices(op, indices)
    op.expect(0 <= batch < max(indices.rank, 1), f"batch_dims: expected less than the rank of {indices}, got {batch}")
    depth = indices.shape[-1] if indices.rank else None
    is_valid_depth = isinstance(depth, int) and depth <= x.rank - batch
    op.expect(is_valid_depth, f"expected index vectors of at most {x.rank - batch} components for {x}, got {indices}")
    assert isinstance(depth, int)
    return depth


@dataclass(frozen=True)
class ScatterElements(Op):
    """x with updates[i, j, k] combined into [i, indices[i, j, k], k], for axis 1 (torch.scatter, ONNX ScatterElements).

    reduction: none, add, mul, max or min; for none and repeated indices the last update wins. indices and updates have
    one shape, which may be smaller than x on the other axes.
    """

    name: ClassVar[str] = "scatter_elements"
    axis: int = 0
    reduction: str = "none"

    def infer(self, *inputs: TensorType) -> TensorType:
        check_count(self, inputs, 3)
        x, indices, updates = inputs
        _check_indices(self, indices)
        _check_updates(self, self.reduction, x, updates)
        check_dims(self, (self.axis,), x.rank, "axis")
        self.expect(x.rank == indices.rank, f"expected indices of rank {x.rank}, got {indices}")
        message = f"expected updates of shape {list(indices.shape)}, got {updates}"
        expect_equal(self, updates.shape, indices.shape, message)
        self.expect_constraints(*inputs)
        return x

    def constraints(self, *inputs: TensorType) -> Iterator[tuple[DimLike, str]]:
        yield from _coverage_constraints(inputs[0], inputs[1], self.axis)
        yield from _nonempty_constraints(inputs[0], (self.axis,), inputs[1].shape)

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        x, indices, updates = inputs
        index = [np.asarray(a) for a in np.indices(indices.shape)]
        index[self.axis] = wrap_indices(indices, x.shape[self.axis])
        in_bounds = (index[self.axis] >= 0) & (index[self.axis] < x.shape[self.axis])
        return _combine(x, tuple(a[in_bounds] for a in index), updates[in_bounds], self.reduction)

    def lower(self, *inputs: Node) -> Node:
        x, indices, updates = inputs
        rank = len(x.shape)
        index = wrap_index_node(indices, t.size(x.shape[self.axis]))
        # dimensions of equal size are batch dimensions; on those where indices are smaller, coordinates are explicit
        batch = tuple(d for d in range(rank) if d != self.axis and x.shape[d] == indices.shape[d])
        partial_dims = tuple(d for d in range(rank) if d != self.axis and d not in batch)
        row_indices = _row_indices(indices, self.axis)
        if row_indices is not None and not partial_dims:
            index = wrap_index_node(row_indices, t.size(x.shape[self.axis]))
            rows = Scatter(_SCATTER_KINDS[self.reduction], batch, (self.axis,), (), (), (self.axis,), 1)
            return rows(x, index.node, updates)
        if not partial_dims:
            scatter = Scatter(_SCATTER_KINDS[self.reduction], (), (self.axis,), batch, batch, (self.axis,), rank)
            return scatter(x, index.node, updates)
        coordinates = [t.iota(indices.shape, d, index.dtype).expand(rank) for d in partial_dims]
        vectors = t.concat([index.expand(rank), *coordinates], rank)
        mapped = (self.axis, *partial_dims)
        scatter = Scatter(_SCATTER_KINDS[self.reduction], (), tuple(sorted(mapped)), batch, batch, mapped, rank)
        return scatter(x, vectors.node, updates)

    @classmethod
    def samples(cls) -> Samples:
        x = sample_values(3, 4, 5)
        for reduction in _SCATTER_KINDS:
            indices = _indices(-3, 3, 2, 4, 5)
            yield cls(0, reduction), (x, indices, sample_values(2, 4, 5) / 4)
            yield cls(1, reduction), (x, _indices(-4, 5, 2, 6, 3), sample_values(2, 6, 3))
            half_updates = sample_values(3, 2, 5).astype(np.float16)
            yield cls(1, reduction), (x.astype(np.float16), _indices(0, 4, 3, 2, 5), half_updates)
        yield cls(0, "add"), (sample_values(4, dtype=np.int64), np.asarray([0, 0, -1, 8]), np.asarray([5, 6, 7, 8]))
        yield cls(0), (sample_values(4), np.zeros((0,), np.int64), np.zeros((0,), np.float32))


def _check_updates(op: Op, reduction: str, x: TensorType, updates: TensorType) -> None:
    op.expect(reduction in _SCATTER_KINDS, f"reduction: expected one of {' '.join(_SCATTER_KINDS)}, got {reduction}")
    op.expect(updates.dtype == x.dtype, f"expected updates of {x.dtype}, got {updates}")


_COMBINE: dict[str, np.ufunc] = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def _combine(x: np.ndarray, index: tuple[np.ndarray, ...], updates: np.ndarray, reduction: str) -> np.ndarray:
    out = widen(x).copy()
    if reduction == "none":
        out[index] = widen(updates)
    else:
        _COMBINE[reduction].at(out, index, widen(updates))
    return round_to(out, dtype_of(x))


@dataclass(frozen=True)
class ScatterND(Op):
    """x with updates[i..., s...] combined into x[*indices[i..., :], s...] (ONNX ScatterND).

    reduction: none, add, mul, max or min; for none and repeated indices the last update wins.
    """

    name: ClassVar[str] = "scatter_nd"
    reduction: str = "none"

    def infer(self, *inputs: TensorType) -> TensorType:
        check_count(self, inputs, 3)
        x, indices, updates = inputs
        depth = _check_vectors(self, x, indices, 0)
        _check_updates(self, self.reduction, x, updates)
        expected = (*indices.shape[:-1], *x.shape[depth:])
        expect_equal(self, updates.shape, expected, f"expected updates of shape {list(expected)}, got {updates}")
        self.expect_constraints(*inputs)
        return x

    def constraints(self, *inputs: TensorType) -> Iterator[tuple[DimLike, str]]:
        x, indices, _ = inputs
        return _nonempty_constraints(x, range(int(indices.shape[-1])), indices.shape[:-1])

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        x, indices, updates = inputs
        sizes = np.asarray(x.shape[: indices.shape[-1]])
        index = wrap_indices(indices, sizes)
        in_bounds = ((index >= 0) & (index < sizes)).all(-1)
        return _combine(x, tuple(np.moveaxis(index[in_bounds], -1, 0)), updates[in_bounds], self.reduction)

    def lower(self, *inputs: Node) -> Node:
        x, indices, updates = inputs
        depth, rank = int(indices.shape[-1]), len(indices.shape)
        index = wrap_index_node(indices, _size_vector(x.shape[:depth]))
        window = tuple(range(rank - 1, len(updates.shape)))
        mapped = tuple(range(depth))
        return Scatter(_SCATTER_KINDS[self.reduction], window, mapped, (), (), mapped, rank - 1)(x, index.node, updates)

    @classmethod
    def samples(cls) -> Samples:
        x = sample_values(4, 3, 2)
        for reduction in _SCATTER_KINDS:
            yield cls(reduction), (x, np.asarray([[0], [-1], [0], [9]]), sample_values(4, 3, 2) / 4)
            yield cls(reduction), (x, _indices(-2, 2, 3, 2, 3), sample_values(3, 2))
            yield (
                cls(reduction),
                (x.astype(np.int32), _indices(0, 3, 5, 2).astype(np.int32), sample_values(5, 2, dtype=np.int32)),
            )
