"""Rows side by side, several vectors of them at a time, and rows of several passes, against the interpreter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from ingot.ir.dims import symbol
from ingot.ir.kernel.show import show_kernel
from ingot.ir.layout import Layout
from ingot.ir.node import Graph, Node
from ingot.ir.types import DType, bf16, f32, f64, i8
from ingot.ops import build as op
from ingot.ops.nn.softmax import LogSoftmax, LogSumExp, Softmax
from ingot.schedule.cpu.machine import AVX512
from ingot.schedule.cpu.rows.loops import MAX_VECTORS_ACROSS, cached_column_count
from ingot.schedule.cpu.rows.lower import lower_rows
from ingot.schedule.row_box import rows_of
from tests.schedule.compiled import MACHINES, check, inputs_like

on_machines = pytest.mark.parametrize("machine", MACHINES, ids=lambda m: f"{m.vector_bits}")
TREES: dict[str, Callable[[Node, int], Node]] = {
    "softmax": lambda x, d: Softmax(axis=d).lower(x),
    "log_softmax": lambda x, d: LogSoftmax(axis=d).lower(x),
    "log_sum_exp": lambda x, d: LogSumExp((d,)).lower(x),
    "variance": lambda x, d: op.var(x, d),
    "arg max": lambda x, d: op.arg_reduce("max", x, d),
    "last arg min": lambda x, d: op.arg_reduce("min", x, d, last=True),
    "centred": lambda x, d: op.sub(x, op.mean(x, d, True)),
}


def values(*shape: int) -> np.ndarray:
    """NaN, infinities and huge numbers in some columns."""
    x = np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)
    if x.size > 200:
        x.reshape(-1)[[3, x.size // 2, -1]] = np.nan, np.inf, -np.inf
        x[..., 1] *= 1e30
    return x


@pytest.mark.sampled(5)
@on_machines
@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("memory", [False, True], ids=["caches", "memory"])
def test_columns(tree: str, memory: bool, machine) -> None:
    """Whole blocks, several blocks, vectors that the edge cuts off, a single column, none."""
    machine = replace(machine, l3=64) if memory else machine
    for shape, dim in (
        ((9, 256), 0), ((5, 1024), 0), ((3, 7, 112), 1), ((2, 5, 100), 1), ((4, 209), 0), ((6, 1), 0), ((3, 0), 0),
        ((1, 40), 0), ((3, 2, 5, 48), 1), ((2, 5, 6, 28), 1), ((5, 170), 0), ((3, 1930), 0), ((2, 3, 1936), 1),
    ):  # fmt: skip
        x = values(*shape)
        (a,) = ins = inputs_like([x])
        check(Graph(tuple(ins), (TREES[tree](a, dim),)), [x], machine=machine)


@on_machines
@pytest.mark.parametrize("tree", TREES)
def test_columns_of_any_number(tree: str, machine) -> None:
    """Symbolic numbers of columns, of images and of what is reduced."""
    for shape in ((2, 6, 37), (1, 9, 300)):
        x = values(*shape)
        for d in range(3):
            (a,) = ins = inputs_like([x], {0: tuple(symbol("n") if i == d else s for i, s in enumerate(shape))})
            check(Graph(tuple(ins), (TREES[tree](a, 1),)), [x], machine=replace(machine, l3=64))


@on_machines
@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("memory", [False, True], ids=["caches", "memory"])
def test_short_rows_in_turn(tree: str, memory: bool, machine) -> None:
    """Whole groups of rows and what is left of them; several kept dimensions, and any number of rows."""
    for *shape, length in ((300, 33), (2, 167, 49), (136, 64), (15, 9, 20), (140, 250)):
        x = values(*shape, length)
        (a,) = ins = inputs_like([x], {0: (symbol("n"), *x.shape[1:])} if x.ndim == 3 else None)
        machine = replace(machine, l3=64) if memory else machine
        check(Graph(tuple(ins), (TREES[tree](a, len(shape)),)), [x], machine=machine)


@on_machines
@pytest.mark.parametrize("tree", ["softmax", "log_softmax", "centred"])
@pytest.mark.parametrize("length", [1, 17, 20000, 50257])
def test_long_rows(tree: str, length: int, machine) -> None:
    """Rows that stay in a core's cache and rows that do not."""
    x = values(19, length)
    (a,) = ins = inputs_like([x])
    for l2 in (1 << 20, 1 << 14):
        check(Graph(tuple(ins), (TREES[tree](a, 1),)), [x], machine=replace(machine, l2=l2))


