"""Measurements of a search for formats by several workers, which fill a table that the search reads.

The search is the serial one: it looks each number up in the table, and measures those that are missing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

from ingot.support.dataclass import dataclass
from ingot.support.errors import DeviceError, InputError
from ingot.support.log import Log
from ingot.transform.quantize.table import Table
from ingot.tune.fleet import RemoteWorker, persistent_ask

Job: TypeAlias = Mapping[str, Any]  # see `worker.Worker`
_log = Log("ingot.quantize")


@dataclass(frozen=True)
class Fleet:
    """Workers that measure for one model. task: the request for the model that they open (see `worker.Worker`)."""

    workers: Sequence[RemoteWorker]
    task: Mapping[str, Any]

    @property
    def count(self) -> int:
        return len(self.workers)

    def fill(self, table: Table, jobs: Sequence[Job], done: Callable[[int], None] = lambda count: None) -> None:
        """Run the jobs on idle workers, and add their measurements to the table. The job of a worker that dies is
        repeated by a new process; a job that no process survives is left to the search. done: called with the number of
        finished jobs.

        Raises InputError for a worker on another kind of machine, or with another model or other samples.
        """
        waiting, lock = list(reversed(jobs)), threading.Lock()

        def work(worker: RemoteWorker) -> None:
            while True:
                with lock:
                    if not waiting:
                        return
                    job = waiting.pop()
                try:
                    answer = persistent_ask(worker, {"task": self.task, "job": job})
                except DeviceError as error:
                    _log.info("left to the search: %s", error)
                    continue
                if answer["prefix"] != table.prefix:
                    fix = "use machines of one kind, which read the same files"
                    raise InputError("a worker's machine, model and samples", expected="as here", got="others", fix=fix)
                with lock:
                    table.update(answer["values"])
                    done(len(jobs) - len(waiting))

        with ThreadPoolExecutor(max(len(self.workers), 1)) as threads:
            for finished in [threads.submit(work, worker) for worker in self.workers]:
                finished.result()
