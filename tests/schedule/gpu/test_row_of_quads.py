"""A row and levels of 4 bits with a constant zero, which tensor cores multiply, by its meaning."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from ingot import ops
from ingot.ir import kernel as k
from ingot.ir.interp import interpret
from ingot.ir.kernel.show import show_kernel
from ingot.ir.node import Graph, Input, Node, const
from ingot.ir.types import TensorType, dtype_of
from tests.conformance.checked import planned, run_planned
from tests.conformance.targets import H100
from tests.schedule.gpu.test_single_row import normed

RNG = np.random.default_rng(11)
BF16, U4, I4 = ml_dtypes.bfloat16, ml_dtypes.uint4, ml_dtypes.int4


def levels(depth: int, columns: int, block: int, kind: type, stored: type, zero: int) -> Node:
    low = 0 if stored is U4 else -8
    shape = columns, depth // block, block
    q = RNG.integers(low, low + 16, shape).astype(stored)
    scale = (RNG.uniform(0.5, 1, (*shape[:2], 1)) / 16 / depth**0.5).astype(kind)
    w = ops.Dequantize()(const(q), const(np.full((1, 1, 1), zero, stored)), const(scale))
    return ops.reshape(w, (columns, depth))


def has_quads(kernel: k.Kernel) -> bool:
    return "quads." in show_kernel(kernel)


@pytest.mark.parametrize(("kind", "depth", "columns", "block", "stored", "zero"), [
    (BF16, 1024, 40, 32, U4, 8), (np.float16, 2048, 70, 32, U4, 8), (BF16, 1152, 20, 64, U4, 0),
    (np.float16, 2048, 3, 256, I4, 0), (BF16, 3072, 1, 32, I4, 3), (np.float16, 1920, 5, 96, U4, 15),
])  # fmt: skip
def test_a_row_by_quads(kind, depth, columns, block, stored, zero):
    x = Input("x", TensorType(dtype_of(np.empty(0, kind)), (1, depth)))()
    w = levels(depth, columns, block, kind, stored, zero)
    g = Graph((x,), (ops.DotGeneral(((), ()), ((1,), (1,)))(x, w),))
    program, kernels = planned(g, H100)
    assert all(map(has_quads, kernels.values()))
    precision = 2 * 2.0 ** (-8 if kind is BF16 else -10)  # the reference rounds weights, too
    row = RNG.normal(size=(1, depth)).astype(kind)
    huge = float(ml_dtypes.finfo(kind).max) / 32  # sums of levels are scaled in f32
    for at, value in ((None, 0), (depth - 1, np.inf), (33, np.nan), (5, huge)):
        if at is not None:
            row[0, at] = value
        (got,), (want,) = run_planned(program, kernels, [row]), interpret(g, [row])
        got, want = got.astype(np.float64), want.astype(np.float64)
        finite = np.isfinite(want)
        assert (finite == np.isfinite(got)).all() and (np.isnan(got) == np.isnan(want)).all()
        scale = np.abs(want[finite]).max(initial=0)
        assert np.abs(got[finite] - want[finite]).max(initial=0) <= precision * scale
        row[0, at or 0] = 1


def test_zeros_of_blocks_are_no_constant():
    x = Input("x", TensorType(dtype_of(np.empty(0, np.float16)), (1, 1024)))()
    q, zero = (RNG.integers(0, 16, s).astype(U4) for s in ((8, 32, 32), (8, 32, 1)))
    w = ops.reshape(ops.Dequantize()(const(q), const(zero), const(np.ones((8, 32, 1), np.float16))), (8, 1024))
    _, kernels = planned(Graph((x,), (ops.DotGeneral(((), ()), ((1,), (1,)))(x, w),)), H100)
    assert not any(map(has_quads, kernels.values()))


@pytest.mark.parametrize("columns", [33, 70])
def test_a_norm_and_a_gate_of_quads(columns):
    x = Input("x", TensorType(dtype_of(np.empty(0, np.float16)), (1, 1024)))()
    row = normed(x)
    gate, up = (
        ops.DotGeneral(((), ()), ((1,), (1,)))(row, levels(1024, columns, 32, np.float16, U4, 8)) for _ in range(2)
    )
    g = Graph((x,), (ops.Mul()(ops.Logistic()(gate), up),))
    program, kernels = planned(g, H100)
    assert len(program.steps) == 1 and all(map(has_quads, kernels.values()))
    v = RNG.normal(size=(1, 1024)).astype(np.float16)
    (got,), (want,) = run_planned(program, kernels, [v]), interpret(g, [v])
    got, want = got.astype(np.float64), want.astype(np.float64)
    assert np.abs(got - want).max() < 4e-3 * np.abs(want).max()
