"""Memory of a GPU that a program holds."""

from __future__ import annotations

from ingot.runtime.cuda.driver import Driver


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
