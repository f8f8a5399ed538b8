"""The search: the candidates that are tried at each site, the statistics of their times, and the entries that are
written.

    rounds:  one candidate at each of the sites that are due, the largest share of the model's time first
             the untuned program and the one with the candidates run by turns
    guard:   what looked faster is measured again, longer; its results are checked; what holds is written at once

A site tries the candidates that the cost model ranks next to its own choice, then the neighbours of the best choice so
far, as long as these improve it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ingot.schedule.choice import Choice, Measured, Site
from ingot.schedule.cpu.winograd.plan import MIN_SPEEDUP
from ingot.support.dataclass import dataclass
from ingot.tune.trial import Choices, Readings, Spot

MIN_GAIN = 1.03  # the untuned choice's time over a candidate's from which on the candidate is written down
ROUNDS, GUARD_ROUNDS = 4, 15
MIN_SHARE = 0.002  # sites below this share of the model's time are left alone
MAX_TRIES = 60
_DUE_RATIO = 8  # a round holds the sites whose `urgency` is at least an eighth of the first one's
_GENERATIONS = 4  # of neighbours
_GUARD_INTERVAL_SHARE = 0.15  # of the budget, between two guards
_LAST_GUARD_SHARE = 0.12  # of the budget, kept for the last guard


class Bench(Protocol):
    """The interface to the measured program: `trial.Workbench`."""

    @property
    def spots(self) -> Sequence[Spot]: ...

    def candidates(self, site: Site) -> list[Choice]: ...

    def refine(self, site: Site, choice: Choice) -> list[Choice]: ...

    def readings(self, choices: Choices, rounds: int) -> Readings: ...

    def disagreeing(self, choices: Choices) -> dict[str, str]: ...


class Measurers(Protocol):
    """The processes that measure the rounds of a search: `fleet.Fleet`. count: of concurrent batches."""

    @property
    def count(self) -> int: ...

    def readings(self, batches: Sequence[Choices], rounds: int) -> list[Readings]: ...


@dataclass(frozen=True)
class _SingleMeasurer:
    """Measures on the bench itself."""

    bench: Bench
    count: int = 1

    def readings(self, batches: Sequence[Choices], rounds: int) -> list[Readings]:
        return [self.bench.readings(choices, rounds) for choices in batches]


@dataclass(frozen=True)
class Finding:
    """The result of a site: `choice` with the seconds of one launch, and those of the untuned choice."""

    spot: Spot
    choice: Choice
    seconds: float
    untuned_seconds: float

    @property
    def gain(self) -> float:
        return self.untuned_seconds / self.seconds

    @property
    def tuned(self) -> bool:
        return self.choice != self.spot.site.untuned


@dataclass
class _Site:
    """The state of a site during the search. gains: the untuned time over that of each tried choice. refused: choices
    that the guard refused. wrong: how the results of some of these differed. accepted: the choice that the guard
    confirmed, or the untuned one once `finished`.
    """

    spot: Spot
    queue: list[Choice]
    gains: dict[Choice, float] = field(default_factory=dict)
    generation: int = 0
    finished: bool = False
    refused: set[Choice] = field(default_factory=set)
    wrong: list[str] = field(default_factory=list)
    accepted: Finding | None = None

    @property
    def untuned(self) -> Choice:
        return self.spot.site.untuned

    @property
    def urgency(self) -> float:
        """The site's share of the time per choice tried: the largest comes first."""
        return self.spot.share / (1 + len(self.gains))

    def best(self) -> tuple[Choice, float]:
        """The choice with the largest gain that the guard has not refused; the untuned one has a gain of 1."""
        candidates = [(c, g) for c, g in self.gains.items() if c not in self.refused]
        return max(candidates, key=lambda x: x[1], default=(self.untuned, 1.0))

    def candidate(self) -> Choice | None:
        """The choice for the guard to check: the best one, if it is better than the accepted one."""
        choice, gain = self.best()
        min_gain = self.accepted.gain if self.accepted is not None else 1.0
        return choice if gain > max(min_gain, _min_gain(self.untuned, choice)) else None


def _min_gain(untuned: Choice, choice: Choice) -> float:
    """The gain that a choice needs. For Winograd's it is larger, as in the cost model, because of its rounding
    errors."""
    return MIN_SPEEDUP if choice.kind == "winograd" and untuned.kind != "winograd" else MIN_GAIN


