"""The graph: interned, immutable nodes.

    node   ::= op(node, ...) : type, ...
    graph  ::= inputs -> outputs, over nodes

A node is an op (a frozen dataclass whose fields are its attributes) applied to nodes. Building the same op on the same
inputs gives the same node, so equality is identity and common subexpressions are one node from the start. An op with
several results makes a node with several types, read through `Project`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, fields, replace
from functools import cache, cached_property
from typing import ClassVar, Self, TypeAlias
from weakref import WeakValueDictionary

import numpy as np

from ingot.ir.array import Array, Rows
from ingot.ir.dims import Dim, DimLike, is_negative, substitute, symbols_of
from ingot.ir.types import Box, DType, Shape, TensorType, WeightAxes, dtype_of, static_shape
from ingot.ir.walk import rebuild, topological
from ingot.support.dataclass import dataclass
from ingot.support.errors import ShapeError, VerifyError

Types = TensorType | tuple[TensorType, ...]
Arrays = np.ndarray | tuple[np.ndarray, ...]
Samples: TypeAlias = "Iterator[tuple[Op, tuple[np.ndarray, ...]]]"  # see `Op.samples`
Cropped: TypeAlias = "tuple[Op, tuple[Box | None, ...]] | None"  # see `Op.cropped`


@dataclass(frozen=True)
class Op:
    """Base of every op. A subclass is a frozen dataclass with a class variable `name`; its fields are its attributes.

    Fields hold int, float, str, bool, None, Dim, DType, TensorType, Array (Const only), Graph, or tuples of these.
    """

    name: ClassVar[str] = ""
    # f(a, b) == f(b, a) bit for bit: patterns match such an op in either order
    commutative: ClassVar[bool] = False
    # every element of the result is an element of input 0: properties of all its elements carry over
    rearranges: ClassVar[bool] = False
    # `rearranges`, and each element of input 0 is in the result exactly once
    permutes: ClassVar[bool] = False
    # an element costs more to recompute than to load
    costly: ClassVar[bool] = False
    # so cheap that each reader may have its own copy
    duplicable: ClassVar[bool] = False
    # False: it only names a value: an input, a constant, one of several results
    computes: ClassVar[bool] = True
    # the pointwise ops that follow may be applied to its result before it is stored
    takes_epilogue: ClassVar[bool] = False
    # its operands may be computed directly into its result
    holds_operands: ClassVar[bool] = False
    # random: its value differs between calls, so it is not folded or duplicated
    draws: ClassVar[bool] = False
    # operands of sums of products that may have a narrower float type than the sums: weights, and other values
    stored_weights: ClassVar[tuple[int, ...]] = ()
    stored_values: ClassVar[tuple[int, ...]] = ()
    REGISTRY: ClassVar[dict[str, type[Op]]] = {}

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        if not cls.__dict__.get("name"):
            return
        registered = Op.REGISTRY.get(cls.name)
        # dataclass(slots=True) creates a class twice under one name
        if registered is not None and registered.__qualname__ != cls.__qualname__:
            raise TypeError(f"two ops are named {cls.name!r}: {registered.__qualname__} and {cls.__qualname__}")
        Op.REGISTRY[cls.name] = cls

    def infer(self, *inputs: TensorType) -> Types:
        """The type rule: result type(s) from input types, on symbolic shapes. Raises ShapeError (see `expect`)."""
        raise NotImplementedError(f"{type(self).__name__}.infer")

    def constraints(self, *inputs: TensorType) -> Iterator[tuple[DimLike, str]]:
        """(size, message): sizes that must not be negative for these inputs, such as the size of an operand less that
        of a window. `infer` raises for one that is always negative (`expect_constraints`), a call for one that its
        sizes make negative."""
        return iter(())

    def reference(self, *inputs: np.ndarray) -> Arrays:
        """The semantics, in plain numpy, on static shapes (symbols in attributes are already substituted)."""
        raise NotImplementedError(f"{type(self).__name__}.reference")

    def lower(self, *inputs: Node) -> Node | tuple[Node, ...] | None:
        """Return the same value in simpler ops; None for a primitive."""
        return None

    def flops(self, *inputs: TensorType) -> DimLike:
        """Return the floating-point operations of sums of products, 2 per multiply-add, for `explain` and cost
        models."""
        return 0

    def weight_axes(self, *inputs: TensorType) -> WeightAxes | None:
        """Return the axes of operand 1, if it may be weights with separate output channels."""
        return None

    def cropped(self, box: Box, *inputs: TensorType) -> Cropped:
        """Return (op, boxes) that compute only `self(x, ...)[box]`: `op(x[boxes[0]], ...)` of the operands with a box.

        inputs: the types of the full operands. None: the op can only be computed in full.
        """
        return None

    def with_sums(self, dtype: DType) -> Op:
        """Return this op with sums and results of `dtype`, for narrower operands."""
        return self

    @classmethod
    def samples(cls) -> Samples:
        """(op, inputs) pairs for the conformance test: odd sizes, edge attributes, dtypes."""
        return iter(())

    def expect(self, condition: bool, message: str, sizes: tuple[DimLike, DimLike] | None = None) -> None:
        """Raise ShapeError `<op name>: message` unless `condition`. sizes: two sizes that must be equal."""
        if not condition:
            raise ShapeError(f"{self.name}: {message}").between(sizes)

    def expect_constraints(self, *inputs: TensorType) -> None:
        """Raise ShapeError where one of `constraints` cannot be met."""
        for size, message in self.constraints(*inputs):
            self.expect(not is_negative(size), message)

    @cached_property
    def _field_names(self) -> tuple[str, ...]:
        return tuple(f.name for f in fields(self))

    def attributes(self) -> dict[str, object]:
        """Field name -> value, in declaration order."""
        return {name: getattr(self, name) for name in self._field_names}

    @property
    def bodies(self) -> tuple[Graph, ...]:
        """The graphs among this op's attributes, in order. Fields with graphs are annotated with `Graph`."""
        names = _graph_fields(type(self))
        if not names:
            return ()
        out: list[Graph] = []
        for name in names:
            value = getattr(self, name)
            out += (value,) if isinstance(value, Graph) else tuple(value)
        return tuple(out)

    def map_bodies(self, fn: Callable[[Graph], Graph]) -> Self:
        """Return this op with `fn` applied to each of its graphs; the op itself if none changes."""
        changed: dict[str, object] = {}
        for name in _graph_fields(type(self)):
            old = getattr(self, name)
            new = fn(old) if isinstance(old, Graph) else tuple(fn(g) for g in old)
            if new != old:
                changed[name] = new
        return replace(self, **changed) if changed else self

    def substitute(self, values: Mapping[str, int | Dim]) -> Self:
        """Return this op with the symbols in its attributes replaced."""
        new = {k: _substitute_attr(v, values) for k, v in self.attributes().items()}
        changed = {k: v for k, v in new.items() if v is not getattr(self, k)}
        return replace(self, **changed) if changed else self

    @cached_property
    def free_symbols(self) -> frozenset[str]:
        """The symbols in the attributes."""
        return _symbols_in(self.attributes().values())

    def __call__(self, *inputs: Node, loc: str = "") -> Node:
        """Apply the op to nodes: infer the type (raising ShapeError with `loc` added) and intern."""
        return Node.make(self, inputs, loc)


