"""A bound program as CUDA graphs: a node for each launch, one behind the other; jumps end a graph, and the host follows
them. A loop whose turns are known beforehand is laid out in the graph, turn by turn. Kernels that await what is before
them start early: all do so before they read, so that what is before the one before has ended, too. Behind a size that
steps find, the host reads it, and tells it to the kernels that depend on it.

    steps: a b c  jump-if-0(flag) end  d jump a   ->   graph [a b c], flag read by the host, graph [d], again from a
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence

from ingot.runtime.bind import Binding
from ingot.runtime.cuda.clock import Clock
from ingot.runtime.cuda.driver import MAP_BYTES, Driver, KernelParams
from ingot.runtime.cuda.image import Image, LoadedKernel
from ingot.runtime.expr import OPERATORS, Expr, evaluate, span
from ingot.runtime.program import Program, Step, table_places
from ingot.support.dataclass import dataclass
from ingot.support.errors import DeviceError

_WORD = 8  # bytes of a size
_OF_MATRIX = 4  # parameters behind the map of a matrix: its sizes and its strides
MOST = 4096  # kernels of a graph that repeats those of loops
Places = Sequence[int]  # addresses of the arena, the weights, the arguments and the results, in this order


class _Node:
    """A launch: its parameters in memory, where the driver reads them. One that is a matrix is told by a map of it, its
    two sizes, and its two strides, which no kernel reads."""

    def __init__(
        self, driver: Driver, number: int, kernel: LoadedKernel, chunks: int, bases: list[tuple[int, int]],
        dims: list[int], sized: Step | None,
    ) -> None:  # fmt: skip
        """number: of the step. bases: (index into the places, byte offset) of each buffer. sized: the step, where its
        chunks or dims depend on sizes that steps find; there may be no chunks then, and nothing starts early."""
        self.number, self.bases, self.sized = number, bases, sized
        self.awaits, self.chunks, self.enabled = kernel.code.awaits and sized is None, chunks, True
        code, count = kernel.code, len(bases) + len(dims)
        # two of Triton's own follow: scratch memory and profiling, which no kernel here has
        self._values = (ctypes.c_uint64 * (count + 2))(*([0] * len(bases)), *(d & (1 << 64) - 1 for d in dims), 0, 0)
        self._driver, self._matrices = driver, {m.parameter: m for m in code.matrices}
        self._held = (ctypes.c_uint8 * (MAP_BYTES * (len(code.matrices) + 1)))()
        first = -(-ctypes.addressof(self._held) // MAP_BYTES) * MAP_BYTES
        self._maps = {m.parameter: first + i * MAP_BYTES for i, m in enumerate(code.matrices)}
        start = ctypes.addressof(self._values)
        pointers: list[int] = []
        for i in range(count + 2):
            at = start + i * _WORD
            pointers += [self._maps[i], *[at] * _OF_MATRIX] if i in self._maps else [at]
        self._pointers = (ctypes.c_void_p * len(pointers))(*pointers)
        self.params = KernelParams(
            kernel.function, (ctypes.c_uint * 3)(chunks, 1, 1), (ctypes.c_uint * 3)(code.threads, 1, 1), code.shared,
            self._pointers, None, None, None,
        )  # fmt: skip
        self.told: tuple[int, ...] = ()  # what a run told of it last
        self.handle = self.executable = 0

    def point(self, places: Places) -> None:
        for i, (base, offset) in enumerate(self.bases):
            self._set(i, places[base] + offset)

    def _set(self, parameter: int, address: int) -> None:
        self._values[parameter] = address
        if parameter in self._maps:
            self._driver.encode(self._maps[parameter], self._matrices[parameter], address)

    def slots(self) -> dict[int, list[tuple[int, int]]]:
        """Of each place that it reads or writes: the parameters that point there, and how far from its beginning."""
        found: dict[int, list[tuple[int, int]]] = {}
        for i, (base, offset) in enumerate(self.bases):
            found.setdefault(base, []).append((i, offset))
        return found

    def move(self, slots: Sequence[tuple[int, int]], address: int) -> None:
        for i, offset in slots:
            self._set(i, address + offset)

    def resize(self, values: Mapping[str, int]) -> bool:
        """Take chunks and dims from the values of symbols and sizes; whether they are others than before."""
        assert self.sized is not None
        first = len(self.bases)
        dims = [evaluate(d, values) & (1 << 64) - 1 for d in self.sized.dims]
        chunks = evaluate(self.sized.chunks, values)
        if chunks == self.chunks and dims == self._values[first : first + len(dims)]:
            return False
        self._values[first : first + len(dims)] = dims
        self.told = self.number, chunks, *dims
        self.chunks, self.params.grid[0] = chunks, max(chunks, 1)
        return True


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


def known_path(program: Program, values: Mapping[str, int]) -> list[int] | None:
    """The steps that launch something, in the order in which they run, a loop's as often as it turns, without what only
    asks whether it goes on; None where only the run knows that, or there are more than `MOST`."""
    path: list[int] = []
    turned: dict[int, int] = {}  # by the jump that leaves a loop
    again = {s.target: i for i, s in enumerate(program.steps) if s.target is not None and s.target <= i}
    at, steps = 0, program.steps
    for _ in range(4 * MOST + 4 * len(steps)):  # of loops whose bodies launch nothing, too
        if at == len(steps):
            return path
        step = steps[at]
        if step.target is None:
            path.append(at)
            at += 1
        elif not step.args:
            at = step.target
        elif not step.dims or not _known(step.dims[0], values):
            return None
        else:
            first = max((i for i in again if i <= at), default=at)
            while path and first <= path[-1] < at:
                path.pop()
            turn = turned.get(at, 0)
            ends = turn >= evaluate(step.dims[0], values)
            turned[at] = 0 if ends else turn + 1
            at = step.target if ends else at + 1
        if len(path) > max(MOST, len(steps)):
            return None
    return None


def _known(number: Expr, values: Mapping[str, int]) -> bool:
    return isinstance(number, int) or all(not isinstance(i, str) or i in OPERATORS or i in values for i in number)


class Graphs:
    """The graphs of a program for one set of shapes, made when it first runs."""

    def __init__(self, driver: Driver, program: Program, image: Image, binding: Binding) -> None:
        self._driver, self._binding = driver, binding
        self._places: list[int] | None = None  # what the graphs read and write, once they are made
        self._known: Mapping[str, int] = {}  # the values of symbols and sizes, as far as the run has come
        starts = sorted({0, *(s.target for s in program.steps if s.target is not None)}
                        | {i + 1 for i, s in enumerate(program.steps) if s.target is not None})  # fmt: skip
        self._segments: dict[int, _Segment] = {}
        self._jumps: dict[int, _Jump] = {}
        self._next: dict[int, int] = {}
        self._users: dict[int, list[tuple[_Node, list[tuple[int, int]]]]] = {}  # of each place, and where they have it
        self._resolve = _Resolver(program, binding)
        self.nbytes, self._sizes = self._resolve.nbytes, self._resolve.sizes
        self._program, self._image = program, image
        self._end = len(program.steps)
        if (path := known_path(program, binding.values)) is not None:
            self._segments[0], self._next[0] = self._segment(path), self._end
            return
        for start, end in zip(starts, [*starts[1:], len(program.steps)], strict=True):
            last = program.steps[end - 1] if end > start else None
            if last is not None and last.target is not None:
                flag = self._resolve.buffer(*last.args[0]) if last.args else None
                self._jumps[start] = _Jump(flag, last.target)
            self._segments[start] = self._segment(range(start, end))
            self._next[start] = end

    def _segment(self, numbers: Sequence[int]) -> _Segment:
        """The launches of these steps."""
        binding, found, nodes = self._binding, {size.name for size in self._program.sizes}, list[_Node]()
        for number in numbers:
            step, chunks = self._program.steps[number], self._binding.counts[number][0]
            if not chunks:
                continue
            dims = [span(d, binding.spans)[1] for d in step.dims]
            bases = [self._resolve.buffer(*arg) for arg in step.args]
            told = (d for d in (step.chunks, *step.dims) if isinstance(d, tuple))
            sized = None if all(found.isdisjoint(d) for d in told) else step
            node = _Node(self._driver, number, self._image.kernels[step.kernel], chunks, bases, dims, sized)
            nodes.append(node)
            for base, slots in node.slots().items():
                self._users.setdefault(base, []).append((node, slots))
        return _Segment(nodes)

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
                self._fit(segment)
                self._driver.launch(segment.executable, stream)

        self._follow(launch, places, stream)

    def _begin(self, places: Places, stream: int) -> None:
        """No size is known."""
        self._binding.begin()
        self._known = dict(self._binding.values)
        sizes = self._binding.sizes
        self._driver.to_device(places[0] + self._sizes, sizes.ctypes.data, sizes.nbytes, stream)

    def _fit(self, segment: _Segment) -> None:
        """Let kernels compute as much as the sizes say that are known by now."""
        for node in segment.nodes:
            if node.sized is None or not node.resize(self._known):
                continue
            if node.chunks:
                self._driver.update(node.executable, node.handle, node.params)
            if node.enabled != bool(node.chunks):
                node.enabled = bool(node.chunks)
                self._driver.enable(node.executable, node.handle, node.enabled)

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
        clocks: dict[tuple[int, ...], Clock] = {}

        def launch(segment: _Segment) -> None:
            self._fit(segment)
            nodes = [node for node in segment.nodes if node.chunks]
            # another one for each size
            key = (id(segment), *(n for node in nodes if node.sized for n in node.told))
            if nodes and key not in clocks:
                clocks[key] = Clock(self._driver, [node.params for node in nodes])
            for node, seconds in zip(nodes, clocks[key].run(stream) if nodes else (), strict=True):
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
        late = False  # behind a kernel that may not run, which then awaits nothing for those behind it
        for node in segment.nodes:
            node.point(places)
            node.handle = self._driver.add_kernel(segment.graph, before, node.params, awaits=node.awaits and not late)
            before, late = [node.handle], node.sized is not None
        segment.executable = self._driver.instantiate(segment.graph)
        for node in segment.nodes:
            node.executable, node.enabled, node.chunks = segment.executable, True, node.params.grid[0]

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
        at, flag, sizes = 0, ctypes.c_uint8(), self._binding.sizes
        if sizes.size:
            self._begin(places, stream)
        while at < self._end:
            launch(self._segments[at])
            jump = self._jumps.get(at)
            at = self._next[at]
            if jump is None:
                continue
            if jump.flag is not None:
                base, offset = jump.flag
                self._driver.to_host(ctypes.addressof(flag), places[base] + offset, 1, stream)
                if sizes.size:
                    self._driver.to_host(sizes.ctypes.data, places[0] + self._sizes, sizes.nbytes, stream)
                self._driver.synchronize(stream)
                if sizes.size and flag.value:
                    self._known = self._binding.found()
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
        # behind the arena: the sizes that steps find, and a table that nobody reads here
        self.sizes = -(-binding.layout.nbytes // _WORD) * _WORD
        self._table, last = self.sizes + _WORD * len(program.sizes), len(program.steps) - 1
        entries = table_places(program.steps)(last, 2 + len(program.steps[last].dims)) if program.sizes else 0
        self.nbytes = self._table + _WORD * entries if program.sizes else binding.layout.nbytes

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
            case "size":
                return 0, at + self.sizes + _WORD * buffer.index
            case "table":
                return 0, at + self._table
        return 2 + self._arguments + buffer.index, at


__all__ = ["Graphs"]
