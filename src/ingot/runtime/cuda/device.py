"""The GPU as a device: a loaded program's weights and kernels, and contexts that run it, each on its own stream."""

from __future__ import annotations

import ctypes
import threading
import weakref
from functools import partial
from itertools import chain
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ingot.runtime import tensors
from ingot.runtime.bind import Shape
from ingot.runtime.cuda.context import DEFAULT_STREAM, Context
from ingot.runtime.cuda.driver import Driver, driver
from ingot.runtime.cuda.image import Image
from ingot.runtime.cuda.memory import Memory
from ingot.runtime.cuda.nccl import communicators_of
from ingot.runtime.cuda.profile import TICKS_PER_SECOND, Profile, ranges_of
from ingot.runtime.cuda.streaming import BoundedWeights
from ingot.runtime.program import Program
from ingot.support.errors import ArtifactError, DeviceError, check_number
from ingot.support.native import Features


class CudaDevice:
    """See `ingot.runtime.device.Device`."""

    name = "cuda"

    def refusal(self, needs: Features) -> ArtifactError | None:
        archs = ", ".join((needs.arch, *needs.features))
        try:
            capability = driver().capability
        except DeviceError as error:
            return ArtifactError(f"the program is for NVIDIA GPUs ({archs}), and here is none: {error}")
        if _arch(needs, capability) is not None:
            return None
        return ArtifactError(
            "the program was compiled for other GPUs", expected=archs, got=f"sm_{capability}",
            fix=f"compile with target='cuda:sm_{capability}{'a' if capability >= 90 else ''}'",
        )  # fmt: skip

    def load(self, program: Program, threads: int | None, device_memory: int | None = None) -> Loaded:
        self.check_memory(device_memory)
        return Loaded(program, device_memory)

    def check_memory(self, nbytes: int | None) -> None:
        """Raise InputError if the bound is not a positive number of bytes."""
        if nbytes is not None:
            check_number("device_memory", nbytes, "bytes > 0", lambda n: n > 0, whole=True)


def _arch(features: Features, capability: int) -> str | None:
    """The architecture of the GPU, if it is among those that the code was compiled for. Code for sm_90a runs on no
    other."""
    return next(
        (a for a in (features.arch, *features.features) if a.removeprefix("sm_").rstrip("a") == str(capability)), None
    )


class Loaded:
    """The kernels and weights of a model on the GPU. Concurrent calls run in separate contexts."""

    threads = 1

    def __init__(
        self, program: Program, device_memory: int | None = None, device_driver: Driver | None = None,
        arch: str | None = None,
    ) -> None:  # fmt: skip
        """device_memory: the bytes of GPU memory that it may allocate; weights that do not fit are copied in each call.
        device_driver, arch: a driver other than NVIDIA's, and the architecture of its GPU."""
        self._driver = driver() if device_driver is None else device_driver
        self._driver.enter()
        _refuse_captured(self._driver, "a model that is loaded already", "its first call")
        _free_collected(self._driver)
        code = program.code[program.device]
        arch = _arch(code.features, self._driver.capability) if arch is None else arch
        assert arch is not None
        self._program, self._image, self._weights = program, Image(self._driver, code, arch), Memory(self._driver)
        self._profile = Profile(ranges_of(program, self._driver))
        self._communicators = communicators_of(program, self._driver)
        self._idle: list[Context] = []
        self._all: list[Context] = []
        self._stores: list[_Store] = []
        bound = None if device_memory is None else BoundedWeights(self._driver, program, device_memory)
        self._bounded = bound
        # calls of a program with state or bounded memory, or whose collectives meet those of other GPUs, come one after
        # another, in one context
        is_alone = bool(program.state) or self._communicators is not None or bound is not None
        self._turn = threading.Lock() if is_alone else None
        # a process that ends gives all back by itself, when the driver may be gone already
        memories = [self._weights, *filter(None, [bound])], self._stores
        weakref.finalize(self, _release_all, self._driver, self._image, memories, self._all).atexit = False
        if bound is not None:
            return  # they are copied once it is known what else there is
        weights = program.weights
        self._weights.hold(weights.nbytes)
        self._driver.to_device(self._weights.address, weights.ctypes.data, weights.nbytes, 0)
        self._driver.synchronize(0)

    def store(self, nbytes: int) -> _Store:
        memory = _Store(self._driver, self._all)
        memory.hold(nbytes)
        self._stores.append(memory)
        if self._bounded is not None:
            self._bounded.state_bytes += memory.nbytes
        self._driver.fill(memory.address, 0, memory.nbytes, 0)
        self._driver.synchronize(0)
        return memory

    def claim(self) -> Context:
        self._driver.enter()
        if self._turn is not None:
            self._turn.acquire()
        try:
            return self._idle.pop()  # at once, whichever threads ask
        except IndexError:
            pass
        # of this the context knows its list and the turn alone: what knew the model would keep it alive
        release = partial(_release, self._idle, self._turn)
        weights = self._bounded or self._weights.address
        resources = self._driver, self._program, self._image, weights, self._profile, self._communicators
        try:
            context = Context(*resources, release)
        except BaseException:
            if self._turn is not None:
                self._turn.release()
            raise
        self._all.append(context)
        return context

    def prepare(self, shapes: tuple[Shape, ...]) -> None:
        context = self.claim()
        try:
            context.bind(shapes)
        finally:
            context.release()

    def set_profile(self, readings: NDArray[np.int64] | None) -> None:
        self._profile.readings = readings

    @property
    def ticks_per_second(self) -> float:
        return TICKS_PER_SECOND

    def notes(self) -> list[str]:
        return [] if self._bounded is None else self._bounded.notes()

    @property
    def arena_bytes(self) -> int:
        return sum(context.arena_bytes for context in self._all)


