"""Reductions, windows and scans."""

from __future__ import annotations

from dataclasses import replace

from ingot import ops
from ingot.autodiff.rules.shape import moved_back, moved_last, spread
from ingot.autodiff.table import constant_everywhere, no_rule, reverse
from ingot.ir.node import Node

constant_everywhere(ops.ArgReduce)


def _spread_over(g: Node, dims: tuple[int, ...], x: Node) -> Node:
    """g along the dims that x was folded along."""
    return ops.BroadcastInDim(x.shape, tuple(d for d in range(len(x.shape)) if d not in dims))(g)


@reverse(ops.Reduce)
def _reduce(node: Node, g: Node) -> list[Node | None]:
    op, (x,) = node.op, node.inputs
    assert isinstance(op, ops.Reduce)
    if op.kind in ("and", "or"):
        return [None]
    over = _spread_over(g, op.dims, x)
    if op.kind == "sum":
        return [over]
    if op.kind == "prod":
        return [ops.mul(over, _others(x, op.dims))]
    # equal ones share, as in PyTorch's amax and JAX
    hit = ops.compare("EQ", x, _spread_over(node, op.dims, x))
    count = ops.reduce_sum(ops.cast(hit, x.dtype), op.dims) if op.dims else ops.full(g.shape, 1, x.dtype)
    share = _spread_over(ops.div(g, count), op.dims, x)
    return [ops.where(hit, share, ops.full(x.shape, 0, x.dtype))]


def _others(x: Node, dims: tuple[int, ...]) -> Node:
    """For each element the product of all others along `dims`: exact with zeros, which a division would not be."""
    line = moved_last(x, dims)
    axis = len(line.shape) - 1
    before = ops.CumReduce("prod", axis, exclusive=True)(line)
    behind = ops.CumReduce("prod", axis, reverse=True, exclusive=True)(line)
    return moved_back(ops.mul(before, behind), dims, x)


@reverse(ops.CumReduce)
def _cumulative(node: Node, g: Node) -> list[Node]:
    op = node.op
    assert isinstance(op, ops.CumReduce)
    if op.kind != "sum":
        raise no_rule(node, f"a running {op.kind}")
    return [replace(op, reverse=not op.reverse)(g)]


@reverse(ops.ReduceWindow)
def _reduce_window(node: Node, g: Node) -> list[Node]:
    op, (x,) = node.op, node.inputs
    assert isinstance(op, ops.ReduceWindow)
    if op.kind == "sum":
        return [_window_sums(op, x, g)]
    if op.kind == "prod" or set(op.base_dilation) > {1}:
        raise no_rule(node, f"a window's {op.kind}" + " with holes" * (op.kind != "prod"))
    return [_window_extremes(op, x, node, g)]


def _window_sums(op: ops.ReduceWindow, x: Node, g: Node) -> Node:
    padding = []
    for i, (size, taps, count) in enumerate(zip(x.shape, op.window, g.shape, strict=True)):
        reach = (taps - 1) * op.dilation[i] + 1
        low = reach - 1 - op.padding[i][0]
        inner = (size - 1) * op.base_dilation[i] + 1
        padding.append((low, inner + reach - 1 - ((count - 1) * op.strides[i] + 1) - low))
    turned = ops.ReduceWindow("sum", op.window, op.base_dilation, tuple(padding), op.dilation, op.strides)
    return turned(g)


def _window_extremes(op: ops.ReduceWindow, x: Node, y: Node, g: Node) -> Node:
    """To the first element of each window that is its extreme."""
    rank = len(x.shape)
    padding = tuple(p[0] for p in op.padding), tuple(p[1] for p in op.padding)
    fill = ops.scalar(float("-inf") if op.kind == "max" else float("inf"), x.dtype)
    padded = ops.Pad(*padding, (0,) * rank)(x, fill)
    zero = ops.full(g.shape, 0, g.dtype)
    total: Node | None = None
    taken: Node | None = None
    for tap in _taps(op.window):
        starts = tuple(t * d for t, d in zip(tap, op.dilation, strict=True))
        ends = tuple(lo + (n - 1) * s + 1 for lo, n, s in zip(starts, g.shape, op.strides, strict=True))
        hit = ops.compare("EQ", ops.Slice(starts, ends, op.strides)(padded), y)
        first = hit if taken is None else ops.and_(hit, ops.Not()(taken))
        taken = hit if taken is None else ops.or_(taken, hit)
        part = spread(ops.where(first, g, zero), starts, op.strides, padded.shape)
        total = part if total is None else ops.Add()(total, part)
    assert total is not None
    low, high = (tuple(-p for p in side) for side in padding)
    return ops.Pad(low, high, (0,) * rank)(total, ops.scalar(0, g.dtype))


def _taps(window: tuple[int, ...]) -> list[tuple[int, ...]]:
    taps: list[tuple[int, ...]] = [()]
    for size in window:
        taps = [(*t, i) for t in taps for i in range(size)]
    return taps
