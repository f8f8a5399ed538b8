"""A call's time is the median of calls, the first not counted; calls that are compared take turns."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ingot.support import timing


class Clock:
    """Stands still but for calls, each of which takes the next of `seconds`, the last again and again."""

    def __init__(self, *seconds: float) -> None:
        self.now, self.seconds = 0.0, list(seconds)

    def __call__(self) -> float:
        return self.now

    def call(self) -> None:
        self.now += self.seconds.pop(0) if len(self.seconds) > 1 else self.seconds[0]


def test_the_first_call_is_not_counted_and_a_stall_is_no_part_of_the_median() -> None:
    clock = Clock(100.0, 1.0, 50.0, 2.0, 1.0)
    times = timing.burst(clock.call, 0.0, clock)
    assert times.tolist() == [1.0, 50.0, 2.0]
    assert np.median(times) == 2.0


def test_calls_take_turns() -> None:
    clock, order = Clock(1.0), list[str]()

    def named(name: str) -> Callable[[], None]:
        def call() -> None:
            order.append(name)
            clock.call()

        return call

    result = timing.interleaved([named("a"), named("b")], 0.0, 0.0, np.min, clock)
    assert result.shape == (5, 2) and (result == 1.0).all()
    assert order == (["a"] * 4 + ["b"] * 4) * 5
