"""A model over a GPU and the host's CPU, where a bound of the GPU's memory leaves weights on the host.

    gather of a table of 8 GB -> layers of 4 GB, device_memory of 6 GB
        ->   the gather on the CPU | copy of its rows | the layers on the GPU, which fit

What reads a weight runs on the GPU and has the weight copied there in each call, or it runs on the CPU and its operands
and results are copied. Both are measured here: a copy from the host to this GPU, and each op alone on this CPU.
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
_SIZES = "placement.sizes"  # the input of a part that holds the values of the model's symbols
_MIN_WEIGHT_BYTES = 1 << 16  # smaller ones stay on the GPU
_MEASURED_SECONDS = 0.1  # of an op


@dataclass(frozen=True)
class Copies:
    """Copies between the host and the device: bytes/s, and the seconds that one takes at least."""

    bytes_per_second: float
    latency_seconds: float

    def seconds(self, nbytes: float, count: int = 1) -> float:
        return nbytes / self.bytes_per_second + count * self.latency_seconds


@dataclass(frozen=True)
class Unit:
    """Nodes that read the same weights. nbytes: of these. moved: bytes of their other operands and of their results.
    cpu_seconds: of all nodes, on the CPU."""

    nodes: tuple[Node, ...]
    nbytes: int
    moved: int
    cpu_seconds: float

    def seconds_on_cpu(self, copies: Copies) -> float:
        return self.cpu_seconds + copies.seconds(self.moved, 2 * len(self.nodes))


@dataclass(frozen=True)
class Part:
    """Nodes of a model that run on one device, one after another, as a graph of its own. reads, writes: names of its
    inputs and outputs among the model's values."""

    place: Place
    graph: Graph
    reads: tuple[str, ...]
    writes: tuple[str, ...]


def derived_weights(graph: Graph) -> dict[Node, frozenset[Node]]:
    """The constants that each constant, or value of nothing but constants, is computed from."""
    found: dict[Node, frozenset[Node]] = {}
    for n in graph.nodes():
        if n.constant is not None:
            found[n] = frozenset([n])
        elif n.inputs and all(i in found for i in n.inputs) and not n.op.draws:
            found[n] = frozenset().union(*(found[i] for i in n.inputs))
    return found


def find_units(graph: Graph, measure: Callable[[Node], float]) -> list[Unit]:
    """The units of a graph of fixed sizes. measure: the seconds of a node on the CPU."""
    derived = derived_weights(graph)
    readers: list[tuple[set[Node], set[Node]]] = []  # weights, and what reads them
    for n in graph.nodes():
        if n in derived or isinstance(n.op, Project):
            continue
        weights = {w for i in n.inputs if i in derived for w in derived[i] if _nbytes(w.types) >= _MIN_WEIGHT_BYTES}
        if not weights:
            continue
        nodes = {n}
        for other in [r for r in readers if r[0] & weights]:
            readers.remove(other)
            weights, nodes = weights | other[0], nodes | other[1]
        readers.append((weights, nodes))
    order = {n: at for at, n in enumerate(graph.nodes())}
    units: list[Unit] = []
    for weights, nodes in readers:
        ordered = tuple(sorted(nodes, key=order.__getitem__))
        values = {i for n in ordered for i in n.inputs if i not in derived}
        moved = sum(_nbytes(v.types) for v in values) + sum(_nbytes(n.types) for n in ordered)
        units.append(Unit(ordered, sum(_nbytes(w.types) for w in weights), moved, sum(map(measure, ordered))))
    return units


def choose(units: Sequence[Unit], excess: int, copies: Copies) -> list[Unit]:
    """The units for the CPU, so that `excess` bytes of weights that do not fit cost the least: those that take the
    fewest seconds for each byte, as long as copying the bytes to the GPU would take more."""
    chosen: list[Unit] = []
    for unit in sorted((u for u in units if u.nbytes), key=lambda u: u.seconds_on_cpu(copies) / u.nbytes):
        if excess <= 0:
            break
        if unit.seconds_on_cpu(copies) < copies.seconds(min(unit.nbytes, excess)):
            chosen.append(unit)
            excess -= unit.nbytes
    return chosen


def value_names(graph: Graph) -> dict[Node, str]:
    """Of all values of a graph; inputs have their own."""
    order = enumerate(graph.nodes())
    return {n: n.op.label if isinstance(n.op, Input) else f"placement.value{at}" for at, n in order}


