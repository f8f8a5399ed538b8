"""Which formats: a ladder of choices by predicted time and error, whose rungs are then measured as whole models.

    options by group (seconds, error, bytes)  ->  rungs, the most exact first, each next one the most seconds won per
    error  ->  the fastest rung whose simulated outputs are good enough  ->  built, timed, checked; one up if it fails

The ladder is the greedy solution of the multiple-choice knapsack (Sinha and Zoltners, 1979): exact at its rungs, and
each rung differs from the one before in one group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from ingot.support.dataclass import dataclass
from ingot.support.errors import ConstraintError
from ingot.transform.quantize.formats import FLOAT, Formats

PROMISED = 0.95  # of a latency that is asked for: what the measured one must be below
_MOST_BUILT = 6
_PER_BYTE = (
    0.0,
    *(1e-12 * 10**i for i in range(6)),
)  # seconds that a byte may cost: from none to more than it ever does


@dataclass(frozen=True)
class Option:
    """A group in a format: predicted seconds, squared relative error of the outputs, bytes of its weights."""

    form: str
    seconds: float
    error: float
    nbytes: int


@dataclass(frozen=True)
class Goals:
    """least: score on the samples that the search sees, and on those it does not. seconds, nbytes: of the whole."""

    least: tuple[float, float] | None
    seconds: float | None = None
    nbytes: int | None = None


@dataclass(frozen=True)
class Point:
    """A model that was built and measured. scores: on the samples that the search sees, and on those it does not."""

    name: str
    formats: Formats
    scores: tuple[float, float]
    seconds: float
    nbytes: int

    def meets(self, goals: Goals) -> bool:
        exact = goals.least is None or all(s >= g for s, g in zip(self.scores, goals.least, strict=True))
        return exact and self.fits(goals)

    def fits(self, goals: Goals) -> bool:
        """Whether it is fast and small enough."""
        quick = goals.seconds is None or self.seconds <= PROMISED * goals.seconds
        return quick and (goals.nbytes is None or self.nbytes <= goals.nbytes)

    def __str__(self) -> str:
        return f"{self.name}: score {self.scores[1]:.6g}, {self.seconds * 1e3:.3f} ms, {self.nbytes / 1e6:.3g} MB"


def ladder(options: Mapping[str, Sequence[Option]], per_byte: float = 0.0) -> list[dict[str, str]]:
    """Choices from the most exact to the cheapest; cost: seconds and `per_byte` seconds for each byte."""
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
    """The lower convex hull from the least error on: each step wins less cost per error than the one before."""
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
    """simulate: a score on the samples that the search sees. measure: builds a choice, by name. out_of_time: whether to
    come to an end."""

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

    def run(self, known: Sequence[Point]) -> Point:
        """The fastest choice that meets the goals; without a goal for the score, the most exact that meets the others.

        known: what was measured already, the float model first. Raises ConstraintError.
        """
        self.points = list(known)
        rungs = self._rungs()
        at = self._start(rungs)
        step = -1 if self.goals.least is not None else 1  # back to more exact ones, or on to faster ones
        for _ in range(_MOST_BUILT):
            point = self._measured(rungs[at], f"rung {at} of {len(rungs) - 1}")
            if self._good(point) if step < 0 else point.fits(self.goals):
                break
            ahead = at if step < 0 else len(rungs) - 1 - at
            if not ahead or self._out_of_time():
                break
            at += step * max(1, ahead // 4)
        return self._best()

    def _rungs(self) -> list[dict[str, str]]:
        """The choices to try, the most exact first; those alone that are small enough, where there are any."""
        most = self.goals.nbytes
        if most is None:
            return ladder(self.options)
        rungs = [r for weight in _PER_BYTE for r in ladder(self.options, weight)]
        unlike = sorted({tuple(r.items()): r for r in rungs}.values(), key=self._error)
        fixed = self.points[0].nbytes - self._bytes(self._float())
        small = [r for r in unlike if self._bytes(r) + fixed <= most]
        return small or [min(unlike, key=self._bytes)]

    def _float(self) -> dict[str, str]:
        return dict.fromkeys(self.options, FLOAT)

    def _of(self, formats: Formats) -> list[Option]:
        return [o for name, offered in self.options.items() for o in offered if o.form == formats[name]]

    def _error(self, formats: Formats) -> float:
        return sum(o.error for o in self._of(formats))

    def _bytes(self, formats: Formats) -> int:
        return sum(o.nbytes for o in self._of(formats))

    def _start(self, rungs: Sequence[dict[str, str]]) -> int:
        """The last rung whose simulated score is good enough; without a goal for it, the first in time."""
        least, last = self.goals.least, len(rungs) - 1
        if least is None:
            fixed = self.points[0].seconds - self._seconds(self._float())
            most = PROMISED * (self.goals.seconds or float("inf")) - fixed
            return next((i for i, r in enumerate(rungs) if self._seconds(r) <= most), last)
        needed = least[0]
        if self._simulate(rungs[last]) >= needed:
            return last
        low, high = 0, last
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._simulate(rungs[middle]) >= needed else (low, middle)
        return low

    def _seconds(self, formats: Formats) -> float:
        return sum(o.seconds for o in self._of(formats))

    def _good(self, point: Point) -> bool:
        least = self.goals.least
        return least is None or all(s >= g for s, g in zip(point.scores, least, strict=True))

    def _measured(self, formats: dict[str, str], name: str) -> Point:
        for p in self.points:
            if all(p.formats.get(g, FLOAT) == f for g, f in formats.items()):
                return p
        point = self._measure(name, formats)
        self.points.append(point)
        return point

    def _best(self) -> Point:
        good = [p for p in self.points if p.meets(self.goals)]
        if not good:
            raise ConstraintError(self._missed(), frontier(self.points))
        if self.goals.least is None:
            return max(good, key=lambda p: (p.scores[1], -p.seconds))
        return min(good, key=lambda p: p.seconds)

    def _missed(self) -> str:
        goals, parts = self.goals, []
        if goals.least is not None:
            parts.append(f"a score of {goals.least[1]:.6g}")
        if goals.seconds is not None:
            parts.append(f"{goals.seconds * 1e3:g} ms")
        if goals.nbytes is not None:
            parts.append(f"{goals.nbytes / 1e6:g} MB")
        return f"quantize: no choice of formats reaches {' and '.join(parts)}"


def frontier(points: Sequence[Point]) -> list[Point]:
    """Those that no other beats in score, time and size, the fastest first."""

    def beaten(p: Point) -> bool:
        return any(
            q is not p and q.scores[1] >= p.scores[1] and q.seconds <= p.seconds and q.nbytes <= p.nbytes
            and (q.scores[1], q.seconds, q.nbytes) != (p.scores[1], p.seconds, p.nbytes)
            for q in points
        )  # fmt: skip

    return sorted((p for p in points if not beaten(p)), key=lambda p: p.seconds)
