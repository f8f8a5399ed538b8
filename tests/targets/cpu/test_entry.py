"""Whether a run wakes sleeping workers: by what runs of either kind took, and whether others follow closely."""

import ctypes
import time
from collections.abc import Iterator

import numpy as np
import pytest

from ingot.runtime.cpu.device import Loaded
from ingot.runtime.executor import CompiledModel
from tests.runtime import models

ASLEEP, SPIN, ENDED, ROW = (at // 8 for at in (256, 520, 576, 584))
ALONE, WOKEN = 7, 8
LONG_AGO, FOREVER = 1 << 62, 1 << 50
X = np.arange(3000, dtype=np.float32)


class Bench:
    """A program whose worker sleeps and, once woken, stays awake."""

    def __init__(self) -> None:
        self.model = CompiledModel(models.static(3000, steps=6), threads=2)
        self.call()
        loaded = self.model._loaded
        assert isinstance(loaded, Loaded)
        (context,) = loaded._contexts
        assert context.current is not None
        self.times = context.current._context
        self.pool = ctypes.cast(context.pool.address, ctypes.POINTER(ctypes.c_int64))
        deadline = time.monotonic() + 10
        while not self.asleep() and time.monotonic() < deadline:
            time.sleep(0.001)
        assert self.asleep()
        self.spin = self.pool[SPIN]
        self.pool[SPIN], self.pool[ENDED], self.pool[ROW] = FOREVER, LONG_AGO, 0

    def call(self) -> None:
        assert np.array_equal(self.model(X), (X + X) * 64)  # type: ignore[arg-type]

    def asleep(self) -> int:
        return self.pool[ASLEEP]


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.pool[SPIN] = made.spin  # others may share the pool


@pytest.mark.parametrize(("alone", "woken", "asleep"), [(0, 0, 0), (0, 5000, 1), (4000, 5000, 1), (6000, 5000, 0)])
def test_what_took_less_is_done(bench: Bench, alone: int, woken: int, asleep: int):
    bench.times[[ALONE, WOKEN]] = alone, woken
    bench.call()
    assert bench.asleep() == asleep


def test_a_long_program_does_not_try_alone(bench: Bench):
    bench.times[[ALONE, WOKEN]] = 0, 4 * FOREVER
    bench.call()
    assert bench.asleep() == 0


def test_runs_that_follow_closely_wake_the_worker(bench: Bench):
    slept = []
    for _ in range(3):
        bench.times[[ALONE, WOKEN]] = 1, 5000
        bench.call()
        slept.append(bench.asleep())
    assert slept == [1, 1, 0]


def test_times_fall_at_once_and_rise_by_an_eighth(bench: Bench):
    bench.times[[ALONE, WOKEN]] = 8, 1 << 14
    bench.call()
    assert list(bench.times[[ALONE, WOKEN]]) == [9, (1 << 14) - 16]
    bench.times[[ALONE, WOKEN]] = FOREVER, FOREVER
    bench.call()
    assert 0 < bench.times[ALONE] < FOREVER
