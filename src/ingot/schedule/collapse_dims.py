"""Collapse adjacent dimensions of a group into one where all of its values are contiguous across them.

out[n, h, w, c] = f(x[n, c, h, w])   ->   out[n, hw, c] = f(x[n, c, hw]);      f(x[n, c]) + y[n, c]   ->   one of nc
out[n, c, h, w] = x[n, c, h, w] + b[c]   ->   out[n, c, hw] = x[n, c, hw] + b[c]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from ingot.ir.dims import product
from ingot.ir.layout import Layout, identity_axes, reshape_map
from ingot.ir.node import Graph, Input, Node, rebuild, topological
from ingot.ir.types import Shape, TensorType
from ingot.ops import BroadcastInDim, Reduction, Reshape, Transpose
from ingot.ops.core.base import Category, category
from ingot.schedule.row_box import Rows
from ingot.support.dataclass import dataclass

Groups = tuple[tuple[int, ...], ...]  # runs of adjacent dimensions of the box
BoxDims = dict[Node, tuple[int, ...]]  # for each dimension of a node, the dimension of the box that it is
Layouts = tuple[Layout, ...]


def collapse_dims(body: Graph, ins: Layouts, outs: Layouts) -> tuple[Graph, Layouts, Layouts] | None:
    """A pointwise group over fewer dimensions, or None if none can be collapsed.

    All nodes of the full box must be elementwise, broadcasts, or transposes between the operands' order and the
    output's. Adjacent dimensions collapse if every value of the full box is contiguous across them and nothing is
    broadcast along only one of them.
    """
    shape = body.outputs[0].shape
    box_dims = _pointwise_dims(body) if len(shape) > 1 else None
    if box_dims is None:
        return None
    boundaries: set[int] = set()  # dimensions that do not collapse into the previous one
    for n, dims in box_dims.items():
        boundaries.update(d for d in range(1, len(shape)) if dims.index(d) != dims.index(d - 1) + 1)
        if isinstance(n.op, BroadcastInDim):
            sized = [dims[d] for d, size in zip(n.op.dims, n.inputs[0].shape, strict=True) if size != 1]
            boundaries.update(*((d, d + 1) for d in sized))
    return _Collapsed.of(shape, box_dims, boundaries | _memory_gaps(shape, box_dims, body, ins, outs), body, ins, outs)


def collapse_box(body: Graph, rows: Rows, ins: Layouts, outs: Layouts) -> tuple[Graph, Layouts, Layouts] | None:
    """A row group over fewer dimensions, or None if none can be collapsed:

    sum(x[n, h, w, c], (1, 2, 3))   ->   sum(x[n, hwc], 1);      max(x[n, c, h, w], 1)   ->   max(x[n, c, hw], 1)

    Adjacent dimensions collapse if both are reduced or neither is, and every value is contiguous across them or
    broadcast along both.
    """
    shape, rank = rows.shape, len(rows.shape)
    box_dims = row_dims(body, rows) if rank > 1 else None
    if box_dims is None:
        return None
    boundaries = {d for d in range(1, rank) if (d in rows.reduced) != (d - 1 in rows.reduced)}
    for n, dims in box_dims.items():
        spans = [d in dims and n.shape[dims.index(d)] == shape[d] for d in range(rank)]
        boundaries.update(d for d in range(1, rank) if spans[d] != spans[d - 1])
    return _Collapsed.of(shape, box_dims, boundaries | _memory_gaps(shape, box_dims, body, ins, outs), body, ins, outs)


def _memory_gaps(shape: Shape, box_dims: BoxDims, body: Graph, ins: Layouts, outs: Layouts) -> set[int]:
    """Dimensions of the box that some value in memory does not store contiguously with the previous dimension."""
    gaps: set[int] = set()
    for n, lay in zip((*body.inputs, *body.outputs), (*ins, *outs), strict=True):
        dims = box_dims.get(n, ())
        strides = {d: s for d, s, size in zip(dims, lay.strides, n.shape, strict=False) if size == shape[d]}
        pairs = (d for d in range(1, len(shape)) if d in strides and d - 1 in strides)
        gaps.update(d for d in pairs if strides[d - 1] != strides[d] * shape[d])
    return gaps


@dataclass(frozen=True)
class _Collapsed:
    """Nodes over a box in which each of `groups` is one dimension."""

    groups: Groups
    box_dims: BoxDims

    @staticmethod
    def of(
        shape: Shape, box_dims: BoxDims, boundaries: set[int], body: Graph, ins: Layouts, outs: Layouts
    ) -> tuple[Graph, Layouts, Layouts] | None:
        """The group with every dimension collapsed into the previous one, except at `boundaries`; None if no
        dimension is."""
        starts = [d for d in range(len(shape)) if d == 0 or d in boundaries]
        if len(starts) == len(shape):
            return None
        collapsed = _Collapsed(tuple(tuple(range(a, b)) for a, b in pairwise([*starts, len(shape)])), box_dims)
        nodes = rebuild((*body.inputs, *body.outputs), rule=collapsed.node)
        graph = Graph(nodes[: len(ins)], nodes[len(ins) :])
        return graph, collapsed.layouts(body.inputs, ins), collapsed.layouts(body.outputs, outs)

    def runs(self, n: Node) -> list[tuple[int, ...]]:
        """The dimensions of a node that collapse into each dimension of its new shape."""
        dims = self.box_dims[n]
        runs = (tuple(i for i, d in enumerate(dims) if d in g) for g in self.groups)
        return sorted(run for run in runs if run)

    def shape(self, n: Node) -> Shape:
        return tuple(product(n.shape[i] for i in run) for run in self.runs(n))

    def groups_of(self, n: Node) -> list[int]:
        """The group of each dimension of a node's new shape."""
        group_of = {d: i for i, g in enumerate(self.groups) for d in g}
        return [group_of[self.box_dims[n][run[0]]] for run in self.runs(n)]

    def node(self, n: Node, inputs: Sequence[Node]) -> Node:
        if n not in self.box_dims:
            return n.with_inputs(inputs) if inputs else n
        shape = self.shape(n)
        match n.op:
            case Input():
                return Input(n.op.label, TensorType(n.dtype, shape))()
            case BroadcastInDim() if n.inputs[0] in self.box_dims:
                groups = self.groups_of(n)
                return BroadcastInDim(shape, tuple(groups.index(g) for g in self.groups_of(n.inputs[0])))(*inputs)
            case BroadcastInDim():
                new_dim = {i: groups for groups, run in enumerate(self.runs(n)) for i in run}
                return _broadcast(inputs[0], n.op, shape, new_dim)
            case Transpose():
                operand_groups = self.groups_of(n.inputs[0])
                return Transpose(tuple(operand_groups.index(g) for g in self.groups_of(n)))(*inputs)
            case Reshape():
                return Reshape(shape)(*inputs)
            case Reduction():
                reduced = tuple(groups for groups, run in enumerate(self.runs(n.inputs[0])) if run[0] in n.op.reduced)
                return n.op.with_dims(reduced)(*inputs)
        return n.op(*inputs) if inputs else n

    def layouts(self, nodes: Sequence[Node], layouts: Layouts) -> Layouts:
        def collapsed(n: Node, lay: Layout) -> Layout:
            if n not in self.box_dims:
                return lay
            return Layout(self.shape(n), tuple(lay.strides[run[-1]] for run in self.runs(n)), lay.offset)

        return tuple(collapsed(n, lay) for n, lay in zip(nodes, layouts, strict=True))


