"""Reductions of the same rows of one value, computed by one kernel that reads the value once.

    s = rows{sum(g)}(g);  d = rows{sum(g * (x - m))}(g, x, m)   ->   s, d = rows{sum(p0), sum(p0 * (p1 - p2))}(g, x, m)

The gradient of a batch norm needs both sums. Of g they are the only readers that do not store a value of its size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ingot.ir.dims import product
from ingot.ir.node import Graph, Input, Node, rebuild, topological
from ingot.ir.types import Shape
from ingot.ops import Reduction, reduced_dims
from ingot.ops.group import Group
from ingot.passes.fusion.groups import body_of
from ingot.passes.fusion.policy import FusionPolicy

Box = tuple[Shape, tuple[int, ...]]  # the shape that a group reduces, with the reduced dimensions


def join_siblings(graph: Graph, policy: FusionPolicy) -> tuple[Graph, dict[Node, Node]]:
    """Return a fused graph in which groups that reduce the same rows of one operand are merged, and the new node of
    each merged group."""
    if not policy.joins_row_results:
        return graph, {}
    depth: dict[Node, int] = {}  # the length of the longest path of operands before each node
    siblings: dict[tuple[Node, Box, int], list[Node]] = {}
    taken: set[Node] = set()
    for n in graph.nodes():
        depth[n] = 1 + max((depth[i] for i in n.inputs), default=0)
        box = _box(n)
        if box is None:
            continue
        for i in n.inputs:  # groups of one depth do not depend on each other
            if i.type.size == product(box[0]) and n not in taken:
                members = siblings.setdefault((i, box, depth[n]), [])
                if sum(len(body_of(m).nodes()) for m in (*members, n)) <= policy.max_ops:
                    members.append(n)
                    taken.add(n)
    merged = {m: members for members in siblings.values() if len(members) > 1 for m in members}
    if not merged:
        return graph, {}
    images: dict[Node, Node] = {}
    replaced: dict[Node, Node] = {}

    def needs(n: Node) -> Sequence[Node]:
        return [i for m in merged.get(n, (n,)) for i in m.inputs]

    for n in topological((*graph.inputs, *graph.outputs), needs):
        if n in images:
            continue
        if n not in merged:
            images[n] = n.with_inputs([images[i] for i in n.inputs])
            continue
        group = _merged(merged[n], images)
        results = [r for m in merged[n] for r in (m.results if len(m.types) > 1 else (m,))]
        images |= zip(results, group.results, strict=True)
        images |= dict.fromkeys((m for m in merged[n] if len(m.types) > 1), group)
        replaced |= dict.fromkeys(merged[n], group)
    return graph.with_outputs(images[n] for n in graph.outputs), replaced


def _box(n: Node) -> Box | None:
    """What a row group reduces, if all of its results are values of rows."""
    if not isinstance(n.op, Group) or n.op.kind != "rows":
        return None
    boxes = {(m.inputs[0].shape, reduced_dims(m)) for m in body_of(n).nodes() if isinstance(m.op, Reduction)}
    if len(boxes) != 1:
        return None
    ((shape, reduced),) = boxes
    row_count = product([d for i, d in enumerate(shape) if i not in reduced])
    has_rows_alone = row_count != product(shape) and all(t.size == row_count for t in n.types)
    return (shape, reduced) if has_rows_alone else None


def _merged(members: Sequence[Node], images: Mapping[Node, Node]) -> Node:
    """Return one group with the results of all members."""
    params: dict[Node, Node] = {}
    roots: list[Node] = []
    for m in members:
        for outer in m.inputs:
            if outer not in params:
                params[outer] = Input(f"p{len(params)}", outer.type)()
        roots += rebuild(body_of(m).outputs, dict(zip(body_of(m).inputs, (params[i] for i in m.inputs), strict=True)))
    body = Graph(tuple(params.values()), tuple(roots))
    return Group(body, "rows")(*(images[n] for n in params), loc=members[-1].loc)


__all__ = ["join_siblings"]
