"""Values that are joined and then reordered are joined in that order, so that each is written where it is read.

    transpose(concatenate(a, b))   ->   concatenate(transpose(a), transpose(b))

As the gradients of queries, keys and values that were one product's columns: `stack(dq, dk, dv)` is read by rows.
"""

from __future__ import annotations

from ingot import ops
from ingot.ir.node import Graph, Node
from ingot.ir.rewrite import replace_nodes


def transpose_parts(graph: Graph) -> Graph:
    """transpose(concatenate(a, b)) -> concatenate(transpose(a), transpose(b)), where nothing else reads the parts in
    the old order"""
    users, outputs, replacements = graph.uses(), set(graph.outputs), dict[Node, Node]()
    for n in graph.nodes():
        concat = n.inputs[0] if isinstance(n.op, ops.Transpose) else n
        if concat is n or not isinstance(concat.op, ops.Concat) or not isinstance(n.op, ops.Transpose):
            continue
        if concat in outputs or any(u is not n for u in users[concat]):
            continue
        axis = n.op.permutation.index(concat.op.dimension)
        replacements[n] = ops.Concat(axis)(*(n.op(x, loc=concat.loc) for x in concat.inputs), loc=concat.loc)
    return replace_nodes(graph, replacements)


__all__ = ["transpose_parts"]
