"""Search the formats: a ladder of choices by predicted time and error, whose rungs are then measured as full models.

    options by group (seconds, error, bytes)  ->  rungs, the most accurate first; each step saves the most seconds per
    error  ->  the fastest rung with an acceptable simulated score  ->  build, time, check; go up if it fails

The ladder is the greedy solution of the multiple-choice knapsack (Sinha and Zoltners, 1979): optimal at its rungs. Each
rung differs from the previous one in one group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from ingot.support.dataclass import dataclass
from ingot.support.errors import ConstraintError
from ingot.transform.quantize.formats import FLOAT, Formats

LATENCY_FRACTION = 0.95  # of the requested latency: the bound for the measured one
_MAX_BUILDS = 6
_SECONDS_PER_BYTE = (
    0.0,
    *(1e-12 * 10**i for i in range(6)),
)  # the cost of a byte, from zero to more than any real cost


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

    def meets(self, goals: Goals) -> bool:
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

    def run(self, uniform_points: Sequence[Point]) -> Point:
        """The fastest choice that meets the goals; without a goal for the score, the most accurate that meets the
        others.

        uniform_points: models that are measured already, the float model first. Raises ConstraintError.
        """
        self.points = list(uniform_points)
        rungs = self._rungs()
        index = self._start(rungs)
        step = -1 if self.goals.min_scores is not None else 1  # towards more accurate choices, or faster ones
        for _ in range(_MAX_BUILDS):
            point = self._find_or_measure(rungs[index], f"rung {index} of {len(rungs) - 1}")
            if self._is_accurate(point) if step < 0 else point.fits(self.goals):
                break
            remaining = index if step < 0 else len(rungs) - 1 - index
            if not remaining or self._out_of_time():
                break
            index += step * max(1, remaining // 4)
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
        for p in self.points:
            if all(p.formats.get(g, FLOAT) == f for g, f in formats.items()):
                return p
        point = self._measure(name, formats)
        self.points.append(point)
        return point

    def _best(self) -> Point:
        matches = [p for p in self.points if p.meets(self.goals)]
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


def frontier(points: Sequence[Point]) -> list[Point]:
    """The Pareto-optimal points in score, time and size, the fastest first."""

    def beaten(p: Point) -> bool:
        return any(
            q is not p and q.scores[1] >= p.scores[1] and q.seconds <= p.seconds and q.nbytes <= p.nbytes
            and (q.scores[1], q.seconds, q.nbytes) != (p.scores[1], p.seconds, p.nbytes)
            for q in points
        )  # fmt: skip

    return sorted((p for p in points if not beaten(p)), key=lambda p: p.seconds)
