"""Placement of a model on a GPU and the host's CPU when a limit on device memory leaves weights on the host.

    gather from a table of 8 GB -> layers of 4 GB, device_memory of 6 GB
        ->   the gather on the CPU | copy of its rows | the layers on the GPU, where they fit

A node that reads a weight left on the host runs either on the GPU, with the weight copied in each call, or on the CPU,
with its operands and results copied. Both costs are measured here: a copy from the host to this GPU, and each op alone
on this CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any, Literal

import numpy as np

from ingot.debug.drawing import bytes_text, time_text
from ingot.debug.feeds import choose_sizes, index_limits, random_feeds
from ingot.driver.compile import Options, build_graph, check_runs, compiled_program, to_model
from ingot.driver.open import Request, open_model
from ingot.ir.dims import symbol
from ingot.ir.node import Graph, Input, Node, Project
from ingot.ir.types import TensorType, i64, static_shape
from ingot.pipeline.build import build_native
from ingot.pipeline.target import parse_target
from ingot.runtime import device
from ingot.runtime.bind import Binding, Shape, bind_symbols, binding_shapes
from ingot.runtime.executable import Executable
from ingot.runtime.executor import CompiledModel
from ingot.runtime.program import Program
from ingot.runtime.tensors import host_array, is_tensor
from ingot.support import timing
from ingot.support.dataclass import dataclass
from ingot.support.errors import InputError

Place = Literal["cpu", "gpu"]
_SIZES = "placement.sizes"  # the input of a part for the values of the model's symbols
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
    results. cpu_seconds: time of all nodes on the CPU."""

    nodes: tuple[Node, ...]
    nbytes: int
    copied_bytes: int
    cpu_seconds: float

    def seconds_on_cpu(self, copies: Copies) -> float:
        return self.cpu_seconds + copies.seconds(self.copied_bytes, 2 * len(self.nodes))


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
        moved = sum(_nbytes(v.types) for v in values) + sum(_nbytes(n.types) for n in ordered)
        units.append(Unit(ordered, sum(_nbytes(w.types) for w in weights), moved, sum(map(measure, ordered))))
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
        inputs.append(Input(_SIZES, TensorType(i64, (len(symbols),)), tuple(map(symbol, symbols)))())
    for n in nodes:
        images[n] = n.with_inputs([images.get(i, i) for i in n.inputs])
    labels = tuple(names[w] for w in writes)
    outputs = tuple(images.get(w, w) for w in writes)
    part = Graph(tuple(inputs), outputs, labels, graph.bounds, graph.conditions)
    return Part(place, part, tuple(n.op.label for n in inputs if isinstance(n.op, Input)), labels)


def _nbytes(types: Iterable[TensorType]) -> int:
    """The bytes of values with static shapes."""
    return sum(prod(static_shape(t.shape)) * t.dtype.numpy.itemsize for t in types)


class PlacedProgram(Executable):
    """Parts of a model that run one after another on two devices; values between them are copied through the host.

    units: the measured units, and whether each runs on the CPU. plan: the program of the whole model on the GPU, which
    is never run: it provides the specs of inputs and outputs and the symbols.
    """

    is_one_program = False

    def __init__(
        self, plan: Program, parts: Sequence[Part], models: Sequence[CompiledModel], results: Sequence[str],
        units: Sequence[tuple[Unit, bool]], copies: Copies, threads: int,
    ) -> None:  # fmt: skip
        """models: the compiled parts. results: the names of the model's results."""
        self.inputs, self.outputs, self.threads = plan.inputs, plan.outputs, threads
        self._plan, self._parts, self._models, self._results = plan, parts, models, results
        self._units, self._copies = units, copies

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        results = self._advance(inputs, [])
        if not (self.returns_tensors or any(map(is_tensor, inputs))):
            return results
        from ingot.frontends.torch import to_torch

        return [to_torch(r) for r in results]

    def calls(self, inputs: Sequence[Any]) -> Sequence[tuple[CompiledModel, Sequence[Any]]]:
        calls: list[tuple[CompiledModel, Sequence[Any]]] = []
        self._advance(inputs, calls)
        return calls

    def _advance(self, inputs: Sequence[Any], calls: list[tuple[CompiledModel, Sequence[Any]]]) -> list[Any]:
        arrays = [host_array(x, spec.name) for x, spec in zip(inputs, self.inputs, strict=True)]
        sizes = bind_symbols(self._plan, binding_shapes(self._plan, arrays))
        values = {spec.name: x for spec, x in zip(self.inputs, arrays, strict=True)}
        values[_SIZES] = np.array([sizes[s.name] for s in self._plan.symbols], np.int64)
        for part, model in zip(self._parts, self._models, strict=True):
            arguments = [values[name] for name in part.reads]
            calls.append((model, arguments))
            values |= zip(part.writes, model.run(arguments), strict=True)
        return [values[name] for name in self._results]

    def state(self) -> dict[str, Any]:
        return {}

    def seed(self, seed: int) -> None:
        """No effect: generators of random numbers are state, which no placed model has."""

    @property
    def arena_bytes(self) -> int:
        return sum(model.arena_bytes for model in self._models)

    def plan(self, shapes: Sequence[Shape]) -> str:
        return "\n".join(self.notes())

    def notes(self) -> list[str]:
        """Where each part runs, what is copied to and from the GPU, and the measured times of each unit."""
        lines: list[str] = []
        for index, (part, model) in enumerate(zip(self._parts, self._models, strict=True)):
            program = model.program
            reads = ", ".join(str(spec) for spec in program.inputs if spec.name != _SIZES)
            lines.append(
                f"part {index}  {part.place.upper()}  {len(program.steps)} steps, {_weights_text(program)} of weights"
            )
            if part.place == "gpu":
                lines.append(f"  copied to the GPU    {reads}")
                lines.append(f"  copied from the GPU  {', '.join(map(str, program.outputs))}")
        rate = self._copies
        lines.append(f"a copy: {rate.bytes_per_second / 1e9:.3g} GB/s and {time_text(rate.latency_seconds)}")
        for unit, is_on_cpu in self._units:
            where = ", ".join(dict.fromkeys(n.loc or n.op.name for n in unit.nodes))
            seconds = time_text(unit.seconds_on_cpu(rate)), time_text(rate.seconds(unit.nbytes))
            place = "CPU" if is_on_cpu else "GPU"
            lines.append(
                f"  {place}  {bytes_text(unit.nbytes)} of {where}: {seconds[0]} on the CPU, {seconds[1]} to copy"
            )
        return lines

    def single_program_error(self) -> InputError:
        fix = "a program of one device, which placement='strict' makes, can be saved"
        return InputError("a model on two devices", expected="one program", got=len(self._parts), fix=fix)

    def __repr__(self) -> str:
        places = ", ".join(part.place for part in self._parts)
        return f"{', '.join(map(str, self.inputs))} -> {', '.join(map(str, self.outputs))}, parts on {places}"