def _broadcast(x: Node, op: BroadcastInDim, shape: Shape, new_dim: Mapping[int, int]) -> Node:
    """A broadcast of x to a box of `shape`, in which dimension d of the old box is new_dim[d]."""
    sized = [k for k, d in enumerate(x.shape) if d != 1]
    x = Reshape(tuple(x.shape[k] for k in sized))(x) if len(sized) < x.type.rank else x
    return BroadcastInDim(shape, tuple(new_dim[op.dims[k]] for k in sized))(x)


def _pointwise_dims(body: Graph) -> BoxDims | None:
    """The dimensions of all nodes of a pointwise group's box; None if they are not consistent."""
    shape = body.outputs[0].shape
    identity = tuple(range(len(shape)))
    box_dims: BoxDims = dict.fromkeys(body.outputs, identity)
    broadcast: list[Node] = []
    for n in reversed(body.nodes()):
        dims = box_dims.get(n)
        if dims is None:
            continue  # a broadcast operand is not part of the box
        if len(n.types) != 1 or n.shape != tuple(shape[d] for d in dims):
            return None
        if n in body.inputs:
            continue
        if isinstance(n.op, BroadcastInDim):
            broadcast += n.inputs
            continue
        if isinstance(n.op, Transpose):
            operand_dims = tuple(dims[n.op.permutation.index(d)] for d in identity)
        elif category(n.op) is Category.ELEMENTWISE:
            operand_dims = dims
        else:
            return None
        if any(box_dims.setdefault(i, operand_dims) != operand_dims for i in n.inputs):
            return None
    beneath = topological(tuple(broadcast))
    return None if any(n in box_dims for n in beneath) else box_dims


