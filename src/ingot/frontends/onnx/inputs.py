"""A model's inputs: their declared shapes as sizes, and a caller's requests about them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import field, replace

import numpy as np

from ingot.frontends.onnx.call import Missing, Value
from ingot.frontends.onnx.protos import GraphProto, TensorShapeProto, ValueInfoProto
from ingot.frontends.onnx.symbolic import MAX_ELEMENTS, Sym
from ingot.frontends.onnx.tensors import dtype_from_code
from ingot.frontends.onnx.walk import Scope, Walk
from ingot.frontends.shared.dynamic import Bound, check_static
from ingot.frontends.shared.refusal import Unsupported
from ingot.ir.dims import Dim, DimLike, Symbol, parse_dim, substitute, symbol, symbols_of
from ingot.ir.interp import bind_symbols
from ingot.ir.node import Graph, Input, Node
from ingot.ir.types import DType, Shape, TensorType
from ingot.support.dataclass import dataclass
from ingot.support.errors import ImportModelError, InputError, UnsupportedOp

Dynamic = Mapping[str, Bound | Mapping[int, Bound]] | bool | None


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests of the caller about inputs, and facts about them that the import discovers.

    equations: symbols of the model and the sizes that replace them: multiples, sums, other symbols, numbers.
    size_inputs: inputs whose elements are sizes.
    """

    dynamic: Dynamic
    shapes: Mapping[str, Sequence[int | str]]
    weights: Mapping[str, np.ndarray]
    example: Mapping[str, Sequence[int]] | None = None
    equations: Mapping[str, DimLike] = field(default_factory=dict)
    size_inputs: frozenset[str] = frozenset()

    def with_equation(self, name: str, size: DimLike) -> Requests:
        """The requests with one more symbol replaced by a size, which may contain the symbol itself."""
        equations = {other: substitute(d, {name: size}) for other, d in self.equations.items()}
        return replace(self, equations={name: size, **equations})

    def with_size_inputs(self, names: Set[str]) -> Requests:
        return replace(self, size_inputs=self.size_inputs | names)

    def bounds(self, shapes: Mapping[str, Shape], names: Set[str]) -> Iterator[tuple[str, Bound, DimLike]]:
        """(the request as text; its size or bounds; the size of the model that it is for)."""
        for name, bound in self.dynamic.items() if isinstance(self.dynamic, Mapping) else ():
            if not isinstance(bound, Mapping):
                yield f"dynamic[{name!r}]", bound, symbol(name) if name in names else dim_of_name(name)
                continue
            if name not in shapes:
                raise InputError("dynamic (--dim)", expected=f"one of the inputs {sorted(shapes)}", got=repr(name))
            for axis, size in bound.items():
                if not -len(shapes[name]) <= axis < len(shapes[name]):
                    raise InputError(f"dynamic[{name!r}]", expected=f"axes of {len(shapes[name])}", got=axis)
                yield f"dynamic[{name!r}][{axis}]", size, shapes[name][axis]


def bind_inputs(
    walk: Walk, scope: Scope, graph: GraphProto, cuts: Mapping[int, np.ndarray], requests: Requests
) -> list[Node]:
    """Bind initializers, constants and inputs in `scope`; returns the graph's inputs.

    Raises InputError for requests that do not fit them.
    """
    walk.initializers(graph, scope, cuts)
    inputs = [i for i in graph.input if i.name not in scope.values]
    check_names("inputs", [i.name for i in inputs], walk.where)
    _known_names("shapes", requests.shapes, {i.name for i in inputs})
    _known_names("weights", requests.weights, {i.name for i in inputs})
    types: dict[str, TensorType] = {}
    for info in inputs:
        try:
            dtype = _dtype(info)
            if info.name in requests.weights:
                scope.values[info.name] = _constant(info, requests.weights[info.name], dtype)
            else:
                types[info.name] = TensorType(dtype, _shape(info, requests.shapes.get(info.name)))
        except Unsupported as e:
            walk.refused.append(UnsupportedOp(str(e), f"input {info.name!r}"))
            scope.values[info.name] = Missing()
    walk.symbols = frozenset(s for t in types.values() for d in t.shape for s in symbols_of(d))
    elements_by_name = {name: _elements(name, t) for name, t in types.items()}
    names = walk.symbols.union(*(symbols_of(d) for elements in elements_by_name.values() for d in elements))
    sizes = _sizes(walk, {name: t.shape for name, t in types.items()}, requests, names)
    nodes: list[Node] = []
    for name, t in types.items():
        kind = TensorType(t.dtype, tuple(substitute(d, sizes) for d in t.shape))
        elements = tuple(substitute(d, sizes) for d in elements_by_name[name]) if name in requests.size_inputs else ()
        nodes.append(Input(name, kind, elements)(loc=name))
        sym = None
        if kind.size == 0 and kind.is_static:
            sym = Sym.of(kind.dtype, np.empty([int(d) for d in kind.shape], object))
        if elements:
            items = np.empty(len(elements), object)
            items[:] = elements
            sym = Sym.of(kind.dtype, items.reshape([int(d) for d in kind.shape]))
        scope.values[name] = Value(nodes[-1], sym)
    check_static(sorted({s for n in nodes for d in n.shape for s in symbols_of(d)}), requests.dynamic)
    if requests.example is not None:
        plain = Graph(tuple(Input(n.op.label, n.type)() for n in nodes if isinstance(n.op, Input)), ())
        walk.example = bind_symbols(plain, [tuple(requests.example[name]) for name in types])
    walk.wishes.inputs = {name: n for name, n in zip(types, nodes, strict=True)}
    return nodes


