"""Layouts: where the elements of a value lie in a buffer."""

from __future__ import annotations

from itertools import pairwise

from ingot.ir.dims import DimLike, divides, negative
from ingot.ir.types import Box, Shape
from ingot.support.dataclass import dataclass


@dataclass(frozen=True)
class Place:
    """Where a view reads along an axis of its operand, or along a run of them as if they were one, in row-major order:
    for element i of the view at offset + the sum of step * i[axis] over `terms`, which are (axis, step).

    Of what pads: only every `spacing`-th of these numbers is an element's; and where one is below the first
    (outside[0]) or beyond the last (outside[1]), or between two of them, the view reads its padding value.
    """

    axes: tuple[int, ...]
    offset: DimLike
    terms: tuple[tuple[int, DimLike], ...]
    spacing: int = 1
    outside: tuple[bool, bool] = (False, False)

    @property
    def is_padded(self) -> bool:
        return self.spacing != 1 or any(self.outside)

    def along(self, x: Shape, shape: Shape) -> int | None:
        """The axis of the view, of `shape`, that runs through all of the operand's, of `x`, from its first to its last;
        None where none does."""
        sized = [t for t in self.terms if shape[t[0]] != 1] or self.terms
        if len(sized) != 1 or len(self.axes) != 1 or self.offset != 0 or self.is_padded:
            return None
        ((axis, step),) = sized
        return axis if step == 1 and x[self.axes[0]] == shape[axis] else None


IndexMap = tuple[Place, ...]  # each axis of the operand is in one of them


def along_axes(places: IndexMap, x: Shape, shape: Shape) -> tuple[int | None, ...]:
    """For each axis of the operand the axis of the view that is it; see `Place.along`."""
    found = {axis: place.along(x, shape) for place in places for axis in place.axes}
    return tuple(found[axis] for axis in range(len(x)))


def reshape_map(old: Shape, new: Shape) -> IndexMap:
    """Where a value of shape `new` reads one of shape `old` in row-major order."""
    places: list[Place] = []
    for olds, news in reshape_groups(old, new) or [(tuple(range(len(old))), tuple(range(len(new))))]:
        run = tuple(d for d in olds if old[d] != 1)
        terms: list[tuple[int, DimLike]] = []
        step: DimLike = 1
        for d in reversed(news if run else ()):
            terms.append((d, step))
            step = step * new[d]
        places += [Place((d,), 0, ()) for d in olds if d not in run]
        places += [Place(run, 0, tuple(reversed(terms)))] if run else []
    return tuple(places)


def read_box(places: IndexMap, x: Shape, shape: Shape, box: Box) -> Box | None:
    """The least box of the operand, of shape `x`, around what `box` of the view, of `shape`, reads. None where that is
    a part of a padded axis, or of several that are read as one."""
    read: list[tuple[DimLike, DimLike]] = [(0, d) for d in x]
    for place in places:
        if all(box[axis] == (0, shape[axis]) for axis, _ in place.terms):
            continue
        if place.is_padded or len(place.axes) != 1:
            return None
        low = high = place.offset
        for axis, step in place.terms:
            first, last = box[axis][0], box[axis][1] - 1
            ends = (last, first) if negative(step) else (first, last)
            low, high = low + ends[0] * step, high + ends[1] * step
        read[place.axes[0]] = (low, high + 1)
    return tuple(read)


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

    def viewed(self, shape: Shape, places: IndexMap) -> Layout | None:
        """The layout of a view of this value; None where no strides express it: it pads, or reads axes as one that do
        not lie as one."""
        strides: list[DimLike] = [0] * len(shape)
        offset = self.offset
        for place in places:
            if place.is_padded:
                return None
            if any(self.strides[a] != self.strides[b] * self.shape[b] for a, b in pairwise(place.axes)):
                return None
            own = self.strides[place.axes[-1]]
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
        return self.viewed(shape, reshape_map(self.shape, shape))


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
