"""Memory of this process: mappings that hold arenas, weights and large results."""

from __future__ import annotations

import contextlib
import ctypes
import mmap

import numpy as np
from numpy.typing import NDArray

from ingot.support.errors import IngotError

LARGE = 32 << 20  # bytes that the C library asks the system for, and gives back, each time (its mmap threshold)
_HUGE = 2 << 20


class Region:
    """Zeroed, page-aligned, private memory of this process; freed with the object."""

    def __init__(self, nbytes: int) -> None:
        """Map at least `nbytes` bytes. Raises IngotError when the system has not that much memory."""
        self.nbytes = max(nbytes, 1)
        try:
            # Private, not Python's default of shared: after a fork each process must have its own.
            self._map = mmap.mmap(-1, self.nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, OverflowError) as error:
            raise IngotError(
                "out of memory", expected=f"{self.nbytes} bytes", got=str(error), fix="use smaller inputs or batches"
            ) from error
        if self.nbytes >= _HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # a kernel without transparent huge pages: only speed is lost
                self._map.madvise(mmap.MADV_HUGEPAGE)
        self._anchor = ctypes.c_char.from_buffer(self._map)
        self.address = ctypes.addressof(self._anchor)

    def array(self) -> NDArray[np.uint8]:
        """A view of the bytes; it keeps the memory alive."""
        return np.frombuffer(self._map, np.uint8)

    def read(self, offset: int, nbytes: int) -> bytes:
        return ctypes.string_at(self.address + offset, nbytes)

    def write(self, offset: int, source: int, nbytes: int) -> None:
        ctypes.memmove(self.address + offset, source, nbytes)

    def fill(self, offset: int, nbytes: int, byte: int) -> None:
        ctypes.memset(self.address + offset, byte, nbytes)


class Results:
    """Memory of a model's large results: what a caller has dropped is given out again.

    The system takes large memory back as soon as it is free and hands out zeroed pages on their first touch, which
    takes longer than to write a result there.
    """

    def __init__(self, count: int) -> None:
        """`count`: regions of one size to keep, as many as one call needs."""
        self._count = count
        self._spare: list[Region] = []

    def take(self, nbytes: int) -> NDArray[np.uint8]:
        """`nbytes` bytes of any content, until the array and all that was made of it is gone."""
        for region in tuple(self._spare):
            with contextlib.suppress(ValueError):  # another thread has taken it
                if region.nbytes == nbytes:
                    self._spare.remove(region)
                    return np.asarray(_Lease(region, self))
        self._spare.clear()  # of sizes that are not asked for any more
        return np.asarray(_Lease(Region(nbytes), self))

    def give_back(self, region: Region) -> None:
        if len(self._spare) < self._count:
            self._spare.append(region)


class _Lease:
    """What an array of `Results` and its views hold on to; the region goes back when the last of them is gone."""

    def __init__(self, region: Region, home: Results) -> None:
        self._region, self._home = region, home
        place = (region.address, False)
        self.__array_interface__ = {"data": place, "shape": (region.nbytes,), "typestr": "|u1", "version": 3}

    def __del__(self) -> None:
        self._home.give_back(self._region)


def advise_huge_pages(address: int, nbytes: int) -> None:
    """Ask for huge pages within memory of the C library."""
    first, end = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE, (address + nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if end - first >= _HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
        # what it refuses costs speed alone
        ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(end - first), mmap.MADV_HUGEPAGE)


def aligned_bytes(nbytes: int) -> NDArray[np.uint8]:
    """A zeroed uint8 array whose address is a multiple of 64, for weights."""
    return Region(nbytes).array()[:nbytes]
