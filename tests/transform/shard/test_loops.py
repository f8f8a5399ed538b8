"""Loops in parts: as on one device, with the exchanges of their bodies and no more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import ingot
from ingot import ops
from ingot.ir.node import Graph, Input, Node, const
from ingot.ir.types import TensorType, f32, i64
from ingot.runtime.ranks.current import current
from ingot.transform.shard.graph import collectives, graphs_of, shard
from ingot.transform.shard.mesh import mesh_of
from tests.transform.shard.test_shard import check

LAYERS, WIDTH, INNER, ROWS = 3, 8, 16, 4
RNG = np.random.default_rng(5)
Body = Callable[[Node, Sequence[Node]], Sequence[Node]]


def loop(trip_count: int, values: Sequence[Node], body: Body) -> list[Node]:
    """`values` after so many turns of body(number of the turn, values)."""
    inputs = [Input("i", TensorType(i64))(), *(Input(f"v{k}", v.type)() for k, v in enumerate(values))]
    i, *state = inputs
    cond = Graph(tuple(inputs), (ops.compare("LT", i, const(trip_count, np.int64)),))
    step = Graph(tuple(inputs), (ops.add(i, const(1, np.int64)), *body(i, state)))
    return list(ops.While(cond, step)(const(0, np.int64), *values).results[1:])


def at(stack: Node, i: Node) -> Node:
    """stack[i]"""
    zero = const(0, np.int64)
    rest = stack.shape[1:]
    return ops.reshape(ops.DynamicSlice((1, *rest))(stack, i, *[zero] * len(rest)), rest)


def layers(trip_count: int = LAYERS) -> Graph:
    """x + relu(x up) down, with stacked weights, as a scan over layers has them."""
    x = Input("x", TensorType(f32, (ROWS, WIDTH)))()
    up_weights, down_weights = (
        const(RNG.standard_normal((LAYERS, a, b), np.float32) / 4, loc=name)
        for name, a, b in (("up", WIDTH, INNER), ("down", INNER, WIDTH))
    )

    def body(i: Node, values: Sequence[Node]) -> list[Node]:
        y, u, d = values
        hidden = ops.Relu()(ops.MatMul()(y, at(u, i)))
        return [ops.add(y, ops.MatMul()(hidden, at(d, i))), u, d]

    return Graph((x,), (ops.mul(loop(trip_count, [x, up_weights, down_weights], body)[0], 2.0),), ("y",))


X = RNG.standard_normal((ROWS, WIDTH), np.float32)


@pytest.mark.parametrize("trip_count", [0, 1, LAYERS])
@pytest.mark.parametrize("devices", [2, 4])
def test_layers_in_a_loop_take_one_exchange_each(trip_count: int, devices: int):
    assert check(layers(trip_count), {"tp": devices}, {"up": ("tp", 2)}, [X]) == {"all_reduce": 1}
    graph = graphs_of(shard(layers(), mesh_of({"tp": devices}), {"up": ("tp", 2)}))[0]
    (loop_,) = [n for n in graph.nodes() if isinstance(n.op, ops.While)]
    assert [x.shape for x in loop_.inputs[2:]] == [(LAYERS, WIDTH, INNER // devices), (LAYERS, INNER // devices, WIDTH)]


def test_a_batch_stays_in_parts():
    assert check(layers(), {"dp": 2}, {"x": ("dp", 0)}, [X]) == {}
    assert check(layers(), {"dp": 2, "tp": 2}, {"x": ("dp", 0), "up": ("tp", 2)}, [X]) == {"all_reduce": 1}


def test_what_the_body_needs_whole_is_gathered_in_front():
    """Each turn reads another row: rows are whole, columns in parts."""
    x = Input("x", TensorType(f32, (6, WIDTH)))()
    zeros = const(np.zeros(WIDTH, np.float32))
    sums = loop(6, [zeros, x], lambda i, v: [ops.Tanh()(ops.add(v[0], at(v[1], i))), v[1]])[0]
    graph, data = Graph((x,), (sums,)), RNG.standard_normal((6, WIDTH), np.float32)
    assert check(graph, {"tp": 2}, {"x": ("tp", 0)}, [data]) == {"all_gather": 1}
    first = graphs_of(shard(graph, mesh_of({"tp": 2}), {"x": ("tp", 0)}))[0]
    (loop_,) = [n for n in first.nodes() if isinstance(n.op, ops.While)]
    assert isinstance(loop_.op, ops.While) and not collectives(loop_.op.body) and loop_.inputs[2].shape == (6, WIDTH)
    assert check(graph, {"tp": 2}, {"x": ("tp", 1)}, [data]) == {}


def test_loops_in_loops_and_weights_of_bodies():
    x = Input("x", TensorType(f32, (ROWS, WIDTH)))()
    w = const(RNG.standard_normal((WIDTH, INNER), np.float32) / 4, loc="w")
    v = const(RNG.standard_normal((INNER, WIDTH), np.float32) / 4, loc="v")

    def inner(i: Node, values: Sequence[Node]) -> list[Node]:
        return [ops.Tanh()(ops.MatMul()(ops.MatMul()(values[0], w), v))]

    graph = Graph((x,), tuple(loop(2, [x], lambda i, values: loop(2, values, inner))))
    assert check(graph, {"tp": 2}, {"w": ("tp", 1)}, [X]) == {"all_reduce": 1}
    assert check(graph, {"tp": 2}, {"x": ("tp", 0)}, [X]) == {}


def test_random_loops():
    for _ in range(60):
        x = Input("x", TensorType(f32, (4, 4)))()
        kinds = RNG.integers(0, 5, 3)
        w = const(RNG.standard_normal((4, 4), np.float32) / 2, loc="w")

        def body(i: Node, v: Sequence[Node], kinds: Any = kinds, w: Node = w) -> list[Node]:
            a, b = v
            candidates = [ops.add(a, b), ops.MatMul()(a, w), ops.transpose(b, (1, 0)), ops.Softmax(1)(a), ops.mul(b, a)]
            return [candidates[kinds[0]], candidates[kinds[1]]]

        graph = Graph((x,), tuple(loop(int(kinds[2]), [x, ops.Tanh()(x)], body)))
        marks = {"x": ("tp", int(RNG.integers(2)))} | ({"w": ("tp", int(RNG.integers(2)))} if 1 in kinds[:2] else {})
        check(graph, {"tp": 2}, marks, [RNG.standard_normal((4, 4), np.float32)])


MODULE = """
func.func @main(%x: tensor<4x8xf32> loc("x"), %w: tensor<8x16xf32> loc("w"), %v: tensor<16x8xf32> loc("v"))
    -> tensor<4x8xf32> {
  %n = stablehlo.constant dense<3> : tensor<i64>
  %one = stablehlo.constant dense<1> : tensor<i64>
  %zero = stablehlo.constant dense<0> : tensor<i64>
  %r:2 = stablehlo.while(%i = %zero, %y = %x) : tensor<i64>, tensor<4x8xf32>
   cond {
    %c = stablehlo.compare LT, %i, %n : (tensor<i64>, tensor<i64>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  } do {
    %j = stablehlo.add %i, %one : tensor<i64>
    %a = stablehlo.dot_general %y, %w, contracting_dims = [1] x [0]
        : (tensor<4x8xf32>, tensor<8x16xf32>) -> tensor<4x16xf32>
    %b = stablehlo.dot_general %a, %v, contracting_dims = [1] x [0]
        : (tensor<4x16xf32>, tensor<16x8xf32>) -> tensor<4x8xf32>
    %t = stablehlo.tanh %b : tensor<4x8xf32>
    stablehlo.return %j, %t : tensor<i64>, tensor<4x8xf32>
  }
  return %r#1 : tensor<4x8xf32>
}
"""
WEIGHTS = {n: np.random.default_rng(9).standard_normal(s, np.float32) / 4 for n, s in (("w", (8, 16)), ("v", (16, 8)))}


def in_processes(x: np.ndarray) -> tuple[np.ndarray, int]:
    model = ingot.compile(MODULE, weights=WEIGHTS, threads=1, cache=False, mesh={"tp": 2}, shard={"w": ("tp", 1)})
    assert current().size == 2
    return model(x), sum(step.collective is not None for step in model.program.steps)


@pytest.mark.slow
def test_processes_exchange_within_a_loop():
    expected = X
    for _ in range(3):
        expected = np.tanh(expected @ WEIGHTS["w"] @ WEIGHTS["v"])
    for got, count in ingot.launch(in_processes, 2, (X,), seconds=100):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
        assert count == 1
