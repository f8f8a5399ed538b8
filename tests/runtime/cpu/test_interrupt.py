"""Signals in long calls: a handler runs within a slice; what it raises ends the call, and the model is as before."""

import signal
import time
from collections.abc import Iterator

import numpy as np
import pytest

from ingot.runtime.cpu import run_context
from ingot.runtime.executor import CompiledModel
from tests.runtime import models

# threads, chunks, rounds: alone; chunks that several share; steps of one chunk, which one thread runs on its way
FORMS = [(1, 8, 4), (2, 8, 4), (3, 2, 4), (2, 1, 8), (1, 1, 8)]


class Alarm(Exception):
    pass


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """When a handler ran that does not raise, of a signal each 10 ms."""
    monkeypatch.setattr(run_context, "SLICE_SECONDS", 0.002)
    times: list[float] = []
    before = signal.signal(signal.SIGALRM, lambda *_: times.append(time.monotonic()))
    signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
    yield times
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def raising(*_: object) -> None:
    signal.setitimer(signal.ITIMER_REAL, 0)
    raise Alarm


@pytest.mark.usefixtures("calls")
@pytest.mark.parametrize(("threads", "chunks", "rounds"), FORMS)
def test_a_handler_that_raises_ends_the_call(threads: int, chunks: int, rounds: int):
    model = CompiledModel(models.counting(chunks, rounds, 8), threads=threads)
    x = np.zeros(models.CHUNK * chunks * rounds, np.float32)
    endless = CompiledModel(models.circling(chunks, rounds), threads=threads)
    for _ in range(3):
        signal.signal(signal.SIGALRM, raising)
        signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
        with pytest.raises(Alarm):
            endless(x)
        assert np.array_equal(model(x), x + 8)  # of the same pool


@pytest.mark.parametrize(("threads", "chunks", "rounds"), FORMS)
def test_a_call_goes_on_behind_other_handlers(calls: list[float], threads: int, chunks: int, rounds: int):
    steps = 60_000 // (chunks * rounds) * 8
    model = CompiledModel(models.counting(chunks, rounds, steps), threads=threads)
    x = np.zeros(models.CHUNK * chunks * rounds, np.float32)
    begin = time.monotonic()
    assert np.array_equal(model(x), x + steps)
    end = time.monotonic()
    assert end - begin < 0.03 or any(begin < t < end - 0.005 for t in calls)
