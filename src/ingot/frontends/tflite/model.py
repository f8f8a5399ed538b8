"""A TFLite model as a graph: the caller's requests about inputs, the signature, and the state."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import field, replace

import numpy as np

from ingot.frontends.shared.computed_sizes import ComputedSizes
from ingot.frontends.shared.dynamic import Dynamic, Requests, requests
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.shared.retries import Known, with_retries
from ingot.frontends.shared.sizes import symbol_of
from ingot.frontends.tflite import file, schema
from ingot.frontends.tflite.call import Missing, Value
from ingot.frontends.tflite.importer import Importer
from ingot.frontends.tflite.rows import ROWS
from ingot.ir.dims import DimLike, symbols_of
from ingot.ir.node import Graph, Node
from ingot.ir.types import TensorType
from ingot.support.dataclass import dataclass
from ingot.support.errors import InputError, UnsupportedOp, UnsupportedOpError


@dataclass(frozen=True)
class ImportedModel:
    """A model as a graph. state: names and initial values of its variables, which are the graph's inputs after the
    user's, and whose new values are its outputs before the user's."""

    graph: Graph
    state: Mapping[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])


def import_tflite(
    source: str | os.PathLike[str] | bytes | file.Model, *, signature: str | None = None,
    dynamic: Dynamic = None,
) -> ImportedModel:  # fmt: skip
    """A TFLite file, or its bytes, as a MODEL-level graph.

    signature: the name of the one to compile; by default the first, or the first subgraph where there is none.
    dynamic: of sizes that the model leaves open, symbols `<input>_<axis>`: None keeps them, False refuses them; a
        mapping gives symbols a size or inclusive bounds, inputs names or sizes for axes, also for those that the model
        does not leave open: {"x": {0: "batch"}}.

    Raises ImportModelError for a file that cannot be read, UnsupportedOpError naming every op that there is no row for,
    InputError for a signature or sizes that the model does not have.
    """
    model = source if isinstance(source, file.Model) else file.read(source)
    entry = _entry(model, signature)
    graph = model.subgraphs[entry.subgraph]
    labels = _labels(graph, entry)
    signatures = (graph.tensors[i].signature for i in graph.inputs)
    declared = {k: [None if d < 0 else d for d in sizes] for k, sizes in zip(labels, signatures, strict=True)}
    return _import(model, entry, labels, requests(dynamic, declared, reopen=True))


def sizes_in_file(
    source: str | os.PathLike[str] | bytes | file.Model, signature: str | None = None, dynamic: Dynamic = None
) -> dict[str, int]:
    """The sizes that a file's tensors have where its signature leaves them open, by symbol, except those that `dynamic`
    mentions; all if it is False. Raises as `import_tflite`."""
    if isinstance(dynamic, bool):
        return {}
    model = source if isinstance(source, file.Model) else file.read(source)
    entry = _entry(model, signature)
    graph = model.subgraphs[entry.subgraph]
    sizes: dict[str, int] = {}
    for label, index in zip(_labels(graph, entry), graph.inputs, strict=True):
        axes = (dynamic or {}).get(label, {})
        tensor = graph.tensors[index]
        for axis, (size, signed) in enumerate(zip(tensor.shape, tensor.signature, strict=True)):
            (name,) = symbols_of(symbol_of(label, axis))
            is_requested = name in (dynamic or {}) or (isinstance(axes, Mapping) and axis in axes)
            if signed < 0 and not is_requested:
                sizes[name] = size
    return sizes


def _entry(model: file.Model, name: str | None) -> file.Signature:
    if name is None:
        # what an interpreter runs without a signature
        return next((s for s in model.signatures if s.subgraph == 0), file.Signature("", 0, (), ()))
    signature = next((s for s in model.signatures if s.name == name), None)
    if signature is None:
        raise InputError("signature", expected=f"one of {[s.name for s in model.signatures]}", got=repr(name))
    return signature


def _labels(graph: file.Subgraph, entry: file.Signature) -> list[str]:
    input_names = {i: name for name, i in entry.inputs}
    names = [input_names.get(i) or graph.tensors[i].name or f"input_{n}" for n, i in enumerate(graph.inputs)]
    return _distinct(names)


def _distinct(names: Sequence[str]) -> list[str]:
    return [n if names.count(n) == 1 else f"{n}_{i}" for i, n in enumerate(names)]


def _import(model: file.Model, entry: file.Signature, labels: Sequence[str], requested: Requests) -> ImportedModel:
    graph = model.subgraphs[entry.subgraph]

    def attempt(known: Known) -> tuple[Importer, list[Node], tuple[Value, ...]]:
        importer = Importer(model, ROWS, frozenset(labels))
        importer.computed_sizes = ComputedSizes(known.computed_sizes)
        tensors = (graph.tensors[i] for i in graph.inputs)
        inputs = [_input(label, t, requested.shapes[label], known) for label, t in zip(labels, tensors, strict=True)]
        try:
            return importer, inputs, importer.run(entry.subgraph, inputs)
        except Unsupported as e:
            raise UnsupportedOpError([UnsupportedOp(str(e))], model=model.where or None) from e

    importer, inputs, results = with_retries(attempt, {}, model.where)
    if importer.refused:
        raise UnsupportedOpError(importer.refused, model=model.where or None)
    output_names = {i: name for name, i in entry.outputs}
    names = [output_names.get(i) or graph.tensors[i].name or f"output_{n}" for n, i in enumerate(graph.outputs)]
    outputs = [r for r in results if isinstance(r, Node)]
    if len(outputs) != len(results):
        what = [n for n, r in zip(names, results, strict=True) if not isinstance(r, Node | Missing)]
        raise UnsupportedOpError([UnsupportedOp("a result that is no tensor", ", ".join(what))])
    return _result(importer, inputs, outputs, _distinct(names), requested)


def _result(
    importer: Importer, inputs: Sequence[Node], outputs: Sequence[Node], names: Sequence[str], requested: Requests
) -> ImportedModel:
    state: dict[str, np.ndarray] = {}
    carriers: list[Node] = []
    new: list[Node] = []
    for variable in importer.variables.values():
        state[variable.label] = variable.first
        carriers.append(variable.carrier)
        new.append(variable.node)
    names = (*(f"{n}.new" for n in state), *names)
    graph = Graph((*inputs, *carriers), (*new, *outputs), names, state=tuple(state))
    return ImportedModel(importer.computed_sizes.added(replace(graph, bounds=requested.limits(graph))), state)


def _input(label: str, tensor: file.Tensor, shape: tuple[DimLike, ...], known: Known) -> Node:
    dtype = schema.dtype(tensor.type)
    if dtype is None or schema.type_name(tensor.type) == "INT4":
        raise UnsupportedOpError([UnsupportedOp(f"an input of {schema.type_name(tensor.type)}", label)])
    return known.input(label, TensorType(dtype, shape))
