"""Attention of few queries reads what is gathered along its keys by itself."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from ingot import ops
from ingot.ir.dims import symbol
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input, Node
from ingot.ir.types import DType, TensorType, f16, f32, i8, i64
from ingot.passes.core.dtypes.narrow_products import narrow_caches
from ingot.passes.core.positions.indexed_caches import indexed_caches
from ingot.passes.core.simplify import simplify
from ingot.passes.model.lower import lower_model_ops


def paged(dtype: DType, queries: int, *, in_pool: bool, has_two_tables: bool = False) -> Graph:
    """Keys and values of `dtype` at the positions of a table, as f32, of a pool without a batch or with one."""
    keys = symbol("keys")
    q, mask = Input("q", TensorType(f32, (1, 4, queries, 8)))(), Input("m", TensorType(f32, (1, keys)))()
    tables = [Input(f"at{i}", TensorType(i64, (keys,)))() for i in range(1 + has_two_tables)]
    batch = () if in_pool else (1,)
    stored, wide = list[Node](), list[Node]()
    for name, at in zip("kv", (tables[0], tables[-1]), strict=True):
        parts = [Input(name, TensorType(dtype, (*batch, 2, 9, 8)))()]
        parts += [Input(f"{name}s", TensorType(f32, (*batch, 2, 9, 1)))()] if dtype == i8 else []
        gathered = [ops.Take(len(batch) + 1)(x, at) for x in parts]
        rows = [ops.cast(ops.expand_dims(x, 0) if in_pool else x, f32) for x in gathered]
        wide.append(functools.reduce(ops.mul, rows))
        stored += parts
    inputs = (q, mask, *tables, *stored)
    return Graph(inputs, (ops.Attention("lower_right", 0.3)(q, *wide, mask),), bounds=(("keys", 1, None),))


def rewritten(graph: Graph) -> Graph:
    core = simplify(lower_model_ops(graph, frozenset({ops.Attention})))
    return indexed_caches(narrow_caches(core, (f16,)))


@pytest.mark.parametrize("in_pool", [True, False])
@pytest.mark.parametrize("dtype", [f32, f16, i8])
def test_few_queries_read_pages(dtype: DType, in_pool: bool) -> None:
    rng = np.random.default_rng(0)
    for queries in (1, 8):
        graph = paged(dtype, queries, in_pool=in_pool)
        core = rewritten(graph)
        (attention,) = (n for n in core.nodes() if isinstance(n.op, ops.Attention))
        assert isinstance(attention.op, ops.Attention) and attention.op.indexed
        assert attention.inputs[1].dtype == dtype
        assert not any(isinstance(n.op, ops.Gather) for n in core.nodes())
        at = np.array([3, 0, 8, 8, -1, 70, 2])
        inputs = [rng.normal(size=(1, 4, queries, 8)), rng.normal(size=(1, 7)), at]
        inputs += [rng.normal(size=tuple(map(int, x.shape))) * (9 if x.dtype == i8 else 1) for x in graph.inputs[3:]]
        inputs = [np.asarray(x).astype(n.dtype.numpy) for x, n in zip(inputs, graph.inputs, strict=True)]
        np.testing.assert_allclose(interpret(core, inputs)[0], interpret(graph, inputs)[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("queries", "has_two_tables"), [(9, False), (1, True)])
def test_others_read_copies(queries: int, has_two_tables: bool) -> None:
    core = rewritten(paged(f32, queries, in_pool=True, has_two_tables=has_two_tables))
    assert not any(isinstance(n.op, ops.Attention) and n.op.indexed for n in core.nodes())
