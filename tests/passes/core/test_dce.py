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
    cleaned = dce(g)
    assert cleaned.inputs == (X, Y)
    assert cleaned.outputs[0] is ops.Group(Graph((P,), (ops.Neg()(P),), ("a",)), "pointwise")(X)
    same_values(g, cleaned)
    assert dce(cleaned) is cleaned


def test_chains_of_groups_shrink_from_the_end() -> None:
    two_results = Graph((P, Q), (ops.Neg()(P), ops.Exp()(Q)))
    a, b = ops.Group(two_results, "pointwise")(X, Y).results
    c, _ = ops.Group(two_results, "pointwise")(a, b).results
    cleaned = dce(graph(c))
    assert all(len(n.inputs) <= 1 for n in cleaned.nodes())
    assert [len(n.types) for n in cleaned.nodes()] == [1] * 4


def test_a_loop_loses_values_that_only_they_need() -> None:
    i, dead, alive = arg("i", dtype=i64), arg("dead", 3), arg("alive", 3)
    cond = Graph((i, dead, alive), (ops.compare("LT", i, 3),))
    body = Graph((i, dead, alive), (ops.add(i, 1), ops.Mul()(dead, alive), ops.add(alive, 1.0)))
    loop = ops.While(cond, body)(const(np.int64(0)), X, Y)
    g = graph(loop.results[2])
    cleaned = dce(g)
    (new,) = [n for n in cleaned.nodes() if isinstance(n.op, ops.While)]
    assert len(new.inputs) == 2
    same_values(g, Graph(g.inputs, cleaned.outputs))
    g = graph(loop.results[1])
    assert dce(g) is g


def test_a_case_keeps_what_any_branch_reads() -> None:
    branches = (Graph((P, Q), (P, Q)), Graph((P, Q), (ops.Neg()(P), ops.Exp()(P))))
    pick = ops.Convert(i64)(arg("w", dtype=boolean))
    first, second = ops.Case(branches)(pick, X, Y).results
    cleaned = dce(graph(first))
    (case,) = [n for n in cleaned.nodes() if isinstance(n.op, ops.Case)]
    assert case.inputs == (pick, X)
    two_results = graph(second)
    assert dce(two_results).outputs[0].op.bodies[0].inputs == (P, Q)


def test_bodies_are_cleaned_too() -> None:
    inner = ops.Group(Graph((P, Q), (ops.Neg()(P), Q)), "pointwise")(P, Q).results[0]
    outer = ops.Group(Graph((P, Q), (inner,)), "pointwise")(X, Y)
    cleaned = dce(graph(outer))
    assert cleaned.outputs[0].inputs == (X,)
