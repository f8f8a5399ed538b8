"""The choice of what runs on the CPU, by measured times: of a copy from the host to this GPU, and of each op alone on
this CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import prod

from ingot.debug.feeds import index_limits, random_feeds
from ingot.ir.node import Graph, Input, Node, Project
from ingot.ir.types import TensorType, static_shape
from ingot.pipeline.build import build_native
from ingot.runtime.executor import CompiledModel
from ingot.support import timing
from ingot.support.dataclass import dataclass
from ingot.transform.placement.cut import derived_weights

_MIN_WEIGHT_BYTES = 1 << 16  # smaller ones stay on the GPU
_MEASURED_SECONDS = 0.1  # per op


@dataclass(frozen=True)
class Copies:
    """The cost of copies between the host and the device."""

    bytes_per_second: float
    latency_seconds: float

    def seconds(self, nbytes: float, count: int = 1) -> float:
        return nbytes / self.bytes_per_second + count * self.latency_seconds


@dataclass(frozen=True)
class Unit:
    """Nodes that share weights. nbytes: bytes of the weights. copied_bytes: bytes of the nodes' other operands and
    results.
    cpu_seconds: time of all nodes on the CPU."""

    nodes: tuple[Node, ...]
    nbytes: int
    copied_bytes: int
    cpu_seconds: float

    def seconds_on_cpu(self, copies: Copies) -> float:
        return self.cpu_seconds + copies.seconds(self.copied_bytes, 2 * len(self.nodes))


def find_units(graph: Graph, measure: Callable[[Node], float]) -> list[Unit]:
    """The units of a graph with static shapes. measure: the seconds of a node on the CPU."""
    derived = derived_weights(graph)
    readers: list[tuple[set[Node], set[Node]]] = []  # weights, and the nodes that read them
    for n in graph.nodes():
        if n in derived or isinstance(n.op, Project):
            continue
        weights = {w for i in n.inputs if i in derived for w in derived[i] if _nbytes(w.types) >= _MIN_WEIGHT_BYTES}
        if not weights:
            continue
        nodes = {n}
        for reader in [r for r in readers if r[0] & weights]:
            readers.remove(reader)
            weights, nodes = weights | reader[0], nodes | reader[1]
        readers.append((weights, nodes))
    order = {n: position for position, n in enumerate(graph.nodes())}
    units: list[Unit] = []
    for weights, nodes in readers:
        ordered = tuple(sorted(nodes, key=order.__getitem__))
        values = {i for n in ordered for i in n.inputs if i not in derived}
        copied_bytes = sum(_nbytes(v.types) for v in values) + sum(_nbytes(n.types) for n in ordered)
        units.append(Unit(ordered, sum(_nbytes(w.types) for w in weights), copied_bytes, sum(map(measure, ordered))))
    return units


def choose(units: Sequence[Unit], excess: int, copies: Copies) -> list[Unit]:
    """The units to run on the CPU so that `excess` bytes of weights that do not fit cost the least time: greedily by
    seconds per byte, while copying the bytes to the GPU would take longer."""
    chosen: list[Unit] = []
    for unit in sorted((u for u in units if u.nbytes), key=lambda u: u.seconds_on_cpu(copies) / u.nbytes):
        if excess <= 0:
            break
        if unit.seconds_on_cpu(copies) < copies.seconds(min(unit.nbytes, excess)):
            chosen.append(unit)
            excess -= unit.nbytes
    return chosen


def _nbytes(types: Iterable[TensorType]) -> int:
    """The bytes of values with static shapes."""
    return sum(prod(static_shape(t.shape)) * t.dtype.numpy.itemsize for t in types)


class Stopwatch:
    """Measures the seconds of a node alone on the CPU, once for each op and operand types."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._known: dict[object, float] = {}

    def __call__(self, n: Node) -> float:
        key = n.op, tuple(i.types for i in n.inputs)
        if key not in self._known:
            self._known[key] = self._seconds(n)
        return self._known[key]

    def _seconds(self, n: Node) -> float:
        constants = derived_weights(Graph((), n.inputs))
        operands = dict.fromkeys(i for i in n.inputs if i not in constants)
        images = {i: Input(f"x{position}", i.type)() for position, i in enumerate(operands)}
        y = n.with_inputs([images.get(i, i) for i in n.inputs])
        graph = Graph(tuple(images.values()), y.results)
        model = CompiledModel(build_native(graph, self._threads), threads=self._threads)
        feeds = random_feeds(model.program, {}, index_limits(graph))
        return timing.median(lambda: model(**feeds), _MEASURED_SECONDS)
