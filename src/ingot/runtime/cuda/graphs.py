"""A bound program as CUDA graphs: a node for each launch, one behind the other; jumps end a graph, and the host follows
them.

    steps: a b c  jump-if-0(flag) end  d jump a   ->   graph [a b c], flag read by the host, graph [d], again from a
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from ingot.runtime.bind import Binding
from ingot.runtime.cuda.driver import Driver, KernelParams
from ingot.runtime.cuda.image import Image, LoadedKernel
from ingot.runtime.expr import Expr, evaluate
from ingot.runtime.program import Program
from ingot.support.dataclass import dataclass
from ingot.support.errors import DeviceError

Places = Sequence[int]  # addresses of the arena, the weights, the arguments and the results, in this order


class _Node:
    """A launch: its parameters in memory, where the driver reads them."""

    def __init__(self, kernel: LoadedKernel, chunks: int, bases: list[tuple[int, int]], dims: list[int]) -> None:
        """bases: (index into the places, byte offset) of each buffer."""
        self.kernel, self.bases = kernel, bases
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
        self.handle = 0

    def point(self, places: Places) -> None:
        for i, (base, offset) in enumerate(self.bases):
            self._values[i] = places[base] + offset

    def reads(self, changed: set[int]) -> bool:
        return any(base in changed for base, _ in self.bases)


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
    """The graphs of a program for one set of shapes."""

    def __init__(self, driver: Driver, program: Program, image: Image, binding: Binding, places: Places) -> None:
        self._driver, self._places = driver, list(places)
        starts = sorted({0, *(s.target for s in program.steps if s.target is not None)}
                        | {i + 1 for i, s in enumerate(program.steps) if s.target is not None})  # fmt: skip
        self._segments: dict[int, _Segment] = {}
        self._jumps: dict[int, _Jump] = {}
        self._next: dict[int, int] = {}
        resolve = _Resolver(program, binding)
        for start, end in zip(starts, [*starts[1:], len(program.steps)], strict=True):
            nodes: list[_Node] = []
            for number in range(start, end):
                step = program.steps[number]
                if step.target is not None:
                    flag = resolve.buffer(*step.args[0]) if step.args else None
                    self._jumps[start] = _Jump(flag, step.target)
                elif binding.counts[number][0]:
                    dims = [evaluate(d, binding.values) for d in step.dims]
                    bases = [resolve.buffer(*arg) for arg in step.args]
                    nodes.append(_Node(image.kernels[step.kernel], binding.counts[number][0], bases, dims))
            self._segments[start] = _Segment(nodes)
            self._next[start] = end
        self._end = len(program.steps)
        try:
            for segment in self._segments.values():
                self._build(segment, places)
        except DeviceError:
            self.drop()
            raise

    def _build(self, segment: _Segment, places: Places) -> None:
        if not segment.nodes:
            return
        segment.graph = self._driver.graph()
        before: list[int] = []
        for node in segment.nodes:
            node.point(places)
            node.handle = self._driver.add_kernel(segment.graph, before, node.params)
            before = [node.handle]
        segment.executable = self._driver.instantiate(segment.graph)

    def point(self, places: Places) -> None:
        """Let the graphs read and write at other addresses from here on."""
        changed = {i for i, (a, b) in enumerate(zip(self._places, places, strict=True)) if a != b}
        if not changed:
            return
        for segment in self._segments.values():
            for node in segment.nodes:
                if node.reads(changed):
                    node.point(places)
                    self._driver.update(segment.executable, node.handle, node.params)
        self._places = list(places)

    def run(self, stream: int) -> None:
        """Launch; a jump that asks for a flag waits for what is before it."""
        at, flag = 0, ctypes.c_uint8()
        while at < self._end:
            segment = self._segments[at]
            if segment.executable:
                self._driver.launch(segment.executable, stream)
            jump = self._jumps.get(at)
            at = self._next[at]
            if jump is None:
                continue
            if jump.flag is not None:
                base, offset = jump.flag
                self._driver.to_host(ctypes.addressof(flag), self._places[base] + offset, 1, stream)
                self._driver.synchronize(stream)
            if jump.flag is None or not flag.value:
                at = jump.target

    def drop(self) -> None:
        for segment in self._segments.values():
            if segment.graph:
                self._driver.drop_graph(segment.graph, segment.executable)
        self._segments.clear()


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
