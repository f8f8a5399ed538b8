"""What a row of the ONNX import table sees of a node: its inputs, attributes and opset version.

    @onnx_op("Softmax", since=13)
    def softmax(c: Call) -> Result: ...

A row applies from its `since` version up to that of the next row with the same name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import field
from typing import Any, Protocol

import numpy as np

from ingot import ops
from ingot.frontends.onnx.protos import AttributeProto, GraphProto, NodeProto, TypeProto
from ingot.frontends.onnx.symbolic import MAX_ELEMENTS, Sym, UnknownSize
from ingot.frontends.onnx.tensors import ExternalData, to_array
from ingot.frontends.shared.computed_sizes import ComputedSizes, Sizes
from ingot.frontends.shared.refusal import Unsupported
from ingot.ir import types as T
from ingot.ir.dims import Dim, DimLike, Interval, substitute, symbol
from ingot.ir.node import Const, Node, const
from ingot.ir.types import Shape, TensorType
from ingot.ops import custom
from ingot.support.dataclass import dataclass
from ingot.support.errors import ImportModelError

Attribute = (
    int
    | float
    | str
    | bytes
    | np.ndarray
    | GraphProto
    | tuple[int, ...]
    | tuple[float, ...]
    | tuple[str, ...]
    | TypeProto
)

_POSITIVE_ATTRIBUTES = frozenset(
    {"block_size", "blocksize", "dilations", "group", "kernel_shape", "offset_group", "strides"}
)
_WINDOW_ATTRIBUTES = ("dilations", "kernel_shape", "output_padding", "pads", "strides")
_MAX_WINDOW_OFFSET = 1 << 31


class Value:
    """One ONNX value: a node, a symbolic value, or both; each is built from the other on demand."""

    __slots__ = ("_is_sym_known", "_load", "_node", "_sym")

    def __init__(
        self, node: Node | None = None, sym: Sym | None = None, load: Callable[[], np.ndarray] | None = None
    ) -> None:
        self._node = node
        self._sym = sym
        self._load = load
        self._is_sym_known = sym is not None

    @property
    def node(self) -> Node:
        """As a tensor."""
        if self._node is None:
            self._node = const(self._load()) if self._load is not None else materialize(self._sym)
        return self._node

    @property
    def sym(self) -> Sym | None:
        """The known elements: those that were tracked, or those of a small constant; else None."""
        if not self._is_sym_known:
            self._is_sym_known = True
            op = self.node.op
            if isinstance(op, Const) and op.value.size <= MAX_ELEMENTS:
                self._sym = Sym.of_array(op.value)
        return self._sym

    @property
    def type(self) -> TensorType:
        if self._node is None and self._sym is not None:
            return TensorType(self._sym.dtype, self._sym.shape)
        return self.node.type


@dataclass(frozen=True, slots=True)
class Sequence_:
    """The members of an ONNX sequence of known length; or an absent optional. A present optional is represented by its
    content."""

    items: tuple[Value, ...]
    is_absent: bool = False


@dataclass(frozen=True, slots=True)
class OpenSequence:
    """An ONNX sequence whose length the run knows, as one tensor: its members are stacked (axis None: member i is
    node[i]), or concatenated along an axis, of sizes that are not known apart."""

    node: Node
    axis: int | None = None


@dataclass(frozen=True, slots=True)
class Missing:
    """The result of a node that could not be imported; nodes that read it are skipped."""


AnyValue = Value | Sequence_ | OpenSequence | Missing
Result = Node | Value | Sequence_ | OpenSequence | Sequence[Node | Value | Sequence_ | OpenSequence | None]
# None: the row leaves this use of the op to ONNX's function body for it
Row = Callable[["Call"], Result | None]


def materialize(sym: Sym | None) -> Node:
    """A symbolic value as a tensor: a constant, or sizes read at run time and stacked."""
    assert sym is not None
    if sym.is_constant:
        return const(sym.to_array())
    parts: list[Node] = []
    for v in sym.items.reshape(-1):
        if isinstance(v, Dim):
            size = ops.DimValue(v)()
        elif isinstance(v, bool | int | float):
            size = const(v, sym.dtype.numpy)
        else:
            size = ops.div(
                ops.cast(materialize(Sym.of(T.i64, [v.numerator])), sym.dtype),
                ops.cast(materialize(Sym.of(T.i64, [v.denominator])), sym.dtype),
            )
            size = ops.Reshape(())(size)
        if size.dtype != sym.dtype:
            size = ops.Convert(sym.dtype)(size)
        parts.append(size)
    if not sym.shape:
        return parts[0]
    flat = [ops.Reshape((1,))(p) for p in parts]
    line = flat[0] if len(flat) == 1 else ops.Concat(0)(*flat)
    return line if len(sym.shape) == 1 else ops.Reshape(sym.shape)(line)


class Equation(Exception):
    """A symbol must be replaced by another size, possibly a multiple of itself (`16*n`): the import starts again with
    that."""

    def __init__(self, symbol: str, size: DimLike) -> None:
        super().__init__(f"{symbol} is {size}")
        self.symbol, self.size = symbol, size


def seek_multiple(
    is_valid: Callable[..., bool], sizes: Sequence[DimLike], factors: Iterable[int], names: Sequence[str]
) -> None:
    """Raise Equation with the first of `factors`, then the first of `names`, whose multiple makes `is_valid` true."""
    for factor in factors:
        for name in names:
            if is_valid(*(substitute(d, {name: factor * symbol(name)}) for d in sizes)):
                raise Equation(name, factor * symbol(name))


class Importer(Protocol):
    """The part of the importer that control-flow rows use."""

    external: ExternalData
    limits: dict[str, Interval]  # what is required of symbols so far

    def run(
        self, graph: GraphProto, call: Call, inputs: Mapping[str, AnyValue], capture: Callable[[Value], Value]
    ) -> list[AnyValue]:
        """The outputs of a subgraph of `call`; outer values that it reads are mapped by `capture`."""
        ...

    def body(self) -> AbstractContextManager[Sizes]:
        """Collect the sizes computed meanwhile for an inner graph, which alone knows them."""
        ...

    def random_key(self, seed: int | None) -> Node:
        """A fresh random key, from the model's seed or from `seed`."""
        ...

    @property
    def computed_sizes(self) -> ComputedSizes:
        """The run-time sizes of the graph that is being built."""
        ...

    def assume(self, size: DimLike) -> bool:
        """Require `size` >= 0 by a bound of its symbol; returns whether such a bound exists."""
        ...

    def require(self, size: DimLike, what: str) -> None:
        """Require `size` >= 0, by a bound of its symbol or a condition that every call checks. Raises Unsupported with
        `what` where it can never hold."""
        ...

    def require_equal(self, a: DimLike, b: DimLike, what: str) -> None:
        """Require that two sizes are equal; as `require`."""
        ...

    def wish(self, node: Node, *, exact: bool) -> bool:
        """Record that a row needs the elements of `node` at import: as sizes, or, if `exact`, as numbers. Returns
        whether that is possible: not where a loop changes them."""
        ...

    def elements_as_sizes(self, node: Node) -> Sym | None:
        """The elements of `node` as sizes, computed from other sizes or found at run time; None where there are too
        many, or where they are no integers."""
        ...

    def checkpoint(self) -> tuple[object, ...]:
        """The requirements on sizes so far, to roll back to."""
        ...

    def roll_back(self, mark: tuple[object, ...]) -> None:
        """Discard all requirements and refusals since `checkpoint`."""
        ...

    def decide(self, node: Node, what: str, *, is_needed: bool = True) -> bool | None:
        """The value of a condition that a row must know; None where it is known only at run time. Where sizes decide
        it, every call checks it. Raises Unsupported where an example, or the values of inputs, would decide it; but
        where the row can do without, of inputs only scalars are asked for."""
        ...

    def note_capture(self, inner: Node, outer: Node) -> None:
        """Record that `inner` is an input of a body's graph that stands for the outer value `outer`."""
        ...


