"""Reductions of the same rows of one value, and values by its elements, computed by one kernel that reads it once.

    s = rows{sum(g)}(g);  d = rows{sum(g * (x - m))}(g, x, m)   ->   s, d = rows{sum(p0), sum(p0 * (p1 - p2))}(g, x, m)
    a = group{g * silu(x)}(g, x);  b = group{g * y}(g, y)       ->   a, b = group{p0 * silu(p1), p0 * p2}(g, x, y)

The gradient of a batch norm needs both sums, that of a gate the gradients of both of its operands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ingot.ir.dims import product
from ingot.ir.node import Graph, Node
from ingot.ops.group import elements_readers
from ingot.passes.fusion.groups import body_of, kind_of
from ingot.passes.fusion.merge import Box, Merge, boxes_of, depths, is_group, merge_groups, op_count
from ingot.passes.fusion.policy import FusionPolicy


def join_siblings(graph: Graph, policy: FusionPolicy) -> tuple[Graph, dict[Node, Node]]:
    """Return a fused graph in which groups that reduce the same rows of one operand, or compute values by its elements,
    are merged, and the image of each node."""
    if not policy.joins_row_results:
        return graph, {}
    siblings: dict[tuple[Node, Box, int], list[Node]] = {}
    users, depth = graph.uses(), depths(graph)
    for n in graph.nodes():
        box, operands = _reads(n, users)
        keys = [(i, box, depth[n]) for i in operands]
        members = next((siblings[key] for key in keys if key in siblings), [])
        if keys and op_count((*members, n)) <= policy.max_ops:
            members.append(n)
            siblings |= {key: members for key in keys if key not in siblings}
    merges = (Merge.of(m, kind_of(m[0]), m[-1].loc) for m in siblings.values() if len(m) > 1)
    return merge_groups(graph, merges)


def _reads(n: Node, users: Mapping[Node, Sequence[Node]]) -> tuple[Box, list[Node]]:
    """The box that a group traverses, and the operands of its size that it can read for others, too: those of a row
    group whose results are all values of rows, and those whose elements a pointwise group needs for the same elements
    of its results."""
    nothing: tuple[Box, list[Node]] = (((), ()), [])
    if is_group(n, "pointwise"):
        is_part = any(u.op.holds_operands for r in n.results for u in users.get(r, ()))
        if is_part or len({t.shape for t in n.types}) > 1:
            return nothing
        pairs = zip(body_of(n).inputs, n.inputs, strict=True)
        operands = [i for p, i in pairs if _is_read_by_element(body_of(n), p)]
        return (n.types[0].shape, ()), operands
    if not is_group(n, "rows") or len(boxes := boxes_of(n)) != 1:
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
