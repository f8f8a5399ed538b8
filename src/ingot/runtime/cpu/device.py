"""The CPU as a device: it loads machine code and runs it on threads of this process."""

from __future__ import annotations

import os
import threading
import weakref

import numpy as np
from numpy.typing import NDArray

from ingot.runtime import placement
from ingot.runtime.bind import Shape
from ingot.runtime.cpu import memory
from ingot.runtime.cpu.host_functions import function_of
from ingot.runtime.cpu.image import CodeImage
from ingot.runtime.cpu.pool import pool_for, thread_count, ticks_per_second
from ingot.runtime.cpu.run_context import RunContext
from ingot.runtime.program import Program
from ingot.runtime.ranks.current import group_of
from ingot.support.errors import ArtifactError, InputError
from ingot.support.native import Features, available_cores, host

_loaded: weakref.WeakSet[Loaded] = weakref.WeakSet()


class CpuDevice:
    """See `ingot.runtime.device.Device`."""

    name = "cpu"

    def refusal(self, needs: Features) -> ArtifactError | None:
        machine = host()
        missing = machine.missing(needs.features)
        if needs.arch == machine.arch and not missing:
            return None
        return ArtifactError(
            "the program was compiled for another machine",
            expected=needs.arch + (f" with {', '.join(missing)}" if missing else ""),
            got=f"{machine.arch} with {', '.join(machine.features) or 'no extensions'}",
            fix="compile the model on this machine, or with its features as the target",
        )

    def load(self, program: Program, threads: int | None, device_memory: int | None = None) -> Loaded:
        if device_memory is not None:
            raise InputError("device_memory", expected="a device with memory of its own, such as cuda", got="cpu")
        return Loaded(program, thread_count(threads))


class Loaded:
    """A model's code and weights in memory, and the contexts of its runs.

    There is one context at first, and more when calls overlap, while there are cores for the threads of all. The n-th
    contexts of all models with the same thread count share a `Pool`.
    """

    def __init__(self, program: Program, threads: int) -> None:
        """A program with state gets a single context: it runs one call at a time. Raises InputError for a bad thread
        count."""
        for step in program.steps:
            if step.host is not None:
                function_of(step.host)
        self.threads = threads
        self._program, self._image = program, CodeImage(program.code["cpu"])
        self._weights = program.weights
        if self._weights.ctypes.data % placement.ALIGNMENT:
            self._weights = memory.aligned_bytes(program.weights.nbytes)
            self._weights[:] = program.weights
        self._group = group_of(program)
        self._contexts = [self._make(0)]
        # collectives of concurrent calls could be matched with those of other calls
        self._max_contexts = 1 if program.state or self._group is not None else max(1, available_cores() // threads)
        self._waits = 0
        self._changes = threading.Lock()
        self._forked = False
        _loaded.add(self)

    def _make(self, number: int) -> RunContext:
        pool = pool_for(self.threads, self._image, number)
        return RunContext(self._program, self._image, self._weights.ctypes.data, pool, self._group)

    def claim(self) -> RunContext:
        """A context for exclusive use until `release`: an idle one, a new one, or one that the call waits for."""
        if self._forked:
            self._revive()
        for context in self._contexts:
            if context.pool.lock.acquire(False):
                return context
        with self._changes:
            if len(self._contexts) < self._max_contexts:
                self._contexts.append(self._make(len(self._contexts)))
                context = self._contexts[-1]
            else:
                self._waits += 1
                context = self._contexts[self._waits % len(self._contexts)]
        context.pool.lock.acquire()
        return context

    def store(self, nbytes: int) -> memory.Region:
        return memory.Region(nbytes)

    def prepare(self, shapes: tuple[Shape, ...]) -> None:
        """Bind these shapes and place their memory before the first run."""
        context = self.claim()
        try:
            context.activate(context.bind(shapes))
        finally:
            context.release()

    def set_profile(self, readings: NDArray[np.int64] | None) -> None:
        """Have the first context's runs of its latest shapes write clock readings; None: stop writing them."""
        context = self._contexts[0]
        with context.pool.lock:  # a run in progress still writes to the previous readings
            context.set_profile(readings)

    @property
    def ticks_per_second(self) -> float:
        return ticks_per_second(self._image)

    def notes(self) -> list[str]:
        return []

    @property
    def arena_bytes(self) -> int:
        return sum(context.nbytes for context in self._contexts)

    def forget_threads(self) -> None:
        """To be called in the child after a fork: no thread survived it, and locks may have been held by some."""
        self._changes, self._forked = threading.Lock(), True

    def _revive(self) -> None:
        with self._changes:
            if not self._forked:
                return
            for number, context in enumerate(self._contexts):
                context.pool, context.current = pool_for(self.threads, self._image, number), None
            self._forked = False


def _after_fork() -> None:
    for loaded in list(_loaded):
        loaded.forget_threads()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


DEVICE = CpuDevice()
