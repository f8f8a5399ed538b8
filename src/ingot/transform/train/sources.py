"""Models of the frontends as graphs to train: what is learned and what is kept as inputs of their own.

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
from ingot.support.errors import InputError, to_train

Values = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Kept:
    """A tensor that lasts from step to step. after: its next value, where the model itself gives one; a parameter's is
    what is learned then."""

    name: str
    node: Node
    first: np.ndarray
    after: Node | None = None


@dataclass(frozen=True)
class Trainable:
    """inputs, results: the graph's that are the model's own. has_loss: the first result is the loss, and those behind
    it are the model's. flatten: a step's arguments to the inputs; None where these are its arguments. restore: trained
    values by name to a model of the kind that this one came from. added: what layers add to the loss, if any do.
    """

    graph: Graph
    inputs: tuple[Node, ...]
    results: tuple[Node, ...]
    parameters: tuple[Kept, ...]
    buffers: tuple[Kept, ...]
    has_loss: bool
    flatten: Callable[[Sequence[Any], Mapping[str, Any]], Sequence[Any]] | None
    restore: Callable[[Values], Any]
    added: Node | None = None


@dataclass(frozen=True)
class Asked:
    """What `ingot.train` was told of the model. loss: a function of the framework; None for one by name, or where the
    model's own first result is the loss. inputs, targets: examples. trainable: patterns of names."""

    loss: Callable[..., Any] | None
    own_loss: bool
    inputs: Any
    targets: tuple[Any, ...]
    dynamic: Any
    trainable: tuple[str, ...] | None


def read(model: Any, asked: Asked) -> Trainable:
    """Raises InputError for a model that is none of the kinds, or for arguments that do not fit its kind."""
    kind, source = recognize(model)
    if kind == "onnx":
        return _of_onnx(source, asked)
    if kind == "keras":
        return _of_keras(source, asked)
    expected = "an nn.Module, an ONNX file or ModelProto, a keras.Model, or a JAX function"
    if isinstance(source, type):
        fix = f"{source.__name__}(...), an instance"
        raise InputError("a model to train", expected=expected, got=f"the class {source.__name__}", fix=fix)
    if kind == "jax":
        return _of_jax(source, asked)
    if kind == "torch" and hasattr(source, "named_parameters"):
        return _of_torch(source, asked)
    constants = kind in ("stablehlo", "tensorflow", "tflite")
    fix = "ingot.value_and_grad(model), for gradients by its inputs" if constants else None
    raise InputError("a model to train", expected=expected, got=type(model).__name__, fix=fix)


def _checked(found: Trainable, fix: str | None = None) -> Trainable:
    if not found.parameters:
        raise InputError("a model to train", expected="some parameter of floats that it reads", got="none", fix=fix)
    return found


def _of_onnx(source: Any, asked: Asked) -> Trainable:
    from ingot.frontends.onnx.trainable import import_trainable

    if asked.loss is not None:
        raise InputError("loss of an ONNX model", expected="a loss by name, or None", got="a function")
    if asked.inputs is not None:
        raise InputError("example_inputs", expected="none for an ONNX model: its file declares its inputs", got="some")
    found = import_trainable(source, asked.dynamic, asked.trainable)
    graph, count = found.graph, len(found.buffers)
    names = [*found.parameters, *found.buffers]
    own = len(graph.inputs) - len(names)
    nodes = dict(zip(names, graph.inputs[own:], strict=True))
    parameters = tuple(Kept(n, nodes[n], a) for n, a in found.parameters.items())
    after = graph.results[:count]
    buffers = tuple(Kept(n, nodes[n], a, y) for (n, a), y in zip(found.buffers.items(), after, strict=True))
    results = graph.results[count:]
    own_inputs = graph.inputs[:own]
    whole = Trainable(graph, own_inputs, results, parameters, buffers, asked.own_loss, None, found.restore)
    return _checked(whole, "name initializers (trainable=); integers, as quantized weights are, are not trained")


