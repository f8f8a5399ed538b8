"""Sharding: from a graph and marks by name to one graph for each device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import lcm

from ingot import ops
from ingot.ir.dims import Dim, as_dim, exact_quotient, symbol, symbols_of
from ingot.ir.node import Const, Graph, Input, Node
from ingot.passes.model.lower import lower_model_ops
from ingot.support.errors import InputError
from ingot.transform.shard.batch_groups import with_batch_groups
from ingot.transform.shard.mesh import Marks, MarkTable, Mesh, Spec, annotated_spec, axes_in, unsplit
from ingot.transform.shard.partition import Sharded, partition, plan
from ingot.transform.shard.propagate import Propagation
from ingot.transform.shard.rules import RULED, rule


def shard(graph: Graph, mesh: Mesh, marks: Marks | None, splits_loops: bool = True) -> Sharded:
    """Split a MODEL graph over a mesh.

    Inputs without a mark are whole; unmarked weights and state are split where that saves a collective. An unmarked
    output is split over the axes that split an input, because the caller works with parts along these, and is whole
    along others. The model's own annotations (`ops.Sharding`) are marks as well. A symbolic size that is split remains
    symbolic: the symbol then stands for the size of a device's part. splits_loops: whether loops may run in parts, with
    collectives inside.

    Raises InputError for a mark that matches no name, or that does not split a tensor into equal parts.
    """
    table = MarkTable(marks, mesh)
    names = [_label(n) for n in graph.inputs]
    first_state = len(graph.inputs) - len(graph.state)
    names[first_state:] = graph.state
    marked = {n: table.spec(name, len(n.shape)) for n, name in zip(graph.inputs, names, strict=True)}
    for n, spec in _annotations(graph, mesh).items():
        (x,) = n.inputs
        if marked.get(x, ()) is None:
            marked[x] = spec
    graph, images = _with_local_sizes(graph, mesh, {n: spec for n, spec in marked.items() if spec is not None})
    fixed = {images[n]: spec or unsplit(len(n.shape)) for n, spec in list(marked.items())[:first_state]}
    fixed |= {images[n]: spec for n, spec in list(marked.items())[first_state:] if spec is not None}
    unlowered = RULED | {ops.PerDevice}
    expanded = with_batch_groups(lower_model_ops(graph, unlowered, _is_ruled))
    for n in _with_bodies(expanded):
        if isinstance(n.op, Const) and (spec := table.spec(n.loc, len(n.shape))) is not None:
            fixed[n] = spec
    annotations = _annotations(expanded, mesh)
    fixed |= {n: spec for n, spec in (annotations | _per_device_specs(expanded, mesh)).items() if n not in fixed}
    data_axes = frozenset[str]().union(*(axes_in(spec) for n, spec in fixed.items() if n in graph.inputs[:first_state]))
    labels = expanded.output_names or tuple(f"output{i}" for i in range(len(expanded.results)))
    output_marks = [
        table.spec(label, len(n.shape)) or annotations.get(n)
        for label, n in zip(labels, expanded.results, strict=False)
    ]
    if unused := table.unused_marks:
        known_names = sorted(
            {*names, *labels, *(n.loc for n in _with_bodies(expanded) if isinstance(n.op, Const) and n.loc)}
        )
        raise InputError(
            "shard", expected=f"patterns that match some of {_names_text(known_names)}", got=", ".join(unused)
        )
    preferred = {n: spec for n, spec in zip(expanded.results, output_marks, strict=False) if spec is not None}
    specs = Propagation(expanded, mesh, fixed, preferred, splits_loops=splits_loops).run()
    outputs = [_output_spec(expanded, i, n, specs, output_marks, data_axes) for i, n in enumerate(expanded.outputs)]
    return plan(expanded, mesh, specs, outputs, splits_loops)


def graphs_of(sharded: Sharded) -> list[Graph]:
    """The graph of each device."""
    return [partition(sharded, rank) for rank in range(sharded.mesh.size)]


def collectives(graph: Graph) -> dict[str, int]:
    """The number of collectives of each kind in a graph; those of loop bodies count once."""
    counts: dict[str, int] = {}
    for n in _with_bodies(graph):
        if isinstance(n.op, ops.Collective):
            counts[n.op.name] = counts.get(n.op.name, 0) + 1
    return counts


def _annotations(graph: Graph, mesh: Mesh) -> dict[Node, Spec]:
    """The specs of the model's own annotations."""
    return {n: annotated_spec(n.op, len(n.shape), mesh) for n in graph.nodes() if isinstance(n.op, ops.Sharding)}