class _Store(Memory):
    """The memory of the state, which the calls of one context read and write one after another."""

    def __init__(self, driver: Driver, contexts: list[Context]) -> None:
        super().__init__(driver)
        self._contexts = contexts

    def read(self, offset: int, nbytes: int) -> bytes:
        """The contents after all pending work has ended."""
        self._driver.enter()
        _refuse_captured(self._driver, "state that the host does not read", "a call that does")
        self._driver.synchronize_all()
        data = ctypes.create_string_buffer(nbytes)
        self._driver.to_host(ctypes.addressof(data), self.address + offset, nbytes, 0)
        self._driver.synchronize(0)
        return data.raw

    def write(self, offset: int, source: int, nbytes: int, is_resident: bool = False) -> None:
        """Enqueue the copy on the caller's stream, after all pending work; the host waits if its memory is pinned. A
        stream that is captured takes what is resident: its graph is in order by itself."""
        self._driver.enter()
        is_captured, stream = is_resident and _captured(self._driver), tensors.current_stream()
        if not is_captured:
            _refuse_captured(self._driver, "state that only the model writes", "new values of it from the host")
        contexts = [] if is_captured else self._contexts
        for context in contexts:
            context.begin(stream)
        copy = self._driver.copy if is_resident else self._driver.to_device
        copy(self.address + offset, source, nbytes, stream)
        for context in contexts:
            context.end(stream)
        if not is_resident and (not contexts or self._driver.is_pinned(source)):
            self._driver.synchronize(stream)


def _release(idle: list[Context], turn: threading.Lock | None, context: Context) -> None:
    idle.append(context)
    if turn is not None:
        turn.release()


def _release_all(driver: Driver, image: Image, memory: _DeviceMemory, contexts: list[Context]) -> None:
    """Free all GPU memory of a model, after its pending work has ended. While a stream is being captured, waiting is
    not allowed; the memory is then freed together with the next model, or when a model is loaded. A model in a graph
    of the caller's stays until the process ends, as no one tells when the last replay was."""
    if any(context.is_captured for context in contexts):
        return
    driver.enter()
    _COLLECTED.append((image, memory, contexts))
    if not _captured(driver):
        _free_collected(driver)


def _free_collected(driver: Driver) -> None:
    pending = [_COLLECTED.pop() for _ in range(len(_COLLECTED))]
    if pending:
        driver.synchronize_all()
    for resources in pending:
        _free(*resources)


def _free(image: Image, memory: _DeviceMemory, contexts: list[Context]) -> None:
    for context in contexts:
        context.close()
    for allocation in chain(*memory):
        allocation.free()
    image.unload()


def _captured(driver: Driver) -> bool:
    """Whether the caller's stream is being captured."""
    return (stream := tensors.current_stream()) != DEFAULT_STREAM and driver.is_capturing(stream)


def _refuse_captured(driver: Driver, expected: str, got: str) -> None:
    """Raise DeviceError if the caller's stream is being captured: an operation that waits for the GPU or allocates
    memory would end the capture with an error of the driver."""
    if _captured(driver):
        fix = "call the model once, or set its state, before the capture begins"
        raise DeviceError("a CUDA graph that is captured", expected=expected, got=got, fix=fix)


_DeviceMemory: TypeAlias = "tuple[list[Memory | BoundedWeights], list[_Store]]"
_COLLECTED: list[tuple[Image, _DeviceMemory, list[Context]]] = []  # of models that were collected


DEVICE = CudaDevice()
