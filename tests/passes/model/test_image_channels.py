"""Images of three channels that convolutions and the gradients of their kernels read in vectors."""

from __future__ import annotations

import numpy as np
import pytest

from ingot import ops
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input, Node
from ingot.ir.types import DType, TensorType, bf16, f32
from ingot.passes.model.image_channels import align_image_channels
from tests.conformance.checked import run_checked
from tests.conformance.targets import H100

ONE, NONE = (1, 1), ((0, 0), (0, 0))


def arg(label: str, dtype: DType, *shape: int) -> Node:
    return Input(label, TensorType(dtype, shape))()


def conv(channels: int, dtype: DType = bf16, stride: int = 2, groups: int = 1) -> Graph:
    x, w = arg("x", dtype, 2, channels, 15, 14), arg("w", dtype, 8, channels // groups, 5, 3)
    op = ops.Conv((stride, stride), ((2, 2), (1, 1)), ONE, groups)
    return Graph((x, w), (op(x, w),))


def convolution(channels: int) -> Graph:
    x, w = arg("x", bf16, 2, 15, 14, channels), arg("w", bf16, 8, channels, 5, 3)
    return Graph((x, w), (ops.Convolution((2, 2), NONE, ONE, ONE, "NHWC", "OIHW", "NHWC")(x, w),))


def gradient(channels: int, width: int = 14) -> Graph:
    x, g = arg("x", bf16, 2, 15, width, channels), arg("g", bf16, 2, 6, (width - 3) // 2 + 1, 8)
    return Graph((x, g), (ops.KernelGradient((5, 3), (2, 2), ONE)(x, g),))


@pytest.mark.parametrize(
    ("graph", "channels"),
    [(conv(3), 4), (conv(2), 4), (conv(3, stride=1), 8), (convolution(3), 4), (gradient(3), 4), (gradient(2, 13), 4)],
)
def test_images_get_channels(graph: Graph, channels: int) -> None:
    aligned = align_image_channels(graph)
    assert any(channels in n.shape[:1] + n.shape[1:2] + n.shape[-1:] for n in aligned.nodes() if n.op.name == "pad")
    rng = np.random.default_rng(0)
    data = [rng.normal(size=tuple(map(int, n.shape))).astype(n.dtype.numpy) for n in graph.inputs]
    data[0].flat[50] = np.inf
    with np.errstate(invalid="ignore"):
        ((want,), (got,), (by_kernels,)) = interpret(graph, data), interpret(aligned, data), run_checked(graph, data, H100)
    np.testing.assert_array_equal(got.astype(np.float32), want.astype(np.float32))
    np.testing.assert_allclose(by_kernels.astype(np.float32), want.astype(np.float32), rtol=0.02, atol=0.2)


@pytest.mark.parametrize("graph", [conv(4), conv(3, f32), conv(2, groups=2), conv(3, stride=8), convolution(16)])
def test_what_is_aligned_or_no_image_stays(graph: Graph) -> None:
    assert align_image_channels(graph) is graph or align_image_channels(graph).outputs == graph.outputs
