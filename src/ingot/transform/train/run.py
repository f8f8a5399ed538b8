"""`ingot.train`: compile a training step from a model, a loss and an optimizer."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ingot.driver.compile import Options, build_graph, unloaded_program
from ingot.ir.interp import interpret
from ingot.ir.node import Input, Node, topological
from ingot.ir.types import TensorType, dtype_of
from ingot.ops import While
from ingot.ops.group import Group, Recomputed
from ingot.optim import OPTIMIZERS, Optimizer
from ingot.pipeline.build import Trace
from ingot.pipeline.target import parse_target
from ingot.plan.link import Launch
from ingot.runtime.cpu.pool import thread_count
from ingot.runtime.dtypes import numpy_dtype
from ingot.runtime.executor import CompiledModel
from ingot.runtime.expr import evaluate
from ingot.runtime.program import Program
from ingot.runtime.state import RANDOM, seed_state
from ingot.runtime.tensors import is_tensor
from ingot.runtime.training import META, SECTIONS, Training, TrainingStep
from ingot.support import progress
from ingot.support.errors import InputError, check_number
from ingot.transform.shard.mesh import Marks, Mesh
from ingot.transform.train.adversary import Adversary
from ingot.transform.train.division import Division, division_of
from ingot.transform.train.sources import Trainable, TrainRequest, read
from ingot.transform.train.step import TARGET, Recipe, Step, step_of

_MEASURE_RUNS = 3  # the time of a step is the minimum over these


class CompiledStep(TrainingStep):
    """A training step of a model in memory: it takes the model's arguments followed by the targets."""

    def __init__(
        self, program: Program, source: Trainable, step: Step, threads: int, division: Division | None = None
    ) -> None:
        """division: over the devices of a mesh; the program is that of this process's rank."""
        super().__init__(program, threads=threads)
        self._division = division
        self._source = replace(source, parameters=(), buffers=())  # the program holds their initial values
        self._graph, self._has_target = step.graph, step.has_target

    def _batch(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[Any]:
        flatten = self._source.flatten
        if flatten is None:
            return super()._batch(args, kwargs)
        if not self._has_target:
            return flatten(args, kwargs)
        named = dict(kwargs)
        is_single = len(args) + len(named) == 1 and self._source.inputs
        if TARGET not in named and (is_single or not args):
            got = "one argument" if is_single else "no target"
            raise InputError("a step", expected="the model's inputs followed by a target", got=got)
        *model_args, target = (*args, named.pop(TARGET)) if TARGET in named else args
        return (*flatten(model_args, named), target)

    def state_dict(self) -> Mapping[str, object]:
        """Copies of the model's parameters and buffers, by their names in the model. Where some are split over several
        devices, all ranks have to call it."""
        return self._gathered_state(super().state_dict())

    def _gathered_state(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        return state if self._division is None else self._division.gather(state)

    def _local_state(self, state: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        return state if self._division is None else self._division.parts(state)

    def _write(self, path: Path, arrays: Mapping[str, Any]) -> None:
        write = partial(super()._write, path, arrays)
        write() if self._division is None else self._division.write_once(write)

    def trained(self) -> Any:
        """The trained model, in the form of the original: the module itself, which is updated; a ModelProto; or a tree
        of arrays like the function's first argument."""
        return self._source.restore(self.state_dict())  # type: ignore[arg-type]

    def first_nan(self, *args: Any, **kwargs: Any) -> str | None:
        """The first op that produces a NaN in a step on this batch, in the forward pass, a gradient or an update, with
        its type and its location in the model. None if there is none. It runs the interpreter: slow, but exact."""
        if self._division is not None:
            fix = "train without a mesh to find it"
            raise InputError("first_nan", expected="a step on one device", got="one of a mesh", fix=fix)
        values = [_on_host(x) for x in (*self._batch(args, kwargs), self.rate())]
        state = self.state()
        values += [np.asarray(state[name]) for name in self._graph.state]
        nan_nodes: list[Node] = []

        def watch(node: Node, results: tuple[np.ndarray, ...]) -> None:
            if any(dtype_of(r).is_float and np.isnan(r.astype(np.float64)).any() for r in results):
                nan_nodes.append(node)

        interpret(self._graph, values, observe=watch)
        # a NaN that reaches no result is in a branch that was not selected
        relevant = set(self._graph.outputs)
        for node in reversed(nan_nodes):
            if node in relevant:
                relevant.update(node.inputs)
        first = next((n for n in nan_nodes if n in relevant), None)
        if first is None:
            return None
        types = ", ".join(map(str, first.types))
        if isinstance(first.op, Input):
            graph = self._graph
            state_names = dict(zip(graph.inputs[len(values) - len(graph.state) :], graph.state, strict=True))
            return f"input {state_names.get(first, first.op.label)!r} : {types}"
        return f"{first.op.name} : {types} at {first.loc or 'the step itself'}"


def train_model(
    model: Any,
    loss: str | Callable[..., Any] | None,
    optimizer: Optimizer,
    example_inputs: Any,
    example_targets: Any,
    *,
    metrics: Sequence[str] = (),
    trainable: Sequence[str] | None = None,
    clip_norm: float | None = None,
    clip_value: float | None = None,
    accumulate: int = 1,
    precision: str = "float32",
    skip_nonfinite: bool = False,
    adversary: Adversary | None = None,
    target: str = "native",
    dynamic: Any = None,
    threads: int | None = None,
    seed: int = 0,
    memory: float | None = None,
    mesh: Mesh | Mapping[str, int] | None = None,
    shard: Marks | None = None,
) -> Any:
    """See `ingot.train`."""
    if mesh is None and shard is not None:
        raise InputError("shard", expected="a mesh, too", got="none", fix='mesh={"dp": 2}')
    if not isinstance(optimizer, Optimizer):
        expected = f"one of ingot.optim: {', '.join(f'{o.__name__}()' for o in OPTIMIZERS.values())}"
        got = repr(optimizer) if isinstance(optimizer, str | type) else type(optimizer).__name__
        raise InputError("optimizer", expected=expected, got=got)
    if not (loss is None or isinstance(loss, str) or callable(loss)):
        raise InputError("loss", expected="a name, a function of the model's framework, or None", got=repr(loss))
    check_number("seed", seed, "a whole number", lambda v: True, whole=True)
    options = Options(
        target, thread_count(threads), precision=precision if precision in ("tf32", "ieee") else "float32"
    )
    on_gpu = parse_target(target)[0].overlaps_exchanges  # an unknown target is rejected before the model is read
    is_named_loss = isinstance(loss, str)
    targets = tuple(example_targets) if isinstance(example_targets, tuple | list) else (example_targets,)
    patterns = None if trainable is None else _names(trainable)
    function = None if isinstance(loss, str) else loss
    if function is not None and not targets and not _takes_one(function):
        fix = "ingot.train(model, loss, optimizer, (x,), (y,))"
        raise InputError("example_targets", expected="the loss function's arguments", got="none", fix=fix)
    request = TrainRequest(function, loss is None, example_inputs, () if is_named_loss else targets, dynamic, patterns)
    recipe = Recipe(
        optimizer, loss if isinstance(loss, str) else None, _type_of(targets) if is_named_loss else None,
        _names(metrics), clip_norm, clip_value, accumulate, precision, skip_nonfinite, adversary,
    )  # fmt: skip
    recipe.check()
    division = None if mesh is None else division_of(mesh, shard, splits_loops=not on_gpu)
    return _compile_step(read(model, request), recipe, options, seed, memory, division)


def _names(names: str | Sequence[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _takes_one(loss: Callable[..., Any]) -> bool:
    """Whether a loss function can be called with the model's result alone."""
    try:
        inspect.signature(loss).bind(None)
    except (TypeError, ValueError):  # more arguments, or a function without a signature
        return False
    return True


def _type_of(targets: tuple[Any, ...]) -> TensorType | None:
    """The type of the example target; None without one."""
    if not targets:
        return None
    array = _on_host(targets[0])
    return TensorType(dtype_of(array), array.shape)


def _on_host(value: Any) -> np.ndarray:
    return np.asarray(value.cpu() if is_tensor(value) and value.is_cuda else value)


def _compile_step(
    source: Trainable, recipe: Recipe, options: Options, seed: int, memory: float | None, division: Division | None
) -> CompiledModel:
    """division: over the devices of a mesh; None: one device."""
    step, trace = step_of(source, recipe), Trace()
    has_loops = any(isinstance(n.op, While) for n in step.graph.nodes())
    graph_of = (lambda step: step.graph) if division is None else division.graph
    graph = graph_of(step)
    sparing = (lambda: graph_of(step_of(source, recipe, keep_products=False))) if has_loops else None

    def with_initial_state(program: Program) -> Program:
        initial = {k.name: k.initial for k in step.state}
        if division is not None:
            initial = division.parts(initial)
        random_state = {RANDOM: seed_state(seed)} if any(s.spec.name == RANDOM for s in program.state) else {}
        return program.with_state(initial | random_state)

    def seconds(program: Program, sizes: Mapping[str, int]) -> list[float] | None:
        return _seconds(with_initial_state(program), sizes, options.threads)

    # on several devices all ranks have to make the same choices
    measure = seconds if options.target == "native" and division is None else None
    compiled = build_graph(lambda: graph, options, memory=memory, sparing=sparing, measure=measure, trace=trace)
    program = with_initial_state(compiled)
    names = tuple(k.name for k in source.parameters), tuple(k.name for k in source.buffers)
    meta = Training(recipe.optimizer.lr, *names, step.metrics, step.rate, step.classes)
    sections = _sections(program, trace.launches, meta)
    program = replace(program, meta={**program.meta, META: meta.to_json(), SECTIONS: sections})
    if division is not None:
        program = division.placed(program)
    unloaded = unloaded_program(program, options.threads)
    return (
        CompiledStep(program, source, step, options.threads, division) if unloaded is None else CompiledModel(unloaded)
    )


def _seconds(program: Program, sizes: Mapping[str, int], threads: int) -> list[float] | None:
    """The minimum time of each step of a program over a few runs on zeros; None if it rejects these sizes."""
    progress.report("measure kernels")
    model = CompiledModel(program, threads=threads)
    zeros = [np.zeros([evaluate(d, sizes) for d in s.shape], numpy_dtype(s.dtype)) for s in program.inputs]
    try:
        step_seconds = [[seconds for _, seconds in model.profile(*zeros)] for _ in range(_MEASURE_RUNS)]
    except InputError:
        return None
    return np.min(step_seconds, axis=0).tolist()


def _sections(program: Program, launches: Sequence[Launch], training: Training) -> str:
    """A letter for each step of the program: f(orward), b(ackward), o(ptimizer). Forward steps compute the loss, the
    metrics and the model's buffers. Optimizer steps compute the remaining state, element by element."""
    names = [s.spec.name for s in program.state]
    input_count = len(program.inputs)
    forward = {i for i, name in enumerate(names) if name in training.buffers}

    def result_index(buffer: int) -> int | None:
        """The index of the result that a buffer stores."""
        b = program.buffers[buffer]
        return (
            b.index
            if b.kind == "output"
            else b.index - input_count
            if b.kind == "input" and b.index >= input_count
            else None
        )

    producers = {node: launch.node for launch in launches for node in launch.node.results}
    stored_indices = {launch.node: {result_index(out[0]) for out in launch.outputs} - {None} for launch in launches}
    forward_roots = [
        n
        for n, indices in stored_indices.items()
        if any(i in forward or (i is not None and i >= len(names)) for i in indices)
    ]
    forward_nodes = set(topological(forward_roots))
    users: dict[Node, list[Node]] = {}
    for launch in launches:
        for node in topological(launch.node.inputs, lambda n: () if n in producers else n.inputs):
            users.setdefault(producers.get(node, node), []).append(launch.node)
    letters = [""] * len(program.steps)
    sections: dict[Node, str] = {}
    for launch in reversed(launches):
        node = launch.node
        is_elementwise = isinstance(node.op, Group) and node.op.kind == "pointwise"
        is_update = bool(stored_indices[node]) or (
            is_elementwise and all(sections.get(u) == "o" for u in users.get(node, ()))
        )
        is_recomputed = isinstance(node.op, Recomputed)
        sections[node] = (
            "f" if node in forward_nodes and not is_recomputed else "o" if is_update and not is_recomputed else "b"
        )
        letters[launch.first : launch.last] = sections[node] * (launch.last - launch.first)
    return "".join(letters)
