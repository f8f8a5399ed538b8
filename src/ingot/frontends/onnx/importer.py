"""From an ONNX model to a graph: one walk over the nodes, in order.

    initializers, inputs  ->  values by name
    node                  ->  a symbolic value (rules in `fold`), the row of its op (tables in `rows`), or its
                              function's body: a local function, or the one that ONNX defines the op by
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError

from ingot.frontends.onnx import rows  # noqa: F401 - fills the table
from ingot.frontends.onnx.call import (
    AnyValue,
    Call,
    Missing,
    Multiple,
    Result,
    Sequence_,
    Value,
    find_row,
    seek_multiple,
)
from ingot.frontends.onnx.fold import fold_node
from ingot.frontends.onnx.functions import in_order, needed, resolved, schema_body
from ingot.frontends.onnx.symbolic import Sym, Unknown
from ingot.frontends.onnx.tensors import (
    ExternalData,
    Unsupported,
    dtype_from_code,
    map_file,
    sparse_to_array,
    to_array,
)
from ingot.frontends.onnx.wire import cut_weights
from ingot.ir.dims import Dim, DimLike, narrowed, parse_dim, substitute, symbol, symbols_of
from ingot.ir.node import Graph, Input, Node
from ingot.ir.types import TensorType, dtype_of
from ingot.support.errors import ImportModelError, InputError, ShapeError, UnsupportedOp, UnsupportedOpError

Bound = int | tuple[int, int | None]

MIN_OPSET = 7
STANDARD = ("", "ai.onnx")
_SPARSE_LIMIT = {"bytes": 1 << 30}
# deeper nesting than any exporter writes; a self-referencing function would never end
_MAX_DEPTH = 64
_MOST_ELEMENTS = 1 << 44
# of domains
_REASONS = {"com.microsoft.nchwc": "weights in the order of one machine; save it optimized up to ORT_ENABLE_EXTENDED"}
# ops of com.microsoft that are ONNX's of this version, but for attributes that ONNX's do not have
_ADOPTED = {"CausalConvWithState": 27, "LinearAttention": 27}
# of sizes that networks halve time and again
_LARGEST_FACTOR = 128


def import_onnx(
    source: str | os.PathLike[str] | onnx.ModelProto,
    *,
    dynamic: Mapping[str, Bound] | bool | None = None,
    shapes: Mapping[str, Sequence[int | str]] | None = None,
    constants: Mapping[str, np.ndarray] | None = None,
) -> Graph:
    """An ONNX model as a MODEL-level graph.

    source: path of an ONNX file, or a ModelProto. Opsets 7 and newer.
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
    versions = _opsets(model.opset_import, where)
    if not model.opset_import:
        raise ImportModelError("the model names no opset", where=where, fix="export it again")
    functions = {(_domain(f.domain), f.name): f for f in model.functions}
    _check_dynamic(dynamic)
    multiples: dict[str, int] = {}
    while True:
        walk, scope = _Walk(external, functions, where), _Scope(versions, None, {}, "")
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
    graph = Graph(tuple(inputs), tuple(results), tuple(names), limits)
    _check_sizes(graph, where)
    return graph


def _check_sizes(graph: Graph, where: str) -> None:
    """Raise ImportModelError for a tensor that no machine can hold: sizes count in 64 bits from here on."""
    for n in graph.nodes():
        for t in n.types:
            if isinstance(t.size, int) and t.size > _MOST_ELEMENTS:
                raise ImportModelError("a tensor is too large", got=t, where=f"{n.loc or n.op.name} in {where}")


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


def _domain(domain: str) -> str:
    return "" if domain in STANDARD else domain


