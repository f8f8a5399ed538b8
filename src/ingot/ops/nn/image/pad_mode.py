"""Padding with elements of x."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from ingot.ir.dims import DimLike, dim_min, is_negative
from ingot.ir.node import Node, Op, Samples
from ingot.ir.types import Shape, TensorType
from ingot.ops.core.base import check_count, show_shape
from ingot.ops.core.shape import Reverse
from ingot.ops.nn import terms as t
from ingot.ops.nn.terms import Term, Value
from ingot.support.dataclass import dataclass


@dataclass(frozen=True)
class PadMode(Op):
    """x padded with its own elements, as numpy.pad. mode: reflect, edge or wrap. Negative low and high crop."""

    name: ClassVar[str] = "pad_mode"
    low: Shape
    high: Shape
    mode: str

    def infer(self, *inputs: TensorType) -> TensorType:
        check_count(self, inputs, 1)
        (x,) = inputs
        self.expect(self.mode in ("reflect", "edge", "wrap"), f"mode: expected reflect, edge or wrap, got {self.mode}")
        lengths = (len(self.low), len(self.high))
        self.expect(lengths == (x.rank, x.rank), f"expected {x.rank} lows and highs for {x}, got {lengths}")
        shape = tuple(d + a + b for d, a, b in zip(x.shape, self.low, self.high, strict=True))
        self.expect(not any(map(is_negative, shape)), f"{x} cropped below nothing: {show_shape(shape)}")
        self.expect_constraints(*inputs)
        return x.with_shape(shape)

    def constraints(self, *inputs: TensorType) -> Iterator[tuple[DimLike, str]]:
        for n, low, high in zip(inputs[0].shape, self.low, self.high, strict=True):
            if (low, high) != (0, 0):
                yield n - dim_min(n + low + high, 1), f"expected elements to pad with, got {inputs[0]}"

    def sources(self, size: DimLike, low: DimLike, out: DimLike) -> Value:
        """The input index of each output index."""
        position, n = t.arange(out) - t.size(low), t.size(size)
        if self.mode == "edge":
            return t.clamp(0, position, n - 1)
        if self.mode == "wrap":
            return t.mod(position, n)
        period = t.maximum(n * 2 - 2, 1)
        reflected = t.mod(position, period)
        return t.minimum(reflected, period - reflected) if size != 1 else reflected

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        (x,) = inputs
        for axis, (low, high) in enumerate(zip(self.low, self.high, strict=True)):
            size = x.shape[axis]
            index = np.arange(-int(low), size + int(high))
            if self.mode == "edge":
                index = np.clip(index, 0, size - 1)
            elif self.mode == "wrap":
                index = index % max(size, 1)
            else:
                period = max(2 * size - 2, 1)
                index = index % period
                index = np.where(index >= size, period - index, index)
            x = np.take(x, index, axis)
        return x

    def lower(self, *inputs: Node) -> Node:
        x = Term(inputs[0])
        for axis, (low, high) in enumerate(zip(self.low, self.high, strict=True)):
            size = x.shape[axis]
            if low == 0 and high == 0:
                continue
            pieces = self._pieces(x, axis, low, high)
            x = t.concat(pieces, axis) if pieces else t.take(x, self.sources(size, low, size + low + high), axis)
        return x.node

    def _pieces(self, x: Term, axis: int, low: DimLike, high: DimLike) -> list[Term]:
        """The pieces [low padding, x, high padding] along `axis`, if one piece each suffices and sizes are static."""
        size = x.shape[axis]
        if not isinstance(size, int) or not isinstance(low, int) or not isinstance(high, int) or min(low, high) < 0:
            return []

        def part(start: int, stop: int) -> Term:
            piece = x.slice(axis, start, stop)
            return piece.map(Reverse((axis,))) if self.mode == "reflect" else piece

        def edge(at: int, count: int) -> Term:
            shape = tuple(count if d == axis else n for d, n in enumerate(x.shape))
            return x.slice(axis, at, at + 1).broadcast(shape)

        match self.mode:
            case "edge" if size > 0:
                pads = edge(0, low), edge(size - 1, high)
            case "wrap" if max(low, high) <= size:
                pads = part(size - low, size), part(0, high)
            case "reflect" if max(low, high) < size:
                pads = part(1, low + 1), part(size - 1 - high, size - 1)
            case _:
                return []
        return [p for p in (pads[0], x, pads[1]) if p.shape[axis] != 0]

    @classmethod
    def samples(cls) -> Samples:
        x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
        for mode in ("reflect", "edge", "wrap"):
            yield cls((0, 1, 2), (1, 2, 3), mode), (x,)
            yield cls((0, 7, 0), (0, 11, 9), mode), (x,)
            yield cls((0, -1, 2), (0, 1, -3), mode), (x,)
            yield cls((2, 0), (1, 0), mode), (np.arange(3, dtype=np.int8).reshape(1, 3),)
            yield cls((1,), (1,), mode), (np.asarray([True, False]),)
