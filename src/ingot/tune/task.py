"""A process of a search elsewhere, on its own or as a Ray actor, that opens one model at a time and answers requests
about it.

On a machine one process measures at a time, while others may build.
"""

from __future__ import annotations

import os
import tempfile
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, Generic, TypeVar

from ingot.debug.source import Source, Words, open_source

Opened = TypeVar("Opened")


class TaskWorker(ABC, Generic[Opened]):
    """Answers requests about one model at a time. A request says all that a new process needs to know:

    {"task": {"model": FILE, "words": {...}, ...}, ...}
    """

    def __init__(self) -> None:
        self._task: Any = None
        self._opened: Opened | None = None

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Raises what `open` and `measure` raise."""
        task = request["task"]
        if self._opened is None or task != self._task:
            self._opened = self.open(open_source(Path(task["model"]), Words(**task["words"])), task)
            self._task = task
        return self.measure(self._opened, request)

    @abstractmethod
    def open(self, source: Source, task: dict[str, Any]) -> Opened:
        """What the requests of a task have in common."""

    @abstractmethod
    def measure(self, opened: Opened, request: dict[str, Any]) -> dict[str, Any]: ...


def turn_file() -> Path:
    """The file that a user's measuring processes on this machine lock."""
    return Path(tempfile.gettempdir()) / f"ingot-measure-{os.getuid()}" / "turn"
