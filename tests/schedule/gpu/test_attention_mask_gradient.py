"""The gradient of what attention adds to its scores, from a kernel of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ingot import ops
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input
from ingot.ir.types import DType, TensorType, bf16, boolean, f16, f32, i64
from tests.conformance.checked import planned, run_checked
from tests.conformance.targets import H100

Shape = tuple[int, ...]


def _graph(
    dtype: DType, heads: tuple[int, int], mask: Shape, settings: dict[str, Any], width: int = 16
) -> tuple[Graph, list[np.ndarray]]:
    """heads: of queries and of keys. mask: its shape; its last sizes are the numbers of queries and keys."""
    rng, (rows, keys) = np.random.default_rng(0), mask[-2:]
    shapes = [(3, heads[0], rows, 32), (3, heads[1], keys, 32), (3, heads[1], keys, width), (3, heads[0], rows, width)]
    arrays = [rng.normal(size=s).astype(dtype.numpy) for s in shapes]
    bias = rng.normal(size=mask)
    bias[..., 1, :], bias[..., 3] = -np.inf, -np.inf  # a query without keys, and a key without queries
    arrays.append(bias.astype(dtype.numpy))
    inputs = tuple(Input(f"x{i}", TensorType(dtype, a.shape))() for i, a in enumerate(arrays))
    op = ops.AttentionMaskGradient(**settings)
    q, k, v, g, bias_input = inputs
    seed = (Input("seed", TensorType(i64, ()))(),) if op.dropout else ()
    saved = op.forward_with_sums(q, k, v, bias_input, *seed).results
    return Graph((*inputs, *seed), (op(q, k, v, g, *saved, bias_input, *seed),)), [
        *arrays,
        *([np.asarray(5)] * len(seed)),
    ]


@pytest.mark.parametrize(
    ("dtype", "heads", "mask", "settings"),
    [
        (f32, (2, 2), (1, 2, 37, 37), {"scale": 0.3}),
        (f16, (4, 2), (4, 49, 49), {"scale": 0.2, "dropout": 0.1}),
        (bf16, (2, 1), (3, 1, 20, 70), {"scale": 0.2, "causal": "lower_right"}),
        (f32, (2, 1), (5, 19), {"scale": 0.2, "softcap": 2.0, "dropout": 0.5}),
        (f16, (2, 2), (3, 2, 130, 67), {"scale": 0.2, "guarded": True}),
        (f32, (2, 2), (2, 4, 4), {"scale": -0.3}),
        (f32, (2, 2), (2, 4, 4), {"scale": 0.0}),
    ],
)
def test_sums_of_the_gradients_of_scores(
    dtype: DType, heads: tuple[int, int], mask: Shape, settings: dict[str, Any]
) -> None:
    graph, arrays = _graph(dtype, heads, mask, settings)
    (got,), (want,) = run_checked(graph, arrays, H100), interpret(graph, arrays)
    got, want = got.astype(np.float64), want.astype(np.float64)
    error = {f16: 4e-3, bf16: 2e-2, f32: 3e-6}[dtype]
    assert np.abs(got - want).max() <= error * max(1, np.abs(want).max())
    names = [kernel.name for kernel in planned(graph, H100)[1].values()]
    assert sum("mask_gradient" in name for name in names) == 1


def test_masks_that_are_broadcast_over_queries_are_lowered() -> None:
    graph, arrays = _graph(f32, (2, 2), (2, 9, 9), {"scale": 0.2})
    q, k, v, g, _ = graph.inputs
    bias = Input("bias", TensorType(f32, (2, 1, 9)))()
    op = ops.AttentionMaskGradient(scale=0.2)
    narrow = Graph((q, k, v, g, bias), (op(q, k, v, g, *op.forward_with_sums(q, k, v, bias).results, bias),))
    arrays[-1] = arrays[-1][:, :1].copy()
    np.testing.assert_allclose(run_checked(narrow, arrays, H100)[0], interpret(narrow, arrays)[0], atol=2e-6)


def test_no_samples() -> None:
    x, mask = Input("x", TensorType(f32, (0, 2, 4, 8)))(), Input("mask", TensorType(f32, (2, 4, 4)))()
    op = ops.AttentionMaskGradient()
    graph = Graph((x, mask), (op(x, x, x, x, *op.forward_with_sums(x, x, x, mask).results, mask),))
    (got,) = run_checked(graph, [np.zeros((0, 2, 4, 8), np.float32), np.ones((2, 4, 4), np.float32)], H100)
    assert not got.any()


def test_conditions_have_no_gradient() -> None:
    x, mask = Input("x", TensorType(f32, (1, 1, 4, 8)))(), Input("mask", TensorType(boolean, (4, 4)))()
    op = ops.AttentionMaskGradient()
    with pytest.raises(Exception, match="one that is added"):
        op(x, x, x, x, *op.forward_with_sums(x, x, x, mask).results, mask)
