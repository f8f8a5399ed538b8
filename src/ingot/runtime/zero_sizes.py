"""Calls on nothing: programs in which sizes are 0 that are 1 at least in the program as it was compiled.

m(x[:0])   ->   batch = 0 is not in batch >= 1   ->   compile once more with batch = 0   ->   that program's result

A compiler that knows a size to be 1 at least settles maxima, reads first elements and takes branches; PyTorch traces so
as well. So a size of 0 is a program of its own, which is compiled when a call brings it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from ingot.support.errors import ZeroSizeError
from ingot.support.recent import Recent

MOST_PROGRAMS = 16
_log = logging.getLogger("ingot.zero_sizes")

Build = Callable[[frozenset[str]], Any]


class ZeroSizes:
    """A model's programs for sizes of 0, by these sizes' names. Safe to call from several threads."""

    def __init__(self, build: Build) -> None:
        """build: from the names of sizes that are 0 to a model called like the one that lacks them, or None where that
        was compiled for sizes of at least 1 on purpose."""
        self._build = build
        self._programs: Recent[frozenset[str], Any] = Recent(MOST_PROGRAMS, "programs for sizes of 0", _log)
        self._lock = threading.Lock()

    def program(self, error: ZeroSizeError) -> Any:
        """The model for the sizes that `error` names. Raises it, or what compiling raises."""

        def made() -> Any:
            built = self._build(error.symbols)
            if built is None:
                raise error
            _log.info("compiled for %s", ", ".join(f"{name} = 0" for name in sorted(error.symbols)))
            return built

        with self._lock:
            return self._programs.find(error.symbols, made)
