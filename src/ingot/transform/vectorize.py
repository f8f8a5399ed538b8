"""Vectorize a computation of one row (vmap): each value that depends on a mapped one gets a leading axis of rows.

y = dot(x, w)  for each row of xs    ->    ys = dot(xs, w)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import cast

from ingot import ops
from ingot.ir.dims import DimLike
from ingot.ir.node import Node, Op, Project, topological
from ingot.ops.core.elementwise import Elementwise
from ingot.support.errors import REWRITE, UnsupportedOp, UnsupportedOpError

# (the node, its operands, whether each has rows, the number of rows) -> the node with rows
Rule = Callable[[Node, Sequence[Node], Sequence[bool], DimLike], Node]
_RULES: dict[type[Op], Rule] = {}


def vectorize(outputs: Sequence[Node], mapped: Mapping[Node, Node]) -> list[Node]:
    """`outputs` for each row. mapped: node -> a node of the same type with a leading axis of rows. Values that depend
    on none are computed once; outputs among them are repeated for each row.

    Raises UnsupportedOpError, which names all CORE ops that have no rule.
    """
    count = next(iter(mapped.values())).shape[0]
    rows: dict[Node, Node] = dict(mapped)
    missing: list[UnsupportedOp] = []
    for node in topological(outputs):
        if node in rows or not any(x in rows for x in node.inputs):
            continue
        has_rows = [x in rows for x in node.inputs]
        rule = _rule(node)
        if rule is None:
            missing.append(UnsupportedOp(node.op.name, node.loc or "the graph", "cannot be vectorized"))
            rows[node] = _repeat(node, count) if len(node.types) == 1 else node
            continue
        rows[node] = rule(node, [rows.get(x, x) for x in node.inputs], has_rows, count)
    if missing:
        raise UnsupportedOpError(missing, model="the rows", fix=REWRITE)
    return [rows[y] if y in rows else _repeat(y, count) for y in outputs]


def _rule(node: Node) -> Rule | None:
    if isinstance(node.op, Project) or len(node.types) != 1:
        return None
    return _elementwise if isinstance(node.op, Elementwise) else _RULES.get(type(node.op))


def _repeat(x: Node, count: DimLike) -> Node:
    return ops.BroadcastInDim((count, *x.shape), tuple(range(1, len(x.shape) + 1)))(x)


def _with_rows(xs: Sequence[Node], has_rows: Sequence[bool], count: DimLike) -> list[Node]:
    return [x if flag else _repeat(x, count) for x, flag in zip(xs, has_rows, strict=True)]


def _elementwise(node: Node, xs: Sequence[Node], flags: Sequence[bool], count: DimLike) -> Node:
    return node.op(*_with_rows(xs, flags, count))


def _rows_of(*classes: type[Op]) -> Callable[[Callable[..., Op]], Callable[..., Op]]:
    """Register `f(op, the node's operand types, rows)` for ops with rows in operand 0, or in all of a Concat's."""

    def register(f: Callable[..., Op]) -> Callable[..., Op]:
        def rule(node: Node, xs: Sequence[Node], flags: Sequence[bool], count: DimLike) -> Node:
            first, *others = xs
            if any(flags[1:]):
                error = UnsupportedOp(node.op.name, node.loc or "the graph", "rows of its second operand")
                raise UnsupportedOpError([error], model="the rows", fix=REWRITE)
            return f(node.op, node, count)(first, *others)

        for cls in classes:
            _RULES[cls] = rule
        return f

    return register


def _shift_axes(axes: Sequence[int]) -> tuple[int, ...]:
    return tuple(a + 1 for a in axes)


@_rows_of(ops.BroadcastInDim)
def _broadcast(op: ops.BroadcastInDim, node: Node, count: DimLike) -> Op:
    return ops.BroadcastInDim((count, *op.shape), (0, *_shift_axes(op.dims)))


@_rows_of(ops.Reshape)
def _reshape(op: ops.Reshape, node: Node, count: DimLike) -> Op:
    return ops.Reshape((count, *op.shape))


@_rows_of(ops.Transpose)
def _transpose(op: ops.Transpose, node: Node, count: DimLike) -> Op:
    return ops.Transpose((0, *_shift_axes(op.permutation)))


@_rows_of(ops.Slice)
def _slice(op: ops.Slice, node: Node, count: DimLike) -> Op:
    return ops.Slice((0, *op.start), (count, *op.limit), (1, *op.strides))


@_rows_of(ops.Reverse)
def _reverse(op: ops.Reverse, node: Node, count: DimLike) -> Op:
    return ops.Reverse(_shift_axes(op.dims))


@_rows_of(ops.Windows)
def _windows(op: ops.Windows, node: Node, count: DimLike) -> Op:
    return replace(op, dim=op.dim + 1)


@_rows_of(ops.Pad)
def _pad(op: ops.Pad, node: Node, count: DimLike) -> Op:
    return ops.Pad((0, *op.low), (0, *op.high), (0, *op.interior))


@_rows_of(ops.Reduce)
def _reduce(op: ops.Reduce, node: Node, count: DimLike) -> Op:
    return replace(op, dims=_shift_axes(op.dims))


@_rows_of(ops.CumReduce, ops.ArgReduce)
def _scan(op: ops.CumReduce, node: Node, count: DimLike) -> Op:
    return replace(op, dim=op.dim + 1)


@_rows_of(ops.Sort)
def _sort(op: ops.Sort, node: Node, count: DimLike) -> Op:
    return replace(op, dimension=op.dimension + 1)


