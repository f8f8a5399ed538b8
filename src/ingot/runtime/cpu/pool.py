"""Worker threads: they stay in the native driver for as long as a model needs them.

The protocol is in `targets/cpu/driver.py`; this module owns its memory and the lifetime of the threads:

- models with the same thread count share pools, one for each concurrent run, so that idle models cost no threads;
- the worker threads themselves keep a pool's memory and code alive, so that a late worker never touches freed memory;
- after a fork the child starts without pools and creates its own;
- at interpreter exit the workers are stopped before Python is torn down.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
import time
import weakref

from ingot.runtime.cpu.image import SYSCALL_ADDRESS, CodeImage
from ingot.runtime.cpu.memory import Region
from ingot.runtime.cpu.workspace import Workspace
from ingot.support import flags
from ingot.support.errors import InputError
from ingot.support.native import available_cores

_POOL_BYTES, _THREAD_BYTES = 640, 128
_SYSCALL, _SPIN, _THREADS, _TURN, _OVER = 512, 520, 544, 552, -(1 << 63)
SPIN_SECONDS = 50e-6
_native = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_clock = ctypes.CFUNCTYPE(ctypes.c_int64)


def threads_text(count: int) -> str:
    return f"{count} thread" if count == 1 else f"{count} threads"


def thread_count(requested: int | None) -> int:
    """The number of threads. requested: the caller's; None: INGOT_THREADS, or the physical cores that this process may
    run on, within the container's CPU quota. Raises InputError for anything but an int from 1 to MAX_THREADS."""
    if requested is None:
        return flags.threads() or available_cores()
    if not isinstance(requested, int) or not 1 <= requested <= flags.MAX_THREADS:
        raise InputError("threads", expected=f"a whole number from 1 to {flags.MAX_THREADS}", got=requested)
    return requested


_rate: list[float] = []


def ticks_per_second(image: CodeImage) -> float:
    """The tick counter's rate, measured once per process over 0.3 ms (to about 1 %)."""
    if not _rate:
        clock = _clock(image.address("ingot_clock"))
        clock()
        start, ticks = time.perf_counter(), clock()
        while time.perf_counter() - start < 3e-4:
            pass
        _rate.append((clock() - ticks) / (time.perf_counter() - start))
    return _rate[0]


_CLOCK_MONOTONIC_COARSE = 6  # a clock of Linux that advances with the scheduler's tick


def turn_seconds() -> float:
    """The time for which a thread runs before it yields its core: half of the scheduler's time slice.

    That is the base slice (up to 3 ms), rounded up to whole ticks.
    """
    return max(time.clock_getres(_CLOCK_MONOTONIC_COARSE), 3e-3) / 2


class Pool:
    """`threads - 1` workers and the caller, and the memory of their runs. lock: held during each run. address: 0 for a
    single thread."""

    def __init__(self, threads: int, image: CodeImage) -> None:
        self.threads = threads
        self.lock = threading.Lock()
        self.workspace = Workspace(self.lock)
        self.address = 0
        self._workers: list[threading.Thread] = []
        if threads == 1:
            return
        memory = Region(_POOL_BYTES + _THREAD_BYTES * threads)
        self.address = memory.address
        words = ctypes.cast(memory.address, ctypes.POINTER(ctypes.c_int64))
        words[0] = _OVER
        words[_SYSCALL // 8] = SYSCALL_ADDRESS
        words[_SPIN // 8] = int(SPIN_SECONDS * ticks_per_second(image))
        words[_THREADS // 8] = threads
        words[_TURN // 8] = int(turn_seconds() * ticks_per_second(image))
        for number in range(1, threads):
            worker = threading.Thread(target=_work, args=(memory, image), name=f"ingot-worker-{number}", daemon=True)
            try:
                worker.start()
            except RuntimeError:  # the process may not start more threads; the others, or the caller, do the work
                break
            self._workers.append(worker)
        # atexit is covered by _stop_all, which also waits for the threads.
        weakref.finalize(self, _send_home, memory, image).atexit = False
        self._memory, self._image = memory, image

    def release(self) -> None:
        """Release `lock`, and free the memory of models that were collected while it was held."""
        self.lock.release()
        if self.workspace.left:  # read after the release: whoever sets it while the lock is free shrinks by itself
            self.workspace.shrink()

    def stop(self, deadline: float) -> None:
        """Stop the workers and wait for them; later runs use the caller's thread alone."""
        if not self._workers or not self.lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
            return
        try:
            _send_home(self._memory, self._image)
        finally:
            self.lock.release()
        for worker in self._workers:
            worker.join(max(0.0, deadline - time.monotonic()))


def _work(memory: Region, image: CodeImage) -> None:
    # The arguments keep pool memory and code alive while the native loop runs.
    _native(image.address("ingot_worker"))(memory.address)


def _send_home(memory: Region, image: CodeImage) -> None:
    _native(image.address("ingot_stop"))(memory.address)


class _Pools:
    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.lock = threading.Lock()
        self.shared: weakref.WeakValueDictionary[tuple[int, int], Pool] = weakref.WeakValueDictionary()


_pools = _Pools()


def pool_for(threads: int, image: CodeImage, number: int = 0) -> Pool:
    """Pool `number` of those with this thread count, shared by all models; the pool of a single thread is not shared.

    Raises InputError unless 1 <= threads <= 1024.
    """
    if not 1 <= threads <= 1024:
        raise InputError("threads", expected="1 to 1024", got=threads)
    if threads == 1:
        return Pool(1, image)
    with _pools.lock:
        pool = _pools.shared.get((threads, number))
        if pool is None:
            pool = _pools.shared[threads, number] = Pool(threads, image)
        return pool


def _stop_all() -> None:
    deadline = time.monotonic() + 1.0
    for pool in list(_pools.shared.values()):
        pool.stop(deadline)


def _after_fork() -> None:
    # Threads do not survive a fork, and a lock may have been held by one of them.
    _pools.reset()


atexit.register(_stop_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
