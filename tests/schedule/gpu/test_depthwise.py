"""Depthwise convolutions and their kernels' gradients, whose lanes compute runs of positions."""

from __future__ import annotations

import numpy as np
import pytest

from ingot import ops
from ingot.ir.dims import likely_sizes, symbol
from ingot.ir.interp import interpret
from ingot.ir.kernel.show import show_kernel
from ingot.ir.node import Graph, Input
from ingot.ir.types import DType, TensorType, bf16, f16, f32, f64
from ingot.schedule.gpu.contraction.depthwise import product as depthwise
from tests.conformance.checked import planned, run_checked
from tests.conformance.targets import H100

CASES = [  # type, x, kernel, strides, dilation
    (f32, (2, 9, 8, 21), (3, 3, 1, 21), (1, 1), (1, 1)),  # runs of 6
    (f32, (1, 5, 9, 16), (3, 3, 1, 32), (1, 1), (1, 1)),  # of 7, two results share a channel
    (bf16, (2, 11, 11, 48), (5, 5, 1, 48), (1, 1), (1, 1)),
    (f16, (1, 19, 19, 40), (5, 5, 1, 40), (2, 2), (1, 1)),
    (f32, (1, 6, 18, 20), (3, 3, 1, 20), (3, 4), (1, 1)),  # of 4 that share nothing
    (f64, (1, 9, 14, 5), (2, 3, 1, 5), (1, 2), (2, 3)),
    (f32, (1, 12, 19, 17), (7, 7, 1, 17), (1, 1), (1, 2)),  # wider than it is apart
    (f32, (1, 7, 13, 8), (3, 3, 1, 8), (1, 1), (1, 1)),  # 11 positions: no run
    (f32, (3, 40, 20), (31, 1, 20), (1,), (1,)),
]


def _convolution(dtype: DType, x: tuple, w: tuple, strides: tuple, dilation: tuple) -> Graph:
    n = len(strides)
    x_node, w_node = (Input(name, TensorType(dtype, s))() for name, s in zip("xw", (x, w), strict=True))
    letters = "HW"[-n:]
    layouts = f"N{letters}C", f"{letters}IO", f"N{letters}C"
    op = ops.Convolution(strides, ((0, 0),) * n, (1,) * n, dilation, *layouts, x[-1])
    return Graph((x_node, w_node), (ops.Relu()(op(x_node, w_node)),))


def _gradient(dtype: DType, x: tuple, w: tuple, strides: tuple, dilation: tuple) -> Graph:
    window = w[:-2]
    sizes = zip(x[1:-1], window, strides, dilation, strict=True)
    g = (x[0], *((n - (k - 1) * d - 1) // s + 1 for n, k, s, d in sizes), w[-1])
    x_node, g_node = (Input(name, TensorType(dtype, s))() for name, s in zip("xg", (x, g), strict=True))
    return Graph((x_node, g_node), (ops.KernelGradient(window, strides, dilation, True)(x_node, g_node),))


@pytest.fixture(autouse=True)
def runs_of_few_elements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(depthwise, "MIN_RUN_THREADS", 0.01)


@pytest.mark.parametrize("make", [_convolution, _gradient])
@pytest.mark.parametrize("case", CASES)
def test_runs(case: tuple, make: type) -> None:
    graph = make(*case)
    rng = np.random.default_rng(0)
    data = [rng.normal(size=n.shape).astype(n.dtype.numpy) for n in graph.inputs]
    (got,), (want,) = run_checked(graph, data, H100), interpret(graph, data)
    tolerance = 1e-5 if case[0].bits >= 32 else 8e-3
    want = want.astype(np.float64)
    np.testing.assert_allclose(got.astype(np.float64), want, rtol=tolerance, atol=tolerance * np.abs(want).max())


@pytest.mark.parametrize("make", [_convolution, _gradient])
def test_what_is_not_finite_stays_with_its_windows(make: type) -> None:
    graph = make(f32, (2, 9, 9, 20), (3, 3, 1, 20), (1, 1), (1, 1))
    rng = np.random.default_rng(0)
    data = [rng.normal(size=n.shape).astype(np.float32) for n in graph.inputs]
    data[0][0, 0, 0, 3], data[0][1, 8, 8, 7], data[0][1, 4, 4, 9] = np.inf, np.nan, -np.inf
    (got,), (want,) = run_checked(graph, data, H100), interpret(graph, data)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_an_element_of_overlapping_windows_is_loaded_once() -> None:
    """A run of 7 positions of 3x3: 3 lines of 9 elements, and 9 weights."""
    graph = _convolution(f32, (64, 9, 9, 64), (3, 3, 1, 64), (1, 1), (1, 1))
    (kernel,) = planned(graph, H100)[1].values()
    assert [show_kernel(kernel).count(f"= {name}[") for name in ("in0", "in1")] == [27, 9]


def test_lines_of_open_length_have_no_runs() -> None:
    n = symbol("n")
    graph = _convolution(f32, (2, 9, n + 2, 20), (3, 3, 1, 20), (1, 1), (1, 1))
    rng = np.random.default_rng(0)
    for width in (3, 7, 14):
        data = [rng.normal(size=s).astype(np.float32) for s in ((2, 9, width + 2, 20), (3, 3, 1, 20))]
        with likely_sizes({"n": 14}):
            (got,) = run_checked(graph, data, H100)
        np.testing.assert_allclose(got, interpret(graph, data)[0], rtol=1e-4, atol=1e-4)


def test_groups_of_taps_store_each_tap_once() -> None:
    """5x5 in groups of two lines: the last begins with a line of the one before."""
    graph = _gradient(f32, (2, 11, 11, 20), (5, 5, 1, 20), (1, 1), (1, 1))
    rng = np.random.default_rng(0)
    data = [rng.normal(size=n.shape).astype(np.float32) for n in graph.inputs]
    np.testing.assert_allclose(run_checked(graph, data, H100)[0], interpret(graph, data)[0], rtol=1e-4, atol=1e-4)
