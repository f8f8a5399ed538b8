from __future__ import annotations

from ingot import ops
from ingot.ir.node import Const, Graph, Input, Project
from ingot.ops.core.base import CoreOp
from ingot.passes.model.lower import lower_model_ops
from tests.passes.check import arg, count, graph, same_values

X = arg("x", 3, 5)


def test_lowers_to_primitives_everywhere() -> None:
    p = arg("p", 3, 5)
    inside = ops.Group(Graph((p,), (ops.Softmax(1)(p),)), "row")(X)
    values, places = ops.TopK(2, 1, True, True)(ops.Silu()(inside)).results
    g = graph(values, places)
    lowered = lower_model_ops(g)
    assert all(isinstance(n.op, CoreOp | Input | Const | Project) for n in lowered.nodes())
    assert count(lowered, ops.TopK, ops.Silu) == 0
    (group,) = [n for n in lowered.nodes() if isinstance(n.op, ops.Group)]
    assert count(group.op.bodies[0], ops.Softmax) == 0
    same_values(g, lowered, 1e-5)


def test_keeps_the_classes_it_is_told_to() -> None:
    g = graph(ops.Softmax(1)(ops.Silu()(X)))
    lowered = lower_model_ops(g, frozenset({ops.Softmax}))
    assert count(lowered, ops.Softmax) == 1
    assert count(lowered, ops.Silu) == 0
    assert lower_model_ops(lowered, frozenset({ops.Softmax})) is lowered


def test_takes_no_fuel(monkeypatch) -> None:
    monkeypatch.setenv("INGOT_FUEL", "0")
    assert count(lower_model_ops(graph(ops.Softmax(1)(X))), ops.Softmax) == 0
