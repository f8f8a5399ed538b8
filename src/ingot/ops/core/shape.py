"""Primitives that only move data: broadcast, reshape, transpose, slice, windows, pad, concatenate, reverse."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import ClassVar

import numpy as np

from ingot.ir.dims import DimLike, dim_max, dim_min, is_at_most, is_negative, product
from ingot.ir.layout import AxisMap, IndexMap, bounding_box, reshape_map
from ingot.ir.node import Const, Cropped, Node, Samples
from ingot.ir.types import Box, Shape, TensorType
from ingot.ops.core import samples as s
from ingot.ops.core.base import (
    Category,
    CoreOp,
    Perm,
    box_shape,
    check_count,
    check_dims,
    dilated_size,
    dilation_constraints,
    expect_equal,
    full_box,
    inverse,
    permute,
    show_shape,
)
from ingot.support.dataclass import dataclass
from ingot.support.errors import ShapeError


class View(CoreOp):
    """Base: each element of the result is an element of the first operand (or padding), by `index_map`."""

    category: ClassVar[Category] = Category.VIEW

    def index_map(self, x: Shape, shape: Shape) -> IndexMap:
        """The map from indices of the result, of `shape`, to indices of the first operand, of shape `x`."""
        raise NotImplementedError

    def op_for_box(self, box: Box) -> CoreOp | None:
        """The op that computes `box` of the result from the elements that it reads; None if there is none."""
        return None

    def cropped(self, box: Box, *inputs: TensorType) -> Cropped:
        x, *values = inputs
        result, op = self.infer(*inputs), self.op_for_box(box)
        assert isinstance(result, TensorType)
        source_box = bounding_box(self.index_map(x.shape, result.shape), x.shape, result.shape, box)
        return None if op is None or source_box is None else (op, (source_box, *(full_box(v.shape) for v in values)))


@dataclass(frozen=True)
class BroadcastInDim(View):
    """result[i0, i1, ...] = x[i_dims[0], i_dims[1], ...]; axes of size 1 in x repeat (StableHLO broadcast_in_dim)."""

    name: ClassVar[str] = "broadcast_in_dim"
    rearranges: ClassVar[bool] = True
    duplicable: ClassVar[bool] = True
    shape: Shape
    dims: tuple[int, ...]

    def infer(self, *inputs: TensorType) -> TensorType:
        check_count(self, inputs, 1)
        (x,) = inputs
        self.expect(len(self.dims) == x.rank, f"dims: expected one for each of {x.rank} axes, got {self.dims}")
        check_dims(self, self.dims, len(self.shape), "dims")
        smallest = min((d for d in self.shape if isinstance(d, int)), default=0)
        self.expect(smallest >= 0, f"expected sizes of 0 or more, got {show_shape(self.shape)}")
        for axis, d in enumerate(self.dims):
            size = x.shape[axis]
            self.expect(
                size == 1 or size == self.shape[d],
                f"axis {axis} of {x}: expected 1 or {self.shape[d]} (axis {d} of {show_shape(self.shape)}), got {size}",
            )
        return x.with_shape(self.shape)

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        (x,) = inputs
        shape = tuple(int(d) for d in self.shape)
        order = sorted(range(x.ndim), key=lambda axis: self.dims[axis])
        aligned_shape = [1] * len(shape)
        for axis in order:
            aligned_shape[self.dims[axis]] = x.shape[axis]
        return np.broadcast_to(x.transpose(order).reshape(aligned_shape), shape).copy()

    def index_map(self, x: Shape, shape: Shape) -> IndexMap:
        axes = enumerate(zip(x, self.dims, strict=True))
        return tuple(AxisMap((axis,), 0, ((d, 1),) if size == shape[d] else ()) for axis, (size, d) in axes)

    def permuted(self, perm: Perm, *inputs: TensorType) -> tuple[CoreOp, Perm] | None:
        """The result takes the order of x; new dimensions stay after the dimension of x that precedes them."""
        dims = permute(self.dims, perm)
        if list(self.dims) != sorted(self.dims):
            return replace(self, dims=dims), tuple(range(len(self.shape)))
        order = [d for d in range(len(self.shape)) if not self.dims or d < self.dims[0]]
        for start in dims:
            end = next((d for d in self.dims if d > start), len(self.shape))
            order += range(start, end)
        return BroadcastInDim(permute(self.shape, tuple(order)), tuple(map(order.index, dims))), tuple(order)

    def op_for_box(self, box: Box) -> CoreOp | None:
        return BroadcastInDim(box_shape(box), self.dims)

    def absorb_transpose(self, perm: Perm) -> CoreOp | None:
        new_dim = inverse(perm)
        return BroadcastInDim(permute(self.shape, perm), tuple(new_dim[d] for d in self.dims))

    @classmethod
    def samples(cls) -> Samples:
        yield cls((2, 3, 4), (2,)), (s.iota(4),)
        yield cls((2, 3, 4), (0, 2)), (s.iota(2, 1),)
        yield cls((2, 3), (1, 0)), (s.iota(3, 2),)
        yield cls((2, 2), ()), (np.asarray(3, np.int64),)
        yield cls((0, 3), (1,)), (s.iota(3),)
        yield cls((), ()), (np.asarray(True),)


@dataclass(frozen=True)
class Reshape(View):
    """The elements of x in row-major order, in another `shape` of the same size."""

    name: ClassVar[str] = "reshape"
    rearranges: ClassVar[bool] = True
    permutes: ClassVar[bool] = True
    duplicable: ClassVar[bool] = True
    shape: Shape

    def infer(self, *inputs: TensorType) -> TensorType:
        check_count(self, inputs, 1)
        (x,) = inputs
        size, shape = product(self.shape), show_shape(self.shape)
        expect_equal(self, (x.size,), (size,), f"expected {x.size} elements as in {x}, got {size} in {shape}")
        return x.with_shape(self.shape)

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        return inputs[0].reshape(tuple(int(d) for d in self.shape))

    def index_map(self, x: Shape, shape: Shape) -> IndexMap:
        return reshape_map(x, shape)

    def op_for_box(self, box: Box) -> CoreOp | None:
        return Reshape(box_shape(box))

    def cropped(self, box: Box, *inputs: TensorType) -> Cropped:
        """Only if the elements read are contiguous: their bounding box has no more elements than `box`."""
        result = super().cropped(box, *inputs)
        source_box = result and result[1][0]
        if (
            not source_box
            or any(map(is_negative, box_shape(source_box)))
            or product(box_shape(source_box)) != product(box_shape(box))
        ):
            return None
        return result

    @classmethod
    def samples(cls) -> Samples:
        yield cls((6, 4)), (s.iota(2, 3, 4),)
        yield cls(()), (s.iota(1, 1),)
        yield cls((0, 7)), (s.iota(3, 0),)


@dataclass(frozen=True)
class Transpose(View):
    """The axes of x permuted: result.shape[i] = x.shape[permutation[i]]."""

    name: ClassVar[str] = "transpose"
    rearranges: ClassVar[bool] = True
    permutes: ClassVar[bool] = True
    duplicable: ClassVar[bool] = True
    permutation: Perm

    def infer(self, *inputs: TensorType) -> TensorType:
        check_count(self, inputs, 1)
        (x,) = inputs
        self.expect(
            sorted(self.permutation) == list(range(x.rank)),
            f"expected a permutation of {x.rank} axes, got {self.permutation}",
        )
        return x.with_shape(permute(x.shape, self.permutation))

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        return inputs[0].transpose(self.permutation)

    def index_map(self, x: Shape, shape: Shape) -> IndexMap:
        return tuple(AxisMap((axis,), 0, ((d, 1),)) for axis, d in enumerate(inverse(self.permutation)))

    def permuted(self, perm: Perm, *inputs: TensorType) -> tuple[CoreOp, Perm] | None:
        new_dim = inverse(perm)
        return Transpose(tuple(new_dim[p] for p in self.permutation)), tuple(range(len(perm)))

    def op_for_box(self, box: Box) -> CoreOp | None:
        return self

    def absorb_transpose(self, perm: Perm) -> CoreOp | None:
        return Transpose(permute(self.permutation, perm))

    @classmethod
    def samples(cls) -> Samples:
        yield cls((2, 0, 1)), (s.iota(2, 3, 4),)
        yield cls(()), (s.iota(),)
        yield cls((1, 0)), (s.iota(0, 3, dtype=np.int8),)


@dataclass(frozen=True)
class Slice(View):
    """x[start:limit:strides] on every axis; 0 <= start <= limit <= size, strides >= 1."""

    name: ClassVar[str] = "slice"
    rearranges: ClassVar[bool] = True
    duplicable: ClassVar[bool] = True
    start: Shape
    limit: Shape
    strides: tuple[int, ...]

    def infer(self, *inputs: TensorType) -> TensorType:
        check_count(self, inputs, 1)
        (x,) = inputs
        self.expect(
            len(self.start) == len(self.limit) == len(self.strides) == x.rank,
            f"expected {x.rank} starts, limits and strides, got {self.start}, {self.limit}, {self.strides}",
        )
        self.expect(min(self.strides, default=1) >= 1, f"expected strides >= 1, got {self.strides}")
        self.expect_constraints(*inputs)
        return x.with_shape(self._shape)

    def constraints(self, *inputs: TensorType) -> Iterator[tuple[DimLike, str]]:
        for axis, (lo, hi, size) in enumerate(zip(self.start, self.limit, inputs[0].shape, strict=True)):
            message = f"axis {axis}: expected 0 <= start <= limit <= {size}, got {lo}:{hi}"
            yield from ((d, message) for d in (lo, hi - lo, size - hi))

    @property
    def _shape(self) -> Shape:
        parts = zip(self.start, self.limit, self.strides, strict=True)
        return tuple(hi - lo if step == 1 else (hi - lo + step - 1) // step for lo, hi, step in parts)

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        parts = zip(self.start, self.limit, self.strides, strict=True)
        return inputs[0][tuple(slice(int(lo), int(hi), step) for lo, hi, step in parts)].copy()

    def index_map(self, x: Shape, shape: Shape) -> IndexMap:
        starts = enumerate(zip(self.start, self.strides, strict=True))
        return tuple(AxisMap((d,), lo, ((d, step),)) for d, (lo, step) in starts)

    def permuted(self, perm: Perm, *inputs: TensorType) -> tuple[CoreOp, Perm] | None:
        return Slice(permute(self.start, perm), permute(self.limit, perm), permute(self.strides, perm)), perm

    def cropped(self, box: Box, *inputs: TensorType) -> Cropped:
        """A complete axis is read up to `limit`: of a symbolic size the last element read is unknown."""
        source_box: list[tuple[DimLike, DimLike]] = []
        for axis_range, size, start, limit, step in zip(
            box, self._shape, self.start, self.limit, self.strides, strict=True
        ):
            low, high = axis_range
            if axis_range == (0, size):
                source_box.append((start, limit))
            elif step == 1:
                source_box.append((start + low, start + high))
            elif isinstance(low, int) and isinstance(high, int) and high > low:
                source_box.append((start + low * step, start + (high - 1) * step + 1))
            else:
                return None
        return Slice((0,) * len(source_box), box_shape(tuple(source_box)), self.strides), (tuple(source_box),)

    @classmethod
    def samples(cls) -> Samples:
        yield cls((1, 0, 2), (4, 3, 9), (2, 1, 3)), (s.iota(5, 3, 9),)
        yield cls((2,), (2,), (1,)), (s.iota(4, dtype=np.int64),)
        yield cls((), (), ()), (s.iota(),)


@dataclass(frozen=True)
class Windows(View):
    """All windows of `size` elements along `dim`: y[.., i, j, ..] = x[.., i * step + j * dilation, ..].

    Dimension `dim` of the result is the number of windows that fit, dimension `dim` + 1 has `size` elements.
    """

    name: ClassVar[str] = "windows"
    duplicable: ClassVar[bool] = True
    dim: int
    size: int
    step: int = 1
    dilation: int = 1

    def infer(self, *inputs: TensorType) -> TensorType:
        check_count(self, inputs, 1)
        (x,) = inputs
        check_dims(self, (self.dim,), x.rank, "dim")
        self.expect(
            min(self.size, self.step, self.dilation) >= 1,
            f"expected a size, a step and a dilation >= 1, got {self.size}, {self.step}, {self.dilation}",
        )
        self.expect_constraints(*inputs)
        room = self._room(x)
        return x.with_shape((*x.shape[: self.dim], room // self.step + 1, self.size, *x.shape[self.dim + 1 :]))

    def _room(self, x: TensorType) -> DimLike:
        """How much longer the axis is than one window."""
        return x.shape[self.dim] - self.dilation * (self.size - 1) - 1

    def constraints(self, *inputs: TensorType) -> Iterator[tuple[DimLike, str]]:
        yield self._room(inputs[0]), f"expected a window of {self.size} to fit {inputs[0]} along axis {self.dim}"

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        (x,) = inputs
        count = (x.shape[self.dim] - self.dilation * (self.size - 1) - 1) // self.step + 1
        index = np.arange(count)[:, None] * self.step + np.arange(self.size) * self.dilation
        return np.take(x, index, self.dim)

    def index_map(self, x: Shape, shape: Shape) -> IndexMap:
        index_places = [AxisMap((d,), 0, ((d + (d > self.dim), 1),)) for d in range(len(x))]
        index_places[self.dim] = AxisMap((self.dim,), 0, ((self.dim, self.step), (self.dim + 1, self.dilation)))
        return tuple(index_places)

    @classmethod
    def samples(cls) -> Samples:
        yield cls(0, 3), (s.iota(7),)
        yield cls(1, 3, 2, 2), (s.iota(2, 11, 5),)
        yield cls(2, 4, 4), (s.iota(3, 2, 9, dtype=np.int64),)
        yield cls(1, 5, 1, 3), (s.iota(2, 13),)
        yield cls(0, 1, 5), (s.iota(6, 0),)


@dataclass(frozen=True)
class Pad(View):
    """x with `value` around it, and `interior` copies between neighbors; negative low and high crop (StableHLO pad).

    An axis of symbolic size n with an interior must have at least one element: its result size is
    (n - 1) * (interior + 1) + low + high + 1, while a static size 0 stays 0 before low and high are added.
    """

    name: ClassVar[str] = "pad"
    holds_operands: ClassVar[bool] = True
    low: Shape
    high: Shape
    interior: tuple[int, ...]

    def infer(self, *inputs: TensorType) -> TensorType:
        check_count(self, inputs, 2)
        x, value = inputs
        self.expect(value == TensorType(x.dtype), f"expected a padding value {x.dtype}[], got {value}")
        self.expect(
            len(self.low) == len(self.high) == len(self.interior) == x.rank,
            f"expected {x.rank} lows, highs and interiors, got {self.low}, {self.high}, {self.interior}",
        )
        self.expect(all(i >= 0 for i in self.interior), f"expected interiors >= 0, got {self.interior}")
        result_shape = tuple(
            dilated_size(size, i + 1) + lo + hi
            for size, lo, hi, i in zip(x.shape, self.low, self.high, self.interior, strict=True)
        )
        self.expect(not any(map(is_negative, result_shape)), f"{x} cropped below nothing: {show_shape(result_shape)}")
        return x.with_shape(result_shape)

    def constraints(self, *inputs: TensorType) -> Iterator[tuple[DimLike, str]]:
        return dilation_constraints(inputs[0].shape, [i + 1 for i in self.interior])

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        x, value = inputs
        return pad_array(x, [int(d) for d in self.low], [int(d) for d in self.high], self.interior, value)

    def permuted(self, perm: Perm, *inputs: TensorType) -> tuple[CoreOp, Perm] | None:
        return Pad(permute(self.low, perm), permute(self.high, perm), permute(self.interior, perm)), perm

    def index_map(self, x: Shape, shape: Shape) -> IndexMap:
        pads = enumerate(zip(self.low, self.high, self.interior, strict=True))
        return tuple(AxisMap((d,), -lo, ((d, 1),), i + 1, (lo != 0, hi != 0)) for d, (lo, hi, i) in pads)

    def op_for_box(self, box: Box) -> CoreOp | None:
        return self

    def operand_offsets(self, *inputs: TensorType) -> tuple[tuple[int, Shape], ...]:
        return ((0, self.low),)

    @classmethod
    def samples(cls) -> Samples:
        v = np.asarray(-1, np.float32)
        yield cls((1, 0), (2, 3), (0, 2)), (s.iota(3, 4), v)
        yield cls((-1, 1), (0, -2), (1, 0)), (s.iota(3, 4), v)
        yield cls((2,), (1,), (0,)), (s.iota(0), v)
        yield cls((-5,), (1,), (1,)), (s.iota(3), v)
        yield cls((), (), ()), (s.iota(), v)


def pad_array(
    x: np.ndarray, low: Sequence[int], high: Sequence[int], interior: Sequence[int], value: np.ndarray
) -> np.ndarray:
    """StableHLO pad on a numpy array."""
    sizes = [int(dilated_size(n, i + 1)) for n, i in zip(x.shape, interior, strict=True)]
    full = np.full([n + max(lo, 0) + max(hi, 0) for n, lo, hi in zip(sizes, low, high, strict=True)], value, x.dtype)
    full[tuple(slice(max(lo, 0), max(lo, 0) + n, i + 1) for n, lo, i in zip(sizes, low, interior, strict=True))] = x
    crop = (slice(max(-lo, 0), n - max(-hi, 0)) for n, lo, hi in zip(full.shape, low, high, strict=True))
    return full[tuple(crop)].copy()


def fill_byte(pad: Node) -> int | None:
    """The byte that every byte of a Pad's value equals, for memset (0 for 0.0); None if its bytes differ."""
    value = pad.inputs[1].op
    values = set(value.value.tobytes()) if isinstance(value, Const) else set[int]()
    return values.pop() if len(values) == 1 else None


