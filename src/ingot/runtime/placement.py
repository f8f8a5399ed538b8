"""Memory planning: the arena offset of each buffer of a bound program. At run time, when all sizes are known.

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
    """nbytes of memory, live from `first_step` to `last_step`, inclusive."""

    nbytes: int
    first_step: int
    last_step: int


def align(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def place(requests: Sequence[Request]) -> tuple[list[int], int]:
    """64-byte aligned offsets such that requests that are live at the same step never overlap, and the total size.

    Greedy by size with best fit: the largest first, each into the smallest gap that fits between the placed buffers
    that are live with it (Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020,
    algorithm 3). Zero-sized requests get offset 0.
    """
    offsets = [0] * len(requests)
    order = sorted(
        (i for i, request in enumerate(requests) if request.nbytes > 0),
        key=lambda i: (-requests[i].nbytes, requests[i].first_step, i),
    )
    # rows of (first step, last step, offset, end), sorted by offset
    placements = np.zeros((0, 4), np.int64)
    total = 0
    for i in order:
        request = requests[i]
        size = align(request.nbytes)
        conflicts = placements[(placements[:, 0] <= request.last_step) & (placements[:, 1] >= request.first_step)]
        offset = _best_gap(conflicts, size)
        offsets[i] = offset
        total = max(total, offset + size)
        row = np.array([[request.first_step, request.last_step, offset, offset + size]], np.int64)
        index = int(np.searchsorted(placements[:, 2], offset))
        placements = np.concatenate([placements[:index], row, placements[index:]])
    return offsets, total


def _best_gap(conflicts: NDArray[np.int64], size: int) -> int:
    if not len(conflicts):
        return 0
    ends = np.maximum.accumulate(conflicts[:, 3])
    starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
    gaps = conflicts[:, 2] - starts
    candidates = np.flatnonzero(gaps >= size)
    if not len(candidates):
        return int(ends[-1])
    return int(starts[candidates[np.argmin(gaps[candidates])]])
