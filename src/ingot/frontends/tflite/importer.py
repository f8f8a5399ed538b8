"""From a TFLite model to a graph: one walk over the operators of a subgraph, in the file's order."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace

import numpy as np

from ingot import ops
from ingot.frontends.shared.composites.complex import Complex, partwise
from ingot.frontends.shared.computed_sizes import ComputedSizes
from ingot.frontends.shared.places import locate, next_id
from ingot.frontends.shared.refusal import MALFORMED_ERRORS, Unsupported, located, malformed
from ingot.frontends.shared.sizes import Sizes
from ingot.frontends.tflite import schema
from ingot.frontends.tflite.call import Call, Missing, Resource, Result, Rows, Value, Variable
from ingot.frontends.tflite.constants import constant
from ingot.frontends.tflite.file import Model, Operator, Subgraph, Tensor
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input, Node, const
from ingot.support.dataclass import dataclass
from ingot.support.errors import ImportModelError, ShapeError, UnsupportedOp
from ingot.support.limits import check_elements, check_time, spend_node

# errors of rows for operators that are not well-formed: too few operands, axes out of range, sizes of 0
_MAX_DEPTH = 32  # of nested subgraphs


@dataclass
class Importer:
    """The walk. variables: by name, those that CALL_ONCE initializes and the variable tensors of subgraphs."""

    model: Model
    rows: Rows
    inputs: frozenset[str] = frozenset()
    refused: list[UnsupportedOp] = field(default_factory=list[UnsupportedOp])
    variables: dict[str, Variable] = field(default_factory=dict[str, Variable])
    depth: int = 0

    def __post_init__(self) -> None:
        self.sizes = Sizes(self.inputs)
        self.computed_sizes = ComputedSizes()
        self._constants: dict[int, Node] = {}
        self.initialising = False
        self._draws = 0

    def run(self, index: int, arguments: Sequence[Value]) -> tuple[Value, ...]:
        """The results of subgraph `index` for these arguments."""
        if not 0 <= index < len(self.model.subgraphs):
            raise self.malformed(f"subgraph {index} of {len(self.model.subgraphs)}")
        graph = self.model.subgraphs[index]
        if len(arguments) != len(graph.inputs):
            raise self.malformed(f"{len(arguments)} arguments for subgraph {index}, which takes {len(graph.inputs)}")
        if self.depth == _MAX_DEPTH:
            raise self.malformed("subgraphs within subgraphs without end")
        values: dict[int, Value] = dict(zip(graph.inputs, arguments, strict=True))
        self.depth += 1
        for op in graph.operators:
            if self.depth > 1:
                spend_node(op.name)
            check_time(op.name)
            self._operator(index, graph, op, values)
        self.depth -= 1
        return tuple(self.value(index, graph, i, values) for i in graph.outputs)

    def random_key(self) -> Node:
        """A fresh random key."""
        self._draws += 1
        return ops.RandomKey(self._draws - 1)()

    def malformed(self, got: str) -> ImportModelError:
        return ImportModelError("not a well-formed TFLite model", got=got, where=self.model.where or None)

    def value(self, index: int, graph: Subgraph, i: int, values: Mapping[int, Value]) -> Value:
        if i in values:
            return values[i]
        tensor = graph.tensors[i]
        if tensor.variable:
            return self.variable(variable_name(self.model, index, i), tensor).node
        if tensor.data is None and 0 not in tensor.shape:
            raise self.malformed(f"tensor {tensor.name!r} is read, which nothing writes")
        if tensor.data is None:
            dtype = schema.dtype(tensor.type)
            if dtype is None:
                raise Unsupported(f"a constant of {schema.type_name(tensor.type)}")
            return const(np.zeros(tensor.shape, dtype.numpy))
        if id(tensor) not in self._constants:
            self._constants[id(tensor)] = const(constant(tensor), loc=tensor.name)
        return self._constants[id(tensor)]

    def variable(self, name: str, tensor: Tensor) -> Variable:
        """A variable tensor, which is initially zero (the level that represents 0)."""
        if name not in self.variables:
            dtype = schema.dtype(tensor.type)
            if dtype is None:
                raise Unsupported(f"a variable of {schema.type_name(tensor.type)}")
            check_elements(int(np.prod(tensor.shape, dtype=object)), tensor.name)
            zero = tensor.quantization.zero if str(dtype) == "i8" and tensor.quantization else 0
            self.declare(name, np.full(tensor.shape, zero, dtype.numpy))
        return self.variables[name]

    def declare(self, name: str, first: np.ndarray) -> None:
        label = re.sub(r"\W", "_", name) or "state"
        labels = {v.label for v in self.variables.values()} | self.inputs
        while label in labels:
            label += "_"
        node = Input(label, const(first).type)()
        self.variables[name] = Variable(label, first, node, node)

    def write(self, index: int, tensor: int, node: Node) -> None:
        """Assign a variable tensor of subgraph `index`."""
        variable = self.variable(variable_name(self.model, index, tensor), self.model.subgraphs[index].tensors[tensor])
        if node.type != variable.carrier.type:
            raise Unsupported(f"a state of {variable.carrier.type}, to which {node.type} is assigned")
        variable.node = node

    def initialise(self, index: int) -> None:
        """Run subgraph `index`, whose assignments initialize variables."""
        outer, self.initialising = self.initialising, True
        try:
            self.run(index, ())
        finally:
            self.initialising = outer

    def assign(self, name: str, node: Node) -> None:
        if self.initialising:
            if not self.sizes.is_closed(node):
                raise Unsupported(f"a first value of variable {name!r} that is computed from another")
            if name not in self.variables:
                self.declare(name, interpret(Graph((), (node,)), [])[0])
            return
        if name not in self.variables:
            raise Unsupported(f"variable {name!r}, which nothing gives a first value")
        variable = self.variables[name]
        if node.type != variable.carrier.type:
            raise Unsupported(f"variable {name!r} of {variable.carrier.type}, to which {node.type} is assigned")
        variable.node = node

    def _operator(self, index: int, graph: Subgraph, op: Operator, values: dict[int, Value]) -> None:
        loc = next((graph.tensors[i].name for i in op.outputs), "") or op.name
        first = next_id()
        try:
            operands = tuple(None if i < 0 else self.value(index, graph, i, values) for i in op.inputs)
            tensors = tuple(None if i < 0 else graph.tensors[i] for i in op.inputs)
            call = Call(self, op, operands, tensors, tuple(graph.tensors[i] for i in op.outputs), loc, index)
            row = self.rows.find(call)  # first, so that ops without a row are listed whatever their operands are
            if any(isinstance(v, Missing) for v in operands):
                values.update((i, Missing()) for i in op.outputs)
                return
            results = _moved_parts(row.fn, call) if row.is_movement else _results(row.fn(call))
            if len(results) != len(op.outputs):
                raise self.malformed(f"{len(op.outputs)} results of {op.name}, which has {len(results)}")
            locate((n for r in results for n in _nodes(r)), first, loc)
            for i, result in zip(op.outputs, results, strict=True):
                values[i] = self._checked(result, graph.tensors[i])
        except Unsupported as e:
            self.refused.append(UnsupportedOp(op.custom or op.name, loc, str(e)))
            values.update((i, Missing()) for i in op.outputs)
        except MALFORMED_ERRORS as e:
            self.refused.append(UnsupportedOp(op.custom or op.name, loc, malformed(e)))
            values.update((i, Missing()) for i in op.outputs)
        except ShapeError as e:
            raise located(e, f"{op.name} of {loc!r}") from None

    def _checked(self, value: Value, tensor: Tensor) -> Value:
        if not isinstance(value, Node):
            return value
        declared = schema.dtype(tensor.type)
        if value.dtype != declared:
            raise Unsupported(f"to {schema.type_name(tensor.type)}, from operands that give {value.dtype}")
        check_elements(value.type.size, tensor.name)
        return value

    # --- subgraphs as separate graphs

    def inside(self, index: int, values: Sequence[Node], names: Sequence[str]) -> list[Node]:
        """The results of a subgraph for these values, the last of which are the variables `names`; followed by the
        variables' new values."""
        count = len(values) - len(names)
        outer = {name: self.variables[name].node for name in names}
        for name, node in zip(names, values[count:], strict=True):
            self.variables[name].node = node
        try:
            results = self.run(index, values[:count])
            nodes = [r for r in results if isinstance(r, Node)]
            if len(nodes) != len(results):
                raise Unsupported("")
            return [*nodes, *(self.variables[name].node for name in names)]
        finally:
            for name, node in outer.items():
                self.variables[name].node = node

    def touched(self, *subgraphs: int) -> tuple[str, ...]:
        """The names of all variables, if these subgraphs or nested ones may read or write any."""
        visited: set[int] = set()
        stack = list(subgraphs)
        while stack:
            index = stack.pop()
            if index in visited or not 0 <= index < len(self.model.subgraphs):
                continue
            visited.add(index)
            graph = self.model.subgraphs[index]
            options = [item for o in graph.operators for item in o.options.items()]
            stack += [int(v) for k, v in options if k.endswith("subgraph_index")]
            stack += [int(i) for k, v in options if k.endswith("subgraph_indices") for i in v]
        graphs = [self.model.subgraphs[i] for i in visited]
        if any(t.variable for g in graphs for t in g.tensors):
            raise Unsupported("a state inside a branch or loop")
        uses = any(o.name in ("READ_VARIABLE", "ASSIGN_VARIABLE") for g in graphs for o in g.operators)
        return tuple(self.variables) if uses else ()


def variable_name(model: Model, subgraph: int, tensor: int) -> str:
    """The name of a subgraph's variable tensor."""
    graph = model.subgraphs[subgraph]
    name = graph.tensors[tensor].name
    is_unique = sum(t.name == name for g in model.subgraphs for t in g.tensors) == 1
    return name if name and is_unique else f"{name or 'state'}_{subgraph}_{tensor}"


def _nodes(value: Value) -> tuple[Node, ...]:
    if isinstance(value, Complex):
        return value.real, value.imag
    return (value,) if isinstance(value, Node) else ()


def _results(result: Result) -> tuple[Value, ...]:
    return (result,) if isinstance(result, Node | Complex | Resource | Missing) else tuple(result)


def _moved_parts(row: Callable[[Call], Result], call: Call) -> tuple[Value, ...]:
    """The results of a row that moves elements; it is applied to each part of complex operands."""
    if not any(isinstance(v, Complex) for v in call.values):
        return _results(row(call))
    return tuple(partwise(lambda *values: row(replace(call, values=values)), call.values))
