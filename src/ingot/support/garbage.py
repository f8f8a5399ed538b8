"""Suspension of Python's cyclic garbage collector, and return of freed memory to the system.

Compiling creates hundreds of thousands of long-lived objects and hardly any cycles, and the collector traverses them
repeatedly: a tenth of a small model's time. The few cycles are collected afterwards.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Lock

_lock = Lock()
_within = 0
_was_enabled = False


@contextmanager
def no_collection() -> Iterator[None]:
    """Disable the collection of cycles inside the block, in all threads. The last to leave restores the initial state
    and returns freed memory to the system: most of a compilation's memory is temporary, and would otherwise add to that
    of the first run."""
    global _within, _was_enabled
    with _lock:
        if not _within:
            _was_enabled = gc.isenabled()
            gc.disable()
        _within += 1
    try:
        yield
    finally:
        with _lock:
            _within -= 1
            if not _within:
                give_back()
                if _was_enabled:
                    gc.enable()


def give_back() -> None:
    """Return freed memory that glibc keeps for later allocations. Other C libraries keep less."""
    with suppress(OSError, AttributeError, TypeError):  # systems without it
        ctypes.CDLL(None).malloc_trim(0)
