"""Reductions of the same rows of one value, and values by its elements, computed by one kernel that reads it once.

    s = rows{sum(g)}(g);  d = rows{sum(g * (x - m))}(g, x, m)   ->   s, d = rows{sum(p0), sum(p0 * (p1 - p2))}(g, x, m)
    a = group{g * silu(x)}(g, x);  b = group{g * y}(g, y)       ->   a, b = group{p0 * silu(p1), p0 * p2}(g, x, y)

The gradient of a batch norm needs both sums, that of a gate the gradients of both of its operands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ingot.ir.dims import product
from ingot.ir.node import Graph, Input, Node, rebuild, topological
from ingot.ir.types import Shape
from ingot.ops import Reduction, reduced_dims
from ingot.ops.group import Group, elements_readers
from ingot.passes.fusion.groups import body_of
from ingot.passes.fusion.policy import FusionPolicy

Box = tuple[Shape, tuple[int, ...]]  # the shape that a group reduces, with the reduced dimensions


def join_siblings(graph: Graph, policy: FusionPolicy) -> tuple[Graph, dict[Node, Node]]:
    """Return a fused graph in which groups that reduce the same rows of one operand, or compute values by its elements,
    are merged, and the new node of each merged group."""
    if not policy.joins_row_results:
        return graph, {}
    depth: dict[Node, int] = {}  # the length of the longest path of operands before each node
    siblings: dict[tuple[Node, Box, int], list[Node]] = {}
    users = graph.uses()
    for n in graph.nodes():
        depth[n] = 1 + max((depth[i] for i in n.inputs), default=0)
        box, operands = _reads(n, users)
        keys = [(i, box, depth[n]) for i in operands]  # groups of one depth do not depend on each other
        members = next((siblings[key] for key in keys if key in siblings), [])
        if sum(len(body_of(m).nodes()) for m in (*members, n) if keys) <= policy.max_ops:
            members.append(n)
            siblings |= {key: members for key in keys if key not in siblings}
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


def _reads(n: Node, users: Mapping[Node, Sequence[Node]]) -> tuple[Box, list[Node]]:
    """The box that a group traverses, and the operands of its size that it can read for others, too: those of a row
    group whose results are all values of rows, and those whose elements a pointwise group needs for the same elements
    of its results."""
    nothing: tuple[Box, list[Node]] = (((), ()), [])
    if not isinstance(n.op, Group):
        return nothing
    if n.op.kind == "pointwise":
        is_part = any(u.op.holds_operands for r in n.results for u in users.get(r, ()))
        if is_part or len({t.shape for t in n.types}) > 1:
            return nothing
        pairs = zip(body_of(n).inputs, n.inputs, strict=True)
        operands = [i for p, i in pairs if _is_read_by_element(body_of(n), p)]
        return (n.types[0].shape, ()), operands
    if n.op.kind != "rows":
        return nothing
    boxes = {(m.inputs[0].shape, reduced_dims(m)) for m in body_of(n).nodes() if isinstance(m.op, Reduction)}
    if len(boxes) != 1:
        return nothing
    ((shape, reduced),) = boxes
    row_count = product([d for i, d in enumerate(shape) if i not in reduced])
    has_rows_alone = row_count != product(shape) and all(t.size == row_count for t in n.types)
    operands = [i for i in n.inputs if i.type.size == product(shape)]
    return ((shape, reduced), operands) if has_rows_alone else nothing


def _is_read_by_element(body: Graph, p: Node) -> bool:
    """Whether each element of a parameter is needed for the same element of a result, in row-major order, only."""
    readers = elements_readers(body, p)
    return readers is not None and p.type.size == body.outputs[0].type.size and not readers.isdisjoint(body.outputs)


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
    op = members[0].op
    assert isinstance(op, Group)
    return Group(body, op.kind)(*(images[n] for n in params), loc=members[-1].loc)


__all__ = ["join_siblings"]
