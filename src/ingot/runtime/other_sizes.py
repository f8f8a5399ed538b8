"""Programs for sizes that a model's main program does not support.

m(x[:0])   ->   batch = 0 is not in batch >= 1   ->   compile once more for such a call   ->   that program's result

A compiler that knows a size to be at least 1 folds maxima, reads first elements and takes branches. PyTorch's tracing
specializes on the example's sizes: x[3:] of 8 elements is valid for 3 and more. Other sizes need programs of their own.
Each is compiled when a call brings such sizes, and supports as many sizes as possible.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from copy import copy
from typing import Any, TypeVar

from ingot.support.errors import CompileError, ImportModelError, InputError, ShapeError, SizesError, UnsupportedOpError
from ingot.support.log import Log

MAX_PROGRAMS = 16
_MAX_FAILURES = 16  # failed compilations before giving up: the model itself may refuse such sizes
_log = Log("ingot.other_sizes")

Build = Callable[[SizesError], Any]
Result = TypeVar("Result")


class OtherSizes:
    """A model's further programs, the most recently used last. Safe to call from several threads."""

    def __init__(self, build: Build) -> None:
        """build: compiles a model of the same calling convention for a refused call; None if there can be none."""
        self._build = build
        self._programs: list[Any] = []
        self._failures = 0
        self._lock = threading.Lock()

    def call(self, refused: SizesError, run: Callable[[Any], Result]) -> Result:
        """The result of `run` on the first program that supports a call. Raises `refused` if none does."""
        for program in reversed(self._programs):
            try:
                result = run(program)
            except InputError:
                continue
            self._mark_used(program)
            return result
        with self._lock:
            program = self._compile(refused)
        try:
            result = run(program)
        except SizesError:
            if not refused.out_of_range:
                raise refused from None
            # the sizes within the bounds do not meet a condition: one program more, for all of them
            return self.call(copy(refused).of(refused.shapes), run)
        self._mark_used(program)
        return result

    def _compile(self, refused: SizesError) -> Any:
        if self._failures >= _MAX_FAILURES:
            raise refused
        try:
            program = self._build(refused)
        except (ImportModelError, UnsupportedOpError, ShapeError, CompileError) as e:
            self._failures += 1
            _log.info("no program for sizes %s: %s", refused.shapes, e)
            raise refused from e
        if program is None:
            raise refused
        _log.info("compiled for sizes %s", ", ".join(map(str, map(list, refused.shapes))))
        return program

    def _mark_used(self, program: Any) -> None:
        with self._lock:
            self._programs = [*(p for p in self._programs if p is not program), program]
            if len(self._programs) > MAX_PROGRAMS:
                _log.warning("more than %d programs for other sizes: dropped the least recently used", MAX_PROGRAMS)
                del self._programs[0]
