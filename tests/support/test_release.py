"""Pages of a mapped file that were read leave memory, and come back when they are read again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ingot.frontends.onnx.tensors import map_file
from ingot.support.files import release

SMAPS = Path("/proc/self/smaps")


def resident(path: Path) -> int:
    """KiB of a mapped file that are in this process's memory."""
    kib, is_inside = 0, False
    for line in SMAPS.read_text().splitlines():
        if "-" in line.split(" ", 1)[0] and ":" not in line.split(" ", 1)[0]:
            is_inside = line.endswith(str(path))
        elif is_inside and line.startswith("Rss:"):
            kib += int(line.split()[1])
    return kib


@pytest.mark.skipif(not SMAPS.exists(), reason="needs /proc")
def test_pages_leave_and_come_back(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    np.arange(1 << 18, dtype=np.float32).tofile(path)
    mapped = map_file(path)
    weights = mapped[4096 * 3 : 4096 * 200].view(np.float32).reshape(-1, 64).T
    total = weights.sum()
    before = resident(path)
    release(weights)
    assert resident(path) <= before - 4 * 190
    assert weights.sum() == total


def test_other_arrays_are_left_alone() -> None:
    foreign = np.ones(1 << 16)
    for array in (foreign, foreign[5:], np.frombuffer(bytes(1 << 16), np.uint8), np.empty(0)):
        before = array.copy()
        release(array)
        np.testing.assert_array_equal(array, before)
