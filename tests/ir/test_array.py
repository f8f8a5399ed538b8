"""Views of arrays by positions in row-major order."""

from __future__ import annotations

import numpy as np

from ingot.ir.array import view_by_strides, view_of_flat


def test_elements_by_row_major_positions_are_viewed_where_they_are() -> None:
    """Of arrays in any axis order, with negative strides, too; random extents, steps and starts."""
    rng, count, views = np.random.default_rng(0), 0, 0
    while count < 400:
        shape = tuple(rng.integers(1, 5, rng.integers(1, 4)))
        array = rng.integers(0, 99, shape).astype(rng.choice(["int16", "float32"]))
        array = array.transpose(rng.permutation(array.ndim))[:: rng.choice([1, 1, -1])]
        extents, steps = (rng.integers(low, high, 3).tolist() for low, high in ((1, 4), (0, 6)))
        start = int(rng.integers(array.size))
        if start + sum((n - 1) * step for n, step in zip(extents, steps, strict=True)) >= array.size:
            continue
        flat = np.ascontiguousarray(array).reshape(-1)[start:]
        got = view_of_flat(array, extents, steps, start)
        np.testing.assert_array_equal(got, view_by_strides(flat, extents, [n * flat.itemsize for n in steps]))
        count += 1
        views += np.shares_memory(got, array)
    assert views > count // 2
    columns = np.arange(12).reshape(3, 4).T
    assert view_of_flat(columns, (3, 4), (1, 3), 0).flags.c_contiguous, "a transposed matrix by columns is its memory"
    for shape in ((0, 3), (3, 0)):
        assert view_of_flat(np.zeros(shape), (0, 3), (3, 1), 0).shape == (0, 3)
