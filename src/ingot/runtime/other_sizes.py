"""Programs for sizes that a model's program does not hold for.

m(x[:0])   ->   batch = 0 is not in batch >= 1   ->   compile once more for such a call   ->   that program's result

A compiler that knows a size to be 1 at least settles maxima, reads first elements and takes branches. PyTorch's tracing
does so for whatever the example's sizes answer: x[3:] of 8 elements holds for 3 and more. Of other sizes there are
programs of their own, each compiled when a call brings them, and each good for as many sizes as it may be.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from ingot.support.errors import CompileError, ImportModelError, InputError, ShapeError, SizesError, UnsupportedOpError
from ingot.support.log import Log

MOST_PROGRAMS = 16
_MOST_FAILURES = 16  # attempts that ended in an error: calls with sizes that the model itself refuses
_log = Log("ingot.other_sizes")

Build = Callable[[SizesError], Any]
Result = TypeVar("Result")


class OtherSizes:
    """A model's programs beside its own, the latest used last. Safe to call from several threads."""

    def __init__(self, build: Build) -> None:
        """build: from a call that was refused to a model called like the one that refused it, or to None where nothing
        but that can be said of such sizes."""
        self._build = build
        self._programs: list[Any] = []
        self._failures = 0
        self._lock = threading.Lock()

    def call(self, refused: SizesError, run: Callable[[Any], Result]) -> Result:
        """What `run` gives of the first of the programs that holds for a call. Raises `refused` where none does."""
        for program in reversed(self._programs):
            try:
                result = run(program)
            except InputError:
                continue
            self._keep(program)
            return result
        with self._lock:
            program = self._built(refused)
        try:
            result = run(program)
        except SizesError:
            raise refused from None
        self._keep(program)
        return result

    def _built(self, refused: SizesError) -> Any:
        if self._failures >= _MOST_FAILURES:
            raise refused
        try:
            program = self._build(refused)
        except (ImportModelError, UnsupportedOpError, ShapeError, CompileError) as e:
            self._failures += 1
            _log.info("no program for sizes %s: %s", refused.told, e)
            raise refused from e
        if program is None:
            raise refused
        _log.info("compiled for sizes %s", ", ".join(map(str, map(list, refused.told))))
        return program

    def _keep(self, program: Any) -> None:
        with self._lock:
            self._programs = [*(p for p in self._programs if p is not program), program]
            if len(self._programs) > MOST_PROGRAMS:
                _log.warning("more than %d programs for other sizes: the one least recently used goes", MOST_PROGRAMS)
                del self._programs[0]
