"""Dimensions that lie side by side in all of a pointwise group are one dimension.

out[n, h, w, c] = f(x[n, c, h, w])   ->   out[n, hw, c] = f(x[n, c, hw]);      f(x[n, c]) + y[n, c]   ->   one of nc
"""

from __future__ import annotations

from dataclasses import replace

from ingot.ir.dims import product
from ingot.ir.layout import Layout
from ingot.ir.node import Graph, Input, Node
from ingot.ir.types import Shape, TensorType
from ingot.ops import BroadcastInDim, Transpose
from ingot.ops.core.base import Category, category

Groups = tuple[tuple[int, ...], ...]  # of dimensions of the output's box, each a run of neighbours
Permutation = tuple[int, ...]


def join_dims(
    body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...]
) -> tuple[Graph, tuple[Layout, ...], tuple[Layout, ...]] | None:
    """The same group over fewer dimensions; None where it stays as it is. All memory has to be contiguous, and all
    nodes elementwise, splat from scalars, or transposes between the operands' order and the output's."""
    shape = body.outputs[0].shape
    if len(shape) < 2 or not all(lay.is_contiguous for lay in (*ins, *outs)):
        return None
    orders = _orders(body)
    if orders is None:
        return None
    groups: list[tuple[int, ...]] = []
    for d in range(len(shape)):
        if groups and all(p[d] == p[d - 1] + 1 for p in orders.values() if p):
            groups[-1] = (*groups[-1], d)
        else:
            groups.append((d,))
    if len(groups) == len(shape):
        return None
    memo: dict[Node, Node] = {}
    for n in body.nodes():
        memo[n] = _joined(n, [memo[i] for i in n.inputs], tuple(groups), orders[n])
    new = Graph(tuple(memo[n] for n in body.inputs), tuple(memo[n] for n in body.outputs))
    lays = tuple(tuple(Layout.contiguous(n.shape) for n in nodes) for nodes in (new.inputs, new.outputs))
    return new, lays[0], lays[1]


def _orders(body: Graph) -> dict[Node, Permutation] | None:
    """For each node, which of its dimensions each of the output's is; () for scalars. None where there is no such
    thing, or more than one."""
    shape = body.outputs[0].shape
    straight = tuple(range(len(shape)))
    found: dict[Node, Permutation] = dict.fromkeys(body.outputs, straight)
    for n in reversed(body.nodes()):
        own = found.get(n, straight)
        if n.type.rank == 0:
            found[n] = ()
            continue
        if len(n.types) != 1 or n.type.rank != len(shape) or any(n.shape[own[d]] != shape[d] for d in straight):
            return None
        found[n] = own
        if n in body.inputs or (category(n.op) is Category.VIEW and n.inputs and n.inputs[0].type.rank == 0):
            continue
        if isinstance(n.op, Transpose):
            below = tuple(n.op.permutation[d] for d in own)
        elif category(n.op) is Category.ELEMENTWISE:
            below = own
        else:
            return None
        if any(i.type.rank and found.setdefault(i, below) != below for i in n.inputs):
            return None
    return found


def _joined(node: Node, inputs: list[Node], groups: Groups, order: Permutation) -> Node:
    if not order:
        return node if isinstance(node.op, Input) or not inputs else node.op(*inputs)
    # the node's own groups, as they follow one another in its order
    mine = sorted(range(len(groups)), key=lambda g: order[groups[g][0]])
    shape: Shape = tuple(product(node.shape[order[d]] for d in groups[g]) for g in mine)
    match node.op:
        case Input():
            return Input(node.op.label, TensorType(node.dtype, shape))()
        case BroadcastInDim():
            return replace(node.op, shape=shape)(*inputs)
        case Transpose():
            # dimension i of the result is the group mine[i], which the operand has at its own place
            permutation = node.op.permutation
            theirs = sorted(range(len(groups)), key=lambda g: permutation[order[groups[g][0]]])
            return Transpose(tuple(theirs.index(g) for g in mine))(*inputs)
    return node.op(*inputs)


__all__ = ["join_dims"]
