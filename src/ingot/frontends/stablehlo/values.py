"""The importer's values, and what a row sees of the operation that it imports."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Protocol

import numpy as np

from ingot.frontends.shared import rows
from ingot.frontends.shared.composites.complex import Complex
from ingot.frontends.shared.computed_sizes import ComputedSizes
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.shared.sizes import Sizes
from ingot.frontends.stablehlo import literals, parser
from ingot.frontends.stablehlo.syntax import (
    Attribute,
    Block,
    Dense,
    Function,
    Ints,
    Module,
    Number,
    Operation,
    Raw,
    Symbol,
)
from ingot.frontends.stablehlo.types import Quant, Tensor
from ingot.ir.dims import DimLike
from ingot.ir.node import Const, Input, Node
from ingot.ir.types import DType
from ingot.support.dataclass import dataclass


@dataclass(frozen=True)
class Quantized:
    """Integers that represent real numbers."""

    node: Node
    quant: Quant


@dataclass(frozen=True)
class Token:
    """Orders effects; there are none."""


@dataclass(frozen=True)
class Missing:
    """The result of a refused operation."""


# Node | Complex | Quantized | Token | Missing | tuple of these; rows name the kinds that they take
AnyValue = object


def parts(value: AnyValue) -> tuple[Node, ...]:
    """The nodes of a value."""
    match value:
        case Node():
            return (value,)
        case Complex(real, imag):
            return (real, imag)
        case Quantized(node, _):
            return (node,)
        case tuple():
            return tuple(p for v in value for p in parts(v))
        case Missing():
            raise Unsupported("")
        case _:
            return ()


def flatten(values: Iterable[AnyValue]) -> tuple[Node, ...]:
    return tuple(p for v in values for p in parts(v))


def like(value: AnyValue, nodes: Sequence[Node]) -> AnyValue:
    """A value of the kind of `value`, rebuilt from other nodes."""
    match value:
        case Node():
            (node,) = nodes
            return node
        case Complex():
            return Complex(*nodes)
        case Quantized(_, quant):
            (node,) = nodes
            return Quantized(node, quant)
        case tuple():
            return unflatten(value, nodes)
        case _:
            return value


def unflatten(values: Sequence[AnyValue], nodes: Sequence[Node]) -> tuple[AnyValue, ...]:
    """Values of the kinds of `values`, rebuilt from `nodes` in order."""
    values_: list[AnyValue] = []
    start = 0
    for v in values:
        n = len(parts(v))
        values_.append(like(v, nodes[start : start + n]))
        start += n
    return tuple(values_)


@dataclass
class Scope:
    """The values that an operation sees by name. A scope with `captures` is a separate graph: outer values that it
    reads become its inputs."""

    values: dict[str, AnyValue] = field(default_factory=dict[str, AnyValue])
    parent: Scope | None = None
    captures: dict[Node, Node] | None = None
    closed_form: Callable[[Node], Node | None] = lambda node: None

    def get(self, name: str) -> AnyValue | None:
        value = self.values.get(name)
        if value is not None or self.parent is None:
            return value
        outer = self.parent.get(name)
        if self.captures is None or outer is None or isinstance(outer, Missing | Token):
            return outer
        inner = self.values[name] = like(outer, [self._capture(n) for n in parts(outer)])
        return inner

    def _capture(self, node: Node) -> Node:
        free = self.closed_form(node)
        if free is not None:
            return free
        assert self.captures is not None
        if node not in self.captures:
            self.captures[node] = Input(f"capture.{node.id}", node.type)()
        return self.captures[node]


class Context(Protocol):
    """The part of the importer that rows use; see `importer.Importer`."""

    module: Module
    rows: Rows
    sizes: Sizes
    computed_sizes: ComputedSizes
    rank: Node | None  # of the device, inside a per-device computation

    def random_key(self) -> Node: ...
    def function(self, function: Function, arguments: Sequence[AnyValue], caller: str = "") -> tuple[AnyValue, ...]: ...
    def block(
        self, block: Block, arguments: Sequence[AnyValue], outer: Scope | None, captures: dict[Node, Node] | None = None
    ) -> tuple[AnyValue, ...]: ...


@dataclass(frozen=True)
class Call:
    """One operation: its attributes by name, the types of its results, and the importer for its regions."""

    importer: Context
    op: Operation
    scope: Scope
    types: tuple[Tensor | None, ...]
    loc: str
    attributes: Mapping[str, Attribute]

    @property
    def type(self) -> Tensor:
        type = self.types[0] if self.types else None
        if type is None:
            raise Unsupported("a result that is no tensor")
        return type

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def regions(self) -> tuple[Block, ...]:
        return self.op.regions

    def has(self, name: str) -> bool:
        return name in self.attributes

    def _get(self, name: str) -> Attribute:
        if name not in self.attributes:
            raise Unsupported(f"no attribute {name}")
        return self.attributes[name]

    def int(self, name: str, default: int | None = None) -> int:
        if default is not None and name not in self.attributes:
            return default
        value = self._get(name)
        if isinstance(value, Number):
            return int(value)
        values = _ints(value, name)
        if len(values) != 1:
            raise Unsupported(f"{name} of {len(values)} numbers, expected one")
        return values[0]

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.attributes.get(name, default)
        return bool(int(value)) if isinstance(value, Number) else value is None or bool(value)

    def ints(self, name: str, default: Sequence[int] | None = None) -> tuple[int, ...]:
        if default is not None and self.attributes.get(name) is None:
            return tuple(default)
        return _ints(self._get(name), name)

    def axes(self, name: str, rank: int, default: Sequence[int] | None = None) -> tuple[int, ...]:
        """Distinct axes of a tensor of this rank. Raises Unsupported for others."""
        axes = self.ints(name, default)
        if len(set(axes)) < len(axes) or any(not 0 <= d < rank for d in axes):
            raise Unsupported(f"{name} = {list(axes)}, expected distinct axes in [0, {rank})")
        return axes

    def axis(self, name: str, rank: int) -> int:
        """As `axes`, one of them."""
        axis = self.int(name)
        if not 0 <= axis < rank:
            raise Unsupported(f"{name} = {axis}, expected an axis in [0, {rank})")
        return axis

    def per_axis(self, name: str, rank: int, default: int) -> tuple[int, ...]:
        """A number for each of `rank` axes. Raises Unsupported for more or fewer."""
        values = self.ints(name, (default,) * rank)
        if len(values) != rank:
            raise Unsupported(f"{name} of {len(values)} numbers, expected {rank}")
        return values

    def pairs(self, name: str, count: int) -> tuple[tuple[int, int], ...]:
        """[[low, high], ...]; zeros where the attribute is absent."""
        flat = self.ints(name, (0,) * 2 * count)
        if len(flat) != 2 * count:
            raise Unsupported(f"{name} of {len(flat)} numbers, expected {2 * count}")
        return tuple(zip(flat[::2], flat[1::2], strict=True))

    def word(self, name: str, default: str | None = None) -> str:
        """LT of #stablehlo<comparison_direction LT>."""
        if default is not None and name not in self.attributes:
            return default
        value = self._get(name)
        if isinstance(value, Raw):
            return value.text.rstrip(">").replace("<", " ").split()[-1]
        return str(value)

    def raw(self, name: str) -> str:
        """A dialect attribute as it is written."""
        value = self._get(name)
        return value.text if isinstance(value, Raw) else ""

    def text(self, name: str, default: str = "") -> str:
        value = self.attributes.get(name, default)
        return value.name if isinstance(value, Symbol) else value if isinstance(value, str) else default

    def fields(self, name: str) -> Call:
        """A dialect attribute (`#stablehlo.gather<...>`) whose fields are then read as attributes are."""
        value = self._get(name)
        attributes = parser.fields(value.text) if isinstance(value, Raw) and "<" in value.text else None
        if attributes is None:
            raise Unsupported(f"{name} = {value}")
        return Call(self.importer, self.op, self.scope, self.types, self.loc, attributes)

    def sizes(self, node: object) -> tuple[DimLike, ...]:
        """The elements of an integer tensor as sizes. Raises Unsupported if they are known only at run time."""
        if not isinstance(node, Node):
            raise Unsupported("a shape that is no integer tensor")
        return self.importer.sizes.dims(node)


