"""A graph as records of TFLite operators.

Images are [N, C, H, W] in graphs and [N, H, W, C] in TFLite: a value of rank 4 may have a tensor in either order.
Pointwise ops compute in the order of their operand; a TRANSPOSE is inserted only if an order is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ingot import ops
from ingot.exporters.tflite.elements import computes
from ingot.exporters.tflite.fold import places
from ingot.exporters.tflite.numbers import constant_of, levels_of
from ingot.exporters.tflite.records import Model, Operator, Tensor
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.tflite.file import Quantization
from ingot.ir.node import Graph, Input, Node, Op
from ingot.support.errors import REWRITE, InputError, UnsupportedOp, UnsupportedOpError, VerifyError

PLAIN, CHANNELS_LAST = "", "nhwc"
TO_LAST, TO_FIRST = (0, 2, 3, 1), (0, 3, 1, 2)

Row = Callable[["Emitter", Node], "int | Node | tuple[int, str]"]
ROWS: dict[type[Op], Row] = {}


def row(*classes: type[Op]) -> Callable[[Row], Row]:
    """Registers the function that emits nodes of these ops. It maps (emitter, node) to the number of a tensor in plain
    order, to (number, order), or to a node to emit instead. It may raise Unsupported."""

    def add(function: Row) -> Row:
        ROWS.update(dict.fromkeys(classes, function))
        return function

    return add


def emit(graph: Graph) -> Model:
    """The model of a graph with fixed sizes. Raises InputError for open sizes and state, and UnsupportedOpError naming
    every op that TFLite has no operator for."""
    if open_dims := sorted({str(d) for n in graph.nodes() for t in n.types for d in t.shape if not isinstance(d, int)}):
        name = open_dims[0] if open_dims[0].isidentifier() else "NAME"
        fix = f'fix them: --dim {name}=1, dynamic={{"{name}": 1}} in Python, or give samples or example inputs'
        raise InputError("TFLite", expected="fixed sizes", got=", ".join(open_dims[:8]), fix=fix)
    if graph.state:
        raise InputError("TFLite", expected="a model without state", got=", ".join(graph.state))
    emitter = Emitter([])
    model = emitter.run(graph)
    if emitter.refused:
        raise UnsupportedOpError(emitter.refused, model="TFLite", fix=REWRITE)
    model.subgraphs = emitter.subgraphs
    return model


class Emitter:
    """model: the records so far. tensors: the tensors of each node, by order. result_tensors: of nodes with
    several results. subgraphs: the loops and branches of the whole model."""

    def __init__(self, subgraphs: list[Model]) -> None:
        self.model = Model()
        self.tensors: dict[Node, dict[str, int]] = {}
        self.result_tensors: dict[Node, list[int]] = {}
        self.refused: list[UnsupportedOp] = []
        self.subgraphs = subgraphs

    def run(self, graph: Graph) -> Model:
        model = self.model
        for node in graph.inputs:
            assert isinstance(node.op, Input)
            name = node.op.label or f"input_{len(model.inputs)}"
            i = model.add(Tensor(name, str(node.dtype), _shape(node), node=node))
            self.tensors[node] = {PLAIN: i}
            model.inputs.append(i)
            model.input_names.append(name)
        for node in graph.nodes():
            self._emit(node)
        if not self.refused:
            self._outputs(graph)
            model.compact()
        return model

    def _outputs(self, graph: Graph) -> None:
        model = self.model
        for position, node in enumerate(graph.results):
            i = self.get(node)
            if i in model.inputs or i in model.outputs or model.tensors[i].data is not None:
                i = self._reshaped(i, _shape(node), node)  # an output needs a tensor of its own
            label = graph.output_names[position] if graph.output_names else f"output_{position}"
            model.tensors[i].name = label
            model.outputs.append(i)
            model.output_names.append(label)

    def _emit(self, node: Node) -> None:
        if node in self.tensors or isinstance(node.op, ops.BroadcastInDim) or constant_of(node) is not None:
            return  # emitted on demand, for their readers
        try:
            emit_row = ROWS.get(type(node.op))
            if emit_row is None:
                raise Unsupported("no operator of TFLite")
            result = emit_row(self, node)
        except Unsupported as e:
            self._refuse(node, str(e))
            return
        except VerifyError:  # of several results
            self._refuse(node, "no operator of TFLite")
            return
        if isinstance(result, Node):
            self._emit_all(result)
            self.tensors[node] = self.tensors[result]
            return
        i, order = result if isinstance(result, tuple) else (result, PLAIN)
        if len(node.types) == 1:
            self.model.tensors[i].node = self.model.tensors[i].node or node
        self.tensors[node] = {order: i}

    def _refuse(self, node: Node, why: str) -> None:
        """Record that a node has no operator. Its readers are still checked, with a placeholder."""
        self.refused.append(UnsupportedOp(node.op.name, node.loc, why))
        type_ = node.types[0]
        i = self.model.add(Tensor("", str(type_.dtype), tuple(int(str(d)) for d in type_.shape)))
        self.tensors[node] = {PLAIN: i, CHANNELS_LAST: i}
        self.result_tensors[node] = [i] * len(node.types)

    def _emit_all(self, node: Node) -> None:
        """Emit a node that a row created, with its operands."""
        stack = [node]
        while stack:
            n = stack[-1]
            sources = [_source(x) for x in n.inputs]
            missing = [x for x in sources if x not in self.tensors and constant_of(x) is None]
            if missing and n not in self.tensors:
                stack += missing
                continue
            stack.pop()
            self._emit(n)

    # --- values

    def get(self, node: Node, order: str = PLAIN) -> int:
        """The tensor of a node in this order."""
        if isinstance(node.op, ops.BroadcastInDim) and node not in self.tensors:
            self.tensors[node] = {PLAIN: self._broadcast(node)}
        tensors = self.tensors.setdefault(node, {})
        if order in tensors:
            return tensors[order]
        if (value := constant_of(node)) is not None:
            value = value.transpose(TO_LAST) if order else value
            tensors[order] = self.model.constant(value, node.loc, _without_axis(levels_of(node)))
        else:
            ((other_order, i),) = tensors.items()
            tensors[order] = self.transpose(i, TO_LAST if other_order == PLAIN else TO_FIRST, node)
        return tensors[order]

    def weights(self, node: Node, value: np.ndarray, axis: int) -> int:
        """A constant with the (transposed) elements of `node` and its levels. axis: the channel axis of `value`."""
        grid = levels_of(node)
        if grid is not None and len(grid.scales) > 1:
            grid = Quantization(grid.scales, grid.zeros, axis)
        return self.model.constant(value, node.loc, grid)

    def order(self, *nodes: Node) -> str:
        """The order in which to compute a pointwise op: that of its first emitted operand."""
        for node in nodes:
            if len(node.types) == 1 and node.type.rank == 4 and (tensors := self.tensors.get(node)):
                return CHANNELS_LAST if CHANNELS_LAST in tensors else PLAIN
        return PLAIN

    def operand(self, node: Node, order: str) -> int:
        """A tensor that broadcasts to the node's shape, as numpy does."""
        if not isinstance(node.op, ops.BroadcastInDim) or self.tensors.get(node):
            return self.get(node, order)
        (x,), dims = node.inputs, node.op.dims
        shape = [1] * node.type.rank
        for d, size in zip(dims, x.type.shape, strict=True):
            shape[d] = int(str(size))
        if (value := constant_of(x)) is not None:
            value = value.reshape(shape)
            return self.model.constant(value.transpose(TO_LAST) if order else value, x.loc, _without_axis(levels_of(x)))
        i = self.get(x)
        i = i if tuple(shape) == _shape(x) else self.reshape(i, tuple(shape))
        return self.transpose(i, TO_LAST) if order else i

    def _broadcast(self, node: Node) -> int:
        i = self.operand(node, PLAIN)
        return self.add("BROADCAST_TO", [i, self.shape(_shape(node))], _shape(node), node=node, dtype=str(node.dtype))

    def computed(self, node: Node) -> int:
        """The tensor of a node that a row created."""
        self._emit_all(node)
        return self.get(node)

    def results(self, node: Node) -> list[int]:
        """The tensors of a node with several results."""
        return self.result_tensors[node]

    def subgraph(self, graph: Graph) -> int:
        """Add the subgraph of a loop or a branch. Returns its number."""
        inner = Emitter(self.subgraphs)
        model = inner.run(graph)
        self.refused += inner.refused
        self.subgraphs.append(model)
        return len(self.subgraphs)

    # --- operators

    def add_several(self, name: str, inputs: Sequence[int], node: Node, table: str, options: Mapping[str, Any]) -> int:
        """Add an operator with the results of `node`. Returns the number of the first result."""
        first = len(self.model.tensors)
        shapes = [tuple(int(str(d)) for d in t.shape) for t in node.types]
        label = f"{node.loc}/{name.lower()}_{first}".lstrip("/")
        outputs = [
            self.model.add(Tensor(f"{label}.{k}", str(t.dtype), shape))
            for k, (t, shape) in enumerate(zip(node.types, shapes, strict=True))
        ]
        self.model.operators.append(Operator(name, list(inputs), outputs, table, dict(options)))
        self.result_tensors[node] = outputs
        return outputs[0]

    def add(
        self, name: str, inputs: Sequence[int], shape: tuple[int, ...], table: str = "",
        options: Mapping[str, Any] | None = None, *, node: Node | None = None, dtype: str = "",
    ) -> int:  # fmt: skip
        """Add an operator with one result, by default of the first operand's type. Returns the result's number."""
        operator = Operator(name, list(inputs), [len(self.model.tensors)], table, dict(options or {}))
        values = self.model.tensors[inputs[places(operator)[0]]]
        if not computes(name, values.dtype):
            raise Unsupported(f"of {values.dtype}")
        dtype = dtype or self.model.tensors[inputs[0]].dtype
        label = f"{node.loc if node else ''}/{name.lower()}_{len(self.model.tensors)}".lstrip("/")
        i = self.model.add(Tensor(label, dtype, shape, node=node))
        self.model.operators.append(operator)
        return i

    def ints(self, *values: int) -> int:
        return self.model.constant(np.array(values, np.int32))

    def shape(self, shape: Sequence[int]) -> int:
        return self.ints(*shape)

    def reshape(self, i: int, shape: tuple[int, ...], node: Node | None = None) -> int:
        t = self.model.tensors[i]
        if t.data is not None:
            return self.model.constant(t.data.reshape(shape), t.name, _without_axis(t.quantization))
        return self._reshaped(i, shape, node)

    def _reshaped(self, i: int, shape: tuple[int, ...], node: Node | None) -> int:
        return self.add("RESHAPE", [i, self.shape(shape)], shape, "Reshape", {"new_shape": shape}, node=node)

    def transpose(self, i: int, permutation: Sequence[int], node: Node | None = None) -> int:
        t, shape = self.model.tensors[i], self.model.tensors[i].shape
        if t.data is not None:
            return self.model.constant(t.data.transpose(permutation), t.name, _without_axis(t.quantization))
        if [p for p in permutation if shape[p] != 1] == [p for p in range(len(shape)) if shape[p] != 1]:
            return self._reshaped(i, tuple(shape[p] for p in permutation), node)
        return self.add("TRANSPOSE", [i, self.ints(*permutation)], tuple(shape[p] for p in permutation), node=node)


def _source(node: Node) -> Node:
    """The operand of a chain of broadcasts."""
    while isinstance(node.op, ops.BroadcastInDim):
        (node,) = node.inputs
    return node


def _without_axis(grid: Quantization | None) -> Quantization | None:
    """The levels if they have a single scale; None otherwise."""
    return grid if grid is not None and len(grid.scales) == 1 else None


def _shape(node: Node) -> tuple[int, ...]:
    return tuple(int(str(d)) for d in node.type.shape)


shape_of = _shape


def in_order(order: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape of the graph in the given order."""
    return tuple(shape[p] for p in TO_LAST) if order else shape
