"""Products of signs in C: words of 32, the reference's bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ingot import ops
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input, const
from ingot.ir.types import TensorType, f32
from tests.conformance.c import needs_gcc, run_c

RNG = np.random.default_rng(9)


@pytest.mark.sampled(4)
@needs_gcc
@pytest.mark.parametrize("vectors", ["", "vector16", "cortex-m4"])
@pytest.mark.parametrize("levels", [(-1.0, 1.0), (-1.0, 0.0, 1.0)])
def test_a_binarized_network(levels: tuple[float, ...], vectors: str, tmp_path: Path):
    x = y = Input("x", TensorType(f32, (1, 6, 5, 35)))()
    conv = ops.Convolution((1, 1), ((1, 1), (1, 1)), (1, 1), (1, 1), "NHWC", "OHWI", "NHWC")
    for channels in (40, 33):
        signs = ops.where(ops.compare("GE", y, 0.0), 1.0, -1.0)
        w = RNG.choice(levels, (channels, 3, 3, y.shape[-1])).astype(np.float32)
        y = conv(signs, const(w))
    y = ops.linear(ops.Sign()(ops.reshape(y, (6, 5 * 33))), const(RNG.choice(levels, (7, 5 * 33)).astype(np.float32)))
    graph = Graph((x,), (y,))
    for _ in range(2):
        data = RNG.standard_normal((1, 6, 5, 35)).astype(np.float32)
        (got,), (want,) = run_c(graph, [data], tmp_path, vectors), interpret(graph, [data])
        np.testing.assert_array_equal(got, want)
    assert "ig_popcnt32(" in (tmp_path / "net.c").read_text().partition("static void")[2]
