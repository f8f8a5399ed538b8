"""Compute the values that are written into a slice or window in the kernel that writes them.

    r = group{x * cos + turned(x) * sin};  c = group{scatter(cache, i, r)}
    ->  c = group{scatter(cache, i, x * cos + turned(x) * sin)}

Each element of a slice, or of the only window of a scatter, is written once, so nothing is recomputed.
"""

from __future__ import annotations

from collections.abc import Mapping

from ingot import ops
from ingot.ir.node import Graph, Input, Node
from ingot.ops.core.base import Category, category
from ingot.ops.group import Group
from ingot.ops.views import base_of
from ingot.passes.fusion.merge import Merge, merge_groups, op_count
from ingot.passes.fusion.policy import FusionPolicy

MOVING_VIEWS = (ops.Reshape, ops.Transpose, ops.Slice)  # views that do not repeat elements


def compute_updates(graph: Graph, policy: FusionPolicy) -> tuple[Graph, dict[Node, Node]]:
    """Return a fused graph whose updates are computed where they are written, and the image of each node."""
    if not policy.computes_updates:
        return graph, {}
    users, outputs = graph.uses(), set(graph.outputs)
    updates = {n: p for n in graph.nodes() if (p := _computed_update(n, users, outputs, policy)) is not None}
    return merge_groups(graph, (Merge((p, n), (n,), "scatter", n.loc) for n, p in updates.items()))


def _computed_update(
    n: Node, users: Mapping[Node, list[Node]], outputs: set[Node], policy: FusionPolicy
) -> Node | None:
    """The operand of group `n` that is only computed for the elements that the group writes; None: none."""
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
    producer = n.inputs[body.inputs.index(p)]
    is_only_use = users[producer] == [n] and n.inputs.count(producer) == 1 and producer not in outputs
    if not is_only_use or not isinstance(producer.op, Group) or producer.op.kind != "pointwise":
        return None
    is_small = op_count((producer, n)) <= policy.max_ops
    return producer if is_small and not any(_may_be_overwritten(n, i) for i in producer.inputs) else None


def _may_be_overwritten(n: Node, value: Node) -> bool:
    """Whether `n` may overwrite `value`, so that it cannot read it elsewhere: a value of the state, or an update of
    one."""
    changes = isinstance(value.op, Input) or (isinstance(value.op, Group) and value.op.kind == "scatter")
    return changes and value.type == n.type


__all__ = ["compute_updates"]
