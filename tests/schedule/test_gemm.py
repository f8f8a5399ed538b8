"""Contraction groups: operands as views in memory, against the interpreter."""

from __future__ import annotations

import numpy as np
import pytest

from ingot import ops
from ingot.ir.dims import symbol
from ingot.ir.node import Graph, const
from ingot.schedule.contraction import emit_contraction
from tests.schedule.compiled import MACHINES, check, inputs_like


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: f"{m.vector_bits}")
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_rows_of_a_transposed_operand(dynamic: bool, machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """x[b, s, k] seen as [s, b, k]: its rows are joined as they lie, results go where they belong."""
    rows: list[int] = []

    def spy(top, chunk, c, *rest):
        rows.append(len(c.rows))
        return emit_contraction(top, chunk, c, *rest)

    monkeypatch.setattr("ingot.schedule.gemm.emit_contraction", spy)
    rng = np.random.default_rng(0)
    weights = const(rng.standard_normal((20, 33)).astype(np.float32))
    shapes = {0: (symbol("b"), symbol("s"), 20)} if dynamic else None
    for batch, steps in ((1, 9), (3, 14)):
        xs = [rng.standard_normal((batch, steps, 20)).astype(np.float32)]
        ins = inputs_like(xs, shapes)
        turned = ops.Transpose((1, 0, 2))(ins[0])
        graph = Graph(tuple(ins), (ops.DotGeneral(((), ()), ((2,), (0,)))(turned, weights),))
        check(graph, xs, machine=machine)
    assert rows == [1, 1]
