"""Reductions joined from those of parts, against the interpreter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from ingot.ir.dims import symbol
from ingot.ir.layout import Layout
from ingot.ir.node import Graph, Node
from ingot.ir.types import DType, bf16, f16, f64
from ingot.ops import Exp, Sqrt
from ingot.ops import build as op
from ingot.ops.nn.softmax import LogSoftmax, LogSumExp, Softmax
from ingot.schedule.cpu.machine import AVX512
from ingot.schedule.cpu.rows.lower import lower_rows
from tests.schedule.compiled import MACHINES, check, inputs_like, run

on_machines = pytest.mark.parametrize(
    "machine",
    [replace(m, threads=t, l2=1 << 14, l3=64) for m in MACHINES for t in (1, 2)],
    ids=lambda m: f"{m.vector_bits}-{m.threads}",
)
TREES: dict[str, Callable[[Node, tuple[int, ...]], Node]] = {
    "variance": lambda x, d: op.var(x, d),
    "standard deviation": lambda x, d: Sqrt()(op.var(x, d, keepdims=True, correction=1)),
    "log_sum_exp": lambda x, d: LogSumExp(d).lower(x),
    "sum of exponentials": lambda x, d: op.reduce_sum(Exp()(op.sub(x, op.reduce_max(x, d, True))), d),
    "standardized": lambda x, d: op.div(op.sub(x, op.mean(x, d, True)), Sqrt()(op.add(op.var(x, d, True), 1e-5))),
}
SHAPES = (
    ((4096, 33), (0,)), ((2, 6144, 16), (1,)), ((3, 5, 4096), (0, 2)), ((65536,), (0,)), ((40, 8, 512), (0, 1, 2)),
)  # fmt: skip


def steps(graph: Graph, machine) -> int:
    lay = [tuple(Layout.contiguous(n.shape) for n in nodes) for nodes in (graph.inputs, graph.outputs)]
    return len(lower_rows(graph, lay[0], lay[1], machine).steps)


@on_machines
@pytest.mark.parametrize("tree", TREES)
def test_parts_are_joined(tree: str, machine) -> None:
    for shape, dims in SHAPES:
        x = np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)
        (a,) = inputs_like([x])
        check(Graph((a,), (TREES[tree](a, dims),)), [x], machine=machine)


@on_machines
@pytest.mark.parametrize("tree", [t for t in TREES if t != "standardized"])
def test_what_is_no_number(tree: str, machine) -> None:
    """Rows with NaN, with one infinity or several, of infinities alone, with a part of them, of huge numbers."""
    x = np.random.default_rng(3).standard_normal((12, 8192)).astype(np.float32)
    x[1, 77], x[2, 5000], x[3, 9], x[4, [3, 8000]] = np.nan, np.inf, -np.inf, (np.inf, -np.inf)
    x[5], x[6], x[7, :4096], x[8, 4096:] = -np.inf, np.inf, -np.inf, -200 + x[8, 4096:]
    x[9] *= 1e30
    x[10, :4096], x[10, 4096:], x[11] = -np.inf, -200, -1e38
    for y, dims in ((x, (1,)), (np.ascontiguousarray(x.T), (0,))):
        (a,) = inputs_like([y])
        check(Graph((a,), (TREES[tree](a, dims),)), [y], machine=machine)


@on_machines
def test_large_means(machine) -> None:
    """As exact as the mean in f32 lets two passes be, wherever the parts' means lie."""
    rng = np.random.default_rng(5)
    x = rng.standard_normal((8192, 40))
    x += np.where(np.arange(40) % 2, 1e4, np.linspace(-1e4, 1e4, 8192)[:, None] * (np.arange(40) % 4 == 2))
    x = x.astype(np.float32)
    (a,) = inputs_like([x])
    (got,) = run(Graph((a,), (op.var(a, 0),)), [x], machine)
    np.testing.assert_allclose(got, x.astype(np.float64).var(0), rtol=1e-4)


@on_machines
@pytest.mark.parametrize("dtype", [bf16, f16, f64], ids=str)
def test_other_elements(dtype: DType, machine) -> None:
    x = np.random.default_rng(7).standard_normal((4096, 48)).astype(dtype.numpy)
    (a,) = inputs_like([x])
    for tree in ("variance", "log_sum_exp", "sum of exponentials"):
        check(Graph((a,), (TREES[tree](a, (0,)),)), [x], machine=machine, rtol=1e-2 if dtype.bits == 16 else 4e-6)


@on_machines
@pytest.mark.parametrize("normalize", [Softmax, LogSoftmax])
def test_one_row_for_all_threads(normalize: type[Softmax] | type[LogSoftmax], machine) -> None:
    """Of any number of columns as well, and none."""
    for shape in ((131072,), (1, 65536), (16384, 3), (4096, 0)):
        x = (np.random.default_rng(1).standard_normal(shape) * 30).astype(np.float32)
        (a,) = ins = inputs_like([x], {0: (shape[0], symbol("n"))} if shape[-1] == 3 else None)
        axis = 1 if shape[0] == 1 else 0
        check(Graph(tuple(ins), (normalize(axis=axis).lower(a),)), [x], machine=machine)


def test_rows_are_read_once() -> None:
    """Columns that leave a core's cache, and one row for two threads; not columns that stay."""
    for shape, dims, kernels in (((6144, 4096), (0,), 2), ((1 << 24,), (0,), 2), ((32, 1 << 20), (0,), 1)):
        (a,) = inputs_like([np.broadcast_to(np.float32(0), shape)])
        assert steps(Graph((a,), (op.var(a, dims),)), replace(AVX512, threads=2)) == kernels
        assert steps(Graph((a,), (LogSumExp(dims).lower(a),)), replace(AVX512, threads=2)) == kernels
