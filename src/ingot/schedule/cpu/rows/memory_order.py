"""Row groups over the order of memory.

    mean(transpose[n, h, w, c](x[n, c, h, w]), c)   ->   mean(x, c), its result as strides express it

Vectors run along the innermost dimension of the box: where no value is contiguous along it they would gather.
"""

from __future__ import annotations

from collections.abc import Sequence

from ingot.ir.dims import estimate
from ingot.ir.layout import Layout
from ingot.ir.node import Graph, Input, Node, rebuild
from ingot.ir.types import TensorType
from ingot.ops import BroadcastInDim, Reduction, Reshape, Transpose, reduced_dims
from ingot.schedule.collapse_dims import row_dims
from ingot.schedule.row_box import Rows

Layouts = tuple[Layout, ...]


def in_memory_order(body: Graph, rows: Rows, ins: Layouts, outs: Layouts) -> tuple[Graph, Layouts, Layouts] | None:
    """The group with the dimensions of its box in the order in which all values of the box are stored; None if they are
    in that order, or if no order is that of all. The order of the reduced dimensions stays."""
    body, ins = _transposed_inputs(body, ins)
    box_dims = row_dims(body, rows)
    if box_dims is None:
        return None
    nodes = zip((*body.inputs, *body.outputs), (*ins, *outs), strict=True)
    orders = {_order(lay) for n, lay in nodes if n.shape == rows.shape and n in box_dims}
    if len(orders) != 1:
        return None
    (order,) = orders
    if order == tuple(range(len(order))) or order[-1] == rows.axis:
        return None
    if tuple(d for d in order if d in rows.reduced) != rows.reduced:
        return None

    def axes(n: Node) -> tuple[int, ...]:
        """The dimensions of a node in their new order."""
        dims = box_dims[n]
        return tuple(sorted(range(len(dims)), key=lambda i: order.index(dims[i])))

    def ordered(n: Node, inputs: Sequence[Node]) -> Node:
        if not n.type.rank:
            return n
        shape = tuple(n.shape[a] for a in axes(n))
        match n.op:
            case Input():
                return Input(n.op.label, TensorType(n.dtype, shape))()
            case BroadcastInDim():
                return BroadcastInDim(shape, tuple(axes(n).index(n.op.dims[a]) for a in axes(n.inputs[0])))(*inputs)
            case Reshape():
                return Reshape(shape)(*inputs)
            case Reduction():
                return n.op.with_dims(tuple(sorted(axes(n.inputs[0]).index(d) for d in reduced_dims(n))))(*inputs)
        return n.op(*inputs, loc=n.loc)

    def stored(nodes: Sequence[Node], layouts: Layouts) -> Layouts:
        return tuple(lay.transpose(axes(n)) for n, lay in zip(nodes, layouts, strict=True))

    results = rebuild((*body.inputs, *body.outputs), rule=ordered)
    graph = Graph(results[: len(ins)], results[len(ins) :])
    return graph, stored(body.inputs, ins), stored(body.outputs, outs)


def _order(lay: Layout) -> tuple[int, ...]:
    """The dimensions by their strides, the largest first; those of one element, or repeated, stay where they are."""
    dims = [d for d, (size, stride) in enumerate(zip(lay.shape, lay.strides, strict=True)) if size != 1 and stride != 0]
    by_stride = iter(sorted(dims, key=lambda d: -estimate(lay.strides[d])))
    return tuple(next(by_stride) if d in dims else d for d in range(len(lay.shape)))


def _transposed_inputs(body: Graph, ins: Layouts) -> tuple[Graph, Layouts]:
    """The group with each input transposed that is read by one transpose alone."""
    users, memo = body.uses(), dict[Node, Node]()
    inputs, layouts = list(body.inputs), list(ins)
    for i, n in enumerate(body.inputs):
        readers = users.get(n, [])
        if n in body.outputs or len(readers) != 1 or not isinstance(transpose := readers[0].op, Transpose):
            continue
        assert isinstance(n.op, Input)
        layouts[i] = ins[i].transpose(transpose.permutation)
        inputs[i] = memo[readers[0]] = Input(n.op.label, readers[0].type)()
    return (Graph(tuple(inputs), rebuild(body.outputs, memo)), tuple(layouts)) if memo else (body, ins)


__all__ = ["in_memory_order"]
