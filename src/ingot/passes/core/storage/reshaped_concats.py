"""Concatenate the results of kernels as these store them, and reshape what they are joined to.

    concat(reshape(dq), reshape(dk), reshape(dv))   ->   reshape(concat(dq, dk, dv))

The kernel then writes into the joint buffer: gradients of queries, keys and values that one projection made are not
copied. Only of kernels with several results, as pointwise work that follows the others writes there, too.
"""

from __future__ import annotations

from collections.abc import Sequence

from ingot import ops
from ingot.ir.dims import product
from ingot.ir.node import Graph, Node, Project, rebuild


def concat_before_reshapes(graph: Graph) -> Graph:
    """concat(reshape(a), reshape(b)) -> reshape(concat(a, b)), for results of one kernel with several"""

    def joined(n: Node, images: Sequence[Node]) -> Node:
        if not isinstance(n.op, ops.Concat) or not all(_is_reshaped_result(i) for i in images):
            return n.with_inputs(images)
        parts = [i.inputs[0] for i in images]
        axis = _axis_after(parts[0], product(n.shape[: n.op.dimension]))
        outer = {(*x.shape[:axis], *x.shape[axis + 1 :]) for x in parts} if axis is not None else set[object]()
        if axis is None or len(outer) != 1 or len({x.type.rank for x in parts}) != 1:
            return n.with_inputs(images)
        return ops.reshape(ops.Concat(axis)(*parts, loc=n.loc), n.shape)

    return graph.with_outputs(rebuild(graph.outputs, rule=joined))


def _is_reshaped_result(n: Node) -> bool:
    return isinstance(n.op, ops.Reshape) and isinstance(n.inputs[0].op, Project)


def _axis_after(x: Node, count: object) -> int | None:
    """The last axis of x in front of which its axes have `count` elements."""
    return next((a for a in reversed(range(x.type.rank)) if product(x.shape[:a]) == count), None)


__all__ = ["concat_before_reshapes"]
