"""What a row sees of the operator that it imports, and the tables of rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from ingot import ops
from ingot.frontends.shared import rows
from ingot.frontends.shared.composites.complex import Complex
from ingot.frontends.shared.computed_sizes import ComputedSizes
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.shared.sizes import Sizes
from ingot.frontends.tflite import schema
from ingot.frontends.tflite.file import Model, Operator, Quantization, Tensor
from ingot.ir.dims import DimLike, is_static
from ingot.ir.node import Node
from ingot.ir.types import DType
from ingot.support.dataclass import dataclass
from ingot.support.errors import ImportModelError

LEVEL_DTYPES = ("i8", "u8", "i16")


@dataclass(frozen=True)
class Resource:
    """A handle of the variable `name`."""

    name: str


@dataclass(frozen=True)
class Missing:
    """The result of what was refused."""


@dataclass
class Variable:
    """label: of the graph's input; first: the initial value; carrier: the value before a call; node: the current value
    during the walk."""

    label: str
    first: np.ndarray
    carrier: Node
    node: Node


Value = Node | Complex | Resource | Missing
Result = Value | Sequence[Value]


class Context(Protocol):
    """The part of the importer that rows use; see `importer.Importer`."""

    model: Model
    inputs: frozenset[str]
    variables: dict[str, Variable]
    sizes: Sizes
    computed_sizes: ComputedSizes

    def run(self, index: int, arguments: Sequence[Value]) -> tuple[Value, ...]: ...
    def random_key(self) -> Node: ...
    def malformed(self, got: str) -> ImportModelError: ...
    def write(self, index: int, tensor: int, node: Node) -> None: ...
    def initialise(self, index: int) -> None: ...
    def assign(self, name: str, node: Node) -> None: ...
    def inside(self, index: int, values: Sequence[Node], names: Sequence[str]) -> list[Node]: ...
    def touched(self, *subgraphs: int) -> tuple[str, ...]: ...


@dataclass(frozen=True)
class Call:
    """One operator of a subgraph. values: of its operands, None for an omitted one; tensors: the operands' declarations
    in the file."""

    importer: Context
    op: Operator
    values: tuple[Value | None, ...]
    tensors: tuple[Tensor | None, ...]
    results: tuple[Tensor, ...]
    loc: str
    subgraph: int = 0

    def has(self, i: int) -> bool:
        return i < len(self.values) and self.values[i] is not None

    def x(self, i: int = 0) -> Node:
        value = self.values[i] if i < len(self.values) else None
        if not isinstance(value, Node):
            raise Unsupported("" if isinstance(value, Missing) else f"operand {i}, which is no tensor")
        return value

    def z(self, i: int = 0) -> Complex:
        value = self.values[i]
        if not isinstance(value, Complex):
            raise Unsupported("" if isinstance(value, Missing) else f"operand {i}, which is not complex")
        return value

    def xs(self) -> tuple[Node, ...]:
        return tuple(self.x(i) for i in range(len(self.values)))

    def dims(self, i: int) -> tuple[DimLike, ...]:
        """The elements of an operand as sizes. Raises Unsupported if they are known only at run time."""
        return self.importer.sizes.dims(self.x(i))

    def ints(self, i: int) -> tuple[int, ...]:
        """The elements of a constant operand."""
        dims = self.dims(i)
        if not is_static(dims):
            raise Unsupported(f"operand {i} depends on sizes")
        return tuple(int(d) for d in dims if isinstance(d, int))

    def _option(self, name: str, default: Any) -> Any:
        return self.op.options.get(name, default)

    def int(self, name: str, default: int = 0) -> int:
        return int(self._option(name, default))

    def float(self, name: str, default: float = 0.0) -> float:
        return float(self._option(name, default))

    def flag(self, name: str) -> bool:
        return bool(self._option(name, False))

    def list(self, name: str) -> tuple[int, ...]:
        return tuple(int(v) for v in self._option(name, ()))

    def floats(self, name: str) -> tuple[float, ...]:
        return tuple(float(v) for v in self._option(name, ()))

    def type(self, i: int = 0) -> DType:
        """The declared type of result `i`."""
        dtype = schema.dtype(self.results[i].type)
        if dtype is None:
            raise Unsupported(f"of {schema.type_name(self.results[i].type)}")
        return dtype

    def keep(self, i: int, value: Node) -> None:
        """Assign the variable that is operand `i`."""
        tensor = self.tensors[i]
        if tensor is None or not tensor.variable:
            raise Unsupported(f"a state that is no variable, operand {i}")
        self.importer.write(self.subgraph, self.op.inputs[i], value)

    # --- levels

    def levels(self, i: int = 0) -> Quantization:
        """The quantization of operand `i`."""
        return _quantization_of(self.tensors[i] if i < len(self.tensors) else None, f"operand {i}")

    def out_levels(self, i: int = 0) -> Quantization:
        """The quantization of result `i`."""
        return _quantization_of(self.results[i], f"result {i}")

    def intermediates(self) -> tuple[Quantization | None, ...]:
        """The quantization of the op's inner values."""
        tensors = self.importer.model.subgraphs[self.subgraph].tensors
        return tuple(None if i < 0 else tensors[i].quantization for i in self.op.intermediates)

    def is_quantized(self) -> bool:
        """Whether the op is quantized: whether its first operand or its result is."""
        return any(holds_levels(t) for t in (*self.tensors[:1], *self.results[:1]))

    def activation(self, x: Node) -> Node:
        """The fused activation."""
        return activate(x, self.int("activation"))


