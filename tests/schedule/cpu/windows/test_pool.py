"""Pools of windows in tiles of outputs, against the interpreter."""

from __future__ import annotations

import numpy as np
import pytest

from ingot import ops
from ingot.debug.build import build
from ingot.ir.dims import DimLike, symbol
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input, Node, const
from ingot.ir.types import DType, TensorType, f32, f64, static_shape
from ingot.ops.core.base import Pairs
from ingot.schedule.cpu.machine import Machine
from tests.schedule.compiled import MACHINES, check, compile_graph, inputs_like
from tests.schedule.cpu.windows.test_inverted_bottleneck import conv, image, kinds, padded, relu, shifted, values

ONES = (1, 1, 1, 1)


def pool(
    x: Node,
    kind: str,
    window: tuple[int, int],
    strides: tuple[int, int],
    padding: Pairs = ((0, 0), (0, 0)),
    dilation: tuple[int, int] = (1, 1),
) -> Node:
    pads = ((0, 0), *padding, (0, 0))
    return ops.ReduceWindow(kind, (1, *window, 1), (1, *strides, 1), pads, (1, *dilation, 1), ONES)(x)


@pytest.mark.sampled(7)
@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: f"{m.vector_bits}")
@pytest.mark.parametrize("kind", ["max", "sum", "min"])
@pytest.mark.parametrize(
    ("window", "strides", "padding", "dilation"),
    [
        ((3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1)),
        ((3, 3), (2, 2), ((1, 1), (1, 1)), (1, 1)),
        ((3, 3), (2, 2), ((0, 2), (0, 1)), (1, 1)),  # ceil mode
        ((2, 2), (2, 2), ((0, 0), (0, 0)), (1, 1)),
        ((5, 2), (1, 3), ((4, 0), (0, 3)), (1, 1)),
        ((3, 3), (1, 2), ((2, 2), (2, 2)), (2, 2)),
        ((2, 9), (1, 1), ((0, 0), (4, 4)), (1, 1)),  # more columns than registers hold
        ((13, 13), (1, 1), ((6, 6), (6, 6)), (1, 1)),
        ((3, 3), (1, 1), ((-1, 0), (1, -2)), (1, 1)),  # cut off
        ((1, 3), (1, 1), ((2, 2), (3, 3)), (1, 1)),  # windows of padding alone
    ],
)
def test_windows(
    window: tuple[int, int],
    strides: tuple[int, int],
    padding: Pairs,
    dilation: tuple[int, int],
    kind: str,
    machine: Machine,
) -> None:
    x = image(2, 11, 14, 37)
    y = pool(x, kind, window, strides, padding, dilation)
    residual = ops.mul(shifted(y), 0.5)
    xs = values(2, 11, 14, 37)
    check(Graph((x,), (y, residual)), [xs], machine=machine)
    xs[0, 3, 4, 5], xs[1, 0, 0, 30], xs[1, 10, 13, 36], xs[0, 0, 7, 2] = np.nan, np.inf, -np.inf, np.nan
    check(Graph((x,), (residual,)), [xs], machine=machine)


@pytest.mark.parametrize(("window", "stride", "pad"), [(3, 2, 1), (3, 1, 1), (2, 2, 0), (5, 1, 2)])
def test_any_size(window: int, stride: int, pad: int) -> None:
    sizes: tuple[DimLike, ...] = (symbol("n"), symbol("h"), symbol("w"))
    x = image(*sizes, 20)
    y = pool(x, "max", (window, window), (stride, stride), ((pad, pad), (pad, pad)))
    graph = Graph((x,), (shifted(y),))
    model = compile_graph(graph)
    for n, h, w in ((1, 5, 5), (3, 9, 14), (1, 30, 23)):
        xs = [values(n, h, w, 20)]
        np.testing.assert_allclose(np.asarray(model(*xs)), interpret(graph, xs)[0], rtol=1e-6, atol=1e-6)


def test_an_epilogue_that_reads_an_image_of_its_own() -> None:
    """In tiles that the edge cuts off, no place of it outside is read."""
    x, r = image(1, 7, 7, 16), ops.scalar(0.0)
    y = pool(x, "sum", (3, 3), (1, 1), ((1, 1), (1, 1)))
    graph = Graph((x,), (ops.sub(y, ops.mul(x, 9.0)), ops.add(y, r)))
    check(graph, [values(1, 7, 7, 16)])


