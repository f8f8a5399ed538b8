"""Running reductions against the interpreter: extrema of 16-bit floats, which are compared as integers."""

from __future__ import annotations

import numpy as np
import pytest

from ingot import ops
from ingot.ir.kernel.show import show_kernel
from ingot.ir.layout import Layout
from ingot.ir.node import Graph
from ingot.ir.types import DType, bf16, f16, f32, i32
from ingot.ops import build as op
from ingot.ops.nn.softmax import Softmax
from ingot.schedule.cpu.machine import AVX512
from ingot.schedule.cpu.rows.lower import lower_rows
from tests.schedule.compiled import MACHINES, check, inputs_like

on_machines = pytest.mark.parametrize("machine", MACHINES, ids=lambda m: f"{m.vector_bits}")


def extremes(dtype: DType, *shape: int) -> np.ndarray:
    """Rows with NaN of either sign, infinities, subnormals, and of nothing else."""
    x = np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype.numpy)
    words, infinity = x.view(np.uint16), int(np.asarray(np.inf, dtype.numpy).view(np.uint16))
    words[1, -1], words[2, 0] = infinity + 1, 0xFFFF
    words[3], words[4], words[5, ::2] = infinity, infinity | 0x8000, infinity | 0x8000
    words[6], words[7, ::3] = 0xFFFF, infinity
    words[8] = np.arange(1, 1 + x[8].size).reshape(x[8].shape) % 63
    words[9] = words[8] | 0x8000
    return x


@pytest.mark.sampled(3)
@on_machines
@pytest.mark.parametrize("dtype", [bf16, f16], ids=str)
def test_extrema_of_16_bits(dtype: DType, machine) -> None:
    for n in (1, 7, 17, 33, 128, 131, 1000):
        x = extremes(dtype, 40, n)
        (a,) = ins = inputs_like([x])
        wide = op.cast(a, f32)
        for axis in (0, 1):
            lowest, highest = op.reduce_min(a, axis), op.reduce_max(wide, axis)
            computed = op.reduce_max(ops.Abs()(a), axis)
            check(Graph(tuple(ins), (lowest, highest, computed)), [x], machine=machine)
            extrema = op.add(op.reduce_min(wide, axis), op.reduce_sum(ops.Abs()(wide), axis))
            check(Graph(tuple(ins), (extrema,)), [x], machine=machine, rtol=1e-5)
            check(Graph(tuple(ins), (op.reduce_max(op.cast(a, i32), axis),)), [x], machine=machine)
            check(Graph(tuple(ins), (Softmax(axis=axis).lower(a),)), [x], machine=machine, rtol=1e-2)


def test_integers_fold_16_bit_floats() -> None:
    """In whole registers of them, not widened."""
    x = np.zeros((64, 4096), bf16.numpy)
    (a,) = ins = inputs_like([x])
    graph = Graph(tuple(ins), (op.reduce_max(op.cast(a, f32), 1),))
    places = (Layout.contiguous(a.shape),), (Layout.contiguous((64,)),)
    (step,) = lower_rows(graph, *places, AVX512).steps
    assert "register i16x64" in show_kernel(step.kernel)
