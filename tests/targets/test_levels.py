"""Products of levels where no instruction sums four bytes: AArch64 in qemu (bytes), WebAssembly in node (pairs)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ingot import ops
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input, Node, const
from ingot.ir.types import DType, TensorType, i8, u8
from ingot.pipeline.cpu import TARGET
from tests.conformance.emulated import missing, run_emulated
from tests.conformance.wasm import NODE, run_wasm


def _on_neon(graph: Graph, data: np.ndarray, folder: Path) -> np.ndarray:
    return run_emulated(graph, [data], folder, TARGET.features("cortex-a72"), "cortex-a72")[0]


def _in_node(graph: Graph, data: np.ndarray, folder: Path) -> np.ndarray:
    return run_wasm(graph, [data], folder)[0]


Run = Callable[[Graph, np.ndarray, Path], np.ndarray]
RUNS = [
    pytest.param(_on_neon, id="neon", marks=pytest.mark.skipif(bool(missing("aarch64")), reason=missing("aarch64"))),
    pytest.param(_in_node, id="wasm", marks=pytest.mark.skipif(NODE is None, reason="no node")),
]
RNG = np.random.default_rng(2)


def shift(x: Node, zero: int) -> Node:
    return ops.Dequantize()(x, const(np.asarray(zero, x.dtype.numpy)))


def weights(*shape: int, least: int = -127) -> np.ndarray:
    w = RNG.integers(-127, 128, shape).astype(np.int8)
    return np.where(RNG.random(shape) < 0.4, np.int8(least), w)


def extremes(dtype: DType, *shape: int) -> np.ndarray:
    info = np.iinfo(dtype.numpy)
    x = RNG.integers(info.min, info.max, shape, endpoint=True).astype(dtype.numpy)
    return np.where(RNG.random(shape) < 0.4, np.asarray(info.min, x.dtype), x)


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize(("dtype", "zero"), [(u8, 131), (i8, -128), (i8, 0)])
@pytest.mark.parametrize("least", [-127, -128])
def test_products(dtype: DType, zero: int, least: int, run: Run, tmp_path: Path) -> None:
    """Of -128 with -128 two do not fit 16 bits: with NEON such weights are multiplied in floats, as exactly."""
    for rows, k, columns in ((1, 33, 7), (9, 64, 21), (5, 3, 4)):
        x = Input("x", TensorType(dtype, (rows, k)))()
        w = ops.Dequantize()(const(weights(columns, k, least=least)), const(np.int8(0)))
        graph = Graph((x,), (ops.linear(shift(x, zero), w),))
        data = extremes(dtype, rows, k)
        np.testing.assert_array_equal(run(graph, data, tmp_path), interpret(graph, [data])[0])


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize(("channels", "groups", "window"), [(3, 1, 3), (16, 1, 1), (8, 8, 3), (16, 4, 2)])
def test_convolutions(channels: int, groups: int, window: int, run: Run, tmp_path: Path) -> None:
    x = Input("x", TensorType(i8, (1, channels, 6, 7)))()
    conv = ops.Conv((1, 2), ((1, 1), (1, 0)), (1, 1), groups)
    w = ops.Dequantize()(const(weights(8, channels // groups, window, window)), const(np.int8(0)))
    graph = Graph((x,), (conv.lower(shift(x, -7), w),))
    data = extremes(i8, 1, channels, 6, 7)
    np.testing.assert_array_equal(run(graph, data, tmp_path), interpret(graph, [data])[0])
