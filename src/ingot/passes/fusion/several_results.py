"""Pointwise groups that store what another one reads element by element, in one kernel with it.

    m = group{0.9 * m0 + g};  p = group{p0 - 0.1 * m}(m)   ->   m, p = group{0.9 * m0 + g, p0 - 0.1 * that}

An optimizer's step so reads and writes each element of a parameter and of its moments once. Only results of the model
are joined: what else is stored has readers of other kinds, which decide where it lies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ingot.ir.node import Graph, Input, Node, rebuilt, topological
from ingot.ops.group import Group, same_element
from ingot.passes.fusion.policy import FusionPolicy


def join_results(graph: Graph, policy: FusionPolicy) -> tuple[Graph, dict[Node, Node]]:
    """A fused graph whose results are made by the pointwise groups that read them, and which groups became which."""
    together: dict[Node, tuple[Node, ...]] = {}
    outputs, depth = set(graph.outputs), _depths(graph)
    for reader in reversed(graph.nodes()):
        if reader in together or not _is_pointwise(reader):
            continue
        members = [reader]
        for m in members:  # which grows on the way
            known = together.keys() | members
            members += [i for i in dict.fromkeys(m.inputs) if i in outputs and i not in known and _joins(i, m)]
        while len(members) > 1 and not _fits(members, depth, policy):
            members.remove(min(members[1:], key=depth.__getitem__))
        if len(members) > 1:
            together |= dict.fromkeys(members, tuple(sorted(members, key=depth.__getitem__)))
    if not together:
        return graph, {}

    def needs(n: Node) -> Sequence[Node]:
        return _read(together[n]) if n in together else n.inputs

    images: dict[Node, Node] = {}
    became: dict[Node, Node] = {}
    for n in topological((*graph.inputs, *graph.outputs), needs):
        if n in images:
            continue
        if n in together:
            group = _joined(together[n], images)
            images |= zip(together[n], group.results, strict=True)
            became |= dict.fromkeys(together[n], group)
        else:
            images[n] = n.with_inputs([images[i] for i in n.inputs])
    return graph.with_outputs(images[n] for n in graph.outputs), became


def _depths(graph: Graph) -> dict[Node, int]:
    """How many nodes lie one behind the other before each."""
    depth: dict[Node, int] = {}
    for n in graph.nodes():
        depth[n] = 1 + max((depth[i] for i in n.inputs), default=0)
    return depth


def _is_pointwise(n: Node) -> bool:
    return isinstance(n.op, Group) and n.op.kind == "pointwise" and len(n.types) == 1


def _joins(made: Node, reader: Node) -> bool:
    """Whether a group's elements are needed for those alone that a pointwise group makes of them."""
    if not _is_pointwise(made) or made.shape != reader.shape:
        return False
    body = _body(reader)
    return all(same_element(body, p) for p, i in zip(body.inputs, reader.inputs, strict=True) if i is made)


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
    body = Graph(tuple(params.values()), tuple(roots.values()))
    return Group(body, "pointwise")(*(images[n] for n in params), loc=members[-1].loc)


__all__ = ["join_results"]