def _opsets(imports: Iterable[onnx.OperatorSetIdProto], where: str) -> dict[str, int]:
    versions = {_domain(o.domain): o.version for o in imports}
    known = onnx.defs.onnx_opset_version()
    if any(not 0 <= v < 1 << 31 for v in versions.values()):
        raise ImportModelError("an opset's version is no version", got=versions, where=where, fix="export it again")
    version = versions.get("")
    if version is not None and not MIN_OPSET <= version <= known:
        raise ImportModelError(
            "unsupported opset",
            expected=f"ai.onnx {MIN_OPSET} to {known} (the newest in the installed onnx package)",
            got=version,
            where=where,
            fix="convert the model with onnx.version_converter, or upgrade the onnx package",
        )
    return versions


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


@dataclass(slots=True)
class _Scope:
    """Values by name, in one graph or function; `parent` is the graph around it."""

    versions: Mapping[str, int]
    parent: _Scope | None
    attributes: Mapping[str, onnx.AttributeProto]
    prefix: str
    values: dict[str, AnyValue] = field(default_factory=dict)
    capture: Callable[[Value], Value] | None = None
    depth: int = 0

    def get(self, name: str) -> AnyValue | None:
        found = self.values.get(name)
        if found is None and self.parent is not None:
            found = self.parent.get(name)
            if self.capture is not None and isinstance(found, Value):
                found = self.values[name] = self.capture(found)
            elif self.capture is not None and isinstance(found, Sequence_):
                found = self.values[name] = Sequence_(tuple(self.capture(v) for v in found.items))
        return found