@_rows_of(ops.ReduceWindow)
def _reduce_window(op: ops.ReduceWindow, node: Node, count: DimLike) -> Op:
    return ops.ReduceWindow(
        op.kind, (1, *op.window), (1, *op.strides), ((0, 0), *op.padding), (1, *op.dilation), (1, *op.base_dilation)
    )


@_rows_of(ops.Gather)
def _gather(op: ops.Gather, node: Node, count: DimLike) -> Op:
    return replace(
        op,
        offset_dims=(0, *_shift_axes(op.offset_dims)),
        collapsed_slice_dims=_shift_axes(op.collapsed_slice_dims),
        operand_batching_dims=_shift_axes(op.operand_batching_dims),
        start_index_map=_shift_axes(op.start_index_map),
        slice_sizes=(count, *op.slice_sizes),
    )


def _concat(node: Node, xs: Sequence[Node], flags: Sequence[bool], count: DimLike) -> Node:
    return ops.Concat(cast("ops.Concat", node.op).dimension + 1)(*_with_rows(xs, flags, count))


def _scatter(node: Node, xs: Sequence[Node], flags: Sequence[bool], count: DimLike) -> Node:
    """The operand and the updates may have rows, the indices may not."""
    op, (x, indices, updates) = node.op, xs
    assert isinstance(op, ops.Scatter)
    if flags[1]:
        error = UnsupportedOp(op.name, node.loc or "the graph", "rows of its indices")
        raise UnsupportedOpError([error], model="the rows", fix=REWRITE)
    x, updates = (v if flag else _repeat(v, count) for v, flag in ((x, flags[0]), (updates, flags[2])))
    new = replace(
        op,
        update_window_dims=(0, *_shift_axes(op.update_window_dims)),
        inserted_window_dims=_shift_axes(op.inserted_window_dims),
        input_batching_dims=_shift_axes(op.input_batching_dims),
        scatter_dims_to_operand_dims=_shift_axes(op.scatter_dims_to_operand_dims),
    )
    return new(x, indices, updates)


def _dot_general(node: Node, xs: Sequence[Node], flags: Sequence[bool], count: DimLike) -> Node:
    op, (a, b) = node.op, xs
    assert isinstance(op, ops.DotGeneral)
    (batch_a, batch_b), (sum_a, sum_b) = op.batch, op.contract
    if flags[0]:
        batch_a, sum_a = _shift_axes(batch_a), _shift_axes(sum_a)
    if flags[1]:
        batch_b, sum_b = _shift_axes(batch_b), _shift_axes(sum_b)
    if all(flags):
        return replace(op, batch=((0, *batch_a), (0, *batch_b)), contract=(sum_a, sum_b))(a, b)
    y = replace(op, batch=(batch_a, batch_b), contract=(sum_a, sum_b))(a, b)
    free_a, _ = op.free(len(node.inputs[0].shape), len(node.inputs[1].shape))
    row_axis = len(batch_a) + (0 if flags[0] else len(free_a))
    order = (row_axis, *(d for d in range(len(y.shape)) if d != row_axis))
    return y if row_axis == 0 else ops.Transpose(order)(y)


def _convolution(node: Node, xs: Sequence[Node], flags: Sequence[bool], count: DimLike) -> Node:
    """Rows of images become a larger batch, rows of kernels more output channels, rows of both become groups."""
    op, (x, w) = node.op, xs
    assert isinstance(op, ops.Convolution)
    if op.batch_groups > 1 or (flags[1] and op.feature_groups > 1):
        error = UnsupportedOp(op.name, node.loc or "the graph", "rows of groups")
        raise UnsupportedOpError([error], model="the rows", fix=REWRITE)
    if all(flags):
        channels, outs = op.lhs_layout.index("C"), op.rhs_layout.index("O")
        y = replace(op, feature_groups=count)(_merge_rows(x, channels), _merge_rows(w, outs))
        return _split_rows(y, op.out_layout.index("C"), count)
    if flags[0]:
        return _split_rows(op(_merge_rows(x, op.lhs_layout.index("N")), w), op.out_layout.index("N"), count)
    return _split_rows(op(x, _merge_rows(w, op.rhs_layout.index("O"))), op.out_layout.index("C"), count)


def _merge_rows(x: Node, axis: int) -> Node:
    """Merge the leading axis of rows into `axis` of each row, as its outer part."""
    rank = len(x.shape)
    order = (*range(1, axis + 1), 0, *range(axis + 1, rank))
    transposed = x if axis == 0 else ops.Transpose(order)(x)
    shape = transposed.shape
    return ops.Reshape((*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :]))(transposed)


def _split_rows(y: Node, axis: int, count: DimLike) -> Node:
    """The inverse of `_merge_rows`."""
    shape, size = y.shape, y.shape[axis] // count
    split = ops.Reshape((*shape[:axis], count, size, *shape[axis + 1 :]))(y)
    order = (axis, *(d for d in range(len(split.shape)) if d != axis))
    return split if axis == 0 else ops.Transpose(order)(split)


def _dynamic_slice(node: Node, xs: Sequence[Node], flags: Sequence[bool], count: DimLike) -> Node:
    op, (x, *starts) = node.op, xs
    assert isinstance(op, ops.DynamicSlice)
    if any(flags[1:]):
        raise UnsupportedOpError(
            [UnsupportedOp(op.name, node.loc or "the graph", "rows of starts")], model="the rows", fix=REWRITE
        )
    return ops.DynamicSlice((count, *op.sizes))(x, ops.scalar(0, starts[0].dtype), *starts)


_RULES |= {
    ops.Concat: _concat,
    ops.Scatter: _scatter,
    ops.DotGeneral: _dot_general,
    ops.Convolution: _convolution,
    ops.DynamicSlice: _dynamic_slice,
}