@dataclass(frozen=True)
class Call:
    """One ONNX node being imported."""

    proto: NodeProto
    version: int
    loc: str
    inputs: tuple[AnyValue | None, ...]
    importer: Importer
    scope: object = None
    # attributes of the function that is being inlined, for references to them
    outer: Mapping[str, AttributeProto] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.inputs)

    # inputs

    def has(self, i: int) -> bool:
        """Whether optional input `i` is given."""
        return i < len(self.inputs) and self.inputs[i] is not None

    def value(self, i: int) -> Value:
        """Input `i`. Raises Unsupported where it is missing or a sequence."""
        v = self.inputs[i] if i < len(self.inputs) else None
        if v is None:
            raise Unsupported(f"input {i} is missing")
        if not isinstance(v, Value):
            raise Unsupported(f"input {i} is a sequence")
        return v

    def x(self, i: int = 0) -> Node:
        """Input `i` as a tensor."""
        return self.value(i).node

    def opt(self, i: int) -> Node | None:
        """Optional input `i` as a tensor."""
        return self.x(i) if self.has(i) else None

    def xs(self) -> list[Node]:
        """Every input as a tensor."""
        return [self.x(i) for i in range(len(self.inputs))]

    def sequence(self, i: int = 0) -> tuple[Value, ...]:
        v = self.inputs[i] if i < len(self.inputs) else None
        if not isinstance(v, Sequence_):
            raise Unsupported(f"input {i} is not a sequence of known length")
        return v.items

    def type(self, i: int = 0) -> TensorType:
        return self.value(i).type

    def shape(self, i: int = 0) -> Shape:
        return self.type(i).shape

    def rank(self, i: int = 0) -> int:
        return len(self.shape(i))

    def sym(self, i: int, *, exact: bool = False) -> Sym:
        """Input `i`'s known elements. Raises Unsupported where they are known only at run time; exact: numbers are
        needed, symbols are not enough."""
        elements = self.value(i).sym
        if elements is None and not self.importer.wish(self.x(i), exact=exact) and not exact:
            elements = self.importer.elements_as_sizes(self.x(i))
        if elements is None:
            name = self.proto.input[i]
            raise Unsupported(
                f"its input {name!r} must be known at compile time; pass weights={{{name!r}: ...}} if it is an input"
            )
        return elements

    def dims(self, i: int, *, exact: bool = False) -> tuple[DimLike, ...]:
        """Input `i` as sizes, flattened."""
        try:
            return self.sym(i, exact=exact).dims()
        except UnknownSize:
            self.importer.wish(self.x(i), exact=True)
            raise Unsupported(f"its input {self.proto.input[i]!r} must hold sizes") from None

    def ints(self, i: int) -> tuple[int, ...]:
        """Input `i` as plain integers, flattened."""
        dims = self.dims(i, exact=True)
        if any(isinstance(d, Dim) for d in dims):
            self.importer.wish(self.x(i), exact=True)
            raise Unsupported(
                f"its input {self.proto.input[i]!r} depends on a dynamic size: [{', '.join(map(str, dims))}]"
            )
        return tuple(int(d) for d in dims)

    def array(self, i: int) -> np.ndarray:
        """Input `i` as a constant of any size. Raises Unsupported where it is not constant."""
        op = self.x(i).op
        if not isinstance(op, Const):
            self.importer.wish(self.x(i), exact=True)
            name = self.proto.input[i]
            raise Unsupported(
                f"its input {name!r} must be a constant; pass weights={{{name!r}: ...}} if it is an input"
            )
        return op.value

    # attributes

    def _attribute(self, name: str) -> Attribute | None:
        for a in self.proto.attribute:
            if a.name == name:
                if a.ref_attr_name:
                    attribute = self.outer.get(a.ref_attr_name)
                    return None if attribute is None else attribute_value(attribute, self.importer.external)
                return self._sane(name, attribute_value(a, self.importer.external))
        return None

    def _sane(self, name: str, value: Attribute) -> Attribute:
        """`value`, checked: windows must have a size, and strides and dilations must fit the integer range."""
        numbers = value if isinstance(value, tuple) else (value,)
        if name in _POSITIVE_ATTRIBUTES and any(isinstance(v, int) and v < 1 for v in numbers):
            raise ImportModelError(f"the attribute {name!r}", expected="1 or more", got=value, where=self.loc)
        is_too_large = isinstance(value, tuple) and any(
            isinstance(v, int) and abs(v) >= _MAX_WINDOW_OFFSET for v in value
        )
        if is_too_large and name in _WINDOW_ATTRIBUTES:
            expected = f"numbers below {_MAX_WINDOW_OFFSET}"
            raise ImportModelError(f"the attribute {name!r}", expected=expected, got=value, where=self.loc)
        return value

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute of any kind."""
        value = self._attribute(name)
        return default if value is None else value

    def has_attr(self, name: str) -> bool:
        return self._attribute(name) is not None

    def int(self, name: str, default: int | None = None) -> int:
        return self._typed(name, default, int)

    def float(self, name: str, default: float | None = None) -> float:
        return float(self._typed(name, default, (int, float)))

    def flag(self, name: str, default: int = 0) -> bool:
        """An attribute that is 0 or 1. Raises ImportModelError for other numbers, which ONNX does not define."""
        value = self.int(name, default)
        if value not in (0, 1):
            raise ImportModelError(f"the attribute {name!r}", expected="0 or 1", got=value, where=self.loc)
        return bool(value)

    def str(self, name: str, default: str | None = None) -> str:
        return self._typed(name, default, str)

    def int_list(self, name: str, default: Sequence[int] | None = None) -> tuple[int, ...]:
        values = self._typed(name, tuple(default) if default is not None else None, tuple)
        return tuple(int(v) for v in values)

    def int_list_of(self, name: str, count: int, default: int) -> tuple[int, ...]:
        """`count` integers, by default all equal to `default`. Raises ImportModelError for another count."""
        values = self.int_list(name, (default,) * count)
        if len(values) != count:
            raise ImportModelError(f"the attribute {name!r}", expected=f"{count} numbers", got=values, where=self.loc)
        return values

    def float_list(self, name: str) -> tuple[float, ...] | None:
        values = self._attribute(name)
        return tuple(float(v) for v in values) if isinstance(values, tuple) else None

    def graph(self, name: str) -> GraphProto:
        return self._typed(name, None, GraphProto)

    def _typed(self, name, default, kind):
        value = self._attribute(name)
        if value is None:
            if default is None:
                raise Unsupported(f"attribute {name!r} is missing")
            return default
        if not isinstance(value, kind):
            raise Unsupported(f"attribute {name!r} has the wrong type")
        return value

    def axis(self, name: str, default: int | None, rank: int) -> int:
        """An axis attribute as 0 <= axis < rank."""
        return normal_axis(self.int(name, default), rank)

    @property
    def result_count(self) -> int:
        return len(self.proto.output)

    def is_result_used(self, i: int) -> bool:
        """Whether result `i` has a name."""
        return i < len(self.proto.output) and bool(self.proto.output[i])


def normal_axis(axis: int, rank: int) -> int:
    """`axis` counted from the front. Raises Unsupported outside [-rank, rank)."""
    if not -rank <= axis < max(rank, 1):
        raise Unsupported(f"axis {axis} is outside a tensor of rank {rank}")
    return axis + rank if axis < 0 else axis


def normal_axes(axes: Iterable[int], rank: int) -> tuple[int, ...]:
    return tuple(normal_axis(a, rank) for a in axes)


def attribute_value(a: AttributeProto, external: ExternalData) -> Attribute:
    """An attribute as Python data. Raises Unsupported for a kind that no row reads."""
    kind = AttributeProto
    match a.type:
        case kind.INT:
            return int(a.i)
        case kind.FLOAT:
            return float(a.f)
        case kind.STRING:
            return a.s.decode("utf-8", "surrogateescape")
        case kind.INTS:
            return tuple(int(v) for v in a.ints)
        case kind.FLOATS:
            return tuple(float(v) for v in a.floats)
        case kind.STRINGS:
            return tuple(s.decode("utf-8", "surrogateescape") for s in a.strings)
        case kind.TENSOR:
            return to_array(a.t, external)
        case kind.GRAPH:
            return a.g
        case kind.TYPE_PROTO:
            return a.tp
    raise Unsupported(f"attribute {a.name!r} of kind {kind.AttributeType.Name(a.type)}")


ROWS: dict[tuple[str, str], list[tuple[int, Row]]] = {}


def onnx_op(*names: str, since: int = 1, domain: str = "") -> Callable[[Row], Row]:
    """Register a row for the ops `names` of `domain` from opset version `since` on."""

    def add(row: Row) -> Row:
        for name in names:
            register(name, row, since=since, domain=domain)
        return row

    return add


def register(name: str, row: Row, *, since: int = 1, domain: str = "") -> None:
    rows = ROWS.setdefault((domain, name), [])
    if any(s == since for s, _ in rows):
        raise ValueError(f"two rows for {domain or 'ai.onnx'}.{name} since version {since}")
    rows.append((since, row))
    rows.sort(key=lambda r: -r[0])


def find_row(domain: str, name: str, version: int) -> Row | None:
    """The row that applies to `name` in opset `version`."""
    rows = ROWS.get((domain, name), [])
    return next((row for since, row in rows if since <= version), None) or _registered_row(domain, name)


def _registered_row(domain: str, name: str) -> Row | None:
    """A row for an op that the user registered: its inputs are the operands, its attributes keep their names."""
    registration = custom.find("onnx", f"{domain}::{name}")
    if registration is None:
        return None

    def row(c: Call) -> Result:
        if not all(c.has(i) for i in range(len(c))):
            raise Unsupported("an optional input that is left out")
        names = [a.name for a in c.proto.attribute]
        attributes = {n: value for n in names if (value := c.attr(n)) is not None}
        return custom.apply(registration, c.xs(), attributes, c.loc).results

    return row
