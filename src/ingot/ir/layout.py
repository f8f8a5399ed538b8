"""Layouts: the offsets and strides of values in buffers, and the index maps of views."""

from __future__ import annotations

from dataclasses import field
from itertools import pairwise

from ingot.ir.dims import DimLike, exact_quotient, is_negative
from ingot.ir.types import Box, Shape
from ingot.support.dataclass import dataclass


@dataclass(frozen=True)
class AxisMap:
    """The index that a view reads along an axis of its operand, or along consecutive axes merged into one.

    Element i of the view reads index offset + the sum of step * i[axis] over `terms`, which are (axis, step).
    spacing, padded_ends: of views that pad. Indices count `spacing` for each element of the operand; an index between
    two elements, before the first (if padded_ends[0]) or after the last (if padded_ends[1]) reads the padding value.
    """

    axes: tuple[int, ...]
    offset: DimLike
    terms: tuple[tuple[int, DimLike], ...]
    spacing: int = 1
    padded_ends: tuple[bool, bool] = (False, False)

    @property
    def is_padded(self) -> bool:
        return self.spacing != 1 or any(self.padded_ends)

    def identity_axis(self, x: Shape, shape: Shape) -> int | None:
        """The axis of the view that is this axis of the operand, in full and in order; None if there is none.

        x, shape: of the operand and of the view.
        """
        long_terms = [t for t in self.terms if shape[t[0]] != 1] or self.terms
        if len(long_terms) != 1 or len(self.axes) != 1 or self.offset != 0 or self.is_padded:
            return None
        ((axis, step),) = long_terms
        return axis if step == 1 and x[self.axes[0]] == shape[axis] else None


IndexMap = tuple[AxisMap, ...]  # each axis of the operand is in one of them


def identity_axes(places: IndexMap, x: Shape, shape: Shape) -> tuple[int | None, ...]:
    """For each axis of the operand the equal axis of the view; see `AxisMap.identity_axis`."""
    view_axes = {axis: place.identity_axis(x, shape) for place in places for axis in place.axes}
    return tuple(view_axes[axis] for axis in range(len(x)))


def reshape_map(old: Shape, new: Shape) -> IndexMap:
    """The index map of a reshape from `old` to `new`."""
    places: list[AxisMap] = []
    for olds, news in reshape_groups(old, new) or [(tuple(range(len(old))), tuple(range(len(new))))]:
        axes = tuple(d for d in olds if old[d] != 1)
        terms: list[tuple[int, DimLike]] = []
        step: DimLike = 1
        for d in reversed(news if axes else ()):
            terms.append((d, step))
            step = step * new[d]
        places += [AxisMap((d,), 0, ()) for d in olds if d not in axes]
        places += [AxisMap(axes, 0, tuple(reversed(terms)))] if axes else []
    return tuple(places)


def bounding_box(places: IndexMap, x: Shape, shape: Shape, box: Box) -> Box | None:
    """The bounding box of the elements of the operand that `box` of a view reads. None for a part of a padded axis or
    of merged axes.

    x, shape: of the operand and of the view.
    """
    boxes: list[tuple[DimLike, DimLike]] = [(0, d) for d in x]
    for place in places:
        if all(box[axis] == (0, shape[axis]) for axis, _ in place.terms):
            continue
        if place.is_padded or len(place.axes) != 1:
            return None
        low = high = place.offset
        for axis, step in place.terms:
            first, last = box[axis][0], box[axis][1] - 1
            ends = (last, first) if is_negative(step) else (first, last)
            low, high = low + ends[0] * step, high + ends[1] * step
        boxes[place.axes[0]] = (low, high + 1)
    return tuple(boxes)


@dataclass(frozen=True)
class Layout:
    """Element i0, i1, ... of a value is at `offset + sum(i * stride)`, in elements from the start of the buffer.

    A contiguous layout has row-major strides and offset 0. Views (a slice of a concatenation, the interior of a buffer
    with a halo) have others.

    panel: of a constant that a kernel before reads in panels of so many columns; who can read these, too, shares them.
    0: of others, and of views.
    """

    shape: Shape
    strides: tuple[DimLike, ...]
    offset: DimLike = 0
    panel: int = field(default=0, repr=False)

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
        """Whether elements are row-major without gaps from the start of the buffer; strides of size-1 axes do not
        count."""
        dense = Layout.contiguous(self.shape)
        matches = (a == b or d == 1 for a, b, d in zip(self.strides, dense.strides, self.shape, strict=True))
        return self.offset == 0 and all(matches)

    @property
    def span(self) -> DimLike:
        """Elements from the buffer's start to the end of the last row, for row-major strides with or without gaps."""
        return self.offset + (self.strides[0] * self.shape[0] if self.shape else 1)

    def view(self, shape: Shape, places: IndexMap) -> Layout | None:
        """The layout of a view of this value; None where strides cannot express it: it pads, or merges axes that are
        not contiguous."""
        strides: list[DimLike] = [0] * len(shape)
        offset = self.offset
        for place in places:
            if place.is_padded:
                return None
            if any(self.strides[a] != self.strides[b] * self.shape[b] for a, b in pairwise(place.axes)):
                return None
            axis_stride = self.strides[place.axes[-1]]
            offset = offset + axis_stride * place.offset
            for axis, step in place.terms:
                strides[axis] = strides[axis] + axis_stride * step
        return Layout(shape, tuple(strides), offset)

    def slice(self, start: tuple[DimLike, ...], shape: Shape, steps: tuple[int, ...] | None = None) -> Layout:
        """The box of `shape` from `start` on, of every `steps`-th element."""
        offset = self.offset
        for begin, stride in zip(start, self.strides, strict=True):
            offset = offset + stride * begin
        steps = steps or (1,) * len(shape)
        strides = tuple(s * n for s, n in zip(self.strides, steps, strict=True))
        return Layout(shape, strides, offset)

    def transpose(self, permutation: tuple[int, ...]) -> Layout:
        return Layout(
            tuple(self.shape[p] for p in permutation), tuple(self.strides[p] for p in permutation), self.offset
        )

    def broadcast(self, shape: Shape, dims: tuple[int, ...]) -> Layout:
        """The layout of StableHLO's broadcast_in_dim: new and repeated dimensions have stride 0."""
        strides: list[DimLike] = [0] * len(shape)
        for axis, d in enumerate(dims):
            if self.shape[axis] == shape[d]:
                strides[d] = self.strides[axis]
        return Layout(shape, tuple(strides), self.offset)

    def reshape(self, shape: Shape) -> Layout | None:
        """The layout of a reshape of this value; None where strides cannot express it."""
        return self.view(shape, reshape_map(self.shape, shape))


Group = tuple[tuple[int, ...], tuple[int, ...]]


def reshape_groups(old: Shape, new: Shape) -> list[Group] | None:
    """The finest pairing of consecutive old dimensions with consecutive new ones of equal size; None if there is
    none."""
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
            if i < len(old) and (exact_quotient(b, a) is not None or j == len(new)):
                a, i = a * old[i], i + 1
            elif j < len(new) and (exact_quotient(a, b) is not None or i == len(old)):
                b, j = b * new[j], j + 1
            elif i < len(old) and j < len(new):
                a, i, b, j = a * old[i], i + 1, b * new[j], j + 1
            else:
                return None
        groups.append((tuple(range(i0, i)), tuple(range(j0, j))))
    return groups
