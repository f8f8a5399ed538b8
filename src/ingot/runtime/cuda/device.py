"""The GPU as a device: a loaded program's weights and kernels, and contexts that run it, each on its own stream."""

from __future__ import annotations

import sys
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from math import prod

import numpy as np
from numpy.typing import NDArray

from ingot.runtime.bind import Binding, Shape
from ingot.runtime.cuda.driver import Driver, driver
from ingot.runtime.cuda.graphs import Graphs
from ingot.runtime.cuda.image import Image
from ingot.runtime.dtypes import itemsize
from ingot.runtime.program import Program
from ingot.support.errors import ArtifactError, DeviceError, InputError
from ingot.support.native import Features

ALIGN = 16  # bytes that kernels count on in the addresses of arguments
KEPT = 16  # sets of shapes whose graphs a context keeps


class CudaDevice:
    """See `ingot.runtime.device.Device`."""

    name = "cuda"

    def refusal(self, needs: Features) -> ArtifactError | None:
        try:
            here = driver().capability
        except DeviceError as error:
            return ArtifactError(f"the program needs {needs.arch}", got=str(error), fix="run it where there is one")
        if _arch(needs, here) is not None:
            return None
        return ArtifactError(
            "the program was compiled for other GPUs", expected=", ".join((needs.arch, *needs.features)),
            got=f"sm_{here}", fix=f"compile with target='cuda:sm_{here}{'a' if here >= 90 else ''}'",
        )  # fmt: skip

    def load(self, program: Program, threads: int | None) -> Loaded:
        return Loaded(program)


def _arch(made: Features, capability: int) -> str | None:
    """Which of the architectures that code was made for the GPU runs: its own; code for sm_90a runs nowhere else."""
    return next((a for a in (made.arch, *made.features) if a.removeprefix("sm_").rstrip("a") == str(capability)), None)


class Loaded:
    """A model's kernels and weights on the GPU. Calls at one time run in contexts of their own."""

    threads = 1

    def __init__(self, program: Program) -> None:
        self._driver = driver()
        self._driver.enter()
        code = program.code["cuda"]
        arch = _arch(code.features, self._driver.capability)
        assert arch is not None
        self._program, self._image = program, Image(self._driver, code, arch)
        self._weights = _Memory(self._driver)
        self._idle: list[Context] = []
        self._all: list[Context] = []
        self._lock = threading.Lock()
        # a process that ends gives all back by itself, when the driver may be gone already
        weakref.finalize(self, _give_back, self._driver, self._image, self._weights, self._all).atexit = False
        weights = program.weights
        self._weights.hold(weights.nbytes)
        self._driver.to_device(self._weights.address, weights.ctypes.data, weights.nbytes, 0)
        self._driver.synchronize(0)

    def claim(self) -> Context:
        self._driver.enter()
        with self._lock:
            if self._idle:
                return self._idle.pop()
        # of this the context knows its list alone: what knew the model would keep it alive
        context = Context(self._driver, self._program, self._image, self._weights.address, self._idle.append)
        self._all.append(context)
        return context

    def prepare(self, shapes: tuple[Shape, ...]) -> None:
        context = self.claim()
        try:
            context.bind(shapes)
        finally:
            context.release()

    def set_profile(self, readings: NDArray[np.int64] | None) -> None:
        raise InputError("a profile of a GPU's steps", expected="a program for a CPU", got="one for a GPU")

    @property
    def ticks_per_second(self) -> float:
        return 1e9

    @property
    def arena_bytes(self) -> int:
        return sum(context.arena.nbytes for context in self._all)


class _Memory:
    """Device memory that grows; what it held is lost then."""

    def __init__(self, driver: Driver) -> None:
        self._driver, self.address, self.nbytes = driver, 0, 0

    def hold(self, nbytes: int) -> None:
        if nbytes > self.nbytes or not self.address:
            self.free()
            self.address, self.nbytes = self._driver.allocate(nbytes), nbytes

    def free(self) -> None:
        if self.address:
            self._driver.free(self.address)
        self.address = self.nbytes = 0


def _give_back(driver: Driver, image: Image, weights: _Memory, contexts: list[Context]) -> None:
    """All that a model has of the GPU, once what was begun has ended."""
    driver.enter()
    driver.synchronize_all()
    for context in contexts:
        context.close()
    weights.free()
    image.unload()


