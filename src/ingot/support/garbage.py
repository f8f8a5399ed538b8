"""Python's collector of reference cycles, set aside for a while; and freed memory, given back to the system.

Compiling makes hundreds of thousands of objects that stay and next to no cycles, and the collector looks at all that
stay again and again: a tenth of a small model's time. What cycles there are is collected as usual afterwards.
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
    """Within, and in all threads, no cycles are collected; the last to leave restores what the first one found, and
    gives freed memory back: a compiler's is many times what stays of it, and would lie beside the first run's."""
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
    """Let go of freed memory that glibc keeps, between what is in use, for allocations to come. Others keep less."""
    with suppress(OSError, AttributeError, TypeError):  # systems without it
        ctypes.CDLL(None).malloc_trim(0)
