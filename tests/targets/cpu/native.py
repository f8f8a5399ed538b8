"""Runs one kernel on numpy arrays, chunk after chunk: the native ABI without the runtime."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ingot.ir.kernel import Kernel
from ingot.support.native import Features
from ingot.targets.cpu.assemble import assemble
from ingot.targets.cpu.printer.llvm import print_module
from ingot.targets.cpu.workers import host_features

_SIGNATURE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)


class Native:
    """A compiled kernel: `Native(kernel)(arrays, dims)` runs chunks 0..n-1 in order."""

    def __init__(self, kernel: Kernel, features: Features | None = None) -> None:
        features = features or host_features()
        code = assemble([print_module([kernel], features)], features)
        self._memory = mmap.mmap(-1, len(code.blob), prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        self._memory.write(code.blob)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self.function = _SIGNATURE(start + code.symbols[kernel.name])
        self.kernel = kernel

    def __call__(self, arrays: Sequence[np.ndarray], dims: Sequence[int] = (), chunks: int = 1) -> None:
        call = Bound(self, arrays, dims)
        for chunk in range(chunks):
            call(chunk)


class Bound:
    """A kernel with its arguments: call it with a chunk."""

    def __init__(self, native: Native, arrays: Sequence[np.ndarray], dims: Sequence[int] = ()) -> None:
        n = len(arrays)
        assert n == len(native.kernel.params), (n, len(native.kernel.params))
        self.arrays = list(arrays)
        self.bases = (ctypes.c_void_p * n)(*[a.ctypes.data for a in arrays])
        self.args = (ctypes.c_int64 * (2 * n + len(dims)))(*[v for i in range(n) for v in (i, 0)], *dims)
        self.scratch = aligned(native.kernel.scratch_bytes + 64, np.uint8)
        self.function = native.function

    def __call__(self, chunk: int = 0) -> None:
        self.function(self.bases, self.args, chunk, self.scratch.ctypes.data)


def without(*names: str) -> Features:
    """This machine, lacking some features."""
    host = host_features()
    return replace(host, features=tuple(f for f in host.features if f not in names))


def aligned(shape: int | tuple[int, ...], dtype: np.typing.DTypeLike = np.float32) -> np.ndarray:
    """A zeroed array at a 64-byte boundary."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.zeros(size + 64, np.uint8)
    at = -raw.ctypes.data % 64
    return raw[at : at + size].view(dtype).reshape(shape)


def place(array: np.ndarray) -> np.ndarray:
    """A copy at a 64-byte boundary."""
    target = aligned(array.shape, array.dtype)
    target[...] = array
    return target