def _bind_inputs(
    walk: _Walk, scope: _Scope, graph: onnx.GraphProto, cuts: Mapping[int, np.ndarray], requests: _Requests
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


def _input(walk: _Walk, info: onnx.ValueInfoProto, requests: _Requests) -> Node | None:
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


class _Walk:
    """The state of one import."""

    def __init__(
        self, external: ExternalData, functions: Mapping[tuple[str, str], onnx.FunctionProto], where: str
    ) -> None:
        self.external = external
        self.functions = functions
        self.where = where
        self.refused: list[UnsupportedOp] = []
        self.symbols: frozenset[str] = frozenset()
        # bounds of symbols beside (1, None)
        self.limits: dict[str, tuple[int, int | None]] = {}

    def initializers(self, graph: onnx.GraphProto, scope: _Scope, cuts: Mapping[int, np.ndarray]) -> None:
        """Bind initializers; each is decoded when it is first used."""
        for i, t in enumerate(graph.initializer):
            scope.values[t.name] = self._initializer(t, cuts.get(i))
        for s in graph.sparse_initializer:
            scope.values[s.values.name] = Value(
                load=lambda s=s: sparse_to_array(s, self.external, _SPARSE_LIMIT)
            )

    def _initializer(self, t: onnx.TensorProto, cut: np.ndarray | None) -> AnyValue:
        try:
            dtype_from_code(t.data_type)
        except Unsupported as e:
            self.refused.append(UnsupportedOp(str(e), f"initializer {t.name!r}"))
            return Missing()
        return Value(load=lambda: to_array(t, self.external, cut))

    def run(
        self, graph: onnx.GraphProto, call: Call, inputs: Mapping[str, AnyValue], capture: Callable[[Value], Value]
    ) -> list[AnyValue]:
        """The outputs of a subgraph of `call`, whose inputs are `inputs`."""
        outer = call.scope
        assert isinstance(outer, _Scope)
        depth = self._deeper(outer, call.loc)
        scope = _Scope(outer.versions, outer, outer.attributes, f"{call.loc}/", dict(inputs), capture, depth)
        self.initializers(graph, scope, {})
        return self.graph(graph, scope)

    def _deeper(self, scope: _Scope, loc: str) -> int:
        if scope.depth >= _MAX_DEPTH:
            raise ImportModelError(
                "functions or subgraphs are nested too deeply", expected=f"at most {_MAX_DEPTH} levels", where=loc
            )
        return scope.depth + 1

    def graph(self, graph: onnx.GraphProto, scope: _Scope) -> list[AnyValue]:
        """Import every node that an output needs; the values of the outputs."""
        nodes = in_order(graph.node)
        kept = needed(nodes, [o.name for o in graph.output])
        for i, node in enumerate(nodes):
            if i in kept:
                self.node(node, scope, i)
        return [self._output(o.name, scope) for o in graph.output]

    def _output(self, name: str, scope: _Scope) -> AnyValue:
        found = scope.get(name)
        if found is None:
            raise ImportModelError("nothing computes an output", got=repr(name), where=self.where)
        return found

    def node(self, proto: onnx.NodeProto, scope: _Scope, index: int) -> None:
        """Import one node and bind its outputs."""
        loc = scope.prefix + (proto.name or f"{proto.op_type}_{index}")
        inputs = tuple(self._operand(name, scope, loc) if name else None for name in proto.input)
        if any(isinstance(v, Missing) for v in inputs):
            if not self._is_known(proto, scope):
                self.refused.append(UnsupportedOp(_full_name(proto), loc))
            scope.values.update((name, Missing()) for name in proto.output if name)
            return
        results: Sequence[AnyValue | None]
        try:
            results = self._import(proto, scope, loc, inputs)
        except Unsupported as e:
            self.refused.append(UnsupportedOp(_full_name(proto), loc, str(e)))
            results = [Missing()] * len(proto.output)
        except ShapeError as e:
            _equal_for_multiples(e)
            if loc in str(e):
                raise
            # the node says more than the operand that the error was put down to
            text = str(e).removesuffix(f" at {e.where}")
            raise ShapeError(text, where=f"{loc} ({_full_name(proto)})") from e
        except (ArithmeticError, LookupError, MemoryError, TypeError, ValueError) as e:
            # rows take a node to be as ONNX defines it: no operand too few, an axis for each size
            raise ImportModelError(
                "a node is malformed",
                got=f"{type(e).__name__}: {e}",
                where=f"{loc} ({_full_name(proto)})",
                fix="see what onnx.checker.check_model says; if it finds nothing, please report it",
            ) from e
        for name, v in zip(proto.output, results, strict=False):
            if name and v is not None:
                scope.values[name] = v

    def _is_known(self, proto: onnx.NodeProto, scope: _Scope) -> bool:
        """Whether there is a way to import the op at all, whatever its inputs are."""
        domain = _domain(proto.domain)
        version = scope.versions.get(domain, 1)
        if (domain, proto.op_type) in self.functions or find_row(domain, proto.op_type, version) is not None:
            return True
        if not onnx.defs.has(proto.op_type, version, domain):
            return False
        # the binding's stub does not list the function accessors
        schema: Any = onnx.defs.get_schema(proto.op_type, version, domain)
        sizes = domain == "" and proto.op_type in ("Shape", "Size")  # known at import, without a row
        return sizes or schema.has_function or schema.has_context_dependent_function

    def _operand(self, name: str, scope: _Scope, loc: str) -> AnyValue:
        found = scope.get(name)
        if found is None:
            raise ImportModelError(
                "a node reads a value that nothing before it computes", got=repr(name), where=loc, fix="export it again"
            )
        return found

    def _import(
        self, proto: onnx.NodeProto, scope: _Scope, loc: str, inputs: tuple[AnyValue | None, ...]
    ) -> Sequence[AnyValue | None]:
        domain = _domain(proto.domain)
        function = self.functions.get((domain, proto.op_type))
        if function is not None:
            return self._inline(function, proto, scope, loc, inputs)
        version = scope.versions.get(domain, 1)
        if _is_adopted(proto, domain):
            domain, version = "", _ADOPTED[proto.op_type]
        call = Call(proto, version, loc, inputs, self, scope, scope.attributes)
        if domain == "":
            folded = _fold(call)
            if folded is not None:
                return folded
        first = _next_id()
        row = find_row(domain, proto.op_type, version)
        made = None if row is None else row(call)
        if made is not None:
            results = _values(made)
            _locate(results, first, loc)
            return results
        body = schema_body(resolved(proto, scope.attributes), domain, version, inputs)
        if body is None:
            raise Unsupported(_REASONS.get(domain, ""))
        defaults = onnx.defs.get_schema(proto.op_type, version, domain).attributes
        return self._inline(body, proto, scope, loc, inputs, {k: a.default_value for k, a in defaults.items()})

    def _inline(
        self,
        function: onnx.FunctionProto,
        proto: onnx.NodeProto,
        scope: _Scope,
        loc: str,
        inputs: tuple[AnyValue | None, ...],
        defaults: Mapping[str, onnx.AttributeProto] | None = None,
    ) -> Sequence[AnyValue | None]:
        """The function's body in place of the call, in a scope of its own."""
        attributes = {k: a for k, a in (defaults or {}).items() if a.type != a.UNDEFINED}
        attributes.update((a.name, a) for a in function.attribute_proto)
        for a in proto.attribute:
            bound = scope.attributes.get(a.ref_attr_name) if a.ref_attr_name else a
            if bound is not None:
                attributes[a.name] = bound
        versions = {**scope.versions, **_opsets(function.opset_import, loc)}
        inner = _Scope(versions, None, attributes, f"{loc}/", depth=self._deeper(scope, loc))
        inner.values.update((name, v) for name, v in zip(function.input, inputs, strict=False) if v is not None)
        absent = set(function.input) - set(inner.values)
        nodes = in_order(function.node)
        kept = needed(nodes, function.output)
        for i, node in enumerate(nodes):
            if i not in kept:
                continue
            if absent & set(node.input):
                given = onnx.NodeProto()
                given.CopyFrom(node)
                given.input[:] = ["" if name in absent else name for name in node.input]
                node = given
            self.node(node, inner, i)
        return [inner.get(name) for name in function.output]

    def assume(self, size: DimLike) -> bool:
        """Require `size` >= 0 by a bound of its symbol; whether such a bound exists."""
        found = narrowed(size, self.limits)
        if found is not None:
            self.limits = found
        return found is not None


def _is_adopted(proto: onnx.NodeProto, domain: str) -> bool:
    version = _ADOPTED.get(proto.op_type, 0)
    if domain != "com.microsoft" or not 0 < version <= onnx.defs.onnx_opset_version():
        return False
    known = onnx.defs.get_schema(proto.op_type, version, "").attributes
    return all(a.name in known for a in proto.attribute)


def _equal_for_multiples(e: ShapeError) -> None:
    """Raise Multiple where the sizes that differ are equal for all multiples of a number: an image cut in half several
    times and enlarged again meets itself."""
    sizes = [d for d in e.sizes or () if isinstance(d, Dim)]
    if len(sizes) == 2:
        names = sorted(symbols_of(sizes[0]) & symbols_of(sizes[1]))
        seek_multiple(lambda one, other: one == other, sizes, range(2, _LARGEST_FACTOR + 1), names)


def _full_name(proto: onnx.NodeProto) -> str:
    domain = _domain(proto.domain)
    return f"{domain}.{proto.op_type}" if domain else proto.op_type


def _fold(call: Call) -> list[AnyValue | None] | None:
    try:
        found = fold_node(call)
    except Unknown:
        return None
    return None if found is None else [v if not isinstance(v, Sym) else Value(sym=v) for v in found]


def _values(result: Result) -> list[AnyValue | None]:
    many = result if isinstance(result, Sequence) else (result,)
    return [Value(v) if isinstance(v, Node) else v for v in many]


def _next_id() -> int:
    return next(Node._ids)


def _locate(results: Iterable[AnyValue | None], first: int, loc: str) -> None:
    """Give the nodes made since `first` their place in the model; builders do not pass it on."""
    stack = [v._node for v in results if isinstance(v, Value) and v._node is not None]
    while stack:
        node = stack.pop()
        if node.id <= first or node.loc == loc:
            continue
        if not node.loc:
            node.loc = loc
        stack.extend(node.inputs)
