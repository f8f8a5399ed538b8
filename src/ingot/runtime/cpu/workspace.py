"""Memory that runs which come one after another have in common: those of all models that share a pool of threads.

A run leaves nothing in its arena, so the arena is as large as the largest of them needs. Images with borders lie apart:
their borders are written once, when their memory is laid out, and models whose images have the same geometry share
them. What a model needed goes with the model.
"""

from __future__ import annotations

import threading
from weakref import WeakKeyDictionary, finalize, ref

from ingot.runtime.bind import Images, Layout
from ingot.runtime.cpu import memory


class Workspace:
    """arena; images: of all geometries in use, where `place` says. For whoever holds `lock`, the pool's.

    version: raised whenever addresses change, so that all have to ask for theirs anew. left: whether a user went while
    the lock was held; whoever held it calls `shrink` then.
    """

    def __init__(self, lock: threading.Lock) -> None:
        self.arena, self.images = memory.Region(1), memory.Region(1)
        self.version = 0
        self._lock = lock
        self._users: WeakKeyDictionary[object, Layout] = WeakKeyDictionary()
        self._places: dict[Images, tuple[int, int]] = {}  # offset, bytes
        self._end = 0
        self.left = False

    def use(self, user: object, layout: Layout) -> None:
        """Have room for `layout`, in place of the one that `user` had before.

        Raises IngotError where there is not that much memory; `user` has none then.
        """
        if user not in self._users:
            finalize(user, _left, ref(self)).atexit = False
        self._users.pop(user, None)
        try:
            self._hold(layout)
        except BaseException:
            self._places, self._end, self.version = {}, 0, self.version + 1
            raise
        self._users[user] = layout

    def place(self, images: Images) -> int:
        """The address of the images of a geometry."""
        return self.images.address + self._places[images][0]

    def shrink(self) -> None:
        """Give back what users needed that are gone; at any time, in any thread, also in one that holds the lock."""
        self.left = True
        if self._lock.acquire(False):
            try:
                self._shrink()
            finally:
                self._lock.release()

    def _hold(self, layout: Layout) -> None:
        if layout.plain_bytes > self.arena.nbytes:
            self.version += 1
            self.arena = memory.Region(1)  # let the old one go first: peak memory is one arena
            self.arena = memory.Region(layout.plain_bytes)
        missing = {i: n for i, _, n in layout.images if self._places.get(i, (0, -1))[1] < n}
        fresh = False
        if self._end + sum(missing.values()) > self.images.nbytes:
            missing = self._wanted(layout)
            self.version += 1
            self._places, self._end = {}, 0
            fresh = sum(missing.values()) > self.images.nbytes
            if fresh:
                self.images = memory.Region(1)
                self.images = memory.Region(sum(missing.values()))
        for images, nbytes in missing.items():
            self._places[images] = self._end, nbytes
            if images.fill or not fresh:
                self.images.fill(self._end, nbytes, images.fill)
            self._end += nbytes

    def _wanted(self, *more: Layout) -> dict[Images, int]:
        """The bytes of each geometry that layouts in use have."""
        wanted: dict[Images, int] = {}
        for layout in (*self._users.values(), *more):
            for images, _, nbytes in layout.images:
                wanted[images] = max(nbytes, wanted.get(images, 0))
        return wanted

    def _shrink(self) -> None:
        """Give back what no layout in use needs; they are laid out anew by their next runs."""
        self.left = False
        plain = max((layout.plain_bytes for layout in self._users.values()), default=0)
        if self.arena.nbytes > max(plain, 1):
            self.arena, self.version = memory.Region(1), self.version + 1
        if self.images.nbytes > max(sum(self._wanted().values()), 1):
            self.images, self.version = memory.Region(1), self.version + 1
            self._places, self._end = {}, 0


def _left(workspace: ref[Workspace]) -> None:
    if (found := workspace()) is not None:
        found.shrink()
