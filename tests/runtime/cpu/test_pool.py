"""Threads: correctness under load, fork, exit. Each scenario that could hang runs in a process with a timeout."""

import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from ingot.runtime.cpu import pool
from ingot.runtime.cpu.pool import thread_count
from ingot.runtime.executor import CompiledModel
from ingot.support.errors import InputError
from tests.runtime import models
from tests.runtime.side_by_side import run, wrong_calls

EARLIER: set[threading.Thread] = set()  # workers of models that other tests left behind


def worker_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("ingot-worker")} - EARLIER


def workers() -> int:
    return len(worker_threads())


@pytest.fixture(autouse=True)
def own_pools(monkeypatch: pytest.MonkeyPatch):
    """Pools of this test alone: torch keeps what it compiled behind a graph break, with its workers, for good."""
    EARLIER.clear()
    EARLIER.update(worker_threads())
    monkeypatch.setattr(pool, "_pools", pool._Pools())


def settle(count: int) -> int:
    deadline = time.monotonic() + 5
    while workers() != count and time.monotonic() < deadline:
        time.sleep(0.005)
    return workers()


def test_models_share_a_pool_and_the_last_one_takes_it_along():
    assert settle(0) == 0
    first, second = (CompiledModel(models.static(), threads=4) for _ in range(2))
    assert workers() == 3
    third = CompiledModel(models.static(), threads=2)
    assert workers() == 4
    x = np.ones(1000, np.float32)
    assert np.array_equal(first(x), third(x))  # type: ignore[arg-type]
    del first, third
    assert settle(3) == 3
    second(x)
    del second
    assert settle(0) == 0


def busy() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "while True: pass"])


@pytest.mark.parametrize("threads", [2, 3, 4])
def test_thousands_of_calls_beside_a_busy_process(threads: int):
    neighbour = busy()
    try:
        model = CompiledModel(models.static(3000, steps=6), threads=threads)
        x = np.arange(3000, dtype=np.float32)
        expected = (x + x) * 64
        for call in range(1500):
            assert np.array_equal(model(x), expected)  # type: ignore[arg-type]
            if call % 300 == 0:
                time.sleep(0.001)  # let the workers fall asleep
    finally:
        neighbour.kill()
        neighbour.wait()


@pytest.mark.parametrize("spin", [0.0, 2e-6])
def test_no_wake_up_is_lost_when_everyone_sleeps_at_once(spin: float, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pool, "SPIN_SECONDS", spin)
    model = CompiledModel(models.static(3000, steps=6), threads=5)
    x = np.arange(3000, dtype=np.float32)
    for _ in range(1500):
        assert np.array_equal(model(x), (x + x) * 64)  # type: ignore[arg-type]
    del model
    assert settle(0) == 0


@pytest.mark.parametrize("seconds", [1e-6, 2e-3])
@pytest.mark.parametrize("threads", [1, 2, 3, 5, 8])
def test_every_chunk_runs_once(threads: int, seconds: float, monkeypatch: pytest.MonkeyPatch):
    """Fewer chunks than threads, as many, a few more; ranges that others help with; cores given up at every chunk."""
    monkeypatch.setattr(pool, "turn_seconds", lambda: seconds)
    for chunks in range(1, 2 * threads + 2):
        for rounds in (1, 3):
            model = CompiledModel(models.counting(chunks, rounds, 20), threads=threads)
            x = np.arange(models.CHUNK * chunks * rounds, dtype=np.float32)
            for _ in range(10):
                assert np.array_equal(model(x), x + 20)  # type: ignore[arg-type]


def test_threads_that_keep_apart_stay_free_to_run_anywhere(monkeypatch: pytest.MonkeyPatch):
    assert settle(0) == 0
    monkeypatch.setattr(pool, "turn_seconds", lambda: 1e-6)
    everywhere = os.sched_getaffinity(0)
    neighbours = [busy(), busy()]
    try:
        model = CompiledModel(models.static(3000, steps=6), threads=4)
        workers = [t.native_id for t in worker_threads()]
        x = np.arange(3000, dtype=np.float32)
        for _ in range(200):
            assert np.array_equal(model(x), (x + x) * 64)  # type: ignore[arg-type]
        time.sleep(0.05)
        assert len(workers) == 3
        assert all(os.sched_getaffinity(worker or 0) == everywhere for worker in workers)
        assert os.sched_getaffinity(0) == everywhere
    finally:
        for neighbour in neighbours:
            neighbour.kill()
            neighbour.wait()