def _of_torch(net: Any, asked: Asked) -> Trainable:
    import torch

    from ingot.frontends.torch import export_module, import_exported, to_torch
    from ingot.frontends.torch.trainable import PREFIX, with_loss

    names = dict(net.named_parameters(remove_duplicate=False))
    learned = {n: p.is_floating_point() for n, p in names.items() if p.requires_grad or asked.trainable is not None}
    patterns = asked.trainable
    chosen = [n for n, is_float in learned.items() if is_float] if patterns is None else to_train(patterns, learned)
    whole, inputs, dynamic = with_loss(net, asked.loss, asked.inputs, asked.targets, asked.dynamic)
    imported = import_exported(export_module(whole, inputs, dynamic, gradients=True), {PREFIX + n for n in chosen})
    if imported.writes:
        raise InputError("a model to train", expected="one that leaves its inputs as they are", got="writes to inputs")
    graph, state, last = imported.graph, imported.state, imported.parameters
    own = len(graph.inputs) - len(state) - len(last)
    carriers, count = graph.inputs[own:], len(state) + len(imported.renewed)
    moved = dict(zip(imported.renewed, graph.results[len(state) : count], strict=True))
    if len(set(moved.values())) < len(moved):
        got = ", ".join(n.removeprefix(PREFIX) for n in moved)
        fix = "write them between steps"
        raise InputError("parameters that forward writes", expected="each with a value of its own", got=got, fix=fix)
    pairs = zip(state.items(), carriers[len(last) :], graph.results[: len(state)], strict=True)
    buffers = tuple(Kept(n.removeprefix(PREFIX), x, a, y) for (n, a), x, y in pairs)
    held = zip(last.items(), carriers[: len(last)], strict=True)
    parameters = tuple(Kept(n.removeprefix(PREFIX), x, a, moved.get(n)) for (n, a), x in held)

    def restore(values: Values) -> Any:
        with torch.no_grad():
            # buffers that no state_dict has, too
            tensors = dict(net.named_buffers(remove_duplicate=False)) | net.state_dict(keep_vars=True)
            for name, value in values.items():
                tensors[name].copy_(to_torch(np.array(value)))
        return net

    results = graph.results[count:]
    flatten = imported.inputs.flatten
    has_loss = asked.loss is not None or asked.own_loss
    found = Trainable(graph, graph.inputs[:own], results, parameters, buffers, has_loss, flatten, restore)
    return _checked(found, "net.requires_grad_(), or trainable=: a pattern of names")


def _of_keras(model: Any, asked: Asked) -> Trainable:
    from ingot.frontends.keras import in_jax

    if not in_jax(model):
        fix = "keras.models.load_model(path), in a process with KERAS_BACKEND=jax"
        got = f"the file {model}" if isinstance(model, os.PathLike) else "one of another backend"
        raise InputError("a model to train", expected="a keras.Model that computes by JAX", got=got, fix=fix)
    from ingot.frontends.keras.trainable import import_trainable

    examples = asked.inputs if asked.inputs is None or isinstance(asked.inputs, tuple | list) else (asked.inputs,)
    found = import_trainable(model, asked.loss, examples, asked.targets, asked.dynamic, asked.trainable)
    parameters = tuple(Kept(n, x, first) for n, (first, x) in found.parameters.items())
    after, (added, *results) = found.graph.results[: len(found.buffers)], found.graph.results[len(found.buffers) :]
    pairs = zip(found.buffers.items(), after, strict=True)
    buffers = tuple(Kept(n, x, first, y) for (n, (first, x)), y in pairs)
    held = {k.node for k in (*parameters, *buffers)}
    own = tuple(x for x in found.graph.inputs if x not in held)
    has_loss = asked.loss is not None or asked.own_loss
    term = None if splat_of(added) == 0 else added
    whole = Trainable(found.graph, own, tuple(results), parameters, buffers, has_loss, None, found.restore, term)
    return _checked(whole, "model.trainable = True")


def _of_jax(fn: Callable[..., Any], asked: Asked) -> Trainable:
    from ingot.frontends.jax.trainable import import_trainable

    loss, inputs = asked.loss, asked.inputs
    if not isinstance(inputs, tuple | list) or not inputs:
        got = type(inputs).__name__
        raise InputError("example_inputs", expected="(parameters, x, ...): the function's arguments", got=got)
    found = import_trainable(fn, loss, tuple(inputs), asked.targets, asked.dynamic, asked.trainable)
    parameters = tuple(Kept(name, x, first) for name, (first, x) in found.parameters.items())
    held = {k.node for k in parameters}
    own = tuple(x for x in found.graph.inputs if x not in held)
    has_loss = loss is not None or asked.own_loss
    results = found.graph.results
    whole = Trainable(found.graph, own, results, parameters, (), has_loss, found.flatten, found.restore)
    return _checked(whole)
