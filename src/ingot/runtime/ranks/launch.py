"""Start processes that run one function together: `ingot.launch`."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from ingot.runtime.ranks import current
from ingot.support.errors import DeviceError, InputError

_ENDED = "it ended with exit code"
_GRACE_SECONDS = 8.0  # in which the others notice that a rank has ended, before they are ended


def launch(
    function: Callable[..., Any], processes: int, args: Sequence[Any] = (), *, gpus: Sequence[int] | None = None,
    seconds: float | None = None,
) -> list[Any]:  # fmt: skip
    """Run `function(*args)` in `processes` new processes of this machine, and return its results by rank.

    In each of them, `ingot.compile(..., mesh=...)` and `ingot.train(..., mesh=...)` return the program of the process's
    rank. The function, its arguments and its results are pickled, as by `multiprocessing`; in a script, call `launch`
    under `if __name__ == "__main__":`.

    Args:
        gpus: the number of the GPU of each process; by default those that the processes see.
        seconds: the time after which all processes are ended.

    Raises DeviceError with the rank's traceback if one fails, or that says how it ended: the others are ended, too.
    """
    if type(processes) is not int or processes < 1:
        raise InputError("processes", expected="a number, at least 1", got=repr(processes))
    if gpus is not None and len(gpus) != processes:
        raise InputError("gpus", expected=f"a number for each of {processes} processes", got=list(gpus))
    memory = "/dev/shm" if os.path.isdir("/dev/shm") and os.access("/dev/shm", os.W_OK) else None
    folder = Path(tempfile.mkdtemp(prefix="ingot-ranks-", dir=memory))
    context = multiprocessing.get_context("spawn")
    started: list[tuple[Any, Connection]] = []
    try:
        for rank in range(processes):
            receiver, sender = context.Pipe(duplex=False)
            environment = {
                current.RANK: str(rank),
                current.WORLD_SIZE: str(processes),
                current.CONTROL: str(folder / "control"),
            }
            if gpus is not None:
                environment["CUDA_VISIBLE_DEVICES"] = str(gpus[rank])
            process = context.Process(target=_run, args=(environment, sender, function, tuple(args)), daemon=True)
            process.start()
            sender.close()
            started.append((process, receiver))
        return _results(started, seconds)
    finally:
        for process, receiver in started:
            if process.is_alive():
                process.kill()
            process.join()
            receiver.close()
        shutil.rmtree(folder, ignore_errors=True)


def _run(environment: dict[str, str], sender: Connection, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    os.environ.update(environment)
    try:
        result = True, function(*args)
    except BaseException:
        result = False, traceback.format_exc()
    current.leave(failed=not result[0])
    sender.send(result)
    sender.close()


def _results(started: Sequence[tuple[Any, Connection]], seconds: float | None) -> list[Any]:
    results: dict[int, Any] = {}
    errors: list[tuple[int, str]] = []
    limit = None if seconds is None else time.monotonic() + seconds
    left = {receiver: rank for rank, (_, receiver) in enumerate(started)}
    while left:
        remaining = None if limit is None else limit - time.monotonic()
        ready = wait(list(left), remaining if remaining is None else max(remaining, 0))
        if not ready:
            if errors:
                break
            raise DeviceError(
                "processes", expected=f"an end within {seconds:g} s", got=f"ranks {[*left.values()]} at work"
            )
        for receiver in ready:
            assert isinstance(receiver, Connection)
            rank = left.pop(receiver)
            try:
                succeeded, value = receiver.recv()
            except EOFError:
                started[rank][0].join()
                succeeded, value = False, f"{_ENDED} {started[rank][0].exitcode}"
            if succeeded:
                results[rank] = value
            else:
                errors.append((rank, value))
                grace = time.monotonic() + _GRACE_SECONDS
                limit = grace if limit is None else min(limit, grace)
    if errors:
        # what ended without a word is the reason why others do, or else the first to end
        rank, value = next((e for e in errors if e[1].startswith(_ENDED)), errors[0])
        others = f"; {len(errors) - 1} others ended with it" if len(errors) > 1 else ""
        raise DeviceError(f"rank {rank} of {len(started)} failed{others}:\n{value}")
    return [results[rank] for rank in range(len(started))]
