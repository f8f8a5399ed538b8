"""A CORE graph as a StableHLO module: a sequence of operations, with symbolic sizes as scalars.

f32[s0,4] = broadcast_in_dim(x)   ->   %n = get_dimension_size %arg0, dim = 0, dynamic_broadcast_in_dim %x, [%n, 4]
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field

import numpy as np

from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.stablehlo import literals
from ingot.frontends.stablehlo.syntax import Attribute, Block, Function, Ints, Module, Number, Operation, Raw
from ingot.frontends.stablehlo.types import show
from ingot.ir.dims import Dim, DimLike, is_static, postfix, substitute, symbol, symbols_of
from ingot.ir.node import Const, Graph, Input, Node, Op, Project, size_elements, topological
from ingot.ir.types import DType, Shape, boolean, dtype_of, i32
from ingot.passes.core.signs import unpack_signs
from ingot.support.dataclass import dataclass
from ingot.support.errors import REWRITE, UnsupportedOp, UnsupportedOpError

# larger constants, in bytes, are weights: arguments of the function, stored apart from the program
_MAX_CONSTANT_BYTES = 4096


@dataclass(frozen=True)
class Emitted:
    """A module, and the arrays of its arguments that are weights, by name, in the order of the arguments."""

    module: Module
    weights: Mapping[str, np.ndarray]


Row = Callable[["Emitter", Node, list[str]], "str | list[str]"]
ROWS: dict[type[Op], Row] = {}


def row(*classes: type[Op]) -> Callable[[Row], Row]:
    """Registers the function that emits nodes of these ops. It maps (emitter, node, operand names) to the names of the
    results."""

    def add(function: Row) -> Row:
        ROWS.update(dict.fromkeys(classes, function))
        return function

    return add


def emit(graph: Graph, inline: bool = False) -> Emitted:
    """`graph`, without MODEL ops, as a module with one function.

    inline: keep all constants in the text. Raises UnsupportedOpError naming every op that has no form in StableHLO.
    """
    graph = unpack_signs(graph)  # StableHLO has no products of packed signs
    constants = (
        []
        if inline
        else [n for n in graph.nodes() if isinstance(n.op, Const) and n.op.array.nbytes > _MAX_CONSTANT_BYTES]
    )
    names = _unique([_label(n) for n in graph.inputs] + [n.loc or "weight" for n in constants])
    arguments = [(f"%arg{i}", n) for i, n in enumerate((*graph.inputs, *constants))]
    emitter = Emitter(graph)
    emitter.values = {n: name for name, n in arguments}
    results = [emitter.value(n) for n in graph.outputs]
    if emitter.refused:
        raise UnsupportedOpError(emitter.refused, model="StableHLO", fix=REWRITE)
    emitter.add("func.return", results, [])
    types = tuple(type_of(n) for n in graph.outputs)
    body = Block(tuple((name, type_of(n)) for name, n in arguments), tuple(emitter.operations))
    labels = graph.output_names or tuple(f"output_{i}" for i in range(len(types)))
    result_attributes = tuple({"jax.result_info": f"result['{name}']"} for name in labels)
    locations = tuple(f'"{name}"' for name in names)
    main = Function("main", body, types, tuple({} for _ in arguments), result_attributes, "public", locations)
    named_constants = zip(names[len(graph.inputs) :], constants, strict=True)
    weights = {name: n.op.value for name, n in named_constants if isinstance(n.op, Const)}
    return Emitted(Module("model", {"main": main}), weights)


def _label(node: Node) -> str:
    return node.op.label if isinstance(node.op, Input) else ""


def _unique(names: Sequence[str]) -> list[str]:
    unique_names: list[str] = []
    for name in names:
        word = re.sub(r'["\\\s]', "_", name)
        k, candidate = 1, word
        while candidate in unique_names:
            k, candidate = k + 1, f"{word}_{k}"
        unique_names.append(candidate)
    return unique_names


def type_of(node: Node) -> str:
    return show(node.dtype, node.shape)


@dataclass
class Emitter:
    """The operations so far, and the names of nodes and sizes. A region has an emitter of its own, which also sees the
    names of the outer one."""

    graph: Graph
    outer: Emitter | None = None
    operations: list[Operation] = field(default_factory=list[Operation])
    values: dict[Node, str] = field(default_factory=dict[Node, str])
    sizes: dict[DimLike, str] = field(default_factory=dict[DimLike, str])
    refused: list[UnsupportedOp] = field(default_factory=list[UnsupportedOp])
    count: list[int] = field(default_factory=lambda: [0])

    def fresh(self) -> str:
        self.count[0] += 1
        return f"%v{self.count[0]}"

    def add(
        self, name: str, operands: Sequence[str], types: Sequence[str],
        attributes: Mapping[str, Attribute] | None = None, regions: Sequence[Block] = (),
    ) -> list[str]:  # fmt: skip
        """Add an operation. Returns the names of its results."""
        full = name if "." in name else f"stablehlo.{name}"
        base = self.fresh()
        names = [base] if len(types) == 1 else [f"{base}#{i}" for i in range(len(types))]
        results = tuple(zip(names, types, strict=True))
        self.operations.append(Operation(full, tuple(operands), dict(attributes or {}), tuple(regions), results))
        return names

    def one(
        self, name: str, operands: Sequence[str], type: str, attributes: Mapping[str, Attribute] | None = None
    ) -> str:
        return self.add(name, operands, [type], attributes)[0]

    def value(self, node: Node) -> str:
        """The name of a node's value. Emits the node and all its predecessors."""
        for n in topological((node,), lambda n: () if n in self.values else n.inputs):
            if n not in self.values:
                self._emit(n)
        return self.values[node]

    def _emit(self, node: Node) -> None:
        if isinstance(node.op, Project):
            # emitted together with its operand
            assert node in self.values, node
            return
        emit_row = ROWS.get(type(node.op))
        results = node.results
        try:
            if emit_row is None:
                raise Unsupported("")
            names = emit_row(self, node, [self.values[i] for i in node.inputs])
        except Unsupported as e:
            self.refused.append(UnsupportedOp(node.op.name, node.loc, str(e)))
            names = ["%refused"] * len(results)
        result_names = [names] if isinstance(names, str) else names
        self.values.update(zip(results, result_names, strict=True))

    # --- parts

    def constant(self, array: np.ndarray) -> str:
        type = show(dtype_of(array.dtype), array.shape)
        return self.one("constant", [], type, {"value": literals.dense(array, type)})

    def scalar(self, value: float | int | bool, dtype: DType) -> str:
        return self.constant(np.asarray(value).astype(dtype.numpy))

    def full(self, value: float | int | bool, dtype: DType, shape: Shape) -> str:
        return self.broadcast(self.scalar(value, dtype), (), dtype, shape)

    def broadcast(self, x: str, dims: Sequence[int], dtype: DType, shape: Shape) -> str:
        attributes = {"broadcast_dimensions": Ints(tuple(dims))}
        if is_static(shape):
            return self.one("broadcast_in_dim", [x], show(dtype, shape), attributes)
        return self.one("dynamic_broadcast_in_dim", [x, self.shape(shape)], show(dtype, shape), attributes)

    def convert(self, x: str, dtype: DType, shape: Shape) -> str:
        return self.one("convert", [x], show(dtype, shape))

    def compare(self, direction: str, a: str, b: str, dtype: DType, shape: Shape, total: bool = False) -> str:
        kind = "TOTALORDER" if total else "FLOAT" if dtype.is_float else "SIGNED" if dtype.kind == "i" else "UNSIGNED"
        attributes = {
            "comparison_direction": Raw(f"#stablehlo<comparison_direction {direction}>"),
            "compare_type": Raw(f"#stablehlo<comparison_type {kind}>"),
        }
        return self.one("compare", [a, b], show(boolean, shape), attributes)

    def region(self, arguments: Sequence[tuple[str, str]], body: Callable[[Emitter], list[str]]) -> Block:
        """A block with these arguments; `body` emits its operations and returns its results."""
        inner = Emitter(self.graph, self, values=dict(self.values), sizes=dict(self.sizes), count=self.count)
        results = body(inner)
        self.refused += inner.refused
        inner.add("stablehlo.return", results, [])
        return Block(tuple(arguments), tuple(inner.operations))

    def graph_region(self, graph: Graph, operands: Sequence[str] | None = None) -> Block:
        """A graph as a block: with its own arguments, or with `operands` of the outer region."""
        names = [self.fresh() for _ in graph.inputs] if operands is None else list(operands)

        def body(inner: Emitter) -> list[str]:
            inner.values.update(zip(graph.inputs, names, strict=True))
            return [inner.value(n) for n in graph.outputs]

        arguments = [(name, type_of(n)) for name, n in zip(names, graph.inputs, strict=True)]
        return self.region(arguments if operands is None else (), body)

    # --- sizes

    def shape(self, dims: Sequence[DimLike]) -> str:
        """Sizes as tensor<nxi32>."""
        if is_static(dims):
            return self.constant(np.array(dims, np.int32).reshape(len(dims)))
        parts = [self.one("reshape", [self.size(d)], "tensor<1xi32>") for d in dims]
        return self.one("concatenate", parts, f"tensor<{len(dims)}xi32>", {"dimension": Number("0", "i64")})

    def size(self, d: DimLike) -> str:
        """A size as tensor<i32>: arithmetic on the sizes of inputs."""
        if d not in self.sizes:
            self.sizes[d] = self._size(d)
        return self.sizes[d]

    def _size(self, d: DimLike) -> str:
        if isinstance(d, int):
            return self.scalar(d, i32)
        if symbols_of(d) == {str(d)}:
            return self._symbol(str(d))
        stack: list[str] = []
        for step in postfix(d):
            if isinstance(step, str) and step in _OPERATORS:
                b, a = stack.pop(), stack.pop()
                stack.append(self.one(_OPERATORS[step], [a, b], "tensor<i32>"))
            else:
                stack.append(self.size(step) if isinstance(step, int) else self._named(step))
        return stack.pop()

    def _named(self, name: str) -> str:
        return self.size(symbol(name))

    def _symbol(self, name: str) -> str:
        """A symbol's value, from an input size of the form `symbol` or c * symbol + r, or from an input's elements."""
        for n in self.graph.inputs:
            for axis, d in enumerate(n.shape):
                if isinstance(d, Dim) and symbols_of(d) == {name}:
                    attributes = {"dimension": Number(str(axis), "i64")}
                    size = self.one("get_dimension_size", [self._input(n)], "tensor<i32>", attributes)
                    if str(d) == name:
                        return size
                    factor, rest = _linear(d, name)
                    if factor:
                        difference = self.one("subtract", [size, self.scalar(rest, i32)], "tensor<i32>")
                        return self.one("divide", [difference, self.scalar(factor, i32)], "tensor<i32>")
        for n in self.graph.inputs:
            for index, d in enumerate(size_elements(n)):
                if str(d) == name:
                    flat = self.one("reshape", [self._input(n)], show(n.dtype, (len(size_elements(n)),)))
                    attributes = {
                        "start_indices": Ints((index,)),
                        "limit_indices": Ints((index + 1,)),
                        "strides": Ints((1,)),
                    }
                    part = self.one("slice", [flat], show(n.dtype, (1,)), attributes)
                    return self.convert(self.one("reshape", [part], show(n.dtype, ())), i32, ())
        raise Unsupported(f"the size {name}, which no input's shape tells")

    def _input(self, node: Node) -> str:
        scope = self
        while scope.outer is not None:
            scope = scope.outer
        return scope.values[node]


_OPERATORS = {
    "+": "add",
    "-": "subtract",
    "*": "multiply",
    "//": "divide",
    "%": "remainder",
    "max": "maximum",
    "min": "minimum",
}


def _linear(d: Dim, name: str) -> tuple[int, int]:
    """(c, r) of c * symbol + r; (0, 0) for another form."""
    values = [substitute(d, {name: n}) for n in (0, 1, 2)]
    if not is_static(values):
        return 0, 0
    a, b, c = (v for v in values if isinstance(v, int))
    return (b - a, a) if c - b == b - a else (0, 0)
