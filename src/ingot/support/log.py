"""Loggers of the standard library, which are imported with the first message: that takes a tenth of what loading a
program imports, and next to no process has anything to say. Also what is said of versions that nobody has tried."""

from __future__ import annotations

from functools import cache

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


# The newest release of each package that the tests have run with: docs/reference/versions.md.
TESTED = {"jax": "0.12", "keras": "3.15", "llvmlite": "0.50", "torch": "2.15", "triton": "3.9"}


@cache
def warn_if_untested(package: str, version: str) -> None:
    """Tell in the log, once, that `package` is newer than what the tests have run with. It is used all the same."""
    if _release(version) > _release(TESTED[package]):
        Log("ingot").warning("%s %s is newer than %s, with which Ingot is tested", package, version, TESTED[package])


def _release(version: str) -> list[int]:
    """Major and minor."""
    return [int(part) for part in version.split(".")[:2]]
