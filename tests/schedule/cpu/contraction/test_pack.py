from __future__ import annotations

import itertools

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

from ingot.schedule.cpu.contraction.pack import strided_view


def row_major(array: np.ndarray, offset: int, extents: tuple[int, ...], steps: tuple[int, ...]) -> np.ndarray:
    flat = np.array(array).reshape(-1)[offset:].copy()
    return as_strided(flat, extents, [s * flat.itemsize for s in steps])


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_axes_of_a_transposed_array(order: tuple[int, ...]):
    array = np.arange(4 * 6 * 5, dtype=np.float32).reshape(4, 6, 5).transpose(order)
    a, b, c = array.shape
    cases = [
        (0, (a, b, c), (b * c, c, 1)),
        (0, (c, a, b), (1, b * c, c)),
        (c + 1, (a, b - 1, c - 1), (b * c, c, 1)),  # from [0, 1, 1] on
        (0, (a, b // 2, 2, c), (b * c, 2 * c, c, 1)),  # a dimension in two parts
        (0, (a * b, c), (c, 1)),  # an axis over two dimensions
        (3, (b, 7), (c, 1)),  # from one row into the next
        (0, (a, 3, c), (b * c, 0, 1)),  # repeated
        (0, (1, c), (12345, 1)),
    ]
    for offset, extents, steps in cases:
        got = strided_view(array, offset, extents, steps)
        assert np.array_equal(got, row_major(array, offset, extents, steps)), (offset, extents, steps)


def test_a_transposed_array_is_read_where_it_is():
    array = np.zeros((7, 9), np.float32)
    view = strided_view(array.T, 0, (9, 7), (7, 1))
    assert np.shares_memory(view, array) and not view.flags.writeable
    assert strided_view(np.zeros((0, 3), np.float32), 0, (0, 3), (3, 1)).shape == (0, 3)
