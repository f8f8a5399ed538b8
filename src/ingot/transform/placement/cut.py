"""Cuts of a graph into parts that run on one device each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from ingot.ir.dims import symbol
from ingot.ir.node import Graph, Input, Node, Project
from ingot.ir.types import TensorType, i64
from ingot.support.dataclass import dataclass
from ingot.support.errors import InputError

Place = Literal["cpu", "gpu"]
SIZES = "placement.sizes"  # the input of a part for the values of the model's symbols


@dataclass(frozen=True)
class Part:
    """A graph of the nodes that run together on one device. reads, writes: names of its inputs and outputs among the
    model's values."""

    place: Place
    graph: Graph
    reads: tuple[str, ...]
    writes: tuple[str, ...]


def derived_weights(graph: Graph) -> dict[Node, frozenset[Node]]:
    """For each constant, and each value computed from constants alone, the constants from which it is computed."""
    sources: dict[Node, frozenset[Node]] = {}
    for n in graph.nodes():
        if n.constant is not None:
            sources[n] = frozenset([n])
        elif n.inputs and all(i in sources for i in n.inputs) and not n.op.draws:
            sources[n] = frozenset().union(*(sources[i] for i in n.inputs))
    return sources


def value_names(graph: Graph) -> dict[Node, str]:
    """Unique names of all values of a graph; inputs keep their labels."""
    order = enumerate(graph.nodes())
    return {n: n.op.label if isinstance(n.op, Input) else f"placement.value{position}" for position, n in order}


def cut(graph: Graph, on_cpu: Iterable[Node]) -> list[Part]:
    """Cut a graph into parts, in execution order, that compute `on_cpu` on the CPU.

    A node whose operands and users all run on the CPU runs there as well; all others run on the GPU. Raises InputError
    for state and for data-dependent sizes, which are unknown until a part has run.
    """
    if graph.sizes or graph.state:
        unsupported = [name for name, _ in graph.sizes] or list(graph.state)
        raise InputError('placement="measured"', expected="a model without state and computed sizes", got=unsupported)
    derived, names = derived_weights(graph), value_names(graph)
    nodes = [n for n in graph.nodes() if n not in derived and not isinstance(n.op, Input)]
    parts: list[Part] = []
    for place, run_nodes in _device_runs(nodes, _assign_places(graph, nodes, set(on_cpu))):
        run_set = set(run_nodes)
        reads = dict.fromkeys(i for n in run_nodes for i in n.inputs if i not in run_set and i not in derived)
        read_elsewhere = {i for n in nodes if n not in run_set for i in n.inputs} | set(graph.outputs)
        writes = [n for n in run_nodes if n in read_elsewhere and len(n.types) == 1]
        if not parts:
            writes += [o for o in dict.fromkeys(graph.outputs) if o in derived]
        parts.append(_make_part(graph, place, run_nodes, list(reads), writes, names))
    return parts


def _assign_places(graph: Graph, nodes: Sequence[Node], on_cpu: set[Node]) -> dict[Node, Place]:
    places: dict[Node, Place] = {n: "cpu" if n in on_cpu else "gpu" for n in nodes}
    users, outputs = graph.uses(), set(graph.outputs)
    changed = True
    while changed:
        changed = False
        for n in nodes:
            neighbours = [*(i for i in n.inputs if i in places), *users.get(n, ())]
            is_between = n not in outputs and any(i in places for i in n.inputs) and bool(users.get(n))
            is_projection_of_cpu = isinstance(n.op, Project) and places.get(n.inputs[0]) == "cpu"
            if places[n] == "gpu" and (
                is_projection_of_cpu or (is_between and all(places.get(a) == "cpu" for a in neighbours))
            ):
                places[n] = "cpu"
                changed = True
    return places


def _device_runs(nodes: Sequence[Node], places: Mapping[Node, Place]) -> list[tuple[Place, list[Node]]]:
    """Nodes in an order with few changes of device: all that are ready on one device, then all on the other."""
    waiting, done = list(nodes), set[Node]()
    runs: list[tuple[Place, list[Node]]] = []
    pending = {*nodes}
    place: Place = "cpu"
    while waiting:
        run_nodes: list[Node] = []
        blocked: list[Node] = []
        for n in waiting:  # operands come before users
            is_ready = all(i in done or i not in pending for i in n.inputs)
            if places[n] == place and is_ready:
                run_nodes.append(n)
                done.add(n)
            else:
                blocked.append(n)
        if run_nodes:
            runs.append((place, run_nodes))
        waiting, place = blocked, "gpu" if place == "cpu" else "cpu"
    return runs


def _make_part(
    graph: Graph, place: Place, nodes: Sequence[Node], reads: Sequence[Node], writes: Sequence[Node],
    names: Mapping[Node, str],
) -> Part:  # fmt: skip
    images = {n: n if isinstance(n.op, Input) else Input(names[n], n.type)() for n in reads}
    inputs = list(images.values())
    if symbols := graph.symbols():  # symbols cannot be recovered from a size such as batch * length
        inputs.append(Input(SIZES, TensorType(i64, (len(symbols),)), tuple(map(symbol, symbols)))())
    for n in nodes:
        images[n] = n.with_inputs([images.get(i, i) for i in n.inputs])
    labels = tuple(names[w] for w in writes)
    outputs = tuple(images.get(w, w) for w in writes)
    part = Graph(tuple(inputs), outputs, labels, graph.bounds, graph.conditions)
    return Part(place, part, tuple(n.op.label for n in inputs if isinstance(n.op, Input)), labels)
