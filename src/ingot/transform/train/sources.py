"""Models of the frontends as graphs to train, with parameters and buffers as separate inputs.

Trainable: users' inputs, parameters and buffers -> the model's results, the buffers' next values
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ingot.driver.open import recognize
from ingot.ir.node import Graph, Node, splat_of
from ingot.support.dataclass import dataclass
from ingot.support.errors import InputError, select_trainable

Values = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class StateTensor:
    """A tensor that is kept from step to step. initial: its first value. next: its next value, if the model itself
    computes one; for a parameter, the training then starts from this value."""

    name: str
    node: Node
    initial: np.ndarray
    next: Node | None = None


@dataclass(frozen=True)
class Trainable:
    """A model to train.

    inputs, results: those of the graph that are the model's own. has_loss: whether the first result is the loss; the
    model's results follow. flatten: converts a step's arguments to the inputs; None if they are the same. restore:
    makes a model of the original kind from trained values by name. extra_loss: the loss terms that layers add, if any.
    """

    graph: Graph
    inputs: tuple[Node, ...]
    results: tuple[Node, ...]
    parameters: tuple[StateTensor, ...]
    buffers: tuple[StateTensor, ...]
    has_loss: bool
    flatten: Callable[[Sequence[Any], Mapping[str, Any]], Sequence[Any]] | None
    restore: Callable[[Values], Any]
    extra_loss: Node | None = None


@dataclass(frozen=True)
class TrainRequest:
    """The arguments of `ingot.train` that describe the model. loss: a function of the framework; None for a loss by
    name, or if the model's first result is the loss. inputs, targets: examples. trainable: patterns of names."""

    loss: Callable[..., Any] | None
    own_loss: bool
    inputs: Any
    targets: tuple[Any, ...]
    dynamic: Any
    trainable: tuple[str, ...] | None


def read(model: Any, request: TrainRequest) -> Trainable:
    """Open a model to train. Raises InputError for an unsupported kind of model, or for arguments that do not fit."""
    kind, source = recognize(model)
    if kind == "onnx":
        return _from_onnx(source, request)
    if kind == "keras":
        return _from_keras(source, request)
    expected = "an nn.Module, an ONNX file or ModelProto, a keras.Model, or a JAX function"
    if isinstance(source, type):
        fix = f"{source.__name__}(...), an instance"
        raise InputError("a model to train", expected=expected, got=f"the class {source.__name__}", fix=fix)
    if kind == "jax":
        return _from_jax(source, request)
    if kind == "torch" and hasattr(source, "named_parameters"):
        return _from_torch(source, request)
    constants = kind in ("stablehlo", "tensorflow", "tflite")
    fix = "ingot.value_and_grad(model), for gradients with respect to its inputs" if constants else None
    raise InputError("a model to train", expected=expected, got=type(model).__name__, fix=fix)


def _checked(trainable: Trainable, fix: str | None = None) -> Trainable:
    if not trainable.parameters:
        raise InputError("a model to train", expected="a float parameter that it reads", got="none", fix=fix)
    return trainable


def _from_onnx(source: Any, request: TrainRequest) -> Trainable:
    from ingot.frontends.onnx.trainable import import_trainable

    if request.loss is not None:
        raise InputError("loss of an ONNX model", expected="a loss by name, or None", got="a function")
    if request.inputs is not None:
        raise InputError(
            "example_inputs", expected="none for an ONNX model: its file declares its inputs", got="a value"
        )
    imported = import_trainable(source, request.dynamic, request.trainable)
    graph, count = imported.graph, len(imported.buffers)
    names = [*imported.parameters, *imported.buffers]
    own_count = len(graph.inputs) - len(names)
    nodes = dict(zip(names, graph.inputs[own_count:], strict=True))
    parameters = tuple(StateTensor(n, nodes[n], a) for n, a in imported.parameters.items())
    new_buffers = graph.results[:count]
    buffers = tuple(
        StateTensor(n, nodes[n], a, y) for (n, a), y in zip(imported.buffers.items(), new_buffers, strict=True)
    )
    results = graph.results[count:]
    own_inputs = graph.inputs[:own_count]
    trainable = Trainable(graph, own_inputs, results, parameters, buffers, request.own_loss, None, imported.restore)
    return _checked(trainable, "name initializers (trainable=); integers, as quantized weights are, are not trained")


