"""The ladder and the search over it, with made-up times and errors."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from ingot.support.errors import ConstraintError
from ingot.transform.quantize.bench import without_preemption
from ingot.transform.quantize.formats import Formats
from ingot.transform.quantize.search import LATENCY_FRACTION, Goals, Option, Point, Search, frontier, ladder


def options(seed: int, groups: int = 6) -> dict[str, list[Option]]:
    rng = np.random.default_rng(seed)
    offers: dict[str, list[Option]] = {}
    for i in range(groups):
        base = Option("float32", 1.0 + rng.random(), 0.0, 400)
        others = [Option(f, rng.random() * 1.5, rng.random() ** 3, n) for f, n in (("int8", 100), ("weight4", 60))]
        offers[f"g{i}"] = [base, *others]
    return offers


def totals(offered: dict[str, list[Option]], formats: Formats) -> tuple[float, float]:
    chosen = [o for name, choices in offered.items() for o in choices if o.form == formats[name]]
    return sum(o.error for o in chosen), sum(o.seconds for o in chosen)


@pytest.mark.parametrize("seed", range(5))
def test_no_choice_beats_a_rung(seed: int):
    offered = options(seed, 5)
    rungs = [totals(offered, r) for r in ladder(offered)]
    combinations = [
        totals(offered, dict(zip(offered, f, strict=True))) for f in product(("float32", "int8", "weight4"), repeat=5)
    ]
    assert rungs == sorted(rungs)
    for error, seconds in rungs:
        assert not any(e <= error and s < seconds - 1e-12 for e, s in combinations)


class Model:
    """Scores fall with the error, by `hidden_error` on what the search does not see."""

    def __init__(self, offered: dict[str, list[Option]], hidden_error: float = 0.0) -> None:
        self.offered, self.hidden_error, self.built = offered, hidden_error, 0

    def simulate(self, formats: Formats) -> float:
        return 1 - totals(self.offered, formats)[0] / 100

    def point(self, name: str, formats: Formats) -> Point:
        self.built += 1
        error, seconds = totals(self.offered, formats)
        nbytes = 50 + sum(o.nbytes for n, c in self.offered.items() for o in c if o.form == formats[n])
        return Point(name, formats, (1 - error / 100, 1 - (error + self.hidden_error) / 100), 0.5 + seconds, nbytes)

    def search(self, goals: Goals) -> Point:
        exact = self.point("float32", dict.fromkeys(self.offered, "float32"))
        return Search(self.offered, goals, self.simulate, self.point).run([exact])


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("least", [0.999, 0.99, 0.9])
def test_the_score_holds_and_is_made_use_of(seed: int, least: float):
    model = Model(options(seed))
    result = model.search(Goals((least, least)))
    assert min(result.scores) >= least
    rungs = [model.point("", r) for r in ladder(model.offered)]
    assert result.seconds <= min(p.seconds for p in rungs if p.scores[0] >= least)


def test_what_fails_on_unseen_samples_is_not_taken():
    model = Model(options(0), hidden_error=0.5)
    result = model.search(Goals((0.99, 0.99)))
    assert result.scores[1] >= 0.99


@pytest.mark.parametrize("seed", range(4))
def test_a_latency_alone_takes_the_most_exact_that_is_in_time(seed: int):
    model = Model(options(seed))
    rungs = [model.point("", r) for r in ladder(model.offered)]
    limit = (rungs[0].seconds + rungs[-1].seconds) / 2
    result = model.search(Goals(None, limit / LATENCY_FRACTION))
    assert result.seconds <= limit
    assert result.scores[0] == max(p.scores[0] for p in rungs if p.seconds <= limit)


def test_a_size_is_kept():
    model = Model(options(1))
    result = model.search(Goals(None, nbytes=50 + 6 * 100))
    assert result.nbytes <= 650
    assert model.search(Goals((0.9, 0.9), nbytes=50 + 6 * 400 - 300)).nbytes <= 2150


def test_an_energy_is_kept():
    model = Model(options(1))
    plain = model.point

    def point(name: str, formats: Formats) -> Point:
        result = plain(name, formats)
        return replace(result, joules=result.seconds * 2)

    model.point = point  # type: ignore[method-assign]
    float_joules = point("", dict.fromkeys(model.offered, "float32")).joules
    assert float_joules is not None
    limit = 0.7 * float_joules
    result = model.search(Goals(None, joules=limit))
    assert result.joules is not None and result.joules <= limit and "mJ" in str(result)
    with pytest.raises(ConstraintError, match="mJ"):
        model.search(Goals((0.999, 0.999), joules=1e-6))
    assert not plain("", dict.fromkeys(model.offered, "float32")).fits(Goals(None, joules=1e9))  # not measured


def test_what_cannot_be_is_an_error_with_the_nearest_points():
    model = Model(options(2))
    with pytest.raises(ConstraintError, match=r"reaches a score of 0\.999 and 1 ms") as caught:
        model.search(Goals((0.999, 0.999), 0.001))
    assert caught.value.points == tuple(frontier(caught.value.points))
    assert "float32: score 1" in str(caught.value)
    with pytest.raises(ConstraintError, match="MB"):
        model.search(Goals(None, nbytes=10))


def test_the_frontier_has_none_that_is_beaten():
    def point(score: float, seconds: float) -> Point:
        return Point("", {}, (score, score), seconds, 1)

    assert [p.seconds for p in frontier([point(1, 3), point(0.9, 3), point(0.9, 1), point(0.8, 2)])] == [1, 3]


def test_what_others_took_is_not_the_steps():
    steps = np.array([1e-4, 30e-3, 10e-3])
    np.testing.assert_allclose(without_preemption(steps, 20.1e-3), [1e-4, 15e-3, 5e-3])
    np.testing.assert_array_equal(without_preemption(steps, 50e-3), steps)
    np.testing.assert_array_equal(without_preemption(steps[:1], 1e-5), steps[:1])
