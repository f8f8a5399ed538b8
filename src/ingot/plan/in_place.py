"""Values written over others: which can be, and what must be computed before them.

    y = relu(x)                                      ->   y is written over x if nothing reads x afterwards
    new = scatter(old, i, rows); a = attention(new)  ->   the rows are written into old's memory, and read there
    new = while(scatter(old, i, rows))               ->   the loop begins and ends in old's memory, too

State that lasts from run to run (`Graph.lasting`), and values carried from one iteration of a loop to the next, are
written over the old value if all readers of it can run before. If that cannot be proven, the new value has its own
memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field

from ingot import ops
from ingot.ir.layout import Layout
from ingot.ir.node import Graph, Node, Project
from ingot.ops.core.base import Category, category
from ingot.ops.group import Group, label, reads_same_element
from ingot.ops.views import base_of, pull_back, strided_base
from ingot.support.dataclass import dataclass

Pairs = Sequence[tuple[Node, Node]]  # inputs, and the values that should be in their memory after a run


@dataclass
class InPlace:
    """Values written over inputs.

    memory_of: the input in whose memory a value is stored. copy_reasons: why an input's new value has its own memory.
    predecessors: the nodes that must run before a node, each with the input whose old value they read.
    """

    memory_of: dict[Node, Node] = field(default_factory=dict)
    copy_reasons: dict[Node, str] = field(default_factory=dict)
    predecessors: dict[Node, dict[Node, Node]] = field(default_factory=dict)


def in_place(graph: Graph, pairs: Pairs) -> InPlace:
    """Write the second value of each pair over the first, an input, where possible."""
    result, users = InPlace(), graph.uses()
    for old, new in pairs:
        chain = [] if new is old else _update_chain(graph, users, old, new)
        obstacle = _obstacle(graph, result, users, old, chain)
        if obstacle:
            result.copy_reasons[old] = obstacle
            continue
        result.memory_of |= dict.fromkeys(chain, old)
        for overwritten, value in zip([old, *chain], chain, strict=False):
            writer = producer(value)
            readers = [u for u in users.get(overwritten, ()) if u is not writer]
            result.predecessors.setdefault(writer, {}).update(dict.fromkeys(readers, old))
        if chain and graph.size_nodes:
            # a size out of its bounds ends the run, and must leave the state as it was
            result.predecessors[producer(chain[0])] |= dict.fromkeys(graph.size_nodes.values(), old)
    while cyclic := _cyclic_inputs(graph, result.predecessors):
        for old in cyclic:
            result.copy_reasons[old] = "what reads the old value, or tells a size, needs the new one"
        result.memory_of = {n: old for n, old in result.memory_of.items() if old not in cyclic}
        for node, required in result.predecessors.items():
            result.predecessors[node] = {n: old for n, old in required.items() if old not in cyclic}
    return result


def producer(value: Node) -> Node:
    """The node that computes a value."""
    return value.inputs[0] if isinstance(value.op, Project) else value


def can_overwrite(value: Node, operand: Node, layouts: Mapping[Node, Layout]) -> bool:
    """Whether a group's result can be written over an operand, given how the group reads it. layouts: of both."""
    group = producer(value)
    op = group.op
    if not isinstance(op, Group) or value.type != operand.type or group.inputs.count(operand) != 1:
        return False
    if layouts[operand] != layouts[value]:
        return False
    p, result = op.body.inputs[group.inputs.index(operand)], op.body.outputs[_result_index(value)]
    loop = _while_of(op.body)
    if loop is not None:
        is_read_once = sum(p in n.inputs for n in op.body.nodes()) == 1 and loop.inputs.count(p) == 1
        return is_read_once and _carried_operand(value) is operand
    if op.kind == "pointwise":
        has_reshape = any(isinstance(n.op, ops.Reshape) for n in op.body.nodes())
        # every element is read before it is overwritten, for the other results as well
        return reads_same_element(op.body, p, result) and (layouts[operand].is_contiguous or not has_reshape)
    return updated_operand(value) is operand and _is_pure_update(op.body, p, layouts[operand])


def updated_operand(value: Node) -> Node | None:
    """The operand of which a group's result is an update: it differs in some elements only, or a loop makes it so."""
    if (operand := _carried_operand(value)) is not None:
        return operand
    group = producer(value)
    op = group.op
    anchor = _anchor(op.body) if isinstance(op, Group) and op.kind == "scatter" else None
    if anchor is None:
        return None
    source = strided_base(anchor.inputs[0], {})
    if source is None or source[0] not in op.body.inputs:  # type: ignore[union-attr]
        return None
    return group.inputs[op.body.inputs.index(source[0])]  # type: ignore[union-attr]


