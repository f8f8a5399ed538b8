"""Loops whose turns are known beforehand say so where they are left."""

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


def loop(start: int, end: int | Node, direction: str, step: int, *, stays: bool = True) -> Graph:
    """x doubled while i lies before `end`."""
    x = Input("x", TensorType(f32, (N, 3)))()
    bound = const(np.int32(end)) if isinstance(end, int) else ops.Convert(i32)(end)
    operands = const(np.int32(start)), bound if not isinstance(end, Node) else end, x
    if isinstance(end, Node):
        operands = const(np.int64(start)), end, x

    def values() -> tuple[Node, ...]:
        return tuple(Input(f"v{i}", o.type)() for i, o in enumerate(operands))

    i, last, _ = held = values()
    cond = Graph(held, (ops.Compare(direction)(i, last),))
    i, last, y = held = values()
    one = const(i.dtype.numpy.type(step))
    body = Graph(held, (ops.Add()(i, one), last if stays else ops.Add()(last, one), ops.Add()(y, y)))
    return Graph((x,), (ops.While(cond, body)(*operands).results[2],))


def told(graph: Graph) -> list[Any]:
    return [step.dims for step in planned(graph, "native")[0].steps if step.target is not None and step.args]


@pytest.mark.parametrize(
    ("start", "end", "direction", "step", "turns"),
    [(0, 5, "LT", 1, 5), (2, 5, "LE", 1, 4), (7, 5, "LT", 1, 0), (9, 2, "GT", -1, 7), (9, 2, "GE", -1, 8)],
)
def test_counters_that_meet_their_bound(start: int, end: int, direction: str, step: int, turns: int) -> None:
    assert told(loop(start, end, direction, step)) == [(turns,)]


@pytest.mark.parametrize(("go", "stays", "turns"), [(True, True, [(5,)]), (False, True, [()]), (True, False, [()])])
def test_a_value_beside_the_counter(go: bool, stays: bool, turns: list[Any]) -> None:
    """Loops of ONNX ask one, which most leave true."""
    (op,) = (n.op for n in loop(0, 5, "LT", 1).nodes() if isinstance(n.op, ops.While))
    flag, x = Input("go", TensorType(boolean))(), Input("x", TensorType(f32, (N, 3)))()
    cond = Graph((*op.cond.inputs, flag), (ops.And()(flag, op.cond.results[0]),))
    body = Graph((*op.body.inputs, flag), (*op.body.results, flag if stays else ops.Not()(flag)))
    made = ops.While(cond, body)(const(np.int32(0)), const(np.int32(5)), x, const(np.bool_(go)))
    assert told(Graph((x,), (made.results[2],))) == turns


def test_bounds_that_are_sizes() -> None:
    """JAX counts in i32, and converts a size to it."""
    for bound in (ops.DimValue(N)(), ops.Convert(i64)(ops.Convert(i32)(ops.DimValue(N)()))):
        ((turns,),) = told(loop(1, bound, "LT", 1))
        assert "n" in turns


@pytest.mark.parametrize(
    ("end", "direction", "step", "stays"),
    [(5, "LT", 2, True), (5, "NE", 1, True), (5, "GT", 1, True), (5, "LT", 1, False), (2**31 - 1, "LE", 1, True)],
)
def test_others_are_asked_turn_by_turn(end: int, direction: str, step: int, stays: bool) -> None:
    """Steps that pass their bound, bounds that move, counters that overflow before they reach them."""
    assert told(loop(0, end, direction, step, stays=stays)) == [()]
