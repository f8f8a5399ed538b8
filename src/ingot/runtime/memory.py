"""Memory of a bound program: where each arena buffer goes, and the mappings that hold it.

a: steps 0-1, 100 B   b: 1-2, 50 B   c: 2-3, 100 B   ->   a at 0, b at 128, c at 0; 192 bytes
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ingot.support.errors import IngotError

ALIGNMENT = 64
LARGE = 32 << 20  # bytes that the C library asks the system for, and gives back, each time (its mmap threshold)
_HUGE = 2 << 20


@dataclass(frozen=True)
class Request:
    """nbytes of memory from step `first` to step `last`, inclusive."""

    nbytes: int
    first: int
    last: int


def align(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def place(requests: Sequence[Request]) -> tuple[list[int], int]:
    """64-byte aligned offsets such that requests alive at the same step never overlap, and the total size.

    Greedy by size with best fit: the largest first, each into the smallest gap that holds it between the
    buffers already placed and alive with it (Pisarchyk and Lee, "Efficient Memory Management for Deep Neural
    Net Inference", 2020, algorithm 3). Zero-sized requests get offset 0.
    """
    offsets = [0] * len(requests)
    order = sorted(
        (i for i, request in enumerate(requests) if request.nbytes > 0),
        key=lambda i: (-requests[i].nbytes, requests[i].first, i),
    )
    # Rows (first, last, offset, end) of what is placed, kept sorted by offset.
    placed = np.zeros((0, 4), np.int64)
    total = 0
    for i in order:
        request = requests[i]
        size = align(request.nbytes)
        alive = placed[(placed[:, 0] <= request.last) & (placed[:, 1] >= request.first)]
        offset = _best_gap(alive, size)
        offsets[i] = offset
        total = max(total, offset + size)
        row = np.array([[request.first, request.last, offset, offset + size]], np.int64)
        at = int(np.searchsorted(placed[:, 2], offset))
        placed = np.concatenate([placed[:at], row, placed[at:]])
    return offsets, total


def _best_gap(alive: NDArray[np.int64], size: int) -> int:
    if not len(alive):
        return 0
    ends = np.maximum.accumulate(alive[:, 3])
    starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
    gaps = alive[:, 2] - starts
    fitting = np.flatnonzero(gaps >= size)
    if not len(fitting):
        return int(ends[-1])
    return int(starts[fitting[np.argmin(gaps[fitting])]])


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


def aligned_bytes(nbytes: int) -> NDArray[np.uint8]:
    """A zeroed uint8 array whose address is a multiple of 64, for weights."""
    return Region(nbytes).array()[:nbytes]
