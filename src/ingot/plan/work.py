"""What a group has to do: floating-point operations, and bytes that must be moved once."""

from __future__ import annotations

from collections.abc import Mapping

from ingot import ops
from ingot.ir.dims import DimLike, substitute
from ingot.ir.node import Graph
from ingot.ops.core.base import Category, category
from ingot.ops.views import base_of


def group_flops(body: Graph) -> DimLike:
    """Floating-point operations of all sums of products in a group."""
    total: DimLike = 0
    for node in body.nodes():
        if node.op.computes:
            total = total + node.op.flops(*(i.types[0] for i in node.inputs))
    return total


def group_bytes(body: Graph, sizes: Mapping[str, int], updates: bool = False) -> int:
    """Bytes that a group reads and writes once. Of an operand that is only looked up or sliced, what is taken. updates:
    its result lies over the operand of which it replaces some elements."""
    users, inputs = body.uses(), body.inputs
    total = sum(_number(node.type.nbytes, sizes) for node in body.outputs)
    if updates:
        anchor = next(n for n in body.nodes() if category(n.op) is Category.SCATTER)
        inputs = tuple(i for i in inputs if i is not base_of(anchor.inputs[0]))
        total = max(_number(n.type.nbytes, sizes) for n in anchor.inputs[1:])
    for operand in inputs:
        whole = _number(operand.type.nbytes, sizes)
        readers = users.get(operand, [])
        if readers and all(isinstance(r.op, ops.Gather | ops.Slice) and r.inputs[0] is operand for r in readers):
            whole = min(whole, sum(_number(r.type.nbytes, sizes) for r in readers))
        total += whole if readers or operand in body.outputs else 0
    return total


def seconds(body: Graph, sizes: Mapping[str, int]) -> float:
    """About what a group takes on a usual core, for choices between groups: only ratios count."""
    return max(_number(group_flops(body), sizes) / 60e9, group_bytes(body, sizes) / 10e9)


def _number(dim: DimLike, sizes: Mapping[str, int]) -> int:
    value = substitute(dim, sizes)
    assert isinstance(value, int)
    return value
