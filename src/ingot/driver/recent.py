"""A bounded cache that drops the least recently used entry."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

from ingot.support.log import Log

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class LruCache(Generic[K, V]):
    """At most `max_entries` values by key, in the order of their use. Logs each dropped entry, as one of `noun`."""

    def __init__(self, max_entries: int, noun: str, log: Log) -> None:
        self._max_entries, self._noun, self._log = max_entries, noun, log
        self._values: OrderedDict[K, V] = OrderedDict()

    def get(self, key: K, build: Callable[[], V]) -> V:
        """The value of `key`, which `build` returns if it is missing. Raises what `build` raises, and then stores
        nothing."""
        if key not in self._values:
            value = build()
            if len(self._values) >= self._max_entries:
                self._log.warning("more than %d %s: dropped the least recently used", self._max_entries, self._noun)
                self._values.popitem(last=False)
            self._values[key] = value
        self._values.move_to_end(key)
        return self._values[key]

    def __iter__(self) -> Iterator[V]:
        return iter(self._values.values())
