"""Measure the time of a call. All times that Ingot reports are measured in this way.

The first call warms up and is not counted. Further calls follow back to back, each between two readings of the clock.
The time of a call is their median: a mean would include every moment in which another process had the core. Calls to
compare alternate in short bursts, so that a slow minute of the machine affects all of them equally.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

BURST_SECONDS = 0.15
_MIN_CALLS, _MIN_ROUNDS = 3, 5

Call = Callable[[], object]
Clock = Callable[[], float]


def burst(call: Call, seconds: float = BURST_SECONDS, clock: Clock = time.perf_counter) -> NDArray[np.float64]:
    """The seconds of each of at least 3 calls within about `seconds`, after a warm-up call."""
    call()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < _MIN_CALLS or time.perf_counter() < end:
        begin = clock()
        call()
        times.append(clock() - begin)
    return np.array(times)


def median(call: Call, seconds: float = BURST_SECONDS) -> float:
    """The median seconds of a call."""
    return float(np.median(burst(call, seconds)))


def interleaved(
    calls: Sequence[Call],
    seconds: float,
    burst_seconds: float,
    statistic: Callable[[NDArray[np.float64]], np.floating] = np.median,
    clock: Clock = time.perf_counter,
) -> NDArray[np.float64]:
    """An array (rounds, calls) of the `statistic` of each call's burst: about `seconds` in total, at least 5 rounds."""
    rounds: list[list[float]] = []
    end = time.perf_counter() + seconds
    while len(rounds) < _MIN_ROUNDS or time.perf_counter() < end:
        rounds.append([float(statistic(burst(call, burst_seconds, clock))) for call in calls])
    return np.array(rounds)