def _weights_text(program: Program) -> str:
    return bytes_text(program.weights.nbytes)


def compile_placed(model: Any, request: Request, options: Options) -> CompiledModel:
    """See `ingot.compile`, placement="measured". Raises ArtifactError where there is no GPU to measure."""
    if options.device_memory is None or parse_target(options.target)[0].name != "cuda":
        expected = 'target="cuda:..." and device_memory, the bytes of the GPU that the model may take'
        raise InputError('placement="measured"', expected=expected, got=options.target)
    check_runs(options.target)
    opened = open_model(model, request).stateless()
    plan = build_graph(lambda: opened.graph, replace(options, target=f"null:{options.target}"))
    placed = place(opened.graph, plan, options, Copies(*device.copy_rate()), compile_part)
    return CompiledModel(placed, convention=opened.convention)


def compile_part(part: Part, options: Options) -> Program:
    return compiled_program(part.graph, replace(options, target="native") if part.place == "cpu" else options)


def place(
    graph: Graph, plan: Program, options: Options, copies: Copies, compile_: Callable[[Part, Options], Program]
) -> PlacedProgram:
    """Measure, choose and compile. plan: the program of the whole model on the GPU. Symbols get likely values for the
    measurement."""
    assert options.device_memory is not None
    sizes = choose_sizes(plan)
    fixed = graph.substitute(sizes)
    excess = plan.weights.nbytes + _other_bytes(plan, sizes) - options.device_memory
    units = find_units(fixed, _Stopwatch(options.threads)) if excess > 0 else []
    chosen = choose(units, excess, copies)
    node_of_fixed = dict(zip(fixed.nodes(), graph.nodes(), strict=True))
    parts = cut(graph, [node_of_fixed[n] for unit in chosen for n in unit.nodes])
    programs = [compile_(part, options) for part in parts]
    on_gpu = [p for part, p in zip(parts, programs, strict=True) if part.place == "gpu"]
    memory_shares = iter(_memory_shares(on_gpu, sizes, options.device_memory))
    models = [
        to_model(program, replace(options, device_memory=next(memory_shares) if part.place == "gpu" else None))
        for part, program in zip(parts, programs, strict=True)
    ]
    names = value_names(graph)
    placed_units = [(unit, unit in chosen) for unit in units]
    return PlacedProgram(plan, parts, models, [names[o] for o in graph.outputs], placed_units, copies, options.threads)


def _other_bytes(program: Program, sizes: Mapping[str, int]) -> int:
    """The GPU memory that a program needs besides its weights: the arena, and copies of arguments and results."""
    feeds = random_feeds(program, sizes)
    binding = Binding(program, binding_shapes(program, [feeds[spec.name] for spec in program.inputs]))
    return binding.layout.nbytes + sum(a.nbytes for a in feeds.values()) + sum(n for *_, n in binding.results)


def _memory_shares(programs: Sequence[Program], sizes: Mapping[str, int], device_memory: int) -> list[int]:
    """The device memory of each program: what it needs besides weights, plus a part of the rest in proportion to its
    weights."""
    other_bytes = [_other_bytes(p, {s.name: sizes[s.name] for s in p.symbols}) for p in programs]
    total = sum(p.weights.nbytes for p in programs) or 1
    spare = device_memory - sum(other_bytes)
    return [max(needed + spare * p.weights.nbytes // total, 1) for needed, p in zip(other_bytes, programs, strict=True)]


class _Stopwatch:
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
