"""Which launches have to come before which: behind what wrote the memory that they read, and behind what read or wrote
the memory that they write. Others may run side by side.

    a writes x;  b: x to y;  c: x to z;  d: y and z to w   ->   b behind a, c behind a, d behind b and c
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from ingot.support.dataclass import dataclass


@dataclass(frozen=True)
class Access:
    """What a launch does to the bytes from `start` to `end` (exclusive) of a memory."""

    memory: int
    start: int
    end: int
    writes: bool


class _Memory:
    """Who wrote each part of it last (-1: nobody), and who has read that since. Parts begin at `starts`."""

    def __init__(self) -> None:
        self.starts = [0]
        self.uses: list[tuple[int, list[int]]] = [(-1, [])]

    def parts(self, start: int, end: int) -> range:
        return range(self._cut(start), self._cut(end))

    def _cut(self, at: int) -> int:
        """The number of the part that begins there."""
        number = bisect_left(self.starts, at)
        if number == len(self.starts) or self.starts[number] != at:
            writer, readers = self.uses[number - 1]
            self.starts.insert(number, at)
            self.uses.insert(number, (writer, [*readers]))
        return number


class Order:
    """Launches are told one after the other, as a program has them."""

    def __init__(self) -> None:
        self._memories: dict[int, _Memory] = {}
        self._ancestors: list[int] = []  # of each launch: the bits of all that come before it

    def next(self, accesses: Iterable[Access]) -> list[int]:
        """The numbers of the launches right behind which the next one comes: none of them is before another."""
        number, predecessors = len(self._ancestors), set[int]()
        for access in accesses:
            memory = self._memories.setdefault(access.memory, _Memory())
            for part in memory.parts(access.start, access.end):
                writer, readers = memory.uses[part]
                predecessors.add(writer)
                if access.writes:
                    predecessors.update(readers)
                    memory.uses[part] = number, []
                else:
                    readers.append(number)
        direct, ancestors = list[int](), 0
        for other in sorted(predecessors - {-1, number}, reverse=True):
            if not ancestors >> other & 1:
                direct.append(other)
                ancestors |= self._ancestors[other] | 1 << other
        self._ancestors.append(ancestors)
        return direct


__all__ = ["Access", "Order"]
