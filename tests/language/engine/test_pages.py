"""Pages of a pool: each is of one beginning, however requests come and go."""

from __future__ import annotations

import numpy as np

from ingot.language.engine.pages import Pages
from ingot.language.engine.paging import PAGE, page_count


def test_taken_and_given_back() -> None:
    pages = Pages(4)
    first = pages.take(3)
    assert first is not None and len({*first}) == 3 and pages.used == 3
    assert pages.take(2) is None and pages.used == 3
    pages.release(first)
    assert pages.used == 0 and len({*(pages.take(4) or ())}) == 4


def test_beginnings_are_found_until_pages_are_needed() -> None:
    pages = Pages(4)
    ids = [*range(3 * PAGE)]
    pages_ = pages.take(3)
    assert pages_ is not None
    pages.keep(pages_, ids, 2)
    assert pages.find([*ids[:PAGE], *ids[:PAGE]], 2) == pages_[:1]
    pages.release(pages_[:1])
    pages.release(pages_)
    assert pages.used == 0
    assert pages.find(ids, 3) == pages_[:2] and pages.used == 2
    pages.release(pages_[:2])
    assert pages.take(3) is not None  # the first page is left: the last ones of a beginning go first
    assert pages.find(ids, 3) == pages_[:1]


def test_random_sequences() -> None:
    """A pool beside what its pages hold: a found page holds what was asked for, no page is of two beginnings."""
    rng = np.random.default_rng(0)
    pages, owners = Pages(24), dict[int, tuple[int, ...]]()
    alive: list[tuple[list[int], list[int]]] = []
    result = 0
    for _ in range(3000):
        if alive and rng.random() < 0.45:
            page_ids, _ = alive.pop(int(rng.integers(len(alive))))
            pages.release(page_ids)
            continue
        ids = np.repeat(rng.integers(0, 2, 6), PAGE)[: int(rng.integers(1, 6 * PAGE))].tolist()
        page_ids = pages.find(ids, (len(ids) - 1) // PAGE)
        for n, page in enumerate(page_ids):
            assert owners[page] == tuple(ids[: (n + 1) * PAGE])
        result += len(page_ids)
        new_pages = pages.take(page_count(len(ids)) - len(page_ids))
        if new_pages is None:
            pages.release(page_ids)
            continue
        others = {page for other, _ in alive for page in other}
        assert not others & {*new_pages}
        page_ids = [*page_ids, *new_pages]
        for n, page in enumerate(page_ids):
            owners[page] = tuple(ids[: (n + 1) * PAGE])
        pages.keep(page_ids, ids, len(ids) // PAGE)
        alive.append((page_ids, ids))
        assert pages.used == len({page for other, _ in alive for page in other})
    for page_ids, _ in alive:
        pages.release(page_ids)
    assert pages.used == 0 and result > 500
    assert len({*(pages.take(24) or ())}) == 24
