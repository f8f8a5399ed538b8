"""Rows of tables that a lookup prefetches."""

from __future__ import annotations

import numpy as np

from ingot import ops
from ingot.ir.node import Graph, Input
from ingot.ir.types import TensorType, f32, i64
from ingot.pipeline.build import build_native
from ingot.runtime.executor import CompiledModel


def test_a_lookup_of_one_block_has_no_later_row() -> None:
    """All of its dimensions are offsets; it is larger than the caches, so that its result is streamed."""
    x, i = Input("x", TensorType(f32, (2, 4000, 3000)))(), Input("i", TensorType(i64, ()))()
    model = CompiledModel(build_native(Graph((x, i), (ops.Take(0)(x, i),)), 1))
    table = np.random.default_rng(0).standard_normal((2, 4000, 3000), np.float32)
    np.testing.assert_array_equal(model(table, np.array(1)), table[1])
