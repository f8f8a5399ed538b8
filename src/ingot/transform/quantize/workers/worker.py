"""A process that measures formats for a search elsewhere: in a process of its own, or as a Ray actor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ingot.debug.feeds import read_archive
from ingot.debug.source import Words, open_source
from ingot.support.blas import blas_threads
from ingot.support.files import locked
from ingot.transform.quantize.run import Quantizer, SearchOptions, open_quantizer
from ingot.tune.worker import answer_lines, turn_file


class Worker:
    """Answers requests about one model at a time. A request says all that a new process needs to know:

    {"task": {"model": FILE, "words": {...}, "samples": FILE, "batch": N, "options": {...}}, "job": JOB}
    ->   {"prefix": KEY, "values": {KEY: number, ...}}, as the table of measurements has them

    JOB: {"name": NAME, "formats": {GROUP: FORMAT}} for a model, with "times": FORMAT for those of its groups, too; or
    {"errors": [[GROUP, FORMAT], ...], "calls": N}.
    """

    def __init__(self) -> None:
        self._task: Any = None
        self._quantizer: Quantizer | None = None

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Raises what quantizing raises."""
        quantizer = self._opened(request["task"])
        with blas_threads(quantizer.threads):
            return {"prefix": quantizer.table.prefix, "values": quantizer.measure(request["job"])}

    def _opened(self, task: dict[str, Any]) -> Quantizer:
        if self._quantizer is None or task != self._task:
            source, options = open_source(Path(task["model"]), Words(**task["words"])), SearchOptions(**task["options"])
            samples = read_archive(Path(task["samples"]))
            opened = open_quantizer(source.path, samples, dynamic=source.dynamic, batch=task["batch"], options=options)
            with blas_threads(opened.threads):
                opened.prepare(turn=lambda: locked(turn_file()))
            self._task, self._quantizer = task, opened
        return self._quantizer


def main() -> None:
    answer_lines(Worker())


if __name__ == "__main__":
    main()
