"""A process that measures formats for a search elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ingot.debug.feeds import read_archive
from ingot.debug.source import Source
from ingot.support.blas import blas_threads
from ingot.support.files import locked
from ingot.transform.quantize.run import Quantizer, SearchOptions, open_quantizer
from ingot.tune.requests import answer_lines
from ingot.tune.task import TaskWorker, turn_file


class Worker(TaskWorker[Quantizer]):
    """
    {"task": {"model": FILE, "words": {...}, "samples": FILE, "batch": N, "options": {...}}, "job": JOB}
    ->   {"prefix": KEY, "values": {KEY: number, ...}}, as the table of measurements has them

    JOB: {"name": NAME, "formats": {GROUP: FORMAT}} for a model, with "times": FORMAT for those of its groups, too; or
    {"errors": [[GROUP, FORMAT], ...], "calls": N}.
    """

    def open(self, source: Source, task: dict[str, Any]) -> Quantizer:
        options, samples = SearchOptions(**task["options"]), read_archive(Path(task["samples"]))
        quantizer = open_quantizer(source.path, samples, dynamic=source.dynamic, batch=task["batch"], options=options)
        with blas_threads(quantizer.threads):
            quantizer.prepare(turn=lambda: locked(turn_file()))
        return quantizer

    def measure(self, opened: Quantizer, request: dict[str, Any]) -> dict[str, Any]:
        """Raises what quantizing raises."""
        with blas_threads(opened.threads):
            return {"prefix": opened.table.prefix, "values": opened.measure(request["job"])}


def main() -> None:
    answer_lines(Worker().answer)


if __name__ == "__main__":
    main()
