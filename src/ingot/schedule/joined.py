"""Dimensions that lie side by side in all of a pointwise group are one dimension.

out[n, h, w, c] = f(x[n, c, h, w])   ->   out[n, hw, c] = f(x[n, c, hw]);      f(x[n, c]) + y[n, c]   ->   one of nc
out[n, c, h, w] = x[n, c, h, w] + b[c]   ->   out[n, c, hw] = x[n, c, hw] + b[c]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ingot.ir.dims import product
from ingot.ir.layout import Layout
from ingot.ir.node import Graph, Input, Node, rebuilt
from ingot.ir.types import Shape, TensorType
from ingot.ops import BroadcastInDim, Reduce, Reshape, Transpose
from ingot.ops.core.base import Category, category
from ingot.schedule.rows import Rows

Groups = tuple[tuple[int, ...], ...]  # of dimensions of the output's box, each a run of neighbours
Permutation = tuple[int, ...]


def join_dims(
    body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...]
) -> tuple[Graph, tuple[Layout, ...], tuple[Layout, ...]] | None:
    """The same group over fewer dimensions; None where it stays as it is. All nodes of the whole box have to be
    elementwise, broadcast, or transposed between the operands' order and the output's; neighbours are joined where all
    values of the whole box lie in memory one behind the other along them and nothing is broadcast along one alone."""
    shape = body.outputs[0].shape
    orders = _orders(body) if len(shape) > 1 else None
    if orders is None:
        return None
    apart: set[int] = set()  # dimensions that are not joined to the one before
    for n, own in orders.items():
        apart.update(d for d in range(1, len(shape)) if own[d] != own[d - 1] + 1)
        if isinstance(n.op, BroadcastInDim):
            sized = [own.index(d) for k, d in enumerate(n.op.dims) if n.inputs[0].shape[k] != 1]
            apart.update(*((d, d + 1) for d in sized))
    for n, lay in zip((*body.inputs, *body.outputs), (*ins, *outs), strict=True):
        own = orders.get(n)
        if own is not None:
            at = [lay.strides[d] for d in own]
            apart.update(d for d in range(1, len(shape)) if at[d - 1] != at[d] * shape[d])
    groups = _runs(len(shape), apart)
    if len(groups) == len(shape):
        return None
    new = _rebuilt(body, lambda n, inputs: _joined(n, inputs, groups, orders.get(n)))

    def placed(old: Sequence[Node], nodes: Sequence[Node], layouts: tuple[Layout, ...]) -> tuple[Layout, ...]:
        def one(n: Node, m: Node, lay: Layout) -> Layout:
            own = orders.get(n)
            if own is None:
                return lay
            return Layout(m.shape, tuple(lay.strides[own[g[-1]]] for g in _placed(groups, own)), lay.offset)

        return tuple(one(*each) for each in zip(old, nodes, layouts, strict=True))

    return new, placed(body.inputs, new.inputs, ins), placed(body.outputs, new.outputs, outs)


def _runs(rank: int, apart: set[int]) -> Groups:
    """Dimensions in runs, a new one at each of `apart`."""
    starts = [d for d in range(rank) if d == 0 or d in apart]
    return tuple(tuple(range(a, b)) for a, b in zip(starts, [*starts[1:], rank], strict=True))


def _placed(groups: Groups, order: Permutation) -> list[tuple[int, ...]]:
    """The groups of the output's dimensions as they follow one another in a node of this order."""
    return sorted(groups, key=lambda g: order[g[0]])


def _rebuilt(body: Graph, rule: Callable[[Node, Sequence[Node]], Node]) -> Graph:
    """`body` by `rule`, its inputs as well."""
    nodes = rebuilt((*body.inputs, *body.outputs), rule=rule)
    return Graph(nodes[: len(body.inputs)], nodes[len(body.inputs) :])


