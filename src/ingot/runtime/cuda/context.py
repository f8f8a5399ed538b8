"""The runs of a loaded program on a GPU: copies of what is on the host, graphs at the caller's addresses, captures."""

from __future__ import annotations

import operator
import sys
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import reduce
from math import prod
from typing import Any

from ingot.runtime import tensors
from ingot.runtime.bind import Binding, Shape
from ingot.runtime.cuda.driver import Driver
from ingot.runtime.cuda.graphs import Graphs
from ingot.runtime.cuda.image import Image
from ingot.runtime.cuda.memory import Memory, Workspace
from ingot.runtime.cuda.nccl import Communicators
from ingot.runtime.cuda.profile import Profile
from ingot.runtime.cuda.resolver import first_argument
from ingot.runtime.cuda.streaming import BoundedWeights
from ingot.runtime.dtypes import itemsize
from ingot.runtime.program import Program
from ingot.support.dataclass import dataclass
from ingot.support.errors import DeviceError

ALIGN_BYTES = 16  # bytes that kernels count on in the addresses of arguments
MAX_SHAPE_SETS = 16  # sets of shapes whose graphs a context keeps
DEFAULT_STREAM = 0  # that nobody creates, destroys or captures


class Instance(Binding):
    """A program bound to shapes: the sizes of its arguments and results, and its graphs after the first run.

    first_place: the index of the first argument among the places of the graphs.
    """

    def __init__(
        self, program: Program, shapes: Sequence[Shape], driver: Driver, image: Image,
        communicators: Communicators | None,
    ) -> None:  # fmt: skip
        super().__init__(program, shapes)
        specs = zip(program.arguments, shapes, strict=False)  # behind the shapes are values that are sizes
        arguments = [prod(shape) * itemsize(spec.dtype) for spec, shape in specs]
        state = arguments[len(program.inputs) :]
        self.nbytes = [*arguments, *state, *(nbytes for _, _, nbytes in self.results)]
        self.first_result = len(arguments)
        self.graphs = Graphs(driver, program, image, self, communicators)
        self.first_place = first_argument(self.layout)


