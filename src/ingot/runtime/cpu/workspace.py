"""Memory that consecutive runs share: the runs of all models that share a pool of threads.

A run leaves nothing in its arena, so the arena has the size of the largest. Buffers with a halo ("images") are
separate: their halos are written once, when their memory is laid out, and models whose images have the same geometry
share them. Memory that only one model needs is freed with the model.
"""

from __future__ import annotations

import threading
from weakref import WeakKeyDictionary, finalize, ref

from ingot.runtime.bind import Images, Layout
from ingot.runtime.cpu import memory


class Workspace:
    """The memory of a pool. Its methods, except for `shrink`, require the pool's lock.

    arena: the shared arena. images: the memory of all geometries in use, at the addresses of `place`. version:
    incremented whenever addresses change, so that users look up theirs again. left: whether a user was collected
    while the lock was held; its holder then calls `shrink`.
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
        """Reserve memory for `layout`, in place of the previous layout of `user`.

        Raises IngotError if there is not enough; `user` then has none.
        """
        if user not in self._users:
            finalize(user, _shrink_if_alive, ref(self)).atexit = False
        self._users.pop(user, None)
        try:
            self._reserve(layout)
        except BaseException:
            self._places, self._end, self.version = {}, 0, self.version + 1
            raise
        self._users[user] = layout

    def place(self, images: Images) -> int:
        """The address of the images with a geometry."""
        return self.images.address + self._places[images][0]

    def shrink(self) -> None:
        """Free the memory of users that were collected. May be called at any time, in any thread, even one that holds
        the lock."""
        self.left = True
        if self._lock.acquire(False):
            try:
                self._shrink()
            finally:
                self._lock.release()

    def _reserve(self, layout: Layout) -> None:
        if layout.plain_bytes > self.arena.nbytes:
            self.version += 1
            self.arena = memory.Region(1)  # free the old one first: peak memory is one arena
            self.arena = memory.Region(layout.plain_bytes)
        missing = {i: n for i, _, n in layout.images if self._places.get(i, (0, -1))[1] < n}
        is_zeroed = False
        if self._end + sum(missing.values()) > self.images.nbytes:
            missing = self._image_bytes(layout)
            self.version += 1
            self._places, self._end = {}, 0
            is_zeroed = sum(missing.values()) > self.images.nbytes
            if is_zeroed:
                self.images = memory.Region(1)
                self.images = memory.Region(sum(missing.values()))
        for images, nbytes in missing.items():
            self._places[images] = self._end, nbytes
            if images.fill or not is_zeroed:
                self.images.fill(self._end, nbytes, images.fill)
            self._end += nbytes

    def _image_bytes(self, *extra_layouts: Layout) -> dict[Images, int]:
        """The bytes of each geometry in the layouts in use and the extra ones."""
        nbytes_by_images: dict[Images, int] = {}
        for layout in (*self._users.values(), *extra_layouts):
            for images, _, nbytes in layout.images:
                nbytes_by_images[images] = max(nbytes, nbytes_by_images.get(images, 0))
        return nbytes_by_images

    def _shrink(self) -> None:
        """Free memory that no layout in use needs; the next runs lay it out anew."""
        self.left = False
        plain = max((layout.plain_bytes for layout in self._users.values()), default=0)
        if self.arena.nbytes > max(plain, 1):
            self.arena, self.version = memory.Region(1), self.version + 1
        if self.images.nbytes > max(sum(self._image_bytes().values()), 1):
            self.images, self.version = memory.Region(1), self.version + 1
            self._places, self._end = {}, 0


def _shrink_if_alive(reference: ref[Workspace]) -> None:
    if (workspace := reference()) is not None:
        workspace.shrink()
