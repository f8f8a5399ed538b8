"""Workers answer in lines of JSON, take turns in an order that rotates, and say why they fail."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from ingot.bench import round_robin
from ingot.bench.round_robin import Worker, WorkerFailed

SERVE = """
import json, os, sys, time
turns = 0
for line in sys.stdin:
    command, turns = json.loads(line), turns + 1
    if command.get("fail"):
        print(json.dumps({"failed": command["fail"]}), flush=True)
    elif command.get("end"):
        print(command["end"], file=sys.stderr)
        sys.exit(7)
    elif command.get("wait"):
        time.sleep(command["wait"])
    else:
        print(json.dumps({"turns": turns, "threads": os.environ["OMP_NUM_THREADS"]}), flush=True)
"""


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "served.py").write_text(SERVE)
    monkeypatch.setattr(round_robin, "PAUSE_SECONDS", 0.0)
    workers: list[Worker] = []

    def start(limit: float = 60.0) -> Worker:
        environment = {"PYTHONPATH": str(tmp_path)}
        workers.append(Worker("served", [], threads=3, log=tmp_path / "log", environment=environment, limit=limit))
        return workers[-1]

    yield start
    for worker in workers:
        worker.close()
        assert worker.process.returncode is not None


def test_turns_rotate_and_one_that_fails_leaves(started: Any) -> None:
    workers = {name: started() for name in "abc"}
    facts: list[tuple[str, str]] = []
    order: list[Worker] = []

    def burst(worker: Worker) -> int:
        order.append(worker)
        fails = worker is b and len(order) > 3
        return worker.ask(fail="out of memory" if fails else "")["turns"]

    a, b, c = workers.values()
    result = round_robin.round_robin(workers, 3, burst, lambda name, why: facts.append((name, str(why))))
    assert order == [a, b, c, b, c, a, a, c]  # each round begins with another; of two again with the first
    assert facts == [("b", "out of memory")]
    assert result == {"a": [1, 2, 3], "c": [1, 2, 3]} and list(workers) == ["a", "c"]


def test_a_failure_that_nobody_takes_is_raised(started: Any) -> None:
    with pytest.raises(WorkerFailed, match="no such op"):
        round_robin.round_robin({"a": started()}, 1, lambda worker: worker.ask(fail="no such op"))


def test_threads_are_told_to_libraries(started: Any) -> None:
    assert started().ask() == {"turns": 1, "threads": "3"}


def test_an_end_without_an_answer_has_the_logs_last_words(started: Any) -> None:
    worker = started()
    with pytest.raises(WorkerFailed, match=r"ended with status 7: .*the last words"):
        worker.ask(end="the last words")
    with pytest.raises(WorkerFailed, match="ended with status 7"):
        worker.ask()


@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL")
def test_an_answer_that_takes_too_long_ends_the_worker(started: Any) -> None:
    with pytest.raises(WorkerFailed, match=r"an answer may take 0 s"):
        started(limit=0.3).ask(wait=60)
