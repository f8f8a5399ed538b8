import numpy as np

from ingot.debug.comparison.tolerance import agree, worst


def test_small_errors_are_relative_to_the_largest_magnitude():
    expected = np.array([1000.0, 1.0], np.float32)
    near = agree(expected + np.array([0, 0.05], np.float32), expected)
    assert near.ok and near.place == (1,) and 4e-5 < near.relative < 6e-5
    assert not agree(expected + np.array([0, 0.2], np.float32), expected).ok
    assert agree(expected + np.array([0, 0.2], np.float32), expected, tolerance=1e-3).ok


def test_nans_and_infinities_must_be_in_the_same_places():
    expected = np.array([np.nan, np.inf, -np.inf, 2.0], np.float32)
    assert agree(expected.copy(), expected).ok
    for i, value in enumerate((0.0, -np.inf, np.inf, np.nan)):
        got = expected.copy()
        got[i] = value
        assert not agree(got, expected).ok, i


def test_integers_shapes_and_dtypes_must_be_equal():
    a = np.arange(4)
    assert agree(a, a.copy()).ok
    assert not agree(a, a + np.array([0, 0, 1, 0])).ok
    assert "shape" in agree(a, a[:2]).note
    assert "dtype" in agree(a, a.astype(np.int32)).note
    assert agree(np.empty((0, 3)), np.empty((0, 3))).ok


def test_zero_is_compared_absolutely():
    zero = np.zeros(3, np.float32)
    assert agree(zero + np.float32(1e-6), zero).ok
    assert not agree(zero + np.float32(1e-3), zero).ok


def test_worst_prefers_failures():
    fine, bad = agree(np.ones(2), np.ones(2)), agree(np.ones(2), np.zeros(2))
    assert worst([fine, bad, fine]) is bad
