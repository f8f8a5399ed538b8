"""Ragged tensors: the concatenated values of all rows, and the offset of each row."""

from __future__ import annotations

from collections.abc import Sequence

from ingot import ops
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.shared.sizes import require_equal
from ingot.frontends.tensorflow.values import Call, Result, Table
from ingot.ir.dims import DimLike
from ingot.ir.node import Node
from ingot.ir.types import i64
from ingot.support.limits import max_run_time_size

row = Table()


@row("RaggedTensorToTensor")
def to_tensor(c: Call, shape: Node, values: Node, default: Node, *partitions: Node) -> Node:
    """Rows padded with the default to one length: the requested one, or that of the longest row at run time. The
    innermost of several levels is densified first."""
    levels, inner = _levels(c, partitions), values.shape[1:]
    rows, *rest = c.sizes(shape) if shape.shape else (-1,) * (1 + len(levels) + len(inner))
    widths, tail = rest[: len(levels)], rest[len(levels) :]
    require_equal(
        [d if requested == -1 else requested for d, requested in zip(inner, tail, strict=True)], inner, "inner sizes"
    )
    if rows != -1:
        starts, lengths = levels[0]
        missing_rows = (rows - lengths.shape[0],)
        levels[0] = ops.pad(starts, (0,), missing_rows), ops.pad(lengths, (0,), missing_rows)
    for (starts, lengths), width in zip(reversed(levels), reversed(widths), strict=True):
        columns = _longest(c, lengths, values.shape[0]) if width == -1 else width
        values = _dense(values, default, starts, lengths, columns)
    return values


def _levels(c: Call, partitions: Sequence[Node]) -> list[tuple[Node, Node]]:
    """Levels, outermost first: the offset of each row in the rows or values of the next level, and its length."""
    kinds = c.texts("row_partition_types")
    if set(kinds) == {"ROW_SPLITS"}:
        return [_rows(splits) for splits in partitions]
    if kinds[0] != "FIRST_DIM_SIZE" or set(kinds[1:]) != {"VALUE_ROWIDS"}:
        raise Unsupported(f"of rows told by {', '.join(kinds)}")
    count, levels = c.size(partitions[0]), list[tuple[Node, Node]]()
    for owners in partitions[1:]:
        ones, at = ops.full(owners.shape, 1, i64), ops.expand_dims(ops.cast(owners, i64), 1)
        lengths = ops.ScatterND("add")(ops.full((count,), 0, i64), at, ones)
        levels.append((ops.sub(ops.cumulative("sum", lengths, 0), lengths), lengths))
        (count,) = owners.shape
    return levels


def _rows(splits: Node) -> tuple[Node, Node]:
    """The offset and the length of each row."""
    splits = ops.cast(splits, i64)
    starts = ops.slice_axis(splits, 0, 0, splits.shape[0] - 1)
    return starts, ops.sub(ops.slice_axis(splits, 0, 1), starts)


def _longest(c: Call, lengths: Node, max_length: DimLike) -> DimLike:
    if not c.walk.may_find((lengths,)):
        raise Unsupported("rows as long as the longest, which only the run knows, in a loop or branch")
    longest = ops.reduce_max(ops.concat([ops.full((1,), 0, i64), lengths]))
    return c.walk.computed_sizes.size(longest, max_length, "row")


def _dense(values: Node, default: Node, starts: Node, lengths: Node, width: DimLike) -> Node:
    column = ops.arange(width)
    is_inside = ops.compare("LT", column, ops.expand_dims(lengths, 1))
    places = ops.where(is_inside, ops.add(ops.expand_dims(starts, 1), column), 0)
    is_valid = ops.reshape(is_inside, (*is_inside.shape, *(1 for _ in values.shape[1:])))
    return ops.where(is_valid, ops.Take(0)(values, places), default)


def _owners(lengths: Node, total: DimLike) -> tuple[Node, Node]:
    """For each value, its row and its position in that row: i64[total]."""
    row_of = ops.repeat_indices(lengths, total)
    starts = ops.sub(ops.cumulative("sum", lengths, 0), lengths)
    return row_of, ops.sub(ops.arange(total), ops.Take(0)(starts, row_of))


@row("RaggedGather", results=("output_nested_splits", "output_dense_values"))
def gather(c: Call, *operands: Node) -> Result:
    """The rows at the given indices, concatenated."""
    *nested, values, rows = operands
    if len(nested) != 1 or rows.type.rank != 1:
        raise Unsupported(f"of {len(nested)} levels by indices of {rows.type.rank} axes: one by a vector is read")
    if not c.walk.may_find((*nested, rows)):
        raise Unsupported("rows whose number of values only the run knows, in a loop or branch")
    starts, lengths = (ops.Take(0)(v, ops.cast(rows, i64)) for v in _rows(nested[0]))
    ends = ops.cumulative("sum", lengths, 0)
    total = c.walk.computed_sizes.size(ops.reduce_sum(lengths), max_run_time_size(), "gathered")
    row_of, column = _owners(lengths, total)
    splits = ops.cast(ops.concat([ops.full((1,), 0, i64), ends]), nested[0].dtype)
    return [splits, ops.Take(0)(values, ops.add(ops.Take(0)(starts, row_of), column))]


@row("RaggedTensorToSparse", results=("sparse_indices", "sparse_values", "sparse_dense_shape"))
def to_sparse(c: Call, *operands: Node) -> Result:
    *nested, values = operands
    if len(nested) != 1 or values.type.rank != 1:
        raise Unsupported(f"of {len(nested)} levels, values of {values.type.rank} axes: one level of numbers is read")
    lengths = _rows(nested[0])[1]
    sizes = [ops.scalar(d, i64) for d in (lengths.shape[0], _longest(c, lengths, values.shape[0]))]
    return [ops.stack(list(_owners(lengths, values.shape[0])), 1), values, ops.stack(sizes)]
