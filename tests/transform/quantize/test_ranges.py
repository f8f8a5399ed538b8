"""Ranges of values and the levels over them."""

from __future__ import annotations

import numpy as np
import pytest

from ingot.transform.quantize.ranges import METHODS, ValueStats, levels_between
from ingot.transform.quantize.rounding import round_values


def stats_of(x: np.ndarray, axis: int = 1) -> ValueStats:
    stats = ValueStats()
    stats.add_bounds(x, axis, plain=True)
    stats.add_histogram(x)
    return stats


@pytest.mark.parametrize(("low", "high"), [(-1.0, 3.0), (0.5, 2.0), (-4.0, -1.0), (0.0, 1e-30), (-1e30, 1e30)])
def test_zero_is_a_level_and_the_ends_are_covered(low: float, high: float):
    levels = levels_between(low, high)
    ends = np.array([low, high, 0.0], np.float32)
    roundtrip = round_values(ends, levels)
    assert roundtrip[2] == 0
    assert np.abs(roundtrip - ends).max() <= 0.51 * levels.scale * 2


def test_nothing_but_zeros_has_levels():
    assert levels_between(0.0, 0.0).scale == 1.0
    assert stats_of(np.zeros((4, 3), np.float32)).levels("mse") == levels_between(0.0, 0.0)


@pytest.mark.parametrize("method", METHODS)
def test_outliers(method: str):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((20_000, 4)).astype(np.float32)
    x[0, 0] = 200
    top = stats_of(x).levels(method)
    reach = (255 - top.zero) * top.scale
    assert (reach > 190) == (method == "minmax")
    assert reach > 2  # the bulk stays


def test_mse_is_the_least_of_all_methods():
    x = np.random.default_rng(1).standard_t(3, (30_000, 2)).astype(np.float32)
    result = stats_of(x)
    errors = {m: float(np.square(round_values(x, result.levels(m)) - x).mean()) for m in METHODS}
    assert errors["mse"] <= 1.05 * min(errors.values())


def test_infinities_make_it_unusable():
    x = np.ones((3, 2), np.float32)
    x[1, 1] = np.nan
    assert not stats_of(x).is_usable
    assert not ValueStats().is_usable


def test_factors_move_the_range_by_channel():
    x = np.array([[1.0, 100.0], [-1.0, 50.0]], np.float32)
    levels = stats_of(x).levels("minmax", np.array([1, 0.01], np.float32))
    assert levels == levels_between(-1.0, 1.0)