def row_dims(body: Graph, rows: Rows) -> BoxDims | None:
    """The dimensions of all nodes of a row group's box; None if they are not consistent."""
    box = tuple(range(len(rows.shape)))
    unit_shape = tuple(1 if d in rows.reduced else size for d, size in enumerate(rows.shape))  # of a value per row
    box_dims: BoxDims = {}
    for n in body.outputs:
        spans_box = n.type.rank == len(box) and all(d in (1, size) for d, size in zip(n.shape, rows.shape, strict=True))
        if not spans_box and n.shape != rows.kept_shape:
            return None
        box_dims[n] = box if spans_box else rows.kept_dims
    for n in reversed(body.nodes()):
        dims = box_dims.get(n)
        if dims is None or len(n.types) != 1:
            return None
        if n in body.inputs or not n.type.rank:
            continue
        match n.op:
            case Reduction():
                operand_dims = box
            case BroadcastInDim():
                operand_dims = tuple(dims[d] for d in n.op.dims)
            case Reshape() if (dims, n.shape, n.inputs[0].shape) == (box, unit_shape, rows.kept_shape):
                operand_dims = rows.kept_dims
            case Reshape() if (dims, n.inputs[0].shape) == (rows.kept_dims, unit_shape):
                operand_dims = box
            case _ if category(n.op) is Category.ELEMENTWISE:
                operand_dims = dims
            case _:
                return None
        if list(operand_dims) != sorted(operand_dims) or any(
            box_dims.setdefault(i, operand_dims) != operand_dims for i in n.inputs
        ):
            return None
    return box_dims


def reshapes(node: Node, rows: Rows) -> bool:
    """Whether `node` reshapes a value of the box of `rows`, or one with an element per row (whose reduced dimensions
    may be present with size 1)."""
    if not isinstance(node.op, Reshape) or node.shape == node.inputs[0].shape:
        return False
    (x,) = node.inputs
    return x.shape == rows.shape or _sized(x.shape) == _sized(rows.kept_shape)


def _sized(shape: Shape) -> Shape:
    return tuple(d for d in shape if d != 1)


def without_reshapes(body: Graph, rows: Rows, ins: Layouts, outs: Layouts) -> tuple[Graph, Layouts, Layouts] | None:
    """A row group whose reshapes of inputs and results are expressed as strides:

    out = reshape(softmax(reshape(x)))   ->   out = softmax(x), both with the layouts of the inner shape
    out = convert(reshape(softmax(x)))   ->   out = convert(softmax(x))

    None if there are no such reshapes."""
    body, ins, changed = reshaped_inputs(body, ins, rows.shape)
    results, layouts = list(body.outputs), list(outs)
    for i, n in enumerate(map(_reshape_last, body.outputs)):
        lay = outs[i].reshape(n.inputs[0].shape) if reshapes(n, rows) else None
        if lay is not None:
            results[i], layouts[i] = n.inputs[0], lay
    if not changed and results == list(body.outputs):
        return None
    return body.with_outputs(tuple(results)), ins, tuple(layouts)


