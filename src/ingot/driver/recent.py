"""A bounded cache: what was made for a key, until others were asked for more recently."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

from ingot.support.log import Log

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Recent(Generic[K, V]):
    """At most `most` values by key, in the order of their use. One that gives way is told in the log, with `what`."""

    def __init__(self, most: int, what: str, log: Log) -> None:
        self._most, self._what, self._log = most, what, log
        self._values: OrderedDict[K, V] = OrderedDict()

    def find(self, key: K, make: Callable[[], V]) -> V:
        """The value of `key`, made where there is none. Raises what `make` raises, and keeps nothing then."""
        if key not in self._values:
            made = make()
            if len(self._values) >= self._most:
                self._log.warning("more than %d %s: the one least recently used goes", self._most, self._what)
                self._values.popitem(last=False)
            self._values[key] = made
        self._values.move_to_end(key)
        return self._values[key]

    def __iter__(self) -> Iterator[V]:
        return iter(self._values.values())
