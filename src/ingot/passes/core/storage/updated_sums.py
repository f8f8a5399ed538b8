"""Add updates to the value that they are summed with, instead of to zeros.

    x + scatter{add}(zeros, i, u)   ->   scatter{add}(x, i, u)

A weight that is both an embedding and the operand of a product has such a gradient. The scatter then changes a few rows
of the product's result in its memory, and no zeros are stored and read. Exact but for the order of sums.
"""

from __future__ import annotations

from collections.abc import Sequence

from ingot.ir.node import Graph, Node, rebuild, splat_of
from ingot.ops import Add, Scatter


def update_sums(graph: Graph) -> Graph:
    """x + scatter{add}(zeros, i, u) -> scatter{add}(x, i, u), where nothing else needs the sums of updates"""
    users, outputs = graph.uses(), set(graph.outputs)

    def updated(n: Node, images: Sequence[Node]) -> Node:
        for at in (0, 1) if isinstance(n.op, Add) else ():
            x, sums = images[1 - at], images[at]
            if _adds_to_zeros(sums) and users[n.inputs[at]] == [n] and n.inputs[at] not in outputs:
                return sums.op(x, *sums.inputs[1:], loc=n.loc)
        return n.with_inputs(images)

    return graph.with_outputs(rebuild(graph.outputs, rule=updated))


def _adds_to_zeros(n: Node) -> bool:
    """Whether a value is a sum of updates, in a type that is not wider where they are added."""
    op = n.op
    return isinstance(op, Scatter) and op.kind == "add" and n.dtype.bits >= 32 and splat_of(n.inputs[0]) == 0


__all__ = ["update_sums"]
