"""Optimization of the bodies of control flow, after the enclosing graph is fused.

group{while(cond, body)}   ->   group{while(run(cond), run(body))}
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ingot.ir.node import Graph, Node, Op, rebuild
from ingot.ops.group import Group


def in_bodies(graph: Graph, run: Callable[[Graph], Graph]) -> Graph:
    """Return a fused graph with `run` applied to the bodies of the ops in its groups."""
    return _mapped(graph, lambda n: _inside(n.op, run) if isinstance(n.op, Group) else None)


def _inside(group: Group, run: Callable[[Graph], Graph]) -> Group | None:
    body = _mapped(group.body, lambda n: n.op.map_bodies(run) if n.op.bodies else None)
    return None if body is group.body else replace(group, body=body)


def _mapped(graph: Graph, change: Callable[[Node], Op | None]) -> Graph:
    """Return the graph with the ops that `change` returns (None: no change); the graph itself if nothing changes."""

    def changed(n: Node, inputs: Sequence[Node]) -> Node:
        op = change(n)
        return n.with_inputs(inputs) if op is None else op(*inputs, loc=n.loc)

    return graph.with_outputs(rebuild(graph.outputs, rule=changed))
