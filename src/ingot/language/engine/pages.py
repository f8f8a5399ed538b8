"""The pages of a pool: their owners, and a cache of pages with prefixes of prompts.

Pages have reference counts. A page with tokens of a prompt stays in the cache after its last reader, until it is needed
for something else. Its key is the preceding page and its own tokens, and thus identifies a whole prefix. Cached pages
are never written.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from ingot.language.engine.paging import PAGE

_Key = tuple[int, tuple[int, ...]]  # (the unique number of the preceding page, -1: none; tokens)


class Pages:
    """total: the pages of the pool. available: those that no sequence uses."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._free = [*range(total)][::-1]
        self._references = [0] * total
        self._known: dict[int, tuple[int, _Key]] = {}  # page -> (a unique number, its key)
        self._by_key: dict[_Key, int] = {}
        self._unused: OrderedDict[int, None] = OrderedDict()  # cached pages without readers, the oldest first
        self._count = 0

    @property
    def used(self) -> int:
        return self.total - self.available

    @property
    def available(self) -> int:
        return len(self._free) + len(self._unused)

    def take(self, count: int) -> list[int] | None:
        """Pages with arbitrary contents; None if there are too few."""
        if count > self.available:
            return None
        while len(self._free) < count:
            page, _ = self._unused.popitem(last=False)
            del self._by_key[self._known.pop(page)[1]]
            self._free.append(page)
        pages = [self._free.pop() for _ in range(count)]
        for page in pages:
            self._references[page] = 1
        return pages

    def release(self, pages: Sequence[int]) -> None:
        for page in reversed(pages):  # a page is reachable only through its predecessors: evict the last ones first
            self._references[page] -= 1
            if self._references[page]:
                continue
            if page in self._known:
                self._unused[page] = None
            else:
                self._free.append(page)

    def find(self, ids: Sequence[int], max_pages: int) -> list[int]:
        """Cached pages with a prefix of these tokens, at most `max_pages`, with a reference for a new sequence."""
        pages, number = list[int](), -1
        for n in range(max_pages):
            page = self._by_key.get((number, _tokens(ids, n)))
            if page is None:
                break
            pages.append(page)
            number = self._known[page][0]
        for page in pages:
            self._unused.pop(page, None)
            self._references[page] += 1
        return pages

    def keep(self, pages: Sequence[int], ids: Sequence[int], count: int) -> None:
        """Add the first `count` pages to the cache by their tokens. If another page with the same prefix is in the
        cache, that stays there."""
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
