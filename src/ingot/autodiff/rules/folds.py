"""Reductions and scans."""

from __future__ import annotations

from dataclasses import replace

from ingot import ops
from ingot.autodiff.rules.shape import moved_back, moved_last
from ingot.autodiff.table import constant_everywhere, reverse
from ingot.ir.node import Graph, Input, Node
from ingot.ir.types import i64

constant_everywhere(ops.ArgReduce)


def _spread_over(g: Node, dims: tuple[int, ...], x: Node) -> Node:
    """g broadcast along the dims over which x was reduced."""
    return ops.BroadcastInDim(x.shape, tuple(d for d in range(len(x.shape)) if d not in dims))(g)


@reverse(ops.Reduce)
def _reduce(node: Node, g: Node) -> list[Node | None]:
    op, (x,) = node.op, node.inputs
    assert isinstance(op, ops.Reduce)
    if op.kind in ("and", "or"):
        return [None]
    spread = _spread_over(g, op.dims, x)
    if op.kind == "sum":
        return [spread]
    if op.kind == "prod":
        return [ops.mul(spread, _products_of_others(x, op.dims))]
    # equal extremes share the gradient, as in PyTorch's amax and JAX
    hit = ops.compare("EQ", x, _spread_over(node, op.dims, x))
    count = ops.reduce_sum(ops.cast(hit, x.dtype), op.dims) if op.dims else ops.full(g.shape, 1, x.dtype)
    share = _spread_over(ops.div(g, count), op.dims, x)
    return [ops.where(hit, share, ops.full(x.shape, 0, x.dtype))]


def _products_of_others(x: Node, dims: tuple[int, ...]) -> Node:
    """For each element the product of all others along `dims`: exact with zeros, unlike a division."""
    line = moved_last(x, dims)
    axis = len(line.shape) - 1
    before = ops.CumReduce("prod", axis, exclusive=True)(line)
    after = ops.CumReduce("prod", axis, reverse=True, exclusive=True)(line)
    return moved_back(ops.mul(before, after), dims, x)


@reverse(ops.CumReduce)
def _cumulative(node: Node, g: Node) -> list[Node]:
    op = node.op
    assert isinstance(op, ops.CumReduce)
    if op.kind == "sum":
        return [replace(op, reverse=not op.reverse)(g)]
    (x,) = node.inputs
    axis = op.dim
    if op.reverse:
        x, g = ops.flip(x, axis), ops.flip(g, axis)
    if op.exclusive:  # result k of the inclusive scan is result k + 1 here
        low, high = (tuple(s if d == axis else 0 for d in range(len(x.shape))) for s in (-1, 1))
        g = ops.pad(g, low, high)
    gradient = _running_product(x, g, axis) if op.kind == "prod" else _running_extreme(x, g, op.kind, axis)
    return [ops.flip(gradient, axis) if op.reverse else gradient]


def _running_product(x: Node, g: Node, axis: int) -> Node:
    """For y[k] = y[k - 1] x[k]: h[k] y[k - 1] with h[k] = g[k] + h[k + 1] x[k + 1], exact with zeros."""
    line, rows = ops.swap_axes(x, 0, axis), ops.swap_axes(g, 0, axis)
    if any(d == 0 for d in line.shape):
        return g
    size, rest = line.shape[0], (0,) * (len(line.shape) - 1)
    next_factors = ops.pad(line, (-1, *rest), (1, *rest))  # x[k + 1], 0 after the last
    state = ops.full(line.shape[1:], 0, x.dtype)
    operands = (ops.scalar(size - 1, i64), state, ops.full(line.shape, 0, x.dtype), rows, next_factors)
    entry = tuple(Input(f"s{i}", v.type)() for i, v in enumerate(operands))
    k, h, states, cotangents, factors = entry
    zeros = [ops.scalar(0, i64)] * len(rest)
    row, factor = (ops.DynamicSlice((1, *line.shape[1:]))(v, k, *zeros) for v in (cotangents, factors))
    next_h = ops.add(row, ops.mul(ops.Reshape(row.shape)(h), factor))
    results = (
        ops.sub(k, 1),
        ops.Reshape(h.shape)(next_h),
        ops.DynamicUpdateSlice()(states, next_h, k, *zeros),
        cotangents,
        factors,
    )
    loop = ops.While(Graph(entry, (ops.compare("GE", k, 0),)), Graph(entry, results))(*operands)
    prefix_products = ops.CumReduce("prod", 0, exclusive=True)(line)
    return ops.swap_axes(ops.mul(loop.results[2], prefix_products), 0, axis)


def _running_extreme(x: Node, g: Node, kind: str, axis: int) -> Node:
    """Each cotangent goes to the last element so far that equals the extreme, as in PyTorch."""
    positions = ops.iota(x.shape, axis)
    extreme = ops.CumReduce(kind, axis)(x)
    records = ops.where(ops.compare("EQ", x, extreme), positions, ops.full(x.shape, 0, i64))
    source = ops.CumReduce("max", axis)(records)
    return ops.ScatterElements(axis, "add")(ops.full(x.shape, 0, g.dtype), source, g)
