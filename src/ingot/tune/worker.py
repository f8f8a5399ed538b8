"""A worker that builds and measures candidates for a search in another process: a subprocess, or a Ray actor.

Only one worker of a machine measures at a time, while others may compile.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any, Protocol

from ingot.debug.build import build
from ingot.debug.feeds import index_limits, random_feeds
from ingot.debug.source import Words, open_source, read_graph
from ingot.pipeline import tuning
from ingot.schedule.choice import Choice, read_choice
from ingot.support.errors import IngotError, InputError
from ingot.support.files import locked
from ingot.tune.trial import Workbench


class Worker:
    """Answers requests about one model at a time. A request has everything that a new process needs:

    {"task": {"model": FILE, "words": {...}, "threads": N, "fast_math": ..., "precision": ...,
      "activations": ..., "sizes": {...}},
     "choices": {KEY: record}, "rounds": N}   ->   {"machine": NAME, "sites": {KEY: pairs}, "total": pairs}
    """

    def __init__(self) -> None:
        self._task: Any = None
        self._bench: Workbench | None = None

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """The readings of a request. Raises what compiling raises, and InputError for an invalid record."""
        bench = self._opened(request["task"])
        readings = bench.readings(_choices(request["choices"]), request["rounds"], locked(turn_file()))
        machine = tuning.machine_name(bench.features, bench.threads)
        sites = {key: pairs.tolist() for key, pairs in readings.sites.items()}
        return {"machine": machine, "sites": sites, "total": readings.total.tolist()}

    def _opened(self, task: dict[str, Any]) -> Workbench:
        if self._bench is None or task != self._task:
            graph = read_graph(open_source(Path(task["model"]), Words(**task["words"])))
            options = {name: task[name] for name in ("threads", "fast_math", "precision", "activations")}
            plan = build(graph, **options, target="null:native")
            feeds = random_feeds(plan.program, task["sizes"], index_limits(graph))
            self._task, self._bench = task, Workbench(graph, feeds, **options)
        return self._bench


def turn_file() -> Path:
    """The file that the measuring processes of a user on this machine lock."""
    return Path(tempfile.gettempdir()) / f"ingot-measure-{os.getuid()}" / "turn"


def _choices(records: dict[str, Any]) -> dict[str, Choice]:
    choices = {key: read_choice(record) for key, record in records.items()}
    if invalid := [record for key, record in records.items() if choices[key] is None]:
        raise InputError("choices", expected="records of choices", got=invalid[:3])
    return {key: choice for key, choice in choices.items() if choice is not None}


class Answering(Protocol):
    """A worker."""

    def answer(self, request: dict[str, Any], /) -> dict[str, Any]: ...


def answer_lines(worker: Answering) -> None:
    """Answer the requests on standard input, a line each, until one fails."""
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # stray prints go to standard error, not between the answers
    for line in sys.stdin.buffer:
        try:
            answer = worker.answer(json.loads(line))
        except (IngotError, MemoryError) as e:
            answer = {"error": str(e)}
        sink.write(json.dumps(answer).encode() + b"\n")
        sink.flush()
        if "error" in answer:
            os._exit(1)


def main() -> None:
    answer_lines(Worker())


if __name__ == "__main__":
    main()
