"""The GPU as a device: a loaded program's weights and kernels, and contexts that run it, each on its own stream."""

from __future__ import annotations

import ctypes
import sys
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from math import prod
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ingot.runtime.bind import Binding, Shape
from ingot.runtime.cuda.driver import Driver, driver
from ingot.runtime.cuda.graphs import Graphs
from ingot.runtime.cuda.image import Image
from ingot.runtime.cuda.memory import Memory
from ingot.runtime.cuda.nccl import Communicators, communicators_of
from ingot.runtime.cuda.nvtx import ranges_of
from ingot.runtime.cuda.profile import TICKS_PER_SECOND, Profile
from ingot.runtime.cuda.streaming import BoundedWeights
from ingot.runtime.dtypes import itemsize
from ingot.runtime.program import Program
from ingot.runtime.tensors import current_stream as _callers_stream
from ingot.support.dataclass import dataclass
from ingot.support.errors import ArtifactError, DeviceError, check_number
from ingot.support.native import Features

ALIGN_BYTES = 16  # bytes that kernels count on in the addresses of arguments
MAX_SHAPE_SETS = 16  # sets of shapes whose graphs a context keeps


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
        return sum(context.arena.nbytes for context in self._all)


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
        is_captured, stream = is_resident and _captured(self._driver), _callers_stream()
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
    not allowed; the memory is then freed together with the next model, or when a model is loaded."""
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
    return (stream := _callers_stream()) != _DEFAULT and driver.is_capturing(stream)


def _refuse_captured(driver: Driver, expected: str, got: str) -> None:
    """Raise DeviceError if the caller's stream is being captured: an operation that waits for the GPU or allocates
    memory would end the capture with an error of the driver."""
    if _captured(driver):
        fix = "call the model once, or set its state, before the capture begins"
        raise DeviceError("a CUDA graph that is captured", expected=expected, got=got, fix=fix)


def _scratch(nbytes: int) -> Any:
    """Memory for a captured run, as a tensor, which belongs to the graph that captures it and to later work of its
    stream."""
    torch = sys.modules.get("torch")
    if torch is None:
        raise DeviceError("a CUDA graph that is captured", expected="PyTorch, whose memory it takes", got="none")
    return torch.empty(nbytes, dtype=torch.uint8, device="cuda:0")


_DEFAULT = 0  # the stream that nobody creates, destroys or captures
_DeviceMemory: TypeAlias = "tuple[list[Memory | BoundedWeights], list[_Store]]"
_COLLECTED: list[tuple[Image, _DeviceMemory, list[Context]]] = []  # of models that were collected


class Instance(Binding):
    """A program bound to shapes: the sizes of its arguments and results, and its graphs after the first run."""

    def __init__(
        self, program: Program, shapes: Sequence[Shape], driver: Driver, image: Image,
        communicators: Communicators | None,
    ) -> None:  # fmt: skip
        super().__init__(program, shapes)
        arguments = [prod(shape) * itemsize(spec.dtype) for spec, shape in zip(program.arguments, shapes, strict=True)]
        state = arguments[len(program.inputs) :]
        self.nbytes = [*arguments, *state, *(nbytes for _, _, nbytes in self.results)]
        self.first_result = len(arguments)
        self.graphs = Graphs(driver, program, image, self, communicators)


class Context:
    """The resources of one run: an arena, device memory for arguments and results on the host, and a stream for callers
    without one."""

    def __init__(
        self, driver: Driver, program: Program, image: Image, weights: int | BoundedWeights, profile: Profile,
        communicators: Communicators | None, release: Callable[[Context], None],
    ) -> None:  # fmt: skip
        """weights: their address, or the weights that are streamed within a bound."""
        self._communicators = communicators
        self._driver, self._program, self._image = driver, program, image
        self._bounded = weights if isinstance(weights, BoundedWeights) else None
        self._weights = 0 if isinstance(weights, BoundedWeights) else weights
        self._profile, self._release = profile, release
        self._stream = driver.stream()
        # behind the last run, on whichever stream that was
        self._ended = driver.event()
        self._last: int | None = None
        # the last run, if all of its addresses were used as they are: another such needs but a launch
        self._direct: _Direct | None = None
        self.arena = Memory(driver)
        count = len(program.arguments) + len(program.results)
        self._staged = [Memory(driver) for _ in range(count)]
        self._instances: OrderedDict[tuple[Shape, ...], Instance] = OrderedDict()
        self._bound: tuple[tuple[Shape, ...], Instance] | None = None  # what was asked for last
        self._current: Instance | None = None

    def bind(self, shapes: tuple[Shape, ...]) -> Instance:
        if self._bound is not None and self._bound[0] is shapes:
            return self._bound[1]
        instance = self._instances.get(shapes)
        if instance is None:
            instance = self._instances[shapes] = Instance(
                self._program, shapes, self._driver, self._image, self._communicators
            )
            if len(self._instances) > MAX_SHAPE_SETS:
                _, old = self._instances.popitem(last=False)
                old.graphs.drop()
        self._instances.move_to_end(shapes)
        self._bound = shapes, instance
        return instance

    def run(self, instance: Binding, pointers: Sequence[int], resident: Sequence[bool] | None = None) -> None:
        """Aligned addresses on the GPU are used in place, and arrays on the host are copied. If any is on the GPU, all
        work is enqueued on the caller's stream, which the host waits for only if a result is on the host."""
        assert isinstance(instance, Instance)
        driver = self._driver
        if self._communicators is not None:
            self._communicators.check()
        stream = self._stream if resident is None else _callers_stream()
        captured = resident is not None and stream != _DEFAULT and driver.is_capturing(stream)
        direct = self._direct if self._profile.is_off and not captured else None
        if direct is not None and direct.matches(instance, resident, stream):
            places = (*direct.own_places, *pointers)
            is_launched = instance.graphs.relaunch(places, stream)
            if not is_launched and not any(pointer % ALIGN_BYTES for pointer in pointers):
                instance.graphs.run(places, stream)
                is_launched = True
            if is_launched:
                self.end(stream)
                return
        self._direct = None
        state = range(len(self._program.inputs), len(pointers) - len(self._program.outputs))
        on_device = [i in state or is_resident for i, is_resident in enumerate(resident or [False] * len(pointers))]
        ends = [*zip(pointers, on_device, instance.nbytes, strict=True)]
        if captured and self._bounded is not None:
            expected, fix = "weights that stay on the GPU", "load it without device_memory"
            raise DeviceError("a CUDA graph that is captured", expected=expected, got="bounded memory", fix=fix)
        if captured:
            self._record(instance, ends, stream)
            return
        self.begin(stream)
        try:
            places, host = self._through(instance, ends, stream, resident is None)
        except BaseException:
            with suppress(DeviceError):
                self.end(stream)  # kernels may be under way
            raise
        if self._communicators is not None:
            self._communicators.check()  # where the run waited, a rank may have ended meanwhile
        if resident is not None:
            self.end(stream)
            if not host and places[2:] == pointers and self._bounded is None:
                self._direct = _Direct(instance, (self.arena.address, self._weights), resident, stream)

    def _through(
        self, instance: Instance, ends: Sequence[tuple[int, bool, int]], stream: int, host: bool
    ) -> tuple[list[int], bool]:
        """Copy the arguments to the GPU, run, and copy the results back. Arguments and results: (address, whether it is
        on the GPU, bytes). host: whether to wait until all work has ended.

        Returns:
            The addresses that were used, after those of the arena and the weights, and whether the host waited.
        """
        driver, bounded = self._driver, self._bounded
        streams = bounded is not None and self._fit(bounded, instance, ends)
        self._activate(instance, stream)
        places = [self.arena.address, self._weights]
        for i, (pointer, on_device, nbytes) in enumerate(ends):
            if (on_device and pointer % ALIGN_BYTES == 0) or not nbytes:
                places.append(pointer)
                continue
            self._staged[i].hold(nbytes)
            places.append(self._staged[i].address)
            if i < instance.first_result:
                copy = driver.copy if on_device else driver.to_device
                copy(self._staged[i].address, pointer, nbytes, stream)
                host = host or (not on_device and driver.is_pinned(pointer))
        seconds = None if self._profile.readings is None else dict[int, float]()
        if streams and bounded is not None:
            instance.graphs.stream(places, stream, bounded, seconds)
        elif self._profile.is_off:
            instance.graphs.run(tuple(places), stream)
        elif self._profile.ranges is not None and seconds is None:
            instance.graphs.stream(places, stream, self._profile.ranges)
        else:
            seconds = instance.graphs.times(places, stream)
        self._profile.tell(seconds)
        for i, (pointer, on_device, nbytes) in [*enumerate(ends)][instance.first_result :]:
            if places[2 + i] == pointer:
                continue
            if on_device:
                driver.copy(pointer, self._staged[i].address, nbytes, stream)
            else:  # a copy to memory that is not pinned, as all results of the host are, has ended when it returns
                driver.to_host(pointer, self._staged[i].address, nbytes, stream)
                host = False
        if host:
            driver.synchronize(stream)
        return places, host

    def _fit(self, bounded: BoundedWeights, instance: Instance, ends: Sequence[tuple[int, bool, int]]) -> bool:
        """Place the weights beside the memory that this run needs. Returns whether some are streamed."""
        staged = [0 if on_device and pointer % ALIGN_BYTES == 0 else nbytes for pointer, on_device, nbytes in ends]
        others = sum(max(memory.nbytes, nbytes) for memory, nbytes in zip(self._staged, staged, strict=True))
        plan = bounded.fit(others + max(self.arena.nbytes, instance.graphs.nbytes))
        self._weights = bounded.resident.address
        return plan.slots > 0

    def begin(self, stream: int) -> None:
        """Let later work on the stream wait for the last run, on whatever stream it was."""
        if stream != self._last and self._last is not None:
            self._direct = None  # a launch alone does not wait
            if self._last == _DEFAULT:
                self._driver.record(self._ended, _DEFAULT)
            self._driver.wait(stream, self._ended)
        self._last = stream

    def end(self, stream: int) -> None:
        """Record an event after the run; on the default stream, which is never destroyed, only when another stream
        waits for it."""
        if stream != _DEFAULT:
            self._driver.record(self._ended, stream)

    def _record(self, instance: Instance, ends: Sequence[tuple[int, bool, int]], stream: int) -> None:
        """Add the run to the graph that the caller captures. Its memory belongs to the graph, which may run at any
        time, concurrently with other runs."""
        if any(nbytes and not on_device for _, on_device, nbytes in ends):
            raise DeviceError("a CUDA graph that is captured", expected="values on the GPU", got="some on the host")
        if copied := [s for s in self._program.state if s.copy_reason]:
            got = "; ".join(f"{s.spec.name}: {s.copy_reason}" for s in copied)
            raise DeviceError("a CUDA graph that is captured", expected="state that is written in place", got=got)
        driver, total = self._driver, -(-instance.layout.nbytes // ALIGN_BYTES) * ALIGN_BYTES
        unaligned = [(i, nbytes) for i, (pointer, _, nbytes) in enumerate(ends) if nbytes and pointer % ALIGN_BYTES]
        scratch_offsets: dict[int, int] = {}
        for i, nbytes in unaligned:
            scratch_offsets[i] = total
            total += -(-nbytes // ALIGN_BYTES) * ALIGN_BYTES
        memory = _scratch(max(total, 1))
        base = memory.data_ptr()
        for offset, nbytes, byte in instance.layout.fills:
            driver.fill(base + offset, byte, nbytes, stream)
        addresses = [
            base + scratch_offsets[i] if i in scratch_offsets else pointer for i, (pointer, _, _) in enumerate(ends)
        ]
        for i, nbytes in unaligned:
            if i < instance.first_result:
                driver.copy(addresses[i], ends[i][0], nbytes, stream)
        instance.graphs.record([base, self._weights, *addresses], stream)
        for i, nbytes in unaligned:
            if i >= instance.first_result:
                driver.copy(ends[i][0], addresses[i], nbytes, stream)

    def _activate(self, instance: Instance, stream: int) -> None:
        if self._current is instance and self.arena.nbytes >= instance.graphs.nbytes:
            return
        self._current = None  # until the arena has what is filled
        self.arena.hold(instance.graphs.nbytes)
        for offset, nbytes, byte in instance.layout.fills:
            self._driver.fill(self.arena.address + offset, byte, nbytes, stream)
        self._current = instance

    def release(self) -> None:
        self._release(self)

    def close(self) -> None:
        """Free the GPU memory."""
        for instance in self._instances.values():
            instance.graphs.drop()
        self._instances.clear()
        self._bound = None
        for memory in (self.arena, *self._staged):
            memory.free()
        self._driver.drop_event(self._ended)
        self._driver.drop_stream(self._stream)


@dataclass(frozen=True)
class _Direct:
    """A run that used all of its addresses in place. own_places: the first places of its graphs, the arena and the
    weights."""

    instance: Instance
    own_places: tuple[int, int]
    resident: Sequence[bool]
    stream: int

    def matches(self, instance: Instance, resident: Sequence[bool] | None, stream: int) -> bool:
        """Whether another run can use its addresses in place too, provided that they are aligned."""
        same_places = resident is self.resident or resident == self.resident
        return same_places and instance is self.instance and stream == self.stream


DEVICE = CudaDevice()
