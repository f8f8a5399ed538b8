"""Gather and scatter."""

from __future__ import annotations

import numpy as np

from ingot import ops
from ingot.frontends.onnx.call import Call, Result, onnx_op
from ingot.frontends.onnx.rows.common import iota
from ingot.frontends.onnx.tensors import Unsupported
from ingot.ir import types as T
from ingot.ir.node import Const, const


@onnx_op("Gather")
def gather(c: Call) -> Result:
    return ops.Take(c.axis("axis", 0, c.rank()))(c.x(0), c.x(1))


@onnx_op("GatherElements", since=11)
def gather_elements(c: Call) -> Result:
    return ops.GatherElements(c.axis("axis", 0, c.rank()))(c.x(0), c.x(1))


@onnx_op("GatherND", since=11)
@onnx_op("GatherND", domain="com.microsoft")
def gather_nd(c: Call) -> Result:
    return ops.GatherND(c.int("batch_dims", 0))(c.x(0), c.x(1))


@onnx_op("Scatter", since=9)
@onnx_op("ScatterElements", since=11)
def scatter_elements(c: Call) -> Result:
    axis = c.axis("axis", 0, c.rank())
    return ops.ScatterElements(axis, c.str("reduction", "none"))(c.x(0), c.x(1), c.x(2))


@onnx_op("ScatterND", since=11)
def scatter_nd(c: Call) -> Result:
    return ops.ScatterND(c.str("reduction", "none"))(c.x(0), c.x(1), c.x(2))


@onnx_op("TensorScatter", since=24)
def tensor_scatter(c: Call) -> Result:
    """A KV cache update: `update` goes into `past` along `axis` from each batch's write index."""
    past, update = c.x(0), c.x(1)
    rank = c.rank()
    axis = c.axis("axis", -2, rank)
    shape = update.shape
    at = ops.Iota(T.TensorType(T.i64, shape), axis)()
    if c.has(2):
        first = ops.reshape(ops.cast(c.x(2), T.i64), (shape[0], *(1,) * (rank - 1)))
        at = ops.add(at, first)
    if c.str("mode", "linear") == "circular":
        at = ops.floor_mod(at, past.shape[axis])
    return ops.ScatterElements(axis, "none")(past, at, update)


@onnx_op("Compress", since=9)
def compress(c: Call) -> Result:
    keep = np.flatnonzero(c.array(1)).astype(np.int64)
    if c.has_attr("axis"):
        return ops.Take(c.axis("axis", None, c.rank()))(c.x(), const(keep))
    return ops.Take(0)(ops.reshape(c.x(), (c.type().size,)), const(keep))


def _data(c: Call) -> np.ndarray:
    """A tensor whose values decide the size of the result."""
    try:
        return c.array(0)
    except Unsupported as e:
        raise Unsupported(f"the size of its result depends on the data: {e}") from None


@onnx_op("NonZero")
def nonzero(c: Call) -> Result:
    x = c.x()
    if isinstance(x.op, ops.BroadcastInDim) and isinstance(x.inputs[0].op, Const) and x.inputs[0].op.value.size == 1:
        # one value everywhere: all places, or none
        count = x.type.size if x.inputs[0].op.value.any() else 0
        places = [ops.reshape(iota(x.shape, axis), (1, -1)) for axis in range(len(x.shape))]
        return ops.slice_axis(ops.concat(places, 0), 1, 0, count) if places else ops.full((0, count), 0, T.i64)
    return const(np.asarray(np.nonzero(_data(c)), np.int64))


@onnx_op("Unique", since=11)
def unique(c: Call) -> Result:
    x = _data(c)
    axis = c.axis("axis", None, c.rank()) if c.has_attr("axis") else None
    values, first, inverse, counts = np.unique(x, True, True, True, axis=axis)
    inverse = inverse.reshape(-1)
    if not c.flag("sorted", 1):
        order = np.argsort(first, kind="stable")
        rank = np.argsort(order, kind="stable")
        values, first, counts = np.take(values, order, axis=axis or 0), first[order], counts[order]
        inverse = rank[inverse]
    return [const(values), const(first, np.int64), const(inverse, np.int64), const(counts, np.int64)]