def test_columns_from_memory_ask_for_the_next() -> None:
    """Eight vectors of a row one after another; later passes ask for as many of the next columns."""
    (a,) = inputs_like([np.zeros((32, 4096), np.float32)])
    lay = (Layout.contiguous(a.shape),)
    graph = Graph((a,), (Softmax(axis=0).lower(a),))
    prefetches = {}
    for l3 in (64, 1 << 30):
        (step,) = lower_rows(graph, lay, lay, replace(AVX512, l3=l3)).steps
        prefetches[l3] = show_kernel(step.kernel).count("prefetch")
    assert prefetches == {64: 3 * MAX_VECTORS_ACROSS, 1 << 30: 0}


@pytest.mark.sampled(3)
@on_machines
@pytest.mark.parametrize("dtype", [f32, bf16, f64, i8], ids=str)
@pytest.mark.parametrize("threads", [1, 2])
def test_columns_folded_in_a_cache(dtype: DType, threads: int, machine) -> None:
    """Long lines from memory: whole and cut pieces, several, fewer lines than are read at once, parts, none."""
    machine = replace(machine, l3=64, threads=threads)
    for shape, dims in (
        ((9, 4096), (0,)), ((41, 4999), (0,)), ((3, 7, 2101), (1,)), ((2, 3, 9, 2100), (0, 2)),
        ((0, 4096), (0,)), ((900, 2112), (0,)),
    ):  # fmt: skip
        x = (np.random.default_rng(sum(shape)).standard_normal(shape) * 9).astype(dtype.numpy)
        if x.size and dtype.is_float:
            x.reshape(-1)[[3, 7, 11, -1]] = np.nan, np.inf, -np.inf, 6e4
        (a,) = inputs_like([x])
        for tree in (op.reduce_sum(a, dims), op.sub(op.reduce_max(a, dims), op.cast(op.reduce_sum(a, dims), dtype))):
            check(Graph((a,), (tree,)), [x], machine=machine, rtol=1e-2 if dtype == bf16 else 4e-6)


@on_machines
@pytest.mark.parametrize("rows", [3, 41])
def test_extrema_of_columns_in_a_cache_keep_nan(rows: int, machine) -> None:
    """Whichever of the lines that are folded together has one."""
    x = np.random.default_rng(0).standard_normal((rows, 4999)).astype(np.float32)
    x[np.arange(rows), 100 * np.arange(rows)] = np.nan
    x[:, 4200], x[:, 4300] = np.inf, -np.inf
    (a,) = inputs_like([x])
    for tree in (op.reduce_max(a, 0), op.reduce_min(a, 0)):
        check(Graph((a,), (tree,)), [x], machine=replace(machine, l3=64, threads=2))


def test_which_columns_are_folded_in_a_cache() -> None:
    """Of long lines from memory that nothing reads again."""
    for shape, tree, near in (
        ((6144, 4096), "sum", True), ((6144, 64), "sum", False), ((60, 4096), "sum", False),
        ((1 << 10, 32, 1 << 12), "sum", True), ((6144, 4096), "variance", False), ((6144, 4096), "centred", False),
    ):  # fmt: skip
        (a,) = inputs_like([np.broadcast_to(np.float32(0), shape)])
        reduction = op.reduce_sum(a, len(shape) - 2) if tree == "sum" else TREES[tree](a, len(shape) - 2)
        body = Graph((a,), (reduction,))
        rows = rows_of(body)
        assert rows is not None
        assert (cached_column_count(body, rows, AVX512) is not None) == near


@pytest.mark.sampled(3)
@on_machines
@pytest.mark.parametrize("dtype", [f32, bf16, f64, i8])
@pytest.mark.parametrize("cols", [2, 3])
def test_sums_of_few_terms_across_short_lines(cols: int, dtype: DType, machine) -> None:
    """Points times a matrix of few columns: terms of a pointwise kernel; symbolic rows, other folds, none at all."""
    rng = np.random.default_rng(cols)
    for rows, dynamic in ((0, False), (5, False), (70, False), (70, True)):
        xs = [rng.integers(-9, 9, s).astype(dtype.numpy) for s in ((rows, 3, 1), (3, cols))]
        a, b = ins = inputs_like(xs, {0: (symbol("n"), 3, 1)} if dynamic and rows else None)
        terms = op.mul(a, b)
        outs = (op.reduce_sum(terms, 1), op.reduce_max(terms, 1), op.reduce_min(terms, 1), op.reduce_prod(terms, 1))
        for result in outs:
            check(Graph(tuple(ins), (result,)), xs, machine=machine)
    (a, b) = inputs_like([np.zeros((70, 3, 1), np.float32), np.zeros((3, cols), np.float32)])
    body = Graph((a, b), (op.reduce_sum(op.mul(a, b), 1),))
    lays = tuple(Layout.contiguous(n.shape) for n in (a, b))
    (step,) = lower_rows(body, lays, (Layout.contiguous((70, cols)),), machine).steps
    assert step.kernel.name == "pointwise"
