"""A process that builds and measures candidates for a search elsewhere."""

from __future__ import annotations

from typing import Any

from ingot.debug.build import build
from ingot.debug.feeds import index_limits, random_feeds
from ingot.debug.source import Source, read_graph
from ingot.pipeline import tuning
from ingot.schedule.choice import Choice, read_choice
from ingot.support.errors import InputError
from ingot.support.files import locked
from ingot.tune.requests import answer_lines
from ingot.tune.task import TaskWorker, turn_file
from ingot.tune.trial import Workbench


class Worker(TaskWorker[Workbench]):
    """
    {"task": {"model": FILE, "words": {...}, "threads": N, "fast_math": ..., "precision": ...,
      "activations": ..., "sizes": {...}},
     "choices": {KEY: record}, "rounds": N}   ->   {"machine": NAME, "sites": {KEY: pairs}, "total": pairs}
    """

    def open(self, source: Source, task: dict[str, Any]) -> Workbench:
        graph = read_graph(source)
        options = {name: task[name] for name in ("threads", "fast_math", "precision", "activations")}
        plan = build(graph, **options, target="null:native")
        feeds = random_feeds(plan.program, task["sizes"], index_limits(graph))
        return Workbench(graph, feeds, **options)

    def measure(self, opened: Workbench, request: dict[str, Any]) -> dict[str, Any]:
        """Raises what compiling raises, and InputError for a record that is no choice."""
        readings = opened.readings(_choices(request["choices"]), request["rounds"], locked(turn_file()))
        machine = tuning.machine_name(opened.features, opened.threads)
        sites = {key: pairs.tolist() for key, pairs in readings.sites.items()}
        return {"machine": machine, "sites": sites, "total": readings.total.tolist()}


def _choices(records: dict[str, Any]) -> dict[str, Choice]:
    choices = {key: read_choice(record) for key, record in records.items()}
    if wrong := [record for key, record in records.items() if choices[key] is None]:
        raise InputError("choices", expected="records of choices", got=wrong[:3])
    return {key: choice for key, choice in choices.items() if choice is not None}


def main() -> None:
    answer_lines(Worker().answer)


if __name__ == "__main__":
    main()
