"""Values by element of a stored result, computed by the kernel that stores it.

    y = contraction{dot + bias};  z = group{gelu}(y)      ->   y, z = contraction{dot + bias, gelu}
    g = rows{norm backward};      h = group{convert}(g)   ->   g, h = rows{norm backward, convert}

In training y is stored for the backward pass, and g is read by residuals in float32 and by products in 16 bits: z and h
then cost a store, and no load and no launch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ingot.ir.node import Graph, Input, Node, Project, rebuild, topological
from ingot.ops.group import Group, elements_readers
from ingot.passes.fusion.policy import FusionPolicy

_PRODUCERS = ("contraction", "rows")


def join_epilogues(graph: Graph, policy: FusionPolicy) -> tuple[Graph, dict[Node, Node]]:
    """Return a fused graph with pointwise groups merged into the groups whose results they read, and the new node of
    each merged group."""
    if not policy.joins_epilogues:
        return graph, {}
    users = graph.uses()
    readers: dict[Node, list[Node]] = {}  # by producer
    for n in graph.nodes():
        producer = next((group for i in n.inputs if (group := _producer(i, n, users)) is not None), None)
        if producer is None:
            continue
        members = readers.get(producer, [])
        results = {producer, *producer.results}
        size = sum(len(_body(m).nodes()) for m in (producer, *members, n))
        # operands of others are computed before the producer, so that they do not depend on it
        if all(i in results or i.is_leaf or i in producer.inputs for i in n.inputs) and size <= policy.max_ops:
            readers.setdefault(producer, []).append(n)
    producers = {r: p for p, members in readers.items() for r in members}
    images: dict[Node, Node] = {}
    replaced: dict[Node, Node] = {}

    def needs(n: Node) -> Sequence[Node]:
        if n in producers:
            return (producers[n],)
        return (*n.inputs, *(i for r in readers.get(n, ()) for i in r.inputs if i.is_leaf))

    for n in topological((*graph.inputs, *graph.outputs), needs):
        if n in readers:
            group = _merged(n, readers[n], images)
            count = len(n.types)
            images |= zip(n.results if count > 1 else (n,), group.results, strict=False)
            images |= zip(readers[n], group.results[count:], strict=True)
            replaced |= dict.fromkeys((n, *readers[n]), group)
        elif n not in images:
            images[n] = n.with_inputs([images[i] for i in n.inputs])
    return graph.with_outputs(images[n] for n in graph.outputs), replaced


def _producer(value: Node, reader: Node, users: Mapping[Node, Sequence[Node]]) -> Node | None:
    """The group whose result `value` is, if `reader` is pointwise work on elements of it, and neither is part of
    another value's memory."""
    group = value.inputs[0] if isinstance(value.op, Project) else value
    if not _is_group(group, *_PRODUCERS) or not _is_group(reader, "pointwise") or len(reader.types) > 1:
        return None
    if any(u.op.holds_operands for x in (*group.results, reader) for u in users.get(x, ())):
        return None
    body = _body(reader)
    for p, i in zip(body.inputs, reader.inputs, strict=True):
        if i is value or i in group.results:
            nodes = elements_readers(body, p)
            if nodes is None or body.outputs[0] not in nodes:
                return None
    return group


def _is_group(n: Node, *kinds: str) -> bool:
    return isinstance(n.op, Group) and n.op.kind in kinds


def _body(n: Node) -> Graph:
    assert isinstance(n.op, Group)
    return n.op.body


def _merged(producer: Node, members: Sequence[Node], images: Mapping[Node, Node]) -> Node:
    """Return one group with the results of the producer and its readers."""
    op = producer.op
    assert isinstance(op, Group)
    params = dict(zip(producer.inputs, op.body.inputs, strict=True))
    values = dict(zip(producer.results if len(producer.types) > 1 else (producer,), op.body.outputs, strict=True))
    roots = [*op.body.outputs]
    for m in members:
        inner: dict[Node, Node] = {}
        for p, outer in zip(_body(m).inputs, m.inputs, strict=True):
            if outer not in values and outer not in params:
                params[outer] = Input(f"p{len(params)}", p.type)()
            inner[p] = values[outer] if outer in values else params[outer]
        roots += rebuild(_body(m).outputs, inner)
    body = Graph(tuple(params.values()), tuple(roots))
    return Group(body, op.kind)(*(images[n] for n in params), loc=producer.loc)


__all__ = ["join_epilogues"]
