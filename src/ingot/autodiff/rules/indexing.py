"""Reads at computed places become additions there, and the other way round."""

from __future__ import annotations

from collections.abc import Sequence

from ingot import ops
from ingot.autodiff.table import RULES, no_rule, reverse
from ingot.ir.node import Node, Project
from ingot.ir.types import TensorType, i64


@reverse(ops.Gather)
def _gather(node: Node, g: Node) -> list[Node | None]:
    op, (x, indices) = node.op, node.inputs
    assert isinstance(op, ops.Gather)
    # a gather clamps its starts, a scatter leaves out what is outside
    limits = [x.shape[d] - op.slice_sizes[d] for d in op.start_index_map]
    held = _per_component(indices, op.index_vector_dim, limits)
    scatter = ops.Scatter(
        "add",
        op.offset_dims,
        op.collapsed_slice_dims,
        op.operand_batching_dims,
        op.start_indices_batching_dims,
        op.start_index_map,
        op.index_vector_dim,
    )
    return [scatter(ops.full(x.shape, 0, x.dtype), held, g), None]


def _per_component(indices: Node, at: int, limits: Sequence) -> Node:
    """Each component of the index vectors between 0 and its limit."""
    wide = ops.cast(indices, i64)
    if at == len(indices.shape):
        return ops.clip(wide, 0, ops.scalar(limits[0], i64))
    parts = ops.split(wide, [1] * len(limits), at)
    held = [ops.clip(part, 0, ops.scalar(most, i64)) for part, most in zip(parts, limits, strict=True)]
    return ops.concat(held, at)


@reverse(ops.Scatter)
def _scatter(node: Node, g: Node) -> list[Node | None]:
    op, (x, indices, updates) = node.op, node.inputs
    assert isinstance(op, ops.Scatter)
    if op.kind == "add":
        return [g, None, _read(op, g, indices, updates)]
    if op.kind != "set":
        raise no_rule(node, f"a scatter's {op.kind}")
    # the last of several updates of one place wins: each is known by its number
    numbers = ops.Reshape(updates.shape)(ops.arange(updates.type.size, i64))
    winners = op(ops.full(x.shape, -1, i64), indices, numbers)
    won = ops.compare("EQ", _read(op, winners, indices, updates), numbers)
    zero = ops.full(updates.shape, 0, g.dtype)
    kept = ops.compare("EQ", winners, ops.full(x.shape, -1, i64))
    of_updates = ops.where(won, _read(op, g, indices, updates), zero)
    return [ops.where(kept, g, ops.full(x.shape, 0, g.dtype)), None, of_updates]


def _read(op: ops.Scatter, x: Node, indices: Node, updates: Node) -> Node:
    """What x has where each element of `updates` goes; 0 where that is outside."""
    gone = (*op.inserted_window_dims, *op.input_batching_dims)
    windows = iter(updates.shape[d] for d in op.update_window_dims)
    sizes = tuple(1 if d in gone else next(windows) for d in range(len(x.shape)))
    # zeros around x, as wide as a window, so that a window partly outside is read as it lies
    around = tuple(sizes[d] if d in op.scatter_dims_to_operand_dims else 0 for d in range(len(x.shape)))
    padded = ops.pad(x, around, around)
    gather = ops.Gather(
        op.update_window_dims,
        op.inserted_window_dims,
        op.input_batching_dims,
        op.scatter_indices_batching_dims,
        op.scatter_dims_to_operand_dims,
        op.index_vector_dim,
        sizes,
    )
    return gather(padded, _moved(op, indices, around, x))


def _moved(op: ops.Scatter, indices: Node, around: tuple, x: Node) -> Node:
    wide, at = ops.cast(indices, i64), op.index_vector_dim
    parts = [wide] if at == len(wide.shape) else ops.split(wide, [1] * len(op.scatter_dims_to_operand_dims), at)
    moved = []
    for part, d in zip(parts, op.scatter_dims_to_operand_dims, strict=True):
        # what is far outside stays just outside
        held = ops.clip(part, ops.scalar(-around[d], i64), ops.scalar(x.shape[d], i64))
        moved.append(ops.add(held, ops.scalar(around[d], i64)))
    return moved[0] if len(moved) == 1 else ops.concat(moved, at)


def _sort(node: Node, cotangents: Sequence[Node | None]) -> list[Node | None]:
    """Each cotangent goes back to where its element came from."""
    op = node.op
    assert isinstance(op, ops.Sort)
    first = node.inputs[0]
    places = ops.Iota(TensorType(i64, first.shape), op.dimension)()
    order = Project(len(node.inputs))(op(*node.inputs, places))
    out: list[Node | None] = []
    for x, g in zip(node.inputs, cotangents, strict=True):
        if g is None:
            out.append(None)
            continue
        out.append(ops.ScatterElements(op.dimension, "add")(ops.full(x.shape, 0, g.dtype), order, g))
    return out


RULES[ops.Sort] = _sort
