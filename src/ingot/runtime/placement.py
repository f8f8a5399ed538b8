"""Where each buffer of a bound program goes. At run time, as sizes may be known no sooner.

a: steps 0-1, 100 B   b: 1-2, 50 B   c: 2-3, 100 B   ->   a at 0, b at 128, c at 0; 192 bytes
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ingot.support.dataclass import dataclass

ALIGNMENT = 64


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