def check_names(what: str, names: Sequence[str], where: str) -> None:
    """Raise ImportModelError for duplicate names: calls refer to inputs and outputs by name."""
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ImportModelError(f"{what} share a name", expected="each its own", got=twice, where=where)


def _known_names(what: str, keys: Mapping[str, object], names: Set[str]) -> None:
    unknown = [k for k in keys if k not in names]
    if unknown:
        raise InputError(f"{what} names no input", expected=f"one of {sorted(names)}", got=unknown)


def _dtype(info: ValueInfoProto) -> DType:
    kind = info.type.WhichOneof("value")
    if kind != "tensor_type":
        raise Unsupported(f"an input of {(kind or 'unknown type').replace('_', ' ')}")
    return dtype_from_code(info.type.tensor_type.elem_type)


def _constant(info: ValueInfoProto, value: object, dtype: DType) -> Value:
    """An input's value of all calls, whose type is checked, and whose sizes where the model has them."""
    array = np.asarray(value)
    if array.dtype.newbyteorder("=") != dtype.numpy:
        raise InputError(f"constant {info.name!r} has the wrong dtype", expected=dtype, got=array.dtype)
    if info.type.tensor_type.HasField("shape"):
        sizes = _shape(info, None)
        known = (d if isinstance(d, int) else size for d, size in zip(sizes, array.shape, strict=False))
        if len(sizes) != array.ndim or array.shape != tuple(known):
            expected = TensorType(dtype, sizes)
            raise InputError(f"constant {info.name!r} has the wrong shape", expected=expected, got=array.shape)
    return Value(load=lambda: array)


def _shape(info: ValueInfoProto, given_sizes: Sequence[int | str] | None) -> Shape:
    """An input's sizes, over the symbols of the model."""
    tensor = info.type.tensor_type
    if given_sizes is None and not tensor.HasField("shape"):
        raise ImportModelError(
            "an input has no shape", where=f"input {info.name!r}", fix=f"pass shapes={{{info.name!r}: [...]}}"
        )
    if given_sizes is None:
        return tuple(_model_dim(d, f"{info.name}_{i}") for i, d in enumerate(tensor.shape.dim))
    if tensor.HasField("shape") and len(tensor.shape.dim) != len(given_sizes):
        raise InputError(
            f"shapes[{info.name!r}] has the wrong rank", expected=len(tensor.shape.dim), got=list(given_sizes)
        )
    return tuple(d if isinstance(d, int) else dim_of_name(d) for d in given_sizes)


