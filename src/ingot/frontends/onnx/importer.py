"""From an ONNX model to a graph: reading the file, the caller's requests about inputs, and one walk over the nodes
(`walk`)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from google.protobuf.message import DecodeError

from ingot.frontends.onnx.call import AnyValue, Equation, OpenSequence, Sequence_, Value
from ingot.frontends.onnx.functions import opsets
from ingot.frontends.onnx.inputs import Dynamic, Requests, bind_inputs, check_dynamic, check_names, open_axes_of
from ingot.frontends.onnx.protos import FunctionProto, GraphProto, ModelProto, OperatorSetIdProto, ValueInfoProto
from ingot.frontends.onnx.tensors import ExternalData, type_text
from ingot.frontends.onnx.walk import Scope, Walk
from ingot.frontends.onnx.wire import cut_weights
from ingot.ir.dims import bounds
from ingot.ir.node import Graph, Node, topological
from ingot.ir.verify import check_sizes
from ingot.ops.core.base import violable_constraints
from ingot.support.errors import ImportModelError, NeedsValues, UnsupportedOpError
from ingot.support.files import map_file
from ingot.support.limits import limited


@limited()
def import_onnx(
    source: str | os.PathLike[str] | ModelProto,
    *,
    dynamic: Dynamic = None,
    shapes: Mapping[str, Sequence[int | str]] | None = None,
    weights: Mapping[str, np.ndarray] | None = None,
    example: Mapping[str, Sequence[int]] | None = None,
    outputs: Sequence[str] | None = None,
) -> Graph:
    """An ONNX model as a MODEL-level graph.

    source: path of an ONNX file, or a ModelProto. Every opset that the installed onnx package knows.
    dynamic: None keeps the model's dynamic dimensions; False refuses them; a mapping gives symbols a size
        (`{"batch": 1}`) or inclusive bounds (`{"length": (1, 512)}`), or axes of an input (`{"x": {2: 48}}`).
    shapes: input name -> its shape, in place of the model's: an int fixes a dimension, a string names a symbol or gives
        an expression over symbols ("2*s0").
    weights: input name -> the value that it always has; it is then no input of the graph.

    example: input name -> its shape in a call. Where a test of sizes decides a rank (`If(n == 1) Squeeze`), there is
        the branch of these sizes, and the graph is one for sizes with the same outcome.

    outputs: names of values, made by nodes of the main graph, that are outputs beside the model's.

    An input of integers that sizes depend on (a Reshape's shape) has symbols as its elements; the sizes stay dynamic.

    An output that is a sequence (of known length) becomes one output per member: "name.0", "name.1", ...

    Weights are read-only views of the mapped file where they lie in it as stored (they need not be aligned): keep the
    file unchanged while the graph is in use.

    Raises ImportModelError for a file that is missing, truncated, malformed or unsafe; UnsupportedOpError naming every
    node that Ingot has no op for, NeedsValues where such nodes need inputs among `weights`;
    ShapeError where the model's shapes do not fit; InputError for `shapes`, `dynamic` or
    `weights` that do not fit the model's inputs.
    """
    model, external, cuts, where = read_model(source)
    if not model.HasField("graph"):
        raise ImportModelError("the model has no graph", where=where, fix="check that the file is ONNX")
    model = _with_outputs(model, outputs or ())
    versions = opsets(model.opset_import, where)
    if not model.opset_import:
        raise ImportModelError("the model names no opset", where=where, fix="export it again")
    check_dynamic(dynamic)
    requests = Requests(dynamic, shapes or {}, weights or {}, example)

    def walked(requests: Requests, assumes: bool) -> tuple[Walk, list[Node], Sequence[AnyValue]]:
        while True:
            walk, scope = Walk(external, model.functions, where, assumes), Scope(versions, None, {}, "")
            inputs = bind_inputs(walk, scope, model.graph, cuts, requests)
            try:
                values = walk.graph(model.graph, scope)
            except Equation as e:
                requests = requests.with_equation(e.symbol, e.size)
                continue
            if not walk.refused or walk.wishes.elements <= requests.size_inputs:
                return walk, inputs, values
            requests = requests.with_size_inputs(walk.wishes.elements)

    walk, inputs, values = walked(requests, assumes=True)
    if walk.has_assumed and not _fits_some_size(walk, values):  # what was assumed excludes what other nodes require
        other = walked(requests, assumes=False)
        if _fits_some_size(other[0], other[2]):
            walk, inputs, values = other
    _check_supported(walk, model.graph.output, where)
    results, names = _results(model.graph.output, values)
    check_names("outputs", names, where)
    limits = tuple((name, low, high) for name, (low, high) in sorted(walk.limits.items()))
    graph = walk.computed_sizes.added(
        Graph(tuple(inputs), tuple(results), tuple(names), limits, tuple(walk.conditions))
    )
    check_sizes(graph, where)
    return graph


def _fits_some_size(walk: Walk, outputs: Iterable[AnyValue]) -> bool:
    """Whether nothing is refused and no requirement is known to fail for all sizes within the bounds of symbols."""
    if walk.refused:
        return False
    members = [m for v in outputs for m in (v.items if isinstance(v, Sequence_) else (v,))]
    nodes = topological(tuple(m.node for m in members if isinstance(m, Value)))
    margins = (*walk.conditions, *(margin for n in nodes for margin in violable_constraints(n)))
    largest = (bounds(margin, walk.limits)[1] for margin in margins)
    return all(high is None or high >= 0 for high in largest)


def open_axes(source: str | os.PathLike[str] | ModelProto) -> dict[str, list[int]]:
    """By input, the axes whose sizes are single symbols of the model."""
    graph = read_model(source)[0].graph
    return {info.name: open_axes_of(info) for info in graph.input}


def _with_outputs(model: ModelProto, names: Sequence[str]) -> ModelProto:
    declared = {o.name for o in model.graph.output}
    computed = {name for node in model.graph.node for name in node.output if name} - declared
    added = [ValueInfoProto(name=name) for name in dict.fromkeys(names) if name in computed]
    if not added:
        return model
    changed = ModelProto()
    changed.CopyFrom(model)
    changed.graph.output.extend(added)
    return changed


def inner_values(source: str | os.PathLike[str] | ModelProto) -> list[str]:
    """The names of the tensors that nodes of the main graph compute, in order, without sequences, optionals and values
    that are known not to be tensors."""
    import onnx

    model = read_model(source)[0]
    infos = onnx.shape_inference.infer_shapes(model).graph
    other = {
        v.name for v in (*infos.value_info, *infos.output) if v.type.WhichOneof("value") not in ("tensor_type", None)
    }
    return [name for node in model.graph.node for name in node.output if name and name not in other]


def _check_supported(walk: Walk, outputs: Iterable[ValueInfoProto], where: str) -> None:
    wishes = walk.wishes
    if walk.refused and (wishes.values or wishes.sizes):
        types = {o.name: type_text(o.type) for o in outputs}
        raise NeedsValues(walk.refused, sorted(wishes.values), wishes.inputs, types, sizes=wishes.sizes, model=where)
    if walk.refused:
        raise UnsupportedOpError(walk.refused, model=where)


def _results(infos: Iterable[ValueInfoProto], outputs: Iterable[AnyValue]) -> tuple[list[Node], list[str]]:
    """The graph's results and their names; a sequence has one for each member. Raises ImportModelError for one whose
    length only the run knows."""
    results: list[Node] = []
    names: list[str] = []
    for info, v in zip(infos, outputs, strict=True):
        if isinstance(v, Value):
            results.append(v.node)
            names.append(info.name)
        elif isinstance(v, Sequence_):
            results += [item.node for item in v.items]
            names += [f"{info.name}.{i}" for i in range(len(v.items))]
        elif isinstance(v, OpenSequence):
            raise ImportModelError(
                f"the output {info.name!r}",
                expected="a tensor, or a sequence of known length",
                got="a sequence whose length only the run knows",
                fix="return its members as a tensor: ConcatFromSequence",
            )
    return results, names


def read_model(
    source: str | os.PathLike[str] | ModelProto,
) -> tuple[ModelProto, ExternalData, dict[int, np.ndarray], str]:
    if isinstance(source, ModelProto):
        return source, ExternalData(None), {}, source.graph.name or "the model"
    path = Path(source)
    try:
        data = map_file(path)
    except OSError as e:
        raise ImportModelError(f"cannot read the model: {e.strerror}", where=str(path)) from e
    if not data.size:
        raise ImportModelError("the model file is empty", where=str(path), fix="export it again")
    message, ranges = cut_weights(data.data, str(path))
    model = parse_model(message, str(path))
    cuts = {i: data[start:end] for i, (start, end) in ranges.items()}
    return model, ExternalData(path), cuts, str(path)


def parse_model(message: bytes, where: str) -> ModelProto:
    """The model in the bytes of a file. Raises ImportModelError."""
    try:
        model = ModelProto.FromString(message)
    except DecodeError as e:
        raise ImportModelError(
            "not a readable ONNX file", expected="a protobuf ModelProto", got=str(e), where=where
        ) from e
    _check_texts((model.graph, *model.functions), model.opset_import, where)
    return model


def _check_texts(
    bodies: Iterable[GraphProto | FunctionProto], imports: Iterable[OperatorSetIdProto], where: str
) -> None:
    """Raise ImportModelError where a name is not UTF-8: protobuf hands such a string over as bytes."""
    texts: list[str] = [o.domain for o in imports]
    stack = list(bodies)
    while stack:
        body = stack.pop()
        texts.append(body.name)
        if isinstance(body, GraphProto):
            values = (*body.input, *body.output, *body.value_info)
            texts += [v.name for v in values] + [i.name for i in body.initializer]
            texts += [d.dim_param for v in values for d in v.type.tensor_type.shape.dim]
        else:
            texts += [body.domain, *body.input, *body.output, *body.attribute, *(o.domain for o in body.opset_import)]
        for n in body.node:
            texts += [n.name, n.op_type, n.domain, *n.input, *n.output]
            for a in n.attribute:
                texts += [a.name, a.ref_attr_name]
                stack += [*a.graphs, a.g] if a.HasField("g") else a.graphs
    broken = next((t for t in texts if not isinstance(t, str)), None)
    if broken is not None:
        raise ImportModelError("not a readable ONNX file", expected="names in UTF-8", got=repr(broken), where=where)
