"""Search the formats: a ladder of choices by predicted time and error, whose rungs are then measured as full models.

    options by group (seconds, error, bytes)  ->  rungs, the most accurate first; each step saves the most seconds per
    error  ->  the fastest rung with an acceptable simulated score  ->  build, time, check; go up if it fails

The ladder is the greedy solution of the multiple-choice knapsack (Sinha and Zoltners, 1979): optimal at its rungs. Each
rung differs from the previous one in one group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from numbers import Real

import numpy as np

from ingot.ir.types import word_fix
from ingot.runtime import device
from ingot.support.dataclass import dataclass
from ingot.support.energy.counters import EnergyCounters
from ingot.support.errors import ConstraintError, InputError
from ingot.transform.quantize.formats import FLOAT, FORMATS, Formats
from ingot.transform.quantize.metric import Metric

LATENCY_FRACTION = 0.95  # of the requested latency: the bound for the measured one
_MAX_BUILDS = 6
_SECONDS_PER_BYTE = (
    0.0,
    *(1e-12 * 10**i for i in range(6)),
)  # the cost of a byte, from zero to more than any real cost


@dataclass(frozen=True)
class SearchOptions:
    """The constraints and settings of a search; see `ingot.quantize`."""

    metric: Metric | None = None
    at_least: float | None = None
    latency_ms: float | None = None
    size_mb: float | None = None
    energy_millijoules: float | None = None
    seconds: float = 60.0
    formats: Sequence[str] | None = None
    threads: int | None = None
    seed: int = 0


@dataclass(frozen=True)
class Option:
    """A group in a format: predicted seconds, squared relative error of the outputs, bytes of its weights."""

    form: str
    seconds: float
    error: float
    nbytes: int


@dataclass(frozen=True)
class Goals:
    """The constraints. min_scores: on the search samples, and on the held-out ones. seconds, joules: of a call. nbytes:
    of code and weights."""

    min_scores: tuple[float, float] | None
    seconds: float | None = None
    nbytes: int | None = None
    joules: float | None = None


@dataclass(frozen=True)
class Point:
    """A model that was built and measured. scores: on the search samples, and on the held-out ones. joules: of a call;
    None unless they are constrained and all other constraints are met."""

    name: str
    formats: Formats
    scores: tuple[float, float]
    seconds: float
    nbytes: int
    joules: float | None = None

    def meets_constraints(self, goals: Goals) -> bool:
        is_accurate = goals.min_scores is None or all(
            s >= g for s, g in zip(self.scores, goals.min_scores, strict=True)
        )
        return is_accurate and self.fits(goals)

    def fits(self, goals: Goals) -> bool:
        """Whether it is fast, small and frugal enough."""
        is_fast = goals.seconds is None or self.seconds <= LATENCY_FRACTION * goals.seconds
        is_small = goals.nbytes is None or self.nbytes <= goals.nbytes
        is_frugal = goals.joules is None or (self.joules is not None and self.joules <= goals.joules)
        return is_fast and is_small and is_frugal

    def __str__(self) -> str:
        energy = "" if self.joules is None else f", {self.joules * 1e3:.4g} mJ"
        size = f"{self.nbytes / 1e6:.3g} MB"
        return f"{self.name}: score {self.scores[1]:.6g}, {self.seconds * 1e3:.3f} ms, {size}{energy}"


def check(options: SearchOptions) -> None:
    for name in ("at_least", "latency_ms", "size_mb", "energy_millijoules", "seconds"):
        value = getattr(options, name)
        if value is not None and not (isinstance(value, Real) and 0 < float(value) < np.inf):
            raise InputError(name, expected="a positive number", got=value)
    if options.at_least is not None and options.at_least > 1:
        raise InputError("at_least", expected="a fraction of the float model's score, up to 1", got=options.at_least)
    if options.metric is not None and not callable(options.metric):
        raise InputError("metric", expected="a function of a list of outputs", got=type(options.metric).__name__)
    formats = options.formats
    unknown = formats if isinstance(formats, str) else [f for f in formats or () if f not in FORMATS]
    if unknown:
        words = [unknown] if isinstance(unknown, str) else unknown
        fix = next((fix for word in words if (fix := word_fix(word, FORMATS))), None)
        raise InputError("formats", expected=f"a sequence of some of {', '.join(FORMATS)}", got=unknown, fix=fix)


def energy_counters(options: SearchOptions) -> EnergyCounters:
    """The energy counters of this machine, if energy is constrained. Raises InputError if there are none."""
    if options.energy_millijoules is None:
        return EnergyCounters((), ())
    energy = device.energy_counters({"cpu"})
    if not energy.counters:
        got = "none" + (f" ({'; '.join(energy.reasons)})" if energy.reasons else "")
        raise InputError("energy_millijoules", expected="a machine with an energy counter", got=got, fix="leave it out")
    return energy


def ladder(options: Mapping[str, Sequence[Option]], per_byte: float = 0.0) -> list[dict[str, str]]:
    """Choices from the most accurate to the cheapest. The cost is the seconds, plus `per_byte` seconds for each
    byte."""
    steps: list[tuple[float, int, str, str]] = []
    current: dict[str, str] = {}
    for order, (name, offered) in enumerate(options.items()):
        hull = _hull([(o.error, o.seconds + per_byte * o.nbytes, o.form) for o in offered])
        current[name] = hull[0][2]
        for (e0, c0, _), (e1, c1, form) in pairwise(hull):
            steps.append(((c0 - c1) / (e1 - e0), -order, name, form))
    rungs = [dict(current)]
    for _, _, name, form in sorted(steps, reverse=True):
        current[name] = form
        rungs.append(dict(current))
    return rungs


def _hull(points: Sequence[tuple[float, float, str]]) -> list[tuple[float, float, str]]:
    """The lower convex hull, by increasing error: each step saves less cost per error than the previous one."""
    hull: list[tuple[float, float, str]] = []
    for p in sorted(points, key=lambda p: (p[0], p[1])):
        if hull and p[1] >= hull[-1][1]:
            continue
        while len(hull) > 1 and _slope(hull[-2], hull[-1]) <= _slope(hull[-1], p):
            hull.pop()
        if hull and p[0] == hull[-1][0]:
            hull.pop()
        hull.append(p)
    return hull


def _slope(a: tuple[float, float, str], b: tuple[float, float, str]) -> float:
    return (a[1] - b[1]) / max(b[0] - a[0], 1e-300)


class Search:
    """simulate: estimates the score on the search samples. measure: builds and measures a named choice. out_of_time:
    whether to stop."""

    def __init__(
        self,
        options: Mapping[str, Sequence[Option]],
        goals: Goals,
        simulate: Callable[[Formats], float],
        measure: Callable[[str, Formats], Point],
        out_of_time: Callable[[], bool] = lambda: False,
    ) -> None:
        self.options, self.goals = options, goals
        self._simulate, self._measure, self._out_of_time = simulate, measure, out_of_time
        self.points: list[Point] = []
        self.ahead = 1  # rungs that are measured at a time
        self.prefetch: Callable[[Sequence[tuple[str, Formats]]], None] = lambda models: None

    def run(self, uniform_points: Sequence[Point]) -> Point:
        """The fastest choice that meets the goals; without a goal for the score, the most accurate that meets the
        others.

        uniform_points: models that are measured already, the float model first. Raises ConstraintError.
        """
        self.points = list(uniform_points)
        rungs = self._rungs()
        index = self._start(rungs)
        step = -1 if self.goals.min_scores is not None else 1  # towards more accurate choices, or faster ones
        path = _path(index, step, len(rungs) - 1)
        for at, index in enumerate(path):
            if at % self.ahead == 0:
                models = [(_name(i, rungs), rungs[i]) for i in path[at : at + self.ahead]]
                self.prefetch([(name, formats) for name, formats in models if self._measured_point(formats) is None])
            point = self._find_or_measure(rungs[index], _name(index, rungs))
            if (self._is_accurate(point) if step < 0 else point.fits(self.goals)) or self._out_of_time():
                break
        return self._best()

    def _rungs(self) -> list[dict[str, str]]:
        """The choices to try, the most accurate first: only those that are small enough, if there are any."""
        max_bytes = self.goals.nbytes
        if max_bytes is None:
            return ladder(self.options)
        rungs = [r for weight in _SECONDS_PER_BYTE for r in ladder(self.options, weight)]
        distinct = sorted({tuple(r.items()): r for r in rungs}.values(), key=self._error)
        fixed_bytes = self.points[0].nbytes - self._bytes(self._float())
        small = [r for r in distinct if self._bytes(r) + fixed_bytes <= max_bytes]
        return small or [min(distinct, key=self._bytes)]

    def _float(self) -> dict[str, str]:
        return dict.fromkeys(self.options, FLOAT)

    def _selected(self, formats: Formats) -> list[Option]:
        return [o for name, offered in self.options.items() for o in offered if o.form == formats[name]]

    def _error(self, formats: Formats) -> float:
        return sum(o.error for o in self._selected(formats))

    def _bytes(self, formats: Formats) -> int:
        return sum(o.nbytes for o in self._selected(formats))

    def _start(self, rungs: Sequence[dict[str, str]]) -> int:
        """The index of the last rung whose simulated score is acceptable; without a goal for the score, of the first
        rung that is fast enough."""
        min_scores, last = self.goals.min_scores, len(rungs) - 1
        if min_scores is None:
            fixed_seconds = self.points[0].seconds - self._seconds(self._float())
            max_seconds = LATENCY_FRACTION * (self.goals.seconds or float("inf")) - fixed_seconds
            return next((i for i, r in enumerate(rungs) if self._seconds(r) <= max_seconds), last)
        min_score = min_scores[0]
        if self._simulate(rungs[last]) >= min_score:
            return last
        low, high = 0, last
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._simulate(rungs[middle]) >= min_score else (low, middle)
        return low

    def _seconds(self, formats: Formats) -> float:
        return sum(o.seconds for o in self._selected(formats))

    def _is_accurate(self, point: Point) -> bool:
        min_scores = self.goals.min_scores
        return min_scores is None or all(s >= g for s, g in zip(point.scores, min_scores, strict=True))

    def _find_or_measure(self, formats: dict[str, str], name: str) -> Point:
        point = self._measured_point(formats)
        if point is None:
            point = self._measure(name, formats)
            self.points.append(point)
        return point

    def _measured_point(self, formats: Formats) -> Point | None:
        return next((p for p in self.points if all(p.formats.get(g, FLOAT) == f for g, f in formats.items())), None)

    def _best(self) -> Point:
        matches = [p for p in self.points if p.meets_constraints(self.goals)]
        if not matches:
            raise ConstraintError(self._failure(), frontier(self.points))
        if self.goals.min_scores is None:
            return max(matches, key=lambda p: (p.scores[1], -p.seconds))
        return min(matches, key=lambda p: p.seconds)

    def _failure(self) -> str:
        goals, parts = self.goals, []
        if goals.min_scores is not None:
            parts.append(f"a score of {goals.min_scores[1]:.6g}")
        if goals.seconds is not None:
            parts.append(f"{goals.seconds * 1e3:g} ms")
        if goals.nbytes is not None:
            parts.append(f"{goals.nbytes / 1e6:g} MB")
        if goals.joules is not None:
            parts.append(f"{goals.joules * 1e3:g} mJ")
        return f"quantize: no choice of formats reaches {' and '.join(parts)}"


def _path(index: int, step: int, last: int) -> list[int]:
    """The rungs to try in turn, from `index` on to either end in ever smaller steps."""
    path = [index]
    while len(path) < _MAX_BUILDS and (remaining := index if step < 0 else last - index):
        index += step * max(1, remaining // 4)
        path.append(index)
    return path


def _name(index: int, rungs: Sequence[Formats]) -> str:
    return f"rung {index} of {len(rungs) - 1}"


def frontier(points: Sequence[Point]) -> list[Point]:
    """The Pareto-optimal points in score, time and size, the fastest first."""

    def beaten(p: Point) -> bool:
        return any(
            q is not p and q.scores[1] >= p.scores[1] and q.seconds <= p.seconds and q.nbytes <= p.nbytes
            and (q.scores[1], q.seconds, q.nbytes) != (p.scores[1], p.seconds, p.nbytes)
            for q in points
        )  # fmt: skip

    return sorted((p for p in points if not beaten(p)), key=lambda p: p.seconds)
