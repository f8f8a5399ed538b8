"""The thread count of NumPy's linear algebra."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np

# the names of OpenBLAS's functions in NumPy's wheels; other builds omit the prefix or the width of integers
_NAMES = tuple(f"{prefix}openblas_{{}}_num_threads{width}" for prefix in ("scipy_", "") for width in ("64_", ""))


@contextmanager
def blas_threads(count: int) -> Iterator[None]:
    """Limit NumPy's products and factorizations to `count` threads, in the whole process. By default OpenBLAS uses all
    cores, and its threads spin while they wait for each other: on a busy machine that takes several times the CPU time
    of the work. Libraries other than the OpenBLAS of NumPy's wheels are not affected.
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
    """(get the number of threads, set it); None without OpenBLAS."""
    root = Path(np.__file__).parent
    for path in (*root.parent.glob("numpy.libs/*openblas*"), *root.glob(".dylibs/*openblas*")):
        library = ctypes.CDLL(str(path))  # the one that NumPy has loaded
        for name in _NAMES:
            if hasattr(library, name.format("set")):
                return getattr(library, name.format("get")), getattr(library, name.format("set"))
    return None


__all__ = ["blas_threads"]
