"""A cache of two generations: the values of the previous build and of this one, and pinned values."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

V = TypeVar("V")


class Generations(Generic[V]):
    """Values by key. A value that is not used between two consecutive `turn`s is dropped, unless it was pinned."""

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

    def turn(self, pin: bool = False) -> None:
        """End a generation. pin: keep its values forever."""
        if pin:
            self._pinned |= self._used
        self._last, self._used = self._used, {}