def _reshape_last(n: Node) -> Node:
    """f(reshape(x)) -> reshape(f(x)) for a function of each element"""
    if category(n.op) is not Category.ELEMENTWISE or len(n.inputs) != 1:
        return n
    x = _reshape_last(n.inputs[0])
    return Reshape(n.shape)(n.op(x.inputs[0], loc=n.loc)) if isinstance(x.op, Reshape) else n


def reshaped_inputs(body: Graph, ins: Layouts, shape: Shape | None = None) -> tuple[Graph, Layouts, bool]:
    """The group with each input reshaped that is read in one other shape only (`shape`, or any) which strides can
    express; and whether there is such an input."""
    users, memo = body.uses(), dict[Node, Node]()
    inputs, layouts = list(body.inputs), list(ins)
    for i, n in enumerate(body.inputs):
        readers = users.get(n, [])
        if n in body.outputs or not readers or not all(isinstance(u.op, Reshape) for u in readers):
            continue
        new = readers[0].shape if shape is None else shape
        lay = ins[i].reshape(new)
        if lay is not None and n.shape != new and all(u.shape == new for u in readers):
            assert isinstance(n.op, Input)
            inputs[i], layouts[i] = Input(n.op.label, TensorType(n.dtype, new))(), lay
            memo |= dict.fromkeys(readers, inputs[i])
    if not memo:
        return body, ins, False
    return Graph(tuple(inputs), rebuild(body.outputs, memo)), tuple(layouts), True


def reshaped_first(body: Graph, ins: Layouts) -> Graph:
    """reshape(f(x, y)) -> f(reshape(x), reshape(y)) for functions of elements that nothing else reads, if strides can
    reshape what they read: positions are not divided, and joined again, for each element. Not where rows are broadcast:
    results have their box."""
    users, layout_of = body.uses(), dict(zip(body.inputs, ins, strict=True))

    def reshaped(n: Node, shape: Shape) -> Node | None:
        if n in body.outputs or len(set(users[n])) != 1:
            return None
        if n in layout_of:
            return Reshape(shape)(n) if layout_of[n].reshape(shape) is not None else None
        if isinstance(n.op, BroadcastInDim):
            if any(isinstance(m.op, Reduction) for m in topological(n.inputs)):
                return None
            new_dims = identity_axes(reshape_map(n.shape, shape), n.shape, shape)
            new_dim = {d: new for d, new in enumerate(new_dims) if new is not None}
            sized = {d for d, size in zip(n.op.dims, n.inputs[0].shape, strict=True) if size != 1}
            return _broadcast(n.inputs[0], n.op, shape, new_dim) if sized <= new_dim.keys() else None
        if category(n.op) is not Category.ELEMENTWISE:
            return None
        inputs: dict[Node, Node] = {}
        for i in n.inputs:
            new = inputs.get(i) or reshaped(i, shape)
            if new is None:
                return None
            inputs[i] = new
        return n.op(*(inputs[i] for i in n.inputs), loc=n.loc)

    memo: dict[Node, Node] = {}
    for n in body.nodes():
        if isinstance(n.op, Reshape) and n.inputs[0] not in layout_of:
            new = reshaped(n.inputs[0], n.shape)
            memo |= {n: new} if new is not None else {}
    return body.with_outputs(rebuild(body.outputs, memo)) if memo else body


__all__ = [
    "collapse_box",
    "collapse_dims",
    "reshaped_first",
    "reshaped_inputs",
    "reshapes",
    "row_dims",
    "without_reshapes",
]