def _with_bodies(graph: Graph) -> Iterator[Node]:
    """All nodes, including those of loop bodies."""
    for n in graph.nodes():
        yield n
        if isinstance(n.op, ops.While):
            yield from _with_bodies(n.op.body)


def _is_ruled(node: Node) -> bool:
    return node.op.count > 1 if isinstance(node.op, ops.PerDevice) else rule(node) is not None


def _per_device_specs(graph: Graph, mesh: Mesh) -> dict[Node, Spec]:
    """The specs of operands and results of `ops.PerDevice`, the model's own shard_map. Raises InputError if that was
    written for another mesh, whose ranks differ."""
    specs: dict[Node, Spec] = {}
    for n in graph.nodes():
        if isinstance(n.op, ops.PerDevice):
            if n.op.mesh != mesh.axes:
                raise InputError("the model's shard_map", expected=f"mesh={dict(n.op.mesh)}", got=dict(mesh.axes))
            specs |= zip(n.results, n.op.out_axes, strict=True)
            for x, spec in zip(n.inputs, n.op.in_axes, strict=True):
                if not isinstance(x.op, Const | Input):
                    specs.setdefault(x, spec)
    return {n: tuple(tuple(a for a in axes if mesh.count((a,)) > 1) for axes in spec) for n, spec in specs.items()}


def _label(node: Node) -> str:
    assert isinstance(node.op, Input)
    return node.op.label


def _names_text(names: list[str], max_count: int = 20) -> str:
    return ", ".join(names[:max_count]) + (f" and {len(names) - max_count} more" if len(names) > max_count else "")


def _output_spec(
    graph: Graph, index: int, node: Node, specs: Mapping[Node, Spec], output_marks: list[Spec | None],
    data_axes: frozenset[str],
) -> Spec:  # fmt: skip
    """The spec of an output. The new value of a state is split like the old one; a computed size is whole."""
    rank = len(node.shape)
    if index < len(graph.state):
        return specs.get(graph.state_pairs[index][0]) or unsplit(rank)
    if index >= len(graph.results):
        return unsplit(rank)
    if (spec := output_marks[index]) is not None:
        return spec
    return tuple(tuple(a for a in axes if a in data_axes) for axes in specs.get(node) or unsplit(rank))


def _with_local_sizes(graph: Graph, mesh: Mesh, marked: Mapping[Node, Spec]) -> tuple[Graph, dict[Node, Node]]:
    """The graph with symbols for the sizes of parts: if a device has 1/n of a symbolic size s, s becomes n s."""
    factors: dict[str, int] = {}
    for n, spec in marked.items():
        for size, axes in zip(n.shape, spec, strict=True):
            if isinstance(size, Dim) and exact_quotient(size, mesh.count(axes)) is None:
                for name in symbols_of(size):
                    factors[name] = lcm(factors.get(name, 1), mesh.count(axes))
    if not factors:
        return graph, {n: n for n in graph.inputs}
    scaled = graph.substitute({name: as_dim(symbol(name)) * factor for name, factor in factors.items()})
    bounds = tuple(
        (name, None if low is None else -(-low // factors[name]), None if high is None else high // factors[name])
        if name in factors
        else (name, low, high)
        for name, low, high in graph.bounds
    )
    return replace(scaled, bounds=bounds), dict(zip(graph.inputs, scaled.inputs, strict=True))
