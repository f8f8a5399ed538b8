"""Selections: the largest elements, one-hot rows, triangles."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from ingot.ir.dims import DimLike
from ingot.ir.node import Node, Op, Samples, const
from ingot.ir.types import TensorType, i64
from ingot.ops.core.base import check_count, check_dims, widen
from ingot.ops.core.indexing import Sort
from ingot.ops.nn import terms as t
from ingot.ops.nn.index import sample_values, wrap_index_node, wrap_indices
from ingot.ops.nn.terms import Term
from ingot.support.dataclass import dataclass


@dataclass(frozen=True)
class TopK(Op):
    """The k largest (or smallest) elements along `axis` (non-negative) and their indices (i64), in order (ONNX TopK).

    Of equal elements the lower index comes first (ONNX). NaN is the largest (PyTorch). sorted: False permits any order;
    this implementation always sorts.
    """

    name: ClassVar[str] = "top_k"
    k: DimLike
    axis: int
    largest: bool = True
    sorted: bool = True

    def infer(self, *inputs: TensorType) -> tuple[TensorType, TensorType]:
        check_count(self, inputs, 1)
        (x,) = inputs
        check_dims(self, (self.axis,), x.rank, "axis")
        self.expect_constraints(*inputs)
        y = x.with_shape(tuple(self.k if d == self.axis else n for d, n in enumerate(x.shape)))
        return y, y.with_dtype(i64)

    def constraints(self, *inputs: TensorType) -> Iterator[tuple[DimLike, str]]:
        size = inputs[0].shape[self.axis]
        message = f"k: expected at most {size}, the size of axis {self.axis} of {inputs[0]}, got {self.k}"
        yield from ((d, message) for d in (self.k, size - self.k))

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        (x,) = inputs
        wide = widen(x)
        if self.largest:
            # sort the flipped x ascending, and flip the order: equal elements keep their order
            order = np.argsort(np.flip(wide, self.axis), axis=self.axis, kind="stable")
            order = x.shape[self.axis] - 1 - np.flip(order, self.axis)
        else:
            order = np.argsort(wide, axis=self.axis, kind="stable")
        indices = np.take(order, range(int(self.k)), self.axis).astype(np.int64)
        return np.take_along_axis(x, indices, self.axis), indices

    def lower(self, *inputs: Node) -> tuple[Node, Node]:
        (x,) = inputs
        positions = t.iota(x.shape, self.axis)
        values, order = Sort(self.axis, self.largest, count=self.k)(x, positions.node).results
        return values, order

    @classmethod
    def samples(cls) -> Samples:
        x = np.random.default_rng(0).integers(-4, 5, (3, 9, 2)).astype(np.float32)
        x[0, 3, 0], x[1, 5, 1], x[2, 0, 0], x[0, 8, 0] = np.nan, np.inf, -np.inf, np.nan
        for largest in (True, False):
            for axis in range(3):
                yield cls(2, axis, largest), (x,)
            yield cls(9, 1, largest), (x.astype(np.float16),)
            yield cls(3, 0, largest), (np.asarray([3, 200, 200, 0, 7], np.uint8),)
            yield cls(0, 0, largest), (np.asarray([3, 2], np.int64),)


@dataclass(frozen=True)
class OneHot(Op):
    """values[1] at the index along a new dimension `axis` of size `depth`, values[0] elsewhere (ONNX OneHot).

    Operands: indices, values[2]. Negative indices in [-depth, 0) count from the end; others out of range match nothing.
    Float indices truncate.
    """

    name: ClassVar[str] = "one_hot"
    axis: int
    depth: DimLike

    def infer(self, *inputs: TensorType) -> TensorType:
        check_count(self, inputs, 2)
        indices, values = inputs
        self.expect(indices.dtype.kind != "b", f"expected number indices, got {indices}")
        self.expect(0 <= self.axis <= indices.rank, f"axis: expected at most {indices.rank}, got {self.axis}")
        self.expect(values.shape == (2,), f"expected two values (off, on), got {values}")
        return values.with_shape((*indices.shape[: self.axis], self.depth, *indices.shape[self.axis :]))

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        indices, values = inputs
        index = np.expand_dims(wrap_indices(widen(indices), int(self.depth)), self.axis)
        axis_shape = [-1 if d == self.axis else 1 for d in range(index.ndim)]
        return np.where(index == np.arange(int(self.depth)).reshape(axis_shape), values[1], values[0])

    def lower(self, *inputs: Node) -> Node:
        indices, values = Term(inputs[0]), Term(inputs[1])
        if not indices.dtype.is_integer or indices.dtype.bits < 64:
            indices = indices.cast(i64)
        index = wrap_index_node(indices.node, t.size(self.depth)).expand(self.axis)
        shape = (*inputs[0].shape[: self.axis], self.depth, *inputs[0].shape[self.axis :])
        matches = t.iota(shape, self.axis, index.dtype).equals(index)
        off_value, on_value = values.slice(0, 0, 1).reshape(()), values.slice(0, 1, 2).reshape(())
        return t.term(t.where(matches, on_value, off_value)).node

    @classmethod
    def samples(cls) -> Samples:
        indices = np.asarray([[0, 3, -1], [9, -4, -9]])
        yield cls(2, 4), (indices, np.asarray([0, 1], np.float32))
        yield cls(0, 4), (indices, np.asarray([5, -5], np.int32))
        yield cls(1, 4), (indices.astype(np.int8), np.asarray([False, True]))
        yield cls(0, 3), (np.asarray(2, np.uint8), np.asarray([0, 1], np.float16))
        yield cls(1, 3), (np.asarray([0.9, 2, 1], np.float32), np.asarray([0, 1], np.float32))


@dataclass(frozen=True)
class Trilu(Op):
    """The upper (or lower) triangle of x[..., m, n], zeros elsewhere (ONNX Trilu, numpy.triu).

    k: the diagonal that bounds the triangle; k > 0 is above the main diagonal.
    """

    name: ClassVar[str] = "trilu"
    upper: bool = True
    k: int = 0

    def infer(self, *inputs: TensorType) -> TensorType:
        check_count(self, inputs, 1)
        self.expect(inputs[0].rank >= 2, f"expected an operand of rank 2 or more, got {inputs[0]}")
        return inputs[0]

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        (x,) = inputs
        rows, cols = x.shape[-2:]
        distance = np.arange(cols) - np.arange(rows)[:, None]
        return np.where(distance >= self.k if self.upper else distance <= self.k, x, np.zeros((), x.dtype))

    def lower(self, *inputs: Node) -> Node:
        x = Term(inputs[0])
        matrix_shape = x.shape[-2:]
        row, col = t.iota(matrix_shape, 0) + self.k, t.iota(matrix_shape, 1)
        in_triangle = col >= row if self.upper else col <= row
        zero = Term(const(np.zeros((), x.dtype.numpy)))
        return t.term(t.where(in_triangle, x, zero)).node

    @classmethod
    def samples(cls) -> Samples:
        for upper in (True, False):
            for k in (-6, -1, 0, 2, 9):
                yield cls(upper, k), (sample_values(2, 4, 5) + 10,)
            yield cls(upper), (sample_values(4, 3) > 2,)
            yield cls(upper), (sample_values(3, 3).astype(np.float16),)