@cache
def _graph_fields(cls: type[Op]) -> tuple[str, ...]:
    return tuple(f.name for f in fields(cls) if "Graph" in str(f.type))


def _substitute_attr(value: object, values: Mapping[str, int | Dim]) -> object:
    if isinstance(value, Dim):
        return substitute(value, values)
    if isinstance(value, tuple):
        new = tuple(_substitute_attr(v, values) for v in value)
        return value if all(a is b for a, b in zip(new, value, strict=True)) else new
    return value.substitute(values) if isinstance(value, TensorType | Graph) else value


class Node:
    """An interned application of an op. Compare with `is` or `==` (identity)."""

    __slots__ = ("__weakref__", "id", "inputs", "loc", "op", "types")
    op: Op
    inputs: tuple[Node, ...]
    types: tuple[TensorType, ...]
    loc: str
    id: int

    _interned: ClassVar[WeakValueDictionary[tuple[object, ...], Node]] = WeakValueDictionary()
    _ids: ClassVar[Iterator[int]] = itertools.count()

    @staticmethod
    def make(op: Op, inputs: Sequence[Node] = (), loc: str = "", types: tuple[TensorType, ...] | None = None) -> Node:
        """Return the node of `op` on `inputs`. types: what `op` infers for them, if known."""
        inputs = tuple(inputs)
        key = (op, *[n.id for n in inputs])
        interned = Node._interned.get(key)
        if interned is not None:
            return interned
        if types is None:
            try:
                inferred = op.infer(*[n.type for n in inputs])
            except ShapeError as e:
                where = loc or next((n.loc for n in inputs if n.loc), "")
                located = where and " at " not in str(e)
                raise ShapeError(str(e), where=where).between(e.sizes) if located else e from None
            types = inferred if isinstance(inferred, tuple) else (inferred,)
        node = object.__new__(Node)
        node.op = op
        node.inputs = inputs
        node.types = types
        node.loc = loc
        node.id = next(Node._ids)
        Node._interned[key] = node
        return node

    @property
    def type(self) -> TensorType:
        """The type of the only result. Raises VerifyError for a node with several results: project one first."""
        if len(self.types) != 1:
            raise VerifyError(f"{self.op.name} has {len(self.types)} results; read one with Project(index)")
        return self.types[0]

    @property
    def shape(self) -> tuple[int | Dim, ...]:
        return self.type.shape

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def constant(self) -> Array | None:
        """The array of a constant; None for any other node."""
        return self.op.array if isinstance(self.op, Const) else None

    @property
    def is_leaf(self) -> bool:
        """Whether it is an input or a constant."""
        return not self.op.computes and not self.inputs

    @property
    def results(self) -> tuple[Node, ...]:
        """One node per result: this node itself when it has one."""
        return (self,) if len(self.types) == 1 else tuple(Project(i)(self) for i in range(len(self.types)))

    def with_inputs(self, inputs: Sequence[Node]) -> Node:
        """Return the same op on other inputs; this node if they are the same."""
        if isinstance(self.op, Project):
            return self.op(*inputs, loc=self.loc)
        is_same = True
        for a, b in zip(inputs, self.inputs, strict=True):
            if a is not b:
                is_same = False
                if a.types != b.types:
                    return self.op(*inputs, loc=self.loc)
        return self if is_same else Node.make(self.op, inputs, self.loc, self.types)

    def __repr__(self) -> str:
        ins = ", ".join(f"%{n.id}" for n in self.inputs)
        return f"%{self.id} = {self.op.name}({ins}) : {', '.join(map(str, self.types))}"