class Context:
    """The resources of one run: device memory for arguments and results on the host, and a stream for callers without
    one. Its arena is that of the stream.

    arena_bytes: the bytes of intermediate values at the largest shapes so far.
    """

    def __init__(
        self, driver: Driver, program: Program, image: Image, weights: int | BoundedWeights, profile: Profile,
        communicators: Communicators | None, release: Callable[[Context], None],
    ) -> None:  # fmt: skip
        """weights: their address, or the weights that are streamed within a bound."""
        self._communicators = communicators
        self._driver, self._program, self._image = driver, program, image
        self._bounded = weights if isinstance(weights, BoundedWeights) else None
        self._weights = 0 if isinstance(weights, BoundedWeights) else weights
        self._profile, self._release, self._streams = profile, release, False
        self._stream = driver.stream()
        # behind the last run, on whichever stream that was
        self._ended = driver.event()
        self._last: int | None = None
        # the last run, if all of its addresses were used as they are: another such needs but a launch
        self._direct: _Direct | None = None
        self._workspaces: dict[int, Workspace] = {}  # of the streams that it ran on
        self.arena_bytes = 0
        self.is_captured = False  # in a graph of the caller's, which may be replayed at any time
        count = len(program.arguments) + len(program.results)
        self._staged = [Memory(driver) for _ in range(count)]
        self._instances: OrderedDict[tuple[Shape, ...], Instance] = OrderedDict()
        self._bound: tuple[tuple[Shape, ...], Instance] | None = None  # what was asked for last

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
                for workspace in self._workspaces.values():
                    workspace.forget(self, old.layout)
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
        stream = self._stream if resident is None else tensors.current_stream()
        captured = resident is not None and stream != DEFAULT_STREAM and driver.is_capturing(stream)
        direct = self._direct if self._profile.is_off and not captured else None
        if direct is not None and direct.matches(instance, resident, stream):
            with direct.workspace.lock:
                is_launched = direct.is_current and self._relaunch(direct, pointers)
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
        with (workspace := self._workspace(stream)).lock:
            try:
                own_places = self._own_places(instance, workspace, stream, ends)
                places, host = self._through(instance, ends, own_places, stream, resident is None)
            except BaseException:
                with suppress(DeviceError):
                    self.end(stream)  # kernels may be under way
                raise
            if self._communicators is not None:
                self._communicators.check()  # where the run waited, a rank may have ended meanwhile
            if resident is not None:
                self.end(stream)
                if not host and places[instance.first_place :] == pointers and self._bounded is None:
                    self._direct = _Direct(instance, own_places, resident, stream, workspace, workspace.version)

    def _relaunch(self, direct: _Direct, pointers: Sequence[int]) -> bool:
        """Run as the last time, if the addresses are aligned."""
        graphs, places = direct.instance.graphs, (*direct.own_places, *pointers)
        if graphs.relaunch(places, direct.stream):
            return True
        if reduce(operator.or_, pointers, 0) % ALIGN_BYTES:
            return False
        graphs.run(places, direct.stream)
        return True

    def _workspace(self, stream: int) -> Workspace:
        workspace = self._workspaces.get(stream)
        if workspace is None:
            workspace = self._workspaces[stream] = Workspace.of(self._driver, stream, self)
        return workspace

    def _own_places(
        self, instance: Instance, workspace: Workspace, stream: int, ends: Sequence[tuple[int, bool, int]]
    ) -> tuple[int, ...]:
        """The places before those of the arguments: the arena, the weights, the halos."""
        nbytes, layout = instance.graphs.nbytes, instance.layout
        self.arena_bytes = max(self.arena_bytes, nbytes + layout.nbytes - layout.plain_bytes)
        if self._bounded is not None:
            self._streams = self._fit(self._bounded, ends)
        arena, *halos = workspace.places(self, layout, nbytes, stream)
        return arena, self._weights, *halos

    def _through(
        self, instance: Instance, ends: Sequence[tuple[int, bool, int]], own_places: Sequence[int], stream: int,
        host: bool,
    ) -> tuple[list[int], bool]:  # fmt: skip
        """Copy the arguments to the GPU, run, and copy the results back. Arguments and results: (address, whether it is
        on the GPU, bytes). host: whether to wait until all work has ended.

        Returns:
            The addresses that were used, and whether the host waited.
        """
        driver, bounded, places = self._driver, self._bounded, [*own_places]
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
        if bounded is not None and self._streams:
            instance.graphs.stream(places, stream, bounded, seconds)
        elif self._profile.is_off:
            instance.graphs.run(tuple(places), stream)
        elif self._profile.ranges is not None and seconds is None:
            instance.graphs.stream(places, stream, self._profile.ranges)
        else:
            seconds = instance.graphs.times(places, stream)
        self._profile.tell(seconds)
        for i, (pointer, on_device, nbytes) in [*enumerate(ends)][instance.first_result :]:
            if places[instance.first_place + i] == pointer:
                continue
            if on_device:
                driver.copy(pointer, self._staged[i].address, nbytes, stream)
            else:  # a copy to memory that is not pinned, as all results of the host are, has ended when it returns
                driver.to_host(pointer, self._staged[i].address, nbytes, stream)
                host = False
        if host:
            driver.synchronize(stream)
        return places, host

    def _fit(self, bounded: BoundedWeights, ends: Sequence[tuple[int, bool, int]]) -> bool:
        """Place the weights beside the memory that this run needs. Returns whether some are streamed."""
        staged = [0 if on_device and pointer % ALIGN_BYTES == 0 else nbytes for pointer, on_device, nbytes in ends]
        others = sum(max(memory.nbytes, nbytes) for memory, nbytes in zip(self._staged, staged, strict=True))
        plan = bounded.fit(others + self.arena_bytes)
        self._weights = bounded.resident.address
        return plan.slots > 0

    def begin(self, stream: int) -> None:
        """Let later work on the stream wait for the last run, on whatever stream it was."""
        if stream != self._last and self._last is not None:
            self._direct = None  # a launch alone does not wait
            if self._last == DEFAULT_STREAM:
                self._driver.record(self._ended, DEFAULT_STREAM)
            self._driver.wait(stream, self._ended)
        self._last = stream

    def end(self, stream: int) -> None:
        """Record an event after the run; on the default stream, which is never destroyed, only when another stream
        waits for it."""
        if stream != DEFAULT_STREAM:
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
        halos = [base + offset for offset, *_ in instance.layout.fills]
        self.is_captured = True
        instance.graphs.record([base, self._weights, *halos, *addresses], stream)
        for i, nbytes in unaligned:
            if i >= instance.first_result:
                driver.copy(ends[i][0], addresses[i], nbytes, stream)

    def release(self) -> None:
        self._release(self)

    def close(self) -> None:
        """Free the GPU memory."""
        for instance in self._instances.values():
            instance.graphs.drop()
        self._instances.clear()
        self._bound = None
        for memory in self._staged:
            memory.free()
        for stream, workspace in self._workspaces.items():
            workspace.leave(self, stream)
        self._workspaces.clear()
        self._driver.drop_event(self._ended)
        self._driver.drop_stream(self._stream)


@dataclass(frozen=True)
class _Direct:
    """A run that used all of its addresses in place. own_places: the first places of its graphs. version: of the
    workspace that they are in."""

    instance: Instance
    own_places: tuple[int, ...]
    resident: Sequence[bool]
    stream: int
    workspace: Workspace
    version: int

    @property
    def is_current(self) -> bool:
        return self.workspace.version == self.version

    def matches(self, instance: Instance, resident: Sequence[bool] | None, stream: int) -> bool:
        """Whether another run can use its addresses in place too, provided that they are aligned."""
        same_places = resident is self.resident or resident == self.resident
        return same_places and instance is self.instance and stream == self.stream


def _scratch(nbytes: int) -> Any:
    """Memory for a captured run, as a tensor, which belongs to the graph that captures it and to later work of its
    stream."""
    torch = sys.modules.get("torch")
    if torch is None:
        raise DeviceError("a CUDA graph that is captured", expected="PyTorch, whose memory it takes", got="none")
    return torch.empty(nbytes, dtype=torch.uint8, device="cuda:0")


__all__ = ["DEFAULT_STREAM", "Context", "Instance"]
