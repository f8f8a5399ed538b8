"""Depthwise convolutions whose weights are an input: laid out by a kernel at each call."""

import numpy as np
import pytest

from ingot import ops
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input
from ingot.ir.types import TensorType, f32
from ingot.pipeline.build import build_native
from ingot.runtime.executor import CompiledModel


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(("channels", "taps", "stride", "padding", "dilation"), [(3, 3, 1, 1, 1), (40, 5, 2, 2, 2)])
def test_weights_of_a_call(channels: int, taps: int, stride: int, padding: int, dilation: int, turned: bool) -> None:
    rng = np.random.default_rng(channels)
    x = Input("x", TensorType(f32, (2, 13, 11, channels)))()
    w = Input("w", TensorType(f32, (channels, 1, taps, taps)))()
    places, steps = ((padding, padding),) * 2, (stride,) * 2
    y = ops.Convolution(steps, places, (1, 1), (dilation,) * 2, "NHWC", "OIHW", "NHWC", channels)(
        x, ops.flip(w, (2, 3)) if turned else w
    )
    graph = Graph((x, w), (y, ops.reduce_sum(y, (1, 2))))  # the sums are the kernel's second result
    image, weights = (rng.normal(size=n.shape).astype(np.float32) for n in (x, w))
    image[0, 2, 3, 1], image[1, 7, 5, 0] = np.nan, np.inf
    found = CompiledModel(build_native(graph, 1)).run([image, weights])
    for value, expected in zip(found, interpret(graph, [image, weights]), strict=True):
        np.testing.assert_allclose(np.asarray(value), expected, rtol=2e-5, atol=2e-5)
