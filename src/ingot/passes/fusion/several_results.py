"""Merge a group with the one that reads its result by element or by row, into one with both results.

    m = group{0.9 * m0 + g};  p = group{p0 - 0.1 * m}(m)   ->   m, p = group{0.9 * m0 + g, p0 - 0.1 * that}

An optimizer's step then reads and writes each element of a parameter and of its moments once. Only results of the model
are merged: other stored values have readers of other kinds, which determine their layout.

    m = rows{sum(x) / n};  v = rows{sum((x - m)^2)}(m)   ->   m, v = rows{sum(x) / n, sum((x - that)^2)}

The same for moments that other nodes read too, if row kernels of the target can have several results. What is pointwise
on the elements of those rows joins as well, behind them (a norm whose moments are kept) or in front (a residual sum and
the norm of it).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ingot.ir.dims import product
from ingot.ir.node import Graph, Node
from ingot.ir.types import Shape
from ingot.ops import BroadcastInDim, Reshape
from ingot.ops.core.base import Category, category
from ingot.ops.group import Group, is_used_by_element, reads_same_element
from ingot.passes.fusion.groups import body_of
from ingot.passes.fusion.merge import Box, Merge, boxes_of, depths, is_group, merge_groups, op_count
from ingot.passes.fusion.policy import FusionPolicy


def join_results(graph: Graph, policy: FusionPolicy) -> tuple[Graph, dict[Node, Node]]:
    """Return a fused graph with groups merged into the groups that read them, and the image of each node."""
    merged: dict[Node, tuple[Node, ...]] = {}
    outputs, depth, users = set(graph.outputs), depths(graph), graph.uses()

    def can_join(producer: Node, reader: Node) -> bool:
        if policy.joins_row_results and _is_single(producer, "rows"):
            return _shares_rows(producer, reader)
        if not _is_single(producer, "pointwise"):
            return False
        if _is_single(reader, "rows"):
            has_plain_layout = producer in outputs or all(isinstance(u.op, Group) for u in users[producer])
            return has_plain_layout and _is_of_rows(producer, reader, policy)
        return producer in outputs and _shares_elements(producer, reader)

    for reader in reversed(graph.nodes()):
        if reader in merged or not (
            _is_single(reader, "pointwise") or (policy.joins_row_results and _is_single(reader, "rows"))
        ):
            continue
        members = [reader]
        for m in members:  # grows in the loop
            excluded = merged.keys() | members
            members += [i for i in dict.fromkeys(m.inputs) if i not in excluded and can_join(i, m)]
        while len(members) > 1 and not _can_merge(members, depth, policy):
            members.remove(min(members[1:], key=depth.__getitem__))
        if len(members) > 1:
            merged |= dict.fromkeys(members, tuple(sorted(members, key=depth.__getitem__)))
    merges = (
        Merge.of(members, "rows" if any(is_group(m, "rows") for m in members) else "pointwise", members[-1].loc)
        for members in dict.fromkeys(merged.values())
    )
    return merge_groups(graph, merges)


def _is_single(n: Node, kind: str) -> bool:
    """Whether `n` is a group of that kind with one result."""
    return is_group(n, kind) and len(n.types) == 1


def _shares_elements(producer: Node, reader: Node) -> bool:
    """Whether a pointwise group needs each element of the producer for the same element of its result only."""
    if producer.shape != reader.shape:
        return False
    body = body_of(reader)
    return all(reads_same_element(body, p) for p, i in zip(body.inputs, reader.inputs, strict=True) if i is producer)


def _shares_rows(producer: Node, reader: Node) -> bool:
    """Whether two groups reduce the same rows, or the reader is pointwise on those rows, and the reader needs the
    producer's value of a row for that row only."""
    if len(boxes := boxes_of(producer) | boxes_of(reader)) != 1:
        return False
    ((box, reduced),) = boxes
    if not boxes_of(reader) and (reader.type.size != product(box) or max(_long_dims_at(box), default=0) not in reduced):
        return False  # a row whose elements are apart is better stored element by element than row by row
    result_dims = tuple(d for d in range(len(box)) if d not in reduced and box[d] != 1)
    if _long_dims(producer.shape) != tuple(box[d] for d in result_dims):
        return False
    body = body_of(reader)
    return all(
        _is_used_by_rows(body, p, box, result_dims)
        for p, i in zip(body.inputs, reader.inputs, strict=True)
        if i is producer
    )


def _is_of_rows(producer: Node, reader: Node, policy: FusionPolicy) -> bool:
    """Whether a row group, whose rows are short enough to be held, needs each element of a pointwise group for the same
    element of its rows only."""
    if len(boxes := boxes_of(reader)) != 1:
        return False
    ((box, reduced),) = boxes
    length = product([box[d] for d in reduced])
    if not isinstance(length, int) or length > policy.max_single_row or product(producer.shape) != product(box):
        return False
    body = body_of(reader)
    return all(is_used_by_element(body, p) for p, i in zip(body.inputs, reader.inputs, strict=True) if i is producer)


def _is_used_by_rows(body: Graph, p: Node, box: Shape, result_dims: tuple[int, ...]) -> bool:
    """Whether the values of the parameter `p`, one per row, are only broadcast over the elements of their rows, and
    these stay where they are: a transposed matrix has other rows."""
    users, stack = body.uses(), [p]
    for n in stack:  # grows in the loop
        for u in users.get(n, ()):
            if isinstance(u.op, BroadcastInDim):
                broadcast_dims = tuple(d for d, size in zip(u.op.dims, n.shape, strict=True) if size != 1)
                if u.shape != box or broadcast_dims != result_dims or not is_used_by_element(body, u):
                    return False
                continue
            is_plain = isinstance(u.op, Reshape) or category(u.op) is Category.ELEMENTWISE
            if not is_plain or _long_dims(u.shape) != _long_dims(p.shape):
                return False
            if u not in stack:
                stack.append(u)
    return True


def _long_dims_at(shape: Shape) -> tuple[int, ...]:
    return tuple(i for i, d in enumerate(shape) if d != 1)


def _long_dims(shape: Shape) -> Shape:
    return tuple(d for d in shape if d != 1)


def _can_merge(members: Sequence[Node], depth: Mapping[Node, int], policy: FusionPolicy) -> bool:
    """Whether the groups have few enough ops for one and reduce the same rows, and all their outer operands are at a
    smaller depth than each of them, so that no operand depends on the merged group."""
    boxes = set[Box]().union(*map(boxes_of, members))
    if op_count(members) > policy.max_ops or len(boxes) > 1:
        return False
    min_depth = min(depth[m] for m in members)
    operands = {i for m in members for i in m.inputs if i not in members}
    return all(depth[i] < min_depth for i in operands)


__all__ = ["join_results"]