def test_windows_that_share_nothing_compute_what_they_read() -> None:
    x = image(2, 12, 10, 24)
    first = relu(shifted(x))
    graph = Graph((x,), (ops.mul(pool(first, "sum", (2, 2), (2, 2)), 0.25),))
    assert kinds(graph) == ["window"]
    check(graph, [values(2, 12, 10, 24)])
    graph = Graph((x,), (ops.mul(pool(first, "sum", (3, 3), (2, 2)), 0.25),))
    assert sorted(kinds(graph)) == ["pointwise", "window"]
    height, width = static_shape(x.shape[1:3])
    graph = Graph((x,), (pool(first, "max", (3, 4), (3, 4), ((1, 0), (2, 0))), pool(x, "max", (height, width), (1, 1))))
    check(graph, [values(2, 12, 10, 24)])


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: f"{m.vector_bits}")
@pytest.mark.parametrize("dtype", [f32, f64], ids=str)
def test_rows_of_images_that_lie_one_behind_the_other(dtype: DType, machine: Machine) -> None:
    """Where an image's padded lines are as many as its strides pass over, a tile has lines of several images, of which
    each has padding of its own."""
    x = Input("x", TensorType(dtype, (6, 6, 1, 3)))()
    lines = ops.Pad((0, 1, 0, 0), (0, 1, 1, 0), (0,) * 4)(x, const(np.zeros((), dtype.numpy)))
    kernel = const(np.random.default_rng(0).integers(-4, 5, (16, 3, 2, 2)).astype(dtype.numpy))
    convolution = ops.Convolution(
        (2, 2), ((0, 0), (0, 0)), (1, 1), (1, 1), "NHWC", "OIHW", "NHWC", zeros=((1, 1), (0, 1))
    )
    check(Graph((x,), (convolution(lines, kernel),)), [values(6, 6, 1, 3).astype(dtype.numpy)], machine=machine)


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: f"{m.vector_bits}")
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(("height", "width"), [(9, 8), (33, 37)])  # by vectors of channels; line by line
def test_depthwise(height: int, width: int, stride: int, machine: Machine) -> None:
    x = image(2, height, width, 37)
    graph = Graph((x,), (shifted(conv(padded(x, 2, 2), values(5, 5, 1, 37), stride, 37)),))
    xs = values(2, height, width, 37)
    check(graph, [xs], machine=machine)
    xs[0, 3, 4, 5], xs[1, 0, 0, 30] = np.nan, np.inf
    check(graph, [xs], machine=machine)


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: f"{m.vector_bits}")
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(
    ("groups", "group_inputs", "group_outputs"),
    [(8, 4, 4), (5, 4, 4), (4, 8, 8), (7, 2, 2), (9, 1, 2), (5, 1, 4), (6, 2, 4), (3, 4, 8)],
)
def test_vectors_of_several_groups(
    groups: int, group_inputs: int, group_outputs: int, stride: int, machine: Machine
) -> None:
    x = image(2, 9, 13, groups * group_inputs)
    graph = Graph(
        (x,), (shifted(conv(padded(x, 1, 1), values(3, 3, group_inputs, groups * group_outputs), stride, groups)),)
    )
    xs = values(2, 9, 13, groups * group_inputs)
    xs[0, 3, 4, group_inputs], xs[1, 0, 0, -1] = np.nan, np.inf
    check(graph, [xs], machine=machine)
    lanes = machine.lanes(f32)
    steps = [s.kernel for s in compile_graph(graph, machine).program.steps]
    assert any(name.startswith("depthwise") for name in steps) == (group_outputs < lanes)


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: f"{m.vector_bits}")
@pytest.mark.parametrize("groups", [20, 5])
def test_weights_that_are_a_part_of_others(groups: int, machine: Machine) -> None:
    xs = [values(1, 9, 9, 20), values(3, 5, 20 // groups, 20)]
    x, w = inputs_like(xs)
    op = ops.Convolution((1, 1), ((0, 0), (0, 0)), (1, 1), (1, 1), "NHWC", "HWIO", "NHWC", feature_groups=groups)
    part = ops.Slice((0, 1, 0, 0), (3, 4, 20 // groups, 20), (1, 1, 1, 1))
    check(Graph((x, w), (op(x, part(w)),)), xs, machine=machine)
    check(Graph((x,), (op(x, part(const(xs[1]))),)), xs[:1], machine=machine)


def test_a_window_as_large_as_the_image_is_a_loop() -> None:
    """2,256 taps printed one by one took minutes to compile."""
    x = image(1, 48, 47, 5)
    graph = Graph((x,), (pool(x, "max", (48, 47), (1, 1)),))
    built = build(graph, threads=1)
    assert all(len(built.source(kernel)) < 20_000 for kernel in built.trace.kernels)
    check(graph, [values(1, 48, 47, 5)])
