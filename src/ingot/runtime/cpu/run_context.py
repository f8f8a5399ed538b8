"""The resources of one run of a model. Concurrent runs need a context each. They share code and weights; the arena is
shared with the other models of the pool, which run one at a time (`workspace.py`)."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np
from numpy.typing import NDArray

from ingot.runtime import placement
from ingot.runtime.bind import Shape
from ingot.runtime.cpu import memory
from ingot.runtime.cpu.image import CodeImage
from ingot.runtime.cpu.instance import Instance
from ingot.runtime.cpu.pool import Pool, ticks_per_second
from ingot.runtime.program import Program
from ingot.runtime.ranks.process_group import ProcessGroup

_run = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)
_end = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
# A run returns to Python at this interval, as only there signal handlers are called and raise KeyboardInterrupt.
SLICE_SECONDS = 0.25
# Raises what ends the runs of this context, where somebody has asked for that: see `ended_by`.
_check_end: ContextVar[Callable[[], None] | None] = ContextVar("_check_end", default=None)
# The number of bound shapes to keep; each has only its own tables, as memory is shared.
MAX_INSTANCES = 16


@contextmanager
def ended_by(check: Callable[[], None]) -> Iterator[None]:
    """Call `check` before each run of a program inside, and every SLICE_SECONDS of it, at a border of chunks. What it
    raises ends the run, as an exception of a signal handler does."""
    token = _check_end.set(check)
    try:
        yield
    finally:
        _check_end.reset(token)


class RunContext:
    """Scratch memory, the program bound to the latest shapes, and the pool whose threads and memory it uses.

    Its methods require the pool's lock. nbytes: the size of the arena for the largest shapes so far.
    """

    def __init__(
        self, program: Program, image: CodeImage, weights: int, pool: Pool, group: ProcessGroup | None = None
    ) -> None:
        """weights: their address. group: runs the program's collectives, if any."""
        self.pool, self._group = pool, group
        self.nbytes = 0
        self.instances: dict[tuple[Shape, ...], Instance] = {}
        self.current: Instance | None = None
        self._program, self._image, self._weights = program, image, weights
        # A whole number of cache lines, plus one, so that the threads' scratch does not map to the same L1 sets.
        self._stride = placement.align(program.scratch_bytes) + placement.ALIGNMENT
        self._scratch = memory.Region(self._stride * pool.threads)
        self._uses = 0
        self._version = -1  # of the workspace's addresses
        self._run, self._end = _run(image.address("ingot_run")), _end(image.address("ingot_end"))

    def bind(self, shapes: tuple[tuple[int, ...], ...]) -> Instance:
        """The program bound to these shapes, from a cache that drops the least recently activated.

        Raises InputError for shapes that the program does not support.
        """
        instance = self.instances.get(shapes)
        if instance is None:
            plain = tuple(map(tuple, shapes))  # torch.Size is a subclass of tuple
            instance = Instance(self._program, plain, self._image, self._group)
            while len(self.instances) >= MAX_INSTANCES:
                del self.instances[min(self.instances, key=lambda key: self.instances[key].last_used)]
            self.instances[plain] = instance
        return instance

    def run(self, instance: Instance, pointers: Sequence[int], _resident: object = None) -> None:
        """Run an instance from `bind` on arguments and results at these addresses.

        An exception from a signal handler, or of `ended_by`, ends the run; it is raised here once no thread is in the
        run any more.
        """
        check_end = _check_end.get()
        if check_end is not None:
            check_end()
        if instance is not self.current or self._version != self.pool.workspace.version:
            self.activate(instance)
        bases = instance.bases
        slot = 2
        for pointer in pointers:
            bases[slot] = pointer
            slot += 1
        if self._program.sizes:
            instance.begin()
        try:
            while self._run(instance.address):
                instance.check()
                if check_end is not None:
                    check_end()
            if instance.error is not None:
                instance.check()
        except BaseException:
            self._end(instance.address)
            raise

    def release(self) -> None:
        """Release the threads and this context."""
        self.pool.release()

    def set_profile(self, readings: NDArray[np.int64] | None) -> None:
        """Have runs of the latest shapes write to `readings`, and runs of other shapes write none."""
        for instance in self.instances.values():
            instance.set_profile(readings if instance is self.current else None)

    def activate(self, instance: Instance) -> None:
        """Provide memory for this instance. Raises IngotError if there is not enough."""
        workspace, layout = self.pool.workspace, instance.layout
        self.current = None
        workspace.use(self, layout)
        instance.attach(
            pool=self.pool.address,
            arena=workspace.arena.address,
            images=[workspace.place(images) for images, *_ in layout.images],
            weights=self._weights,
            scratch=self._scratch.address,
            stride=self._stride,
            ticks=int(SLICE_SECONDS * ticks_per_second(self._image)),
        )
        self.nbytes = max(self.nbytes, layout.nbytes)
        self._version = workspace.version
        self._uses += 1
        instance.last_used = self._uses
        self.current = instance
