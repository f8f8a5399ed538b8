"""Products of matrices."""

from __future__ import annotations

import numpy as np

from ingot import ops
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.tflite.call import Call, Table, holds_levels
from ingot.frontends.tflite.rows.hybrid import is_hybrid, rounded, weights
from ingot.ir import types as T
from ingot.ir.node import Node, const

row = Table()


def rows_of(c: Call) -> Node:
    """x of a fully connected layer as [rows, K]."""
    x, k = c.x(0), c.x(1).shape[1]
    return ops.reshape(x, (-1, k))


def unflattened(c: Call, y: Node) -> Node:
    """y[rows, N] in x's own sizes, where these are kept."""
    return ops.reshape(y, (*c.x(0).shape[:-1], y.shape[-1])) if c.flag("keep_num_dims") else y


@row("FULLY_CONNECTED")
def fully_connected(c: Call) -> Node:
    if c.int("weights_format"):
        raise Unsupported("shuffled weights")
    bias = c.x(2) if c.has(2) else None
    if not is_hybrid(c):
        return c.activation(unflattened(c, ops.linear(rows_of(c), c.x(1), bias)))
    levels, scale = rounded(rows_of(c), c.flag("asymmetric"))
    kernel, scales = weights(c)
    y = ops.mul(ops.linear(levels, kernel), ops.mul(scale, scales))
    return c.activation(unflattened(c, y if bias is None else ops.add(y, bias)))


@row("BATCH_MATMUL")
def batch_matmul(c: Call) -> Node:
    if is_hybrid(c):
        raise Unsupported("of numbers and levels")
    a, b = sides(c)
    return ops.MatMul()(a, b)


def sides(c: Call) -> tuple[Node, Node]:
    """Both factors, transposed where the op says so."""
    a, b = c.x(0), c.x(1)
    return (
        ops.swap_axes(a, -1, -2) if c.flag("adj_x") else a,
        ops.swap_axes(b, -1, -2) if c.flag("adj_y") else b,
    )


@row("EMBEDDING_LOOKUP", is_movement=True)
def embedding_lookup(c: Call) -> Node:
    # the indices come first
    rows = ops.Take(0)(c.x(1), c.x(0))
    if not holds_levels(c.tensors[1]) or not c.type().is_float:
        return rows
    q = c.levels(1)
    if len(q.scales) > 1 and q.axis != 0:
        raise Unsupported(f"a table with scales along axis {q.axis}")
    scales = const(np.array(q.scales, np.float32))
    scale = ops.Take(0)(scales, c.x(0)) if len(q.scales) > 1 else ops.reshape(scales, ())
    scale = ops.reshape(scale, (*scale.shape, *(1,) * (len(rows.shape) - len(scale.shape))))
    return ops.mul(ops.cast(ops.sub(ops.cast(rows, T.i32), q.zero), T.f32), scale)