@dataclass(frozen=True)
class Concat(CoreOp):
    """The operands joined along `dimension` (StableHLO concatenate)."""

    name: ClassVar[str] = "concatenate"
    holds_operands: ClassVar[bool] = True
    category: ClassVar[Category] = Category.VIEW
    dimension: int

    def infer(self, *inputs: TensorType) -> TensorType:
        self.expect(len(inputs) > 0, "expected at least one operand, got none")
        first = inputs[0]
        check_dims(self, (self.dimension,), first.rank, "dimension")
        total: DimLike = 0
        for i, t in enumerate(inputs):
            self.expect(t.dtype == first.dtype, f"operand {i}: expected {first.dtype}, got {t.dtype}")
            self.expect(t.rank == first.rank, f"operand {i}: expected rank {first.rank}, got {t}")
            for axis, (expected, got) in enumerate(zip(first.shape, t.shape, strict=True)):
                if axis != self.dimension and expected != got:
                    message = f"{self.name}: operand {i} differs on axis {axis}: expected {expected}, got {got}"
                    raise ShapeError(f"{message}; only axis {self.dimension} may differ").between((expected, got))
            total = total + t.shape[self.dimension]
        return first.with_shape((*first.shape[: self.dimension], total, *first.shape[self.dimension + 1 :]))

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        return np.concatenate(inputs, self.dimension)

    def permuted(self, perm: Perm, *inputs: TensorType) -> tuple[CoreOp, Perm] | None:
        return Concat(inverse(perm)[self.dimension]), perm

    def cropped(self, box: Box, *inputs: TensorType) -> Cropped:
        """Operands outside `box` are not read."""
        low, high = box[self.dimension]
        boxes: list[Box | None] = []
        start: DimLike = 0
        for x in inputs:
            end = start + x.shape[self.dimension]
            if is_at_most(high, start) or is_at_most(end, low):
                boxes.append(None)
            elif not (is_at_most(low, start) or is_at_most(start, low)) or not (
                is_at_most(end, high) or is_at_most(high, end)
            ):
                return None
            else:
                axis_range = (dim_max(low, start) - start, dim_min(high, end) - start)
                boxes.append((*box[: self.dimension], axis_range, *box[self.dimension + 1 :]))
            start = end
        return (self, tuple(boxes)) if any(b is not None for b in boxes) else None

    def operand_offsets(self, *inputs: TensorType) -> tuple[tuple[int, Shape], ...]:
        starts = accumulate((x.shape[self.dimension] for x in inputs[:-1]), initial=0)
        return tuple((i, self._offset(start, inputs[i].rank)) for i, start in enumerate(starts))

    def _offset(self, start: DimLike, rank: int) -> Shape:
        return tuple(start if d == self.dimension else 0 for d in range(rank))

    @classmethod
    def samples(cls) -> Samples:
        yield cls(1), (s.iota(2, 3), s.iota(2, 0), s.iota(2, 5))
        yield cls(0), (s.iota(4, dtype=np.int8),)


@dataclass(frozen=True)
class Reverse(View):
    """x with the order of elements reversed along `dims`."""

    name: ClassVar[str] = "reverse"
    rearranges: ClassVar[bool] = True
    permutes: ClassVar[bool] = True
    dims: tuple[int, ...]

    def infer(self, *inputs: TensorType) -> TensorType:
        check_count(self, inputs, 1)
        check_dims(self, self.dims, inputs[0].rank, "dims")
        return inputs[0]

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        return np.flip(inputs[0], self.dims).copy()

    def index_map(self, x: Shape, shape: Shape) -> IndexMap:
        reversed_places = {d: AxisMap((d,), x[d] - 1, ((d, -1),)) for d in self.dims}
        return tuple(reversed_places.get(d) or AxisMap((d,), 0, ((d, 1),)) for d in range(len(x)))

    def permuted(self, perm: Perm, *inputs: TensorType) -> tuple[CoreOp, Perm] | None:
        return Reverse(tuple(sorted(inverse(perm)[d] for d in self.dims))), perm

    def op_for_box(self, box: Box) -> CoreOp | None:
        return self

    @classmethod
    def samples(cls) -> Samples:
        yield cls((0, 2)), (s.iota(2, 3, 4),)
        yield cls(()), (s.iota(),)
