"""Whether a run wakes sleeping workers: by what runs of either kind took, and whether others follow closely."""

import ctypes
import re
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ingot.runtime.executor import CompiledModel
from tests.runtime import models

ASLEEP, SPIN, ENDED, ROW = (at // 8 for at in (256, 520, 576, 584))
ALONE, WOKEN = 7, 8
LONG_AGO, FOREVER = 1 << 62, 1 << 50
X = np.arange(3000, dtype=np.float32)


class Bench:
    """A program whose worker sleeps, and whose runs follow closely on each other, but for the first."""

    def __init__(self) -> None:
        self.model = CompiledModel(models.static(3000, steps=6), threads=2)
        (context,) = models.loaded(self.model)._contexts
        self.pool = ctypes.cast(context.pool.address, ctypes.POINTER(ctypes.c_int64))
        (worker,) = context.pool._workers
        self.status = Path(f"/proc/self/task/{worker.native_id}/status")
        self.woken()
        assert context.current is not None
        self.times = context.current._context
        self.spin = self.pool[SPIN]
        self.pool[SPIN], self.pool[ENDED], self.pool[ROW] = FOREVER, LONG_AGO, 0

    def woken(self) -> bool:
        """Whether a call wakes the worker: it has gone to sleep once more then."""
        before = self.sleeps()
        assert np.array_equal(self.model(X), (X + X) * 64)  # type: ignore[arg-type]
        return self.sleeps() > before

    def sleeps(self) -> int:
        """How often the worker went to sleep, where it is now."""
        deadline = time.monotonic() + 10
        while not (self.pool[ASLEEP] and "State:\tS" in self.status.read_text()) and time.monotonic() < deadline:
            time.sleep(0.001)
        results = re.search(r"^voluntary_ctxt_switches:\s*(\d+)", self.status.read_text(), re.MULTILINE)
        assert results is not None
        return int(results[1])


@pytest.fixture
def bench() -> Iterator[Bench]:
    fake_bench = Bench()
    yield fake_bench
    fake_bench.pool[SPIN] = fake_bench.spin  # others may share the pool


@pytest.mark.parametrize(
    ("single_us", "with_worker", "woken"), [(0, 0, True), (0, 5000, False), (4000, 5000, False), (6000, 5000, True)]
)
def test_what_took_less_is_done(bench: Bench, single_us: int, with_worker: int, woken: bool):
    bench.times[[ALONE, WOKEN]] = single_us, with_worker
    assert bench.woken() == woken


def test_a_long_program_does_not_try_alone(bench: Bench):
    bench.times[[ALONE, WOKEN]] = 0, 4 * FOREVER
    assert bench.woken()


def test_runs_that_follow_closely_wake_the_worker(bench: Bench):
    woken = []
    for _ in range(3):
        bench.times[[ALONE, WOKEN]] = 1, 5000
        woken.append(bench.woken())
    assert woken == [False, False, True]


def test_times_fall_at_once_and_rise_by_an_eighth(bench: Bench):
    bench.times[[ALONE, WOKEN]] = 8, 1 << 14
    assert not bench.woken()
    assert list(bench.times[[ALONE, WOKEN]]) == [9, (1 << 14) - 16]
    bench.times[[ALONE, WOKEN]] = FOREVER, FOREVER
    assert not bench.woken()
    assert 0 < bench.times[ALONE] < FOREVER
