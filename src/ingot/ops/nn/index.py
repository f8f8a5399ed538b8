"""Gathers, scatters and selections by index, with numpy's, PyTorch's and ONNX's semantics.

Negative indices count from the end. Frameworks raise for an index out of range; compiled code cannot, so gathers clamp
it and scatters drop the element. Where an axis has no elements at all, gathers have no results, or are refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar

import ml_dtypes
import numpy as np

from ingot.ir.dims import Dim, DimLike, dim_min, product
from ingot.ir.node import Const, Node, Op, Samples
from ingot.ir.types import Shape, TensorType, dtype_of, i64
from ingot.ops.core.base import check_count, check_dims, round_to, widen
from ingot.ops.core.indexing import Gather, Scatter
from ingot.ops.core.shape import BroadcastInDim, Reshape
from ingot.ops.nn import terms as t
from ingot.ops.nn.terms import Operand, Term
from ingot.support.dataclass import dataclass

_KINDS = {"none": "set", "add": "add", "mul": "mul", "max": "max", "min": "min"}


def _check_indices(op: Op, indices: TensorType) -> None:
    op.expect(indices.dtype.is_integer, f"expected integer indices, got {indices}")


def _elements_at(x: TensorType, axes: Iterable[int], indices: Shape) -> Iterator[tuple[DimLike, str]]:
    """The constraints that x has elements on `axes`, which there are indices for."""
    some = dim_min(product(indices), 1)
    yield from ((x.shape[d] - some, f"expected elements on axis {d}, got {x}") for d in axes)


def wrap(indices: np.ndarray, sizes: np.ndarray | int) -> np.ndarray:
    """Indices from the front, out of range ones left so."""
    at = indices.astype(np.int64)
    return np.where(at < 0, at + sizes, at)


def wrapped(indices: Node, sizes: Operand) -> Term:
    """Indices from the front; `sizes` (a scalar, or a vector for the last dimension) are added to negative ones."""
    x = Term(indices)
    if x.dtype.kind != "i":
        return x
    if isinstance(indices.op, Const) and (indices.op.value >= 0).all():
        return x
    if x.dtype.bits < 64:
        x = x.cast(i64)
    return t.term(t.where(x < 0, x + sizes, x))


def _line_of(indices: Node, axis: int) -> Node | None:
    """The indices along `axis`, where all other axes only repeat them: whole rows are meant."""
    op = indices.op
    if indices.type.rank < 2 or not isinstance(op, BroadcastInDim):
        return None
    (x,) = indices.inputs
    sized = [d for d, n in zip(op.dims, x.shape, strict=True) if n != 1]
    if sized != [axis] or indices.shape[axis] not in x.shape:
        return None
    return Reshape((indices.shape[axis],))(x)


def _size_vector(sizes: Sequence[DimLike]) -> Operand:
    """Sizes as an i64 vector."""
    if not any(isinstance(d, Dim) for d in sizes):
        return np.asarray(sizes, np.int64)
    return t.concat([t.as_term(t.size(d)).reshape((1,)) for d in sizes], 0)


def sample_values(*shape: int, dtype: type = np.float32) -> np.ndarray:
    return (np.arange(int(np.prod(shape))).reshape(shape) - 3).astype(dtype)


def _indices(low: int, high: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).integers(low, high, shape)


@dataclass(frozen=True)
class Take(Op):
    """numpy.take(x, indices, axis): [*x[:axis], *indices.shape, *x[axis + 1:]]; an embedding lookup with axis 0."""

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
        return _elements_at(inputs[0], (self.axis,), inputs[1].shape)

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        x, indices = inputs
        at = wrap(indices, x.shape[self.axis])
        return np.take(x, np.clip(at, 0, x.shape[self.axis] - 1), self.axis)

    def lower(self, *inputs: Node) -> Node:
        x, indices = inputs
        return t.take(Term(x), wrapped(indices, t.size(x.shape[self.axis])), self.axis).node

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
    """result[i, j, k] = x[i, indices[i, j, k], k] for axis 1: torch.gather, ONNX GatherElements.

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
        yield from _uncovered(inputs[0], inputs[1], self.axis)
        yield from _elements_at(inputs[0], (self.axis,), inputs[1].shape)

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        x, indices = inputs
        size = x.shape[self.axis]
        at = np.clip(wrap(indices, size), 0, size - 1)
        part = x[tuple(slice(None) if d == self.axis else slice(n) for d, n in enumerate(indices.shape))]
        return np.take_along_axis(part, at, self.axis)

    def lower(self, *inputs: Node) -> Node:
        x, indices = Term(inputs[0]), inputs[1]
        others = tuple(d for d in range(x.rank) if d != self.axis)
        for d in others:
            x = x.slice(d, 0, indices.shape[d])
        line = _line_of(indices, self.axis)
        if line is not None:
            return t.take(x, wrapped(line, t.size(x.shape[self.axis])), self.axis).node
        at = wrapped(indices, t.size(x.shape[self.axis]))
        gather = Gather((), (self.axis,), others, others, (self.axis,), x.rank, (1,) * x.rank)
        return gather(x.node, at.node)

    @classmethod
    def samples(cls) -> Samples:
        x = sample_values(3, 4, 5)
        yield cls(0), (x, _indices(-3, 3, 2, 4, 5))
        yield cls(1), (x, _indices(-4, 4, 3, 7, 5))
        yield cls(2), (x, _indices(0, 5, 2, 3, 1).astype(np.int32))
        yield cls(0), (sample_values(4), np.asarray([1, 9, -9]))
        yield cls(1), (x, np.zeros((3, 0, 5), np.int64))
        yield cls(0), (x[:0], np.zeros((0, 2, 5), np.int64))


