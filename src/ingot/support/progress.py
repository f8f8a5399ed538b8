"""Progress reports of long-running work.

The compiler calls `report(stage)`; a command line or a notebook listens. Without a listener a report costs one look-up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Listener = Callable[[str, int, int], None]

_listener: ContextVar[Listener | None] = ContextVar("ingot.progress", default=None)


def report(stage: str, done: int = 0, total: int = 0) -> None:
    """Work on `stage` has begun, or is `done` parts of `total` through; a total of 0 means not countable."""
    listener = _listener.get()
    if listener is not None:
        listener(stage, done, total)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """`listener(stage, done, total)` is called in this thread while the block runs."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)
