"""Average pools and 1x1 convolutions change places where that is less work."""

from __future__ import annotations

import numpy as np
import pytest

from ingot import ops
from ingot.ir.dims import symbol
from ingot.ir.node import Graph, Node, const
from ingot.ops.core.base import Pairs
from ingot.passes.model.linear_order import order_linear
from tests.passes.check import arg, graph, same_values

RNG = np.random.default_rng(0)
NONE: Pairs = ((0, 0), (0, 0))
ONES: Pairs = ((1, 1), (1, 1))


def conv(x: Node, out_channels: int, window: int = 1, groups: int = 1, stride: int = 1) -> Node:
    w = const(RNG.normal(size=(out_channels, int(x.shape[1]) // groups, window, window)).astype(np.float32))  # type: ignore[arg-type]
    return ops.Conv((stride, stride), NONE, (1, 1), groups)(x, w)


def shifted(x: Node) -> Node:
    b = const(RNG.normal(size=x.shape[1]).astype(np.float32))  # type: ignore[arg-type]
    return ops.Add()(x, ops.BroadcastInDim(x.shape, (1,))(b))


def pool(x: Node, window: int, stride: int, padding: Pairs = NONE, **options: object) -> Node:
    return ops.AvgPool((window,) * 2, (stride,) * 2, padding, (1, 1), **options)(x)  # type: ignore[arg-type]


def order(g: Graph) -> str:
    """c: convolution, p: pool, in the order in which they run."""
    names = {ops.Conv: "c", ops.AvgPool: "p", ops.AdaptiveAvgPool: "p"}
    return "".join(names[type(n.op)] for n in g.nodes() if type(n.op) in names)


X = arg("x", 2, 16, 9, 10)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("bias", [False, True])
def test_pool_with_stride_comes_first(bias: bool, groups: int) -> None:
    y = conv(X, 64, groups=groups)
    g = graph(ops.Relu()(pool(shifted(y) if bias else y, 2, 2)))
    after = order_linear(g)
    assert order(g) == "cp" and order(after) == "pc"
    same_values(g, after, 1e-5)


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("padding", [NONE, ONES, ((0, 1), (1, 0))])
def test_pool_without_stride_comes_behind_fewer_channels(padding: Pairs, include: bool) -> None:
    g = graph(ops.Relu()(shifted(conv(pool(X, 3, 1, padding, count_include_pad=include), 6))))
    after = order_linear(g)
    assert order(g) == "pc" and order(after) == "cp"
    same_values(g, after, 1e-5)


@pytest.mark.parametrize("ceil", [False, True])
@pytest.mark.parametrize("divisor", [None, 7])
def test_padded_pools_come_first_without_a_constant_between(divisor: int | None, ceil: bool) -> None:
    options = {"ceil_mode": ceil, "divisor": divisor}
    g = graph(pool(conv(X, 64), 3, 2, ONES, **options))
    after = order_linear(g)
    assert order(after) == "pc"
    same_values(g, after, 1e-5)
    padded = graph(pool(shifted(conv(X, 64)), 3, 2, ONES, **options))
    assert order_linear(padded) == padded


def test_adaptive_pools_and_sizes_that_vary() -> None:
    x = arg("x", symbol("n"), 16, symbol("h"), symbol("w"))
    g = graph(ops.AdaptiveAvgPool((1, 1))(shifted(conv(x, 40))))
    after = order_linear(g)
    assert order(after) == "pc"
    same_values(g, after, 1e-5, n=2, h=5, w=7)
    g = graph(conv(pool(x, 3, 1, ONES), 4))
    after = order_linear(g)
    assert order(after) == "cp"
    same_values(g, after, 1e-5, n=2, h=5, w=7)


def test_what_something_else_reads_stays() -> None:
    y = conv(X, 64)
    for g in (graph(pool(y, 2, 2), y), graph(pool(y, 2, 2), ops.Relu()(y))):
        assert order_linear(g) == g


@pytest.mark.parametrize(
    "y",
    [
        pool(ops.Relu()(conv(X, 64)), 2, 2),
        pool(conv(X, 64, window=3), 2, 2),
        pool(conv(X, 64, stride=2), 2, 2),
        ops.MaxPool((2, 2), (2, 2), NONE, (1, 1))(conv(X, 64)),
        conv(pool(X, 2, 2), 6),  # fewer positions already
        conv(pool(X, 3, 1), 16),  # as many channels
    ],
    ids=["relu", "window", "stride", "max", "strided", "wide"],
)
def test_others_stay(y: Node) -> None:
    g = graph(y)
    assert order_linear(g) == g
