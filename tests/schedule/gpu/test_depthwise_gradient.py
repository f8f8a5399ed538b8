"""Gradients of depthwise kernels: parts of the positions, and what joins them."""

from __future__ import annotations

import numpy as np
import pytest

from ingot import ops
from ingot.ir.dims import likely_sizes, symbol
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input
from ingot.ir.types import DType, TensorType, bf16, f16, f32, f64
from tests.conformance.checked import planned, run_checked
from tests.conformance.targets import H100

CASES = [  # type, x, g, window, strides, dilation
    (f32, (3, 9, 8, 21), (3, 7, 6, 21), (3, 3), (1, 1), (1, 1)),
    (f64, (2, 12, 40), (2, 5, 40), (3,), (2,), (1,)),
    (f16, (2, 29, 29, 96), (2, 14, 14, 96), (3, 3), (2, 2), (1, 1)),
    (bf16, (1, 20, 20, 130), (1, 14, 14, 130), (7, 7), (1, 1), (1, 1)),
    (f32, (2, 9, 9, 7), (2, 2, 3, 14), (5, 4), (3, 2), (1, 1)),  # two results share a channel
    (f32, (1, 9, 14, 5), (1, 3, 2, 5), (7, 7), (1, 1), (1, 2)),
]


def _graph(dtype: DType, *shapes: tuple, op: ops.KernelGradient) -> Graph:
    x, g = (Input(n, TensorType(dtype, s))() for n, s in zip("xg", shapes, strict=True))
    y = ops.Transpose((2, 3, 1, 0))(op(x, g)) if len(op.window) == 2 else op(x, g)
    return Graph((x, g), (y,))


@pytest.mark.parametrize("case", CASES)
def test_parts_and_what_joins_them(case: tuple) -> None:
    dtype, x, g, window, strides, dilation = case
    rng = np.random.default_rng(0)
    graph = _graph(dtype, x, g, op=ops.KernelGradient(window, strides, dilation, True))
    data = [rng.normal(size=s).astype(dtype.numpy) for s in (x, g)]
    (got,), (want,) = run_checked(graph, data, H100), interpret(graph, data)
    assert np.abs(got.astype(np.float64) - want).max() <= 4e-3 * np.abs(want.astype(np.float64)).max()
    if dtype.bits >= 32:
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    assert [kernel.name.split("_")[0] for kernel in planned(graph, H100)[1].values()] == ["taps", "joined"]


def test_what_is_not_finite_stays_with_its_channel_and_taps() -> None:
    """A part's last turn reads past its end, and tiles have more taps than windows."""
    rng = np.random.default_rng(0)
    graph = _graph(f32, (2, 11, 10, 20), (2, 9, 8, 20), op=ops.KernelGradient((3, 3), (1, 1), (1, 1), True))
    x, g = (rng.normal(size=s).astype(np.float32) for s in ((2, 11, 10, 20), (2, 9, 8, 20)))
    x[0, 0, 0, 3], x[1, 10, 9, 7], g[0, 4, 4, 9] = np.inf, np.nan, -np.inf
    (got,), (want,) = run_checked(graph, [x, g], H100), interpret(graph, [x, g])
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_batches_and_images_of_open_size() -> None:
    n, h = symbol("n"), symbol("h")
    op = ops.KernelGradient((3, 3), (1, 1), (1, 1), True)
    graph = _graph(f32, (n, h + 2, 8, 20), (n, h, 6, 20), op=op)
    rng = np.random.default_rng(0)
    for batch, rows in ((3, 7), (1, 1), (5, 40)):
        data = [rng.normal(size=s).astype(np.float32) for s in ((batch, rows + 2, 8, 20), (batch, rows, 6, 20))]
        with likely_sizes({"n": 4, "h": 16}):
            (got,) = run_checked(graph, data, H100)
        np.testing.assert_allclose(got, interpret(graph, data)[0], rtol=1e-4, atol=1e-4)
