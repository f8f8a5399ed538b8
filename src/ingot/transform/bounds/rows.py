"""Batch axes: the axis of each value along which the rows of a batch lie, if rows are independent.

One backward walk serves all independent rows at once: it has as many coefficients as the walk of a single row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ingot import ops
from ingot.ir.dims import product
from ingot.ir.node import Graph, Node, Op
from ingot.ops.core.elementwise import Elementwise
from ingot.transform.bounds.forms import Form, Largest, Shift


def rows_of(graph: Graph, inputs: Sequence[Node], is_exact: Callable[[Node], bool]) -> Mapping[Node, int]:
    """The row axis of each value that is not exact, if the first axis of the perturbed inputs is one; empty if rows are
    combined anywhere, or if there is only one."""
    sizes = {x.shape[0] if x.shape else 1 for x in inputs}
    if len(sizes) != 1 or sizes <= {0, 1}:
        return {}
    row_axes: dict[Node, int] = dict.fromkeys(inputs, 0)
    for node in graph.nodes():
        if node in row_axes or is_exact(node):
            continue
        axes = [row_axes.get(x) for x in node.inputs]
        axis = None if all(a is None for a in axes) or len(node.types) != 1 else _axis(node, axes)
        if axis is None:
            return {}
        row_axes[node] = axis
    return row_axes


def _axis(node: Node, axes: Sequence[int | None]) -> int | None:
    """The row axis of a node from those of its operands (None: an operand without rows); None if it combines rows."""
    op = node.op
    if isinstance(op, (Elementwise, Form, Largest)):
        return _single_axis(axes)
    if isinstance(op, ops.Concat):
        axis = _single_axis(axes)
        return None if axis == op.dimension else axis
    if isinstance(op, ops.DotGeneral):
        return _dot_general(op, node, axes)
    first, *others = axes
    if first is None or any(a is not None for a in others):
        return None
    rule = _RULES.get(type(op))
    return None if rule is None else rule(op, node, first)


def _single_axis(axes: Sequence[int | None]) -> int | None:
    distinct = {a for a in axes if a is not None}
    return distinct.pop() if len(distinct) == 1 else None


def _dot_general(op: ops.DotGeneral, node: Node, axes: Sequence[int | None]) -> int | None:
    result_axes: set[int] = set()
    for side, axis in enumerate(axes):
        if axis is None:
            continue
        free = op.free(len(node.inputs[0].shape), len(node.inputs[1].shape))
        batch = op.batch[side]
        if axis in batch:
            result_axes.add(batch.index(axis))
        elif axis in free[side] and axes[1 - side] is None:
            result_axes.add(len(batch) + (len(free[0]) if side else 0) + free[side].index(axis))
        else:
            return None
    return result_axes.pop() if len(result_axes) == 1 else None


def _reshape(op: ops.Reshape, node: Node, axis: int) -> int | None:
    (x,) = node.inputs
    outer_size = product(x.shape[:axis])
    candidates = [i for i, d in enumerate(op.shape) if d == x.shape[axis] and product(op.shape[:i]) == outer_size]
    return candidates[0] if candidates else None


def _axis_unless(mixes: bool, axis: int) -> int | None:
    return None if mixes else axis


def _reduce_window(op: ops.ReduceWindow, node: Node, axis: int) -> int | None:
    return _axis_unless(op.window[axis] != 1 or op.strides[axis] != 1 or op.padding[axis] != (0, 0), axis)


def _gather(op: ops.Gather, node: Node, axis: int) -> int | None:
    x = node.inputs[0]
    left_out = {*op.collapsed_slice_dims, *op.operand_batching_dims}
    if axis in left_out or axis in op.start_index_map or op.slice_sizes[axis] != x.shape[axis]:
        return None
    return op.offset_dims[[d for d in range(len(x.shape)) if d not in left_out].index(axis)]


def _convolution(op: ops.Convolution, node: Node, axis: int) -> int | None:
    mixes = op.batch_groups != 1 or axis != op.lhs_layout.index("N")
    return _axis_unless(mixes, op.out_layout.index("N"))


_RULES: dict[type[Op], Callable[..., int | None]] = {
    ops.Reshape: _reshape,
    ops.Transpose: lambda op, node, axis: op.permutation.index(axis),
    ops.BroadcastInDim: lambda op, node, axis: _axis_unless(
        node.shape[op.dims[axis]] != node.inputs[0].shape[axis], op.dims[axis]
    ),
    ops.Slice: lambda op, node, axis: _axis_unless(node.shape[axis] != node.inputs[0].shape[axis], axis),
    ops.DynamicSlice: lambda op, node, axis: _axis_unless(node.shape[axis] != node.inputs[0].shape[axis], axis),
    ops.Pad: lambda op, node, axis: _axis_unless(bool(op.low[axis] or op.high[axis] or op.interior[axis]), axis),
    ops.Reverse: lambda op, node, axis: _axis_unless(axis in op.dims, axis),
    ops.Reduce: lambda op, node, axis: _axis_unless(axis in op.dims, axis - sum(d < axis for d in op.dims)),
    ops.ReduceWindow: _reduce_window,
    ops.CumReduce: lambda op, node, axis: _axis_unless(axis == op.dim, axis),
    ops.Gather: _gather,
    ops.Sort: lambda op, node, axis: _axis_unless(axis == op.dimension, axis),
    ops.Convolution: _convolution,
    Shift: lambda op, node, axis: _axis_unless(axis == op.axis, axis),
}
