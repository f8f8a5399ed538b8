"""Indices repeated along all axes but one: entire rows are gathered and scattered."""

from __future__ import annotations

import numpy as np
import pytest

from ingot import ops
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input
from ingot.ir.types import TensorType, f32, i64
from ingot.passes.model.lower import lower_model_ops


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_repeated_indices_select_rows(axis: int) -> None:
    rng = np.random.default_rng(axis)
    shape = (5, 6, 7)
    count = 4
    x, indices = Input("x", TensorType(f32, shape))(), Input("at", TensorType(i64, (count,)))()
    wide = tuple(count if d == axis else n for d, n in enumerate(shape))
    updates = Input("updates", TensorType(f32, wide))()
    repeated = ops.BroadcastInDim(wide, (axis,))(indices)
    graph = Graph(
        (x, indices, updates),
        (ops.GatherElements(axis)(x, repeated), ops.ScatterElements(axis, "add")(x, repeated, updates)),
    )
    low = lower_model_ops(graph)
    assert not any(isinstance(n.op, ops.Scatter) and n.op.input_batching_dims for n in low.nodes())
    assert not any(isinstance(n.op, ops.Gather) and n.op.operand_batching_dims for n in low.nodes())
    feeds = [rng.standard_normal(shape, np.float32), np.asarray([1, -2, 1, 0]), rng.standard_normal(wide, np.float32)]
    for got, want in zip(interpret(low, feeds), interpret(graph, feeds), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)
