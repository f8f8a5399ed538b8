"""Matrices of odd width lie in padded ones, and products read them there."""

from __future__ import annotations

import numpy as np
import pytest

from ingot import ops
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input, Node, const
from ingot.ir.types import DType, TensorType, bf16, f32, u4
from ingot.passes.core.storage import aligned_rows
from ingot.passes.core.storage.aligned_rows import align_rows
from tests.conformance.checked import planned, run_checked
from tests.conformance.targets import H100


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aligned_rows, "MIN_FREE_SIZE", 16)
    monkeypatch.setattr(aligned_rows, "MIN_MATRIX_BYTES", 0)


def _gradients(width: int, dtype: DType = bf16) -> Graph:
    """Those of x and w of x @ w^T, from g of an odd number of columns."""
    g, w = Input("g", TensorType(dtype, (2, 24, width)))(), Input("w", TensorType(dtype, (width, 32)))()
    x = Input("x", TensorType(dtype, (48, 32)))()
    flat = ops.Reshape((48, width))(g)
    product = ops.DotGeneral(((), ()), ((1,), (0,)), f32)
    return Graph((g, w, x), (product(flat, w), product(ops.Transpose((1, 0))(flat), x)))


def _pads(graph: Graph) -> list[Node]:
    return [n for n in graph.nodes() if isinstance(n.op, ops.Pad)]


@pytest.mark.parametrize("width", [17, 31, 50, 57])
def test_one_copy_serves_both_products(width: int) -> None:
    graph = _gradients(width)
    after = align_rows(graph, 16)
    (pad,) = _pads(after)
    assert pad.shape == (2, 24, width + -width % 8)
    rng = np.random.default_rng(width)
    arrays = [rng.standard_normal(x.type.shape).astype(bf16.numpy) for x in graph.inputs]
    for before, now in zip(interpret(graph, arrays), interpret(after, arrays), strict=True):
        np.testing.assert_array_equal(before, now)


def test_kernels_read_it_where_it_lies() -> None:
    graph = _gradients(57)
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(x.type.shape).astype(bf16.numpy) for x in graph.inputs]
    arrays[0][0, 3, 5], arrays[0][1, 7, 56] = np.inf, np.nan
    for got, want in zip(run_checked(graph, arrays, H100), interpret(graph, arrays), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-2, atol=1e-2)
    program, _ = planned(graph, H100)
    assert [s.kernel.partition("_")[0] for s in program.steps] == ["pointwise", "product"], "a copy, and both products"


@pytest.mark.parametrize(("width", "dtype"), [(64, bf16), (57, f32)])
def test_aligned_rows_and_wide_elements_stay(width: int, dtype: DType) -> None:
    assert not _pads(align_rows(_gradients(width, dtype), 16))


def test_levels_are_not_padded() -> None:
    """Products alone unpack them: no kernel can pad them."""
    x, levels = Input("x", TensorType(bf16, (520, 2, 32)))(), np.arange(2 * 32 * 33).reshape(2, 32, 33) % 16
    w = ops.Dequantize()(
        const(levels.astype(u4.numpy)), const(np.array(7, u4.numpy)), const(np.ones((2, 1, 33), bf16.numpy))
    )
    graph = Graph((x,), (ops.DotGeneral(((), ()), ((1, 2), (0, 1)))(x, w),))
    arrays = [np.random.default_rng(0).integers(-2, 3, (520, 2, 32)).astype(bf16.numpy)]
    (got,), (want,) = run_checked(graph, arrays, H100), interpret(graph, arrays)
    np.testing.assert_array_equal(got, want)