def test_many_callers_many_models():
    """Callers of two pools and of single-thread models at once; dynamic shapes fight over one arena."""
    assert not wrong_calls([CompiledModel(models.dynamic(), threads=n) for n in (1, 2, 3)], calls=250)


def test_fork_makes_new_workers_in_the_child():
    stdout = run("""
model = CompiledModel(models.static(), threads=3)
assert np.array_equal(model(x), want)
stop = False
def caller():
    while not stop:
        model(x)
threads = [threading.Thread(target=caller) for _ in range(2)]
for t in threads: t.start()
for _ in range(5):  # the lock is sometimes held at the fork
    child = os.fork()
    if child == 0:
        assert np.array_equal(model(x), want)
        other = CompiledModel(models.static(), threads=3)
        assert np.array_equal(other(x), want)
        names = [t.name for t in threading.enumerate() if t.name.startswith("ingot-worker")]
        os._exit(0 if len(names) == 2 else 3)
    _, status = os.waitpid(child, 0)
    assert status == 0, status
stop = True
for t in threads: t.join()
assert np.array_equal(model(x), want)
print("fine")
""")
    assert stdout == "fine\n"


@pytest.mark.parametrize(
    "ending",
    [
        "pass",
        "time.sleep(0.05)",
        "sys.exit(0)",
        "del model",
        "import atexit; atexit._clear()",
        "class Late:\n  def __del__(self): model(x)\nkeep = [Late()]",
        "import atexit; atexit.register(lambda: print(np.array_equal(model(x), want)))",
        "threading.Thread(target=lambda: [model(x) for _ in range(10**9)], daemon=True).start(); time.sleep(0.02)",
        "pid = os.fork()\nif pid: os.waitpid(pid, 0)\nmodel(x)",
    ],
)
def test_the_interpreter_exits_cleanly(ending: str):
    run(f"model = CompiledModel(models.static(), threads=4)\nassert np.array_equal(model(x), want)\n{ending}\n")


def test_signals_reach_python_and_break_nothing():
    stdout = run("""
import signal
seen = []
signal.signal(signal.SIGALRM, lambda *_: seen.append(1))
signal.setitimer(signal.ITIMER_REAL, 0.0003, 0.0003)
model = CompiledModel(models.static(), threads=3)
end = time.time() + 1
while time.time() < end:
    assert np.array_equal(model(x), want)
signal.setitimer(signal.ITIMER_REAL, 0)
print(len(seen) > 100)
""")
    assert stdout == "True\n"


def test_without_permission_for_threads_the_caller_works_alone():
    stdout = run("""
program, before = models.static(), threading.active_count()
def refuse(self): raise RuntimeError("can't start new thread")
threading.Thread.start = refuse
model = CompiledModel(program, threads=4)
print(np.array_equal(model(x), want), threading.active_count() - before)
""")
    assert stdout == "True 0\n"


def test_more_threads_than_cores():
    stdout = run("""
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
models = [CompiledModel(models.static(), threads=n) for n in (2, 3, 8)]
print(all(np.array_equal(model(x), want) for _ in range(100) for model in models))
""")
    assert stdout == "True\n"


def test_thread_count(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("INGOT_THREADS", "7")
    assert thread_count(None) == 7
    monkeypatch.delenv("INGOT_THREADS")
    assert 1 <= thread_count(None) <= len(os.sched_getaffinity(0))
    cpus = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cpus)})
    try:
        assert thread_count(None) == 1
    finally:
        os.sched_setaffinity(0, cpus)


def test_a_program_has_at_least_one_thread():
    with pytest.raises(InputError, match="from 1 to 1024, got 0"):
        thread_count(0)
