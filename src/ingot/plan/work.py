"""The work of a group: floating-point operations, and bytes moved."""

from __future__ import annotations

from collections.abc import Mapping

from ingot import ops
from ingot.ir.dims import DimLike, substitute
from ingot.ir.node import Graph
from ingot.ops.core.base import Category, category
from ingot.ops.views import base_of


def group_flops(body: Graph) -> DimLike:
    """Floating-point operations of a group."""
    total: DimLike = 0
    for node in body.nodes():
        if node.op.computes:
            total = total + node.op.flops(*(i.types[0] for i in node.inputs))
    return total


def group_bytes(body: Graph, sizes: Mapping[str, int], updates: bool = False) -> int:
    """Bytes that a group reads and writes, each counted once. An operand that is only gathered from or sliced counts
    with the elements taken. updates: the result is written over the operand that it updates."""
    users, inputs = body.uses(), body.inputs
    total = sum(_number(node.type.nbytes, sizes) for node in body.outputs)
    if updates:
        anchor = next(n for n in body.nodes() if category(n.op) is Category.SCATTER)
        inputs = tuple(i for i in inputs if i is not base_of(anchor.inputs[0]))
        total = max(_number(n.type.nbytes, sizes) for n in anchor.inputs[1:])
    for operand in inputs:
        nbytes = _number(operand.type.nbytes, sizes)
        readers = users.get(operand, [])
        if readers and all(isinstance(r.op, ops.Gather | ops.Slice) and r.inputs[0] is operand for r in readers):
            nbytes = min(nbytes, sum(_number(r.type.nbytes, sizes) for r in readers))
        total += nbytes if readers or operand in body.outputs else 0
    return total


def seconds(body: Graph, sizes: Mapping[str, int]) -> float:
    """The estimated time of a group on a typical core, for comparing groups: only ratios are meaningful."""
    return max(_number(group_flops(body), sizes) / 60e9, group_bytes(body, sizes) / 10e9)


def _number(dim: DimLike, sizes: Mapping[str, int]) -> int:
    value = substitute(dim, sizes)
    assert isinstance(value, int)
    return value
