"""`weights=`, for all frontends: arguments that always have these values, and are left out of calls."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ingot.ir.node import Const, Graph, Input, Node, const, rebuild, size_elements
from ingot.support import safetensors
from ingot.support.errors import InputError

Weights = Mapping[int, object] | Mapping[str, object] | str | os.PathLike[str]


def arrays_of(weights: Weights | None, labels: Sequence[str]) -> dict[str, np.ndarray]:
    """The arrays by argument. weights: a mapping from indices or names of `labels`, or the path of a safetensors file,
    whose arrays of other names are ignored. Raises InputError for a key that is no argument."""
    if isinstance(weights, str | os.PathLike):
        return {k: v for k, v in safetensors.read(weights).items() if k in labels}
    arrays: dict[str, np.ndarray] = {}
    for key, value in (weights or {}).items():
        if isinstance(key, int) and -len(labels) <= key < len(labels):
            arrays[labels[key]] = np.asarray(value)
        elif key in labels:
            arrays[str(key)] = np.asarray(value)
        else:
            raise InputError("weights", expected=f"indices or names of {list(labels)}", got=repr(key))
    return arrays


def bind_weights(graph: Graph, weights: Weights | None) -> Graph:
    """`graph` with constants in place of some inputs. Raises InputError for unknown inputs, and for arrays of another
    type or shape."""
    if weights is None:
        return graph
    labels = {n.op.label: n for n in graph.inputs if isinstance(n.op, Input)}
    constants = {labels[name]: const(value, loc=name) for name, value in arrays_of(weights, list(labels)).items()}
    for node, value in constants.items():
        if node.type != value.type:
            raise InputError(f"weights of {value.loc!r}", expected=node.type, got=value.type)
    size_values = {
        str(d): int(v) for n, c in constants.items() for d, v in zip(size_elements(n), _elements(c), strict=False)
    }
    inputs = tuple(n for n in graph.inputs if n not in constants)
    bound_graph = replace(graph, inputs=inputs, outputs=tuple(rebuild(graph.outputs, dict(constants))))
    return bound_graph.substitute(size_values) if size_values else bound_graph


def _elements(node: Node) -> list[int]:
    assert isinstance(node.op, Const)
    return [] if node.dtype.is_float else node.op.value.reshape(-1).tolist()
