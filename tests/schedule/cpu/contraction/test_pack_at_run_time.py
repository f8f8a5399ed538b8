"""Operands that are no constants in panels: every order of both, rests of columns, batches, windows."""

from __future__ import annotations

import numpy as np
import pytest

from ingot import ops
from ingot.ir.node import Graph, Node, Op
from tests.schedule.compiled import MACHINES, Machine, check, compile_graph, inputs_like

RNG = np.random.default_rng(7)


def random(*shape: int, dtype: type = np.float32) -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


def dot(contract: tuple[int, int], batch: tuple[int, ...] = ()) -> Op:
    return ops.DotGeneral((batch, batch), ((contract[0],), (contract[1],)))


CONVOLUTION = ops.Convolution((2, 2), ((0, 0),) * 2, (1, 1), (1, 1), "NHWC", "OIHW", "NHWC")
CASES: list[tuple[Op, tuple[np.ndarray, ...]]] = [
    (dot((0, 0)), (random(300, 130), random(300, 133))),  # the gradient of a weight
    (dot((1, 0)), (random(131, 257), random(257, 97))),
    (dot((1, 1)), (random(259, 300), random(145, 300))),  # B is turned, then laid out
    (dot((1, 0)), (random(130, 257, dtype=np.float64), random(257, 70, dtype=np.float64))),
    (dot((2, 1), (0,)), (random(3, 140, 260), random(3, 260, 50))),
    (CONVOLUTION, (random(3, 15, 19, 64), random(70, 64, 3, 3))),
]


@pytest.mark.parametrize("machine", MACHINES, ids=["native", "narrow"][: len(MACHINES)])
@pytest.mark.parametrize(("op", "xs"), CASES, ids=range(len(CASES)))
def test_products(op: Op, xs: tuple[np.ndarray, ...], machine: Machine) -> None:
    inputs = inputs_like(xs)
    y = op(*inputs)
    graph = Graph(tuple(inputs), (_with_epilogue(y),))
    steps = [s.kernel for s in compile_graph(graph, machine).program.steps]
    assert any(name.startswith("panels") for name in steps), steps
    check(graph, xs, machine=machine)


def _with_epilogue(y: Node) -> Node:
    return ops.add(ops.maximum(y, 0.0), 1.0)


def test_few_rows_read_b_in_place() -> None:
    xs = random(64, 300), random(300, 128)
    inputs = inputs_like(xs)
    graph = Graph(tuple(inputs), (dot((1, 0))(*inputs),))
    assert not any(s.kernel.startswith("panels") for s in compile_graph(graph).program.steps)
    check(graph, xs)
