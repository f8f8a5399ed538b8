"""Reductions."""

from __future__ import annotations

from collections.abc import Callable

from ingot import ops
from ingot.frontends.shared.composites.movement import normal_axis
from ingot.frontends.shared.composites.segments import reduce_segments, segment_count
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.tensorflow.values import Call, Table
from ingot.ir.dims import DimLike, product
from ingot.ir.node import Node
from ingot.ir.types import i32, i64

row = Table()

_KINDS = {"Sum": "sum", "Prod": "prod", "Max": "max", "Min": "min", "All": "and", "Any": "or"}


def _axes(c: Call, x: Node, axes: Node) -> tuple[int, ...]:
    return tuple({normal_axis(a, x.type.rank): None for a in c.numbers(axes)})


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


@row("UnsortedSegmentSum", "UnsortedSegmentProd", "UnsortedSegmentMax", "UnsortedSegmentMin")
def unsorted_segments(c: Call, x: Node, ids: Node, count: Node) -> Node:
    return reduce_segments(c.op.removeprefix("UnsortedSegment"), x, ids, c.size(count))


def _count(c: Call, ids: Node) -> DimLike:
    """One more than the last id, of ids that do not fall."""
    try:
        return max(c.numbers(ids), default=-1) + 1
    except Unsupported:
        return segment_count(c.walk.computed_sizes, ids)


@row("SegmentSum", "SegmentMean", "SegmentProd", "SegmentMax", "SegmentMin", "SegmentSumV2", "SegmentProdV2",
     "SegmentMaxV2", "SegmentMinV2")  # fmt: skip
def segments(c: Call, x: Node, ids: Node, *count: Node) -> Node:
    kind = c.op.removeprefix("Segment").removesuffix("V2")
    n = c.size(count[0]) if count else _count(c, ids)
    return reduce_segments(kind, x, ids, n, 0.0 if kind in ("Max", "Min") and not count else None)


_SPARSE = ("SparseSegmentSum", "SparseSegmentMean", "SparseSegmentSqrtN")


@row(*_SPARSE, *(f"{name}WithNumSegments" for name in _SPARSE))
def sparse_segments(c: Call, x: Node, rows: Node, ids: Node, *count: Node) -> Node:
    """Segments of rows that are named."""
    kind = c.op.removeprefix("SparseSegment").removesuffix("WithNumSegments")
    n = c.size(count[0]) if count else _count(c, ids)
    return reduce_segments(kind, ops.Take(0)(x, rows), ids, n)


@row("DenseBincount", "Bincount")
def bincount(c: Call, x: Node, size: Node, weights: Node) -> Node:
    """The number of times that each number below `size` occurs, or the sum of its weights; for each row of a matrix."""
    (n,) = c.lengths(size)
    dtype = c.dtype("T")
    given_weights = ops.full(x.shape, 1, dtype) if weights.type.size == 0 else weights
    rows = x.shape[:-1] if x.type.rank == 2 else ()
    ids = ops.cast(x, i64)
    is_outside = ops.or_(ops.compare("LT", ids, 0), ops.compare("GE", ids, ops.scalar(n, i64)))
    ids = ops.where(is_outside, ops.scalar(n, i64), ids)
    if rows:
        line = ops.expand_dims(ops.arange(rows[0]), 1)
        ids = ops.add(ids, ops.mul(line, ops.scalar(n + 1, i64)))
    flat = ops.full((product(rows) * (n + 1),), 0, dtype)
    how = "max" if c.flag("binary_output") else "add"
    summands = ops.full(x.shape, 1, dtype) if c.flag("binary_output") else given_weights
    size_ = x.type.size
    out = ops.ScatterND(how)(flat, ops.reshape(ids, (size_, 1)), ops.reshape(summands, (size_,)))
    return ops.slice_axis(ops.reshape(out, (*rows, n + 1)), -1, 0, n)


@row("HistogramFixedWidth")
def histogram(c: Call, x: Node, span: Node, bins: Node) -> Node:
    n, dtype = c.size(bins), c.dtype("dtype", i32)
    low, high = ops.index_axis(span, 0, 0), ops.index_axis(span, 0, 1)
    step = ops.div(ops.sub(high, low), ops.scalar(n, x.dtype))
    at = ops.Floor()(ops.div(ops.sub(x, low), step))
    ids = ops.cast(ops.clip(at, 0.0, ops.scalar(n - 1, x.dtype)), i64)
    size = x.type.size
    ones = ops.full((size,), 1, dtype)
    return ops.ScatterND("add")(ops.full((n,), 0, dtype), ops.reshape(ids, (size, 1)), ones)
