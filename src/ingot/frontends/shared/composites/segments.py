"""Segment reductions: rows with one id, combined (TensorFlow's segments)."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from ingot import ops
from ingot.frontends.shared.computed_sizes import ComputedSizes, first
from ingot.frontends.shared.sizes import require_equal
from ingot.ir.dims import DimLike
from ingot.ir.node import Node
from ingot.ir.types import DType, i64
from ingot.support.limits import max_run_time_size

_COMBINATIONS = {"Sum": "add", "Mean": "add", "SqrtN": "add", "Prod": "mul", "Max": "max", "Min": "min"}


def reduce_segments(kind: str, x: Node, ids: Node, n: DimLike, empty: float | None = None) -> Node:
    """Rows that have one id, combined: [n, ...]. ids: one for each row; those outside 0..n-1 are dropped.
    empty: the value of segments without rows, where it is not the combination's start value."""
    require_equal(ids.shape, x.shape[: ids.type.rank], "segments")
    tail = x.shape[ids.type.rank :]
    combination = _COMBINATIONS[kind]
    zero = ops.full((n + 1, *tail), _start(combination, x.dtype), x.dtype)
    flat = ops.reshape(ops.cast(ids, i64), (-1, 1))
    # dropped rows go to one more segment, which is cut off
    is_outside = ops.or_(ops.compare("LT", flat, 0), ops.compare("GE", flat, ops.scalar(n, i64)))
    places = ops.where(is_outside, ops.scalar(n, i64), flat)
    rows = ops.reshape(x, (flat.shape[0], *tail))
    combined = first(ops.ScatterND(combination)(zero, places, rows), 0, n)
    if kind not in ("Mean", "SqrtN") and empty is None:
        return combined
    row_counts = ops.full(flat.shape[:1], 1, x.dtype)
    counts = first(ops.ScatterND("add")(ops.full((n + 1,), 0, x.dtype), places, row_counts), 0, n)
    counts = ops.reshape(counts, (n, *(1,) * len(tail)))
    if empty is not None:
        return ops.where(ops.compare("EQ", counts, 0), empty, combined)
    divisor = ops.maximum(counts, 1)
    return ops.div(combined, divisor if kind == "Mean" else ops.Sqrt()(divisor))


def _start(combination: str, dtype: DType) -> float | int:
    """The start value of a combination: for floats the extreme finite number, no infinity."""
    if combination in ("add", "mul"):
        return int(combination == "mul")
    if dtype.is_float:
        max_value = float(ml_dtypes.finfo(dtype.numpy).max)
        return -max_value if combination == "max" else max_value
    return np.iinfo(dtype.numpy).min if combination == "max" else np.iinfo(dtype.numpy).max


def segment_count(computed_sizes: ComputedSizes, ids: Node) -> DimLike:
    """One more than the last of ids in ascending order, found at run time."""
    last = ops.reduce_max(ops.concat([ops.full((1,), -1, i64), ops.cast(ids, i64)]))
    return computed_sizes.size(ops.add(last, 1), max_run_time_size(), "segments")
