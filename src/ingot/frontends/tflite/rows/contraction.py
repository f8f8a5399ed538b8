"""Products of matrices."""

from __future__ import annotations

from ingot import ops
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.tflite.call import Call, Table
from ingot.ir.node import Node

row = Table()


def rows_of(c: Call) -> Node:
    """x of a fully connected layer as [rows, K]."""
    x, k = c.x(0), c.x(1).shape[1]
    return ops.reshape(x, (-1, k), c.loc)


def unflattened(c: Call, y: Node) -> Node:
    """y[rows, N] in x's own sizes, where these are kept."""
    return ops.reshape(y, (*c.x(0).shape[:-1], y.shape[-1]), c.loc) if c.flag("keep_num_dims") else y


@row("FULLY_CONNECTED")
def fully_connected(c: Call) -> Node:
    if c.int("weights_format"):
        raise Unsupported("shuffled weights")
    bias = c.x(2) if c.has(2) else None
    return c.activation(unflattened(c, ops.linear(rows_of(c), c.x(1), bias, c.loc)))


@row("BATCH_MATMUL")
def batch_matmul(c: Call) -> Node:
    a, b = sides(c)
    return ops.MatMul()(a, b, loc=c.loc)


def sides(c: Call) -> tuple[Node, Node]:
    """Both factors, transposed where the op says so."""
    a, b = c.x(0), c.x(1)
    return (
        ops.swap_axes(a, -1, -2, c.loc) if c.flag("adj_x") else a,
        ops.swap_axes(b, -1, -2, c.loc) if c.flag("adj_y") else b,
    )


@row("EMBEDDING_LOOKUP", moves=True)
def embedding_lookup(c: Call) -> Node:
    # the indices come first
    return ops.Take(0)(c.x(1), c.x(0), loc=c.loc)