def _ints(value: Attribute, name: str) -> tuple[int, ...]:
    match value:
        case Ints(values, _):
            return values
        case Dense():
            return tuple(int(v) for v in literals.arrays(value, {})[0].reshape(-1))
        case list():
            return tuple(v for item in value for v in _ints(item, name))
        case Number():
            return (int(value),)
        case bool():
            return (int(value),)
        case _:
            raise Unsupported(f"{name} = {value}")


def plain_value(value: Attribute, name: str) -> object:
    """A number, a text, or a tuple of them. Raises Unsupported for other attributes."""
    match value:
        case bool() | str():
            return value
        case Number(text, type):
            if type.startswith("f") and text.startswith(("0x", "-0x")):
                raise Unsupported(f"{name} = {text}, which is not finite")
            return float(text) if type.startswith(("f", "bf")) else int(value)
        case Ints(values, _):
            return values
        case Dense():
            return tuple(literals.arrays(value, {})[0].reshape(-1).tolist())
        case list():
            return tuple(plain_value(item, name) for item in value)
        case _:
            raise Unsupported(f"{name} = {value}")


def constant_array(node: Node) -> np.ndarray | None:
    """The array of a constant."""
    return node.op.value if isinstance(node.op, Const) else None


Row = Callable[..., object]


class Table(rows.Table[Row]):
    """Operation name -> row: a function of a Call and the operands that returns the result, or a tuple of results."""

    def __init__(self) -> None:
        super().__init__(lambda fn: fn, lambda name: name if "." in name else f"stablehlo.{name}")


@dataclass(frozen=True)
class Rows:
    """real: of tensors; complex: of an operation with a complex operand; quantized: with a quantized type."""

    real: Mapping[str, Row]
    complex: Mapping[str, Row]
    quantized: Mapping[str, Row]