def _from_torch(net: Any, request: TrainRequest) -> Trainable:
    import torch

    from ingot.frontends.torch import export_module, import_exported, to_torch
    from ingot.frontends.torch.trainable import PREFIX, with_loss

    names = dict(net.named_parameters(remove_duplicate=False))
    is_float_by_name = {
        n: p.is_floating_point() for n, p in names.items() if p.requires_grad or request.trainable is not None
    }
    patterns = request.trainable
    chosen = (
        [n for n, is_float in is_float_by_name.items() if is_float]
        if patterns is None
        else select_trainable(patterns, is_float_by_name)
    )
    module, inputs, dynamic = with_loss(net, request.loss, request.inputs, request.targets, request.dynamic)
    imported = import_exported(export_module(module, inputs, dynamic, gradients=True), {PREFIX + n for n in chosen})
    if imported.writes:
        raise InputError("a model to train", expected="one that leaves its inputs as they are", got="writes to inputs")
    graph, state, parameter_values = imported.graph, imported.state, imported.parameters
    own_count = len(graph.inputs) - len(state) - len(parameter_values)
    state_inputs, count = graph.inputs[own_count:], len(state) + len(imported.renewed)
    new_values = dict(zip(imported.renewed, graph.results[len(state) : count], strict=True))
    if len(set(new_values.values())) < len(new_values):
        got = ", ".join(n.removeprefix(PREFIX) for n in new_values)
        fix = "write them between steps"
        raise InputError("parameters that forward writes", expected="distinct values", got=got, fix=fix)
    pairs = zip(state.items(), state_inputs[len(parameter_values) :], graph.results[: len(state)], strict=True)
    buffers = tuple(StateTensor(n.removeprefix(PREFIX), x, a, y) for (n, a), x, y in pairs)
    parameter_pairs = zip(parameter_values.items(), state_inputs[: len(parameter_values)], strict=True)
    parameters = tuple(StateTensor(n.removeprefix(PREFIX), x, a, new_values.get(n)) for (n, a), x in parameter_pairs)

    def restore(values: Values) -> Any:
        with torch.no_grad():
            # named_buffers includes buffers that are not in the state_dict
            tensors = dict(net.named_buffers(remove_duplicate=False)) | net.state_dict(keep_vars=True)
            for name, value in values.items():
                tensors[name].copy_(to_torch(np.array(value)))
        return net

    results = graph.results[count:]
    flatten = imported.inputs.flatten
    has_loss = request.loss is not None or request.own_loss
    trainable = Trainable(graph, graph.inputs[:own_count], results, parameters, buffers, has_loss, flatten, restore)
    return _checked(trainable, "net.requires_grad_(), or trainable=: a pattern of names")


def _from_keras(model: Any, request: TrainRequest) -> Trainable:
    from ingot.frontends.keras import in_jax

    if not in_jax(model):
        fix = "keras.models.load_model(path), in a process with KERAS_BACKEND=jax"
        got = f"the file {model}" if isinstance(model, os.PathLike) else "one of another backend"
        raise InputError("a model to train", expected="a keras.Model that computes by JAX", got=got, fix=fix)
    from ingot.frontends.keras.trainable import import_trainable

    examples = (
        request.inputs if request.inputs is None or isinstance(request.inputs, tuple | list) else (request.inputs,)
    )
    imported = import_trainable(model, request.loss, examples, request.targets, request.dynamic, request.trainable)
    parameters = tuple(StateTensor(n, x, initial) for n, (initial, x) in imported.parameters.items())
    new_buffers, (added, *results) = (
        imported.graph.results[: len(imported.buffers)],
        imported.graph.results[len(imported.buffers) :],
    )
    pairs = zip(imported.buffers.items(), new_buffers, strict=True)
    buffers = tuple(StateTensor(n, x, initial, y) for (n, (initial, x)), y in pairs)
    state_nodes = {k.node for k in (*parameters, *buffers)}
    inputs = tuple(x for x in imported.graph.inputs if x not in state_nodes)
    has_loss = request.loss is not None or request.own_loss
    term = None if splat_of(added) == 0 else added
    trainable = Trainable(
        imported.graph, inputs, tuple(results), parameters, buffers, has_loss, None, imported.restore, term
    )
    return _checked(trainable, "model.trainable = True")


def _from_jax(fn: Callable[..., Any], request: TrainRequest) -> Trainable:
    from ingot.frontends.jax.trainable import import_trainable

    loss, inputs = request.loss, request.inputs
    if not isinstance(inputs, tuple | list) or not inputs:
        got = type(inputs).__name__
        raise InputError("example_inputs", expected="(parameters, x, ...): the function's arguments", got=got)
    imported = import_trainable(fn, loss, tuple(inputs), request.targets, request.dynamic, request.trainable)
    parameters = tuple(StateTensor(name, x, initial) for name, (initial, x) in imported.parameters.items())
    parameter_nodes = {k.node for k in parameters}
    own_inputs = tuple(x for x in imported.graph.inputs if x not in parameter_nodes)
    has_loss = loss is not None or request.own_loss
    results = imported.graph.results
    trainable = Trainable(
        imported.graph, own_inputs, results, parameters, (), has_loss, imported.flatten, imported.restore
    )
    return _checked(trainable)
