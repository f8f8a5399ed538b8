"""Collectives are linear in the operands of all devices: the reverse is the transposed collective."""

from __future__ import annotations

from ingot import ops
from ingot.autodiff.table import no_rule, reverse
from ingot.ir.node import Node


@reverse(ops.AllReduce)
def _all_reduce(node: Node, g: Node) -> list[Node]:
    """Each operand contributes to each result: its cotangent is the sum of the results' cotangents."""
    assert isinstance(node.op, ops.AllReduce)
    if node.op.kind != "sum":
        raise no_rule(node, f"kind {node.op.kind}")
    return [node.op(g)]


@reverse(ops.AllGather)
def _all_gather(node: Node, g: Node) -> list[Node]:
    assert isinstance(node.op, ops.AllGather)
    return [ops.ReduceScatter(node.op.groups, "sum", node.op.axis)(g)]


@reverse(ops.ReduceScatter)
def _reduce_scatter(node: Node, g: Node) -> list[Node]:
    assert isinstance(node.op, ops.ReduceScatter)
    if node.op.kind != "sum":
        raise no_rule(node, f"kind {node.op.kind}")
    return [ops.AllGather(node.op.groups, node.op.axis)(g)]


@reverse(ops.AllToAll)
def _all_to_all(node: Node, g: Node) -> list[Node]:
    op = node.op
    assert isinstance(op, ops.AllToAll)
    return [ops.AllToAll(op.groups, op.concat_axis, op.split_axis)(g)]


@reverse(ops.Permute)
def _permute(node: Node, g: Node) -> list[Node]:
    assert isinstance(node.op, ops.Permute)
    return [ops.Permute(node.op.groups, -node.op.shift)(g)]
