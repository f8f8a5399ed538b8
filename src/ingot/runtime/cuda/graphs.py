"""A bound program as CUDA graphs: a node for each launch, after those whose memory it uses (`order.py`).

- A loop whose trip count is known in advance is unrolled, also where the host reads sizes in it. Other loops, and
  branches, are conditional nodes; a kernel passes their flag to the driver.
- A kernel that waits by itself for its predecessors (programmatic launch) may start before they have ended. All
  kernels wait before they read, so that the predecessors of a predecessor have ended as well.
- A size that a step computes is read by the host, which updates the kernels that depend on it. The host also runs the
  loops and branches that contain such sizes, and all of them if the driver is too old.
"""

from __future__ import annotations

import ctypes
import operator
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import compress, groupby

from ingot.runtime.bind import Binding
from ingot.runtime.cuda.clock import Added, Clock
from ingot.runtime.cuda.driver import Driver
from ingot.runtime.cuda.flow import Branch, Loop
from ingot.runtime.cuda.image import Image
from ingot.runtime.cuda.launch import Exchange, Node, Places
from ingot.runtime.cuda.nccl import Communicators
from ingot.runtime.cuda.order import Order
from ingot.runtime.cuda.profile import Ranges
from ingot.runtime.cuda.resolver import Resolver
from ingot.runtime.cuda.runs import (
    Conditional,
    GraphItem,
    Hosted,
    Run,
    RunBuilder,
    Segment,
    exchanges,
    launches,
    segments,
    without_conditionals,
)
from ingot.runtime.cuda.streaming import BoundedWeights
from ingot.runtime.program import Program
from ingot.support.errors import DeviceError

# copies of a graph, each at other addresses: callers that hold results by turns, and layers that share a program, cost
# no update of nodes. Of a small graph there may be more, as many as have these nodes together
MIN_COPIES, MAX_COPIES, MAX_COPIED_NODES = 4, 64, 2048


