"""Short rows, each element in a vector of its own, against the interpreter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from ingot.ir.dims import symbol
from ingot.ir.kernel.show import show_kernel
from ingot.ir.layout import Layout
from ingot.ir.node import Graph, Node, const
from ingot.ir.types import DType, bf16, f16, f32, f64, i32
from ingot.ops import Exp, Reverse, Take
from ingot.ops import build as op
from ingot.ops.nn.softmax import LogSoftmax, LogSumExp, Softmax
from ingot.schedule.cpu.machine import AVX2, AVX512, NEON
from ingot.schedule.cpu.rows.lower import lower_rows
from tests.schedule.compiled import HOST, MACHINES, check, inputs_like, slow

narrow = [replace(NEON, threads=1)] if HOST.arch != "x86_64" else [replace(AVX2, vector_bits=128, threads=1)]
on_machines = pytest.mark.parametrize("machine", [*MACHINES, *narrow], ids=lambda m: f"{m.vector_bits}")
TREES: dict[str, Callable[[Node, int], Node]] = {
    "softmax": lambda x, d: Softmax(axis=d).lower(x),
    "log_softmax": lambda x, d: LogSoftmax(axis=d).lower(x),
    "log_sum_exp": lambda x, d: LogSumExp((d,)).lower(x),
    "variance": lambda x, d: op.var(x, d),
    "normalized": lambda x, d: op.div(x, op.add(op.reduce_max(op.maximum(x, 1.0), d, True), 1.0)),
    "arg max and all": lambda x, d: op.add(op.cast(op.arg_reduce("max", x, d, keepdims=True), f32), op.mul(x, 2.0)),
}


def values(*shape: int) -> np.ndarray:
    """NaN, infinities and huge numbers in some rows."""
    x = np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)
    if x.size > 60:
        x.reshape(-1)[[3, x.size // 2, -1]] = np.nan, np.inf, -np.inf
        x[1] *= 1e30
    return x


@pytest.mark.sampled(3)
@on_machines
@pytest.mark.parametrize("size", [2, 3, 8, 10, 17, 32, *slow(4, 7, 16, 31)])
def test_rows(size: int, machine) -> None:
    """Whole groups of rows and a rest, fewer rows than lanes, none."""
    for tree in TREES.values():
        for shape in ((67, size), (3, 5, size), (0, size), (5, 4, 1, size)):
            x = values(*shape)
            (a,) = inputs_like([x])
            check(Graph((a,), (tree(a, x.ndim - 1),)), [x], machine=machine)


@on_machines
@pytest.mark.parametrize("size", [3, 10, 21])
def test_rows_of_any_number_past_the_caches(size: int, machine) -> None:
    """Symbolic rows, beside values that are broadcast along rows and across them; two results."""
    small = replace(machine, l3=64)
    x, scale, shift = values(77, size), values(size), values(77, 1)
    a, b, c = ins = inputs_like([x, scale, shift], {0: (symbol("n"), size), 2: (symbol("n"), 1)})
    centred = op.sub(a, op.mean(a, 1, keepdims=True))
    graph = Graph(tuple(ins), (op.add(op.mul(centred, b), c), op.reduce_max(centred, 1)))
    check(graph, [x, scale, shift], machine=small)
    check(Graph((a,), (Softmax(axis=1).lower(a),)), [x], machine=small)


@on_machines
@pytest.mark.parametrize("size", [3, 16, 40])
def test_rows_that_read_other_rows(size: int, machine) -> None:
    """Of operands and of values that a reduction reads, by views and gathers, in short rows and in longer ones."""
    (a,) = inputs_like([values(40, size)])
    backwards = const(np.arange(39, -1, -1, dtype=np.int64))
    for value in (a, Exp()(a)):
        total = op.reduce_sum(value, 1, keepdims=True)
        for moved in (Reverse((0,))(value), Reverse((0, 1))(value), Take(0).lower(value, backwards)):
            check(Graph((a,), (op.mul(moved, total),)), [np.clip(values(40, size), -9, 9)], machine=machine)
            check(
                Graph((a,), (op.reduce_sum(op.mul(op.mul(moved, value), total), 1),)),
                [values(40, size) / 1e30],
                machine=machine,
            )


@on_machines
@pytest.mark.parametrize("dtype", [bf16, f16, f64, i32], ids=str)
def test_other_elements(dtype: DType, machine) -> None:
    for size in (3, 12):
        x = (np.random.default_rng(size).standard_normal((70, size)) * 9).astype(dtype.numpy)
        (a,) = inputs_like([x])
        result = op.sub(a, op.reduce_max(a, 1, keepdims=True)) if dtype == i32 else Softmax(axis=1).lower(a)
        check(Graph((a,), (result,)), [x], machine=machine, rtol=1e-2 if dtype.bits == 16 else 4e-6)


def test_rows_become_columns() -> None:
    """Two shuffles for each of the 3 vectors that are read and the 3 that are written for 16 rows."""
    (a,) = inputs_like([values(64, 3)])
    lay = (Layout.contiguous(a.shape),)
    (step,) = lower_rows(Graph((a,), (Softmax(axis=1).lower(a),)), lay, lay, AVX512).steps
    assert show_kernel(step.kernel).count("shuffle") == 12
