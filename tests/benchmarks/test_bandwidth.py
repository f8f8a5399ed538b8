"""The bandwidth benchmark's cases and figures, on small arrays."""

import itertools

import numpy as np
import pytest

pytest.importorskip("torch")

from benchmarks import bandwidth as bw
from benchmarks.machine import host_machine
from ingot.ir.types import f32

NBYTES = 1 << 20


def test_a_share_of_the_memory_speed() -> None:
    lanes = host_machine().lanes(f32)
    kernels = {
        "read": (bw.read_kernel(lanes), NBYTES),
        "write": (bw.write_kernel(lanes), NBYTES),
        "copy": (bw.copy_kernel(lanes), 2 * NBYTES),
    }
    memory = {name: (bw.stream_model(kernel, NBYTES, 2), n) for name, (kernel, n) in kernels.items()}
    case = bw.products(1, 64, 80, NBYTES)
    assert case.read == NBYTES // (4 * 64 * 80) * (64 * 80 + 64) * 4
    result = bw.measure(case, memory, True, 2, 0.01)
    assert result.share > 0 and set(result.rates) == {"read", "write", "copy", "ingot", "torch"}


def test_every_case_runs() -> None:
    for case in itertools.islice(bw.streams(NBYTES), 6):
        bw.compiled(case, 2)()
        for start in case.peers.values():
            start(case.xs)()


def test_copy_kernel_copies() -> None:
    kernel = bw.copy_kernel(host_machine().lanes(f32))
    assert [b.writable for b in kernel.params] == [False, True]
    assert np.isfinite(bw.filled(3, 5)).all() and not bw.filled(64).ctypes.data % 64
