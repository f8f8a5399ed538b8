"""Pipelines: stages on several devices compute what one device computes, each with only its own weights."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import ingot
from ingot import ops
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input, const
from ingot.ir.types import TensorType, f32, i32, static_shape
from ingot.runtime.ranks.current import current
from ingot.support.errors import InputError
from ingot.transform.shard.graph import collectives
from ingot.transform.shard.pipeline import graph_of_rank, pipeline
from ingot.transform.shard.simulate import run
from ingot.transform.train.division import division_of

RNG = np.random.default_rng(7)


def net(batch: int, widths: tuple[int, ...] = (6, 9, 12, 5, 8, 7), mask: bool = False) -> Graph:
    """x w1, tanh, ..; with a mask that all layers read; two results, of which one is integers."""
    x = Input("x", TensorType(f32, (batch, widths[0])))()
    inputs, y = [x], x
    mask_value = Input("mask", TensorType(f32, (batch, 1)))()
    for a, b in itertools.pairwise(widths):
        y = ops.Tanh()(ops.MatMul()(y, const(RNG.standard_normal((a, b), np.float32))))
        if mask:
            y = ops.mul(y, mask_value)
    return Graph((*inputs, *((mask_value,) if mask else ())), (y, ops.cast(ops.mul(y, 9.0), i32)), ("y", "levels"))


def check(graph: Graph, stages: int) -> list[Graph]:
    arrays = [RNG.standard_normal(static_shape(n.shape)).astype(np.float32) for n in graph.inputs]
    result = pipeline(graph, stages)
    graphs = [graph_of_rank(result, rank) for rank in range(stages)]
    for got in run(graphs, [arrays] * stages):  # every rank has the results
        for a, b in zip(got, interpret(graph, arrays), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    assert len({str(sorted(collectives(g).items())) for g in graphs}) == 1
    return graphs


def weights(graph: Graph) -> int:
    """Elements of its matrices."""
    return sum(n.constant.value.size for n in graph.nodes() if n.constant is not None and len(n.shape) == 2)


@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize(
    ("stages", "batch", "count"), [(2, 16, 8), (2, 4, 4), (2, 2, 2), (2, 3, 1), (3, 6, 6), (5, 5, 5)]
)
def test_stages_compute_what_one_device_does(stages: int, batch: int, count: int, mask: bool):
    graph = net(batch, mask=mask)
    graphs = check(graph, stages)
    assert pipeline(graph, stages).count == count
    assert collectives(graphs[0]) == {"collective_permute": count + stages - 2, "all_gather": 2}
    assert sum(map(weights, graphs)) == weights(graph) and max(map(weights, graphs)) < weights(graph)


def test_rows_that_depend_on_each_other_are_one_batch():
    x = Input("x", TensorType(f32, (4, 6)))()
    y = ops.sub(x, ops.mean(x, 0, keepdims=True))
    first, second = const(np.eye(6, dtype=np.float32)), const(np.ones((6, 2), np.float32))
    graph = Graph((x,), (ops.MatMul()(ops.Tanh()(ops.MatMul()(y, first)), second),))
    check(graph, 2)
    assert pipeline(graph, 2).count == 1


def test_nan_and_infinity_stay_in_their_rows():
    graph = net(4)
    value = np.ones((4, 6), np.float32)
    value[1], value[2, 0] = np.nan, -np.inf
    result = pipeline(graph, 2)
    got = run([graph_of_rank(result, rank) for rank in range(2)], [[value]] * 2)[0][0]
    np.testing.assert_allclose(got, interpret(graph, [value])[0], rtol=1e-5)
    assert np.isnan(got[1]).all() and not np.isnan(got[[0, 2, 3]]).any()


def test_what_has_no_stages_is_refused():
    x = Input("x", TensorType(f32, (2, 4)))()
    fork = Graph((x,), (ops.add(ops.Tanh()(x), ops.Exp()(x)),))
    with pytest.raises(InputError, match="2 values of one type that alone lead"):
        pipeline(fork, 3)
    with pytest.raises(InputError, match="this axis alone, without marks"):
        ingot.compile(MODULE, mesh=ingot.simulate({"pp": 2, "tp": 2}))
    with pytest.raises(InputError, match="a pipeline, for inference alone"):
        division_of({"pp": 2}, None)
    with pytest.raises(InputError, match="fixed sizes, without state, got open sizes"):
        ingot.compile(MODULE.replace("4x", "?x"), mesh=ingot.simulate({"pp": 2}))


MODULE = """
func.func @main(%x: tensor<4x8xf32> loc("x"), %w: tensor<8x6xf32> loc("w"), %v: tensor<6x4xf32> loc("v"))
    -> tensor<4x4xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<4x8xf32>, tensor<8x6xf32>) -> tensor<4x6xf32>
  %1 = stablehlo.tanh %0 : tensor<4x6xf32>
  %2 = stablehlo.dot_general %1, %v, contracting_dims = [1] x [0]
      : (tensor<4x6xf32>, tensor<6x4xf32>) -> tensor<4x4xf32>
  return %2 : tensor<4x4xf32>
}
"""
X, W, V = (np.random.default_rng(2).standard_normal(s, np.float32) for s in ((4, 8), (8, 6), (6, 4)))


def compiled(**options: Any) -> Any:
    return ingot.compile(MODULE, weights={"w": W, "v": V}, threads=1, cache=False, **options)


def in_processes(x: np.ndarray) -> tuple[np.ndarray, int]:
    model = compiled(mesh={"pp": 2})
    assert current().size == 2
    return model(x), model.program.weights.nbytes


@pytest.mark.slow
def test_two_processes_are_two_stages():
    expected = np.tanh(X @ W) @ V
    np.testing.assert_allclose(compiled(mesh=ingot.simulate({"pp": 2}))(X), expected, rtol=1e-5, atol=1e-5)
    total_bytes = compiled().program.weights.nbytes
    for got, nbytes in ingot.launch(in_processes, 2, (X,), seconds=100):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
        assert nbytes < total_bytes
