"""Loggers of the standard library, which are imported with the first message: that takes a tenth of what loading a
program imports, and next to no process has anything to say."""

from __future__ import annotations

from ingot.support.dataclass import dataclass


@dataclass(frozen=True)
class Log:
    name: str

    def info(self, message: str, *values: object) -> None:
        self._say("info", message, *values)

    def warning(self, message: str, *values: object) -> None:
        self._say("warning", message, *values)

    def _say(self, level: str, message: str, *values: object) -> None:
        import logging

        getattr(logging.getLogger(self.name), level)(message, *values, stacklevel=3)
