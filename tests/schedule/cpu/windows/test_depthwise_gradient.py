"""Gradients of depthwise kernels, a vector of channels at a time, beside the definition and PyTorch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ingot import ops
from ingot.ir.dims import symbol
from ingot.ir.interp import interpret
from ingot.ir.node import Graph
from ingot.ir.types import DType, bf16, f16, f32, f64
from ingot.ops.core.base import window_count
from ingot.schedule.cpu.machine import Machine
from tests.schedule.compiled import MACHINES, check, compile_graph, inputs_like, op_graph

Arrays = tuple[np.ndarray, np.ndarray]


def operands(op: ops.KernelGradient, x: tuple[int, ...], multiplier: int = 1, dtype: DType = f32) -> Arrays:
    rng = np.random.default_rng(3)
    steps = zip(x[1:-1], op.window, op.strides, op.dilation, strict=True)
    places = [int(window_count(*v)) for v in steps]
    image, g = (rng.standard_normal(s) for s in (x, (x[0], *places, x[-1] * multiplier)))
    return image.astype(dtype.numpy), g.astype(dtype.numpy)


def gradient(
    window: tuple[int, ...], strides: tuple[int, ...] = (), dilation: tuple[int, ...] = ()
) -> ops.KernelGradient:
    ones = (1,) * len(window)
    return ops.KernelGradient(window, strides or ones, dilation or ones, depthwise=True)


CASES = [
    (gradient((3, 3)), (3, 9, 8, 21), 1),
    (gradient((3, 3)), (2, 40, 66, 80), 1),  # parts, strips and what is asked for ahead
    (gradient((3, 3)), (2, 40, 66, 48), 2),
    (gradient((3, 3), (2, 2)), (2, 12, 11, 300), 1),  # blocks of channels
    (gradient((5, 4), (2, 3)), (2, 11, 13, 7), 2),
    (gradient((2, 2), (3, 3), (2, 1)), (1, 12, 9, 17), 3),
    (gradient((7, 7)), (2, 17, 15, 40), 1),
    (gradient((3, 3), (1, 2), (2, 3)), (1, 10, 12, 19), 1),
    (gradient((1, 40)), (1, 2, 60, 20), 1),  # a line in pieces
    (gradient((4,), (2,)), (2, 31, 33), 1),
    (gradient((2, 3, 2), (2, 1, 1)), (2, 5, 6, 7, 18), 1),
    (gradient((3, 3)), (0, 6, 6, 16), 1),
    (gradient((3, 3)), (2, 2, 6, 16), 1),  # no place
]


@pytest.mark.parametrize("machine", MACHINES, ids=["native", "narrow"][: len(MACHINES)])
@pytest.mark.parametrize(("op", "x", "multiplier"), CASES, ids=str)
def test_sizes(op: ops.KernelGradient, x: tuple[int, ...], multiplier: int, machine: Machine) -> None:
    """In the kernel's order and in others, as optimizers and layouts may ask for."""
    data = operands(op, x, multiplier)
    inputs = inputs_like(data)
    check(Graph(tuple(inputs), (op(*inputs),)), data, machine=machine)
    transposed = ops.Transpose((*range(2, len(x)), 1, 0))(op(*inputs))
    check(Graph(tuple(inputs), (transposed,)), data, machine=machine)


@pytest.mark.parametrize("machine", MACHINES, ids=["native", "narrow"][: len(MACHINES)])
@pytest.mark.parametrize(
    ("dtype", "sums", "rtol"), [(f64, None, 1e-14), (bf16, None, 8e-3), (f16, f32, 1e-6), (bf16, f32, 1e-6)]
)
def test_types(dtype: DType, sums: DType | None, rtol: float, machine: Machine) -> None:
    op = replace(gradient((3, 3)), dtype=sums)
    data = operands(op, (2, 9, 8, 21), dtype=dtype)
    check(op_graph(op, data), data, rtol, machine)


@pytest.mark.parametrize("machine", MACHINES, ids=["native", "narrow"][: len(MACHINES)])
def test_what_is_not_finite_stays_in_its_taps(machine: Machine) -> None:
    op = gradient((3, 3))
    x, g = operands(op, (2, 9, 8, 21))
    x[0, 1, 2, 3], x[1, 0, 0, 20], g[1, 6, 5, 0] = np.inf, np.nan, -np.inf
    check(op_graph(op, (x, g)), (x, g), machine=machine)


def test_sizes_of_a_call() -> None:
    op, n, w = gradient((3, 3)), symbol("n"), symbol("w")
    graph = op_graph(op, operands(op, (1, 9, 8, 21)), {0: (n, 9, w + 2, 21), 1: (n, 7, w, 21)})
    model = compile_graph(graph)
    for samples, width in ((1, 1), (2, 7), (5, 12)):
        data = operands(op, (samples, 9, width + 2, 21))
        (want,) = interpret(graph, data)
        np.testing.assert_allclose(np.asarray(model(*data)), want, rtol=1e-5, atol=1e-5)


def test_the_same_bits_on_any_number_of_threads() -> None:
    op = gradient((3, 3))
    data = operands(op, (2, 40, 66, 80))
    results = {
        np.asarray(compile_graph(op_graph(op, data), replace(MACHINES[0], threads=threads), threads)(*data)).tobytes()
        for threads in (1, 2, 3)
    }
    assert len(results) == 1


@pytest.mark.parametrize(
    ("size", "stride", "padding", "dilation", "multiplier"), [(3, 1, 1, 1, 1), (4, 2, 1, 1, 2), (5, 3, 4, 2, 1)]
)
def test_matches_torch(size: int, stride: int, padding: int, dilation: int, multiplier: int) -> None:
    torch = pytest.importorskip("torch")
    op = gradient((size, size), (stride, stride), (dilation, dilation))
    rng = np.random.default_rng(1)
    image = rng.standard_normal((2, 14, 13, 19)).astype(np.float32)
    x = np.pad(image, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    _, g = operands(op, x.shape, multiplier)
    data, cotangent = (torch.from_numpy(v).permute(0, 3, 1, 2) for v in (image, g))
    shape = 19 * multiplier, 1, size, size
    want = torch.nn.grad.conv2d_weight(data, shape, cotangent, stride, padding, dilation, 19).numpy()
    np.testing.assert_allclose(np.asarray(compile_graph(op_graph(op, (x, g)))(x, g)), want, rtol=1e-4, atol=1e-4)
