"""The contents of a model file, without compiling it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from ingot.debug.drawing import node_graph
from ingot.debug.source import Source, read_graph
from ingot.ir.node import Const, Graph, Input, Node, topological
from ingot.support.dataclass import dataclass
from ingot.support.errors import NeedsValues, UnsupportedOp, UnsupportedOpError


@dataclass(frozen=True)
class Layer:
    """What a node reads of constants: name, the place of the node in the model; count: of numbers; nbytes: as stored in
    the graph."""

    name: str
    op: str
    count: int
    nbytes: int


@dataclass(frozen=True)
class Inspection:
    """kind: of the file. ops: how many of each the graph has, as Ingot reads it; file_ops: as an ONNX file names them.
    layers: those with constants, the largest first. unsupported: what Ingot has no op for; then there is no graph.
    deciders: the inputs whose values decide the program, and "sizes" where comparisons of sizes do; then there is a
    graph for each call only."""

    kind: str
    inputs: Sequence[str] = ()
    outputs: Sequence[str] = ()
    ops: Mapping[str, int] = field(default_factory=dict[str, int])
    file_ops: Mapping[str, int] = field(default_factory=dict[str, int])
    layers: Sequence[Layer] = ()
    unsupported: Sequence[UnsupportedOp] = ()
    deciders: Sequence[str] = ()

    @property
    def parameters(self) -> int:
        return sum(layer.count for layer in self.layers)

    @property
    def nbytes(self) -> int:
        return sum(layer.nbytes for layer in self.layers)


def inspect(source: Source) -> tuple[Inspection, Graph | None]:
    """(what is in the file, its graph; None where some ops are not supported, or calls decide it). Raises what
    `read_graph` raises of other causes."""
    file_ops, inputs, outputs = _in_file(source)
    try:
        graph = read_graph(source)
    except NeedsValues as error:
        inputs = [f"{name}: {node.type}" for name, node in error.signature.items()]
        deciders = (*error.inputs, *(["sizes"] if error.sizes else []))
        return Inspection(source.kind, inputs, outputs, {}, file_ops, (), (), deciders), None
    except UnsupportedOpError as error:
        return Inspection(source.kind, inputs, outputs, {}, file_ops, (), error.ops), None
    nodes = [n for n in topological(graph.outputs) if not isinstance(n.op, Const | Input)]
    ops = Counter(n.op.name for n in nodes)
    labels = [f"{n.op.label}: {n.type}" for n in graph.inputs if isinstance(n.op, Input)]
    results = [f"{name}: {n.type}" for name, n in zip(graph.output_names, graph.outputs, strict=False)]
    return Inspection(source.kind, labels, results, dict(ops.most_common()), file_ops, _layers(nodes)), graph


def picture(graph: Graph) -> str:
    """The graph as SVG: ops, and the types that they give. Constants are left out."""
    nodes = [n for n in topological(graph.outputs) if not isinstance(n.op, Const)]
    places = {node: i for i, node in enumerate(nodes)}
    labels = [(_name(n), f"{n.loc or ''} {', '.join(map(str, n.types))}".strip()) for n in nodes]
    reads = [sorted({places[x] for x in n.inputs if x in places}) for n in nodes]
    return node_graph(labels, reads)


def _name(node: Node) -> str:
    return node.op.label if isinstance(node.op, Input) else node.op.name


def _layers(nodes: Sequence[Node]) -> list[Layer]:
    """One for each place in the model, with the op that reads most. A constant that several read is the first one's."""
    visited = set[Node]()
    layers_by_name: dict[str, list[Layer]] = {}
    for node in nodes:
        constants = [x for x in dict.fromkeys(node.inputs) if isinstance(x.op, Const) and x not in visited]
        visited.update(constants)
        arrays = [x.op.value for x in constants if isinstance(x.op, Const)]
        if count := sum(a.size for a in arrays):
            name = str(node.loc or constants[0].loc or node.op.name)
            layers_by_name.setdefault(name, []).append(Layer(name, node.op.name, count, sum(a.nbytes for a in arrays)))
    layers = [
        Layer(name, max(parts, key=lambda p: p.count).op, sum(p.count for p in parts), sum(p.nbytes for p in parts))
        for name, parts in layers_by_name.items()
    ]
    return sorted(layers, key=lambda layer: -layer.count)


def _in_file(source: Source) -> tuple[dict[str, int], list[str], list[str]]:
    """(ops, inputs, outputs) as an ONNX file has them."""
    if source.kind != "onnx":
        return {}, [], []
    from ingot.frontends.onnx.importer import read_model  # an extra
    from ingot.frontends.onnx.tensors import type_text

    graph: Any = read_model(source.path)[0].graph
    ops = Counter(f"{node.domain}::{node.op_type}" if node.domain else node.op_type for node in graph.node)
    weights = {w.name for w in graph.initializer}
    inputs = [f"{v.name}: {type_text(v.type)}" for v in graph.input if v.name not in weights]
    return dict(ops.most_common()), inputs, [f"{v.name}: {type_text(v.type)}" for v in graph.output]
