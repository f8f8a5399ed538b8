"""Lanes: what a run of a model has for itself. Runs side by side need one each; code and weights are shared."""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ingot.runtime import memory
from ingot.runtime.bind import Instance, Shape
from ingot.runtime.image import CodeImage
from ingot.runtime.pool import Pool, pool_for
from ingot.runtime.program import Program
from ingot.support.native import available_cores

_run = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
# Bound shapes kept at a time; each holds only its tables, the arena is shared.
MAX_INSTANCES = 16

_models: weakref.WeakSet[Lanes] = weakref.WeakSet()


class Lane:
    """Threads, an arena, scratch, and the program bound to the latest shapes. For whoever holds the pool's lock."""

    def __init__(self, program: Program, image: CodeImage, weights: int, pool: Pool) -> None:
        """`weights`: their address."""
        self.pool = pool
        self.arena = memory.Region(1)
        self.instances: dict[tuple[Shape, ...], Instance] = {}
        self.current: Instance | None = None
        self._program, self._image, self._weights = program, image, weights
        # A whole number of cache lines, and one more, so that threads' scratches do not fall on the same L1 sets.
        self._stride = memory.align(program.scratch_bytes) + memory.ALIGNMENT
        self._scratch = memory.Region(self._stride * pool.threads)
        self._uses = 0
        self._run = _run(image.address("ingot_run"))

    def bind(self, shapes: tuple[tuple[int, ...], ...]) -> Instance:
        """The program bound to these shapes. A miss binds it and drops the least recently activated of too many.

        Raises InputError for shapes that the program does not take.
        """
        instance = self.instances.get(shapes)
        if instance is None:
            plain = tuple(map(tuple, shapes))  # PyTorch's are tuples of a kind of their own
            instance = Instance(self._program, plain, self._image)
            while len(self.instances) >= MAX_INSTANCES:
                del self.instances[min(self.instances, key=lambda key: self.instances[key].last_used)]
            self.instances[plain] = instance
        return instance

    def run(self, instance: Instance, pointers: Sequence[int]) -> None:
        """Run what `bind` returned on arguments and results at these addresses."""
        if instance is not self.current:
            self.activate(instance)
        bases = instance.bases
        slot = 2
        for pointer in pointers:
            bases[slot] = pointer
            slot += 1
        if self._program.sizes:
            instance.begin()
        self._run(instance.address)

    def activate(self, instance: Instance) -> None:
        """Make the arena this instance's."""
        layout = instance.layout
        fresh = layout.nbytes > self.arena.nbytes
        if fresh:
            # let the old one go first: peak memory is one arena. Whatever was bound to it is to be activated anew, also
            # where there is no memory for another
            self.current, self.arena = None, memory.Region(1)
            self.arena = memory.Region(layout.nbytes)
        for offset, nbytes, byte in layout.filled:
            # fresh memory is zero; elsewhere another instance's buffers may have lain
            if byte or not fresh:
                self.arena.fill(offset, nbytes, byte)
        instance.attach(
            pool=self.pool.address,
            arena=self.arena.address,
            weights=self._weights,
            scratch=self._scratch.address,
            stride=self._stride,
        )
        self._uses += 1
        instance.last_used = self._uses
        self.current = instance


class Lanes:
    """A model's lanes: one, and more when calls overlap, as long as there are cores for the threads of all.

    The n-th lanes of all models with the same thread count share a pool: `Pool`.
    """

    def __init__(self, program: Program, image: CodeImage, weights: int, threads: int) -> None:
        """One lane for a program with state: calls come one after another. Raises InputError for a bad thread count."""
        self._make = lambda pool: Lane(program, image, weights, pool)
        self._image, self._threads = image, threads
        self._lanes = [self._make(pool_for(threads, image))]
        self._most = 1 if program.state else max(1, available_cores() // threads)
        self._waits = 0
        self._changes = threading.Lock()
        self._forked = False
        _models.add(self)

    def claim(self) -> Lane:
        """A lane of one's own until its pool's lock is released: an idle one, a new one, or one that was waited for."""
        if self._forked:
            self._revive()
        for lane in self._lanes:
            if lane.pool.lock.acquire(False):
                return lane
        with self._changes:
            if len(self._lanes) < self._most:
                self._lanes.append(self._make(pool_for(self._threads, self._image, len(self._lanes))))
                lane = self._lanes[-1]
            else:
                self._waits += 1
                lane = self._lanes[self._waits % len(self._lanes)]
        lane.pool.lock.acquire()
        return lane

    def prepare(self, shapes: tuple[Shape, ...]) -> None:
        """Bind these shapes and place their memory before the first run."""
        lane = self.claim()
        try:
            lane.activate(lane.bind(shapes))
        finally:
            lane.pool.lock.release()

    def set_profile(self, readings: NDArray[np.int64] | None) -> None:
        """Have the first lane's runs of its latest shapes read the clock, or stop that: see `Instance.set_profile`."""
        lane = self._lanes[0]
        with lane.pool.lock:  # a run under way still writes to earlier readings
            assert lane.current is not None
            lane.current.set_profile(readings)

    @property
    def arena_bytes(self) -> int:
        return sum(lane.arena.nbytes for lane in self._lanes)

    def forget_threads(self) -> None:
        """In the child after a fork: threads did not survive it, and locks may have been held by some of them."""
        self._changes, self._forked = threading.Lock(), True

    def _revive(self) -> None:
        with self._changes:
            if not self._forked:
                return
            for number, lane in enumerate(self._lanes):
                lane.pool, lane.current = pool_for(self._threads, self._image, number), None
            self._forked = False


def _after_fork() -> None:
    for lanes in list(_models):
        lanes.forget_threads()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
