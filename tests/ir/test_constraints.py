"""What type rules assume of sizes becomes conditions of the graph."""

from __future__ import annotations

import pytest

from ingot import ops
from ingot.ir.constraints import constrained
from ingot.ir.dims import symbol
from ingot.ir.node import Graph, Input, Node
from ingot.ir.types import TensorType, f32, i64
from ingot.support.errors import ShapeError

P, Q = symbol("p"), symbol("q")


def x(*shape) -> Node:
    return Input("x", TensorType(f32, shape))()


def at(*shape) -> Node:
    return Input("at", TensorType(i64, shape))()


def conditions(*outputs: Node, bounds=()) -> list[str]:
    inputs = dict.fromkeys(n for o in outputs for n in Graph((), (o,)).nodes() if isinstance(n.op, Input))
    return sorted(map(str, constrained(Graph(tuple(inputs), outputs, bounds=bounds)).conditions))


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (ops.GatherElements(1)(x(P, 5), at(Q, 5)), ["p-1*q"]),
        (ops.ScatterElements(0)(x(5, P), at(3, Q), Input("u", TensorType(f32, (3, Q)))()), ["p-1*q"]),
        (ops.Slice((0,), (Q,), (1,))(x(P + Q)), []),
        (ops.Slice((0,), (P,), (2,))(x(P)), []),
        (ops.TopK(Q, 1)(x(Q, P)).results[0], ["p-1*q"]),
        (ops.Windows(0, 3)(x(P)), ["p-3"]),
        (ops.DynamicUpdateSlice()(x(P), Input("u", TensorType(f32, (Q,)))(), at()), ["p-1*q"]),
    ],
    ids=lambda value: value.op.name if isinstance(value, Node) else None,
)
def test_what_bounds_do_not_settle_is_a_condition(node: Node, expected: list[str]) -> None:
    assert conditions(node) == expected
    assert conditions(node, bounds=(("p", 9, None), ("q", 0, 9))) == []


def test_what_no_sizes_hold_for_is_refused() -> None:
    with pytest.raises(ShapeError, match="axis 0: expected at most p indices, got p"):
        ops.GatherElements(1)(x(P, 5), at(P + 1, 5))


def test_graphs_inside_count() -> None:
    body = Graph((inner := Input("v", TensorType(f32, (P,)))(),), (ops.Slice((0,), (3,), (1,))(inner),))
    other = Graph((inner,), (ops.Slice((0,), (3,), (1,))(ops.Neg()(inner)),))
    case = ops.Case((body, other))(Input("i", TensorType(i64))(), x(P))
    assert conditions(*case.results) == ["p-3"]
