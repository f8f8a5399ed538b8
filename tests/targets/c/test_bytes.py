"""Products of levels in C: bytes in memory, sums exact, for odd sizes, padding, groups and zeros of all signs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ingot import ops
from ingot.frontends.tflite.fixed_point import Multiplier, multiplied
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input, Node, const
from ingot.ir.types import DType, TensorType, f32, i8, i32, u8
from ingot.pipeline.build import build_program
from ingot.pipeline.c import TARGET
from tests.conformance.c import needs_gcc, run_program

RNG = np.random.default_rng(3)


def _weights(*shape: int) -> Node:
    w = RNG.integers(-128, 128, shape).astype(np.int8)
    w.reshape(-1)[-1] = -128
    return ops.Dequantize()(const(w), const(np.int8(0)))


def _levels(total: Node, channels: int, low: int = -128) -> Node:
    by = Multiplier.of(*np.geomspace(2e-4, 8e-3, channels).tolist())
    biased = ops.add(total, const(RNG.integers(-4000, 4000, channels).astype(np.int32)))
    return ops.cast(ops.clip(ops.add(multiplied(biased, by), -7), low, 127), i8)


def _shift(x: Node, zero: int) -> Node:
    return ops.Dequantize()(x, const(np.asarray(zero, x.dtype.numpy)))


def _check(graph: Graph, tmp_path: Path, core: str) -> str:
    """Compare with the interpreter on the extremes of levels; return the source."""
    program = build_program(graph, TARGET.features(core), 1)
    info = np.iinfo(graph.inputs[0].dtype.numpy)
    for seed in range(3):
        rng = np.random.default_rng(seed)
        shape = tuple(d for d in graph.inputs[0].shape if isinstance(d, int))
        x = rng.integers(info.min, info.max, shape, endpoint=True).astype(info.dtype)
        x = np.where(rng.random(shape) < 0.3, info.min, x).astype(info.dtype) if seed else x
        for got, want in zip(run_program(program, [x], tmp_path), interpret(graph, [x]), strict=True):
            np.testing.assert_array_equal(got, want)
    return (tmp_path / "net.c").read_text()


@needs_gcc
@pytest.mark.parametrize("rows", [1, 5])
def test_rounded_rows(rows: int, tmp_path: Path):
    """Rounded to bytes, multiplied by levels of 4 bits in blocks."""
    rng = np.random.default_rng(rows)
    levels, scales = rng.integers(0, 16, (9, 3, 32)).astype(np.uint8), rng.normal(size=(9, 3, 1)).astype(np.float32)
    w = ops.DequantizeBlocks(8, 4)(const(levels), const(scales))
    x = Input("x", TensorType(f32, (rows, 96)))()
    y = ops.DotGeneral(contract=((1, 2), (1, 2)))(ops.RoundToBytes((2,))(ops.reshape(x, (rows, 3, 32))), w)
    plain = Graph((x,), (ops.DotGeneral(contract=((1,), (1,)))(x, ops.reshape(w, (9, 96))),))
    program = build_program(plain, TARGET.features(""), 1, activations="int8")
    data = [rng.standard_normal((rows, 96)).astype(np.float32)]
    (got,), (want,) = run_program(program, data, tmp_path), interpret(Graph((x,), (y,)), data)
    assert np.abs(got - want).max() < 1e-5 * np.abs(want).max()


@pytest.mark.sampled(3)
@needs_gcc
@pytest.mark.parametrize("core", ["", "cortex-m55", "vector16", "vector32"])
@pytest.mark.parametrize(
    ("rows", "k", "columns"), [(1, 1, 1), (1, 33, 7), (3, 4, 2), (5, 18, 3), (2, 64, 9), (7, 3, 5)]
)
def test_products(rows: int, k: int, columns: int, core: str, tmp_path: Path):
    x = Input("x", TensorType(i8, (rows, k)))()
    y = ops.linear(_shift(x, -11), ops.cast(_weights(columns, k), i32))
    source = _check(Graph((x,), (_levels(y, columns),)), tmp_path, core)
    dot = "IG_PAIRS" if core.startswith("vector") else "ig_dot"
    assert dot in source.partition("static void")[2] or k == 1 or rows * columns == 1


@pytest.mark.sampled(13)
@needs_gcc
@pytest.mark.parametrize("core", ["", "cortex-m55", "vector16", "vector32"])
@pytest.mark.parametrize(("dtype", "zero"), [(i8, -128), (i8, 5), (u8, 131), (i8, 0)])
@pytest.mark.parametrize(
    ("channels", "out_channels", "groups", "window"), [(3, 5, 1, 3), (8, 6, 2, 3), (6, 6, 6, 3), (17, 4, 1, 1)]
)
def test_convolutions_with_padding(
    dtype: DType, zero: int, channels: int, out_channels: int, groups: int, window: int, core: str, tmp_path: Path
):
    x = Input("x", TensorType(dtype, (2, 7, 6, channels)))()
    pad = (window // 2, window // 2)
    layouts = ("NHWC", "OHWI", "NHWC")
    op = ops.Convolution(
        (2, 1), (pad, pad), (1, 1), (1, 1), *layouts, feature_groups=groups, batch_groups=1
    )  # fmt: skip
    y = op(_shift(x, zero), _weights(out_channels, window, window, channels // groups))
    low = -3 if groups > 1 else -128
    source = _check(Graph((x,), (_levels(y, out_channels, low),)), tmp_path, core)
    assert "const ig_i32 *v_in0" not in source


@needs_gcc
def test_a_halo_shares_memory_and_is_filled_for_each_call(tmp_path: Path):
    x = y = Input("x", TensorType(i8, (1, 12, 12, 8)))()
    layouts = ("NHWC", "OHWI", "NHWC")
    op = ops.Convolution((1, 1), ((1, 1), (1, 1)), (1, 1), (1, 1), *layouts, feature_groups=1, batch_groups=1)
    for _ in range(5):
        y = _levels(op(_shift(y, -7), _weights(8, 3, 3, 8)), 8)
    pooled = ops.Reduce("sum", (1, 2))(ops.cast(y, i32))
    graph = Graph((x,), (pooled,))
    _check(graph, tmp_path, "")
    program = build_program(graph, TARGET.features(""), 1)
    header = (tmp_path / "net.h").read_text()
    arena = int(header.partition("#define NET_ARENA_BYTES ")[2].split()[0])
    padded = 14 * 14 * 8
    assert arena < 2.2 * padded + 64 * 4, "two images at a time, all in bytes"
    TARGET.export(program, tmp_path / "net.c")
