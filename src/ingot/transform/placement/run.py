"""A model in parts on two devices: compiled, and run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ingot.debug.drawing import bytes_text, time_text
from ingot.debug.feeds import choose_sizes, random_feeds
from ingot.driver.compile import Options, build_graph, check_runs, compiled_program, to_model
from ingot.driver.open import Request, open_model
from ingot.ir.node import Graph
from ingot.pipeline.target import parse_target
from ingot.runtime import device
from ingot.runtime.bind import Binding, Shape, bind_symbols, binding_shapes
from ingot.runtime.executable import Executable
from ingot.runtime.executor import CompiledModel
from ingot.runtime.program import Program
from ingot.runtime.tensors import host_array, is_tensor
from ingot.support.errors import InputError
from ingot.transform.placement.choose import Copies, Stopwatch, Unit, choose, find_units
from ingot.transform.placement.cut import SIZES, Part, cut, value_names


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
        values[SIZES] = np.array([sizes[s.name] for s in self._plan.symbols], np.int64)
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
            reads = ", ".join(str(spec) for spec in program.inputs if spec.name != SIZES)
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
    units = find_units(fixed, Stopwatch(options.threads)) if excess > 0 else []
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
    return [
        max(used_bytes + spare * p.weights.nbytes // total, 1)
        for used_bytes, p in zip(other_bytes, programs, strict=True)
    ]