class Graphs:
    """The graphs of a program for one set of shapes, built by the first run."""

    def __init__(
        self, driver: Driver, program: Program, image: Image, binding: Binding,
        communicators: Communicators | None = None,
    ) -> None:  # fmt: skip
        self._driver, self._binding = driver, binding
        # what each copy reads and writes, in the order of their last moves: few, so that comparing beats hashing
        self._places_of_copies: dict[int, tuple[int, ...]] = {}
        self._streamed_runs: list[Run] = []  # the runs of launches kernel by kernel
        self._capture_stream = 0
        self._graph_places: tuple[int, ...] = ()  # the places in the graphs that copies are instantiated from
        self._known: Mapping[str, int] = {}  # the values of symbols, and of the sizes that the run has computed so far
        resolve = Resolver(program, binding)
        self.nbytes, self._sizes = resolve.nbytes, resolve.sizes
        self._builder = RunBuilder(driver, program, image, binding, resolve, communicators)
        self._runs = self._builder.runs(driver.version)
        self._users: dict[int, list[tuple[Segment, Node]]] = {}  # of each place
        for segment in segments(self._runs):
            for node in segment.nodes:
                for base in {base for base, _ in node.bases}:
                    self._users.setdefault(base, []).append((segment, node))
        # the places that collectives read or write: their addresses are those of the graphs
        collectives = [part for segment in segments(self._runs) for part in exchanges(segment.parts)]
        self._fixed = sorted({base for part in collectives for base, _ in part.bases})
        first = self._runs[0] if len(self._runs) == 1 else None
        self._only_segment = first if isinstance(first, Segment) else None  # as most programs have
        only, self._max_copies = self._only_segment, 1
        # a graph with conditional nodes has one copy, says the driver's reference
        if only is not None and not any(isinstance(part, Conditional) for part in only.parts):
            self._max_copies = min(max(MIN_COPIES, MAX_COPIED_NODES // max(len(only.nodes), 1)), MAX_COPIES)
        self._recent_places = deque[tuple[int, ...]](maxlen=self._max_copies)  # the places that copies had before

    def relaunch(self, places: tuple[int, ...], stream: int) -> bool:
        """Launch the copy that has these addresses, if there is one and the program is a single graph. Returns whether
        it did."""
        copy = self._copy_at(places)
        if copy is None or self._only_segment is None:
            return False
        self._driver.launch(self._only_segment.executables[copy], stream)
        return True

    def run(self, places: tuple[int, ...], stream: int) -> None:
        """Launch at these addresses; where the host reads a flag, it waits for the launches before it."""
        copy = self._copy_at(places)
        if copy is None:
            copy = self._prepare_copy(places)

        if self._only_segment is not None:
            self._driver.launch(self._only_segment.executables[copy], stream)
            return

        def launch(segment: Segment) -> None:
            self._resize(segment)
            self._driver.launch(segment.executables[0], stream)

        self._run(launch, self._runs, places, stream)

    def _resize(self, segment: Segment) -> None:
        """Set the launch sizes of kernels by the sizes that are known by now."""
        for node in segment.nodes:
            if node.sized is None or not node.resize(self._known):
                continue
            if node.chunks:
                self._driver.update(segment.executables[0], node.handle, node.params)
            if node.enabled != bool(node.chunks):
                node.enabled = bool(node.chunks)
                self._driver.enable(segment.executables[0], node.handle, node.enabled)

    def record(self, places: Places, stream: int) -> None:
        """Add the launches to the graph that the caller captures on a stream: nodes with the edges of a graph of our
        own, so that they run side by side and start early in it, too. Raises DeviceError where the host reads flags."""
        runs = self._builder.runs(self._driver.version)
        if any(isinstance(run, Hosted) for run in runs):
            raise DeviceError(
                "a CUDA graph that is captured", expected="a program whose steps are known beforehand",
                got="one with loops or branches that the host decides", fix="call it outside of the captured part",
            )  # fmt: skip
        for segment in segments(runs):
            for is_node, parts in groupby(segment.parts, lambda part: not isinstance(part, Exchange)):
                if is_node:
                    graph, before = self._driver.captured_graph(stream)
                    self._driver.continue_capture(stream, self._add_nodes(graph, [*parts], places, before))
                else:
                    for part in parts:
                        assert isinstance(part, Exchange)
                        part.run(places, stream)

    def stream(
        self, places: Places, stream: int, launcher: BoundedWeights | Ranges, seconds: dict[int, float] | None = None
    ) -> None:
        """Launch kernel by kernel, as `launcher.launch` does."""
        runs = self._streamed_runs = self._streamed_runs or self._builder.runs(version=0)

        def launch(segment: Segment) -> None:
            for node in segment.nodes:
                if node.sized is not None:
                    node.resize(self._known)
            launcher.launch(without_conditionals(segment), places, stream, seconds)

        self._run(launch, runs, places, stream)

    def times(self, places: Places, stream: int) -> dict[int, float]:
        """Run with events before and after each launch. Returns the seconds by step number."""
        seconds_by_step: dict[int, float] = {}
        clocks: dict[tuple[int, ...], Clock] = {}
        runs = self._builder.runs(version=0)
        for segment in segments(runs):
            for node in segment.nodes:
                node.point(places)

        def added(part: GraphItem) -> Added:
            if isinstance(part, Exchange):
                return lambda graph, predecessors: part.add(graph, predecessors, places, self._captures())
            assert isinstance(part, Node)
            return lambda graph, predecessors: self._driver.add_kernel(graph, predecessors, part.params)

        def launch(segment: Segment) -> None:
            for node in segment.nodes:
                if node.sized is not None:
                    node.resize(self._known)
            nodes = without_conditionals(segment)
            # another one for each size
            sizes = (n for node in nodes if isinstance(node, Node) and node.sized for n in node.launch_key)
            key = (id(segment), *sizes)
            if nodes and key not in clocks:
                clocks[key] = Clock(self._driver, [added(node) for node in nodes])
            for node, seconds in zip(nodes, clocks[key].run(stream) if nodes else (), strict=True):
                seconds_by_step[node.number] = seconds_by_step.get(node.number, 0.0) + seconds

        try:
            self._run(launch, runs, places, stream)
        finally:
            for clock in clocks.values():
                clock.drop()
        return seconds_by_step

    def _copy_at(self, places: tuple[int, ...]) -> int | None:
        """The number of the copy with these places, if there is one."""
        return next((copy for copy, own in self._places_of_copies.items() if own == places), None)

    def _prepare_copy(self, places: tuple[int, ...]) -> int:
        """The number of a copy with these places: a new one if such places were used recently, or else the oldest,
        moved to them."""
        if self._places_of_copies and any(self._graph_places[i] != places[i] for i in self._fixed):
            self.drop()
        try:
            if not self._places_of_copies:
                copy = self._make_graphs(places)
            elif len(self._places_of_copies) < self._max_copies and places in self._recent_places:
                copy = self._copy()
                self._move(copy, self._graph_places, places)
            else:
                copy, old = next(iter(self._places_of_copies.items()))
                del self._places_of_copies[copy]
                self._recent_places.append(old)
                self._move(copy, old, places)
        except DeviceError:
            self.drop()  # some nodes may have moved and others not: all graphs are built anew
            raise
        self._places_of_copies[copy] = places
        return copy

    def _make_graphs(self, places: tuple[int, ...]) -> int:
        for segment in segments(self._runs):
            segment.graph = self._driver.graph()
            self._add_nodes(segment.graph, segment.parts, places)
            for node in segment.nodes:
                node.enabled, node.chunks = True, node.params.grid[0]
        self._graph_places = places
        return self._copy()

    def _copy(self) -> int:
        for segment in segments(self._runs):
            segment.executables.append(self._driver.instantiate(segment.graph))
        return len(self._places_of_copies)

    def _add_nodes(
        self, graph: int, parts: Sequence[GraphItem], places: Places, before: Sequence[int] = ()
    ) -> list[int]:
        """Add nodes to a graph, each with edges from those that it depends on. before: the nodes of the graph that all
        of them come after. Returns the last nodes, which no other of them comes after."""
        order = Order()
        handles: list[tuple[int, bool]] = []  # of each part: its node, and whether it is a kernel that runs
        followed: set[int] = set()  # parts that another one comes after
        for number, part in enumerate(parts):
            if self._binding.sizes.size:  # kernels may be disabled, or write less: their order stays that of the steps
                predecessors = [number - 1] if number else []
            else:
                predecessors = order.next(access for node in launches(part) for access in node.accesses)
            followed.update(predecessors)
            dependencies = [handles[i][0] for i in predecessors] or [*before]
            # only behind kernels that always run, and are not cooperative, may a kernel start early
            starts_early = all(handles[i][1] for i in predecessors) and (bool(predecessors) or not before)
            if isinstance(part, Node):
                part.point(places)
                part.handle = self._driver.add_kernel(
                    graph, dependencies, part.params, awaits=part.awaits and starts_early
                )
                handles.append((part.handle, part.sized is None and not part.params.cooperative))
                continue
            if isinstance(part, Exchange):
                handles.append((part.add(graph, dependencies, places, self._captures()), False))
                continue
            condition, flag_node = self._driver.condition(graph), part.flag_nodes[0]
            for node in part.flag_nodes:
                node.set_condition(condition)
            flag_node.point(places)
            flag_node.handle = self._driver.add_kernel(graph, dependencies, flag_node.params)
            node, bodies = self._driver.add_conditional(
                graph, [flag_node.handle], condition, len(part.bodies), loop=part.loop
            )
            for body, inner in zip(bodies, part.bodies, strict=True):
                self._add_nodes(body, inner, places)
            handles.append((node, False))
        return [handle for i, (handle, _) in enumerate(handles) if i not in followed] or [*before]

    def _move(self, copy: int, old: Places, new: Places) -> None:
        """Update the kernels of a copy from old addresses to new ones."""
        affected: dict[Node, Segment] = {}  # each once
        for place in compress(range(len(new)), map(operator.ne, old, new)):
            affected.update((node, segment) for segment, node in self._users.get(place, ()))
        for node, segment in affected.items():
            node.point(new)
            self._driver.update(segment.executables[copy], node.handle, node.params)

    def _run(self, launch: Callable[[Segment], None], runs: Sequence[Run], places: Places, stream: int) -> None:
        """Launch segments in the order that the flags read by the host determine."""
        if self._binding.sizes.size:
            self._binding.begin()
            self._known = dict(self._binding.values)
            sizes = self._binding.sizes
            self._driver.to_device(places[0] + self._sizes, sizes.ctypes.data, sizes.nbytes, stream)

        def follow(runs: Sequence[Run]) -> bool:
            """False if computed sizes end the run."""
            return all(run_one(run) for run in runs)

        def run_one(run: Run) -> bool:
            if isinstance(run, Segment):
                launch(run)
                return True
            if isinstance(run.item, Loop):
                while follow(run.first):
                    if not self._flag(run.flag, places, stream):
                        return True
                    if not follow(run.second):
                        break
                return False
            flag = self._flag(run.flag, places, stream)
            if isinstance(run.item, Branch):
                return follow(run.first if flag else run.second)
            if flag:
                self._known = self._binding.read_sizes()
            return flag

        follow(runs)

    def _flag(self, place: tuple[int, int], places: Places, stream: int) -> bool:
        """Whether a flag is not 0, once all launches before it have ended; also reads the sizes computed so far."""
        flag, (base, offset), sizes = ctypes.c_uint8(), place, self._binding.sizes
        self._driver.to_host(ctypes.addressof(flag), places[base] + offset, 1, stream)
        if sizes.size:
            self._driver.to_host(sizes.ctypes.data, places[0] + self._sizes, sizes.nbytes, stream)
        self._driver.synchronize(stream)
        return flag.value != 0

    def _captures(self) -> int:
        """The stream on which collectives are captured: they go first, as others wait for them."""
        if not self._capture_stream:
            self._capture_stream = self._driver.stream(urgent=True)
        return self._capture_stream

    def drop(self) -> None:
        if self._capture_stream:
            self._driver.drop_stream(self._capture_stream)
            self._capture_stream = 0
        for segment in segments(self._runs):
            if segment.graph:
                self._driver.drop_graph(segment.graph, segment.executables)
            segment.graph = 0
            segment.executables.clear()
        self._places_of_copies.clear()


__all__ = ["Graphs"]
