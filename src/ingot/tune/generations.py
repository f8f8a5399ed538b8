"""A cache of the values that the last build used, and of pinned ones."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

V = TypeVar("V")


class Generations(Generic[V]):
    """Values by key. `advance` ends a build; a value that was not used since the last one is dropped, unless pinned."""

    def __init__(self) -> None:
        self._pinned: dict[Hashable, V] = {}
        self._last: dict[Hashable, V] = {}
        self._used: dict[Hashable, V] = {}

    def get(self, key: Hashable, make: Callable[[], V]) -> V:
        for generation in (self._used, self._last, self._pinned):
            if key in generation:
                self._used[key] = generation[key]
                return generation[key]
        self._used[key] = value = make()
        return value

    def put(self, key: Hashable, value: V) -> None:
        """Replace the value of a key."""
        self._used[key] = value

    def advance(self, pin: bool = False) -> None:
        if pin:
            self._pinned |= self._used
        self._last, self._used = self._used, {}
