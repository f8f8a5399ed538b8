"""Compute the values that are written into a slice or window in the kernel that writes them.

    r = group{x * cos + turned(x) * sin};  c = group{scatter(cache, i, r)}
    ->  c = group{scatter(cache, i, x * cos + turned(x) * sin)}

Each element of a slice, or of the only window of a scatter, is written once, so nothing is recomputed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ingot import ops
from ingot.ir.node import Graph, Input, Node, rebuild
from ingot.ops.core.base import Category, category
from ingot.ops.group import Group
from ingot.ops.views import base_of
from ingot.passes.fusion.policy import FusionPolicy

MOVING_VIEWS = (ops.Reshape, ops.Transpose, ops.Slice)  # views that do not repeat elements


def compute_updates(graph: Graph, policy: FusionPolicy) -> tuple[Graph, dict[Node, Node]]:
    """Return a fused graph whose updates are computed where they are written, and the new node of each changed
    group."""
    if not policy.computes_updates:
        return graph, {}
    users, outputs = graph.uses(), set(graph.outputs)
    images: dict[Node, Node] = {}
    replaced: dict[Node, Node] = {}
    for n in graph.nodes():
        operand = _computed_operand(n, users, outputs, policy)
        inputs = [images.get(i, i) for i in n.inputs]
        images[n] = n.with_inputs(inputs) if operand is None else _merged(n, n.inputs[operand], operand, images)
        if images[n] is not n:
            replaced[n] = images[n]
    return graph.with_outputs(images[n] for n in graph.outputs), replaced


def _computed_operand(
    n: Node, users: Mapping[Node, list[Node]], outputs: set[Node], policy: FusionPolicy
) -> int | None:
    """The index of an operand of group `n` that is only computed for the elements that the group writes; None: none."""
    if not isinstance(n.op, Group) or n.op.kind != "scatter":
        return None
    body = n.op.body
    anchor = next(m for m in body.nodes() if category(m.op) is Category.SCATTER)
    scatter = anchor.op if isinstance(anchor.op, ops.Scatter) else None
    updates = anchor.inputs[2 if scatter else 1]
    if scatter and not (scatter.kind == "set" and scatter.has_one_window(updates.shape)):
        return None
    p = base_of(updates, MOVING_VIEWS)
    if p not in body.inputs or p in body.outputs or len(body.uses()[p]) != 1:
        return None
    index = body.inputs.index(p)
    producer = n.inputs[index]
    is_only_use = users[producer] == [n] and n.inputs.count(producer) == 1 and producer not in outputs
    if not is_only_use or not isinstance(producer.op, Group) or producer.op.kind != "pointwise":
        return None
    is_small = len(producer.op.body.nodes()) + len(body.nodes()) <= policy.max_ops
    return index if is_small and not any(_may_be_overwritten(n, i) for i in producer.inputs) else None


def _may_be_overwritten(n: Node, value: Node) -> bool:
    """Whether `n` may overwrite `value`, so that it cannot read it elsewhere: a value of the state, or an update of
    one."""
    changes = isinstance(value.op, Input) or (isinstance(value.op, Group) and value.op.kind == "scatter")
    return changes and value.type == n.type


def _merged(reader: Node, producer: Node, index: int, images: Mapping[Node, Node]) -> Node:
    """Return `reader` with the body of its operand `index` merged in."""
    assert isinstance(reader.op, Group) and isinstance(producer.op, Group)
    params: dict[Node, Node] = {}

    def params_of(body: Graph, outer: Sequence[Node]) -> dict[Node, Node]:
        for i in outer:
            if i is not producer and i not in params:
                params[i] = Input(f"p{len(params)}", i.type)()
        return {p: params[i] for p, i in zip(body.inputs, outer, strict=True) if i is not producer}

    inputs = params_of(producer.op.body, producer.inputs)
    (value,) = rebuild(producer.op.body.outputs, inputs)
    roots = rebuild(
        reader.op.body.outputs, params_of(reader.op.body, reader.inputs) | {reader.op.body.inputs[index]: value}
    )
    body = Graph(tuple(params.values()), tuple(roots))
    return Group(body, "scatter")(*(images[i] for i in params), loc=reader.loc)


__all__ = ["compute_updates"]
