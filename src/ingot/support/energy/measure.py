"""Joules per call: windows of calls between two steps of each counter, with the idle power measured around them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from ingot.support import progress
from ingot.support.dataclass import dataclass
from ingot.support.energy.counters import Counter, EnergyCounters, sampled
from ingot.support.errors import check_number

WINDOWS, MIN_SECONDS = 3, 3.0
_STEP_SECONDS, _POLL_SECONDS = 0.5, 0.001  # the longest wait for a counter's next step, and between two readings
NO_COUNTER = "energy: no counter on this machine"
_JOULES_PER_KWH = 3.6e6

Window = Callable[[float], int]  # makes calls back to back for at least these seconds; returns how many
Clock = Callable[[], float]


@dataclass(frozen=True)
class CounterEnergy:
    """The energy by one counter. joules: of a call, the median over the windows. spread: (largest - smallest) / median.
    idle_watts: without calls. idle_joules: the part of a call's joules that the idle machine would use."""

    name: str
    joules: float
    spread: float
    idle_watts: float
    idle_joules: float


@dataclass(frozen=True)
class Energy:
    """The energy of a call by each counter. seconds: of a call. reasons: why further counters were not read. unit: what
    a call is, such as a token."""

    counters: tuple[CounterEnergy, ...]
    seconds: float = 0.0
    calls: int = 0
    windows: int = 0
    reasons: tuple[str, ...] = ()
    unit: str = "call"

    @property
    def joules(self) -> float | None:
        """The joules of a call, over all counters; None without a counter."""
        return sum(c.joules for c in self.counters) if self.counters else None

    def cost_of_million(self, price_per_kwh: float) -> float | None:
        """The cost of a million calls, in the currency of the price."""
        return None if self.joules is None else 1e6 * self.joules / _JOULES_PER_KWH * price_per_kwh

    def __str__(self) -> str:
        if self.joules is None:
            return NO_COUNTER + (f" ({'; '.join(self.reasons)})" if self.reasons else "")
        watts = self.joules / self.seconds if self.seconds else 0.0
        lines = [
            f"energy: {joules_text(self.joules)} a {self.unit}, {watts:.1f} W; {self.calls} {self.unit}s, "
            f"{self.windows} windows"
        ]
        for c in self.counters:
            lines.append(
                f"  {c.name}: {joules_text(c.joules)}, spread {c.spread:.1%}; idle {joules_text(c.idle_joules)} of it "
                f"({c.idle_watts:.1f} W)"
            )
        return "\n".join([*lines, *(f"  not read: {reason}" for reason in self.reasons)])


class Profile(list[tuple[str, float]]):
    """(label, seconds) of each step, in order. energy: of a call, if requested."""

    energy: Energy | None = None


def joules_text(joules: float) -> str:
    for unit, scale in (("J", 1.0), ("mJ", 1e3), ("uJ", 1e6)):
        if abs(joules) * scale >= 1:
            return f"{joules * scale:.3g} {unit}"
    return f"{joules * 1e9:.3g} nJ"


def measure(
    window: Window,
    energy_counters: EnergyCounters,
    windows: int = WINDOWS,
    seconds: float = MIN_SECONDS,
    clock: Clock = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    unit: str = "call",
) -> Energy:
    """The measured energy of a call; nothing is estimated, and without counters nothing runs.

    Each window waits for a step of every counter, makes calls for `seconds`, and waits for the counters' next steps, as
    some advance in steps of 100 ms; the idle energy of the wait is subtracted. The idle power is the mean of windows
    before and after the others. Raises InputError for windows below 3 s, DeviceError from the counters.
    """
    check_number("windows", windows, "at least 1", lambda n: n >= 1, whole=True)
    check_number("the seconds of a window", seconds, f"at least {MIN_SECONDS:g}", lambda s: MIN_SECONDS <= s < 1e6)
    counters = energy_counters.counters
    if not counters:
        return Energy((), reasons=energy_counters.reasons, unit=unit)
    with sampled(counters):
        window(0.0)  # warms up
        idle = [_idle_watts(counters, seconds, clock, sleep)]
        rows: list[tuple[int, float, list[tuple[float, float]]]] = []
        for number in range(windows):
            progress.report("measure energy", number, windows)
            before = _steps(counters, clock, sleep)
            begin = clock()
            calls = window(seconds)
            busy_seconds = clock() - begin
            after = _steps(counters, clock, sleep)
            rows.append(
                (calls, busy_seconds, [(t1 - t0, j1 - j0) for (t0, j0), (t1, j1) in zip(before, after, strict=True)])
            )
        idle.append(_idle_watts(counters, seconds, clock, sleep))
    call_seconds = statistics.median(busy_seconds / calls for calls, busy_seconds, _ in rows)
    results: list[CounterEnergy] = []
    reasons = list(energy_counters.reasons)
    for n, counter in enumerate(counters):
        if any(total[n][1] <= 0 for _, _, total in rows):
            reasons.append(f"{counter.name} does not advance")
            continue
        watts = statistics.mean(powers[n] for powers in idle)
        joules = [(total[n][1] - watts * (total[n][0] - busy_seconds)) / calls for calls, busy_seconds, total in rows]
        median = statistics.median(joules)
        if median <= 0:  # more was subtracted than a call takes
            reasons.append(f"{counter.name} does not tell calls from an idle machine")
            continue
        spread = (max(joules) - min(joules)) / median
        results.append(CounterEnergy(counter.name, median, spread, watts, watts * call_seconds))
    return Energy(tuple(results), call_seconds, sum(calls for calls, _, _ in rows), windows, tuple(reasons), unit)


def calls_for(call: Callable[[], object], clock: Clock = time.monotonic, streams: int = 1) -> Window:
    """A window of one call in this process, by several threads at a time if `streams` is above 1."""

    def calls(seconds: float) -> int:
        end, count = clock() + seconds, 0
        while not count or clock() < end:
            call()
            count += 1
        return count

    def window(seconds: float) -> int:
        if streams == 1:
            return calls(seconds)
        with ThreadPoolExecutor(streams) as threads:
            return sum(threads.map(calls, [seconds] * streams))

    return window


def _idle_watts(
    counters: Sequence[Counter], seconds: float, clock: Clock, sleep: Callable[[float], None]
) -> list[float]:
    before = _steps(counters, clock, sleep)
    sleep(seconds)
    after = _steps(counters, clock, sleep)
    return [(j1 - j0) / (t1 - t0) for (t0, j0), (t1, j1) in zip(before, after, strict=True)]


def _steps(counters: Sequence[Counter], clock: Clock, sleep: Callable[[float], None]) -> list[tuple[float, float]]:
    """(time, joules) at each counter's next step, or after half a second without one."""
    steps: list[tuple[float, float]] = []
    for counter in counters:
        first, end = counter.joules(), clock() + _STEP_SECONDS
        now, joules = clock(), first
        while joules == first and now < end:
            sleep(_POLL_SECONDS)
            joules = counter.joules()
            now = clock()
        steps.append((now, joules))
    return steps
