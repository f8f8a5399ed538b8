"""Reading and writing by indices."""

from __future__ import annotations

import numpy as np

from ingot import ops
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.tflite.call import Call, Table
from ingot.frontends.tflite.rows.shape import axis_of
from ingot.ir import types as T
from ingot.ir.node import Node, const
from ingot.support.limits import max_run_time_size

row = Table()


@row("GATHER", moves=True)
def gather(c: Call) -> Node:
    x, at = c.x(0), c.x(1)
    batch = c.int("batch_dims")
    batch = batch + len(at.shape) if batch < 0 else batch
    axis = axis_of(c.int("axis"), len(x.shape))
    if batch == 0:
        return ops.Take(axis)(x, at, loc=c.loc)
    if batch > axis or batch > len(at.shape):
        raise Unsupported(f"{batch} batch dimensions before axis {axis}")
    # the axis behind the batch ones, places in a row, each of which reads all that is behind
    order = (*range(batch), axis, *(i for i in range(batch, len(x.shape)) if i != axis))
    moved = ops.transpose(x, order, c.loc)
    inner = moved.shape[batch + 1 :]
    flat = ops.reshape(at, (*at.shape[:batch], -1, 1), c.loc)
    found = ops.GatherND(batch)(moved, flat, loc=c.loc)
    found = ops.reshape(found, (*at.shape, *inner), c.loc)
    before = axis - batch
    rank, places = len(found.shape), len(at.shape) - batch
    lead, index = tuple(range(batch)), tuple(range(batch, batch + places))
    rest = tuple(range(batch + places, rank))
    return ops.transpose(found, (*lead, *rest[:before], *index, *rest[before:]), c.loc)


@row("GATHER_ND", moves=True)
def gather_nd(c: Call) -> Node:
    return ops.GatherND()(c.x(0), c.x(1), loc=c.loc)


@row("SCATTER_ND", stored=True)
def scatter_nd(c: Call) -> Node:
    """Sums at the places of zeros. Operands: indices, updates, the result's sizes."""
    zeros = ops.full(c.dims(2), 0, c.x(1).dtype)
    return ops.ScatterND("add")(zeros, c.x(0), c.x(1), loc=c.loc)


@row("ONE_HOT", stored=True)
def one_hot(c: Call) -> Node:
    """Operands: indices, depth, the value at an index, that elsewhere."""
    (depth,) = c.dims(1)
    at, rank = c.x(0), len(c.x(0).shape) + 1
    axis = axis_of(c.int("axis", -1), rank)
    shape = (*at.shape[:axis], depth, *at.shape[axis:])
    places = ops.Iota(T.TensorType(at.dtype, shape), axis)()
    hit = ops.compare("EQ", places, ops.expand_dims(at, axis))
    return ops.where(hit, ops.broadcast_to(c.x(2), shape), ops.broadcast_to(c.x(3), shape), c.loc)


@row("TOPK_V2", moves=True)
def top_k(c: Call) -> tuple[Node, Node]:
    (k,) = c.dims(1)
    values, at = ops.TopK(k, len(c.x().shape) - 1)(c.x(), loc=c.loc).results
    return values, ops.cast(at, c.type(1))


@row("REVERSE_SEQUENCE", moves=True)
def reverse_sequence(c: Call) -> Node:
    """Along one axis the first elements reversed, as many as a length says for each place of another."""
    x, lengths = c.x(0), ops.cast(c.x(1), T.i64)
    along, batch = (axis_of(c.int(f"{n}_dim"), len(x.shape)) for n in ("seq", "batch"))
    places = ops.Iota(T.TensorType(T.i64, x.shape), along)()
    limit = ops.BroadcastInDim(x.shape, (batch,))(lengths)
    mirrored = ops.sub(ops.sub(limit, 1), places)
    at = ops.where(ops.compare("LT", places, limit), mirrored, places)
    return ops.GatherElements(along)(x, at, loc=c.loc)


@row("MATRIX_DIAG", stored=True)
def matrix_diag(c: Call) -> Node:
    x = c.x()
    n = x.shape[-1]
    shape = (*x.shape, n)
    a, b = (ops.Iota(T.TensorType(T.i32, shape), len(shape) - i)() for i in (1, 2))
    return ops.where(ops.compare("EQ", a, b), ops.expand_dims(x, -1), 0, c.loc)


@row("MATRIX_SET_DIAG", stored=True)
def matrix_set_diag(c: Call) -> Node:
    x, diagonal = c.x(0), c.x(1)
    a, b = (ops.Iota(T.TensorType(T.i32, x.shape), len(x.shape) - i)() for i in (1, 2))
    wide = diagonal if x.shape[-2] == diagonal.shape[-1] else None
    along = ops.expand_dims(diagonal, -1) if wide is not None else ops.expand_dims(diagonal, -2)
    return ops.where(ops.compare("EQ", a, b), along, x, c.loc)


