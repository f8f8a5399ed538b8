"""The time of a call, measured in one way wherever Ingot names one.

One call warms up and is not counted. Others follow it back to back, each between two readings of the clock, and a
call takes what their median took: a mean would count every moment in which another process had the core. Calls that
are compared take turns in short bursts, so that a slow minute of the machine hits all alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

SECONDS = 0.15  # of a burst
_LEAST_CALLS, _LEAST_ROUNDS = 3, 5

Call = Callable[[], object]
Clock = Callable[[], float]


def burst(call: Call, seconds: float = SECONDS, clock: Clock = time.perf_counter) -> NDArray[np.float64]:
    """Seconds of each call of about `seconds`, at least 3, after one that warms up."""
    call()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < _LEAST_CALLS or time.perf_counter() < end:
        begin = clock()
        call()
        times.append(clock() - begin)
    return np.array(times)


def median(call: Call, seconds: float = SECONDS) -> float:
    """Seconds of a call."""
    return float(np.median(burst(call, seconds)))


def by_turns(
    calls: Sequence[Call],
    seconds: float,
    burst_seconds: float,
    of: Callable[[NDArray[np.float64]], np.floating] = np.median,
    clock: Clock = time.perf_counter,
) -> NDArray[np.float64]:
    """(rounds, calls): `of` the burst of each call, for about `seconds` in all and at least 5 rounds."""
    rounds: list[list[float]] = []
    end = time.perf_counter() + seconds
    while len(rounds) < _LEAST_ROUNDS or time.perf_counter() < end:
        rounds.append([float(of(burst(call, burst_seconds, clock))) for call in calls])
    return np.array(rounds)
