"""Groups that store what another one reads element by element, or row by row, in one kernel with it.

    m = group{0.9 * m0 + g};  p = group{p0 - 0.1 * m}(m)   ->   m, p = group{0.9 * m0 + g, p0 - 0.1 * that}

An optimizer's step so reads and writes each element of a parameter and of its moments once. Only results of the model
are joined: what else is stored has readers of other kinds, which decide where it lies.

    m = rows{sum(x) / n};  v = rows{sum((x - m)^2)}(m)   ->   m, v = rows{sum(x) / n, sum((x - that)^2)}

Where the target's row kernels have several results, so do moments that something else reads, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from ingot.ir.node import Graph, Input, Node, rebuilt, topological
from ingot.ir.types import Shape
from ingot.ops import BroadcastInDim, Reduction, Reshape
from ingot.ops.core.base import Category, category
from ingot.ops.group import Group, same_element
from ingot.passes.fusion.policy import FusionPolicy


def join_results(graph: Graph, policy: FusionPolicy) -> tuple[Graph, dict[Node, Node]]:
    """A fused graph whose results are made by the groups that read them, and which groups became which."""
    merged: dict[Node, tuple[Node, ...]] = {}
    outputs, depth = set(graph.outputs), _depths(graph)
    for reader in reversed(graph.nodes()):
        can_join = _can_join if _is_group(reader, "pointwise") else _shares_rows
        if reader in merged or not (
            _is_group(reader, "pointwise") or (policy.joined_rows and _is_group(reader, "rows"))
        ):
            continue
        members = [reader]
        for m in members:  # which grows on the way
            taken = merged.keys() | members
            members += [i for i in dict.fromkeys(m.inputs) if i not in taken and can_join(i, m, outputs)]
        while len(members) > 1 and not _fits(members, depth, policy):
            members.remove(min(members[1:], key=depth.__getitem__))
        if len(members) > 1:
            merged |= dict.fromkeys(members, tuple(sorted(members, key=depth.__getitem__)))
    if not merged:
        return graph, {}

    def needs(n: Node) -> Sequence[Node]:
        return _read(merged[n]) if n in merged else n.inputs

    images: dict[Node, Node] = {}
    replaced: dict[Node, Node] = {}
    for n in topological((*graph.inputs, *graph.outputs), needs):
        if n in images:
            continue
        if n in merged:
            group = _joined(merged[n], images)
            images |= zip(merged[n], group.results, strict=True)
            replaced |= dict.fromkeys(merged[n], group)
        else:
            images[n] = n.with_inputs([images[i] for i in n.inputs])
    return graph.with_outputs(images[n] for n in graph.outputs), replaced


def _depths(graph: Graph) -> dict[Node, int]:
    """How many nodes lie one behind the other before each."""
    depth: dict[Node, int] = {}
    for n in graph.nodes():
        depth[n] = 1 + max((depth[i] for i in n.inputs), default=0)
    return depth


def _is_group(n: Node, kind: str) -> bool:
    return isinstance(n.op, Group) and n.op.kind == kind and len(n.types) == 1


def _can_join(producer: Node, reader: Node, outputs: Set[Node]) -> bool:
    """Whether a group's elements are needed for those alone that a pointwise group makes of them."""
    if producer not in outputs or not _is_group(producer, "pointwise") or producer.shape != reader.shape:
        return False
    body = _body(reader)
    return all(same_element(body, p) for p, i in zip(body.inputs, reader.inputs, strict=True) if i is producer)


def _shares_rows(producer: Node, reader: Node, outputs: Set[Node]) -> bool:
    """Whether two groups reduce the same rows, and one has a value of each that the other needs for that row alone."""
    if not _is_group(producer, "rows") or len(boxes := _boxes(producer) | _boxes(reader)) != 1:
        return False
    ((box, reduced),) = boxes
    kept = tuple(d for d in range(len(box)) if d not in reduced and box[d] != 1)
    if _sized(producer.shape) != tuple(box[d] for d in kept):
        return False
    body = _body(reader)
    return all(_of_rows(body, p, box, kept) for p, i in zip(body.inputs, reader.inputs, strict=True) if i is producer)


def _boxes(n: Node) -> set[tuple[Shape, tuple[int, ...]]]:
    """What a row group reduces, and along which dimensions."""
    return {(m.inputs[0].shape, m.op.reduced) for m in _body(n).nodes() if isinstance(m.op, Reduction)}


def _of_rows(body: Graph, p: Node, box: Shape, kept: tuple[int, ...]) -> bool:
    """Whether the values of the parameter `p`, one for each row, are spread over these rows' elements alone."""
    users, stack = body.uses(), [p]
    for n in stack:  # which grows on the way
        for u in users.get(n, ()):
            if isinstance(u.op, BroadcastInDim):
                along = tuple(d for d, size in zip(u.op.dims, n.shape, strict=True) if size != 1)
                if u.shape != box or along != kept:
                    return False
                continue
            plain = isinstance(u.op, Reshape) or category(u.op) is Category.ELEMENTWISE
            if not plain or _sized(u.shape) != _sized(p.shape):
                return False
            if u not in stack:
                stack.append(u)
    return True


def _sized(shape: Shape) -> Shape:
    return tuple(d for d in shape if d != 1)


def _body(n: Node) -> Graph:
    assert isinstance(n.op, Group)
    return n.op.body


def _read(members: Sequence[Node]) -> list[Node]:
    """What the groups read of others."""
    return list(dict.fromkeys(i for m in members for i in m.inputs if i not in members))


def _fits(members: Sequence[Node], depth: Mapping[Node, int], policy: FusionPolicy) -> bool:
    """Whether groups have few enough ops for one, and all that they read of others lies less deep than each of them, so
    that what joined groups need never needs them."""
    if sum(len(_body(m).nodes()) for m in members) > policy.members:
        return False
    first = min(depth[m] for m in members)
    return all(depth[i] < first for i in _read(members))


def _joined(members: Sequence[Node], images: Mapping[Node, Node]) -> Node:
    """One group with the results of all, which come in the order in which they are needed."""
    params: dict[Node, Node] = {}
    roots: dict[Node, Node] = {}
    for m in members:
        inside: dict[Node, Node] = {}
        for p, outer in zip(_body(m).inputs, m.inputs, strict=True):
            if outer not in roots and outer not in params:
                params[outer] = Input(f"p{len(params)}", p.type)()
            inside[p] = roots.get(outer) or params[outer]
        (roots[m],) = rebuilt(_body(m).outputs, inside)
    body, last = Graph(tuple(params.values()), tuple(roots.values())), members[-1].op
    assert isinstance(last, Group)
    return Group(body, last.kind)(*(images[n] for n in params), loc=members[-1].loc)


__all__ = ["join_results"]
