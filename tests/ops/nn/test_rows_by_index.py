"""Indices that all axes but one repeat: rows are gathered and scattered whole."""

from __future__ import annotations

import numpy as np
import pytest

from ingot import ops
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input
from ingot.ir.types import TensorType, f32, i64
from ingot.passes.model.lower import lower_model_ops


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_repeated_indices_take_rows(axis: int) -> None:
    rng = np.random.default_rng(axis)
    shape = (5, 6, 7)
    count = 4
    x, at = Input("x", TensorType(f32, shape))(), Input("at", TensorType(i64, (count,)))()
    wide = tuple(count if d == axis else n for d, n in enumerate(shape))
    updates = Input("updates", TensorType(f32, wide))()
    repeated = ops.BroadcastInDim(wide, (axis,))(at)
    graph = Graph(
        (x, at, updates),
        (ops.GatherElements(axis)(x, repeated), ops.ScatterElements(axis, "add")(x, repeated, updates)),
    )
    low = lower_model_ops(graph)
    assert not any(isinstance(n.op, ops.Scatter) and n.op.input_batching_dims for n in low.nodes())
    assert not any(isinstance(n.op, ops.Gather) and n.op.operand_batching_dims for n in low.nodes())
    feeds = [rng.standard_normal(shape, np.float32), np.asarray([1, -2, 1, 0]), rng.standard_normal(wide, np.float32)]
    for got, want in zip(interpret(low, feeds), interpret(graph, feeds), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)
