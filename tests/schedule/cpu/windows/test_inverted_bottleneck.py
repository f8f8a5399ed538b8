"""Depthwise convolutions over images that their own group widens: against the interpreter."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ingot import ops
from ingot.ir.dims import DimLike, symbol
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input, Node, const
from ingot.ir.types import TensorType, f32
from ingot.ops.group import Group
from ingot.passes.fusion.fuse import fuse
from ingot.schedule.cpu.machine import Machine
from tests.schedule.compiled import MACHINES, check, compile_graph

RNG = np.random.default_rng(5)


def values(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def image(*shape: DimLike) -> Node:
    return Input("x", TensorType(f32, shape))()


def conv(x: Node, weight: np.ndarray, stride: int, groups: int, dilation: int = 1) -> Node:
    none = ((0, 0), (0, 0))
    op = ops.Convolution(
        (stride, stride), none, (1, 1), (dilation, dilation), "NHWC", "HWIO", "NHWC", feature_groups=groups
    )
    return op(x, const(weight))


def relu(x: Node) -> Node:
    return ops.Max()(x, ops.BroadcastInDim(x.shape, ())(ops.scalar(0.0)))


def silu(x: Node) -> Node:
    return ops.mul(x, ops.Logistic()(x))


def shifted(x: Node) -> Node:
    return ops.add(x, ops.BroadcastInDim(x.shape, (3,))(const(values(int(str(x.shape[-1]))))))


def padded(x: Node, low: int, high: int) -> Node:
    return ops.Pad((0, low, low, 0), (0, high, high, 0), (0, 0, 0, 0))(x, ops.scalar(0.0))


def residual(
    x: Node, wide: int, window: int, stride: int, pads: tuple[int, int], act: Callable[[Node], Node], dilation: int = 1
) -> Node:
    widened = act(shifted(conv(x, values(1, 1, int(str(x.shape[-1])), wide), 1, 1)))
    padded_input = padded(widened, *pads) if any(pads) else widened
    return act(shifted(conv(padded_input, values(window, window, 1, wide), stride, wide, dilation)))


def kinds(graph: Graph) -> list[str]:
    return [n.op.kind for n in fuse(graph).nodes() if isinstance(n.op, Group)]


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: f"{m.vector_bits}")
@pytest.mark.parametrize(
    ("height", "width", "narrow", "wide", "window", "stride", "pads", "act"),
    [
        (40, 37, 5, 70, 3, 1, (1, 1), relu),
        (45, 30, 24, 64, 3, 2, (1, 1), silu),
        (38, 38, 9, 51, 5, 2, (1, 2), relu),
        (61, 29, 16, 48, 5, 1, (0, 0), relu),
        (200, 12, 3, 33, 3, 1, (2, 0), silu),
    ],
)
def test_sizes(
    height: int,
    width: int,
    narrow: int,
    wide: int,
    window: int,
    stride: int,
    pads: tuple[int, int],
    act: Callable[[Node], Node],
    machine: Machine,
) -> None:
    x = image(1, height, width, narrow)
    graph = Graph((x,), (residual(x, wide, window, stride, pads, act),))
    assert kinds(graph) == ["inverted_bottleneck"]
    check(graph, (values(1, height, width, narrow),), machine=machine)


def test_dilated() -> None:
    x = image(2, 40, 40, 8)
    graph = Graph((x,), (residual(x, 60, 3, 1, (2, 2), relu, dilation=2),))
    assert kinds(graph) == ["inverted_bottleneck"]
    check(graph, (values(2, 40, 40, 8),))


def test_batches_of_any_size() -> None:
    x = image(symbol("n"), 36, 36, 8)
    graph = Graph((x,), (residual(x, 56, 3, 1, (1, 1), silu),), bounds=(("n", 0, None),))
    assert kinds(graph) == ["inverted_bottleneck"]
    compiled = compile_graph(graph)
    for n in (0, 1, 3):
        xs = values(n, 36, 36, 8)
        (want,) = interpret(graph, (xs,))
        np.testing.assert_allclose(np.asarray(compiled(xs)), want, rtol=0, atol=4e-6 * np.abs(want).max(initial=1.0))


def test_values_that_are_no_numbers() -> None:
    x = values(1, 40, 40, 8)
    x[0, 0, 0, 1], x[0, 39, 5, 0], x[0, 20, 39, 7] = np.nan, np.inf, -np.inf
    node = image(1, 40, 40, 8)
    check(Graph((node,), (residual(node, 64, 3, 1, (1, 1), relu),)), (x,))


def test_what_others_read_is_stored() -> None:
    x = image(1, 40, 40, 8)
    widened = relu(conv(x, values(1, 1, 8, 64), 1, 1))
    graph = Graph((x,), (conv(padded(widened, 1, 1), values(3, 3, 1, 64), 1, 64), ops.Neg()(widened)))
    assert "inverted_bottleneck" not in kinds(graph)
    check(graph, (values(1, 40, 40, 8),))


def test_small_images_stay_in_caches_anyway() -> None:
    x = image(1, 14, 14, 8)
    assert "inverted_bottleneck" not in kinds(Graph((x,), (residual(x, 64, 3, 1, (1, 1), relu),)))
