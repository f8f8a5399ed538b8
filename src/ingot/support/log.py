"""Loggers of the standard library. `logging` is imported with the first message, as it takes a tenth of the imports for
loading a program and few processes log anything. Also the message for untested versions of packages."""

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
    """Log once that `package` is newer than the tested versions. It is used anyway."""
    if _release(version) > _release(TESTED[package]):
        Log("ingot").warning("%s %s is newer than %s, with which Ingot is tested", package, version, TESTED[package])


def _release(version: str) -> list[int]:
    """Major and minor."""
    return [int(part) for part in version.split(".")[:2]]
