"""From an ONNX model to a graph: the file, what is asked for about its inputs, and one walk over its nodes (`walk`)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import DecodeError

from ingot.frontends.onnx.call import Missing, Multiple, Sequence_, Value
from ingot.frontends.onnx.tensors import ExternalData, Unsupported, dtype_from_code, map_file
from ingot.frontends.onnx.walk import Scope, Walk, opsets
from ingot.frontends.onnx.wire import cut_weights
from ingot.ir.dims import Dim, DimLike, parse_dim, substitute, symbol, symbols_of
from ingot.ir.node import Graph, Input, Node
from ingot.ir.types import TensorType, dtype_of
from ingot.support.errors import ImportModelError, InputError, UnsupportedOp, UnsupportedOpError
from ingot.support.limits import check_elements

Bound = int | tuple[int, int | None]



def import_onnx(
    source: str | os.PathLike[str] | onnx.ModelProto,
    *,
    dynamic: Mapping[str, Bound] | bool | None = None,
    shapes: Mapping[str, Sequence[int | str]] | None = None,
    constants: Mapping[str, np.ndarray] | None = None,
) -> Graph:
    """An ONNX model as a MODEL-level graph.

    source: path of an ONNX file, or a ModelProto. Every opset that the installed onnx package knows.
    dynamic: None keeps the model's dynamic dimensions; False refuses them; a mapping gives symbols a size
        (`{"batch": 1}`) or inclusive bounds (`{"length": (1, 512)}`).
    shapes: input name -> its shape, in place of the model's: an int fixes a dimension, a string names a symbol or gives
        an expression over symbols ("2*s0").
    constants: input name -> the value that it always has; it is then no input of the graph.

    An output that is a sequence (of known length) becomes one output per member: "name.0", "name.1", ...

    Weights are read-only views of the mapped file where they lie in it as stored (they need not be aligned): keep the
    file unchanged while the graph is in use.

    Raises ImportModelError for a file that is missing, truncated, malformed or unsafe; UnsupportedOpError naming every
    node that Ingot has no op for; ShapeError where the model's shapes do not fit; InputError for `shapes`, `dynamic` or
    `constants` that do not fit the model's inputs.
    """
    model, external, cuts, where = _read(source)
    if not model.HasField("graph"):
        raise ImportModelError("the model has no graph", where=where, fix="check that the file is ONNX")
    versions = opsets(model.opset_import, where)
    if not model.opset_import:
        raise ImportModelError("the model names no opset", where=where, fix="export it again")
    _check_dynamic(dynamic)
    multiples: dict[str, int] = {}
    while True:
        walk, scope = Walk(external, model.functions, where), Scope(versions, None, {}, "")
        requests = _Requests(dynamic, shapes or {}, constants or {}, multiples)
        walk.limits.update(requests.limits())
        inputs = _bind_inputs(walk, scope, model.graph, cuts, requests)
        try:
            outputs = walk.graph(model.graph, scope)
            break
        except Multiple as e:
            multiples[e.symbol] = multiples.get(e.symbol, 1) * e.of
    results: list[Node] = []
    names: list[str] = []
    for info, v in zip(model.graph.output, outputs, strict=True):
        if isinstance(v, Value):
            results.append(v.node)
            names.append(info.name)
        elif isinstance(v, Sequence_):
            results += [item.node for item in v.items]
            names += [f"{info.name}.{i}" for i in range(len(v.items))]
    if walk.refused:
        raise UnsupportedOpError(walk.refused, model=where)
    _check_names("outputs", names, where)
    limits = tuple((name, low, high) for name, (low, high) in sorted(walk.limits.items()))
    values, found = [node for node, _ in walk.sizes.values()], [(s, most) for s, (_, most) in walk.sizes.items()]
    graph = Graph(
        tuple(inputs), (*results, *values), tuple(names), limits, tuple(walk.conditions), tuple(found)
    )
    _check_sizes(graph, where)
    return graph


def _check_sizes(graph: Graph, where: str) -> None:
    """Raise LimitError for a tensor that no machine can hold: sizes count in 64 bits from here on."""
    for n in graph.nodes():
        for t in n.types:
            check_elements(t.size, f"{n.loc or n.op.name} in {where}")


def _check_names(what: str, names: Sequence[str], where: str) -> None:
    """Raise ImportModelError where two are equal: calls name them."""
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ImportModelError(f"{what} share a name", expected="each its own", got=twice, where=where)


def _read(
    source: str | os.PathLike[str] | onnx.ModelProto,
) -> tuple[onnx.ModelProto, ExternalData, dict[int, np.ndarray], str]:
    if isinstance(source, onnx.ModelProto):
        return source, ExternalData(None), {}, source.graph.name or "the model"
    path = Path(source)
    try:
        data = map_file(path)
    except OSError as e:
        raise ImportModelError(f"cannot read the model: {e.strerror}", where=str(path)) from e
    if not data.size:
        raise ImportModelError("the model file is empty", where=str(path), fix="export it again")
    message, ranges = cut_weights(data.data, str(path))
    try:
        model = onnx.ModelProto.FromString(message)
    except DecodeError as e:
        raise ImportModelError(
            "not a readable ONNX file", expected="a protobuf ModelProto", got=str(e), where=str(path)
        ) from e
    _check_texts((model.graph, *model.functions), model.opset_import, str(path))
    cuts = {i: data[start:end] for i, (start, end) in ranges.items()}
    return model, ExternalData(path.parent), cuts, str(path)


def _check_texts(
    bodies: Iterable[onnx.GraphProto | onnx.FunctionProto], opsets: Iterable[onnx.OperatorSetIdProto], where: str
) -> None:
    """Raise ImportModelError where a name is not UTF-8: protobuf hands such a string over as bytes."""
    texts: list[str] = [o.domain for o in opsets]
    stack = list(bodies)
    while stack:
        body = stack.pop()
        texts.append(body.name)
        if isinstance(body, onnx.GraphProto):
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


@dataclass(frozen=True, slots=True)
class _Requests:
    """What is asked for about inputs. multiples: symbols of the model that stand for so many times a symbol."""

    dynamic: Mapping[str, Bound] | bool | None
    shapes: Mapping[str, Sequence[int | str]]
    constants: Mapping[str, np.ndarray]
    multiples: Mapping[str, int]

    def limits(self) -> dict[str, tuple[int, int | None]]:
        """The bounds asked for, of the graph's symbols."""
        found: dict[str, tuple[int, int | None]] = {}
        for name, bound in self.dynamic.items() if isinstance(self.dynamic, Mapping) else ():
            if isinstance(bound, tuple):
                (low, high), of = bound, self.multiples.get(name, 1)
                found[name] = (-(-low // of), None if high is None else high // of)
        return found

    def size(self, d: DimLike) -> DimLike:
        """A size of the model's as one of the graph's."""
        dynamic = self.dynamic if isinstance(self.dynamic, Mapping) else {}
        known: dict[str, DimLike] = {name: of * symbol(name) for name, of in self.multiples.items()}
        return substitute(d, known | {name: size for name, size in dynamic.items() if isinstance(size, int)})


def _bind_inputs(
    walk: Walk, scope: Scope, graph: onnx.GraphProto, cuts: Mapping[int, np.ndarray], requests: _Requests
) -> list[Node]:
    walk.initializers(graph, scope, cuts)
    given = [i for i in graph.input if i.name not in scope.values]
    _check_names("inputs", [i.name for i in given], walk.where)
    names = {i.name for i in given}
    for what, keys in (("shapes", requests.shapes), ("constants", requests.constants)):
        unknown = [k for k in keys if k not in names]
        if unknown:
            raise InputError(f"{what} names no input", expected=f"one of {sorted(names)}", got=unknown)
    nodes: list[Node] = []
    for info in given:
        if info.name in requests.constants:
            array = np.asarray(requests.constants[info.name])
            if info.type.WhichOneof("value") != "tensor_type":
                raise InputError(f"constant {info.name!r} is no tensor", expected="an input of tensor type")
            try:
                declared = dtype_from_code(info.type.tensor_type.elem_type)
            except Unsupported as e:
                walk.refused.append(UnsupportedOp(str(e), f"input {info.name!r}"))
                scope.values[info.name] = Missing()
                continue
            if dtype_of(array) != declared:
                raise InputError(
                    f"constant {info.name!r} has the wrong dtype", expected=declared, got=dtype_of(array)
                )
            scope.values[info.name] = Value(load=lambda array=array: array)
            continue
        node = _input(walk, info, requests)
        if node is None:
            scope.values[info.name] = Missing()
            continue
        nodes.append(node)
        scope.values[info.name] = Value(node)
    dynamic = sorted({s for n in nodes for d in n.shape for s in symbols_of(d)})
    if requests.dynamic is False and dynamic:
        raise InputError(
            "the model has dynamic dimensions", got=dynamic, fix=f"give their sizes: dynamic={{{dynamic[0]!r}: 1, ...}}"
        )
    if isinstance(requests.dynamic, Mapping):
        unknown = [k for k in requests.dynamic if k not in walk.symbols]
        if unknown:
            raise InputError("dynamic names no symbol", expected=f"one of {sorted(walk.symbols)}", got=unknown)
    return nodes


def _check_dynamic(dynamic: object) -> None:
    """Raise InputError unless it is what `import_onnx` says of it."""
    if dynamic is not None and not isinstance(dynamic, bool | Mapping):
        raise InputError("dynamic", expected="a bool, or sizes by name: {'batch': 1}", got=repr(dynamic))
    for name, bound in dynamic.items() if isinstance(dynamic, Mapping) else ():
        match bound if isinstance(bound, tuple) else (bound, bound):
            case (int(low), int() | None as high) if low >= 0 and (high is None or high >= low):
                pass
            case _:
                raise InputError(f"dynamic[{name!r}]", expected="a size, or (low, high)", got=repr(bound))


def _input(walk: Walk, info: onnx.ValueInfoProto, requests: _Requests) -> Node | None:
    kind = info.type.WhichOneof("value")
    if kind != "tensor_type":
        walk.refused.append(UnsupportedOp(f"an input of {(kind or 'unknown type').replace('_', ' ')}", repr(info.name)))
        return None
    tensor = info.type.tensor_type
    try:
        dtype = dtype_from_code(tensor.elem_type)
    except Unsupported as e:
        walk.refused.append(UnsupportedOp(str(e), f"input {info.name!r}"))
        return None
    asked = requests.shapes.get(info.name)
    if asked is None and not tensor.HasField("shape"):
        raise ImportModelError(
            "an input has no shape", where=f"input {info.name!r}", fix=f"pass shapes={{{info.name!r}: [...]}}"
        )
    if asked is None:
        dims = [_model_dim(d, f"{info.name}_{i}") for i, d in enumerate(tensor.shape.dim)]
    else:
        if tensor.HasField("shape") and len(tensor.shape.dim) != len(asked):
            raise InputError(
                f"shapes[{info.name!r}] has the wrong rank", expected=len(tensor.shape.dim), got=list(asked)
            )
        dims = [d if isinstance(d, int) else dim_of_name(d) for d in asked]
    for d in dims:
        walk.symbols |= symbols_of(d)
    return Input(info.name, TensorType(dtype, tuple(map(requests.size, dims))))(loc=info.name)


def _model_dim(dim: onnx.TensorShapeProto.Dimension, fresh: str) -> DimLike:
    if dim.HasField("dim_value") and dim.dim_value >= 0:
        return dim.dim_value
    return dim_of_name(dim.dim_param or fresh)


_WORD = re.compile(r"[A-Za-z_]\w*$")
_RESERVED = ("max", "min")


def dim_of_name(text: str) -> DimLike:
    """A dim_param as a size: an expression over symbols ("2*s0", "past + length") or one symbol of that name, with
    characters that no name may hold replaced by `_` ("batch-size" -> batch_size)."""
    text = text.strip()
    if _WORD.match(text) and text not in _RESERVED:
        return symbol(text)
    # a hyphen without spaces belongs to a name
    if not re.search(r"\w-\w", text) and re.search(r"[A-Za-z_]", text):
        try:
            found = parse_dim(text)
        except ValueError:
            found = None
        if isinstance(found, Dim) and not symbols_of(found) & set(_RESERVED):
            return found
    name = re.sub(r"\W", "_", text)
    return symbol(name if _WORD.match(name) and name not in _RESERVED else f"d_{name}")