def _carried_operand(value: Node) -> Node | None:
    """The operand of a loop's group with which a value of the loop begins, if the result of the group is that value."""
    group = producer(value)
    op = group.op
    loop = _while_of(op.body) if isinstance(op, Group) else None
    if loop is None or not isinstance(op, Group):
        return None
    result = op.body.outputs[_result_index(value)]
    if producer(result) is not loop:
        return None
    operand = loop.inputs[_result_index(result)]
    return group.inputs[op.body.inputs.index(operand)] if operand in op.body.inputs else None


def _result_index(value: Node) -> int:
    """The position of a value among the results of its producer."""
    return value.op.index if isinstance(value.op, Project) else 0


def _while_of(body: Graph) -> Node | None:
    return next((n for n in body.nodes() if isinstance(n.op, ops.While)), None)


def _anchor(body: Graph) -> Node | None:
    return next((n for n in body.nodes() if category(n.op) is Category.SCATTER), None)


def _is_pure_update(body: Graph, p: Node, layout: Layout) -> bool:
    """Whether `p` is read only as the updated operand, with each element where the result stores it."""
    anchor = _anchor(body)
    assert anchor is not None
    source = strided_base(anchor.inputs[0], {p: layout})
    target = pull_back(body.outputs[0], anchor, layout)
    if source is None or target is None or source[1] != target:
        return False
    return all(base_of(i) is not p for i in anchor.inputs[1:]) and sum(p in n.inputs for n in body.nodes()) == 1


def _contiguous(*values: Node) -> dict[Node, Layout]:
    return {v: Layout.contiguous(v.shape) for v in values}


def _update_chain(graph: Graph, users: Mapping[Node, Sequence[Node]], old: Node, new: Node) -> list[Node]:
    """The successive values in the memory of `old`, up to `new`, each of which updates the one before."""
    chain = [new]
    while True:
        operand = updated_operand(chain[-1])
        if operand is None or operand is old or operand in graph.outputs or not isinstance(producer(operand).op, Group):
            break
        if not can_overwrite(chain[-1], operand, _contiguous(operand, chain[-1])):
            break
        chain.append(operand)
    return chain[::-1]


def _obstacle(graph: Graph, result: InPlace, users: Mapping[Node, Sequence[Node]], old: Node, chain: list[Node]) -> str:
    """Why a chain of values cannot be written over an input in any order; "" if it can."""
    if any(v in result.memory_of or not isinstance(producer(v).op, Group) for v in chain):
        return "another's new value is the same"
    if chain and old in graph.outputs:
        return "the old value is a result"
    versions = [old, *chain]
    for i, value in enumerate(chain):
        group = producer(value)
        for version in versions[: i + 1]:
            if version in group.inputs and not (
                version is versions[i] and can_overwrite(value, version, _contiguous(version, value))
            ):
                is_elementwise = isinstance(group.op, Group) and group.op.kind in ("pointwise", "scatter")
                reason = (
                    "other elements of the old value than it writes"
                    if is_elementwise
                    else "the old value in loops of its own"
                )
                return f"{label(group)} reads {reason}"
    return ""


def _cyclic_inputs(graph: Graph, predecessors: Mapping[Node, Mapping[Node, Node]]) -> set[Node]:
    """Inputs whose predecessors form a cycle with the data flow: at least one input per cycle."""
    if not predecessors:
        return set()
    blocked: set[Node] = set()
    done: set[Node] = set()
    path: dict[Node, Node | None] = {}  # open nodes, each with the input of the edge to it

    def needs(n: Node) -> Iterator[tuple[Node, Node | None]]:
        yield from ((i, None) for i in n.inputs)
        yield from predecessors.get(n, {}).items()

    for root in graph.outputs:
        stack: list[tuple[Node, Iterator[tuple[Node, Node | None]]]] = []
        if root not in done:
            path[root] = None
            stack.append((root, needs(root)))
        while stack:
            node, edges = stack[-1]
            edge = next(((n, s) for n, s in edges if n not in done and s not in blocked), None)
            if edge is None:
                done.add(node)
                del path[node]
                stack.pop()
            elif edge[0] not in path:
                path[edge[0]] = edge[1]
                stack.append((edge[0], needs(edge[0])))
            else:
                open_nodes = list(path)
                cycle = [edge[1], *(path[n] for n in open_nodes[open_nodes.index(edge[0]) + 1 :])]
                blocked.add(next(s for s in cycle if s is not None))
    return blocked


__all__ = ["InPlace", "Pairs", "can_overwrite", "in_place", "producer", "updated_operand"]
