"""The values of the importer, and the interface through which a row sees the node that it imports."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Protocol, TypeVar

import numpy as np

from ingot import ops
from ingot.frontends.shared import quotients, rows
from ingot.frontends.shared.composites.complex import Complex
from ingot.frontends.shared.composites.movement import normal_axis
from ingot.frontends.shared.computed_sizes import ComputedSizes
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.shared.sizes import Sizes
from ingot.frontends.tensorflow.bundle import Bundle
from ingot.frontends.tensorflow.proto import (
    Function,
    FunctionDef,
    Message,
    NodeDef,
    function_of,
    shape_of,
    single_float,
)
from ingot.frontends.tensorflow.tensors import COMPLEX, dtype_of_code, to_array
from ingot.ir.dims import Dim, DimLike
from ingot.ir.node import Const, Node
from ingot.ir.types import DType, i64
from ingot.support.dataclass import dataclass
from ingot.support.errors import UnsupportedOp
from ingot.support.limits import max_run_time_size


@dataclass(frozen=True)
class Variable:
    """The handle of a variable. ref: whether it is a reference variable of TensorFlow 1, which each use reads."""

    key: str
    ref: bool = False


@dataclass(frozen=True, eq=False)
class Strings:
    """A constant of strings: names of tensors in a checkpoint."""

    items: np.ndarray


@dataclass(frozen=True)
class TensorList:
    """A list of tensors of one type. buffer: [length, ...], the stacked elements; None while their shape is unknown."""

    dtype: DType
    length: DimLike
    buffer: Node | None = None


@dataclass(frozen=True)
class Missing:
    """The result of a node that was refused. cut: its name, if it is a tensor that the caller could supply as an
    input."""

    cut: str = ""


Value = Node | Complex | Variable | Strings | TensorList | Missing
Result = Value | Sequence[Value] | None


@dataclass(eq=False)
class Frame:
    """One graph or function body. prefix: of the places of its nodes. effects: whether its writes to variables are
    tracked."""

    nodes: Mapping[str, NodeDef]
    prefix: str = ""
    attributes: Mapping[str, Message] = field(default_factory=dict[str, Message])
    arguments: Mapping[str, Value] | None = None
    effects: bool = False
    depth: int = 0
    values: dict[str, Sequence[Value] | Missing] = field(default_factory=dict[str, Sequence[Value] | Missing])


class Context(Protocol):
    """The part of the importer that rows use; see `walk.Walk`."""

    functions: Mapping[str, FunctionDef]
    sizes: Sizes
    bundle: Bundle | None
    is_restoring: bool
    refused: list[UnsupportedOp]
    has_lost_writes: bool
    computed_sizes: ComputedSizes
    upper_bounds: dict[Node, DimLike]
    appends: set[tuple[Node, TensorList]]
    is_finding: bool

    def row_of(self, node: NodeDef) -> Row | FunctionDef | None: ...
    def call(self, c: Call, function: Function, arguments: Sequence[Value]) -> list[Value]: ...
    def writes(self, name: str) -> bool: ...
    def random_key(self) -> Node: ...
    def require(self, size: DimLike, what: str) -> None: ...
    def require_equal(self, a: DimLike, b: DimLike, what: str) -> None: ...
    def may_find(self, nodes: Sequence[Node]) -> bool: ...
    def read(self, variable: Variable) -> Node: ...
    def write(self, variable: Variable, value: Node) -> None: ...


@dataclass(frozen=True)
class Call:
    """One node: its attributes by name, and the importer (`walk`) that it belongs to."""

    walk: Context
    node: NodeDef
    frame: Frame
    loc: str

    @property
    def op(self) -> str:
        return self.node.op

    def has(self, name: str) -> bool:
        return self._find(name) is not None

    def _find(self, name: str) -> Message | None:
        attribute = self.node.attributes.get(name)
        if attribute is not None and attribute.has(9):  # the call of the function says it
            attribute = self.frame.attributes.get(attribute.text(9))
        return attribute

    def _get(self, name: str) -> Message:
        attribute = self._find(name)
        if attribute is None:
            raise Unsupported(f"no attribute {name}")
        return attribute

    def dtype(self, name: str = "T", default: DType | None = None) -> DType:
        if default is not None and self._find(name) is None:
            return default
        return dtype_of_code(self._get(name).int(6))

    def code(self, name: str) -> int:
        """The code of an element type of any kind."""
        return self._get(name).int(6)

    def complex_part(self, name: str) -> DType | None:
        """The dtype of the parts of a complex type; None for other types."""
        return COMPLEX.get(self.code(name))

    def codes(self, name: str) -> list[int]:
        return self._get(name).message(1).ints(6)

    def int(self, name: str, default: int | None = None) -> int:
        if default is not None and not self.has(name):
            return default
        return self._get(name).int(3)

    def flag(self, name: str) -> bool:
        attribute = self._find(name)
        return attribute is not None and bool(attribute.int(5))

    def float(self, name: str, default: float | None = None) -> float:
        if default is not None and not self.has(name):
            return default
        return single_float(self._get(name), 4)

    def str(self, name: str, default: str = "") -> str:
        attribute = self._find(name)
        values = attribute.bytes(2) if attribute is not None else []
        return bytes(values[-1]).decode(errors="replace") if values else default

    def bytes(self, name: str) -> bytes:
        return b"".join(map(bytes, self._get(name).bytes(2)[-1:]))

    def texts(self, name: str) -> list[str]:
        """The elements of a list of strings."""
        attribute = self._find(name)
        return [] if attribute is None else [bytes(b).decode(errors="replace") for b in attribute.message(1).bytes(2)]

    def ints(self, name: str) -> tuple[int, ...]:
        attribute = self._find(name)
        return () if attribute is None else tuple(attribute.message(1).ints(3))

    def floats(self, name: str) -> np.ndarray:
        """The elements of a list of floats."""
        attribute = self._find(name)
        return np.zeros(0, np.float32) if attribute is None else attribute.message(1).array(4, "<f4")

    def shape(self, name: str) -> tuple[int | None, ...] | None:
        attribute = self._find(name)
        return None if attribute is None else shape_of(attribute.message(7))

    def tensor(self, name: str) -> np.ndarray:
        return to_array(self._get(name).message(8))

    def function(self, name: str) -> Function:
        return function_of(self._get(name).message(10))

    def functions(self, name: str) -> list[Function]:
        return [function_of(m) for m in self._get(name).message(1).messages(9)]

    # operands

    def sizes(self, x: Value) -> tuple[DimLike, ...]:
        """The elements of an integer tensor as sizes. Raises Unsupported if they are known only at run time."""
        if not isinstance(x, Node):
            raise Unsupported("a shape that is no tensor")
        return self.walk.sizes.dims(x)

    def elements(self, x: Value) -> list[DimLike | Node]:
        """The elements of an integer tensor in order, as sizes if they are known."""
        try:
            return list(self.sizes(x))
        except Unsupported:
            count = x.type.size if isinstance(x, Node) else None
            if not isinstance(x, Node) or not isinstance(count, int) or not x.dtype.is_integer:
                raise
            source = x
            while isinstance(source.op, ops.Reshape):
                (source,) = source.inputs
            is_stack = isinstance(source.op, ops.Concat) and all(i.type.size == 1 for i in source.inputs)
            pieces = source.inputs if is_stack else ()
            parts = [ops.reshape(p, ()) for p in pieces]
            line = ops.reshape(x, (count,))
            return [self._size_or_node(p) for p in parts or (ops.index_axis(line, 0, i) for i in range(count))]

    def _size_or_node(self, x: Node) -> DimLike | Node:
        try:
            return self.size(x)
        except Unsupported:
            return x

    def lengths(self, x: Value) -> tuple[DimLike, ...]:
        """As `sizes`, but values known only at run time become computed sizes, and other values may be expressed in
        terms of them."""
        elements = self.elements(x)
        if not self.walk.may_find([d for d in elements if isinstance(d, Node)]):
            return self.sizes(x)
        sizes, lengths = self.walk.sizes, list[DimLike]()
        for d in elements:
            if isinstance(d, Node):
                known_size = sizes.size_of(d)
                size = self._computed_size(d) if known_size is None else known_size
                sizes = sizes.with_size(d, size)
                lengths.append(size)
            else:
                lengths.append(d)
        return tuple(lengths)

    def _computed_size(self, x: Node) -> DimLike:
        """The computed size whose value at run time is `x`."""
        max_size = quotients.upper_bound(self.walk.sizes.elements, x)
        return self.walk.computed_sizes.size(
            ops.cast(x, i64), max_run_time_size() if max_size is None else max_size, "size"
        )

    def size(self, x: Value) -> DimLike:
        (value,) = self.sizes(x)
        return value

    def numbers(self, x: Value) -> tuple[int, ...]:
        """The elements of an integer tensor as plain numbers."""
        sizes = self.sizes(x)
        if any(isinstance(d, Dim) for d in sizes):
            raise Unsupported(f"numbers that depend on sizes: [{', '.join(map(str, sizes))}]")
        return tuple(int(d) for d in sizes)

    def axis(self, x: Value, rank: int) -> int:
        """An axis, counted from the front."""
        (value,) = self.numbers(x)
        return normal_axis(value, rank)

    def array(self, x: Value) -> np.ndarray:
        """The value of a constant. Raises Unsupported if `x` is not constant."""
        if not isinstance(x, Node) or not isinstance(x.op, Const):
            raise Unsupported("an operand that is no constant")
        return x.op.value


V = TypeVar("V", bound=Value)


def expect(value: Value, kind: type[V], what: str) -> V:
    """`value`, if it is an instance of `kind`. Raises Unsupported otherwise."""
    if not isinstance(value, kind):
        raise Unsupported("" if isinstance(value, Missing) else f"a value that is no {what}")
    return value


RowFunction = Callable[..., Result]


@dataclass(frozen=True)
class Row:
    """results: the names of the op's results if each is one tensor; () for one result, or one list. any_kind: whether
    it accepts values other than tensors, including missing ones."""

    fn: RowFunction
    results: tuple[str, ...] = ()
    any_kind: bool = False


class Table(rows.Table[Row]):
    """Op -> row: a function of a Call and the operands that returns the result, or the results in order."""

    def __init__(self) -> None:
        super().__init__(Row)
