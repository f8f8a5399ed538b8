from __future__ import annotations

import numpy as np

from ingot import ops
from ingot.ir.node import Graph, const
from ingot.ir.types import boolean, i64
from ingot.passes.core.dce import dce
from tests.passes.check import arg, graph, same_values

X, Y = arg("x", 3), arg("y", 3)
P, Q = arg("p", 3), arg("q", 3)


def test_a_group_loses_results_and_operands_that_nothing_reads() -> None:
    body = Graph((P, Q), (ops.Neg()(P), ops.Exp()(Q)), ("a", "b"))
    first, _ = ops.Group(body, "pointwise")(X, Y).results
    g = Graph((X, Y), (first,))
    out = dce(g)
    assert out.inputs == (X, Y)
    assert out.outputs[0] is ops.Group(Graph((P,), (ops.Neg()(P),), ("a",)), "pointwise")(X)
    same_values(g, out)
    assert dce(out) is out


def test_chains_of_groups_shrink_from_the_end() -> None:
    both = Graph((P, Q), (ops.Neg()(P), ops.Exp()(Q)))
    a, b = ops.Group(both, "pointwise")(X, Y).results
    c, _ = ops.Group(both, "pointwise")(a, b).results
    out = dce(graph(c))
    assert all(len(n.inputs) <= 1 for n in out.nodes())
    assert [len(n.types) for n in out.nodes()] == [1] * 4


def test_a_loop_loses_values_that_only_they_need() -> None:
    i, dead, alive = arg("i", dtype=i64), arg("dead", 3), arg("alive", 3)
    cond = Graph((i, dead, alive), (ops.compare("LT", i, 3),))
    body = Graph((i, dead, alive), (ops.add(i, 1), ops.Mul()(dead, alive), ops.add(alive, 1.0)))
    loop = ops.While(cond, body)(const(np.int64(0)), X, Y)
    g = graph(loop.results[2])
    out = dce(g)
    (new,) = [n for n in out.nodes() if isinstance(n.op, ops.While)]
    assert len(new.inputs) == 2
    same_values(g, Graph(g.inputs, out.outputs))
    g = graph(loop.results[1])
    assert dce(g) is g


def test_a_case_keeps_what_any_branch_reads() -> None:
    branches = (Graph((P, Q), (P, Q)), Graph((P, Q), (ops.Neg()(P), ops.Exp()(P))))
    pick = ops.Convert(i64)(arg("w", dtype=boolean))
    first, second = ops.Case(branches)(pick, X, Y).results
    out = dce(graph(first))
    (case,) = [n for n in out.nodes() if isinstance(n.op, ops.Case)]
    assert case.inputs == (pick, X)
    both = graph(second)
    assert dce(both).outputs[0].op.bodies[0].inputs == (P, Q)


def test_bodies_are_cleaned_too() -> None:
    inner = ops.Group(Graph((P, Q), (ops.Neg()(P), Q)), "pointwise")(P, Q).results[0]
    outer = ops.Group(Graph((P, Q), (inner,)), "pointwise")(X, Y)
    out = dce(graph(outer))
    assert out.outputs[0].inputs == (X,)
