"""Fourier transforms of every plan (matrix, Cooley-Tukey, Bluestein) against numpy."""

from __future__ import annotations

import numpy as np
import pytest

from ingot import ops
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input, Node
from ingot.ir.types import TensorType, f32, f64

LENGTHS = (1, 2, 3, 4, 7, 31, 97, 400, 512, 1000, 2187, 2203, 4099)


def run(outputs: tuple[Node, ...], inputs: tuple[Node, ...], *arrays: np.ndarray) -> list[np.ndarray]:
    return list(interpret(Graph(inputs, outputs), arrays))


def assert_near(got: np.ndarray, want: np.ndarray, tolerance: float) -> None:
    assert got.shape == want.shape
    assert np.abs(got - want).max() <= tolerance * max(1.0, np.abs(want).max())


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("inverse", [False, True])
def test_complex(n: int, inverse: bool) -> None:
    rng = np.random.default_rng(n)
    x = rng.standard_normal((2, 3, n)) + 1j * rng.standard_normal((2, 3, n))
    inputs = tuple(Input(name, TensorType(f64, x.shape))() for name in "ri")
    scale = 1 / n if inverse else 1.0
    real, imaginary = run(ops.fourier((inputs[0], inputs[1]), inverse, scale), inputs, x.real, x.imag)
    assert_near(real + 1j * imaginary, np.fft.ifft(x) if inverse else np.fft.fft(x), 1e-12)


@pytest.mark.parametrize("n", LENGTHS)
def test_real(n: int) -> None:
    x = np.random.default_rng(n).standard_normal((3, n))
    node = Input("x", TensorType(f64, x.shape))()
    real, imaginary = run(ops.real_fourier(node), (node,), x)
    assert_near(real + 1j * imaginary, np.fft.rfft(x), 1e-12)
    y = np.fft.rfft(x) + 1j  # the first imaginary part is ignored
    inputs = tuple(Input(name, TensorType(f64, y.shape))() for name in "ri")
    (signal,) = run((ops.real_inverse((inputs[0], inputs[1]), n, 1 / n),), inputs, y.real, y.imag)
    assert_near(signal, np.fft.irfft(y, n), 1e-12)


@pytest.mark.parametrize("n", [400, 1024, 4099])
def test_error_in_f32(n: int) -> None:
    x = np.random.default_rng(n).standard_normal((3, n)).astype(np.float32)
    node = Input("x", TensorType(f32, x.shape))()
    real, imaginary = run(ops.real_fourier(node), (node,), x)
    assert real.dtype == np.float32
    assert_near(real + 1j * imaginary, np.fft.rfft(x.astype(np.float64)), 1e-6)
