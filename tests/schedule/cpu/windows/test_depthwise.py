"""Depthwise convolutions whose weights are an input: laid out by a kernel at each call."""

import numpy as np
import pytest

from ingot import ops
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input
from ingot.ir.types import TensorType, f32
from ingot.pipeline.build import build_native
from ingot.runtime.executor import CompiledModel


@pytest.mark.parametrize("is_flipped", [False, True])
@pytest.mark.parametrize(("channels", "taps", "stride", "padding", "dilation"), [(3, 3, 1, 1, 1), (40, 5, 2, 2, 2)])
def test_weights_of_a_call(
    channels: int, taps: int, stride: int, padding: int, dilation: int, is_flipped: bool
) -> None:
    rng = np.random.default_rng(channels)
    x = Input("x", TensorType(f32, (2, 13, 11, channels)))()
    w = Input("w", TensorType(f32, (channels, 1, taps, taps)))()
    places, steps = ((padding, padding),) * 2, (stride,) * 2
    y = ops.Convolution(steps, places, (1, 1), (dilation,) * 2, "NHWC", "OIHW", "NHWC", channels)(
        x, ops.flip(w, (2, 3)) if is_flipped else w
    )
    graph = Graph((x, w), (y, ops.reduce_sum(y, (1, 2))))  # the sums are the kernel's second result
    image, weights = (rng.normal(size=n.shape).astype(np.float32) for n in (x, w))
    image[0, 2, 3, 1], image[1, 7, 5, 0] = np.nan, np.inf
    results = CompiledModel(build_native(graph, 1)).run([image, weights])
    for value, expected in zip(results, interpret(graph, [image, weights]), strict=True):
        np.testing.assert_allclose(np.asarray(value), expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("kernel_layout", ["OIHW", "HWIO"])
@pytest.mark.parametrize(
    ("sizes", "group_in", "group_out", "groups", "taps", "stride"),
    [((13, 11), 8, 8, 4, 3, 1), ((9, 17), 2, 4, 3, 3, 2), ((7, 5), 1, 2, 9, 2, 1), ((4, 1), 4, 4, 5, 3, 1)],
)
def test_weights_of_narrow_groups(
    sizes: tuple[int, int], group_in: int, group_out: int, groups: int, taps: int, stride: int, kernel_layout: str
) -> None:
    """Vectors of several groups, whole ones and less."""
    rng = np.random.default_rng(groups)
    shape = dict(zip("OIHW", (groups * group_out, group_in, taps, taps), strict=True))
    x = Input("x", TensorType(f32, (2, *sizes, groups * group_in)))()
    w = Input("w", TensorType(f32, tuple(shape[c] for c in kernel_layout)))()
    places = ((taps // 2, taps // 2),) * 2
    op = ops.Convolution((stride,) * 2, places, (1, 1), (1, 1), "NHWC", kernel_layout, "NHWC", groups)
    graph = Graph((x, w), (op(x, w),))
    image, weights = (rng.normal(size=n.shape).astype(np.float32) for n in (x, w))
    image[1, 2, 0, 1], image[0, 0, 0, 0] = np.nan, np.inf
    program = build_native(graph, 1)
    (result,) = CompiledModel(program).run([image, weights])
    (expected,) = interpret(graph, [image, weights])
    np.testing.assert_allclose(np.asarray(result), expected, rtol=2e-5, atol=2e-5)
