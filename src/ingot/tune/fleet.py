"""Measurements by several workers: processes of this machine, or Ray actors, one on each node.

The request of a worker that dies is repeated by a new one. A request that no worker survives is dropped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from itertools import repeat
from typing import Any, Protocol

import numpy as np

from ingot.support.dataclass import dataclass
from ingot.support.errors import DeviceError, InputError
from ingot.support.log import Log
from ingot.tune.trial import Choices, Readings
from ingot.tune.watched import Watched

MAX_TRIES = 3  # of a request, each with a new worker if the last one died
_TIMEOUT_SECONDS = 600.0  # for a request: the first one compiles the model
_MAX_LOCAL_WORKERS = 64
_log = Log("ingot.tune")


class RemoteWorker(Protocol):
    """A worker. It answers a request or raises DeviceError, after which the next request starts a new process."""

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]: ...

    def close(self) -> object: ...


@dataclass(frozen=True)
class Fleet:
    """Workers that measure for one model. task: the request for the model that they open (see `worker.Worker`).
    machine: the required name of their machines, for which entries are written. failures: of dropped requests, with
    the reasons."""

    workers: Sequence[RemoteWorker]
    task: Mapping[str, Any]
    machine: str
    failures: dict[str, str]

    @property
    def count(self) -> int:
        return len(self.workers)

    def readings(self, batches: Sequence[Choices], rounds: int) -> list[Readings]:
        """The readings of each batch, one batch for each worker. Raises InputError for a worker on another kind of
        machine."""
        with ThreadPoolExecutor(len(batches)) as threads:
            return [*threads.map(self._ask, self.workers, batches, repeat(rounds))]

    def _ask(self, worker: RemoteWorker, choices: Choices, rounds: int) -> Readings:
        records = {key: choice.record() for key, choice in choices.items()}
        try:
            answer = persistent_ask(worker, {"task": self.task, "choices": records, "rounds": rounds})
        except DeviceError as error:
            self.failures.update({f"{key}, {choice}": str(error) for key, choice in choices.items()})
            infinite_times = np.full((rounds, 2), (1.0, np.inf))
            return Readings(dict.fromkeys(choices, infinite_times), infinite_times)
        return self._readings(answer, choices)

    def _readings(self, answer: Mapping[str, Any], choices: Choices) -> Readings:
        if answer["machine"] != self.machine:
            fix = "tune on a machine of the same kind: entries are kept for each kind"
            raise InputError("a worker's machine", expected=self.machine, got=answer["machine"], fix=fix)
        return Readings({key: np.array(answer["sites"][key]) for key in choices}, np.array(answer["total"]))

    def close(self) -> None:
        for worker in self.workers:
            worker.close()


def persistent_ask(worker: RemoteWorker, request: Mapping[str, Any]) -> dict[str, Any]:
    """The answer to a request, which is repeated if a process dies. Raises DeviceError if no process survives the
    request."""
    for attempt in range(1, MAX_TRIES + 1):
        try:
            return worker.ask(request)
        except DeviceError as error:
            _log.info("attempt %d of a measurement failed: %s", attempt, error)
            if attempt == MAX_TRIES:
                raise
    raise AssertionError


def workers_of(text: str, module: str = "ingot.tune.worker") -> list[RemoteWorker]:
    """ "3": processes of this machine. "ray": a cluster that RAY_ADDRESS names or this machine, "ray://HOST:PORT": that
    cluster; an actor on each of its nodes. module: with the class `Worker` that they run, and a `main`. Raises
    InputError, and DeviceError where Ray is missing."""
    if re.fullmatch(r"\d+", text) and 1 <= int(text) <= _MAX_LOCAL_WORKERS:
        return [Watched(module, _TIMEOUT_SECONDS, "a measurement") for _ in range(int(text))]
    if text == "ray" or text.startswith("ray://"):
        return _ray_actors(None if text == "ray" else text, module)
    raise InputError(
        "--workers", expected=f"1 to {_MAX_LOCAL_WORKERS} processes, ray, or ray://HOST:PORT", got=repr(text)
    )


def _ray_actors(address: str | None, module: str) -> list[RemoteWorker]:
    try:
        import ray  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise DeviceError("workers of Ray", got=str(error), fix="pip install 'ingot-compiler[ray]'") from error
    if not ray.is_initialized():
        ray.init(address, include_dashboard=False if address is None else None, log_to_driver=False)
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # pyright: ignore[reportMissingImports]

    actor_class: Any = ray.remote(import_module(module).Worker)
    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]

    def start(node: str) -> Callable[[], Any]:
        return lambda: actor_class.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=True)).remote()

    return [_Actor(start(node)) for node in nodes]


class _Actor:
    """A worker on a node of Ray. start: creates an actor."""

    def __init__(self, start: Callable[[], Any]) -> None:
        self._start, self._actor = start, None

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        import ray  # pyright: ignore[reportMissingImports]
        from ray.exceptions import RayError  # pyright: ignore[reportMissingImports]

        actor = self._actor = self._actor or self._start()
        try:
            return ray.get(actor.answer.remote(dict(request)), timeout=_TIMEOUT_SECONDS)
        except (RayError, TimeoutError) as error:
            self.close()
            raise DeviceError("a measurement", got=str(error).strip().splitlines()[-1]) from error

    def close(self) -> None:
        import ray  # pyright: ignore[reportMissingImports]

        if self._actor is not None:
            ray.kill(self._actor)
        self._actor = None