@dataclass(frozen=True)
class Input(Op):
    """A graph input.

    elements: the elements of a small integer tensor of sizes, flattened; () for other inputs. The input's data give the
    value of a symbol among them, as shapes give those of symbols in shapes.
    """

    name: ClassVar[str] = "input"
    computes: ClassVar[bool] = False
    label: str
    type: TensorType
    elements: Shape = ()

    def infer(self, *inputs: TensorType) -> TensorType:
        return self.type


@dataclass(frozen=True)
class Const(Op):
    """A constant tensor."""

    name: ClassVar[str] = "const"
    computes: ClassVar[bool] = False
    array: Array

    @property
    def value(self) -> np.ndarray:
        return self.array.value

    def infer(self, *inputs: TensorType) -> TensorType:
        return TensorType(dtype_of(self.array.dtype), self.array.shape)

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        return self.value


def const(value: object, dtype: np.dtype | type | None = None, loc: str = "") -> Node:
    """Return a constant node of anything that numpy converts to an array."""
    return Const(Array(np.asarray(value, dtype)))(loc=loc)


def splat_of(node: Node) -> np.generic | None:
    """The common value of all elements of `node`: a constant, seen through ops that only rearrange elements; else
    None."""
    while node.op.rearranges:
        node = node.inputs[0]
    return node.constant.splat if node.constant is not None else None


