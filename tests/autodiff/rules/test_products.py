"""Reverse rules of products in the forms that they choose by shape, beside sums written out."""

from __future__ import annotations

import numpy as np
import pytest

from ingot import ops
from ingot.autodiff.reverse import pull_back_cotangents
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input
from ingot.ir.types import TensorType, f64


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize(("ins", "outs", "groups"), [(2, 5, 1), (5, 2, 1), (4, 4, 4), (3, 6, 3), (4, 6, 2)])
def test_kernels_of_convolutions(ins: int, outs: int, groups: int, step: int, size: int) -> None:
    """A pointwise kernel, one of each channel by samples, and the others by a convolution."""
    rng, pad = np.random.default_rng(0), size // 2
    x = Input("x", TensorType(f64, (3, ins, 7, 6)))()
    w = Input("w", TensorType(f64, (outs, ins // groups, size, size)))()
    op = ops.Convolution((step, step), ((pad, pad),) * 2, (1, 1), (1, 1), "NCHW", "OIHW", "NCHW", groups)
    y = op(x, w)
    g = Input("g", y.type)()
    (result,) = pull_back_cotangents([(y, g)], [w])
    assert result is not None and result.type == w.type
    image, cotangent = rng.standard_normal((3, ins, 7, 6)), rng.standard_normal([int(d) for d in y.shape])
    (got,) = interpret(Graph((x, g), (result,)), [image, cotangent])
    padded = np.pad(image, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    high, wide = cotangent.shape[2:]
    expected = np.zeros(w.shape)
    for o, i, a, b in np.ndindex(*expected.shape):
        lines = padded[:, o // (outs // groups) * (ins // groups) + i, a::step, b::step][:, :high, :wide]
        expected[o, i, a, b] = (lines * cotangent[:, o]).sum()
    np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-12)