def _sizes(walk: Walk, shapes: Mapping[str, Shape], requests: Requests, names: Set[str]) -> dict[str, DimLike]:
    """The size that replaces each of the model's symbols `names`. Requested bounds become the walk's limits."""
    sizes: dict[str, DimLike] = dict(requests.equations)
    ranges: list[tuple[str, tuple[int, int | None], DimLike]] = []
    for what, bound, d in requests.bounds(shapes, names):
        unknown = symbols_of(d) - names
        if unknown:
            raise InputError(
                "dynamic (--dim) names no symbol", expected=f"one of {sorted(walk.symbols)}", got=sorted(unknown)
            )
        if isinstance(bound, tuple):
            ranges.append((what, bound, d))
            continue
        name = _symbol_name(d)
        if name is not None:
            sizes[name] = bound
        elif d != bound:
            raise InputError(what, expected=f"{d}, as the model has it", got=bound)
    for what, (low, high), d in ranges:
        size = substitute(d, sizes)
        for name in symbols_of(size):
            walk.limits.setdefault(name, (min(low, 1), None))
        for room in (size - low, *([] if high is None else [high - size])):
            try:
                walk.require(room, what)
            except Unsupported:
                raise InputError(what, expected=f"bounds that {size} meets", got=(low, high)) from None
    empty = {name: symbol(name, may_be_empty=True) for name in walk.symbols if walk.limits.get(name, (1,))[0] == 0}
    return {**empty, **{name: substitute(d, empty) for name, d in sizes.items()}}


def open_axes_of(info: ValueInfoProto) -> list[int]:
    """The axes of an input whose sizes are single symbols."""
    dims = info.type.tensor_type.shape.dim
    return [i for i, d in enumerate(dims) if _symbol_name(_model_dim(d, f"{info.name}_{i}")) is not None]


def _symbol_name(d: DimLike) -> str | None:
    """The symbol of a size that is a single symbol, else None."""
    if isinstance(d, int) or len(d.terms) != 1:
        return None
    (mono, count), *_ = d.terms
    return mono[0].name if count == 1 and len(mono) == 1 and isinstance(mono[0], Symbol) else None


def _elements(name: str, kind: TensorType) -> Shape:
    """Symbols for the elements of an input that may hold sizes."""
    count = kind.size
    is_size_like = isinstance(count, int) and count <= MAX_ELEMENTS and kind.dtype.is_integer
    return tuple(symbol(f"{_word(name)}.{i}") for i in range(count)) if is_size_like else ()


def check_dynamic(dynamic: object) -> None:
    """Raise InputError unless it has the form that `import_onnx` documents."""
    if dynamic is not None and not isinstance(dynamic, bool | Mapping):
        raise InputError("dynamic", expected="a bool, or sizes by name: {'batch': 1}", got=repr(dynamic))
    for name, bound in dynamic.items() if isinstance(dynamic, Mapping) else ():
        if not isinstance(bound, Mapping):
            _check_bound(f"dynamic[{name!r}]", bound)
            continue
        for axis, axis_bound in bound.items():
            if not isinstance(axis, int):
                raise InputError(f"dynamic[{name!r}]", expected="sizes by axis: {0: 1}", got=repr(axis))
            _check_bound(f"dynamic[{name!r}][{axis}]", axis_bound)


def _check_bound(what: str, bound: object) -> None:
    match bound if isinstance(bound, tuple) else (bound, bound):
        case (int(low), int() | None as high) if low >= 0 and (high is None or high >= low):
            pass
        case _:
            raise InputError(what, expected="a size, or (low, high)", got=repr(bound))


def _model_dim(dim: TensorShapeProto.Dimension, fresh: str) -> DimLike:
    if dim.HasField("dim_value") and dim.dim_value >= 0:
        return dim.dim_value
    # "?" and the like are no names: each such size is an independent symbol
    return dim_of_name(dim.dim_param if re.search(r"\w", dim.dim_param) else fresh)


_NAME_PATTERN = re.compile(r"[A-Za-z_]\w*$")
_RESERVED = ("max", "min")


def dim_of_name(text: str) -> DimLike:
    """A dim_param as a size: an expression over symbols ("2*s0", "past + length") or one symbol of that name, with
    characters that no name may hold replaced by `_` ("batch-size" -> batch_size)."""
    text = re.sub(r"[.$]", "_", text.strip())  # these mark symbols that data determines
    if _NAME_PATTERN.match(text) and text not in _RESERVED:
        return symbol(text)
    # a hyphen without spaces belongs to a name
    if not re.search(r"\w-\w", text) and re.search(r"[A-Za-z_]", text):
        try:
            dim = parse_dim(text)
        except ValueError:
            dim = None
        if isinstance(dim, Dim) and not symbols_of(dim) & set(_RESERVED):
            return dim
    return symbol(_word(text))


def _word(text: str) -> str:
    """A name from the letters, digits and underscores of `text`."""
    name = re.sub(r"\W", "_", text)
    return name if _NAME_PATTERN.match(name) and name not in _RESERVED else f"d_{name}"
