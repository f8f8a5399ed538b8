"""Memory of a GPU that programs hold."""

from __future__ import annotations

import threading

from ingot.runtime.bind import Images, Layout
from ingot.runtime.cuda.driver import Driver
from ingot.support.errors import DeviceError


class Memory:
    """Device memory that grows on demand; its contents are then lost."""

    def __init__(self, driver: Driver) -> None:
        self._driver, self.address, self.nbytes = driver, 0, 0

    def hold(self, nbytes: int) -> None:
        if nbytes > self.nbytes or not self.address:
            self.free()
            self.address, self.nbytes = self._allocate(nbytes), nbytes

    def _allocate(self, nbytes: int) -> int:
        return self._driver.allocate(nbytes)

    def _free(self) -> None:
        self._driver.free(self.address)

    def free(self) -> None:
        if self.address:
            self._free()
        self.address = self.nbytes = 0


class Workspace:
    """The memory that all runs on one stream share, as they come one after another: an arena, and the buffers with a
    halo of each geometry, whose halos are filled once.

    lock: to be held from `places` until the launch. version: changes whenever addresses do.
    """

    def __init__(self, driver: Driver) -> None:
        self.lock, self.version, self.arena = threading.RLock(), 0, Memory(driver)
        self._driver = driver
        self._halos: dict[Images, Memory] = {}
        self._users: dict[object, list[Layout]] = {}  # the layouts of each context

    @staticmethod
    def of(driver: Driver, stream: int, user: object) -> Workspace:
        """That of a stream, of which `user` becomes one until it leaves."""
        workspace = driver.workspaces.setdefault(stream, Workspace(driver))
        workspace._users.setdefault(user, [])
        return workspace

    def places(self, user: object, layout: Layout, nbytes: int, stream: int) -> tuple[int, ...]:
        """The addresses of the arena, of at least so many bytes, and of the halos of each
        geometry."""
        if nbytes > self.arena.nbytes:
            self.version += 1
            self.arena.hold(nbytes)
        layouts = self._users[user]
        if layout not in layouts:
            layouts.append(layout)
            self._free_unused()
        for images, _, size in layout.images:
            memory = self._halos.setdefault(images, Memory(self._driver))
            if size > memory.nbytes or not memory.address:
                self.version += 1
                memory.hold(size)
                try:
                    self._driver.fill(memory.address, images.fill, size, stream)
                except DeviceError:
                    memory.free()
                    raise
        return (self.arena.address, *(self._halos[images].address for images, *_ in layout.images))

    def forget(self, user: object, layout: Layout) -> None:
        """The user needs a layout no more; the next new one frees what nobody needs."""
        if layout in self._users[user]:
            self._users[user].remove(layout)

    def leave(self, user: object, stream: int) -> None:
        """Free all memory with the last user."""
        self._users.pop(user, None)
        self._free_unused()
        if not self._users:
            self.arena.free()
            self._driver.workspaces.pop(stream, None)

    def _free_unused(self) -> None:
        used = {images for layouts in self._users.values() for layout in layouts for images, *_ in layout.images}
        for images in self._halos.keys() - used:
            self.version += 1
            self._halos.pop(images).free()


__all__ = ["Memory", "Workspace"]