def _uncovered(x: TensorType, indices: TensorType, axis: int) -> Iterator[tuple[DimLike, str]]:
    """What x has beyond the indices on the axes that they do not choose on."""
    for d, (size, n) in enumerate(zip(x.shape, indices.shape, strict=True)):
        if d != axis:
            yield size - n, f"axis {d}: expected at most {size} indices, got {n}"


@dataclass(frozen=True)
class GatherND(Op):
    """result[b..., i..., s...] = x[b..., *indices[b..., i..., :], s...] with `batch_dims` leading b (ONNX GatherND)."""

    name: ClassVar[str] = "gather_nd"
    batch_dims: int = 0

    def infer(self, *inputs: TensorType) -> TensorType:
        check_count(self, inputs, 2)
        x, indices = inputs
        depth = _check_vectors(self, x, indices, self.batch_dims)
        same = x.shape[: self.batch_dims] == indices.shape[: self.batch_dims]
        self.expect(same, f"expected {self.batch_dims} equal batch dimensions, got {x} and {indices}")
        self.expect_constraints(*inputs)
        return x.with_shape((*indices.shape[:-1], *x.shape[self.batch_dims + depth :]))

    def constraints(self, *inputs: TensorType) -> Iterator[tuple[DimLike, str]]:
        x, indices = inputs
        depth = _check_vectors(self, x, indices, self.batch_dims)
        return _elements_at(x, range(self.batch_dims, self.batch_dims + depth), indices.shape[:-1])

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        x, indices = inputs
        b, depth = self.batch_dims, indices.shape[-1]
        sizes = np.asarray(x.shape[b : b + depth])
        at = np.clip(wrap(indices, sizes), 0, sizes - 1)
        grid = np.ix_(*(np.arange(n) for n in indices.shape[:b])) if b else ()
        grid = tuple(g.reshape(*g.shape, *(1,) * (indices.ndim - 1 - b)) for g in grid)
        return x[(*grid, *np.moveaxis(at, -1, 0))]

    def lower(self, *inputs: Node) -> Node:
        x, indices = inputs
        b, depth, rank = self.batch_dims, int(indices.shape[-1]), len(indices.shape)
        at = wrapped(indices, _size_vector(x.shape[b : b + depth]))
        batch, mapped = tuple(range(b)), tuple(range(b, b + depth))
        window = len(x.shape) - b - depth
        sizes = (*(1,) * (b + depth), *x.shape[b + depth :])
        gather = Gather(tuple(range(rank - 1, rank - 1 + window)), mapped, batch, batch, mapped, rank - 1, sizes)
        return gather(x, at.node)

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
    """The number of components of each index vector."""
    _check_indices(op, indices)
    op.expect(0 <= batch < max(indices.rank, 1), f"batch_dims: expected less than the rank of {indices}, got {batch}")
    depth = indices.shape[-1] if indices.rank else None
    fits = isinstance(depth, int) and depth <= x.rank - batch
    op.expect(fits, f"expected index vectors of at most {x.rank - batch} components for {x}, got {indices}")
    assert isinstance(depth, int)
    return depth


