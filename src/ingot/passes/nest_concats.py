"""Concatenations that start alike become nested, so that storage can grow one buffer.

    c1 = concat(a, b); c2 = concat(a, b, c)   ->   c1 = concat(a, b); c2 = concat(c1, c)

In c2's buffer c1 is a prefix: every value of a dense block is written once, into its final place.
"""

from __future__ import annotations

from dataclasses import replace

from ingot import ops
from ingot.ir.node import Graph, Node, Project


def nest_concats(graph: Graph) -> Graph:
    """concat(a, b, c) -> concat(concat(a, b), c) where concat(a, b) exists"""
    seen: dict[tuple[int, tuple[Node, ...]], Node] = {}
    memo: dict[Node, Node] = {}
    for n in graph.nodes():
        inputs = tuple(memo[i] for i in n.inputs)
        if isinstance(n.op, Project):
            memo[n] = n.op(*inputs, loc=n.loc)
            continue
        if not isinstance(n.op, ops.Concat):
            memo[n] = n.with_inputs(inputs)
            continue
        axis = n.op.dimension
        prefix = next((k for k in range(len(inputs) - 1, 1, -1) if (axis, inputs[:k]) in seen), 0)
        rest = (seen[axis, inputs[:prefix]], *inputs[prefix:]) if prefix else inputs
        memo[n] = seen[axis, inputs] = n.with_inputs(rest) if not prefix else n.op(*rest, loc=n.loc)
    return replace(graph, outputs=tuple(memo[o] for o in graph.outputs))
