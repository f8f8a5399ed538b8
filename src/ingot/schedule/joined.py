"""Dimensions that lie side by side in all of a pointwise group are one dimension.

out[n, h, w, c] = f(x[n, c, h, w])   ->   out[n, hw, c] = f(x[n, c, hw]);      f(x[n, c]) + y[n, c]   ->   one of nc
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ingot.ir.dims import product
from ingot.ir.layout import Layout
from ingot.ir.node import Graph, Input, Node, rebuilt
from ingot.ir.types import Shape, TensorType
from ingot.ops import BroadcastInDim, Reduce, Reshape, Transpose
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
    new = _rebuilt(body, lambda n, inputs: _joined(n, inputs, tuple(groups), orders[n]))
    lays = tuple(tuple(Layout.contiguous(n.shape) for n in nodes) for nodes in (new.inputs, new.outputs))
    return new, lays[0], lays[1]


def _rebuilt(body: Graph, rule: Callable[[Node, Sequence[Node]], Node]) -> Graph:
    """`body` by `rule`, its inputs as well."""
    nodes = rebuilt((*body.inputs, *body.outputs), rule=rule)
    return Graph(nodes[: len(body.inputs)], nodes[len(body.inputs) :])


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


def _joined(node: Node, inputs: Sequence[Node], groups: Groups, order: Permutation) -> Node:
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


def join_reduced(
    body: Graph, shape: Shape, reduced: tuple[int, ...], ins: tuple[Layout, ...], outs: tuple[Layout, ...]
) -> tuple[Graph, tuple[Layout, ...], tuple[Layout, ...]] | None:
    """A row group of a box of `shape` over fewer reduced dimensions:

    sum(x[n, h, w, c], (1, 2, 3))   ->   sum(x[n, hwc], 1)

    None where it stays as it is. Neighbours are joined where all values of the whole box lie in memory one behind the
    other along them, are arithmetic, or are broadcast along both."""
    apart = set(range(1, len(shape)))  # dimensions that are not joined to the one before
    apart -= {d for d in reduced if d - 1 in reduced}
    if len(apart) + 1 == len(shape):
        return None
    for n in body.nodes():
        if n in body.inputs or shape not in (n.shape, *(i.shape for i in n.inputs)):
            continue
        if isinstance(n.op, BroadcastInDim) and n.shape == shape:
            sized = [d for k, d in enumerate(n.op.dims) if n.inputs[0].shape[k] != 1]
            apart.update(*((d, d + 1) for d in sized))
        elif category(n.op) is not Category.ELEMENTWISE and not isinstance(n.op, Reduce):
            return None
    for n, lay in zip((*body.inputs, *body.outputs), (*ins, *outs), strict=True):
        if n.shape == shape:
            apart.update(d for d in range(1, len(shape)) if lay.strides[d - 1] != lay.strides[d] * shape[d])
    groups: list[list[int]] = []
    for d in range(len(shape)):
        if d in apart or not groups:
            groups.append([d])
        else:
            groups[-1].append(d)
    if len(groups) == len(shape):
        return None
    place = {d: g for g, run in enumerate(groups) for d in run}
    box = tuple(product(shape[d] for d in run) for run in groups)

    def placed(nodes: tuple[Node, ...], layouts: tuple[Layout, ...]) -> tuple[Layout, ...]:
        def one(n: Node, lay: Layout) -> Layout:
            return Layout(box, tuple(lay.strides[run[-1]] for run in groups), lay.offset) if n.shape == shape else lay

        return tuple(map(one, nodes, layouts))

    new = _rebuilt(body, lambda n, inputs: _with_box(n, inputs, shape, box, place))
    return new, placed(body.inputs, ins), placed(body.outputs, outs)


def _with_box(node: Node, inputs: Sequence[Node], shape: Shape, box: Shape, place: dict[int, int]) -> Node:
    """`node` of a group whose box was `shape` and is `box`."""
    match node.op:
        case Input() if node.shape == shape:
            return Input(node.op.label, TensorType(node.dtype, box))()
        case BroadcastInDim() if node.shape == shape:
            (x,) = inputs
            sized = [k for k, d in enumerate(x.shape) if d != 1]
            x = Reshape(tuple(x.shape[k] for k in sized))(x)
            return BroadcastInDim(box, tuple(place[node.op.dims[k]] for k in sized))(x)
        case Reduce() if node.inputs[0].shape == shape:
            return replace(node.op, dims=tuple(sorted({place[d] for d in node.op.dims})))(*inputs)
    return node.with_inputs(inputs) if inputs else node


__all__ = ["join_dims", "join_reduced"]
