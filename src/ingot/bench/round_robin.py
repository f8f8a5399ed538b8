"""Engines in separate processes, which run short bursts in alternation.

Commands and answers of a worker are lines of JSON. The order rotates in each round, so that a slow phase of the machine
affects all workers equally.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from ingot.support import progress

PAUSE_SECONDS = 0.03  # seconds between bursts: lets the last engine's spinning threads go to sleep
_TIMEOUT_SECONDS = 3600.0


class WorkerFailed(Exception):
    """A worker reported an error, or ended."""


class Worker:
    """A process that runs `python -m module arguments`; its standard error goes to the file `log`.

    threads: of the engine's libraries. limit: the maximum seconds of an answer.
    """

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        *,
        threads: int,
        log: Path,
        environment: Mapping[str, str],
        limit: float = _TIMEOUT_SECONDS,
    ) -> None:
        count = str(threads)
        limits = {"OMP_NUM_THREADS": count, "MKL_NUM_THREADS": count, "OPENBLAS_NUM_THREADS": count}
        self.limit, self.log = limit, log
        with log.open("a") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments], env={**os.environ, **limits, **environment},
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
            )  # fmt: skip

    def answer(self) -> dict[str, Any]:
        """Wait for the next answer. Raises WorkerFailed."""
        assert self.process.stdout is not None
        alarm = threading.Timer(self.limit, self.process.kill)
        alarm.start()
        try:
            line = self.process.stdout.readline()
        finally:
            alarm.cancel()
        if not line:
            status = self.process.wait()
            hint = f" (an answer may take {self.limit:.0f} s)" if status == -signal.SIGKILL else ""
            tail = " ".join(self.log.read_text(errors="replace").split())[-300:]
            raise WorkerFailed(f"its process ended with status {status}{hint}: {tail}")
        value = json.loads(line)
        if "failed" in value:
            raise WorkerFailed(str(value["failed"]))
        return value

    def ask(self, **command: str | float) -> dict[str, Any]:
        """Send a command and wait for its answer. Raises WorkerFailed."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(command) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return self.answer()  # raises with the worker's own words
        return self.answer()

    def close(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe:
                with suppress(BrokenPipeError):  # what an ended process was not told any more
                    pipe.close()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


K = TypeVar("K")
R = TypeVar("R")


def round_robin(
    workers: dict[K, Worker],
    rounds: int,
    burst: Callable[[Worker], R],
    failed: Callable[[K, WorkerFailed], None] | None = None,
) -> dict[K, list[R]]:
    """The results of `burst` for each worker in each round. A worker that fails is passed to `failed` and removed from
    `workers`.

    Raises WorkerFailed if `failed` is None.
    """
    times: dict[K, list[R]] = {name: [] for name in workers}
    for round_index in range(rounds):
        progress.report("measure", round_index, rounds)
        order = list(workers)
        shift = round_index % max(1, len(order))
        for name in order[shift:] + order[:shift]:
            try:
                times[name].append(burst(workers[name]))
            except WorkerFailed as failure:
                if failed is None:
                    raise
                failed(name, failure)
                del workers[name], times[name]
            time.sleep(PAUSE_SECONDS)
    return times