def cut(graph: Graph, on_cpu: Iterable[Node]) -> list[Part]:
    """Parts of a graph, in the order in which they run, that compute `on_cpu` on the CPU.

    What lies between these alone runs there, too; everything else runs on the GPU. Raises InputError for state and for
    computed sizes, which no part knows before it has run.
    """
    if graph.sizes or graph.state:
        what = [name for name, _ in graph.sizes] or list(graph.state)
        raise InputError('placement="measured"', expected="a model without state and computed sizes", got=what)
    derived, names = derived_weights(graph), value_names(graph)
    nodes = [n for n in graph.nodes() if n not in derived and not isinstance(n.op, Input)]
    parts: list[Part] = []
    for place, own in _runs(nodes, _places(graph, nodes, set(on_cpu))):
        inside = set(own)
        reads = dict.fromkeys(i for n in own for i in n.inputs if i not in inside and i not in derived)
        wanted = {i for n in nodes if n not in inside for i in n.inputs} | set(graph.outputs)
        writes = [n for n in own if n in wanted and len(n.types) == 1]
        if not parts:
            writes += [o for o in dict.fromkeys(graph.outputs) if o in derived]
        parts.append(_part(graph, place, own, list(reads), writes, names))
    return parts


def _places(graph: Graph, nodes: Sequence[Node], on_cpu: set[Node]) -> dict[Node, Place]:
    places: dict[Node, Place] = {n: "cpu" if n in on_cpu else "gpu" for n in nodes}
    users, outputs = graph.uses(), set(graph.outputs)
    changed = True
    while changed:
        changed = False
        for n in nodes:
            around = [*(i for i in n.inputs if i in places), *users.get(n, ())]
            is_between = n not in outputs and any(i in places for i in n.inputs) and bool(users.get(n))
            follows = isinstance(n.op, Project) and places.get(n.inputs[0]) == "cpu"
            if places[n] == "gpu" and (follows or (is_between and all(places.get(a) == "cpu" for a in around))):
                places[n] = "cpu"
                changed = True
    return places


def _runs(nodes: Sequence[Node], places: Mapping[Node, Place]) -> list[tuple[Place, list[Node]]]:
    """Nodes in an order that changes the device seldom: all of one that can run, then all of the other."""
    waiting, done = list(nodes), set[Node]()
    runs: list[tuple[Place, list[Node]]] = []
    pending = {*nodes}
    place: Place = "cpu"
    while waiting:
        own: list[Node] = []
        rest: list[Node] = []
        for n in waiting:  # operands come before users
            is_ready = all(i in done or i not in pending for i in n.inputs)
            if places[n] == place and is_ready:
                own.append(n)
                done.add(n)
            else:
                rest.append(n)
        if own:
            runs.append((place, own))
        waiting, place = rest, "gpu" if place == "cpu" else "cpu"
    return runs


def _part(
    graph: Graph, place: Place, own: Sequence[Node], reads: Sequence[Node], writes: Sequence[Node],
    names: Mapping[Node, str],
) -> Part:  # fmt: skip
    images = {n: n if isinstance(n.op, Input) else Input(names[n], n.type)() for n in reads}
    inputs = list(images.values())
    if symbols := graph.symbols():  # a size such as batch * length does not tell those that it is made of
        inputs.append(Input(_SIZES, TensorType(i64, (len(symbols),)), tuple(map(symbol, symbols)))())
    for n in own:
        images[n] = n.with_inputs([images.get(i, i) for i in n.inputs])
    labels = tuple(names[w] for w in writes)
    outputs = tuple(images.get(w, w) for w in writes)
    part = Graph(tuple(inputs), outputs, labels, graph.bounds, graph.conditions)
    return Part(place, part, tuple(n.op.label for n in inputs if isinstance(n.op, Input)), labels)


def _nbytes(types: Iterable[TensorType]) -> int:
    """Of values of fixed sizes."""
    return sum(prod(static_shape(t.shape)) * t.dtype.numpy.itemsize for t in types)


