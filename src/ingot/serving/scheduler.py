"""A bounded queue for a model: threads take the oldest request, with those that can join it, as one call."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from ingot.serving.batching import Arrays, Key, Run, key_of, run_joined
from ingot.serving.errors import RequestError
from ingot.support.dataclass import dataclass
from ingot.support.log import Log

Observe = Callable[[int, float], None]
_log = Log("ingot.serving")


@dataclass(frozen=True)
class Queueing:
    """The limits of each model's queue.

    capacity: the number of requests that may wait; further ones are refused. max_rows: the maximum for one call of the
    model; 0: requests are never joined. delay: seconds for which the oldest request waits for others to join it.
    instances: the number of concurrent calls.
    """

    capacity: int = 256
    max_rows: int = 0
    delay: float = 0.0
    instances: int = 1


@dataclass(eq=False)
class _Entry:
    inputs: Arrays
    key: Key | None
    rows: int
    queued_at: float
    result: Future[Arrays]


class Scheduler:
    """Runs requests on `instances` threads. A request that is cancelled before its call never runs. If a joint call
    fails, its requests run again separately, so that each gets its own answer."""

    def __init__(self, run: Run, queueing: Queueing, name: str, observe: Observe = lambda rows, seconds: None) -> None:
        """run: flat inputs to outputs. observe: called with the rows (0: unknown) and seconds of each call."""
        self._run, self._queueing, self._observe = run, queueing, observe
        self._entries: deque[_Entry] = deque()
        self._changed = threading.Condition()
        self._is_closed = False
        self._threads = [
            threading.Thread(target=self._work, name=f"ingot-serve-{name}-{i}", daemon=True)
            for i in range(queueing.instances)
        ]
        for thread in self._threads:
            thread.start()

    def __len__(self) -> int:
        """The number of waiting requests."""
        return len(self._entries)

    def submit(self, inputs: Arrays) -> Future[Arrays]:
        """Queue a request. Raises RequestError (503) if the queue is full or closed."""
        key = key_of(inputs) if self._queueing.max_rows else None
        rows = inputs[0].shape[0] if key is not None else 0
        entry = _Entry(inputs, key, rows, time.monotonic(), Future())
        with self._changed:
            if self._is_closed:
                raise RequestError(503, "the server is shutting down")
            if len(self._entries) >= self._queueing.capacity:  # drop requests that were cancelled
                self._entries = deque(e for e in self._entries if not e.result.cancelled())
            if len(self._entries) >= self._queueing.capacity:
                fix = "try again later"
                raise RequestError(503, "the queue is full", got=f"{len(self._entries)} waiting requests", fix=fix)
            self._entries.append(entry)
            self._changed.notify()
        return entry.result

    def close(self) -> None:
        """Refuse further requests, cancel the waiting ones, and wait for the running ones."""
        with self._changed:
            self._is_closed = True
            for entry in self._entries:
                entry.result.cancel()
            self._entries.clear()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while (entries := self._take()) is not None:
            running = [e for e in entries if e.result.set_running_or_notify_cancel()]
            if running:
                self._answer(running)

    def _take(self) -> list[_Entry] | None:
        """The requests of the next call; None once the queue is closed."""
        with self._changed:
            while True:
                while not self._entries:
                    if self._is_closed:
                        return None
                    self._changed.wait()
                oldest = self._entries[0]
                batch = self._joining(oldest)
                remaining_seconds = oldest.queued_at + self._queueing.delay - time.monotonic()
                is_full = oldest.key is None or sum(e.rows for e in batch) >= self._queueing.max_rows
                if is_full or remaining_seconds <= 0 or self._is_closed:
                    for entry in batch:
                        self._entries.remove(entry)
                    return batch
                self._changed.wait(remaining_seconds)

    def _joining(self, oldest: _Entry) -> list[_Entry]:
        batch, rows = [oldest], oldest.rows
        if oldest.key is None:
            return batch
        for entry in self._entries:
            if entry is not oldest and entry.key == oldest.key and rows + entry.rows <= self._queueing.max_rows:
                batch.append(entry)
                rows += entry.rows
        return batch

    def _answer(self, entries: Sequence[_Entry]) -> None:
        start = time.perf_counter()
        try:
            results = run_joined(self._run, [e.inputs for e in entries])
        except BaseException as error:  # also MemoryError: the caller must get it, and the thread must continue
            if len(entries) == 1:
                entries[0].result.set_exception(error)
                return
            _log.info("%d joined requests failed and run by themselves: %s", len(entries), error)
            for entry in entries:
                self._answer([entry])
            return
        self._observe(sum(e.rows for e in entries), time.perf_counter() - start)
        for entry, result in zip(entries, results, strict=True):
            entry.result.set_result(result)
