"""A TFLite model as a graph: what is asked for about its inputs, which of its signatures, and its state."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import field, replace

import numpy as np

from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.shared.sizes import SizeInput, solved
from ingot.frontends.tflite import file, schema
from ingot.frontends.tflite.call import Missing
from ingot.frontends.tflite.importer import Importer
from ingot.frontends.tflite.rows import ROWS
from ingot.ir.dims import Dim, DimLike, substitute, symbol, symbols_of
from ingot.ir.node import Graph, Input, Node
from ingot.ir.types import TensorType
from ingot.support.dataclass import dataclass
from ingot.support.errors import ImportModelError, InputError, ShapeError, UnsupportedOp, UnsupportedOpError

Bound = int | tuple[int, int | None]
Dynamic = Mapping[str, Bound | Mapping[int, str | int]]


@dataclass(frozen=True)
class ImportedModel:
    """A model as a graph. state: names and first values of its variables, which the graph reads as inputs behind the
    user's, and whose new values are its outputs before the user's."""

    graph: Graph
    state: Mapping[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])


def import_tflite(
    source: str | os.PathLike[str] | bytes | file.Model, *, signature: str | None = None,
    dynamic: Dynamic | bool | None = None,
) -> ImportedModel:  # fmt: skip
    """A TFLite file, or its bytes, as a MODEL-level graph.

    signature: the one to compile, by its name; by default the first, or the first subgraph where there is none.
    dynamic: of sizes that the model leaves open, symbols `<input>_<axis>`: None keeps them, False refuses them; a
        mapping gives symbols a size or inclusive bounds, inputs names or sizes for axes, also for those that the model
        does not leave open: {"x": {0: "batch"}}.

    Raises ImportModelError for a file that cannot be read, UnsupportedOpError naming every op that there is no row for,
    InputError for a signature or sizes that the model does not have.
    """
    model = source if isinstance(source, file.Model) else file.read(source)
    entry = _entry(model, signature)
    labels = _labels(model.subgraphs[entry.subgraph], entry)
    axes = {k: v for k, v in dynamic.items() if isinstance(v, Mapping)} if isinstance(dynamic, Mapping) else {}
    bounds = {k: v for k, v in dynamic.items() if not isinstance(v, Mapping)} if isinstance(dynamic, Mapping) else {}
    if unknown := [k for k in axes if k not in labels]:
        raise InputError("dynamic", expected=f"an input of {labels}", got=unknown)
    imported = _import(model, entry, labels, axes, bounds)
    graph = imported.graph
    if dynamic is False and graph.symbols():
        fix = f"give their sizes: dynamic={{{next(iter(graph.symbols()))!r}: 1, ...}}"
        raise InputError("the model has dynamic dimensions", got=list(graph.symbols()), fix=fix)
    return imported


def _entry(model: file.Model, name: str | None) -> file.Signature:
    if name is None:
        # what an interpreter runs that is asked for no signature
        return next((s for s in model.signatures if s.subgraph == 0), file.Signature("", 0, (), ()))
    found = next((s for s in model.signatures if s.name == name), None)
    if found is None:
        raise InputError("signature", expected=f"one of {[s.name for s in model.signatures]}", got=repr(name))
    return found


def _labels(graph: file.Subgraph, entry: file.Signature) -> list[str]:
    given = {i: name for name, i in entry.inputs}
    names = [given.get(i) or graph.tensors[i].name or f"input_{n}" for n, i in enumerate(graph.inputs)]
    return _distinct(names)


def _distinct(names: Sequence[str]) -> list[str]:
    return [n if names.count(n) == 1 else f"{n}_{i}" for i, n in enumerate(names)]


def _import(
    model: file.Model, entry: file.Signature, labels: Sequence[str], axes: Mapping[str, Mapping[int, str | int]],
    bounds: Mapping[str, Bound],
) -> ImportedModel:  # fmt: skip
    """The import, again with what was found out of sizes as long as there is something new."""
    fixed: dict[str, DimLike] = {k: v for k, v in bounds.items() if isinstance(v, int)}
    telling: frozenset[str] = frozenset()
    graph = model.subgraphs[entry.subgraph]
    shapes = [
        _shape(label, graph.tensors[i], axes.get(label, {})) for label, i in zip(labels, graph.inputs, strict=True)
    ]
    while True:
        importer = Importer(model, ROWS, frozenset(labels))
        inputs: list[Node] = []
        for label, i, shape in zip(labels, graph.inputs, shapes, strict=True):
            sizes = tuple(substitute(d, fixed) for d in shape)
            inputs.append(_input(label, graph.tensors[i], sizes, fixed if label in telling else None))
        try:
            results = importer.run(entry.subgraph, inputs)
            break
        except SizeInput as e:
            telling |= {e.label}
        except Unsupported as e:
            raise UnsupportedOpError([UnsupportedOp(str(e))], model=model.where or None) from e
        except ShapeError as e:
            a, b = e.sizes or (0, 0)
            equal = solved(a, b) if isinstance(a, int | Dim) and isinstance(b, int | Dim) else None
            if equal is None or equal[0] in fixed:
                raise ImportModelError(str(e), where=model.where or None) from e
            name, value = equal
            fixed = {k: substitute(v, {name: value}) for k, v in fixed.items()} | {name: value}
    if importer.refused:
        raise UnsupportedOpError(importer.refused, model=model.where or None)
    given = {i: name for name, i in entry.outputs}
    names = [given.get(i) or graph.tensors[i].name or f"output_{n}" for n, i in enumerate(graph.outputs)]
    outputs = [r for r in results if isinstance(r, Node)]
    if len(outputs) != len(results):
        what = [n for n, r in zip(names, results, strict=True) if not isinstance(r, Node | Missing)]
        raise UnsupportedOpError([UnsupportedOp("a result that is no tensor", ", ".join(what))])
    known = {n for shape in shapes for d in shape for n in symbols_of(d)}
    if unknown := [k for k in bounds if k not in known]:
        raise InputError("dynamic names no symbol", expected=f"one of {sorted(known)}", got=unknown)
    return _result(importer, inputs, outputs, _distinct(names), bounds)


def _result(
    importer: Importer, inputs: Sequence[Node], outputs: Sequence[Node], names: Sequence[str],
    bounds: Mapping[str, Bound],
) -> ImportedModel:  # fmt: skip
    state: dict[str, np.ndarray] = {}
    carriers: list[Node] = []
    new: list[Node] = []
    for variable in importer.variables.values():
        state[variable.label] = variable.first
        carriers.append(variable.carrier)
        new.append(variable.node)
    graph = Graph((*inputs, *carriers), (*new, *outputs), (*(f"{n}.new" for n in state), *names))
    open_ = set(graph.symbols())
    limits = tuple((k, *v) for k, v in sorted(bounds.items()) if isinstance(v, tuple) and k in open_)
    return ImportedModel(replace(graph, bounds=limits), state)


def _shape(label: str, tensor: file.Tensor, axes: Mapping[int, str | int]) -> tuple[DimLike, ...]:
    rank = len(tensor.signature)
    if wrong := [a for a in axes if not -rank <= a < rank]:
        raise InputError(f"dynamic[{label!r}]", expected=f"axes of rank {rank}", got=wrong)
    named = {a % rank: size for a, size in axes.items()}
    out: list[DimLike] = []
    for i, size in enumerate(tensor.signature):
        asked = named.get(i)
        if asked is not None:
            out.append(symbol(asked) if isinstance(asked, str) else asked)
        else:
            out.append(symbol(f"{_word(label)}_{i}") if size < 0 else size)
    return tuple(out)


def _word(label: str) -> str:
    word = re.sub(r"\W", "_", label)
    return word if re.match(r"[A-Za-z_]", word) else f"input_{word}"


def _input(label: str, tensor: file.Tensor, shape: tuple[DimLike, ...], told: Mapping[str, DimLike] | None) -> Node:
    """told: what is known of symbols, for an input whose elements are sizes."""
    dtype = schema.dtype(tensor.type)
    if dtype is None or schema.type_name(tensor.type) == "INT4":
        raise UnsupportedOpError([UnsupportedOp(f"an input of {schema.type_name(tensor.type)}", label)])
    type = TensorType(dtype, shape)
    elements: tuple[DimLike, ...] = ()
    if told is not None and isinstance(type.size, int):
        # a dot in its name: the symbol may be any integer
        elements = tuple(substitute(symbol(f"{_word(label)}.{i}"), told) for i in range(type.size))
    return Input(label, type, elements)(loc=label)
