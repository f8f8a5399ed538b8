"""Memory of this process: mappings that hold arenas, weights and large results."""

from __future__ import annotations

import contextlib
import ctypes
import mmap

import numpy as np
from numpy.typing import NDArray

from ingot.support.errors import IngotError

MMAP_BYTES = 32 << 20  # bytes: the C library maps and unmaps larger blocks on each allocation (its mmap threshold)
_HUGE = 2 << 20


class Region:
    """Zeroed, page-aligned, private memory of this process; freed with the object."""

    def __init__(self, nbytes: int) -> None:
        """Map at least `nbytes` bytes. Raises IngotError if the system lacks the memory."""
        self.nbytes = max(nbytes, 1)
        try:
            # private, not shared as is Python's default: after a fork each process needs its own copy
            self._map = mmap.mmap(-1, self.nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, OverflowError) as error:
            raise IngotError(
                "out of memory", expected=f"{self.nbytes} bytes", got=str(error), fix="use smaller inputs or batches"
            ) from error
        if self.nbytes >= _HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # without transparent huge pages it is only slower
                self._map.madvise(mmap.MADV_HUGEPAGE)
        self._anchor = ctypes.c_char.from_buffer(self._map)
        self.address = ctypes.addressof(self._anchor)

    def array(self) -> NDArray[np.uint8]:
        """A view of the bytes; it keeps the memory alive."""
        return np.frombuffer(self._map, np.uint8)

    def read(self, offset: int, nbytes: int) -> bytes:
        return ctypes.string_at(self.address + offset, nbytes)

    def write(self, offset: int, source: int, nbytes: int, is_resident: bool = False) -> None:
        ctypes.memmove(self.address + offset, source, nbytes)

    def fill(self, offset: int, nbytes: int, byte: int) -> None:
        ctypes.memset(self.address + offset, byte, nbytes)


class Results:
    """Memory of a model's large results, reused once the caller has dropped a result.

    The C library returns large blocks to the system as soon as they are free, and the system zeroes pages on their
    first touch, which takes longer than to write a result there.
    """

    def __init__(self, count: int) -> None:
        """count: the number of regions of one size to keep, as many as one call needs."""
        self._count = count
        self._free_regions: list[Region] = []

    def take(self, nbytes: int) -> NDArray[np.uint8]:
        """`nbytes` uninitialized bytes, which are reused once the array and all of its views are gone."""
        for region in tuple(self._free_regions):
            with contextlib.suppress(ValueError):  # another thread has taken it
                if region.nbytes == nbytes:
                    self._free_regions.remove(region)
                    return np.asarray(_Lease(region, self))
        self._free_regions.clear()  # their size is not in demand any more
        return np.asarray(_Lease(Region(nbytes), self))

    def give_back(self, region: Region) -> None:
        if len(self._free_regions) < self._count:
            self._free_regions.append(region)


class _Lease:
    """The owner of the memory of an array of `Results` and its views. It returns the region when the last of them is
    gone."""

    def __init__(self, region: Region, owner: Results) -> None:
        self._region, self._home = region, owner
        place = (region.address, False)
        self.__array_interface__ = {"data": place, "shape": (region.nbytes,), "typestr": "|u1", "version": 3}

    def __del__(self) -> None:
        self._home.give_back(self._region)


def advise_huge_pages(address: int, nbytes: int) -> None:
    """Request huge pages for memory of the C library."""
    first, end = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE, (address + nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if end - first >= _HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
        # a refusal only costs speed
        ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(end - first), mmap.MADV_HUGEPAGE)


def aligned_bytes(nbytes: int) -> NDArray[np.uint8]:
    """A zeroed uint8 array whose address is a multiple of 64, for weights."""
    return Region(nbytes).array()[:nbytes]
