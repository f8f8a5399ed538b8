"""Nest concatenations with a common prefix, so that they share one growing buffer.

    c1 = concat(a, b); c2 = concat(a, b, c)   ->   c1 = concat(a, b); c2 = concat(c1, c)

c1 is a prefix of c2's buffer: every value of a dense block is written once, to its final position.
"""

from __future__ import annotations

from collections.abc import Sequence

from ingot import ops
from ingot.ir.node import Graph, Node, rebuild


def nest_concats(graph: Graph) -> Graph:
    """concat(a, b, c) -> concat(concat(a, b), c) where concat(a, b) exists"""
    concats: dict[tuple[int, tuple[Node, ...]], Node] = {}

    def nested(n: Node, images: Sequence[Node]) -> Node:
        if not isinstance(n.op, ops.Concat):
            return n.with_inputs(images)
        axis, inputs = n.op.dimension, tuple(images)
        prefix = next((k for k in range(len(inputs) - 1, 1, -1) if (axis, inputs[:k]) in concats), 0)
        rest = (concats[axis, inputs[:prefix]], *inputs[prefix:]) if prefix else inputs
        concats[axis, inputs] = n.op(*rest, loc=n.loc) if prefix else n.with_inputs(inputs)
        return concats[axis, inputs]

    return graph.with_outputs(rebuild(graph.outputs, rule=nested))
