"""NumPy's linear algebra on as many threads as asked for."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np

# as NumPy's wheels name OpenBLAS's functions; others leave the prefix or the width of integers out
_NAMES = tuple(f"{prefix}openblas_{{}}_num_threads{width}" for prefix in ("scipy_", "") for width in ("64_", ""))


@contextmanager
def blas_threads(count: int) -> Iterator[None]:
    """Products and factorizations of NumPy on at most `count` threads, in the whole process. OpenBLAS's own count is
    that of the cores, and its threads spin while they wait for one that others hold: on a busy machine that takes
    several times the processor time of the work. Another library than the OpenBLAS of NumPy's wheels is left alone.
    """
    functions = _functions()
    if functions is None:
        yield
        return
    get, put = functions
    before = get()
    put(min(count, before))
    try:
        yield
    finally:
        put(before)


@cache
def _functions() -> tuple[Callable[[], int], Callable[[int], None]] | None:
    """What tells the number of threads, and what sets it."""
    root = Path(np.__file__).parent
    for path in (*root.parent.glob("numpy.libs/*openblas*"), *root.glob(".dylibs/*openblas*")):
        library = ctypes.CDLL(str(path))  # the one that NumPy has loaded
        for name in _NAMES:
            if hasattr(library, name.format("set")):
                return getattr(library, name.format("get")), getattr(library, name.format("set"))
    return None


__all__ = ["blas_threads"]
