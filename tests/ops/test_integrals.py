"""Special functions that are integrals, against SciPy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input, Node
from ingot.ir.types import TensorType, f32, f64
from ingot.ops import integrals
from ingot.ops.incomplete import betainc

scipy = pytest.importorskip("scipy.special")

EDGES = np.array([0.0, -0.0, 1.0, 1e-8, 1e-300, 1e9, 1e25, np.inf, -np.inf, np.nan])
LINE = np.concatenate([np.linspace(-1, 1, 401), np.linspace(-30, 30, 1201), np.geomspace(1e-6, 700, 400), EDGES])


def _run(build: Callable[..., Node], *xs: np.ndarray) -> np.ndarray:
    dtype = f32 if xs[0].dtype == np.float32 else f64
    inputs = tuple(Input(f"x{i}", TensorType(dtype, x.shape))() for i, x in enumerate(xs))
    with np.errstate(all="ignore"):
        (result,) = interpret(Graph(inputs, (build(*inputs),)), list(xs))
    return result


def _ei(x: np.ndarray) -> np.ndarray:
    return np.where(x < 0, np.nan, scipy.expi(x))


CASES = {
    "dawson": (integrals.dawson, scipy.dawsn),
    "exponential_integral": (integrals.exponential_integral, _ei),
    "fresnel_sin": (integrals.fresnel_sin, lambda x: scipy.fresnel(x)[0]),
    "fresnel_cos": (integrals.fresnel_cos, lambda x: scipy.fresnel(x)[1]),
    "spence": (integrals.spence, scipy.spence),
}


@pytest.mark.parametrize("name", CASES)
def test_against_scipy(name: str):
    build, reference = CASES[name]
    np.testing.assert_allclose(_run(build, LINE), reference(LINE), rtol=1e-11, atol=1e-13)
    single = LINE.astype(np.float32)
    with np.errstate(over="ignore"):
        expected = reference(single.astype(np.float64)).astype(np.float32)
    np.testing.assert_allclose(_run(build, single), expected, rtol=3e-7, atol=1e-12)


def test_betainc():
    rng = np.random.default_rng(3)
    a, b = (np.exp(rng.uniform(-5, 7, 3000)) for _ in range(2))
    mean = a / (a + b)
    x = np.clip(np.where(rng.random(3000) < 0.5, rng.random(3000), mean * rng.uniform(0.9, 1.1, 3000)), 0, 1)
    np.testing.assert_allclose(_run(betainc, a, b, x), scipy.betainc(a, b, x), rtol=1e-9, atol=1e-13)
    a, b, x = (
        np.array(v, np.float64)
        for v in zip((1, 2, 0), (1, 2, 1), (0, 1, 0.5), (-1, 1, 0.5), (1, 1, 1.5), (1, np.nan, 0.5), strict=True)
    )
    np.testing.assert_array_equal(_run(betainc, a, b, x), [0, 1, *[np.nan] * 4])
