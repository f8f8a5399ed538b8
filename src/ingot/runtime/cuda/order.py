"""The dependencies between launches: a read comes after the last write of that memory, and a write comes after all
earlier reads and writes. Launches without a dependency may run concurrently.

    a writes x;  b: x to y;  c: x to z;  d: y and z to w   ->   b after a, c after a, d after b and c
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
    """The last writer of each part (-1: none), and its readers since. Parts begin at `starts`."""

    def __init__(self) -> None:
        self.starts = [0]
        self.uses: list[tuple[int, list[int]]] = [(-1, [])]

    def parts(self, start: int, end: int) -> range:
        return range(self._cut(start), self._cut(end))

    def _cut(self, position: int) -> int:
        """The index of the part that begins at this position; a part that contains it is split."""
        number = bisect_left(self.starts, position)
        if number == len(self.starts) or self.starts[number] != position:
            writer, readers = self.uses[number - 1]
            self.starts.insert(number, position)
            self.uses.insert(number, (writer, [*readers]))
        return number


class Order:
    """The dependencies of launches, which are added in program order."""

    def __init__(self) -> None:
        self._memories: dict[int, _Memory] = {}
        self._ancestors: list[int] = []  # for each launch a bit set of all launches before it

    def next(self, accesses: Iterable[Access]) -> list[int]:
        """The direct predecessors of the next launch: the fewest, as none of them precedes another."""
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
