"""Small float models as graphs."""

from __future__ import annotations

import numpy as np

from ingot import ops
from ingot.ir.dims import symbol
from ingot.ir.node import Graph, Input, Node, Project, const
from ingot.ir.types import TensorType, f32

ONE, NONE = (1, 1), ((0, 0), (0, 0))


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def vector(values: np.ndarray, axis: int, like: Node) -> Node:
    return ops.BroadcastInDim(like.shape, (axis,))(const(values))


def mlp(width: int = 33, inner: int = 70, out_features: int = 5) -> Graph:
    """Two products of one value, added, and one behind them. Channels of the input differ by a factor of 50."""
    n = symbol("n")
    x = Input("x", TensorType(f32, (n, width)))()
    a = ops.MatMul()(x, const(normal(1, width, inner)), loc="first")
    b = ops.DotGeneral(contract=((1,), (1,)))(x, const(normal(2, inner, width)), loc="second")
    h = ops.Relu()(ops.add(ops.add(a, b), vector(normal(3, inner), 1, a), loc="sum"), loc="relu")
    y = ops.MatMul()(h, const(normal(4, inner, out_features)), loc="last")
    return Graph((x,), (y,), ("y",))


def cnn() -> Graph:
    """A convolution, a depthwise one whose channels have very unlike ranges, one in two groups, a matrix whose value is
    read by an addition, too."""
    n = symbol("n")
    x = Input("x", TensorType(f32, (n, 3, 9, 8)))()
    pads = ((1, 1), (1, 1))
    spread = np.geomspace(0.01, 10, 8, dtype=np.float32)
    a = ops.Relu()(ops.Conv(ONE, pads, ONE)(x, const(normal(1, 8, 3, 3, 3) * spread[:, None, None, None]), loc="conv"))
    b = ops.Relu()(ops.Conv((2, 2), pads, ONE, 8)(a, const(normal(2, 8, 1, 3, 3)), loc="depthwise"))
    c = ops.Relu()(ops.Conv(ONE, NONE, ONE, 2)(b, const(normal(3, 6, 4, 2, 2)), loc="grouped"))
    h = ops.mul(ops.reshape(c, (n, 6 * 4 * 3)), 0.5)
    y = ops.add(ops.MatMul()(h, const(normal(4, 72, 4)), loc="matrix"), ops.slice_axis(h, 1, 0, 4))
    return Graph((x,), (y,), ("y",))


def recurrent() -> Graph:
    """An LSTM in both directions, a GRU behind it, which says where as its neighbour does, and a product."""
    n = symbol("n")
    x = Input("x", TensorType(f32, (6, n, 7)))()
    weights = [const(0.5 * normal(i, *shape)) for i, shape in enumerate(((2, 36, 7), (2, 36, 9), (2, 72)))]
    start = ops.BroadcastInDim((2, n, 9), ())(ops.scalar(0.0, f32))
    bidirectional = Project(0)(ops.LSTM(9, "bidirectional")(x, *weights, start, start, loc="layers"))
    concatenated = ops.reshape(ops.transpose(bidirectional, (0, 2, 1, 3)), (6, n, 18))
    weights = [const(0.5 * normal(i, *shape)) for i, shape in enumerate(((1, 15, 18), (1, 15, 5), (1, 30)))]
    first = ops.BroadcastInDim((1, n, 5), ())(ops.scalar(0.1, f32))
    h = Project(0)(ops.GRU(5, linear_before_reset=True)(concatenated, *weights, first, loc="layers"))
    y = ops.MatMul()(ops.reshape(h, (6, n, 5)), const(normal(4, 5, 3)), loc="matrix")
    return Graph((x,), (y,), ("y",))
