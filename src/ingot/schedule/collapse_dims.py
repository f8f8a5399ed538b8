"""Dimensions that lie side by side in all of a pointwise group are one dimension.

out[n, h, w, c] = f(x[n, c, h, w])   ->   out[n, hw, c] = f(x[n, c, hw]);      f(x[n, c]) + y[n, c]   ->   one of nc
out[n, c, h, w] = x[n, c, h, w] + b[c]   ->   out[n, c, hw] = x[n, c, hw] + b[c]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from ingot.ir.dims import product
from ingot.ir.layout import Layout
from ingot.ir.node import Graph, Input, Node, rebuilt, topological
from ingot.ir.types import Shape, TensorType
from ingot.ops import BroadcastInDim, Reduction, Reshape, Transpose
from ingot.ops.core.base import Category, category
from ingot.schedule.row_box import Rows
from ingot.support.dataclass import dataclass

Groups = tuple[tuple[int, ...], ...]  # of dimensions of the box, each a run of neighbours
Places = dict[Node, tuple[int, ...]]  # of each node of the box, which of the box's dimensions its own are
Layouts = tuple[Layout, ...]


def collapse_dims(body: Graph, ins: Layouts, outs: Layouts) -> tuple[Graph, Layouts, Layouts] | None:
    """The same group over fewer dimensions; None where it stays as it is. All nodes of the whole box have to be
    elementwise, broadcast, or transposed between the operands' order and the output's; neighbours are joined where all
    values of the whole box lie in memory one behind the other along them and nothing is broadcast along one alone."""
    shape = body.outputs[0].shape
    places = _whole(body) if len(shape) > 1 else None
    if places is None:
        return None
    apart: set[int] = set()  # dimensions that are not joined to the one before
    for n, own in places.items():
        apart.update(d for d in range(1, len(shape)) if own.index(d) != own.index(d - 1) + 1)
        if isinstance(n.op, BroadcastInDim):
            sized = [own[d] for d, size in zip(n.op.dims, n.inputs[0].shape, strict=True) if size != 1]
            apart.update(*((d, d + 1) for d in sized))
    return _Collapsed.of(shape, places, apart | _gaps(shape, places, body, ins, outs), body, ins, outs)


def collapse_box(body: Graph, rows: Rows, ins: Layouts, outs: Layouts) -> tuple[Graph, Layouts, Layouts] | None:
    """A row group over fewer dimensions, reduced ones and kept ones each among themselves:

    sum(x[n, h, w, c], (1, 2, 3))   ->   sum(x[n, hwc], 1);      max(x[n, c, h, w], 1)   ->   max(x[n, c, hw], 1)

    None where it stays as it is. Neighbours are joined where all values lie in memory one behind the other along them
    or are broadcast along both."""
    shape, rank = rows.shape, len(rows.shape)
    places = _rows(body, rows) if rank > 1 else None
    if places is None:
        return None
    apart = {d for d in range(1, rank) if (d in rows.reduced) != (d - 1 in rows.reduced)}
    for n, own in places.items():
        has = [d in own and n.shape[own.index(d)] == shape[d] for d in range(rank)]
        apart.update(d for d in range(1, rank) if has[d] != has[d - 1])
    return _Collapsed.of(shape, places, apart | _gaps(shape, places, body, ins, outs), body, ins, outs)


def _gaps(shape: Shape, places: Places, body: Graph, ins: Layouts, outs: Layouts) -> set[int]:
    """Dimensions of the box along which some value in memory does not go on where it ends along the one before."""
    gaps: set[int] = set()
    for n, lay in zip((*body.inputs, *body.outputs), (*ins, *outs), strict=True):
        own = places.get(n, ())
        steps = {d: s for d, s, size in zip(own, lay.strides, n.shape, strict=False) if size == shape[d]}
        pairs = (d for d in range(1, len(shape)) if d in steps and d - 1 in steps)
        gaps.update(d for d in pairs if steps[d - 1] != steps[d] * shape[d])
    return gaps


@dataclass(frozen=True)
class _Collapsed:
    """Nodes over boxes of `groups`, each of which is one dimension then."""

    groups: Groups
    places: Places

    @staticmethod
    def of(
        shape: Shape, places: Places, apart: set[int], body: Graph, ins: Layouts, outs: Layouts
    ) -> tuple[Graph, Layouts, Layouts] | None:
        """The group whose dimensions are joined to the ones before, but for those `apart`; None: there are none."""
        starts = [d for d in range(len(shape)) if d == 0 or d in apart]
        if len(starts) == len(shape):
            return None
        new = _Collapsed(tuple(tuple(range(a, b)) for a, b in pairwise([*starts, len(shape)])), places)
        nodes = rebuilt((*body.inputs, *body.outputs), rule=new.node)
        graph = Graph(nodes[: len(ins)], nodes[len(ins) :])
        return graph, new.layouts(body.inputs, ins), new.layouts(body.outputs, outs)

    def parts(self, n: Node) -> list[tuple[int, ...]]:
        """For each of its dimensions then, which are joined of those that it has."""
        own = self.places[n]
        runs = (tuple(i for i, d in enumerate(own) if d in g) for g in self.groups)
        return sorted(run for run in runs if run)

    def shape(self, n: Node) -> Shape:
        return tuple(product(n.shape[i] for i in run) for run in self.parts(n))

    def whose(self, n: Node) -> list[int]:
        """Which group each of its dimensions then is."""
        number = {d: i for i, g in enumerate(self.groups) for d in g}
        return [number[self.places[n][run[0]]] for run in self.parts(n)]

    def node(self, n: Node, inputs: Sequence[Node]) -> Node:
        if n not in self.places:
            return n.with_inputs(inputs) if inputs else n
        shape = self.shape(n)
        match n.op:
            case Input():
                return Input(n.op.label, TensorType(n.dtype, shape))()
            case BroadcastInDim() if n.inputs[0] in self.places:
                at = self.whose(n)
                return BroadcastInDim(shape, tuple(at.index(g) for g in self.whose(n.inputs[0])))(*inputs)
            case BroadcastInDim():
                place = {i: at for at, run in enumerate(self.parts(n)) for i in run}
                return _spread(inputs[0], n.op, shape, place)
            case Transpose():
                theirs = self.whose(n.inputs[0])
                return Transpose(tuple(theirs.index(g) for g in self.whose(n)))(*inputs)
            case Reshape():
                return Reshape(shape)(*inputs)
            case Reduction():
                own = tuple(at for at, run in enumerate(self.parts(n.inputs[0])) if run[0] in n.op.reduced)
                return n.op.over(own)(*inputs)
        return n.op(*inputs) if inputs else n

    def layouts(self, nodes: Sequence[Node], layouts: Layouts) -> Layouts:
        def one(n: Node, lay: Layout) -> Layout:
            if n not in self.places:
                return lay
            return Layout(self.shape(n), tuple(lay.strides[run[-1]] for run in self.parts(n)), lay.offset)

        return tuple(one(n, lay) for n, lay in zip(nodes, layouts, strict=True))


def _spread(x: Node, op: BroadcastInDim, shape: Shape, place: Mapping[int, int]) -> Node:
    """A broadcast of x to a box of `shape`, in which dimension d of the box before is place[d]."""
    sized = [k for k, d in enumerate(x.shape) if d != 1]
    x = Reshape(tuple(x.shape[k] for k in sized))(x) if len(sized) < x.type.rank else x
    return BroadcastInDim(shape, tuple(place[op.dims[k]] for k in sized))(x)


def _whole(body: Graph) -> Places | None:
    """The places of all nodes of the whole box. None where there is no such thing, or more than one."""
    shape = body.outputs[0].shape
    straight = tuple(range(len(shape)))
    found: Places = dict.fromkeys(body.outputs, straight)
    spread: list[Node] = []
    for n in reversed(body.nodes()):
        own = found.get(n)
        if own is None:
            continue  # what is broadcast is no part of the box
        if len(n.types) != 1 or n.shape != tuple(shape[d] for d in own):
            return None
        if n in body.inputs:
            continue
        if isinstance(n.op, BroadcastInDim):
            spread += n.inputs
            continue
        if isinstance(n.op, Transpose):
            below = tuple(own[n.op.permutation.index(d)] for d in straight)
        elif category(n.op) is Category.ELEMENTWISE:
            below = own
        else:
            return None
        if any(found.setdefault(i, below) != below for i in n.inputs):
            return None
    beneath = topological(tuple(spread))
    return None if any(n in found for n in beneath) else found


def _rows(body: Graph, rows: Rows) -> Places | None:
    """The places of all nodes of a row group. None where there is no such thing."""
    box = tuple(range(len(rows.shape)))
    found: Places = {}
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
            case Reduction():
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


def reshapes(node: Node, rows: Rows) -> bool:
    """Whether `node` is a value of the box of `rows`, or one with a value for each row (in which reduced dimensions may
    stand as 1), in another shape."""
    if not isinstance(node.op, Reshape) or node.shape == node.inputs[0].shape:
        return False
    (x,) = node.inputs
    return x.shape == rows.shape or _sized(x.shape) == _sized(rows.kept_shape)


def _sized(shape: Shape) -> Shape:
    return tuple(d for d in shape if d != 1)


def box_inside(body: Graph, rows: Rows, ins: Layouts, outs: Layouts) -> tuple[Graph, Layouts, Layouts] | None:
    """A row group without the reshapes between memory and its box or results, which are strides:

    out = reshape(softmax(reshape(x)))   ->   out, seen in the other shape, = softmax(x, seen so)

    None where it stays as it is."""
    body, ins, changed = reshaped_inputs(body, ins, rows.shape)
    results, ends = list(body.outputs), list(outs)
    for i, n in enumerate(body.outputs):
        lay = outs[i].reshape(n.inputs[0].shape) if reshapes(n, rows) else None
        if lay is not None:
            results[i], ends[i] = n.inputs[0], lay
    if not changed and results == list(body.outputs):
        return None
    return body.with_outputs(tuple(results)), ins, tuple(ends)


def reshaped_inputs(body: Graph, ins: Layouts, shape: Shape | None = None) -> tuple[Graph, Layouts, bool]:
    """The group whose inputs that are only read in one other shape (`shape`, or any) have it, where strides express it;
    and whether it has such."""
    users, memo = body.uses(), dict[Node, Node]()
    given, places = list(body.inputs), list(ins)
    for i, n in enumerate(body.inputs):
        seen = users.get(n, [])
        if n in body.outputs or not seen or not all(isinstance(u.op, Reshape) for u in seen):
            continue
        own = seen[0].shape if shape is None else shape
        lay = ins[i].reshape(own)
        if lay is not None and n.shape != own and all(u.shape == own for u in seen):
            assert isinstance(n.op, Input)
            given[i], places[i] = Input(n.op.label, TensorType(n.dtype, own))(), lay
            memo |= dict.fromkeys(seen, given[i])
    if not memo:
        return body, ins, False
    return Graph(tuple(given), rebuilt(body.outputs, memo)), tuple(places), True


__all__ = ["box_inside", "collapse_box", "collapse_dims", "reshaped_inputs", "reshapes"]