class PlacedProgram(Executable):
    """Parts of a model on two devices, one after another; values between them are copied through the host.

    units: with what was measured of each, and whether it runs on the CPU. plan: the program of the model on the GPU
    alone, which is not run: it checks inputs and knows sizes.
    """

    is_one_program = False

    def __init__(
        self, plan: Program, parts: Sequence[Part], models: Sequence[CompiledModel], results: Sequence[str],
        units: Sequence[tuple[Unit, bool]], copies: Copies, threads: int,
    ) -> None:  # fmt: skip
        """models: of the parts. results: the names of the model's results."""
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
        found: list[tuple[CompiledModel, Sequence[Any]]] = []
        self._advance(inputs, found)
        return found

    def _advance(self, inputs: Sequence[Any], calls: list[tuple[CompiledModel, Sequence[Any]]]) -> list[Any]:
        arrays = [host_array(x, spec.name) for x, spec in zip(inputs, self.inputs, strict=True)]
        sizes = bind_symbols(self._plan, binding_shapes(self._plan, arrays))
        values = {spec.name: x for spec, x in zip(self.inputs, arrays, strict=True)}
        values[_SIZES] = np.array([sizes[s.name] for s in self._plan.symbols], np.int64)
        for part, model in zip(self._parts, self._models, strict=True):
            given = [values[name] for name in part.reads]
            calls.append((model, given))
            values |= zip(part.writes, model.run(given), strict=True)
        return [values[name] for name in self._results]

    def state(self) -> dict[str, Any]:
        return {}

    def seed(self, seed: int) -> None:
        """Random numbers are state, which no such model has."""

    @property
    def arena_bytes(self) -> int:
        return sum(model.arena_bytes for model in self._models)

    def plan(self, shapes: Sequence[Shape]) -> str:
        return "\n".join(self.notes())

    def notes(self) -> list[str]:
        """Where each part runs and what is copied to and from the GPU; what was measured of each unit of weights."""
        lines: list[str] = []
        for at, (part, model) in enumerate(zip(self._parts, self._models, strict=True)):
            program = model.program
            reads = ", ".join(str(spec) for spec in program.inputs if spec.name != _SIZES)
            lines.append(f"part {at}  {part.place.upper()}  {len(program.steps)} steps, {_weights(program)} of weights")
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


def _weights(program: Program) -> str:
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
    """Measure, choose and compile. plan: of the whole model on the GPU. The sizes are likely ones where they are
    open."""
    assert options.device_memory is not None
    sizes = choose_sizes(plan)
    fixed = graph.substitute(sizes)
    excess = plan.weights.nbytes + _other_bytes(plan, sizes) - options.device_memory
    units = find_units(fixed, _Stopwatch(options.threads)) if excess > 0 else []
    chosen = choose(units, excess, copies)
    twins = dict(zip(fixed.nodes(), graph.nodes(), strict=True))
    parts = cut(graph, [twins[n] for unit in chosen for n in unit.nodes])
    programs = [compile_(part, options) for part in parts]
    on_gpu = [p for part, p in zip(parts, programs, strict=True) if part.place == "gpu"]
    shares = iter(_shares(on_gpu, sizes, options.device_memory))
    models = [
        to_model(program, replace(options, device_memory=next(shares) if part.place == "gpu" else None))
        for part, program in zip(parts, programs, strict=True)
    ]
    names = value_names(graph)
    told = [(unit, unit in chosen) for unit in units]
    return PlacedProgram(plan, parts, models, [names[o] for o in graph.outputs], told, copies, options.threads)


def _other_bytes(program: Program, sizes: Mapping[str, int]) -> int:
    """What a program needs of the GPU's memory beside its weights: the arena, and copies of arguments and results."""
    feeds = random_feeds(program, sizes)
    instance = Binding(program, binding_shapes(program, [feeds[spec.name] for spec in program.inputs]))
    return instance.layout.nbytes + sum(a.nbytes for a in feeds.values()) + sum(n for *_, n in instance.results)


def _shares(programs: Sequence[Program], sizes: Mapping[str, int], device_memory: int) -> list[int]:
    """What each program may take: all that it needs beside weights, and of the rest as its weights are of all."""
    others = [_other_bytes(p, {s.name: sizes[s.name] for s in p.symbols}) for p in programs]
    total = sum(p.weights.nbytes for p in programs) or 1
    rest = device_memory - sum(others)
    return [max(own + rest * p.weights.nbytes // total, 1) for own, p in zip(others, programs, strict=True)]


class _Stopwatch:
    """The seconds of a node alone on the CPU; equal ones on operands of equal types are measured once."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._known: dict[object, float] = {}

    def __call__(self, n: Node) -> float:
        key = n.op, tuple(i.types for i in n.inputs)
        if key not in self._known:
            self._known[key] = self._seconds(n)
        return self._known[key]

    def _seconds(self, n: Node) -> float:
        constant = derived_weights(Graph((), n.inputs))
        operands = dict.fromkeys(i for i in n.inputs if i not in constant)
        images = {i: Input(f"x{at}", i.type)() for at, i in enumerate(operands)}
        y = n.with_inputs([images.get(i, i) for i in n.inputs])
        graph = Graph(tuple(images.values()), y.results)
        model = CompiledModel(build_native(graph, self._threads), threads=self._threads)
        feeds = random_feeds(model.program, {}, index_limits(graph))
        return timing.median(lambda: model(**feeds), _MEASURED_SECONDS)