class Search:
    """One search over a model's sites.

    measured: what earlier searches wrote. These sites are skipped, unless the cost model has another choice by now;
    then the earlier choice is tried first. write: called with findings as they are made, also with sites of which the
    untuned choice is the fastest. clock: seconds. watch: called before each round with a description and the seconds so
    far. measurers: of the rounds, by default the bench; the guard always measures on the bench.
    """

    def __init__(
        self,
        bench: Bench,
        measured: Mapping[str, Measured],
        write: Callable[[Sequence[Finding]], None],
        clock: Callable[[], float],
        watch: Callable[[str, float], None],
        measurers: Measurers | None = None,
    ) -> None:
        self.measurers: Measurers = measurers or _SingleMeasurer(bench)
        self.bench, self.write, self.clock, self.watch = bench, write, clock, watch
        self.began = clock()
        open_spots = [
            s for s in bench.spots if s.share >= MIN_SHARE and not _is_valid(measured.get(s.site.key), s.site)
        ]
        self.sites = [
            _Site(s, [*dict.fromkeys((*_earlier_choices(measured, s.site), *bench.candidates(s.site)))])
            for s in open_spots
        ]

    def run(self, budget: float) -> list[Finding]:
        """Search for about `budget` seconds from the start on, or until nothing is left to try."""
        last_guard = self.began
        slowest = 0.0  # seconds of the slowest round so far
        while due_sites := self._due():
            round_start = self.clock()
            if round_start + slowest >= self.began + budget * (1 - _LAST_GUARD_SHARE):
                break
            self._round(due_sites)
            slowest = max(slowest, self.clock() - round_start)
            if self.clock() - last_guard >= _GUARD_INTERVAL_SHARE * budget:
                self._guard()
                last_guard = self.clock()
        while self._guard():
            pass  # where a choice was refused, the second best is checked
        return [s.accepted for s in self.sites if s.accepted is not None]

    def _due(self) -> list[_Site]:
        """The sites of the next round, those with the most time per candidate tried first."""
        for site in self.sites:
            self._refill(site)
        queued = sorted((s for s in self.sites if s.queue), key=lambda s: -s.urgency)
        return [s for s in queued if s.urgency * _DUE_RATIO >= queued[0].urgency]

    def _refill(self, site: _Site) -> None:
        """Add candidates if all have been tried: the neighbours of the best choice, as long as it improves."""
        while not site.queue and site.generation < _GENERATIONS and len(site.gains) < MAX_TRIES:
            site.generation += 1
            best, _ = site.best()
            neighbours = [
                c for c in self.bench.refine(site.spot.site, best) if c not in site.gains and c != site.untuned
            ]
            site.queue = neighbours[: MAX_TRIES - len(site.gains)]
        site.finished = not site.queue

    def _round(self, sites: Sequence[_Site]) -> None:
        """A batch for each measurer: the next candidates of all sites."""
        leader = sites[0]
        best, gain = leader.best()
        text = f"{leader.spot.label} {leader.spot.result}, best {gain:.2f}x" if best != leader.untuned else ""
        text = text or f"{leader.spot.label} {leader.spot.result}"
        self.watch(text, self.clock() - self.began)
        batches = [{s.spot.site.key: s.queue.pop(0) for s in sites if s.queue} for _ in range(self.measurers.count)]
        batches = [choices for choices in batches if choices]
        for choices, readings in zip(batches, self.measurers.readings(batches, ROUNDS), strict=True):
            for site in sites:
                key = site.spot.site.key
                if key in choices:
                    untuned, candidate = readings.sites[key].min(axis=0)
                    site.gains[choices[key]] = float(untuned / candidate)

    def _guard(self) -> bool:
        """Measure the fastest choices again, check their results, and write those that are confirmed. True if any was
        refused."""
        candidates = [(s, c) for s in self.sites if (c := s.candidate()) is not None]
        findings: list[Finding] = []
        if candidates:
            self.watch(f"check {len(candidates)} candidates", self.clock() - self.began)
            choices = {s.spot.site.key: c for s, c in candidates}
            wrong = self.bench.disagreeing(choices)
            readings = self.bench.readings({key: c for key, c in choices.items() if key not in wrong}, GUARD_ROUNDS)
            is_no_slower = _gain(readings.total) >= 1  # what is won at one site must not be lost at its neighbours
            for site, choice in candidates:
                key = site.spot.site.key
                if key in wrong:
                    site.refused.add(choice)
                    site.wrong.append(f"{site.spot.label} {site.spot.result}, {choice}: {wrong[key]}")
                    continue
                pairs = readings.sites[key]
                gain = site.gains[choice] = _gain(pairs)
                if not is_no_slower or gain < _min_gain(site.untuned, choice):
                    site.refused.add(choice)
                elif site.accepted is None or gain > site.accepted.gain:
                    best_seconds = float(pairs[:, 1].min()) / site.spot.count
                    site.accepted = Finding(site.spot, choice, best_seconds, best_seconds * gain)
                    findings.append(site.accepted)
        for site in self.sites:
            if site.finished and site.accepted is None and site.candidate() is None:
                seconds = site.spot.seconds / site.spot.count
                site.accepted = Finding(site.spot, site.untuned, seconds, seconds)
                findings.append(site.accepted)
        if findings:
            self.write(findings)
        return any(choice in site.refused for site, choice in candidates)

    @property
    def wrong(self) -> list[str]:
        """The candidates whose results differ from those of the untuned kernels."""
        return [text for site in self.sites for text in site.wrong]


def _is_valid(measured: Measured | None, site: Site) -> bool:
    """Whether an earlier measurement is still valid for the site."""
    return measured is not None and measured.baseline == site.untuned


def _earlier_choices(earlier: Mapping[str, Measured], site: Site) -> list[Choice]:
    measured = earlier.get(site.key)
    return [measured.choice] if measured and measured.choice != site.untuned and site.admits(measured.choice) else []


def _gain(pairs: NDArray[np.float64]) -> float:
    """The untuned time over the candidate's: the smaller of the median ratio of pairs and the ratio of the best times,
    as other load on the machine disturbs only one of them. Times of zero are below the resolution of the clock and do
    not count."""
    pairs = pairs[(pairs > 0).all(axis=1)]
    if not len(pairs):
        return 1.0
    paired = statistics.median(float(x) for x in pairs[:, 0] / pairs[:, 1])
    best = pairs.min(axis=0)
    return min(paired, float(best[0] / best[1]))
