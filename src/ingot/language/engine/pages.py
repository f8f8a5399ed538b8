"""The pages of a pool: who has them, and which hold the beginning of prompts that may come again.

A page counts the sequences that read it. One whose tokens are a part of a prompt stays when the last of them goes,
until it is needed. It is found by the page before it and by its own tokens, so that no two beginnings are mixed up.
Such pages are never written again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from ingot.language.engine.paging import PAGE

_Key = tuple[int, tuple[int, ...]]  # the number of the page before, -1: none; tokens


class Pages:
    """total: pages of the pool. available: those that no sequence has."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._free = [*range(total)][::-1]
        self._references = [0] * total
        self._known: dict[int, tuple[int, _Key]] = {}  # page -> its number, which no other page ever had, and its key
        self._by_key: dict[_Key, int] = {}
        self._unused: OrderedDict[int, None] = OrderedDict()  # known ones of no sequence, the oldest first
        self._count = 0

    @property
    def used(self) -> int:
        return self.total - self.available

    @property
    def available(self) -> int:
        return len(self._free) + len(self._unused)

    def take(self, count: int) -> list[int] | None:
        """Pages that hold anything; None if there are too few."""
        if count > self.available:
            return None
        while len(self._free) < count:
            page, _ = self._unused.popitem(last=False)
            del self._by_key[self._known.pop(page)[1]]
            self._free.append(page)
        taken = [self._free.pop() for _ in range(count)]
        for page in taken:
            self._references[page] = 1
        return taken

    def release(self, pages: Sequence[int]) -> None:
        for page in reversed(pages):  # a page is found through those before it: the last ones are needed first
            self._references[page] -= 1
            if self._references[page]:
                continue
            if page in self._known:
                self._unused[page] = None
            else:
                self._free.append(page)

    def find(self, ids: Sequence[int], most: int) -> list[int]:
        """Pages with the first of these tokens, at most `most` pages, for one more sequence."""
        found, number = list[int](), -1
        for n in range(most):
            page = self._by_key.get((number, _tokens(ids, n)))
            if page is None:
                break
            found.append(page)
            number = self._known[page][0]
        for page in found:
            self._unused.pop(page, None)
            self._references[page] += 1
        return found

    def keep(self, pages: Sequence[int], ids: Sequence[int], count: int) -> None:
        """Let the first `count` pages be found by the tokens that they hold. Where others with the same tokens are
        known, those stay what is found."""
        number = -1
        for n in range(count):
            if pages[n] not in self._known:
                key = number, _tokens(ids, n)
                if (other := self._by_key.get(key)) is not None:
                    number = self._known[other][0]
                    continue
                self._by_key[key], self._known[pages[n]] = pages[n], (self._count, key)
                self._count += 1
            number = self._known[pages[n]][0]


def _tokens(ids: Sequence[int], n: int) -> tuple[int, ...]:
    return tuple(ids[n * PAGE : (n + 1) * PAGE])
