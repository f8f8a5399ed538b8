"""A bound program as CUDA graphs: a node for each launch, one behind the other; jumps end a graph, and the host follows
them. Kernels that await what is before them start early: all do so before they read, so that what is before the one
before has ended, too.

    steps: a b c  jump-if-0(flag) end  d jump a   ->   graph [a b c], flag read by the host, graph [d], again from a
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

from ingot.runtime.bind import Binding
from ingot.runtime.cuda.clock import Clock
from ingot.runtime.cuda.driver import Driver, KernelParams
from ingot.runtime.cuda.image import Image, LoadedKernel
from ingot.runtime.expr import Expr, evaluate
from ingot.runtime.program import Program
from ingot.support.dataclass import dataclass
from ingot.support.errors import DeviceError

Places = Sequence[int]  # addresses of the arena, the weights, the arguments and the results, in this order


class _Node:
    """A launch: its parameters in memory, where the driver reads them."""

    def __init__(
        self, number: int, kernel: LoadedKernel, chunks: int, bases: list[tuple[int, int]], dims: list[int]
    ) -> None:
        """number: of the step. bases: (index into the places, byte offset) of each buffer."""
        self.number, self.bases, self.awaits = number, bases, kernel.code.awaits
        count = len(bases) + len(dims)
        # two of Triton's own follow: scratch memory and profiling, which no kernel here has
        self._values = (ctypes.c_uint64 * (count + 2))(*([0] * len(bases)), *(d & (1 << 64) - 1 for d in dims), 0, 0)
        size = ctypes.sizeof(ctypes.c_uint64)
        start = ctypes.addressof(self._values)
        self._pointers = (ctypes.c_void_p * (count + 2))(*(start + i * size for i in range(count + 2)))
        code = kernel.code
        self.params = KernelParams(
            kernel.function, (ctypes.c_uint * 3)(chunks, 1, 1), (ctypes.c_uint * 3)(code.threads, 1, 1), code.shared,
            self._pointers, None, None, None,
        )  # fmt: skip
        self.handle = self.executable = 0

    def point(self, places: Places) -> None:
        for i, (base, offset) in enumerate(self.bases):
            self._values[i] = places[base] + offset

    def slots(self) -> dict[int, list[tuple[int, int]]]:
        """Of each place that it reads or writes: the parameters that point there, and how far from its beginning."""
        found: dict[int, list[tuple[int, int]]] = {}
        for i, (base, offset) in enumerate(self.bases):
            found.setdefault(base, []).append((i, offset))
        return found

    def move(self, slots: Sequence[tuple[int, int]], address: int) -> None:
        for i, offset in slots:
            self._values[i] = address + offset


@dataclass
class _Segment:
    """Launches without a jump between them. executable: 0 where there are none."""

    nodes: list[_Node]
    graph: int = 0
    executable: int = 0


@dataclass(frozen=True)
class _Jump:
    """Behind a segment: where to go on, if the byte that `flag` names is 0, or always."""

    flag: tuple[int, int] | None
    target: int


class Graphs:
    """The graphs of a program for one set of shapes, made when it first runs."""

    def __init__(self, driver: Driver, program: Program, image: Image, binding: Binding) -> None:
        self._driver = driver
        self._places: list[int] | None = None  # what the graphs read and write, once they are made
        starts = sorted({0, *(s.target for s in program.steps if s.target is not None)}
                        | {i + 1 for i, s in enumerate(program.steps) if s.target is not None})  # fmt: skip
        self._segments: dict[int, _Segment] = {}
        self._jumps: dict[int, _Jump] = {}
        self._next: dict[int, int] = {}
        self._users: dict[int, list[tuple[_Node, list[tuple[int, int]]]]] = {}  # of each place, and where they have it
        resolve = _Resolver(program, binding)
        for start, end in zip(starts, [*starts[1:], len(program.steps)], strict=True):
            segment = self._segments[start] = _Segment([])
            for number in range(start, end):
                step = program.steps[number]
                if step.target is not None:
                    flag = resolve.buffer(*step.args[0]) if step.args else None
                    self._jumps[start] = _Jump(flag, step.target)
                elif binding.counts[number][0]:
                    dims = [evaluate(d, binding.values) for d in step.dims]
                    bases = [resolve.buffer(*arg) for arg in step.args]
                    node = _Node(number, image.kernels[step.kernel], binding.counts[number][0], bases, dims)
                    segment.nodes.append(node)
                    for base, slots in node.slots().items():
                        self._users.setdefault(base, []).append((node, slots))
            self._next[start] = end
        self._end = len(program.steps)

    def run(self, places: Places, stream: int) -> None:
        """Launch at these addresses; a jump that asks for a flag waits for what is before it."""
        if self._places is None:
            self._make(places)
        elif self._places != places:
            self._move(self._places, places)

        if not self._jumps:  # by far the most programs
            if executable := self._segments[0].executable:
                self._driver.launch(executable, stream)
            return

        def launch(segment: _Segment) -> None:
            if segment.executable:
                self._driver.launch(segment.executable, stream)

        self._follow(launch, places, stream)

    def record(self, places: Places, stream: int) -> None:
        """Launch kernel by kernel on a stream that is captured. Raises DeviceError where the host has to read flags."""
        if any(jump.flag is not None for jump in self._jumps.values()):
            raise DeviceError(
                "a CUDA graph that is captured", expected="a program whose steps are known beforehand",
                got="one with loops or branches that the host follows", fix="call it outside of the captured part",
            )  # fmt: skip

        def launch(segment: _Segment) -> None:
            for node in segment.nodes:
                node.point(places)
                self._driver.launch_kernel(node.params, stream)

        self._follow(launch, places, stream)
        if self._places is not None:
            for segment in self._segments.values():
                for node in segment.nodes:
                    node.point(self._places)

    def times(self, places: Places, stream: int) -> dict[int, float]:
        """Run, with an event before and behind each launch: seconds by the number of the step."""
        found: dict[int, float] = {}
        clocks: dict[int, Clock] = {}

        def launch(segment: _Segment) -> None:
            if not segment.nodes:
                return
            clock = clocks.get(id(segment))
            if clock is None:
                clock = clocks[id(segment)] = Clock(self._driver, [node.params for node in segment.nodes])
            for node, seconds in zip(segment.nodes, clock.run(stream), strict=True):
                found[node.number] = found.get(node.number, 0.0) + seconds

        if self._places is None:
            self._make(places)
        elif self._places != places:
            self._move(self._places, places)
        try:
            self._follow(launch, places, stream)
        finally:
            for clock in clocks.values():
                clock.drop()
        return found

    def _make(self, places: Places) -> None:
        try:
            for segment in self._segments.values():
                self._build(segment, places)
        except DeviceError:
            self.drop()
            raise
        self._places = list(places)

    def _build(self, segment: _Segment, places: Places) -> None:
        if not segment.nodes:
            return
        segment.graph = self._driver.graph()
        before: list[int] = []
        for node in segment.nodes:
            node.point(places)
            node.handle = self._driver.add_kernel(segment.graph, before, node.params, awaits=node.awaits)
            before = [node.handle]
        segment.executable = self._driver.instantiate(segment.graph)
        for node in segment.nodes:
            node.executable = segment.executable

    def _move(self, old: Places, new: Places) -> None:
        """Let the graphs read and write at other addresses from here on."""
        moved: dict[_Node, None] = {}  # each once
        for place, (a, b) in enumerate(zip(old, new, strict=True)):
            if a != b:
                for node, slots in self._users.get(place, ()):
                    node.move(slots, b)
                    moved[node] = None
        try:
            for node in moved:
                self._driver.update(node.executable, node.handle, node.params)
        except DeviceError:
            self.drop()  # some are moved, and some are not: they are made anew
            raise
        self._places = list(new)

    def _follow(self, launch: Callable[[_Segment], None], places: Places, stream: int) -> None:
        """Segment after segment, as the jumps say."""
        at, flag = 0, ctypes.c_uint8()
        while at < self._end:
            launch(self._segments[at])
            jump = self._jumps.get(at)
            at = self._next[at]
            if jump is None:
                continue
            if jump.flag is not None:
                base, offset = jump.flag
                self._driver.to_host(ctypes.addressof(flag), places[base] + offset, 1, stream)
                self._driver.synchronize(stream)
            if jump.flag is None or not flag.value:
                at = jump.target

    def drop(self) -> None:
        for segment in self._segments.values():
            if segment.graph:
                self._driver.drop_graph(segment.graph, segment.executable)
            segment.graph = segment.executable = 0
        self._places = None


class _Resolver:
    """(index into the places, byte offset) of a program's buffers."""

    def __init__(self, program: Program, binding: Binding) -> None:
        self._buffers = {b.id: b for b in program.buffers}
        self._binding = binding
        self._arguments = len(program.arguments)

    def buffer(self, identity: int, offset: Expr) -> tuple[int, int]:
        at = evaluate(offset, self._binding.values)
        buffer = self._buffers[identity]
        while buffer.alias is not None:
            parent, shift = buffer.alias
            at += evaluate(shift, self._binding.values)
            buffer = self._buffers[parent]
        match buffer.kind:
            case "arena":
                return 0, at + self._binding.layout.offsets[buffer.id]
            case "weight":
                return 1, at + buffer.offset
            case "input":
                return 2 + buffer.index, at
        return 2 + self._arguments + buffer.index, at


__all__ = ["Graphs"]
