"""Ragged tensors: the values of all rows, one row after the other, and where each row begins."""

from __future__ import annotations

from ingot import ops
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.shared.sizes import require_equal
from ingot.frontends.tensorflow.values import Call, Table
from ingot.ir.node import Node
from ingot.ir.types import i64

row = Table()


@row("RaggedTensorToTensor")
def to_tensor(c: Call, shape: Node, values: Node, default: Node, *partitions: Node) -> Node:
    """Rows of one length, filled up with the default: of the length that is asked for, or of the longest that the run
    finds."""
    if c.texts("row_partition_types") != ["ROW_SPLITS"]:
        raise Unsupported(f"of rows told by {', '.join(c.texts('row_partition_types'))}: one ROW_SPLITS is read")
    splits = ops.cast(partitions[0], i64)
    first, count = ops.slice_axis(splits, 0, 0, splits.shape[0] - 1), splits.shape[0] - 1
    lengths = ops.sub(ops.slice_axis(splits, 0, 1), first)
    inner = values.shape[1:]
    rows, width, *rest = c.sizes(shape) if shape.shape else (-1,) * (2 + len(inner))
    require_equal([d if asked == -1 else asked for d, asked in zip(inner, rest, strict=True)], inner, "inner sizes")
    if rows != -1:
        first, lengths = (ops.pad(v, (0,), (rows - count,)) for v in (first, lengths))
    if width == -1:
        if not c.walk.may_find((splits,)):
            raise Unsupported("rows as long as the longest, which only the run knows, in a loop or branch")
        longest = ops.reduce_max(ops.concat([ops.full((1,), 0, i64), lengths]))
        width = c.walk.found.size(longest, values.shape[0], "row")
    column = ops.arange(width)
    inside = ops.compare("LT", column, ops.expand_dims(lengths, 1))
    places = ops.where(inside, ops.add(ops.expand_dims(first, 1), column), 0)
    shown = ops.reshape(inside, (*inside.shape, *(1 for _ in inner)))
    return ops.where(shown, ops.Take(0)(values, places), default)