def deferred_const(
    like: TensorType, make: Callable[[], np.ndarray], loc: str = "", rows: Rows | None = None,
    key: Hashable | None = None,
) -> Node:  # fmt: skip
    """Return a constant node of type `like` with the array that `make` returns when it is read. rows, key: as of
    `Array`."""
    return Const(Array.deferred(like.dtype.numpy, static_shape(like.shape), make, rows, key))(loc=loc)


@dataclass(frozen=True)
class Project(Op):
    """Result `index` of a node with several results."""

    name: ClassVar[str] = "project"
    computes: ClassVar[bool] = False
    index: int

    def infer(self, *inputs: TensorType) -> TensorType:
        raise AssertionError("types of a projection are set by Project.__call__")

    def __call__(self, *inputs: Node, loc: str = "") -> Node:
        (source,) = inputs
        key = (self, source.id)
        interned = Node._interned.get(key)
        if interned is not None:
            return interned
        node = object.__new__(Node)
        node.op, node.inputs, node.types, node.loc = self, inputs, (source.types[self.index],), loc or source.loc
        node.id = next(Node._ids)
        Node._interned[key] = node
        return node


@dataclass(frozen=True)
class Graph:
    """Inputs (Input nodes, in order) and outputs.

    output_names: of the results; () if they have none.
    bounds: (symbol, lowest, highest), None where unbounded.
    conditions: sizes that must not be negative and that bounds of one symbol cannot express: 19 - a - b for a + b < 20.
    sizes: (symbol, largest value) of each computed size. The last outputs are the values of these symbols, i64 scalars,
    in this order; the outputs before them are the graph's results. The name of such a symbol starts with `$`. Neither
    its value nor its largest value depends on it or on later ones.
    state: names of the values that persist from run to run. The last inputs are the values of the state, and the first
    outputs their new values for the next run, both in this order.
    """

    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    output_names: tuple[str, ...] = ()
    bounds: tuple[tuple[str, int | None, int | None], ...] = field(default=())
    conditions: tuple[Dim, ...] = ()
    sizes: tuple[tuple[str, DimLike], ...] = ()
    state: tuple[str, ...] = ()

    @property
    def state_pairs(self) -> tuple[tuple[Node, Node], ...]:
        """(input, new value) of each value of the state."""
        first = len(self.inputs) - len(self.state)
        return tuple(zip(self.inputs[first:], self.outputs[: len(self.state)], strict=True))

    @property
    def results(self) -> tuple[Node, ...]:
        """The outputs without the values of computed sizes."""
        return self.outputs[: len(self.outputs) - len(self.sizes)]

    @property
    def size_nodes(self) -> dict[str, Node]:
        """The nodes that compute the values of computed sizes, by symbol."""
        return dict(zip((name for name, _ in self.sizes), self.outputs[len(self.results) :], strict=True))

    @cached_property
    def size_requirements(self) -> dict[str, tuple[Node, ...]]:
        """By computed size, what comes before values of it: its node, and those of the sizes that bound it."""
        requirements: dict[str, tuple[Node, ...]] = {}
        for (name, most), node in zip(self.sizes, self.size_nodes.values(), strict=True):
            requirements[name] = (node, *(n for s in sorted(symbols_of(most)) for n in requirements.get(s, ())))
        return requirements

    def nodes(self) -> list[Node]:
        """The inputs and all nodes that the outputs need, operands before users, sizes before values of their size."""
        return list(self._order)

    @cached_property
    def _order(self) -> tuple[Node, ...]:
        # cached: passes, their checks and their traces all use it
        roots = (*self.inputs, *self.outputs)
        required = self.size_requirements

        def operands(n: Node) -> tuple[Node, ...]:
            sizes = free_symbols(n) & required.keys()
            return (*n.inputs, *(r for s in sorted(sizes) for r in required[s])) if sizes else n.inputs

        return tuple(topological(roots, operands) if required else topological(roots))

    def uses(self) -> dict[Node, list[Node]]:
        """Return node -> the nodes that read it, in order. Outputs do not count as users."""
        out: dict[Node, list[Node]] = {}
        for n in self.nodes():
            for i in n.inputs:
                out.setdefault(i, []).append(n)
        return out

    def symbols(self) -> tuple[str, ...]:
        """Names of the symbols in the inputs' shapes and elements, in order of appearance, then of computed sizes."""
        names: dict[str, None] = {}
        for n in self.inputs:
            for d in (*n.shape, *size_elements(n)):
                names.update(dict.fromkeys(sorted(symbols_of(d))))
        names.update(dict.fromkeys(name for name, _ in self.sizes))
        return tuple(names)

    @cached_property
    def free_symbols(self) -> frozenset[str]:
        """The free symbols: those of types and attributes, nested graphs included, but for the computed sizes."""
        computed = {name for name, _ in self.sizes}
        return frozenset().union(*(free_symbols(n) for n in self.nodes())) - computed

    def with_outputs(self, outputs: Iterable[Node]) -> Graph:
        """Return this graph with other outputs; the graph itself if they are the same."""
        outputs = tuple(outputs)
        return self if outputs == self.outputs else replace(self, outputs=outputs)

    def substitute(self, values: Mapping[str, int | Dim]) -> Graph:
        """Return this graph with symbols replaced. Raises ShapeError for sizes that violate a condition."""

        def substituted(n: Node, inputs: Sequence[Node]) -> Node:
            op = n.op.substitute(values)
            return n.with_inputs(inputs) if op is n.op else op(*inputs, loc=n.loc)

        nodes = rebuild((*self.inputs, *self.outputs), rule=substituted)
        conditions = [substitute(c, values) for c in self.conditions]
        for old, new in zip(self.conditions, conditions, strict=True):
            if isinstance(new, int) and new < 0:
                raise ShapeError(f"sizes {dict(values)}: expected {old} >= 0")
        return replace(
            self,
            inputs=nodes[: len(self.inputs)],
            outputs=nodes[len(self.inputs) :],
            bounds=tuple(b for b in self.bounds if b[0] not in values),
            conditions=tuple(c for c in conditions if isinstance(c, Dim)),
            sizes=tuple((name, substitute(most, values)) for name, most in self.sizes),
        )


def size_elements(node: Node) -> Shape:
    """The elements of an input of sizes; () for any other node."""
    return node.op.elements if isinstance(node.op, Input) else ()


def free_symbols(n: Node) -> frozenset[str]:
    """The symbols in the node's types and attributes."""
    symbols = n.op.free_symbols if n.op.computes else frozenset[str]()
    return symbols.union(*[t.symbols for t in n.types])


def _symbols_in(values: Iterable[object]) -> frozenset[str]:
    symbols: frozenset[str] = frozenset()
    for value in values:
        if isinstance(value, Dim):
            symbols |= symbols_of(value)
        elif isinstance(value, TensorType):
            symbols |= value.symbols
        elif isinstance(value, tuple):
            symbols |= _symbols_in(value)
        elif isinstance(value, Graph):
            symbols |= value.free_symbols
    return symbols
