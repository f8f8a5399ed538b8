"""Optimizing the graphs inside control flow, once the graph around it is fused.

    group{while(cond, body)}   ->   group{while(run(cond), run(body))}
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ingot.ir.node import Graph, Node, Op
from ingot.ops.group import Group


def in_bodies(graph: Graph, run: Callable[[Graph], Graph]) -> Graph:
    """A fused graph with `run` applied to every graph that an op inside its groups holds."""
    return _mapped(graph, lambda n: _inside(n.op, run) if isinstance(n.op, Group) else None)


def _inside(group: Group, run: Callable[[Graph], Graph]) -> Group | None:
    body = _mapped(group.body, lambda n: n.op.map_bodies(run) if n.op.bodies else None)
    return None if body is group.body else replace(group, body=body)


def _mapped(graph: Graph, change: Callable[[Node], Op | None]) -> Graph:
    """The graph with the ops that `change` gives, None for the same one; the graph itself where nothing changes."""
    memo: dict[Node, Node] = {}
    for n in graph.nodes():
        inputs = tuple(memo[i] for i in n.inputs)
        op = change(n) or n.op
        same = op is n.op and all(a is b for a, b in zip(inputs, n.inputs, strict=True))
        memo[n] = n if same else op(*inputs, loc=n.loc)
    if all(memo[n] is n for n in graph.outputs):
        return graph
    return replace(graph, outputs=tuple(memo[n] for n in graph.outputs))
