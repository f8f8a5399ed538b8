"""Gathers and scatters."""

from __future__ import annotations

from ingot import ops
from ingot.frontends.shared.composites import movement
from ingot.frontends.shared.composites.movement import normal_axis
from ingot.frontends.shared.composites.segments import reduce_segments, segment_count
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.tflite.call import Call, Table
from ingot.ir import types as T
from ingot.ir.dims import dim_min
from ingot.ir.node import Node

row = Table()


@row("GATHER", is_movement=True)
def gather(c: Call) -> Node:
    x, at = c.x(0), c.x(1)
    batch = c.int("batch_dims")
    batch = batch + len(at.shape) if batch < 0 else batch
    axis = normal_axis(c.int("axis"), len(x.shape))
    return movement.gather(x, at, axis, batch)


@row("GATHER_ND", is_movement=True)
def gather_nd(c: Call) -> Node:
    return ops.GatherND()(c.x(0), c.x(1))


@row("SCATTER_ND", takes_stored=True)
def scatter_nd(c: Call) -> Node:
    """Updates added to zeros. Operands: indices, updates, the result's sizes."""
    zeros = ops.full(c.dims(2), 0, c.x(1).dtype)
    return ops.ScatterND("add")(zeros, c.x(0), c.x(1))


@row("ONE_HOT", takes_stored=True)
def one_hot(c: Call) -> Node:
    """Operands: indices, depth, the value at an index, that elsewhere."""
    (depth,) = c.dims(1)
    return movement.one_hot(c.x(0), depth, normal_axis(c.int("axis", -1), c.x(0).type.rank + 1), c.x(2), c.x(3))


@row("TOPK_V2", is_movement=True)
def top_k(c: Call) -> tuple[Node, Node]:
    (k,) = c.dims(1)
    values, at = ops.TopK(k, len(c.x().shape) - 1)(c.x()).results
    return values, ops.cast(at, c.type(1))


@row("REVERSE_SEQUENCE", is_movement=True)
def reverse_sequence(c: Call) -> Node:
    axis, batch = (normal_axis(c.int(f"{n}_dim"), len(c.x().shape)) for n in ("seq", "batch"))
    return movement.reverse_sequence(c.x(0), c.x(1), axis, batch)


@row("MATRIX_DIAG", takes_stored=True)
def matrix_diag(c: Call) -> Node:
    x = c.x()
    n = x.shape[-1]
    shape = (*x.shape, n)
    a, b = (ops.iota(shape, len(shape) - i, T.i32) for i in (1, 2))
    return ops.where(ops.compare("EQ", a, b), ops.expand_dims(x, -1), 0)


@row("MATRIX_SET_DIAG", takes_stored=True)
def matrix_set_diag(c: Call) -> Node:
    x = c.x(0)
    *batch, rows, columns = x.shape
    count = dim_min(rows, columns)
    diagonal = movement.with_shape(c.x(1), (*batch, count))
    values = ops.pad(diagonal, (0,) * len(diagonal.shape), (*(0 for _ in batch), rows - count))
    a, b = (ops.iota(x.shape, len(x.shape) - i, T.i32) for i in (1, 2))
    return ops.where(ops.compare("EQ", a, b), ops.expand_dims(values, -1), x)


@row("SPARSE_TO_DENSE", takes_stored=True)
def sparse_to_dense(c: Call) -> Node:
    """Operands: indices, the result's sizes, values, that elsewhere."""
    return movement.to_dense(c.x(0), c.dims(1), c.x(2), c.x(3))


@row(*(f"UNSORTED_SEGMENT_{kind}" for kind in ("SUM", "PROD", "MAX", "MIN")))
def unsorted_segment(c: Call) -> Node:
    """Operands: x, segment ids for its leading axes, the number of segments."""
    kind = c.op.name.removeprefix("UNSORTED_SEGMENT_").title()
    (count,) = c.dims(2)
    return reduce_segments(kind, c.x(0), c.x(1), count)


@row("WHERE", takes_stored=True)
def where(c: Call) -> Node:
    return ops.cast(c.importer.computed_sizes.places(c.x(0)), c.type())


@row("UNIQUE", takes_stored=True)
def unique(c: Call) -> tuple[Node, Node]:
    values, places, _ = c.importer.computed_sizes.unique(c.x(0))
    return values, ops.cast(places, c.type(1))


@row("SEGMENT_SUM")
def segment_sum(c: Call) -> Node:
    """Sums of the rows of each segment; segment ids are sorted, so the last one determines their number."""
    return reduce_segments("Sum", c.x(0), c.x(1), segment_count(c.importer.computed_sizes, c.x(1)))


@row("BUCKETIZE")
def bucketize(c: Call) -> Node:
    return movement.buckets_of(c.x(), c.floats("boundaries"))


@row("HASHTABLE_LOOKUP")
def hashtable_lookup(c: Call) -> tuple[Node, Node]:
    """Rows of a table by ascending keys, zeros for a missing key; and a mask of the keys that exist."""
    queries, keys, table = ops.expand_dims(c.x(0), -1), c.x(1), c.x(2)
    is_hit = ops.compare("EQ", queries, keys)
    is_present = ops.reduce("or", is_hit, -1)
    rows = ops.Take(0)(table, ops.arg_reduce("max", ops.cast(is_hit, T.i32), -1))
    wide = ops.reshape(is_present, (*is_present.shape, *(1,) * (rows.type.rank - is_present.type.rank)))
    return ops.where(wide, rows, 0), ops.cast(is_present, c.type(1))


@row("EMBEDDING_LOOKUP_SPARSE")
def embedding_lookup_sparse(c: Call) -> Node:
    """Weighted rows of a table (operand 4), added or averaged over the last axis of a sparse tensor of ids. Operands:
    ids, their positions, the sparse tensor's sizes, weights."""
    ids, at, weights, table = c.x(0), c.x(1), c.x(3), c.x(4)
    sizes, kind = c.dims(2)[:-1], c.int("combiner")
    at = ops.slice_axis(at, 1, 0, len(sizes))
    wide = ops.reshape(weights, (weights.shape[0], *(1,) * (table.type.rank - 1)))

    def summed(x: Node) -> Node:
        return ops.ScatterND("add")(ops.full((*sizes, *x.shape[1:]), 0, x.dtype), at, x)

    total = summed(ops.mul(ops.Take(0)(table, ids), wide))
    if kind == 0:
        return total
    if kind not in (1, 2):
        raise Unsupported(f"combiner {kind}")
    norm = summed(wide) if kind == 1 else ops.Sqrt()(summed(ops.mul(wide, wide)))
    return ops.where(ops.compare("EQ", norm, 0), total, ops.div(total, norm))
