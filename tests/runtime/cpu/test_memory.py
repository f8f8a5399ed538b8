import gc
import os
import random

import numpy as np
import pytest

from ingot.runtime.cpu.memory import Region, Results, aligned_bytes
from ingot.runtime.placement import Request, align, place
from ingot.support.errors import IngotError
from tests.runtime.side_by_side import in_threads


def test_places_reuse_dead_memory():
    offsets, total = place([Request(100, 0, 1), Request(50, 1, 2), Request(100, 2, 3)])
    assert offsets == [0, 128, 0] and total == 192


def test_best_fit_takes_the_smallest_gap():
    # At step 1 the gaps are [0, 512) and [1024, 1152); 128 bytes go into the second.
    requests = [Request(512, 0, 0), Request(512, 0, 1), Request(256, 0, 0), Request(128, 0, 1), Request(100, 1, 1)]
    offsets, total = place(requests)
    assert total == 1408
    assert offsets[4] in (0, 1024)


@pytest.mark.parametrize("seed", range(20))
def test_alive_buffers_never_overlap(seed: int):
    rng = random.Random(seed)
    requests = []
    for _ in range(rng.randrange(1, 120)):
        first = rng.randrange(50)
        requests.append(Request(rng.choice([0, 1, 63, 64, 65, 1000, 4096, 100_000]), first, first + rng.randrange(8)))
    offsets, total = place(requests)
    peak = max(sum(align(r.nbytes) for r in requests if r.first_step <= t <= r.last_step) for t in range(60))
    assert peak <= total <= 2 * peak
    for i, a in enumerate(requests):
        assert offsets[i] % 64 == 0 and offsets[i] + a.nbytes <= total
        for j in range(i):
            b = requests[j]
            overlap_in_time = a.first_step <= b.last_step and b.first_step <= a.last_step and a.nbytes and b.nbytes
            are_disjoint = offsets[i] + a.nbytes <= offsets[j] or offsets[j] + b.nbytes <= offsets[i]
            assert not overlap_in_time or are_disjoint


def test_regions_are_zero_aligned_and_private():
    region = Region(3 << 20)
    view = region.array()
    assert region.address % 4096 == 0 and not view.any()
    child = os.fork()
    if child == 0:
        view[0] = 1
        os._exit(0)
    os.waitpid(child, 0)
    assert view[0] == 0
    view[:] = 7
    region.fill(10, 5, 0)
    assert view[9] == 7 and not view[10:15].any() and view[15] == 7


def test_arrays_keep_their_memory():
    array = aligned_bytes(100)
    assert array.nbytes == 100 and array.ctypes.data % 64 == 0
    array[:] = 3
    assert int(array.sum()) == 300
    assert aligned_bytes(0).view(np.float32).size == 0


def test_too_much_memory_is_a_clear_error():
    with pytest.raises(IngotError, match="out of memory: expected"):
        Region(1 << 62)


def test_memory_of_results_comes_back_when_the_last_view_is_gone():
    results = Results(2)
    first = results.take(4096)
    first[:] = 7
    part = first.view(np.float32).reshape(32, 32)[3:5].T
    where = first.ctypes.data
    del first
    gc.collect()
    other = results.take(4096)  # while a view of the first is alive
    assert other.ctypes.data != where
    other[:] = 1
    assert set(part.tobytes()) == {7}
    del part
    assert results.take(4096).ctypes.data == where


def test_memory_of_results_is_bounded():
    results = Results(2)
    buffers = [results.take(4096) for _ in range(5)]
    places = {a.ctypes.data for a in buffers}
    del buffers
    reused = [results.take(4096) for _ in range(2)]
    assert {a.ctypes.data for a in reused} <= places
    del reused
    small = results.take(100)  # another size: what is spare goes
    assert small.nbytes == 100 and results._free_regions == []


def test_results_of_many_threads_never_share_memory():
    results = Results(4)
    wrong: list[int] = []

    def work(number: int) -> None:
        for _ in range(300):
            array = results.take(8192)
            array[:] = number
            if not (array == number).all():
                wrong.append(number)

    in_threads(4, work)
    assert not wrong
