"""The search on a bench with made-up times and a made-up clock: what is tried, believed and written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from ingot.schedule.choice import Choice, Direct, Measured, Site, Winograd
from ingot.tune.search import GUARD_ROUNDS, MIN_GAIN, Finding, Search
from ingot.tune.trial import Choices, Readings, Spot

BASE = Direct(1, 8, 3, 1, 1, 1, 1, 0)


def tile(width: int) -> Direct:
    return replace(BASE, width=width)


def spot(key: str, share: float, others: Sequence[Choice], near: Sequence[Choice] = (), untuned: Choice = BASE) -> Spot:
    site = Site(key, untuned, lambda: list(others), lambda choice: list(near), lambda choice: True)
    return Spot(site, f"op {key}", "1x1", 2, share, share)


class FakeBench:
    """`speed`: of choices over the untuned one, by site. noise: a factor on what rounds of a search (not of the guard)
    measure. model_ratio: of the model with candidates."""

    def __init__(self, spots: Sequence[Spot], speed: dict[tuple[str, Choice], float]) -> None:
        self.spots, self.speed = spots, speed
        self.noise, self.model_ratio = 1.0, 1.1
        self.wrong: dict[tuple[str, Choice], str] = {}
        self.now, self.rounds, self.attempts = 0.0, 0, list[Choices]()

    def clock(self) -> float:
        return self.now

    def candidates(self, site: Site) -> list[Choice]:
        return site.candidates()

    def refine(self, site: Site, choice: Choice) -> list[Choice]:
        return site.refine(choice)

    def readings(self, choices: Choices, rounds: int) -> Readings:
        self.now += 1.0
        self.rounds += 1
        if rounds < GUARD_ROUNDS:
            self.attempts.append(choices)
        noise = self.noise if rounds < GUARD_ROUNDS else 1.0
        sites = {
            key: np.full((rounds, 2), (1.0, 1 / (noise * self.speed.get((key, choice), 0.9))))
            for key, choice in choices.items()
        }
        return Readings(sites, np.full((rounds, 2), (1.0, 1 / self.model_ratio)))

    def disagreeing(self, choices: Choices) -> dict[str, str]:
        return {key: self.wrong[key, c] for key, c in choices.items() if (key, c) in self.wrong}


def search(
    bench: FakeBench, budget: float = 1000.0, known: dict[str, Measured] | None = None
) -> tuple[dict[str, Finding], list[Finding]]:
    entries: list[Finding] = []
    results = Search(bench, known or {}, entries.extend, bench.clock, lambda text, seconds: None).run(budget)
    return {f.spot.site.key: f for f in results}, entries


def test_the_fastest_choice_is_found_and_written():
    bench = FakeBench([spot("a", 0.5, [tile(7), tile(6)], [tile(5)])], {("a", tile(6)): 1.2, ("a", tile(5)): 1.3})
    results, entries = search(bench)
    assert results["a"].choice == tile(5) and results["a"].gain == pytest.approx(1.3)
    assert entries[-1] == results["a"]


def test_what_was_found_beside_another_choice_of_the_model_is_tried_first():
    bench = FakeBench([spot("a", 0.5, [tile(7), tile(6)], [])], {("a", tile(5)): 1.3})
    results, _ = search(bench, known={"a": Measured(tile(5), tile(9))})
    assert bench.attempts[0] == {"a": tile(5)} and results["a"].choice == tile(5)


def test_neighbours_are_tried_for_as_long_as_they_help():
    """From each best choice on, the next one."""
    site = Site("a", BASE, list, lambda c: [tile(c.width + 1)] if isinstance(c, Direct) else [], lambda c: True)
    bench = FakeBench(
        [Spot(site, "op", "1", 1, 1.0, 1.0)], {("a", tile(9)): 1.1, ("a", tile(10)): 1.2, ("a", tile(11)): 1.1}
    )
    results, _ = search(bench)
    assert results["a"].choice == tile(10)
    assert [c["a"] for c in bench.attempts] == [tile(9), tile(10), tile(11)]


def test_a_small_gain_is_no_gain():
    bench = FakeBench([spot("a", 0.5, [tile(7)])], {("a", tile(7)): MIN_GAIN - 0.01})
    results, entries = search(bench)
    assert not results["a"].tuned and [f.choice for f in entries] == [BASE]  # that nothing is faster is remembered


def test_what_the_guard_does_not_see_again_is_not_believed():
    bench = FakeBench([spot("a", 0.5, [tile(7), tile(6)])], {("a", tile(7)): 0.99, ("a", tile(6)): 1.0})
    bench.noise = 1.2
    results, entries = search(bench)
    assert not results["a"].tuned and all(not f.tuned for f in entries)


def test_the_second_best_comes_after_a_first_that_was_refused():
    bench = FakeBench([spot("a", 0.5, [tile(7), tile(6)])], {("a", tile(7)): 1.5, ("a", tile(6)): 1.2})
    bench.wrong["a", tile(7)] = "largest error 3"
    run = Search(bench, {}, lambda findings: None, bench.clock, lambda text, seconds: None)
    assert [f.choice for f in run.run(1000.0)] == [tile(6)]
    assert len(run.wrong) == 1 and "largest error 3" in run.wrong[0]


def test_nothing_is_written_that_makes_the_model_slower():
    bench = FakeBench([spot("a", 0.5, [tile(7)])], {("a", tile(7)): 1.5})
    bench.model_ratio = 0.98
    results, _ = search(bench)
    assert not results["a"].tuned


def test_winograd_must_be_worth_its_errors():
    quick = Winograd(4, 16, 64)
    speed: dict[tuple[str, Choice], float] = {("a", quick): 1.1, ("b", quick): 1.2}
    bench = FakeBench([spot("a", 0.5, [quick]), spot("b", 0.5, [quick])], speed)
    results, _ = search(bench)
    assert not results["a"].tuned and results["b"].choice == quick
    other = FakeBench([spot("a", 0.5, [quick], untuned=Winograd(2, 16, 64))], speed)
    assert search(other)[0]["a"].choice == quick


def test_time_goes_where_the_models_time_is():
    tiles = [tile(w) for w in range(20, 60)]
    spots = [spot("small", 0.02, tiles), spot("large", 0.9, tiles), spot("tiny", 0.001, tiles)]
    bench = FakeBench(spots, {})
    search(bench, budget=12)
    tries = {key: sum(key in c for c in bench.attempts) for key in ("large", "small", "tiny")}
    assert tries["large"] > tries["small"] and tries["tiny"] == 0
    assert bench.now <= 12


def test_findings_are_written_before_the_search_ends():
    """A search that is interrupted loses little."""
    tiles = [tile(w) for w in range(10, 40)]
    bench = FakeBench([spot("a", 0.9, tiles)], {("a", tile(12)): 1.4})
    entries: list[Finding] = []

    def interrupted(text: str, seconds: float) -> None:
        if seconds > 25:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Search(bench, {}, entries.extend, bench.clock, interrupted).run(100.0)
    assert [f.choice for f in entries] == [tile(12)]


def test_what_is_known_is_left_alone_while_it_holds():
    spots = [spot("a", 0.5, [tile(7)]), spot("b", 0.5, [tile(7)])]
    bench = FakeBench(spots, {})
    measured = {
        "a": Measured(tile(7), BASE),
        "b": Measured(tile(7), tile(9)),
    }  # b's was measured against another choice
    results, _ = search(bench, known=measured)
    assert set(results) == {"b"} and all("a" not in c for c in bench.attempts)
