"""The search: the candidates to try at each site, their confirmation, and when findings are written.

    rounds:  one candidate at each of the sites that are due, the largest share of the model's time first;
             the runs of the untuned program and of the one with the candidates are interleaved
    guard:   candidates that look faster are measured again, longer; their results are checked; those that are
             confirmed are written at once

A site tries the cost model's ranking after its first choice, then the neighbours of the best so far, while these help.
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

MARGIN = 1.03  # the ratio of the untuned choice's time to a candidate's from which on it counts as faster
ROUNDS, GUARD_ROUNDS = 4, 15
LEAST_SHARE = 0.002  # sites below this share of the model's time are not searched
MOST_TRIES = 60
_MAX_DUE_RATIO = 8  # a round has the sites whose `due` is at least an eighth of the first one's
_MAX_GENERATIONS = 4  # of neighbours
_GUARD_INTERVAL = 0.15  # between two guards, as a share of the budget
_LAST_GUARD_SHARE = 0.12  # the share of the budget that is reserved for the last guard


class Bench(Protocol):
    """Builds and measures candidates for a search: `trial.Workbench` or `gpu.GpuBench`."""

    @property
    def spots(self) -> Sequence[Spot]: ...

    def others(self, site: Site) -> list[Choice]: ...

    def refine(self, site: Site, choice: Choice) -> list[Choice]: ...

    def readings(self, choices: Choices, rounds: int) -> Readings: ...

    def disagreeing(self, choices: Choices) -> dict[str, str]: ...


class Measurers(Protocol):
    """Measures the rounds of a search: `fleet.Fleet`. count: the number of concurrent batches."""

    @property
    def count(self) -> int: ...

    def readings(self, batches: Sequence[Choices], rounds: int) -> list[Readings]: ...


@dataclass(frozen=True)
class _BenchMeasurer:
    """Measures the rounds on the bench itself."""

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
    """The state of a site during the search.

    gains: the ratio of the untuned time to that of each tried choice. refused: the choices that the guard rejected.
    wrong: how the results of some of these differed. held: the choice that the guard confirmed, or the untuned one once
    `finished`.
    """

    spot: Spot
    queue: list[Choice]
    gains: dict[Choice, float] = field(default_factory=dict)
    generation: int = 0
    finished: bool = False
    refused: set[Choice] = field(default_factory=set)
    wrong: list[str] = field(default_factory=list)
    held: Finding | None = None

    @property
    def untuned(self) -> Choice:
        return self.spot.site.untuned

    @property
    def due(self) -> float:
        """The priority: the share of the model's time for each candidate tried."""
        return self.spot.share / (1 + len(self.gains))

    def best(self) -> tuple[Choice, float]:
        """The fastest choice so far that was not refused; the untuned one has a gain of 1."""
        candidates = [(c, g) for c, g in self.gains.items() if c not in self.refused]
        return max(candidates, key=lambda x: x[1], default=(self.untuned, 1.0))

    def candidate(self) -> Choice | None:
        """The choice for the guard to check, if one is faster than the choice that it has confirmed."""
        choice, gain = self.best()
        guarded_gain = self.held.gain if self.held is not None else 1.0
        return choice if gain > max(guarded_gain, _min_gain(self.untuned, choice)) else None


def _min_gain(untuned: Choice, choice: Choice) -> float:
    """The gain that a choice needs: more for Winograd, whose rounding errors must pay off, as in the cost model."""
    return MIN_SPEEDUP if choice.way == "winograd" and untuned.way != "winograd" else MARGIN