def _callers_stream() -> int:
    """The current stream of PyTorch, whose tensors they are."""
    torch = sys.modules.get("torch")
    return 0 if torch is None else torch.cuda.current_stream().cuda_stream


class Instance(Binding):
    """A program bound to shapes: what its arguments and results take, and its graphs once it has run."""

    def __init__(self, program: Program, shapes: Sequence[Shape]) -> None:
        super().__init__(program, shapes)
        arguments = [prod(shape) * itemsize(spec.dtype) for spec, shape in zip(program.arguments, shapes, strict=True)]
        state = arguments[len(program.inputs) :]
        self.nbytes = [*arguments, *state, *(nbytes for _, _, nbytes in self.results)]
        self.read = len(arguments)
        self.graphs: Graphs | None = None


class Context:
    """What a run has for itself: a stream, an arena, and memory for arguments and results that lie on the host."""

    def __init__(
        self, driver: Driver, program: Program, image: Image, weights: int, release: Callable[[Context], None]
    ) -> None:
        self._driver, self._program, self._image, self._weights = driver, program, image, weights
        self._release = release
        self._stream = driver.stream()
        self.arena = _Memory(driver)
        self._staged = [_Memory(driver) for _ in range(len(program.arguments) + len(program.results))]
        self._instances: OrderedDict[tuple[Shape, ...], Instance] = OrderedDict()
        self._current: Instance | None = None

    def bind(self, shapes: tuple[Shape, ...]) -> Instance:
        known = self._instances.get(shapes)
        if known is None:
            known = self._instances[shapes] = Instance(self._program, shapes)
            if len(self._instances) > KEPT:
                _, old = self._instances.popitem(last=False)
                if old.graphs is not None:
                    old.graphs.drop()
        self._instances.move_to_end(shapes)
        return known

    def run(self, instance: Binding, pointers: Sequence[int]) -> None:
        """Aligned addresses on the GPU are used as they are, and what lies on the host is copied. Where arguments lie
        on the GPU, all happens on the caller's stream, which is not waited for unless a result lies on the host."""
        assert isinstance(instance, Instance)
        on_gpu = [self._driver.is_device_memory(p) for p in pointers]
        stream = _callers_stream() if any(on_gpu) else self._stream
        self._activate(instance, stream)
        ends = [*zip(pointers, on_gpu, self._staged, instance.nbytes, strict=True)]
        places = [self.arena.address, self._weights]
        for i, (pointer, here, staged, nbytes) in enumerate(ends):
            if here and pointer % ALIGN == 0:
                places.append(pointer)
                continue
            staged.hold(nbytes)
            if i < instance.read and nbytes:
                copy = self._driver.copy if here else self._driver.to_device
                copy(staged.address, pointer, nbytes, stream)
            places.append(staged.address)
        if instance.graphs is None:
            instance.graphs = Graphs(self._driver, self._program, self._image, instance, places)
        instance.graphs.point(places)
        instance.graphs.run(stream)
        for place, (pointer, here, _, nbytes) in zip(places[2 + instance.read :], ends[instance.read :], strict=True):
            if place != pointer and nbytes:
                copy = self._driver.copy if here else self._driver.to_host
                copy(pointer, place, nbytes, stream)
        if not all(on_gpu):
            self._driver.synchronize(stream)

    def _activate(self, instance: Instance, stream: int) -> None:
        if self._current is instance and self.arena.nbytes >= instance.layout.nbytes:
            return
        self.arena.hold(instance.layout.nbytes)
        for offset, nbytes, byte in instance.layout.filled:
            self._driver.fill(self.arena.address + offset, byte, nbytes, stream)
        self._current = instance

    def release(self) -> None:
        self._release(self)

    def close(self) -> None:
        """Give the GPU back what this has of it."""
        for instance in self._instances.values():
            if instance.graphs is not None:
                instance.graphs.drop()
        self._instances.clear()
        for memory in (self.arena, *self._staged):
            memory.free()
        self._driver.drop_stream(self._stream)


DEVICE = CudaDevice()

__all__ = ["DEVICE", "CudaDevice"]
