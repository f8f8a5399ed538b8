"""Rows side by side, several vectors of them at a time, and rows of several passes, against the interpreter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from ingot.ir.dims import symbol
from ingot.ir.kernel_show import show_kernel
from ingot.ir.layout import Layout
from ingot.ir.node import Graph, Node
from ingot.ops import build as op
from ingot.ops.nn.softmax import LogSoftmax, LogSumExp, Softmax
from ingot.schedule.machine import AVX512
from ingot.schedule.reduction import lower_rows
from ingot.schedule.row_loops import WIDE
from tests.schedule.compiled import MACHINES, check, inputs_like

both = pytest.mark.parametrize("machine", MACHINES, ids=lambda m: f"{m.vector_bits}")
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


@both
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


@both
@pytest.mark.parametrize("tree", TREES)
def test_columns_of_any_number(tree: str, machine) -> None:
    """Symbolic numbers of columns, of images and of what is reduced."""
    for shape in ((2, 6, 37), (1, 9, 300)):
        x = values(*shape)
        for d in range(3):
            (a,) = ins = inputs_like([x], {0: tuple(symbol("n") if i == d else s for i, s in enumerate(shape))})
            check(Graph(tuple(ins), (TREES[tree](a, 1),)), [x], machine=replace(machine, l3=64))


@both
@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("memory", [False, True], ids=["caches", "memory"])
def test_short_rows_in_turn(tree: str, memory: bool, machine) -> None:
    """Whole groups of rows and what is left of them; several kept dimensions, and any number of rows."""
    for *shape, length in ((300, 33), (2, 167, 49), (136, 64), (15, 9, 20), (140, 250)):
        x = values(*shape, length)
        (a,) = ins = inputs_like([x], {0: (symbol("n"), *x.shape[1:])} if x.ndim == 3 else None)
        machine = replace(machine, l3=64) if memory else machine
        check(Graph(tuple(ins), (TREES[tree](a, len(shape)),)), [x], machine=machine)


@both
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
    asked = {}
    for l3 in (64, 1 << 30):
        (step,) = lower_rows(graph, lay, lay, replace(AVX512, l3=l3)).steps
        asked[l3] = show_kernel(step.kernel).count("prefetch")
    assert asked == {64: 3 * WIDE, 1 << 30: 0}