class Search:
    """One search over a model's sites.

    known: entries of earlier searches. Their sites are skipped, unless the cost model's choice has changed since; the
    earlier choice is then tried first. write: called with findings as they are made, including those whose untuned
    choice is the fastest. clock: seconds. watch: called before each round with the current activity and the elapsed
    seconds. measurers: for the rounds, by default the bench; the guard always measures on the bench.
    """

    def __init__(
        self,
        bench: Bench,
        known: Mapping[str, Measured],
        write: Callable[[Sequence[Finding]], None],
        clock: Callable[[], float],
        watch: Callable[[str, float], None],
        measurers: Measurers | None = None,
    ) -> None:
        self.measurers: Measurers = measurers or _BenchMeasurer(bench)
        self.bench, self.write, self.clock, self.watch = bench, write, clock, watch
        self.began = clock()
        open_spots = [s for s in bench.spots if s.share >= LEAST_SHARE and not _is_valid(known.get(s.site.key), s.site)]
        self.sites = [
            _Site(s, [*dict.fromkeys((*_earlier_choices(known, s.site), *bench.others(s.site)))]) for s in open_spots
        ]

    def run(self, budget: float) -> list[Finding]:
        """Search for about `budget` seconds from the start, or until no candidate is left."""
        guarded = self.began
        slowest = 0.0  # seconds of the slowest round so far
        while due := self._due():
            now = self.clock()
            if now + slowest >= self.began + budget * (1 - _LAST_GUARD_SHARE):
                break
            self._round(due)
            slowest = max(slowest, self.clock() - now)
            if self.clock() - guarded >= _GUARD_INTERVAL * budget:
                self._guard()
                guarded = self.clock()
        while self._guard():
            pass  # after a refusal the second best is checked
        return [s.held for s in self.sites if s.held is not None]

    def _due(self) -> list[_Site]:
        """The sites of the next round, by decreasing priority."""
        for site in self.sites:
            self._refill(site)
        waiting = sorted((s for s in self.sites if s.queue), key=lambda s: -s.due)
        return [s for s in waiting if s.due * _MAX_DUE_RATIO >= waiting[0].due]

    def _refill(self, site: _Site) -> None:
        """Queue new candidates once all have been tried: neighbours of the best, for a few generations."""
        while not site.queue and site.generation < _MAX_GENERATIONS and len(site.gains) < MOST_TRIES:
            site.generation += 1
            best, _ = site.best()
            neighbours = [
                c for c in self.bench.refine(site.spot.site, best) if c not in site.gains and c != site.untuned
            ]
            site.queue = neighbours[: MOST_TRIES - len(site.gains)]
        site.finished = not site.queue

    def _round(self, sites: Sequence[_Site]) -> None:
        """Measure one batch on each measurer: the next candidate of each site."""
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
                    untuned_seconds, candidate_seconds = readings.sites[key].min(axis=0)
                    site.gains[choices[key]] = float(untuned_seconds / candidate_seconds)

    def _guard(self) -> bool:
        """Measure candidates that look faster again, check their results, and write those that are confirmed. Returns
        whether any was refused."""
        candidates = [(s, c) for s in self.sites if (c := s.candidate()) is not None]
        findings: list[Finding] = []
        if candidates:
            self.watch(f"check {len(candidates)} candidates", self.clock() - self.began)
            choices = {s.spot.site.key: c for s, c in candidates}
            wrong = self.bench.disagreeing(choices)
            readings = self.bench.readings({key: c for key, c in choices.items() if key not in wrong}, GUARD_ROUNDS)
            is_model_faster = _gain(readings.total) >= 1  # a gain at one site must not be lost at its neighbours
            for site, choice in candidates:
                key = site.spot.site.key
                if key in wrong:
                    site.refused.add(choice)
                    site.wrong.append(f"{site.spot.label} {site.spot.result}, {choice}: {wrong[key]}")
                    continue
                pairs = readings.sites[key]
                gain = site.gains[choice] = _gain(pairs)
                if not is_model_faster or gain < _min_gain(site.untuned, choice):
                    site.refused.add(choice)
                elif site.held is None or gain > site.held.gain:
                    best = float(pairs[:, 1].min()) / site.spot.count
                    site.held = Finding(site.spot, choice, best, best * gain)
                    findings.append(site.held)
        for site in self.sites:
            if site.finished and site.held is None and site.candidate() is None:
                seconds = site.spot.seconds / site.spot.count
                site.held = Finding(site.spot, site.untuned, seconds, seconds)
                findings.append(site.held)
        if findings:
            self.write(findings)
        return any(choice in site.refused for site, choice in candidates)

    @property
    def wrong(self) -> list[str]:
        """The candidates whose results differed from those of the untuned kernels."""
        return [text for site in self.sites for text in site.wrong]


def _is_valid(measured: Measured | None, site: Site) -> bool:
    """Whether an earlier measurement is still valid: the site's untuned choice is the same."""
    return measured is not None and measured.over == site.untuned


def _earlier_choices(earlier: Mapping[str, Measured], site: Site) -> list[Choice]:
    measured = earlier.get(site.key)
    return [measured.choice] if measured and measured.choice != site.untuned and site.admits(measured.choice) else []


def _gain(pairs: NDArray[np.float64]) -> float:
    """The ratio of the untuned time to the other: the smaller one of the median of paired ratios and the ratio of the
    best times, as noise from other processes affects one of them, not both. Zero times, below the clock's resolution,
    are ignored."""
    pairs = pairs[(pairs > 0).all(axis=1)]
    if not len(pairs):
        return 1.0
    paired = statistics.median(float(x) for x in pairs[:, 0] / pairs[:, 1])
    best = pairs.min(axis=0)
    return min(paired, float(best[0] / best[1]))
