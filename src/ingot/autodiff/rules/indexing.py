"""Gathers, scatters and sorts: the reverse of a read at computed indices adds there, and vice versa."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ingot import ops
from ingot.autodiff.table import RULES, reverse
from ingot.ir.node import Node, Project
from ingot.ir.types import i64


@reverse(ops.Gather)
def _gather(node: Node, g: Node) -> list[Node | None]:
    op, (x, indices) = node.op, node.inputs
    assert isinstance(op, ops.Gather)
    # a gather clamps its start indices, a scatter drops updates out of bounds
    limits = [x.shape[d] - op.slice_sizes[d] for d in op.start_index_map]
    clamped = _clamp_indices(indices, op.index_vector_dim, limits)
    scatter = ops.Scatter(
        "add",
        op.offset_dims,
        op.collapsed_slice_dims,
        op.operand_batching_dims,
        op.start_indices_batching_dims,
        op.start_index_map,
        op.index_vector_dim,
    )
    return [scatter(ops.full(x.shape, 0, x.dtype), clamped, g), None]


def _clamp_indices(indices: Node, axis: int, limits: Sequence) -> Node:
    """The index vectors with each component clamped to 0 ... its limit."""
    indices_i64 = ops.cast(indices, i64)
    if axis == len(indices.shape):
        return ops.clip(indices_i64, 0, ops.scalar(limits[0], i64))
    parts = ops.split(indices_i64, [1] * len(limits), axis)
    clamped = [ops.clip(part, 0, ops.scalar(limit, i64)) for part, limit in zip(parts, limits, strict=True)]
    return ops.concat(clamped, axis)


@reverse(ops.Scatter)
def _scatter(node: Node, g: Node) -> list[Node | None]:
    op, (x, indices, updates) = node.op, node.inputs
    assert isinstance(op, ops.Scatter)
    if op.kind == "add":
        return [g, None, _gather_updates(op, g, indices, updates)]
    if op.kind == "mul":
        return _scatter_mul(op, x, indices, updates, g)
    if op.kind in ("max", "min"):
        return _scatter_extreme(op, x, indices, updates, node, g)
    # the last of several updates of one element wins: scattering the updates' numbers tells which
    numbers = ops.Reshape(updates.shape)(ops.arange(updates.type.size, i64))
    winners = op(ops.full(x.shape, -1, i64), indices, numbers)
    is_winner = ops.compare("EQ", _gather_updates(op, winners, indices, updates), numbers)
    zero = ops.full(updates.shape, 0, g.dtype)
    is_unwritten = ops.compare("EQ", winners, ops.full(x.shape, -1, i64))
    of_updates = ops.where(is_winner, _gather_updates(op, g, indices, updates), zero)
    return [ops.where(is_unwritten, g, ops.full(x.shape, 0, g.dtype)), None, of_updates]


def _scatter_mul(op: ops.Scatter, x: Node, indices: Node, updates: Node, g: Node) -> list[Node | None]:
    """The cotangent of an update takes the product of all others of its element: zeros are counted, not divided by."""
    is_zero = ops.compare("EQ", updates, 0)
    filled = ops.where(is_zero, ops.full(updates.shape, 1, x.dtype), updates)
    products = op(ops.full(x.shape, 1, x.dtype), indices, filled)
    zero_counts = replace(op, kind="add")(ops.full(x.shape, 0, x.dtype), indices, ops.cast(is_zero, x.dtype))
    zero_x = ops.full(x.shape, 0, x.dtype)
    of_x = ops.where(ops.compare("EQ", zero_counts, 0), ops.mul(g, products), zero_x)
    zero_counts_read = _gather_updates(op, zero_counts, indices, updates)
    has_no_other_zero = ops.compare("EQ", zero_counts_read, ops.cast(is_zero, x.dtype))  # no other update is 0
    share = _gather_updates(op, ops.mul(ops.mul(g, x), products), indices, updates)
    of_updates = ops.where(has_no_other_zero, ops.div(share, filled), ops.full(updates.shape, 0, x.dtype))
    return [of_x, None, of_updates]


def _scatter_extreme(op: ops.Scatter, x: Node, indices: Node, updates: Node, y: Node, g: Node) -> list[Node | None]:
    """Equal extremes share the gradient, as in PyTorch's amax and JAX."""
    hit_x = ops.cast(ops.compare("EQ", x, y), x.dtype)
    hit = ops.cast(ops.compare("EQ", updates, _gather_updates(op, y, indices, updates)), x.dtype)
    share = ops.div(g, ops.maximum(replace(op, kind="add")(hit_x, indices, hit), 1))
    return [ops.mul(hit_x, share), None, ops.mul(hit, _gather_updates(op, share, indices, updates))]


def _gather_updates(op: ops.Scatter, x: Node, indices: Node, updates: Node) -> Node:
    """For each element of `updates` the element of x to which it is scattered; 0 where that is out of bounds."""
    unit_dims = (*op.inserted_window_dims, *op.input_batching_dims)
    windows = iter(updates.shape[d] for d in op.update_window_dims)
    sizes = tuple(1 if d in unit_dims else next(windows) for d in range(len(x.shape)))
    # x is padded with zeros by the window's size, so that the start of a window partly out of bounds is not clamped
    margins = tuple(sizes[d] if d in op.scatter_dims_to_operand_dims else 0 for d in range(len(x.shape)))
    padded = ops.pad(x, margins, margins)
    gather = ops.Gather(
        op.update_window_dims,
        op.inserted_window_dims,
        op.input_batching_dims,
        op.scatter_indices_batching_dims,
        op.scatter_dims_to_operand_dims,
        op.index_vector_dim,
        sizes,
    )
    return gather(padded, _shift_indices(op, indices, margins, x))


def _shift_indices(op: ops.Scatter, indices: Node, margins: tuple, x: Node) -> Node:
    indices_i64, axis = ops.cast(indices, i64), op.index_vector_dim
    parts = (
        [indices_i64]
        if axis == len(indices_i64.shape)
        else ops.split(indices_i64, [1] * len(op.scatter_dims_to_operand_dims), axis)
    )
    shifted = []
    for part, d in zip(parts, op.scatter_dims_to_operand_dims, strict=True):
        # windows entirely out of bounds read the padding
        clamped = ops.clip(part, ops.scalar(-margins[d], i64), ops.scalar(x.shape[d], i64))
        shifted.append(ops.add(clamped, ops.scalar(margins[d], i64)))
    return shifted[0] if len(shifted) == 1 else ops.concat(shifted, axis)


def _sort(node: Node, cotangents: Sequence[Node | None]) -> list[Node | None]:
    """Each cotangent goes back to the position from which its element came."""
    op = node.op
    assert isinstance(op, ops.Sort)
    first = node.inputs[0]
    positions = ops.iota(first.shape, op.dimension)
    order = Project(len(node.inputs))(op(*node.inputs, positions))
    operand_cotangents: list[Node | None] = []
    for x, g in zip(node.inputs, cotangents, strict=True):
        if g is None:
            operand_cotangents.append(None)
            continue
        operand_cotangents.append(ops.ScatterElements(op.dimension, "add")(ops.full(x.shape, 0, g.dtype), order, g))
    return operand_cotangents


RULES[ops.Sort] = _sort
