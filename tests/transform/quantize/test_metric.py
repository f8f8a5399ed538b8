"""Scores of outputs that say nothing."""

from __future__ import annotations

import numpy as np
import pytest

from ingot.support.errors import InputError
from ingot.transform.quantize.metric import check_outputs, cosine_similarity

NOTHING = np.array([np.nan, -np.inf], np.float32)


def test_outputs_without_a_finite_number_are_refused():
    with pytest.raises(InputError, match="finite numbers, got NaN and infinities alone"):
        check_outputs([(NOTHING, np.arange(3))] * 2)
    check_outputs([(NOTHING,), (np.array([np.nan, 1], np.float32),)])
    check_outputs([(np.arange(3), np.zeros(0, np.float32))])


def _calls(*outputs: object) -> list[tuple[np.ndarray, ...]]:
    return [(np.asarray(o, np.float32),) for o in outputs]


def test_single_numbers_are_compared_over_all_calls():
    want = np.random.default_rng(0).random((6, 5, 1)).astype(np.float32)
    assert cosine_similarity(_calls(*want), _calls(*want)) == 1
    # each number alone has a cosine of 1 to any other of its sign
    other = want + np.random.default_rng(1).random(want.shape).astype(np.float32)
    expected = float((want * other).sum() / np.sqrt((want**2).sum() * (other**2).sum()))
    for shape in ((6, 5, 1), (30,), (30, 1)):  # columns, numbers without an axis, one of each call
        assert cosine_similarity(_calls(*want.reshape(shape)), _calls(*other.reshape(shape))) == pytest.approx(expected)
    assert expected < 0.95


def test_rows_of_several_numbers_are_compared_each():
    assert cosine_similarity(_calls([[1, 0], [0, 2]]), _calls([[1, 0], [2, 2]])) == pytest.approx((1 + 0.5**0.5) / 2)
    assert cosine_similarity(_calls([1, 2, 3]), _calls([2, 4, 6])) == pytest.approx(1)
    assert cosine_similarity(
        _calls(np.zeros((0, 3)), [[1, 0, 0]]), _calls(np.zeros((0, 3)), [[1, 1, 0]])
    ) == pytest.approx(0.5**0.5)


@pytest.mark.parametrize("got", [[1, 2, 3], [1, 2, -np.inf], [1, np.nan, np.inf], [1, np.inf, np.inf], [1, 2, np.nan]])
def test_infinities_must_stay_where_they_are(got: list[float]):
    want = _calls([[1, 2, np.inf], [1, 2, 3]])
    assert cosine_similarity(want, want) == 1
    assert cosine_similarity(want, _calls([got, [1, 2, 3]])) == 0.5


def test_integers_and_floats_count_alike():
    want = [(np.array([1, 2, 3, 4]), np.array([[1.0, 0.0]]))]
    assert cosine_similarity(want, [(np.array([1, 2, 3, 5]), np.array([[0.0, 1.0]]))]) == pytest.approx(0.75 / 2)
