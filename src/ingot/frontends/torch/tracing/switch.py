"""A switch for behaviour that differs while torch traces: on within a block, for the current thread only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache


class Switch:
    """`with switch():` turns it on. `install`, called once, registers rules with torch that check `switch.on`."""

    def __init__(self, name: str, install: Callable[[], None]) -> None:
        self._on, self._install = ContextVar(name, default=False), cache(install)

    @property
    def on(self) -> bool:
        return self._on.get()

    @contextmanager
    def __call__(self) -> Iterator[None]:
        self._install()
        token = self._on.set(True)
        try:
            yield
        finally:
            self._on.reset(token)
