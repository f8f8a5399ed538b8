"""Reads at computed places become additions there, and the other way round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ingot import ops
from ingot.autodiff.table import RULES, reverse
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
    if op.kind == "mul":
        return _multiplied(op, x, indices, updates, g)
    if op.kind in ("max", "min"):
        return _extremes(op, x, indices, updates, node, g)
    # the last of several updates of one place wins: each is known by its number
    numbers = ops.Reshape(updates.shape)(ops.arange(updates.type.size, i64))
    winners = op(ops.full(x.shape, -1, i64), indices, numbers)
    won = ops.compare("EQ", _read(op, winners, indices, updates), numbers)
    zero = ops.full(updates.shape, 0, g.dtype)
    kept = ops.compare("EQ", winners, ops.full(x.shape, -1, i64))
    of_updates = ops.where(won, _read(op, g, indices, updates), zero)
    return [ops.where(kept, g, ops.full(x.shape, 0, g.dtype)), None, of_updates]


def _multiplied(op: ops.Scatter, x: Node, indices: Node, updates: Node, g: Node) -> list[Node | None]:
    """Of each update, the product of all others at its place: without division by zeros, which are counted."""
    zero = ops.compare("EQ", updates, 0)
    filled = ops.where(zero, ops.full(updates.shape, 1, x.dtype), updates)
    products = op(ops.full(x.shape, 1, x.dtype), indices, filled)
    zeros = replace(op, kind="add")(ops.full(x.shape, 0, x.dtype), indices, ops.cast(zero, x.dtype))
    nothing = ops.full(x.shape, 0, x.dtype)
    of_x = ops.where(ops.compare("EQ", zeros, 0), ops.mul(g, products), nothing)
    at = _read(op, zeros, indices, updates)
    alone = ops.compare("EQ", at, ops.cast(zero, x.dtype))  # no other update is 0
    share = _read(op, ops.mul(ops.mul(g, x), products), indices, updates)
    of_updates = ops.where(alone, ops.div(share, filled), ops.full(updates.shape, 0, x.dtype))
    return [of_x, None, of_updates]


def _extremes(op: ops.Scatter, x: Node, indices: Node, updates: Node, y: Node, g: Node) -> list[Node | None]:
    """Equal ones share, as in PyTorch's amax and JAX."""
    hit_x = ops.cast(ops.compare("EQ", x, y), x.dtype)
    hit = ops.cast(ops.compare("EQ", updates, _read(op, y, indices, updates)), x.dtype)
    share = ops.div(g, ops.maximum(replace(op, kind="add")(hit_x, indices, hit), 1))
    return [ops.mul(hit_x, share), None, ops.mul(hit, _read(op, share, indices, updates))]


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
