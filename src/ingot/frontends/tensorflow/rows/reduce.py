"""Reductions."""

from __future__ import annotations

from collections.abc import Callable

from ingot import ops
from ingot.frontends.tensorflow.values import Call, Table, normal
from ingot.ir.node import Node
from ingot.ir.types import i64

row = Table()

_KINDS = {"Sum": "sum", "Prod": "prod", "Max": "max", "Min": "min", "All": "and", "Any": "or"}


def _axes(c: Call, x: Node, axes: Node) -> tuple[int, ...]:
    return tuple({normal(a, x.type.rank): None for a in c.numbers(axes)})


@row(*_KINDS)
def reduce(c: Call, x: Node, axes: Node) -> Node:
    return _reduced(c, x, axes, lambda dims, keep: ops.reduce(_KINDS[c.op], x, dims, keep))


@row("Mean")
def mean(c: Call, x: Node, axes: Node) -> Node:
    return _reduced(c, x, axes, lambda dims, keep: ops.mean(x, dims, keep))


@row("EuclideanNorm")
def euclidean_norm(c: Call, x: Node, axes: Node) -> Node:
    return _reduced(c, x, axes, lambda dims, keep: ops.Sqrt()(ops.reduce_sum(ops.mul(x, x), dims, keep)))


def _reduced(c: Call, x: Node, axes: Node, by: Callable[[tuple[int, ...], bool], Node]) -> Node:
    dims = _axes(c, x, axes)
    return by(dims, c.flag("keep_dims")) if dims else x


@row("ArgMax", "ArgMin")
def arg_reduce(c: Call, x: Node, axis: Node) -> Node:
    y = ops.arg_reduce("max" if c.op == "ArgMax" else "min", x, c.axis(axis, x.type.rank))
    return ops.cast(y, c.dtype("output_type") if c.has("output_type") else i64)


@row("L2Loss")
def l2_loss(c: Call, x: Node) -> Node:
    return ops.mul(ops.reduce_sum(ops.mul(x, x)), 0.5)


_SEGMENTS = {"SegmentSum": "add", "UnsortedSegmentSum": "add", "UnsortedSegmentProd": "mul"}


@row("UnsortedSegmentSum", "UnsortedSegmentProd")
def segments(c: Call, x: Node, ids: Node, count: Node) -> Node:
    """Sums of the rows that have one id; ids below 0 are dropped."""
    n, depth = c.size(count), ids.type.rank
    zero = ops.full((n + 1, *x.shape[depth:]), 0 if c.op.endswith("Sum") else 1, x.dtype)
    flat = ops.reshape(ops.cast(ids, i64), (-1, 1))
    # rows that are dropped go behind the others, and so do those that no segment takes
    outside = ops.or_(ops.compare("LT", flat, 0), ops.compare("GE", flat, n))
    places = ops.where(outside, ops.scalar(n, i64), flat)
    rows = ops.reshape(x, (flat.shape[0], *x.shape[depth:]))
    return ops.slice_axis(ops.ScatterND(_SEGMENTS[c.op])(zero, places, rows), 0, 0, n)
