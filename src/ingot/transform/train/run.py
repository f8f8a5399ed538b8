"""`ingot.train`: from a model, a loss and an optimizer to a compiled step."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
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
from ingot.pipeline.target import named
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
from ingot.transform.train.sources import Asked, Trainable, read
from ingot.transform.train.step import TARGET, Recipe, Step, step_of

_RUNS = 3  # whose least time counts


class CompiledStep(TrainingStep):
    """A step of a model that is at hand: called with the model's own arguments and the targets behind them."""

    def __init__(self, program: Program, source: Trainable, step: Step, threads: int) -> None:
        super().__init__(program, threads=threads)
        self._source = replace(source, parameters=(), buffers=())  # their first values are the program's
        self._graph, self._has_target = step.graph, step.has_target

    def _batch(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[Any]:
        flatten = self._source.flatten
        if flatten is None:
            return super()._batch(args, kwargs)
        if not self._has_target:
            return flatten(args, kwargs)
        named = dict(kwargs)
        alone = len(args) + len(named) == 1 and self._source.inputs
        if TARGET not in named and (alone or not args):
            got = "one argument" if alone else "no target"
            raise InputError("a step", expected="the model's inputs and a target behind them", got=got)
        *own, target = (*args, named.pop(TARGET)) if TARGET in named else args
        return (*flatten(own, named), target)

    def trained(self) -> Any:
        """The model as it came, with the parameters as they are now: a module (the one that was given, changed), a
        ModelProto, or a tree of arrays as the function's first argument is."""
        return self._source.restore(self.state_dict())  # type: ignore[arg-type]

    def first_nan(self, *args: Any, **kwargs: Any) -> str | None:
        """Where a step on this batch would first make a NaN, in the forward pass, a gradient or an update: the op, its
        type and its place in the model. None if nowhere. The interpreter finds it: slow, and exact."""
        given = [_on_host(x) for x in (*self._batch(args, kwargs), self.rate())]
        state = self.state()
        given += [np.asarray(state[name]) for name in self._graph.state]
        broken: list[Node] = []

        def watch(node: Node, results: tuple[np.ndarray, ...]) -> None:
            if any(dtype_of(r).is_float and np.isnan(r.astype(np.float64)).any() for r in results):
                broken.append(node)

        interpret(self._graph, given, observe=watch)
        # a NaN that none of the results has is one that was never chosen
        told = set(self._graph.outputs)
        for node in reversed(broken):
            if node in told:
                told.update(node.inputs)
        first = next((n for n in broken if n in told), None)
        if first is None:
            return None
        types = ", ".join(map(str, first.types))
        if isinstance(first.op, Input):
            graph = self._graph
            held = dict(zip(graph.inputs[len(given) - len(graph.state) :], graph.state, strict=True))
            return f"input {held.get(first, first.op.label)!r} : {types}"
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
    target: str = "native",
    dynamic: Any = None,
    threads: int | None = None,
    seed: int = 0,
    memory: float | None = None,
) -> Any:
    """See `ingot.train`."""
    if not isinstance(optimizer, Optimizer):
        expected = f"one of ingot.optim: {', '.join(f'{o.__name__}()' for o in OPTIMIZERS.values())}"
        got = repr(optimizer) if isinstance(optimizer, str | type) else type(optimizer).__name__
        raise InputError("optimizer", expected=expected, got=got)
    if not (loss is None or isinstance(loss, str) or callable(loss)):
        raise InputError("loss", expected="a name, a function of the model's framework, or None", got=repr(loss))
    check_number("seed", seed, "a whole number", lambda v: True, whole=True)
    options = Options(target, thread_count(threads))
    named(target)  # refused before the model is read
    known = isinstance(loss, str)
    targets = tuple(example_targets) if isinstance(example_targets, tuple | list) else (example_targets,)
    chosen = None if trainable is None else _names(trainable)
    function = None if isinstance(loss, str) else loss
    if function is not None and not targets and not _takes_one(function):
        fix = "ingot.train(model, loss, optimizer, (x,), (y,))"
        raise InputError("example_targets", expected="what the loss function is given", got="none", fix=fix)
    asked = Asked(function, loss is None, example_inputs, () if known else targets, dynamic, chosen)
    recipe = Recipe(
        optimizer, loss if isinstance(loss, str) else None, _type_of(targets) if known else None, _names(metrics),
        clip_norm, clip_value, accumulate, precision, skip_nonfinite,
    )  # fmt: skip
    recipe.check()
    return _compiled(read(model, asked), recipe, options, seed, memory)