def _orders(body: Graph) -> dict[Node, Permutation] | None:
    """For each node of the whole box, which of its dimensions each of the output's is. None where there is no such
    thing, or more than one."""
    shape = body.outputs[0].shape
    straight = tuple(range(len(shape)))
    found: dict[Node, Permutation] = dict.fromkeys(body.outputs, straight)
    spread: list[Node] = []
    for n in reversed(body.nodes()):
        own = found.get(n)
        if own is None:
            continue  # what is broadcast is no part of the box
        if len(n.types) != 1 or n.type.rank != len(shape) or any(n.shape[own[d]] != shape[d] for d in straight):
            return None
        if n in body.inputs:
            continue
        if isinstance(n.op, BroadcastInDim):
            spread += n.inputs
            continue
        if isinstance(n.op, Transpose):
            below = tuple(n.op.permutation[d] for d in own)
        elif category(n.op) is Category.ELEMENTWISE:
            below = own
        else:
            return None
        if any(found.setdefault(i, below) != below for i in n.inputs):
            return None
    return None if any(n in found for n in spread) else found


def _joined(node: Node, inputs: Sequence[Node], groups: Groups, order: Permutation | None) -> Node:
    if order is None:
        return node.with_inputs(inputs) if inputs else node
    mine = _placed(groups, order)
    shape: Shape = tuple(product(node.shape[order[d]] for d in g) for g in mine)
    match node.op:
        case Input():
            return Input(node.op.label, TensorType(node.dtype, shape))()
        case BroadcastInDim():
            place = {order[d]: i for i, g in enumerate(mine) for d in g}
            return _spread(inputs[0], node.op, shape, place)
        case Transpose():
            # dimension i of the result is the group mine[i], which the operand has at its own place
            permutation = node.op.permutation
            theirs = sorted(mine, key=lambda g: permutation[order[g[0]]])
            return Transpose(tuple(theirs.index(g) for g in mine))(*inputs)
    return node.op(*inputs)


def _spread(x: Node, op: BroadcastInDim, shape: Shape, place: Mapping[int, int]) -> Node:
    """A broadcast of x to a box of `shape`, in which dimension d of the box before is place[d]."""
    sized = [k for k, d in enumerate(x.shape) if d != 1]
    x = Reshape(tuple(x.shape[k] for k in sized))(x) if len(sized) < x.type.rank else x
    return BroadcastInDim(shape, tuple(place[op.dims[k]] for k in sized))(x)


def reshapes(node: Node, rows: Rows) -> bool:
    """Whether `node` is a value of the box of `rows`, or one with a value for each row (in which reduced dimensions may
    stand as 1), in another shape."""
    if not isinstance(node.op, Reshape) or node.shape == node.inputs[0].shape:
        return False
    (x,) = node.inputs
    return x.shape == rows.shape or _sized(x.shape) == _sized(rows.kept_shape)


def _sized(shape: Shape) -> Shape:
    return tuple(d for d in shape if d != 1)


def box_inside(
    body: Graph, rows: Rows, ins: tuple[Layout, ...], outs: tuple[Layout, ...]
) -> tuple[Graph, tuple[Layout, ...], tuple[Layout, ...]] | None:
    """A row group without the reshapes between memory and its box or results, which are strides:

    out = reshape(softmax(reshape(x)))   ->   out, seen in the other shape, = softmax(x, seen so)

    None where it stays as it is."""
    users, shape = body.uses(), rows.shape
    memo: dict[Node, Node] = {}
    given, places = list(body.inputs), list(ins)
    for i, n in enumerate(body.inputs):
        seen = users.get(n, [])
        if n in body.outputs or not seen or not all(isinstance(u.op, Reshape) and u.shape == shape for u in seen):
            continue
        lay = ins[i].reshape(shape)
        if lay is not None and n.shape != shape:
            assert isinstance(n.op, Input)
            given[i], places[i] = Input(n.op.label, TensorType(n.dtype, shape))(), lay
            memo |= dict.fromkeys(seen, given[i])
    results, ends = list(body.outputs), list(outs)
    for i, n in enumerate(body.outputs):
        lay = outs[i].reshape(n.inputs[0].shape) if reshapes(n, rows) else None
        if lay is not None:
            results[i], ends[i] = n.inputs[0], lay
    if not memo and results == list(body.outputs):
        return None
    return Graph(tuple(given), rebuilt(tuple(results), memo)), tuple(places), tuple(ends)


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
    groups = _runs(len(shape), apart)
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
            return _spread(inputs[0], node.op, box, place)
        case Reduce() if node.inputs[0].shape == shape:
            return replace(node.op, dims=tuple(sorted({place[d] for d in node.op.dims})))(*inputs)
    return node.with_inputs(inputs) if inputs else node


__all__ = ["box_inside", "join_dims", "join_reduced", "reshapes"]
