"""Average pooling of images that are too large for a constant table of element counts."""

from __future__ import annotations

import numpy as np

from ingot import ops
from ingot.ir.node import Const, Graph, Input
from ingot.ir.types import TensorType, f32
from ingot.ops.nn import pool
from tests.ops.nn.check import check


def test_large_counts_are_not_constants(monkeypatch) -> None:
    op = ops.AvgPool((3, 2, 3), (2, 1, 3), ((1, 1), (0, 1), (1, 1)), (1, 2, 2), True)
    large = Input("x", TensorType(f32, (1, 1, 32, 40, 1 << 20)))()
    consts = [n.op.value for n in Graph((large,), (op.lower(large),)).nodes() if isinstance(n.op, Const)]
    assert max(c.size for c in consts) < 1 << 20
    monkeypatch.setattr(pool, "_MAX_COUNT_ELEMENTS", 1)
    check(op, np.random.default_rng(0).normal(size=(1, 2, 7, 8, 9)).astype(np.float32))
