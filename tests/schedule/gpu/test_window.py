"""Pools whose windows are far longer than their input: loops run over the elements inside. Gradients of pools."""

from __future__ import annotations

import numpy as np
import pytest

from ingot.autodiff import pullback
from ingot.ir.dims import symbol
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input, Node
from ingot.ir.types import DType, TensorType, bf16, f32
from ingot.ops import Max, MaxPool, ReduceWindow, cast, full, mul, transpose
from tests.conformance.checked import planned, run_checked

FAR = 1 << 40


@pytest.mark.parametrize("stride", [1, 3])
@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("base", [1, 2])
@pytest.mark.parametrize(("window", "low", "high"), [(FAR, FAR, 7), (FAR, FAR - 3, 4), (FAR, 2, FAR - 1), (99, 60, 70)])
def test_an_open_size(window: int, low: int, high: int, base: int, dilation: int, stride: int) -> None:
    n, x = symbol("n"), np.arange(1, 12, dtype=np.float32)
    low, high = low * dilation, high * dilation
    op = ReduceWindow("sum", (window,), (stride,), ((low, high),), (dilation,), (base,))
    node = Input("x", TensorType(f32, (n,)))()
    (got,) = run_checked(Graph((node,), (op(node),)), [x], "cuda:sm_90a")
    np.testing.assert_array_equal(got, op.reference(x))


@pytest.mark.parametrize(("dtype", "size", "window", "pad"), [(bf16, (2, 8, 13, 10), 3, 1), (f32, (1, 5, 9, 9), 5, 2)])
def test_the_gradient_of_a_pool(dtype: DType, size: tuple[int, ...], window: int, pad: int) -> None:
    """Three kernels: maxima, the position of each window's maximum, the gradient. Borders are masks of loads, not
    copies."""
    n, c, h, w = size
    op = MaxPool((window,) * 2, (2, 2), ((pad, pad),) * 2, (1, 1))
    counts = [(d + 2 * pad - window) // 2 + 1 for d in (h, w)]

    def last(x: Node) -> Node:
        return transpose(op(transpose(x, (0, 3, 1, 2))), (0, 2, 3, 1))

    x, g = Input("x", TensorType(dtype, (n, h, w, c)))(), Input("g", TensorType(dtype, (n, *counts, c)))()
    graph = Graph((x, g), (pullback(last, x, g),))
    rng = np.random.default_rng(0)
    inputs = [rng.integers(-3, 3, v.shape).astype(dtype.numpy) for v in (x, g)]  # ties: the first of them
    inputs[0][0, 2, 3, 1] = np.nan
    (got,), (want,) = run_checked(graph, inputs, "cuda:sm_90a"), interpret(graph, inputs)
    np.testing.assert_array_equal(got.astype(np.float32), want.astype(np.float32))
    if window == 3:
        assert len(planned(graph, "cuda:sm_90a")[1]) == 3


def test_an_average_reads_what_is_stored_in_16_bits() -> None:
    """A computed image that others read, too, is not stored in float32 for the pool."""
    x = Input("x", TensorType(bf16, (2, 9, 7, 16)))()
    image = Max()(x, full(x.shape, 0, bf16))
    sums = ReduceWindow("sum", (1, 3, 3, 1), (1, 1, 1, 1), ((0, 0), (1, 1), (1, 1), (0, 0)), (1,) * 4, (1,) * 4)
    graph = Graph((x,), (image, cast(mul(sums(cast(image, f32)), 1 / 9), bf16)))
    (inputs,) = ([np.random.default_rng(0).standard_normal((2, 9, 7, 16)).astype(bf16.numpy)],)
    for got, want in zip(run_checked(graph, inputs, "cuda:sm_90a"), interpret(graph, inputs), strict=True):
        np.testing.assert_array_equal(got.astype(np.float32), want.astype(np.float32))
    program, _ = planned(graph, "cuda:sm_90a")
    assert not any(b.kind == "arena" for b in program.buffers)
