"""Reductions."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np

from ingot import ops
from ingot.frontends.shared.found import first
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.shared.sizes import require_equal
from ingot.frontends.tensorflow.values import Call, Table, normal
from ingot.ir.dims import DimLike, product
from ingot.ir.node import Node
from ingot.ir.types import DType, i32, i64
from ingot.support.limits import max_run_time_size

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


_SEGMENTS = {"Sum": "add", "Mean": "add", "SqrtN": "add", "Prod": "mul", "Max": "max", "Min": "min"}


def _in_segments(kind: str, x: Node, ids: Node, n: DimLike, empty: float | None = None) -> Node:
    """Rows that have one id, combined: [n, ...]. ids: one for each row; those below 0 and from n on are dropped.
    empty: of segments without rows, where that is not what the combination starts with."""
    require_equal(ids.shape, x.shape[: ids.type.rank], "segments")
    tail = x.shape[ids.type.rank :]
    how = _SEGMENTS[kind]
    zero = ops.full((n + 1, *tail), _first(how, x.dtype), x.dtype)
    flat = ops.reshape(ops.cast(ids, i64), (-1, 1))
    # rows that are dropped go behind the others
    outside = ops.or_(ops.compare("LT", flat, 0), ops.compare("GE", flat, ops.scalar(n, i64)))
    places = ops.where(outside, ops.scalar(n, i64), flat)
    rows = ops.reshape(x, (flat.shape[0], *tail))
    out = first(ops.ScatterND(how)(zero, places, rows), 0, n)
    if kind not in ("Mean", "SqrtN") and empty is None:
        return out
    ones = ops.full(flat.shape[:1], 1, x.dtype)
    counts = first(ops.ScatterND("add")(ops.full((n + 1,), 0, x.dtype), places, ones), 0, n)
    counts = ops.reshape(counts, (n, *(1,) * len(tail)))
    if empty is not None:
        return ops.where(ops.compare("EQ", counts, 0), empty, out)
    least = ops.maximum(counts, 1)
    return ops.div(out, least if kind == "Mean" else ops.Sqrt()(least))


def _first(how: str, dtype: DType) -> float | int:
    """What a combination starts with: of floats the extreme number, no infinity."""
    if how in ("add", "mul"):
        return int(how == "mul")
    if dtype.is_float:
        most = float(ml_dtypes.finfo(dtype.numpy).max)
        return -most if how == "max" else most
    return np.iinfo(dtype.numpy).min if how == "max" else np.iinfo(dtype.numpy).max


@row("UnsortedSegmentSum", "UnsortedSegmentProd", "UnsortedSegmentMax", "UnsortedSegmentMin")
def unsorted_segments(c: Call, x: Node, ids: Node, count: Node) -> Node:
    return _in_segments(c.op.removeprefix("UnsortedSegment"), x, ids, c.size(count))


def _count(c: Call, ids: Node) -> DimLike:
    """One more than the last id, of ids that do not fall."""
    try:
        return max(c.numbers(ids), default=-1) + 1
    except Unsupported:
        last = ops.reduce_max(ops.concat([ops.full((1,), -1, i64), ops.cast(ids, i64)]))
        return c.walk.found.size(ops.add(last, 1), max_run_time_size(), "segments")


@row("SegmentSum", "SegmentMean", "SegmentProd", "SegmentMax", "SegmentMin", "SegmentSumV2", "SegmentProdV2",
     "SegmentMaxV2", "SegmentMinV2")  # fmt: skip
def segments(c: Call, x: Node, ids: Node, *count: Node) -> Node:
    kind = c.op.removeprefix("Segment").removesuffix("V2")
    n = c.size(count[0]) if count else _count(c, ids)
    return _in_segments(kind, x, ids, n, 0.0 if kind in ("Max", "Min") and not count else None)


_SPARSE = ("SparseSegmentSum", "SparseSegmentMean", "SparseSegmentSqrtN")


@row(*_SPARSE, *(f"{name}WithNumSegments" for name in _SPARSE))
def sparse_segments(c: Call, x: Node, rows: Node, ids: Node, *count: Node) -> Node:
    """Segments of rows that are named."""
    kind = c.op.removeprefix("SparseSegment").removesuffix("WithNumSegments")
    n = c.size(count[0]) if count else _count(c, ids)
    return _in_segments(kind, ops.Take(0)(x, rows), ids, n)


@row("DenseBincount", "Bincount")
def bincount(c: Call, x: Node, size: Node, weights: Node) -> Node:
    """How often each number below `size` is there, or the sum of its weights; of each row of a matrix."""
    (n,) = c.lengths(size)
    dtype = c.dtype("T")
    ones = ops.full(x.shape, 1, dtype) if weights.type.size == 0 else weights
    rows = x.shape[:-1] if x.type.rank == 2 else ()
    ids = ops.cast(x, i64)
    outside = ops.or_(ops.compare("LT", ids, 0), ops.compare("GE", ids, ops.scalar(n, i64)))
    ids = ops.where(outside, ops.scalar(n, i64), ids)
    if rows:
        line = ops.expand_dims(ops.arange(rows[0]), 1)
        ids = ops.add(ids, ops.mul(line, ops.scalar(n + 1, i64)))
    flat = ops.full((product(rows) * (n + 1),), 0, dtype)
    how = "max" if c.flag("binary_output") else "add"
    given = ops.full(x.shape, 1, dtype) if c.flag("binary_output") else ones
    size_ = x.type.size
    out = ops.ScatterND(how)(flat, ops.reshape(ids, (size_, 1)), ops.reshape(given, (size_,)))
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
