"""Images of three channels, with a fourth of zeros."""

from __future__ import annotations

import numpy as np
import pytest

from ingot import ops
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input, Node, const
from ingot.ir.types import DType, TensorType, bf16, f32, static_shape
from ingot.passes.core.wide_pixels import widen_pixels
from tests.conformance.checked import run_checked

ONE, NONE = (1, 1), ((0, 0), (0, 0))


def arg(label: str, *shape: int, dtype: DType = bf16) -> Node:
    return Input(label, TensorType(dtype, shape))()


def padded(x: Node) -> Node:
    return ops.pad(x, (0, 1, 1, 0), (0, 1, 1, 0))


def forward(x: Node, w: Node) -> Node:
    return ops.Convolution((2, 2), NONE, ONE, ONE, "NHWC", "OIHW", "NHWC", 1, 1, None)(padded(x), w)


def kernel_gradient(x: Node, g: Node) -> Node:
    image = ops.Transpose((3, 1, 2, 0))(ops.Slice((0,) * 4, (2, 65, 65, 3), (1,) * 4)(padded(x)))
    return ops.Convolution(ONE, NONE, ONE, (2, 2), "NHWC", "IHWO", "NHWC", 1, 1, bf16)(image, g)


@pytest.mark.parametrize(("build", "other"), [(forward, (8, 3, 3, 3)), (kernel_gradient, (2, 32, 32, 8))])
def test_values_are_the_same(build, other: tuple[int, ...]) -> None:
    x, y = arg("x", 2, 64, 64, 3), arg("y", *other)
    graph = Graph((x, y), (build(x, y),))
    wide = widen_pixels(graph)
    images = [n.inputs[0] for n in wide.nodes() if isinstance(n.op, ops.Convolution)]
    assert all(4 in i.shape for i in images) and sum(isinstance(n.op, ops.Pad) for n in wide.nodes()) <= 2
    rng = np.random.default_rng(0)
    given = [rng.normal(size=static_shape(n.shape)).astype(n.dtype.numpy) for n in graph.inputs]
    given[0][1, 5, 7, 2], given[0][0, 63, 63, 0] = np.nan, np.inf
    want = interpret(graph, given)[0].astype(np.float32)
    np.testing.assert_array_equal(interpret(wide, given)[0].astype(np.float32), want)
    got = run_checked(graph, given, "cuda:sm_90a")[0].astype(np.float32)
    np.testing.assert_allclose(got, want, rtol=2e-2, atol=2e-2 * np.abs(want[np.isfinite(want)]).max())


def test_other_convolutions_stay() -> None:
    x, w = arg("x", 1, 64, 64, 3), arg("w", 8, 3, 3, 3)
    fixed = const(np.ones((8, 3, 3, 3), bf16.numpy))
    small, wide = arg("s", 1, 9, 9, 3), arg("c", 1, 64, 64, 8)
    full = arg("x", 1, 64, 64, 3, dtype=f32), arg("w", 8, 3, 3, 3, dtype=f32)
    for image, kernel in ((x, fixed), (small, w), full, (wide, arg("w", 8, 8, 3, 3))):
        graph = Graph(tuple(n for n in (image, kernel) if n.constant is None), (forward(image, kernel),))
        assert widen_pixels(graph).outputs == graph.outputs
