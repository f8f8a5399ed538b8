"""Arrays as attributes of ops: the values of constants."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.lib.stride_tricks import as_strided

Rows = Callable[[int, int], np.ndarray]


class Array:
    """An immutable constant array as an op attribute. Small arrays compare by content, large ones by identity.

    A deferred array is computed each time its value is read and not retained: weights that passes transpose, scale or
    concatenate are in memory only while they are packed.
    """

    __slots__ = ("__dict__", "_key", "_make", "_make_rows", "dtype", "shape")
    MAX_CONTENT_KEY_BYTES: ClassVar[int] = 4096

    def __init__(self, value: np.ndarray):
        self._key: object = id(value)
        if value.nbytes <= Array.MAX_CONTENT_KEY_BYTES:
            content = value.tobytes()
            self._key = (value.dtype, value.shape, content)
            # on a copy: the key must stay valid if the caller writes to the array later
            value = np.ndarray(value.shape, value.dtype, content)
        self.dtype, self.shape = value.dtype, value.shape
        self._make: Callable[[], np.ndarray] = lambda: value
        self._make_rows: Rows | None = None

    @staticmethod
    def deferred(
        dtype: np.dtype, shape: tuple[int, ...], make: Callable[[], np.ndarray], make_rows: Rows | None = None,
        key: Hashable | None = None,
    ) -> Array:  # fmt: skip
        """The array that `make` returns, of this dtype and shape. A small one is computed immediately. make_rows: makes
        a range of its rows alone, if that is cheaper. key: arrays of equal keys are equal; None: no other is."""
        array = object.__new__(Array)
        array.dtype, array.shape, array._make = dtype, shape, make
        array._key = id(make) if key is None else key
        array._make_rows = make_rows
        return Array(make()) if array.nbytes <= Array.MAX_CONTENT_KEY_BYTES else array

    @property
    def value(self) -> np.ndarray:
        return self._make()

    @property
    def makes_rows(self) -> bool:
        """Whether some rows are computed without the others."""
        return self._make_rows is not None

    def rows(self, start: int, stop: int) -> np.ndarray:
        """Of the value, along its first dimension."""
        return self._make()[start:stop] if self._make_rows is None else self._make_rows(start, stop)

    @cached_property
    def splat(self) -> np.generic | None:
        """The common value of all elements, bit for bit; None where they differ, or there are none or very many."""
        if not 0 < self.size <= Array.MAX_CONTENT_KEY_BYTES:
            return None
        raw = np.ascontiguousarray(self.value).reshape(-1)
        rows = raw.view(np.uint8).reshape(raw.size, raw.itemsize)
        return raw[0] if raw.size == 1 or bool((rows == rows[0]).all()) else None

    @cached_property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Array) and self._key == other._key


def view_of_flat(array: np.ndarray, extents: Sequence[int], steps: Sequence[int], start: int) -> np.ndarray:
    """A read-only view, or a copy, of the elements of `array` at start + sum of index * step in row-major order. It is
    a view of a transposed array, too, as long as no axis of it goes over the end of an axis of the array."""
    strides = [0] * len(extents)
    first = np.unravel_index(start, array.shape) if array.size else (0,) * array.ndim
    last = [int(n) for n in first]
    row_major = [1] * array.ndim
    for axis in range(array.ndim - 2, -1, -1):
        row_major[axis] = row_major[axis + 1] * array.shape[axis + 1]
    for number, (extent, step) in enumerate(zip(extents, steps, strict=True)):
        if extent <= 1 or step == 0:
            continue
        axes = (a for a, n in enumerate(row_major) if array.shape[a] > 1 and 0 < n <= step and step % n == 0)
        if (axis := next(axes, None)) is None:
            break
        strides[number] = step // row_major[axis] * array.strides[axis]
        last[axis] += step // row_major[axis] * (extent - 1)
    else:
        if all(0 <= n < size for n, size in zip(last, array.shape, strict=True)):
            return view_by_strides(array[tuple(slice(int(n), None) for n in first)], extents, strides)
    flat = np.ascontiguousarray(array).reshape(-1)[start:]
    return view_by_strides(flat, extents, [n * flat.itemsize for n in steps])


def view_by_strides(first_element: np.ndarray, extents: Sequence[int], strides: Sequence[int]) -> np.ndarray:
    """A read-only view of the elements from `first_element` on. strides: bytes. For every element type: numpy's own
    `as_strided` does not support all of ml_dtypes."""
    bits = first_element.view(f"u{first_element.itemsize}")
    return as_strided(bits, extents, strides, writeable=False).view(first_element.dtype)
