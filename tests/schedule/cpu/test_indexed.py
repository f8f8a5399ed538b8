"""Cumulative folds, sorts and scatters against the interpreter."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ingot.ir.dims import symbol
from ingot.ir.node import Graph
from ingot.ops import CumReduce, Reshape, Scatter, ScatterElements, Slice, Sort, TopK, Transpose
from ingot.passes.model.lower import lower_model_ops
from ingot.schedule.cpu.machine import Machine
from tests.schedule.compiled import MACHINES, NATIVE, check, inputs_like, op_graph

SAMPLES = [s for cls in (CumReduce, Sort, Scatter) for s in cls.samples()]


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: f"{m.vector_bits}")
@pytest.mark.parametrize(("op", "xs"), SAMPLES, ids=lambda v: v.name if hasattr(v, "name") else "")
def test_samples(op, xs, machine) -> None:
    check(op_graph(op, xs), xs, rtol=1e-3 if xs[0].dtype == np.float16 else 4e-6, machine=machine)


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_cumulative_along_any_dimension(dim: int) -> None:
    x = normal(7, 130, 37)
    x[3, 5, 2], x[1, 9, 30] = np.nan, np.inf
    a, b, c = symbol("a"), symbol("b"), symbol("c")
    for op in (CumReduce("sum", dim), CumReduce("max", dim, True), CumReduce("min", dim, False, True)):
        check(op_graph(op, [x]), [x])
        check(op_graph(op, [x], {0: (a, b, c)}), [x])


def test_cumulative_of_a_view_into_a_view() -> None:
    x = normal(4, 30, 20)
    (n,) = inputs_like([x])
    part = Transpose((0, 2, 1))(Slice((0, 2, 1), (4, 26, 20), (1, 2, 1))(n))
    y = Reshape((19, 48))(Transpose((1, 0, 2))(CumReduce("sum", 1)(part)))
    check(Graph((n,), (y,)), [x])


@pytest.mark.parametrize("length", [1, 2, 3, 17, 64, 1000, 5001])
@pytest.mark.parametrize("descending", [False, True])
def test_sort_is_stable(length: int, descending: bool) -> None:
    rng = np.random.default_rng(length)
    x = rng.integers(-9, 9, (3, length, 2)).astype(np.float32)
    x[rng.random(x.shape) < 0.05] = np.nan
    x[rng.random(x.shape) < 0.05] = -0.0
    x[rng.random(x.shape) < 0.02] = -np.inf
    tags = np.arange(x.size, dtype=np.int64).reshape(x.shape)
    n = symbol("n")
    for shapes in (None, {0: (3, n, 2), 1: (3, n, 2)}):
        check(op_graph(Sort(1, descending), [x, tags], shapes), [x, tags])
    check(op_graph(Sort(1, descending, True, 2), [np.floor(x / 4), x]), [np.floor(x / 4), x])


@pytest.mark.parametrize("machine", [*MACHINES, replace(NATIVE, vector_bits=128)])
@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_short_rows_are_sorted_in_lanes(machine: Machine, dtype: type) -> None:
    """Whole vectors of rows and a few more, side by side or behind each other; two digits and two keys."""
    rng = np.random.default_rng(1)
    for length in (2, 7, 31, 64):
        x = (rng.integers(-99, 99, (19, length)) * 2.0**30).astype(dtype)
        tags = np.arange(x.size, dtype=np.int32).reshape(x.shape)
        check(op_graph(Sort(1), [x, tags]), [x, tags], machine=machine)
        columns = [x.T.copy(), tags.T.copy()]
        check(op_graph(Sort(0, True), columns), columns, machine=machine)
        check(op_graph(Sort(1, True, True, 2), [x // 2**32, tags // 3, x]), [x // 2**32, tags // 3, x], machine=machine)


def test_sort_of_nothing() -> None:
    for shape in ((0, 5), (5, 0), (3, 0, 2)):
        x = np.zeros(shape, np.float32)
        check(op_graph(Sort(1), [x]), [x])


ALL = [np.bool_, np.uint8, np.int32, np.uint32, np.int64, np.uint64, np.float16, np.float64]


@pytest.mark.parametrize("dtype", ALL)
def test_sort_of_any_type(dtype: type) -> None:
    x = np.random.default_rng(0).integers(0, 200, 301)
    if dtype is np.uint32:
        x = x.astype(np.uint32) * np.uint32(2**24)
    elif dtype is np.uint64:
        x = x.astype(np.uint64) + np.uint64(2**63 - 100)
    elif np.issubdtype(dtype, np.signedinteger) or np.issubdtype(dtype, np.floating):
        x = x - 100
    x = x.astype(dtype)
    check(op_graph(Sort(0), [x]), [x])
    check(op_graph(Sort(0, True), [x]), [x])


def test_one_result_of_a_sort() -> None:
    x, tags = normal(5, 40), np.arange(200, dtype=np.int32).reshape(5, 40)
    graph = op_graph(Sort(1, True), [x, tags])
    check(graph.with_outputs(graph.outputs[1:]), [x, tags])


def test_top_k() -> None:
    x = normal(3, 100)
    graph = lower_model_ops(op_graph(TopK(5, 1, True, True), [x]), frozenset())
    check(graph, [x])


@pytest.mark.parametrize("machine", [*MACHINES, replace(NATIVE, vector_bits=128)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_the_first_of_long_rows(machine: Machine, dtype: type) -> None:
    """Few of many, by a heap: rows that are in order, the other way around, equal, of extremes and of NaN; lengths that
    are whole vectors and others."""
    rng = np.random.default_rng(0)
    for count, length in ((1, 17), (3, 100), (5, 643), (8, 512), (33, 1001)):
        rows = [rng.standard_normal(length) * 9, np.arange(length), -np.arange(length), np.zeros(length)]
        rows += [rng.integers(0, 3, length), np.where(np.arange(length) % 7, 1.0, -1.0)]
        x = np.stack(rows).astype(dtype)
        low, high = (-np.inf, np.inf) if np.issubdtype(dtype, np.floating) else (np.iinfo(dtype).min,) * 2
        x[4, rng.random(length) < 0.3], x[5, rng.random(length) < 0.3] = low, high
        if np.issubdtype(dtype, np.floating):
            x = np.concatenate([x, np.where(rng.random((2, length)) < [[0.5], [1]], np.nan, x[:2])]).astype(dtype)
        else:
            x[2, ::3] = np.iinfo(dtype).max
        for largest in (True, False):
            graph = op_graph(TopK(count, 1, largest), [x])
            check(lower_model_ops(graph, frozenset()), [x], machine=machine)
        graph = op_graph(TopK(count, 1), [x], {0: (symbol("m"), symbol("n"))})
        check(lower_model_ops(graph, frozenset()), [x], machine=machine)


@pytest.mark.parametrize("kind", ["set", "add", "mul", "max", "min"])
@pytest.mark.parametrize("threads", [1, 8])
def test_scatter_rows(kind: str, threads: int) -> None:
    """Rows at repeated and missing places; the columns are shared out."""
    machine = replace(NATIVE, threads=threads)
    rng = np.random.default_rng(0)
    n = symbol("n")
    op = Scatter(kind, (1,), (0,), (), (), (0,), 1)
    for columns in (1, 5, 700):
        xs = [normal(50, columns), rng.integers(-3, 55, (200, 1)), normal(200, columns)]
        xs[2][7] = np.nan
        check(op_graph(op, xs), xs, rtol=1e-5, machine=machine)
        shapes = {0: (n, columns), 1: (symbol("m"), 1), 2: (symbol("m"), columns)}
        check(op_graph(op, xs, shapes), xs, rtol=1e-5, machine=machine)


def test_scatter_windows_that_overlap() -> None:
    rng = np.random.default_rng(0)
    op = Scatter("add", (1, 2), (), (), (), (0, 1), 1)
    xs = [normal(20, 30), rng.integers(-2, 30, (40, 2)).astype(np.int32), normal(40, 3, 4)]
    check(op_graph(op, xs), xs, rtol=1e-5)
    big = [xs[0], np.full((40, 2), 2**31 - 1, np.int32), xs[2]]
    check(op_graph(op, big), big)


@pytest.mark.parametrize("reduction", ["none", "add", "max"])
def test_scatter_elements(reduction: str) -> None:
    rng = np.random.default_rng(0)
    x, index, updates = normal(6, 20, 9), rng.integers(-6, 6, (4, 20, 5)), normal(4, 20, 5)
    graph = lower_model_ops(op_graph(ScatterElements(0, reduction), [x, index, updates]), frozenset())
    check(graph, [x, index, updates], rtol=1e-5)


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: f"{m.vector_bits}")
@pytest.mark.parametrize(("k", "size"), [(1, 50), (3, 64), (16, 129), (50, 3000)])
def test_first_of_many(k: int, size: int, machine) -> None:
    """By a heap: ties in their order, NaN as the greatest, the last of all integers among the numbers."""
    rng = np.random.default_rng(k)
    ties = rng.integers(-5, 5, (3, size)).astype(np.float32)
    mixed = normal(3, size)
    mixed[0, 5:9], mixed[1, 7], mixed[2, 3] = np.nan, np.inf, -np.inf
    extreme = rng.choice(np.asarray([0, 1, -(1 << 63), (1 << 63) - 1]), (3, size))
    rising = np.tile(np.arange(size, dtype=np.int32), (2, 1))
    for x in (ties, mixed, extreme, rising, ties.astype(np.float16)):
        check(lower_model_ops(op_graph(TopK(k, 1, x is not extreme), [x])), [x], machine=machine)
    check(lower_model_ops(op_graph(TopK(k, 0, largest=False), [mixed.T.copy()])), [mixed.T.copy()], machine=machine)
