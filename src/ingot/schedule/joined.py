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
from ingot.ops import ArgReduce, BroadcastInDim, Reduce, Reshape, Transpose
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


def join_box(
    body: Graph, rows: Rows, ins: tuple[Layout, ...], outs: tuple[Layout, ...]
) -> tuple[Graph, tuple[Layout, ...], tuple[Layout, ...]] | None:
    """A row group over fewer dimensions, reduced ones and kept ones each among themselves:

    sum(x[n, h, w, c], (1, 2, 3))   ->   sum(x[n, hwc], 1);      max(x[n, c, h, w], 1)   ->   max(x[n, c, hw], 1)

    None where it stays as it is. Neighbours are joined where all values lie in memory one behind the other along them
    or are broadcast along both."""
    shape, rank = rows.shape, len(rows.shape)
    places = _places(body, rows) if rank > 1 else None
    if places is None:
        return None
    # dimensions that are not joined to the one before
    apart = {d for d in range(1, rank) if (d in rows.reduced) != (d - 1 in rows.reduced)}
    for n, own in places.items():
        has = [d in own and n.shape[own.index(d)] == shape[d] for d in range(rank)]
        apart.update(d for d in range(1, rank) if has[d] != has[d - 1])
    for n, lay in zip((*body.inputs, *body.outputs), (*ins, *outs), strict=True):
        own = places.get(n, ())
        steps = {d: s for d, s, size in zip(own, lay.strides, n.shape, strict=False) if size == shape[d]}
        pairs = (d for d in range(1, rank) if d in steps and d - 1 in steps)
        apart.update(d for d in pairs if steps[d - 1] != steps[d] * shape[d])
    groups = _runs(rank, apart)
    if len(groups) == rank:
        return None

    def parts(n: Node) -> list[tuple[int, ...]]:
        """For each of its dimensions then, which are joined of those that it has."""
        own = places[n]
        return [found for g in groups if (found := tuple(k for k, d in enumerate(own) if d in g))]

    def joined(n: Node, inputs: Sequence[Node]) -> Node:
        if n not in places:
            return n
        at = {places[n][k]: i for i, g in enumerate(parts(n)) for k in g}
        box: Shape = tuple(product(n.shape[k] for k in g) for g in parts(n))
        match n.op:
            case Input():
                return Input(n.op.label, TensorType(n.dtype, box))()
            case BroadcastInDim():
                whose = [places[n.inputs[0]][g[0]] for g in parts(n.inputs[0])]
                return BroadcastInDim(box, tuple(at[d] for d in whose))(*inputs)
            case Reshape():
                return Reshape(box)(*inputs)
            case Reduce() | ArgReduce():
                number = {d: i for i, g in enumerate(groups) for d in g}
                own = tuple(sorted({number[d] for d in n.op.dims}))
                op = replace(n.op, dims=own) if isinstance(n.op, Reduce) else replace(n.op, dim=own[0])
                return op(*inputs)
        return n.op(*inputs) if inputs else n

    def placed(nodes: tuple[Node, ...], layouts: tuple[Layout, ...]) -> tuple[Layout, ...]:
        def one(n: Node, lay: Layout) -> Layout:
            found = parts(n)
            box = tuple(product(n.shape[k] for k in g) for g in found)
            return Layout(box, tuple(lay.strides[g[-1]] for g in found), lay.offset)

        return tuple(one(n, lay) if n in places else lay for n, lay in zip(nodes, layouts, strict=True))

    return _rebuilt(body, joined), placed(body.inputs, ins), placed(body.outputs, outs)


def _places(body: Graph, rows: Rows) -> dict[Node, tuple[int, ...]] | None:
    """For each node of a row group, which dimensions of the box its own are. None where there is no such thing."""
    box = tuple(range(len(rows.shape)))
    found: dict[Node, tuple[int, ...]] = {}
    for n in body.outputs:
        spread = n.type.rank == len(box) and all(d in (1, size) for d, size in zip(n.shape, rows.shape, strict=True))
        if not spread and n.shape != rows.kept_shape:
            return None
        found[n] = box if spread else rows.kept
    for n in reversed(body.nodes()):
        own = found.get(n)
        if own is None or len(n.types) != 1:
            return None
        if n in body.inputs or not n.type.rank:
            continue
        match n.op:
            case Reduce() | ArgReduce():
                below = box
            case BroadcastInDim():
                below = tuple(own[d] for d in n.op.dims)
            case Reshape() if (own, n.inputs[0].shape) == (box, rows.kept_shape):
                below = rows.kept
            case Reshape() if own == rows.kept and n.inputs[0].type.rank == len(box):
                below = box
            case _ if category(n.op) is Category.ELEMENTWISE:
                below = own
            case _:
                return None
        if list(below) != sorted(below) or any(found.setdefault(i, below) != below for i in n.inputs):
            return None
    return found


__all__ = ["box_inside", "join_box", "join_dims", "reshapes"]