def activate(x: Node, activation: int) -> Node:
    """activation: a number of the schema's ActivationFunctionType."""
    match activation:
        case 0:
            return x
        case 1:
            return ops.clip(x, 0)
        case 2:
            return ops.clip(x, -1, 1)
        case 3:
            return ops.clip(x, 0, 6)
        case 4:
            return ops.Tanh()(x)
        case _:
            raise Unsupported(f"activation {activation}")


def holds_levels(tensor: Tensor | None) -> bool:
    """Whether a tensor holds levels of a supported type, with one scale or one for each channel."""
    dtype = tensor is not None and tensor.quantization is not None and schema.dtype(tensor.type)
    return bool(dtype) and str(dtype) in LEVEL_DTYPES


def _quantization_of(tensor: Tensor | None, what: str) -> Quantization:
    if tensor is None or tensor.quantization is None:
        raise Unsupported(f"{what} has no scale")
    if tensor.quantization.details:
        raise Unsupported(f"{what} is quantized by blocks")
    return tensor.quantization


@dataclass(frozen=True)
class Row:
    """is_movement: its results hold unchanged elements of operand 0, including levels. takes_stored: it takes levels as
    their stored integers."""

    fn: Callable[..., Result]
    is_movement: bool = False
    takes_stored: bool = False


class Table(rows.Table[Row]):
    """Rows by the names of operators: functions of a Call that return the result, or the results in order."""

    def __init__(self) -> None:
        super().__init__(Row)


@dataclass(frozen=True)
class Rows:
    """real: rows on plain numbers; quantized: rows on levels; missing_reasons: why an operator has no row."""

    real: Mapping[str, Row]
    quantized: Mapping[str, Row]
    custom: Mapping[str, Row]
    missing_reasons: Mapping[str, str]

    def find(self, c: Call) -> Row:
        """Raises Unsupported."""
        if c.op.name == "CUSTOM":
            row = self.custom.get(c.op.custom)
            if row is None:
                raise Unsupported("a custom op")
            return row
        name = c.op.name
        quantized = self.quantized.get(name)
        if quantized is not None and c.is_quantized():
            return quantized
        real = self.real.get(name)
        if real is None:
            raise Unsupported(self.missing_reasons.get(name, ""))
        if c.is_quantized() and not (real.is_movement or real.takes_stored):
            raise Unsupported("of quantized values")
        return real