@dataclass(frozen=True)
class ScatterElements(Op):
    """x with updates[i, j, k] combined in at [i, indices[i, j, k], k] for axis 1: torch.scatter, ONNX ScatterElements.

    reduction: none add mul max min; none with repeated indices: the last update wins. indices and updates have
    one shape, which may be smaller than x's on the other axes.
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
        self.expect(updates.shape == indices.shape, f"expected updates of shape {list(indices.shape)}, got {updates}")
        self.expect_constraints(*inputs)
        return x

    def constraints(self, *inputs: TensorType) -> Iterator[tuple[DimLike, str]]:
        yield from _uncovered(inputs[0], inputs[1], self.axis)
        yield from _elements_at(inputs[0], (self.axis,), inputs[1].shape)

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        x, indices, updates = inputs
        at = [np.asarray(a) for a in np.indices(indices.shape)]
        at[self.axis] = wrap(indices, x.shape[self.axis])
        inside = (at[self.axis] >= 0) & (at[self.axis] < x.shape[self.axis])
        return _combine(x, tuple(a[inside] for a in at), updates[inside], self.reduction)

    def lower(self, *inputs: Node) -> Node:
        x, indices, updates = inputs
        rank = len(x.shape)
        at = wrapped(indices, t.size(x.shape[self.axis]))
        # dimensions that indices and x share are batch dimensions; where indices cover less, coordinates say so
        batch = tuple(d for d in range(rank) if d != self.axis and x.shape[d] == indices.shape[d])
        short = tuple(d for d in range(rank) if d != self.axis and d not in batch)
        line = _line_of(indices, self.axis)
        if line is not None and not short:
            at = wrapped(line, t.size(x.shape[self.axis]))
            rows = Scatter(_KINDS[self.reduction], batch, (self.axis,), (), (), (self.axis,), 1)
            return rows(x, at.node, updates)
        if not short:
            scatter = Scatter(_KINDS[self.reduction], (), (self.axis,), batch, batch, (self.axis,), rank)
            return scatter(x, at.node, updates)
        coordinates = [t.iota(indices.shape, d, at.dtype).expand(rank) for d in short]
        vectors = t.concat([at.expand(rank), *coordinates], rank)
        mapped = (self.axis, *short)
        scatter = Scatter(_KINDS[self.reduction], (), tuple(sorted(mapped)), batch, batch, mapped, rank)
        return scatter(x, vectors.node, updates)

    @classmethod
    def samples(cls) -> Samples:
        x = sample_values(3, 4, 5)
        for reduction in _KINDS:
            at = _indices(-3, 3, 2, 4, 5)
            yield cls(0, reduction), (x, at, sample_values(2, 4, 5) / 4)
            yield cls(1, reduction), (x, _indices(-4, 5, 2, 6, 3), sample_values(2, 6, 3))
            half = sample_values(3, 2, 5).astype(np.float16)
            yield cls(1, reduction), (x.astype(np.float16), _indices(0, 4, 3, 2, 5), half)
        yield cls(0, "add"), (sample_values(4, dtype=np.int64), np.asarray([0, 0, -1, 8]), np.asarray([5, 6, 7, 8]))
        yield cls(0), (sample_values(4), np.zeros((0,), np.int64), np.zeros((0,), np.float32))


def _check_updates(op: Op, reduction: str, x: TensorType, updates: TensorType) -> None:
    op.expect(reduction in _KINDS, f"reduction: expected one of {' '.join(_KINDS)}, got {reduction}")
    op.expect(updates.dtype == x.dtype, f"expected updates of {x.dtype}, got {updates}")


_COMBINE: dict[str, np.ufunc] = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def _combine(x: np.ndarray, at: tuple[np.ndarray, ...], updates: np.ndarray, reduction: str) -> np.ndarray:
    out = widen(x).copy()
    if reduction == "none":
        out[at] = widen(updates)
    else:
        _COMBINE[reduction].at(out, at, widen(updates))
    return round_to(out, dtype_of(x))


@dataclass(frozen=True)
class ScatterND(Op):
    """x with updates[i..., s...] combined in at x[*indices[i..., :], s...] (ONNX). reduction: none add mul max min."""

    name: ClassVar[str] = "scatter_nd"
    reduction: str = "none"

    def infer(self, *inputs: TensorType) -> TensorType:
        check_count(self, inputs, 3)
        x, indices, updates = inputs
        depth = _check_vectors(self, x, indices, 0)
        _check_updates(self, self.reduction, x, updates)
        want = (*indices.shape[:-1], *x.shape[depth:])
        self.expect(updates.shape == want, f"expected updates of shape {list(want)}, got {updates}")
        self.expect_constraints(*inputs)
        return x

    def constraints(self, *inputs: TensorType) -> Iterator[tuple[DimLike, str]]:
        x, indices, _ = inputs
        return _elements_at(x, range(int(indices.shape[-1])), indices.shape[:-1])

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        x, indices, updates = inputs
        sizes = np.asarray(x.shape[: indices.shape[-1]])
        at = wrap(indices, sizes)
        inside = ((at >= 0) & (at < sizes)).all(-1)
        return _combine(x, tuple(np.moveaxis(at[inside], -1, 0)), updates[inside], self.reduction)

    def lower(self, *inputs: Node) -> Node:
        x, indices, updates = inputs
        depth, rank = int(indices.shape[-1]), len(indices.shape)
        at = wrapped(indices, _size_vector(x.shape[:depth]))
        window = tuple(range(rank - 1, len(updates.shape)))
        mapped = tuple(range(depth))
        return Scatter(_KINDS[self.reduction], window, mapped, (), (), mapped, rank - 1)(x, at.node, updates)

    @classmethod
    def samples(cls) -> Samples:
        x = sample_values(4, 3, 2)
        for reduction in _KINDS:
            yield cls(reduction), (x, np.asarray([[0], [-1], [0], [9]]), sample_values(4, 3, 2) / 4)
            yield cls(reduction), (x, _indices(-2, 2, 3, 2, 3), sample_values(3, 2))
            yield (
                cls(reduction),
                (x.astype(np.int32), _indices(0, 3, 5, 2).astype(np.int32), sample_values(5, 2, dtype=np.int32)),
            )
