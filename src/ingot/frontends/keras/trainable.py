"""A Keras model of the JAX backend, to be trained: its variables become inputs, and those that a call in training sets,
such as moving averages and seeds, have a next value."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from ingot.frontends.jax.gradients import gradient_marks
from ingot.frontends.keras.model import graph_of
from ingot.frontends.keras.program import (
    arguments_of,
    exported_program,
    in_training,
    inputs_of,
    sizes_of,
    variable_labels,
    variable_specs,
)
from ingot.frontends.shared.targets import check_loss, target_names
from ingot.frontends.stablehlo.model import text_of
from ingot.ir.node import Graph, Input, Node
from ingot.ir.types import TensorType, dtype_of
from ingot.support.dataclass import dataclass
from ingot.support.errors import select_trainable


@dataclass(frozen=True)
class TrainableModel:
    """parameters, buffers: by the path of each variable, its value and the graph's input. The graph's results are the
    buffers' next values, the sum of what layers add to the loss, and the model's own. restore: sets the variables."""

    graph: Graph
    parameters: Mapping[str, tuple[np.ndarray, Node]]
    buffers: Mapping[str, tuple[np.ndarray, Node]]
    restore: Callable[[Mapping[str, np.ndarray]], Any]


def import_trainable(
    model: Any, loss: Callable[..., Any] | None, examples: Sequence[Any] | None, targets: Sequence[Any], dynamic: Any,
    patterns: tuple[str, ...] | None,
) -> TrainableModel:  # fmt: skip
    """loss: (result, *targets) -> a number, computed by JAX; the first of the model's own results then.

    Raises InputError for patterns that fit nothing or integers, and what `import_keras` raises.
    """
    read = [np.asarray(t) for t in targets] if loss is not None else []
    inputs = inputs_of(model, examples)
    count = len(inputs)
    names = target_names(len(read))
    kinds = [jax.dtypes.canonicalize_dtype(t.dtype) for t in read]
    inputs += [(n, (None, *t.shape[1:]) if t.ndim else (), k) for n, t, k in zip(names, read, kinds, strict=True)]
    trainable, others = list(model.trainable_variables), list(model.non_trainable_variables)
    updated: set[int] = set()

    def called(first: list[Any], rest: list[Any], inputs: list[Any]) -> tuple[list[Any], Any, list[Any]]:
        model_inputs = inputs[0] if count == 1 else inputs[:count]
        model_outputs, next_values, losses = model.stateless_call(
            first, rest, model_inputs, return_losses=True, **in_training(model, True)
        )
        updated.update(i for i, (a, b) in enumerate(zip(rest, next_values, strict=True)) if a is not b)
        results = jax.tree_util.tree_leaves(model_outputs)
        if loss is not None:
            value = loss(model_outputs, *inputs[count:])
            check_loss(value, jax.Array, "array")
            results = [value, *results]
        return [next_values[i] for i in sorted(updated)], sum(losses, jax.numpy.zeros(())), results

    def run(first: list[Any], rest: list[Any], inputs: list[Any]) -> list[Any]:
        return jax.tree_util.tree_leaves(called(first, rest, inputs))

    sizes, bounds = sizes_of(inputs, dynamic)
    specs = [jax.ShapeDtypeStruct(s, t) for s, (_, _, t) in zip(sizes, inputs, strict=True)]
    with gradient_marks():
        exported = exported_program(run, variable_specs(trainable, others), specs)
    variables = (*trainable, *others)
    labels, paths = variable_labels(variables), _paths(variables)
    floats = {p: jax.numpy.issubdtype(v.dtype, jax.numpy.floating) for p, v in zip(paths, trainable, strict=False)}
    floating = [p for p, is_float in floats.items() if is_float]
    trained = {*(floating if patterns is None else select_trainable(patterns, floats))}
    learned = [i for i, p in enumerate(paths[: len(trainable)]) if p in trained]
    set_ = [len(trainable) + i for i in sorted(updated)]
    values = [np.asarray(v.value) for v in variables]
    arguments, shapes = arguments_of(exported, [*labels, *(name for name, _, _ in inputs)])
    constants = {labels[i]: values[i] for i in range(len(variables)) if i not in {*learned, *set_}}
    constants = {n: a for n, a in constants.items() if n in arguments}
    outputs = [f"result {i}" for i in range(len(exported.out_avals))]
    text = text_of(exported.mlir_module_serialized)
    graph = graph_of(text, arguments, shapes, outputs, bounds, constants, model.name)
    nodes = {x.op.label: x for x in graph.inputs}  # type: ignore[attr-defined]
    learned = [i for i in learned if labels[i] in nodes]
    # what is set and never read is no input of the program
    unread = {labels[i]: TensorType(dtype_of(values[i]), values[i].shape) for i in set_ if labels[i] not in nodes}
    nodes |= {n: Input(n, t)() for n, t in unread.items()}

    def of(places: Sequence[int]) -> dict[str, tuple[np.ndarray, Node]]:
        return {paths[i]: (values[i], nodes[labels[i]]) for i in places}

    def restore(values_by_path: Mapping[str, np.ndarray]) -> Any:
        for path, v in zip(paths, variables, strict=True):
            if path in values_by_path:
                v.assign(values_by_path[path])
        return model

    return TrainableModel(graph, of(learned), of(set_), restore)


def _paths(variables: Sequence[Any]) -> list[str]:
    """The paths of the variables; a number is appended to repeated ones."""
    paths = [v.path for v in variables]
    return [p if p not in paths[:i] else f"{p}.{paths[:i].count(p)}" for i, p in enumerate(paths)]
