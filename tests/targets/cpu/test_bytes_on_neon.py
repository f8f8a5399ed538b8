"""Products of levels on AArch64 without dot products: bytes, exact, in qemu."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ingot import ops
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input, Node, const
from ingot.ir.types import DType, TensorType, i8, u8
from ingot.pipeline.cpu import TARGET
from tests.conformance.emulated import missing, run_emulated

ABSENT = missing("aarch64")
PLAIN = TARGET.features("cortex-a72")
RNG = np.random.default_rng(2)


def moved(x: Node, zero: int) -> Node:
    return ops.Dequantize()(x, const(np.asarray(zero, x.dtype.numpy)))


def weights(*shape: int, least: int = -127) -> np.ndarray:
    w = RNG.integers(-127, 128, shape).astype(np.int8)
    return np.where(RNG.random(shape) < 0.4, np.int8(least), w)


def extremes(dtype: DType, *shape: int) -> np.ndarray:
    info = np.iinfo(dtype.numpy)
    x = RNG.integers(info.min, info.max, shape, endpoint=True).astype(dtype.numpy)
    return np.where(RNG.random(shape) < 0.4, np.asarray(info.min, x.dtype), x)


@pytest.mark.skipif(bool(ABSENT), reason=ABSENT)
@pytest.mark.parametrize(("dtype", "zero"), [(u8, 131), (i8, -128), (i8, 0)])
@pytest.mark.parametrize("least", [-127, -128])
def test_products(dtype: DType, zero: int, least: int, tmp_path: Path) -> None:
    """Of -128 with -128 two do not fit 16 bits: such weights are multiplied in floats, as exactly."""
    for rows, k, columns in ((1, 33, 7), (9, 64, 21), (5, 3, 4)):
        x = Input("x", TensorType(dtype, (rows, k)))()
        w = ops.Dequantize()(const(weights(columns, k, least=least)), const(np.int8(0)))
        graph = Graph((x,), (ops.linear(moved(x, zero), w),))
        given = extremes(dtype, rows, k)
        (got,), (want,) = run_emulated(graph, [given], tmp_path, PLAIN, "cortex-a72"), interpret(graph, [given])
        np.testing.assert_array_equal(got, want)


@pytest.mark.skipif(bool(ABSENT), reason=ABSENT)
@pytest.mark.parametrize(("channels", "groups", "window"), [(3, 1, 3), (16, 1, 1), (8, 8, 3), (16, 4, 2)])
def test_convolutions(channels: int, groups: int, window: int, tmp_path: Path) -> None:
    x = Input("x", TensorType(i8, (1, channels, 6, 7)))()
    conv = ops.Conv((1, 2), ((1, 1), (1, 0)), (1, 1), groups)
    w = ops.Dequantize()(const(weights(8, channels // groups, window, window)), const(np.int8(0)))
    graph = Graph((x,), (conv.lower(moved(x, -7), w),))
    given = extremes(i8, 1, channels, 6, 7)
    (got,), (want,) = run_emulated(graph, [given], tmp_path, PLAIN, "cortex-a72"), interpret(graph, [given])
    np.testing.assert_array_equal(got, want)
