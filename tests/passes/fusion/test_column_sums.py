"""Reductions of columns in the kernel that holds the rows."""

from __future__ import annotations

from dataclasses import replace

from ingot import ops
from ingot.ir.node import Graph, Node
from ingot.ir.types import bf16
from tests.passes.check import arg, graph
from tests.passes.fusion import test_epilogue_results
from tests.passes.fusion.test_epilogue_results import kinds as kinds_by

POLICY = replace(test_epilogue_results.POLICY, max_single_row=1024)
X, G = arg("x", 3, 4, 264), arg("g", 3, 4, 264)


def kinds(g: Graph) -> list[tuple[str, int]]:
    return kinds_by(g, POLICY)


def softmax_gradient(x: Node, g: Node) -> Node:
    *outer, inner = range(x.type.rank)
    along = ops.Reduce("sum", (inner,))(ops.Mul()(x, g))
    return ops.Mul()(x, ops.Sub()(g, ops.BroadcastInDim(x.shape, tuple(outer))(along)))


def columns(x: Node) -> Node:
    return ops.Reduce("sum", (0,))(ops.reshape(x, (12, x.shape[-1])))


def test_columns_of_operands_and_results_are_added_where_rows_are_held() -> None:
    y = softmax_gradient(X, G)
    assert kinds(graph(y, columns(ops.Exp()(G)), columns(y))) == [("rows_and_columns", 3)]
    narrow = ops.Convert(bf16)(y)
    results = kinds(graph(y, columns(ops.Exp()(G)), narrow, columns(narrow)))
    assert results == [("rows_and_columns", 4)]


def test_columns_of_other_values_are_not() -> None:
    y, other = softmax_gradient(X, G), arg("other", 3, 4, 264)
    turned = ops.Reduce("sum", (0,))(ops.reshape(ops.Transpose((1, 0, 2))(y), (12, 264)))
    groups = ops.Reduce("sum", (1,))(y)
    for value in (columns(ops.Mul()(y, other)), turned, groups):
        assert "rows_and_columns" not in {kind for kind, _ in kinds(graph(y, value))}
    for size in (256, 1025):
        g = arg("g", 12, size)
        y = softmax_gradient(arg("x", 12, size), g)
        assert "rows_and_columns" not in {kind for kind, _ in kinds(graph(y, columns(y), columns(ops.Exp()(g))))}


def test_the_columns_of_one_group_are_added_apart() -> None:
    y = softmax_gradient(X, G)
    assert kinds(graph(y, columns(y))) == [("rows", 1), ("rows", 1)]


def test_a_sum_that_the_rows_depend_on_is_before_them() -> None:
    total = columns(G)
    scaled = ops.Mul()(G, ops.BroadcastInDim(G.shape, (2,))(total))
    results = kinds(graph(softmax_gradient(X, scaled), total))
    assert ("rows", 1) in results and not any(kind == "rows_and_columns" for kind, _ in results)
    # columns of two chains of rows, each of which reads a sum of the other's operands
    y = softmax_gradient(X, G)
    other = arg("h", 3, 4, 264)
    z = softmax_gradient(ops.Add()(y, ops.BroadcastInDim(G.shape, (2,))(columns(y))), other)
    sums = [columns(ops.Exp()(n)) for n in (G, other)]
    results = kinds(graph(z, *sums, columns(z)))
    assert [kind for kind, _ in results] == ["rows_and_columns"] * 2