@row("SPARSE_TO_DENSE", stored=True)
def sparse_to_dense(c: Call) -> Node:
    """Operands: indices, the result's sizes, values, that elsewhere."""
    shape, at, values = c.dims(1), c.x(0), c.x(2)
    at = ops.reshape(at, (1, 1) if not at.shape else (-1, 1)) if len(at.shape) < 2 else at
    values = ops.broadcast_to(values, (at.shape[0],))
    base = ops.broadcast_to(c.x(3), shape)
    return ops.ScatterND()(base, at, values, loc=c.loc)


_SEGMENTS = {"SUM": "add", "PROD": "mul", "MAX": "max", "MIN": "min"}


@row(*(f"UNSORTED_SEGMENT_{kind}" for kind in _SEGMENTS))
def unsorted_segment(c: Call) -> Node:
    """Operands: x, a segment for each of its first axes' places, how many there are."""
    kind = _SEGMENTS[c.op.name.removeprefix("UNSORTED_SEGMENT_")]
    x, at, (count,) = c.x(0), c.x(1), c.dims(2)
    fill = ops.identity_of({"add": "sum", "mul": "prod"}.get(kind, kind), x.dtype)
    if x.dtype.is_float and kind in ("max", "min"):
        fill = -3.4028234663852886e38 if kind == "max" else 3.4028234663852886e38  # the ends of f32
    base = ops.full((count, *x.shape[len(at.shape) :]), fill, x.dtype)
    return ops.ScatterND(kind)(base, ops.expand_dims(at, -1), x, loc=c.loc)


@row("WHERE", stored=True)
def where(c: Call) -> Node:
    return ops.cast(c.importer.found.places(c.x(0)), c.type())


@row("UNIQUE", stored=True)
def unique(c: Call) -> tuple[Node, Node]:
    values, places, _ = c.importer.found.unique(c.x(0))
    return values, ops.cast(places, c.type(1))


@row("SEGMENT_SUM")
def segment_sum(c: Call) -> Node:
    """Of rows that one number, which does not fall, belongs to: as many as the last of these says."""
    x, at = c.x(0), ops.cast(c.x(1), T.i64)
    last = ops.reduce_max(ops.concat([ops.full((1,), -1, T.i64), at]))
    count = c.importer.found.size(ops.add(last, 1), max_run_time_size(), "segments")
    base = ops.full((count, *x.shape[1:]), 0, x.dtype)
    return ops.ScatterND("add")(base, ops.expand_dims(at, -1), x, loc=c.loc)


@row("BUCKETIZE")
def bucketize(c: Call) -> Node:
    """How many of the boundaries are at most each number."""
    edges = const(np.asarray(c.floats("boundaries"), np.float32))
    below = ops.compare("LE", edges, ops.expand_dims(ops.cast(c.x(), T.f32), -1))
    return ops.reduce_sum(ops.cast(below, T.i32), -1, loc=c.loc)


@row("HASHTABLE_LOOKUP")
def hashtable_lookup(c: Call) -> tuple[Node, Node]:
    """Rows of a table by keys that rise, zeros for a key that there is not; and which there are."""
    asked, keys, table = ops.expand_dims(c.x(0), -1), c.x(1), c.x(2)
    hit = ops.compare("EQ", asked, keys)
    there = ops.reduce("or", hit, -1)
    rows = ops.Take(0)(table, ops.arg_reduce("max", ops.cast(hit, T.i32), -1))
    wide = ops.reshape(there, (*there.shape, *(1,) * (rows.type.rank - there.type.rank)))
    return ops.where(wide, rows, 0, c.loc), ops.cast(there, c.type(1))


@row("EMBEDDING_LOOKUP_SPARSE")
def embedding_lookup_sparse(c: Call) -> Node:
    """Weighted rows of a table (operand 4) that are added, or averaged, at the places of a sparse tensor but its last
    axis. Operands: ids, their places, the sparse tensor's sizes, weights."""
    ids, at, weights, table = c.x(0), c.x(1), c.x(3), c.x(4)
    sizes, kind = c.dims(2)[:-1], c.int("combiner")
    at = ops.slice_axis(at, 1, 0, len(sizes))
    wide = ops.reshape(weights, (weights.shape[0], *(1,) * (table.type.rank - 1)))

    def summed(x: Node) -> Node:
        return ops.ScatterND("add")(ops.full((*sizes, *x.shape[1:]), 0, x.dtype), at, x, loc=c.loc)

    total = summed(ops.mul(ops.Take(0)(table, ids), wide))
    if kind == 0:
        return total
    if kind not in (1, 2):
        raise Unsupported(f"combiner {kind}")
    norm = summed(wide) if kind == 1 else ops.Sqrt()(summed(ops.mul(wide, wide)))
    return ops.where(ops.compare("EQ", norm, 0), total, ops.div(total, norm), c.loc)
