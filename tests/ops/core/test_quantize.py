"""Quantization by a reciprocal gives the same levels as by a division, for every x."""

from __future__ import annotations

import numpy as np
import pytest

from ingot import ops
from ingot.ir.node import const
from ingot.ir.types import i8, u8
from ingot.ops.core.quantize import reciprocal_is_exact
from ingot.pipeline.build import build_program
from ingot.runtime.executor import CompiledModel
from ingot.targets.cpu.workers import host_features
from tests.passes.check import arg, graph


def values_near_boundaries(scale: np.float32) -> np.ndarray:
    """Floats around the boundaries between levels, and others."""
    boundaries = ((np.arange(-300, 300) + 0.5) * np.float64(scale)).astype(np.float32)
    steps = np.arange(-8, 9, dtype=np.int32)[:, None]
    others = np.random.default_rng(3).standard_normal(4000).astype(np.float32) * scale * 100
    special = np.array([0, -0.0, np.inf, -np.inf, np.nan, 1e-45, 3e38, -3e38], np.float32)
    return np.concatenate([(boundaries.view(np.int32) + steps).view(np.float32).ravel(), others, special])


@pytest.mark.parametrize("zero", [u8.numpy.type(0), u8.numpy.type(201), i8.numpy.type(-128), i8.numpy.type(5)])
def test_levels_match_division(zero: np.integer) -> None:
    scales = np.array([1, 0.5, 0.1, 1 / 3, 0.0372, 7.3e-6, 255.0, 1.9999999, 1.0000001], np.float32)
    for scale in scales:
        x = values_near_boundaries(scale)
        g = graph(ops.apply(ops.Quantize(), arg("x", x.size), const(scale), const(np.asarray(zero))))
        model = CompiledModel(build_program(g, host_features(), 1), threads=1)
        with np.errstate(all="ignore"):
            low, high = np.iinfo(zero.dtype).min, np.iinfo(zero.dtype).max
            want = np.clip(np.nan_to_num(np.rint(x / scale) + np.float64(zero), nan=low), low, high)
        np.testing.assert_array_equal(model(x), want.astype(zero.dtype))


def test_multiplies() -> None:
    random = np.exp(np.random.default_rng(0).uniform(-20, 20, 200)).astype(np.float32)
    assert np.mean([reciprocal_is_exact(float(s)) for s in random]) > 0.9
    for s in (0.0, -0.5, np.inf, np.nan, 1e-30):
        assert not reciprocal_is_exact(float(np.float32(s)))
