"""Loops whose trip counts are known in advance record them in their exit jumps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ingot import ops
from ingot.ir.dims import symbol
from ingot.ir.node import Graph, Input, Node, const
from ingot.ir.types import TensorType, boolean, f32, i32, i64
from tests.conformance.checked import planned

N = symbol("n")


def loop(start: int, end: int | Node, direction: str, step: int, *, is_constant: bool = True) -> Graph:
    """x doubled until i reaches `end`."""
    x = Input("x", TensorType(f32, (N, 3)))()
    bound = const(np.int32(end)) if isinstance(end, int) else ops.Convert(i32)(end)
    operands = const(np.int32(start)), bound if not isinstance(end, Node) else end, x
    if isinstance(end, Node):
        operands = const(np.int64(start)), end, x

    def values() -> tuple[Node, ...]:
        return tuple(Input(f"v{i}", o.type)() for i, o in enumerate(operands))

    i, last, _ = inputs = values()
    cond = Graph(inputs, (ops.Compare(direction)(i, last),))
    i, last, y = inputs = values()
    one = const(i.dtype.numpy.type(step))
    body = Graph(inputs, (ops.Add()(i, one), last if is_constant else ops.Add()(last, one), ops.Add()(y, y)))
    return Graph((x,), (ops.While(cond, body)(*operands).results[2],))


def jump_dims(graph: Graph) -> list[Any]:
    return [step.dims for step in planned(graph, "native")[0].steps if step.target is not None and step.args]


@pytest.mark.parametrize(
    ("start", "end", "direction", "step", "trip_count"),
    [(0, 5, "LT", 1, 5), (2, 5, "LE", 1, 4), (7, 5, "LT", 1, 0), (9, 2, "GT", -1, 7), (9, 2, "GE", -1, 8)],
)
def test_counters_that_reach_their_bound(start: int, end: int, direction: str, step: int, trip_count: int) -> None:
    assert jump_dims(loop(start, end, direction, step)) == [(trip_count,)]


@pytest.mark.parametrize(
    ("condition", "is_constant", "trip_count"), [(True, True, [(5,)]), (False, True, [()]), (True, False, [()])]
)
def test_a_condition_besides_the_counter(condition: bool, is_constant: bool, trip_count: list[Any]) -> None:
    """Loops of ONNX have a condition, which most never change."""
    (op,) = (n.op for n in loop(0, 5, "LT", 1).nodes() if isinstance(n.op, ops.While))
    flag, x = Input("go", TensorType(boolean))(), Input("x", TensorType(f32, (N, 3)))()
    cond = Graph((*op.cond.inputs, flag), (ops.And()(flag, op.cond.results[0]),))
    body = Graph((*op.body.inputs, flag), (*op.body.results, flag if is_constant else ops.Not()(flag)))
    loop_node = ops.While(cond, body)(const(np.int32(0)), const(np.int32(5)), x, const(np.bool_(condition)))
    assert jump_dims(Graph((x,), (loop_node.results[2],))) == trip_count


def test_bounds_that_are_sizes() -> None:
    """JAX counts in i32, and converts sizes to it."""
    for bound in (ops.DimValue(N)(), ops.Convert(i64)(ops.Convert(i32)(ops.DimValue(N)()))):
        ((trip_count,),) = jump_dims(loop(1, bound, "LT", 1))
        assert "n" in trip_count


@pytest.mark.parametrize(
    ("end", "direction", "step", "is_constant"),
    [(5, "LT", 2, True), (5, "NE", 1, True), (5, "GT", 1, True), (5, "LT", 1, False), (2**31 - 1, "LE", 1, True)],
)
def test_other_loops_have_no_trip_count(end: int, direction: str, step: int, is_constant: bool) -> None:
    """Steps beyond the bound, varying bounds, counters that overflow before they reach the bound."""
    assert jump_dims(loop(0, end, direction, step, is_constant=is_constant)) == [()]
