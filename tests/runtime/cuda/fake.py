"""A CUDA driver of memory and lists: it keeps what was asked of it, and runs each kernel as a Python function."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from ingot.runtime.cuda.device import Loaded
from ingot.runtime.cuda.driver import KernelParams
from ingot.runtime.cuda.memory import Workspace
from ingot.support.cubins import MatrixCode

Run = Callable[[list[int]], None]  # on the values of a kernel's parameters


@dataclass
class Node:
    """values: of the parameters when the node was made, which is when the driver reads them."""

    params: KernelParams
    before: tuple[int, ...]
    awaits: bool
    values: list[int]


@dataclass
class Executable:
    """values: of its own nodes' parameters, which updates change. disabled: nodes that are skipped."""

    graph: int
    values: dict[int, list[int]]
    disabled: set[int] = field(default_factory=set)


@dataclass
class Conditional:
    """bodies: graphs of its own, of which a loop runs its only one again and again."""

    condition: int
    before: tuple[int, ...]
    bodies: list[int]
    loop: bool


@dataclass
class FakeDriver:
    """kernels: what each function does. log: copies, fills and launches in their order. memory lies on the host.
    live: what is held of the GPU: ("memory", address), ("stream", handle), ..."""

    kernels: dict[str, Run]
    capability: int = 90
    version: int = 12080
    log: list[tuple] = field(default_factory=list)
    live: set[tuple[str, int]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._numbers = itertools.count(1)
        self.workspaces: dict[int, Workspace] = {}
        self._blocks: dict[int, ctypes.Array] = {}
        self._functions: dict[int, str] = {}
        self._graphs: dict[int, list[int]] = {}
        self.nodes: dict[int, Node] = {}
        self.before: dict[int, tuple[int, ...]] = {}  # of the nodes that run graphs
        self.pinned: set[int] = set()
        self._executables: dict[int, Executable] = {}
        self.capturing: set[int] = set()  # streams of the caller's
        self._capture_graphs: dict[int, int] = {}  # what they make, by the streams
        self._capture_ends: dict[int, list[int]] = {}  # the nodes that later work comes after
        self._captured: dict[int, list[Callable[[], None]]] = {}  # what captured graphs do
        self._inner: dict[int, list[Callable[[], None]]] = {}  # by the nodes that run copies of them
        self.capture: list[Callable[[], None]] | None = None
        self._happened: dict[int, float] = {}
        self._events: dict[int, int] = {}  # by the nodes that record them
        self._now = 0.0
        self.conditionals: dict[int, Conditional] = {}  # by their nodes
        self._conditions: dict[int, int] = {}  # the graph of each
        self._flags: dict[int, int] = {}  # by conditions, where a kernel told them

    def _add_handle(self, kind: str, handle: int) -> int:
        self.live.add((kind, handle))
        return handle

    def _drop(self, kind: str, handle: int) -> None:
        self.live.remove((kind, handle))  # KeyError: given back twice, or never had

    def enter(self) -> None: ...

    def allocate(self, nbytes: int) -> int:
        block = (ctypes.c_uint8 * (max(nbytes, 1) + 64))()
        address = -(-ctypes.addressof(block) // 64) * 64
        self._blocks[address] = block
        self._add_handle("memory", address)
        return address

    def free(self, address: int) -> None:
        self._drop("memory", address)

    def to_device(self, address: int, source: int, nbytes: int, stream: int) -> None:
        self.log.append(("to_device", nbytes))
        ctypes.memmove(address, source, nbytes)

    def to_host(self, target: int, address: int, nbytes: int, stream: int) -> None:
        self.log.append(("to_host", nbytes))
        ctypes.memmove(target, address, nbytes)

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        def act() -> None:
            self.log.append(("copy", nbytes))
            ctypes.memmove(target, source, nbytes)

        self._enqueue(act, stream)

    def fill(self, address: int, byte: int, nbytes: int, stream: int) -> None:
        def act() -> None:
            self.log.append(("fill", byte, nbytes))
            ctypes.memset(address, byte, nbytes)

        self._enqueue(act, stream)

    def _enqueue(self, act: Callable[[], None], stream: int) -> None:
        """Do it, or add it to the graph that a capture of the stream makes."""
        if stream not in self.capturing:
            act()
            return
        graph, before = self.captured_graph(stream)
        handle = next(self._numbers)
        self._inner[handle], self.before[handle] = [act], tuple(before)
        self._graphs[graph].append(handle)
        self.continue_capture(stream, [handle])

    def is_pinned(self, address: int) -> bool:
        return address in self.pinned

    def is_capturing(self, stream: int) -> bool:
        return stream in self.capturing

    def event(self, *, timed: bool = False) -> int:
        return self._add_handle("event", next(self._numbers))

    def drop_event(self, event: int) -> None:
        self._drop("event", event)

    def record(self, event: int, stream: int) -> None:
        self._happened[event] = self._now

    def wait(self, stream: int, event: int) -> None:
        self.log.append(("wait", stream))

    def seconds(self, begin: int, end: int) -> float:
        return self._happened[end] - self._happened[begin]

    def stream(self, *, urgent: bool = False) -> int:
        return self._add_handle("stream", next(self._numbers))

    def drop_stream(self, stream: int) -> None:
        self._drop("stream", stream)

    def synchronize_all(self) -> None:
        self.log.append(("synchronize_all",))

    def synchronize(self, stream: int) -> None:
        self.log.append(("synchronize",))

    def load(self, cubin: bytes) -> int:
        return self._add_handle("module", next(self._numbers))

    def unload(self, module: int) -> None:
        self._drop("module", module)

    def function(self, module: int, name: str, shared: int) -> int:
        handle = next(self._numbers)
        self._functions[handle] = name
        return handle

    def graph(self) -> int:
        handle = self._add_handle("graph", next(self._numbers))
        self._graphs[handle] = []
        return handle

    def add_kernel(self, graph: int, before: list[int], params: KernelParams, *, awaits: bool = False) -> int:
        handle = next(self._numbers)
        assert all(b in self._graphs[graph] for b in before), "an edge from a node of another graph"
        self.nodes[handle] = Node(params, tuple(before), awaits, self._read(params))
        self._graphs[graph].append(handle)
        return handle

    def condition(self, graph: int) -> int:
        handle = next(self._numbers)
        assert graph in self._graphs
        self._conditions[handle] = graph
        return handle

    def add_conditional(
        self, graph: int, before: list[int], condition: int, count: int, *, loop: bool
    ) -> tuple[int, list[int]]:
        assert self._conditions[condition] == graph, "a condition of another graph"
        assert all(c.condition != condition for c in self.conditionals.values()), "a condition of two nodes"
        assert self.version >= 12040 and (count == 1 or (count == 2 and not loop and self.version >= 12080))
        assert all(b in self._graphs[graph] for b in before), "an edge from a node of another graph"
        handle, bodies = next(self._numbers), [next(self._numbers) for _ in range(count)]
        self._graphs.update({body: [] for body in bodies})
        self.conditionals[handle] = Conditional(condition, tuple(before), bodies, loop)
        self._graphs[graph].append(handle)
        return handle, bodies

    def instantiate(self, graph: int) -> int:
        """All conditions have a node, and no body is run without it."""
        within = self._within(graph)
        used = [self.conditionals[n].condition for n in within if n in self.conditionals]
        conditions = [c for c, owner in self._conditions.items() if owner == graph or owner in self._bodies(within)]
        assert sorted(used) == sorted(conditions), "a condition without a node"
        assert ("graph", graph) in self.live, "a body by itself"
        others = [e for e in self._executables.values() if e.graph == graph]
        assert not (used and others), "two copies of a graph with conditional nodes"
        handle = next(self._numbers)
        self._executables[handle] = Executable(graph, {n: self.nodes[n].values for n in within if n in self.nodes})
        return self._add_handle("executable", handle)

    def _bodies(self, nodes: list[int]) -> list[int]:
        return [body for n in nodes if n in self.conditionals for body in self.conditionals[n].bodies]

    def _within(self, graph: int) -> list[int]:
        """The nodes of a graph and of the bodies in it."""
        nodes = self._graphs[graph]
        return [*nodes, *(n for body in self._bodies(nodes) for n in self._within(body))]

    def update(self, executable: int, node: int, params: KernelParams) -> None:
        assert node in self._executables[executable].values
        self._executables[executable].values[node] = self._read(params)
        self.log.append(("update",))

    def enable(self, executable: int, node: int, is_enabled: bool) -> None:
        executable_ = self._executables[executable]
        assert node in self._graphs[executable_.graph], "a node inside of a conditional one"
        executable_.disabled = executable_.disabled - {node} if is_enabled else executable_.disabled | {node}
        self.log.append(("enable", is_enabled))

    def add_event(self, graph: int, before: list[int], event: int) -> int:
        handle = next(self._numbers)
        assert all(b in self._graphs[graph] for b in before), "an edge from a node of another graph"
        self._events[handle] = event
        self._graphs[graph].append(handle)
        return handle

    def captured(self, stream: int, begin: Callable[[], None]) -> int:
        """What is begun meanwhile appends to `capture` what it would do."""
        handle = self._add_handle("graph", next(self._numbers))
        self.capture = []
        begin()
        self._captured[handle], self.capture = self.capture, None
        self._graphs[handle] = []
        return handle

    def captured_graph(self, stream: int) -> tuple[int, list[int]]:
        assert stream in self.capturing
        if stream not in self._capture_graphs:
            self._capture_graphs[stream] = next(self._numbers)
            self._graphs[self._capture_graphs[stream]], self._capture_ends[stream] = [], []
        return self._capture_graphs[stream], [*self._capture_ends[stream]]

    def continue_capture(self, stream: int, nodes: list[int]) -> None:
        assert all(n in self._graphs[self._capture_graphs[stream]] for n in nodes), "a node of another graph"
        self._capture_ends[stream] = [*nodes]

    def replay(self, stream: int) -> None:
        """Run what was captured of a stream."""
        graph = self._capture_graphs[stream]
        self._launch(
            graph, Executable(graph, {n: self.nodes[n].values for n in self._within(graph) if n in self.nodes})
        )

    def add_graph(self, graph: int, before: list[int], inner: int) -> int:
        handle = next(self._numbers)
        assert all(b in self._graphs[graph] for b in before), "an edge from a node of another graph"
        self._inner[handle] = self._captured[inner]
        self.before[handle] = tuple(before)
        self._graphs[graph].append(handle)
        return handle

    def launch(self, executable: int, stream: int) -> None:
        """A kernel takes as many seconds as it has blocks, an event half of one."""
        executable_ = self._executables[executable]
        self._launch(executable_.graph, executable_)

    def _launch(self, graph: int, executable_: Executable) -> None:
        for node in self._graphs[graph]:
            if node in self.conditionals:
                self._branch(self.conditionals[node], executable_)
            elif node in self._inner:
                for act in self._inner[node]:
                    act()
                self._now += 1
            elif node in self._events:
                self._now += 0.5
                self._happened[self._events[node]] = self._now
            elif node not in executable_.disabled:
                self._run(self.nodes[node].params, executable_.values[node])

    def _branch(self, node: Conditional, executable_: Executable) -> None:
        flag = self._flags.pop(node.condition)  # KeyError: nobody told it
        if not node.loop:
            for body in node.bodies[:1] if flag else node.bodies[1:]:
                self._launch(body, executable_)
        while node.loop and flag:
            self._launch(node.bodies[0], executable_)
            flag = self._flags.pop(node.condition)

    def launch_kernel(self, params: KernelParams, stream: int) -> None:
        assert stream not in self.capturing
        self._run(params, self._read(params))

    def encode(self, at: int, matrix: MatrixCode, address: int) -> None:
        """A map of a matrix: where it begins."""
        assert at % 64 == 0, "a map that the driver would refuse"
        ctypes.c_int64.from_address(at).value = address + matrix.offset

    def _read(self, params: KernelParams) -> list[int]:
        """The grid, and the values of the parameters."""
        count = self.count_of(self._functions[params.func])
        return [params.grid[0], *(ctypes.c_int64.from_address(params.params[i]).value for i in range(count))]

    def _run(self, params: KernelParams, values: list[int]) -> None:
        name, grid = self._functions[params.func], values[0]
        self.log.append(("launch", name, grid, params.block[0]))
        if name == "tell":
            flag, condition = values[1:]
            assert condition in self._conditions, "a node that is not there"
            self._flags[condition] = ctypes.c_uint8.from_address(flag).value
        else:
            self.kernels[name](values[1:])
        self._now += grid

    def count_of(self, name: str) -> int:
        """Parameters of a kernel before Triton's own two."""
        return {"double": 3, "add": 4, "less": 2, "positive": 3, "sizes": 3, "matrix": 7, "tell": 2}[name]

    def drop_graph(self, graph: int, executables: list[int]) -> None:
        for executable in executables:
            assert self._executables.pop(executable).graph == graph
            self._drop("executable", executable)
        assert all(e.graph != graph for e in self._executables.values()), "a copy that is kept"
        self._drop("graph", graph)
        within = self._within(graph)
        for graph_id in (graph, *self._bodies(within)):
            del self._graphs[graph_id]
            self._conditions = {c: owner for c, owner in self._conditions.items() if owner != graph_id}
        for node in within:
            self.conditionals.pop(node, None)


def run(loaded: Loaded, x: np.ndarray) -> np.ndarray:
    """A call of a program with one input and one result of its shape."""
    y = np.zeros_like(x)
    context = loaded.claim()
    context.run(context.bind((x.shape,)), [x.ctypes.data, y.ctypes.data])
    context.release()
    return y
