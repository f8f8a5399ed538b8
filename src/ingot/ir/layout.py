"""Layouts: where the elements of a value lie in a buffer."""

from __future__ import annotations

from itertools import pairwise

from ingot.ir.dims import DimLike, divides
from ingot.ir.types import Shape
from ingot.support.dataclass import dataclass


@dataclass(frozen=True)
class Place:
    """Where a view reads along one axis of its operand: for element i of the view at offset + the sum of step * i[axis]
    over `terms`, which are (axis, step)."""

    offset: DimLike
    terms: tuple[tuple[int, int], ...]


IndexMap = tuple[Place, ...]  # one for each axis of the operand


@dataclass(frozen=True)
class Layout:
    """Element i0, i1, ... of a value lies at `offset + sum(i * stride)`, counted in elements from the buffer's start.

    A contiguous layout has row-major strides and offset 0. Views (a slice of a concatenation, the inside of a
    halo-padded buffer) have others.
    """

    shape: Shape
    strides: tuple[DimLike, ...]
    offset: DimLike = 0

    @staticmethod
    def contiguous(shape: Shape) -> Layout:
        strides: list[DimLike] = []
        step: DimLike = 1
        for d in reversed(shape):
            strides.append(step)
            step = step * d
        return Layout(shape, tuple(reversed(strides)))

    @property
    def is_contiguous(self) -> bool:
        """Row-major without gaps from the buffer's start; strides of dimensions of size 1 do not matter."""
        dense = Layout.contiguous(self.shape)
        same = (a == b or d == 1 for a, b, d in zip(self.strides, dense.strides, self.shape, strict=True))
        return self.offset == 0 and all(same)

    @property
    def span(self) -> DimLike:
        """Elements from the buffer's start to the end of the last row, for row-major strides with or without gaps."""
        return self.offset + (self.strides[0] * self.shape[0] if self.shape else 1)

    def viewed(self, shape: Shape, places: IndexMap) -> Layout:
        """The layout of a view of this value."""
        strides: list[DimLike] = [0] * len(shape)
        offset = self.offset
        for own, place in zip(self.strides, places, strict=True):
            offset = offset + own * place.offset
            for axis, step in place.terms:
                strides[axis] = strides[axis] + own * step
        return Layout(shape, tuple(strides), offset)

    def slice(self, start: tuple[DimLike, ...], shape: Shape, steps: tuple[int, ...] | None = None) -> Layout:
        """The box of `shape` at `start`, every `steps`-th element."""
        offset = self.offset
        for at, stride in zip(start, self.strides, strict=True):
            offset = offset + stride * at
        steps = steps or (1,) * len(shape)
        strides = tuple(s * n for s, n in zip(self.strides, steps, strict=True))
        return Layout(shape, strides, offset)

    def transpose(self, permutation: tuple[int, ...]) -> Layout:
        return Layout(
            tuple(self.shape[p] for p in permutation), tuple(self.strides[p] for p in permutation), self.offset
        )

    def broadcast(self, shape: Shape, dims: tuple[int, ...]) -> Layout:
        """As StableHLO's broadcast_in_dim: new and stretched dimensions have stride 0."""
        strides: list[DimLike] = [0] * len(shape)
        for own, d in enumerate(dims):
            if self.shape[own] == shape[d]:
                strides[d] = self.strides[own]
        return Layout(shape, tuple(strides), self.offset)

    def reshape(self, shape: Shape) -> Layout | None:
        """The same elements in row-major order under another shape, or None where no strides express it."""
        groups = reshape_groups(self.shape, shape)
        if groups is None:
            return None
        strides: list[DimLike] = [0] * len(shape)
        for old, new in groups:
            own = [d for d in old if self.shape[d] != 1]
            for a, b in pairwise(own):
                if self.strides[a] != self.strides[b] * self.shape[b]:
                    return None
            step: DimLike = self.strides[own[-1]] if own else 0
            for d in reversed(new):
                strides[d] = step
                step = step * shape[d]
        return Layout(shape, tuple(strides), self.offset)


Group = tuple[tuple[int, ...], tuple[int, ...]]


def reshape_groups(old: Shape, new: Shape) -> list[Group] | None:
    """The finest pairing of runs of old dimensions with runs of new ones of equal size; None if they do not align."""
    if any(d == 0 for d in (*old, *new)):
        return [(tuple(range(len(old))), tuple(range(len(new))))]
    groups: list[Group] = []
    i = j = 0
    while i < len(old) or j < len(new):
        i0, j0 = i, j
        a: DimLike = 1
        b: DimLike = 1
        if i < len(old):
            a, i = old[i], i + 1
        if j < len(new):
            b, j = new[j], j + 1
        while a != b:
            if i < len(old) and (divides(b, a) is not None or j == len(new)):
                a, i = a * old[i], i + 1
            elif j < len(new) and (divides(a, b) is not None or i == len(old)):
                b, j = b * new[j], j + 1
            elif i < len(old) and j < len(new):
                a, i, b, j = a * old[i], i + 1, b * new[j], j + 1
            else:
                return None
        groups.append((tuple(range(i0, i)), tuple(range(j0, j))))
    return groups
