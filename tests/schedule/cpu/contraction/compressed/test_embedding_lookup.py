"""Rows of tables of plain numbers: from the panels of products, which share them, or as they are."""

from __future__ import annotations

import numpy as np
import pytest

from ingot import ops
from ingot.ir.dims import symbol
from ingot.ir.node import Graph, Input, const
from ingot.ir.types import DType, TensorType, bf16, f16, f32, i64
from ingot.schedule.cpu.machine import Machine
from tests.schedule.compiled import MACHINES, check, compile_graph


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: f"{m.vector_bits}")
@pytest.mark.parametrize("dtype", [f32, f16, bf16])
@pytest.mark.parametrize(("n", "k"), [(256, 64), (203, 37), (33, 130)])
def test_one_table_for_lookups_and_products(n: int, k: int, dtype: DType, machine: Machine) -> None:
    """A table that products of one row and of many read, too, is in memory once. Rows are exact."""
    rng = np.random.default_rng(n)
    table = const(rng.normal(size=(n, k)).astype(dtype.numpy))
    ids = Input("ids", TensorType(i64, (2, symbol("t"))))()
    rows = ops.mul(ops.cast(ops.EmbeddingLookup()(table, ids), f32), 2.0)
    at = np.array([[0, n - 1, -1, 5], [n + 5, n // 2, -n - 2, 7]])
    check(Graph((ids,), (rows,)), [at], 0, machine)
    one, batch = Input("one", TensorType(f32, (1, k)))(), Input("many", TensorType(f32, (symbol("m"), k)))()
    product = ops.DotGeneral(contract=((1,), (1,)), dtype=f32)
    graph = Graph((ids, batch, one), (rows, product(batch, table), product(one, table)))
    xs = [at, rng.normal(size=(19, k)).astype(np.float32), rng.normal(size=(1, k)).astype(np.float32)]
    check(graph, xs, machine=machine)
    lanes = machine.lanes(f32)
    depth = -(-k // 2) * 2 if dtype == bf16 else k
    assert compile_graph(graph, machine).program.weights.nbytes <= -(-n // lanes) * lanes * depth * dtype.nbytes + 64