def _names(given: str | Sequence[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _takes_one(loss: Callable[..., Any]) -> bool:
    """Whether a loss may be called with the model's results alone."""
    try:
        inspect.signature(loss).bind(None)
    except (TypeError, ValueError):  # more arguments, or a function that does not tell
        return False
    return True


def _type_of(targets: tuple[Any, ...]) -> TensorType | None:
    """Of an example target; None without one."""
    if not targets:
        return None
    array = _on_host(targets[0])
    return TensorType(dtype_of(array), array.shape)


def _on_host(value: Any) -> np.ndarray:
    return np.asarray(value.cpu() if is_tensor(value) and value.is_cuda else value)


def _compiled(source: Trainable, recipe: Recipe, options: Options, seed: int, memory: float | None) -> CompiledModel:
    step, trace = step_of(source, recipe), Trace()
    loops = any(isinstance(n.op, While) for n in step.graph.nodes())
    sparing = (lambda: step_of(source, recipe, keep_products=False).graph) if loops else None

    def begun(program: Program) -> Program:
        first = {k.name: k.first for k in step.kept}
        drawn = {RANDOM: seed_state(seed)} if any(s.spec.name == RANDOM for s in program.state) else {}
        return program.with_state(first | drawn)

    def seconds(program: Program, sizes: Mapping[str, int]) -> list[float] | None:
        return _seconds(begun(program), sizes, options.threads)

    measure = seconds if options.target == "native" else None
    made = build_graph(lambda: step.graph, options, memory=memory, sparing=sparing, measure=measure, trace=trace)
    program = begun(made)
    names = tuple(k.name for k in source.parameters), tuple(k.name for k in source.buffers)
    meta = Training(recipe.optimizer.lr, *names, step.metrics, step.rate, step.classes)
    sections = _sections(program, trace.launches, meta)
    program = replace(program, meta={**program.meta, META: meta.to_json(), SECTIONS: sections})
    other = unloaded_program(program, options.threads)
    return CompiledStep(program, source, step, options.threads) if other is None else CompiledModel(other)


def _seconds(program: Program, sizes: Mapping[str, int], threads: int) -> list[float] | None:
    """The least that each step of a program takes in a few runs, on zeros; None where it refuses such sizes."""
    progress.report("measure kernels")
    model = CompiledModel(program, threads=threads)
    zeros = [np.zeros([evaluate(d, sizes) for d in s.shape], numpy_dtype(s.dtype)) for s in program.inputs]
    try:
        runs = [[seconds for _, seconds in model.profile(*zeros)] for _ in range(_RUNS)]
    except InputError:
        return None
    return np.min(runs, axis=0).tolist()


def _sections(program: Program, launches: Sequence[Launch], training: Training) -> str:
    """A letter for each step of the program: f(orward), b(ackward), o(ptimizer). Forward is what the loss, metrics and
    the model's buffers are made of; the optimizer's is what makes the rest of what lasts, element by element."""
    names = [s.spec.name for s in program.state]
    own = len(program.inputs)
    forward = {i for i, name in enumerate(names) if name in training.buffers}

    def role(buffer: int) -> int | None:
        """The number of the result that lies in a buffer."""
        b = program.buffers[buffer]
        return b.index if b.kind == "output" else b.index - own if b.kind == "input" and b.index >= own else None

    made = {node: launch.node for launch in launches for node in launch.node.results}
    written = {launch.node: {role(out[0]) for out in launch.outputs} - {None} for launch in launches}
    first = [n for n, to in written.items() if any(i in forward or (i is not None and i >= len(names)) for i in to)]
    ahead = set(topological(first))
    users: dict[Node, list[Node]] = {}
    for launch in launches:
        for node in topological(launch.node.inputs, lambda n: () if n in made else n.inputs):
            users.setdefault(made.get(node, node), []).append(launch.node)
    letters = [""] * len(program.steps)
    told: dict[Node, str] = {}
    for launch in reversed(launches):
        node = launch.node
        small = isinstance(node.op, Group) and node.op.kind == "pointwise"
        ends = bool(written[node]) or (small and all(told.get(u) == "o" for u in users.get(node, ())))
        again = isinstance(node.op, Recomputed)
        told[node] = "f" if node in ahead and not again else "o" if ends and not again else "b"
        letters[launch.first : launch.last] = told[node] * (launch.last - launch.first)
    return "".join(letters)
