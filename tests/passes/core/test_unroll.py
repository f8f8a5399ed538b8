"""Loops of a constant number of rounds become their rounds; slices at constant positions plain ones."""

from __future__ import annotations

import numpy as np
import pytest

from ingot import ops
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input, Node, const
from ingot.ir.types import TensorType, f32, i64
from ingot.passes.core.unroll import MAX_ROUNDS, unroll

X = TensorType(f32, (5, 2))


def _loop(start: Node, stop: Node, step: int = 1) -> Graph:
    """Rows of x, from `start` to `stop`, doubled and written in reverse into a copy."""
    x = Input("x", X)()
    i, end, y = (Input(f"v{k}", v.type)() for k, v in enumerate((start, stop, x)))
    zero = const(0, np.int64)
    row = ops.DynamicSlice((1, 2))(y, i, zero)
    next_y = ops.DynamicUpdateSlice()(y, ops.Add()(row, row), ops.Sub()(const(4, np.int64), i), zero)
    cond, body = Graph((i, end, y), (ops.Compare("LT")(i, end),)), Graph((i, end, y), (ops.add(i, step), end, next_y))
    inputs = tuple(n for n in (x, start, stop) if isinstance(n.op, Input))
    return Graph(inputs, (ops.While(cond, body)(start, stop, x).results[2],))


@pytest.mark.parametrize(("start", "stop"), [(0, 0), (0, 5), (1, 4), (-2, 9)])
def test_rounds_of_constants(start: int, stop: int) -> None:
    graph = _loop(const(start, np.int64), const(stop, np.int64))
    unrolled = unroll(graph)
    kinds = {type(n.op) for n in unrolled.nodes()}
    assert not kinds & {ops.While, ops.DynamicSlice, ops.DynamicUpdateSlice}
    x = np.random.default_rng(0).normal(size=(5, 2)).astype(np.float32)
    np.testing.assert_array_equal(interpret(unrolled, [x])[0], interpret(graph, [x])[0])


def test_what_stays() -> None:
    """A number of rounds that is an input, and more rounds than there may be."""
    stop = Input("stop", TensorType(i64))()
    for end in (stop, const(MAX_ROUNDS + 1, np.int64)):
        graph = _loop(const(0, np.int64), end)
        assert ops.While in {type(n.op) for n in unroll(graph).nodes()}
    inside = _loop(const(0, np.int64), const(MAX_ROUNDS, np.int64))
    assert ops.While not in {type(n.op) for n in unroll(inside).nodes()}
    endless = _loop(const(0, np.int64), const(1, np.int64), step=0)
    assert ops.While in {type(n.op) for n in unroll(endless).nodes()}
