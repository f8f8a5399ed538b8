"""Bags of rows of a table: sums, means and maxima of embeddings."""

from __future__ import annotations

import math

from ingot import ops
from ingot.frontends.torch.aten.create import filled
from ingot.frontends.torch.aten.index import learning_by_frequency, static, write_rows
from ingot.frontends.torch.aten.shape import reshape
from ingot.frontends.torch.table import Table
from ingot.frontends.torch.values import Context, cast, expand, i64, wide
from ingot.ir.node import Const, Node

aten = Table()


@aten("embedding_bag.padding_idx")
def padded_bag(
    c: Context, weight: Node, indices: Node, offsets: Node, scale_grad_by_freq: bool, mode: int, sparse: bool,
    per_sample_weights: Node | None, include_last_offset: bool, padding_idx: int | None,
) -> tuple[Node | None, ...]:  # fmt: skip
    """`embedding_bag` whose padding index counts from the end of the table where it is negative."""
    if padding_idx is not None and padding_idx < 0:
        padding_idx += static(weight.shape[0], "the table")
    options = mode, sparse, per_sample_weights, include_last_offset, padding_idx
    return embedding_bag(c, weight, indices, offsets, scale_grad_by_freq, *options)


@aten("_embedding_bag_forward_only.default", "_embedding_bag.default")
def embedding_bag(
    c: Context, weight: Node, indices: Node, offsets: Node, scale_grad_by_freq: bool = False, mode: int = 0,
    sparse: bool = False, per_sample_weights: Node | None = None, include_last_offset: bool = False,
    padding_idx: int | None = -1,
) -> tuple[Node | None, ...]:  # fmt: skip
    """Rows of a table summed (mode 0), averaged (1) or maximized (2) over bags of indices that begin at `offsets`."""
    bags, (count,) = c.shape[0], indices.shape
    rows = cast(ops.Take(0)(weight, indices), wide(c.dtype))
    if scale_grad_by_freq:
        rows = learning_by_frequency(rows, indices, weight.shape[0])
    if per_sample_weights is not None:
        rows = ops.Mul()(rows, expand(ops.expand_dims(cast(per_sample_weights, rows.dtype), 1), rows.shape))
    row_counts, start = filled((count,), 1, i64), -math.inf if mode == 2 else 0
    if padding_idx is not None and padding_idx >= 0:
        padding = ops.Compare("EQ")(cast(indices, i64), filled((count,), padding_idx, i64))
        row_counts = ops.Select()(padding, filled((count,), 0, i64), row_counts)
        is_padding = expand(ops.expand_dims(padding, 1), rows.shape)
        rows = ops.Select()(is_padding, filled(rows.shape, start, rows.dtype), rows)
    size = _pitch(offsets)
    # the bag of each index is a running sum of the bags that begin there; an empty last bag begins after all indices
    places = filled((count + 1,), 0, i64)  # one more, for bags that begin after the last index
    bag_starts = write_rows(places, 0, cast(offsets, i64), filled(offsets.shape, 1, i64), "add")
    bag_starts = ops.slice_axis(bag_starts, 0, 0, count)
    bag = ops.Sub()(ops.CumReduce("sum", 0)(bag_starts), filled((count,), 1, i64))

    def folded(kind: str, values: Node) -> Node:
        if size is not None and bags * size == count:
            return ops.Reduce(kind, (1,))(reshape(values, (bags, size, *values.shape[1:])))
        initial = filled((bags, *values.shape[1:]), start if kind == "max" else 0, values.dtype)
        return write_rows(initial, 0, bag, values, "add" if kind == "sum" else kind)

    total = folded("max" if mode == 2 else "sum", rows)
    counts = folded("sum", row_counts)
    # for the backward pass: the bag of each index, the sizes of bags, and the rows of the maxima
    of_index, of_bag, of_maximum = c.results[1:]
    bag_of_index = bag if of_index.shape == (count,) else filled(of_index.shape, 0, i64)
    has_maxima = mode == 2 and count != 0
    maxima = _maxima(total, rows, bag, counts, indices) if has_maxima else filled(of_maximum.shape, 0, i64)
    saved = cast(bag_of_index, of_index.dtype), cast(counts, of_bag.dtype), cast(maxima, of_maximum.dtype)
    if mode == 0:
        return cast(total, c.dtype), *saved
    sizes = expand(ops.expand_dims(counts, 1), total.shape)
    if mode == 1:
        total = ops.Div()(total, cast(ops.Max()(sizes, filled(total.shape, 1, i64)), total.dtype))
    empty = ops.Compare("EQ")(sizes, filled(total.shape, 0, i64))
    return cast(ops.Select()(empty, filled(total.shape, 0, total.dtype), total), c.dtype), *saved


def _maxima(total: Node, rows: Node, bag: Node, counts: Node, indices: Node) -> Node:
    """The row of the table that each element of `total` was first found in; 0 for bags without one."""
    (count,) = indices.shape
    is_maximum = ops.Compare("EQ")(rows, ops.Take(0)(total, bag))
    last = filled(rows.shape, count, i64)
    places = ops.Select()(is_maximum, ops.iota(rows.shape, 0), last)
    first = write_rows(filled(total.shape, count, i64), 0, bag, places, "min")
    # a NaN maximum equals no element
    is_inside = ops.And()(
        ops.Compare("LT")(first, filled(first.shape, count, i64)),
        expand(ops.expand_dims(ops.Compare("GT")(counts, filled(counts.shape, 0, i64)), 1), first.shape),
    )
    zeros = filled(first.shape, 0, i64)
    rows_read = ops.Take(0)(cast(indices, i64), ops.Select()(is_inside, first, zeros))
    return ops.Select()(is_inside, rows_read, zeros)


def _pitch(starts: Node) -> int | None:
    """n where `starts` are 0, n, 2n, ..., as for bags that are the rows of a matrix; else None."""
    if isinstance(starts.op, ops.Iota):
        return 1
    if not (isinstance(starts.op, ops.Mul) and isinstance(starts.inputs[0].op, ops.Iota)):
        return None
    step = starts.inputs[1]
    while step.op.rearranges and len(step.inputs) == 1:
        (step,) = step.inputs
    return int(step.op.value) if isinstance(step.op, Const) else None
