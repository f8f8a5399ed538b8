"""Convolutions whose kernel is no constant: what is copied in front of them, and in which order they are read."""

from __future__ import annotations

import numpy as np
import pytest
from ml_dtypes import uint4

from ingot import ops
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input, const
from ingot.ir.types import DType, TensorType, bf16, f16, f32
from ingot.schedule.axes import Axis
from ingot.schedule.gpu.contraction.reduction import TermBlocks
from ingot.targets.cuda.triton import print_kernel
from tests.conformance.checked import planned, run_checked
from tests.conformance.targets import H100


def _run(graph: Graph, dtype: DType, *shapes: tuple[int, ...], target: str = H100) -> list[str]:
    """Names of the kernels of a graph that agrees with the interpreter."""
    rng = np.random.default_rng(0)
    data = [rng.normal(size=s).astype(dtype.numpy) for s in shapes]
    (got,), (want,) = run_checked(graph, data, target), interpret(graph, data)
    error = np.abs(got.astype(np.float64) - want).max() / np.abs(want.astype(np.float64)).max()
    assert error < (1e-2 if dtype == bf16 else 1e-5)
    return [kernel.name.rstrip("_0123456789") for kernel in planned(graph, target)[1].values()]


@pytest.mark.parametrize("dtype", [f32, bf16])
@pytest.mark.parametrize(("outs", "ins", "copied"), [(24, 5, True), (40, 33, True), (21, 5, False)])
def test_a_strided_kernel_is_copied(dtype: DType, outs: int, ins: int, copied: bool) -> None:
    """Not one of 21 columns for tensor cores, whose copy could not be loaded together either."""
    shapes = (2, 13, 14, ins), (outs, ins, 3, 2)
    x, w = (Input(n, TensorType(dtype, s))() for n, s in zip("xw", shapes, strict=True))
    none, one = ((0, 0), (0, 0)), (1, 1)
    y = ops.Convolution(one, none, one, one, "NHWC", "OIHW", "NHWC", dtype=f32)(x, w)
    names = _run(Graph((x, w), (y,)), dtype, *shapes)
    assert names.count("columns") == int(copied or dtype == f32)


@pytest.mark.parametrize(("dtype", "are_terms_contiguous", "copied"), [
    (f32, False, False), (f32, True, True), (bf16, False, False), (bf16, True, False),
])  # fmt: skip
def test_a_matrix_is_copied_for_multiply_adds_if_its_terms_lie_side_by_side(
    dtype: DType, are_terms_contiguous: bool, copied: bool
) -> None:
    shape, axis = ((40, 64), 1) if are_terms_contiguous else ((64, 40), 0)
    x, w = Input("x", TensorType(dtype, (300, 64)))(), Input("w", TensorType(dtype, shape))()
    graph = Graph((x, w), (ops.DotGeneral(((), ()), ((1,), (axis,)), f32)(x, w),))
    assert _run(graph, dtype, (300, 64), shape) == ["columns"] * copied + ["product"]


@pytest.mark.parametrize("strides", [(1, 1), (2, 2)])
def test_the_gradient_of_a_kernel_reads_channels_that_lie_side_by_side(strides: tuple[int, int]) -> None:
    """Its rows are taps and channels, channels innermost; its reduction, of many parts, is over images and places."""
    x, g = (3, 17, 15, 16), (3, 15 if strides == (1, 1) else 8, 13 if strides == (1, 1) else 7, 8)
    a, b = (Input(n, TensorType(f32, s))() for n, s in (("x", x), ("g", g)))
    graph = Graph((a, b), (ops.KernelGradient((3, 3), strides, (1, 1))(a, b),))
    assert _run(graph, f32, x, g) == ["product"]


def test_padded_images_are_not_transposed_for_a_kernels_gradient() -> None:
    """As a convolution that sums over images it asks for them innermost: the padded copy stays as the image is."""
    shapes = (4, 10, 10, 32), (4, 10, 10, 8)
    x, g = (Input(n, TensorType(bf16, s))() for n, s in zip("xg", shapes, strict=True))
    none, one = ((0, 0), (0, 0)), (1, 1)
    padded = ops.pad(x, (0, 1, 1, 0), (0, 1, 1, 0))
    y = ops.Convolution(one, none, one, one, "CHWN", "IHWO", "NHWC", dtype=f32)(padded, g)
    graph = Graph((x, g), (y,))
    assert "product" in _run(graph, bf16, *shapes)
    copies = [step.label for step in planned(graph, H100)[0].steps if step.kernel.startswith("pointwise")]
    assert len(copies) == 1 and "transpose" not in copies[0]


@pytest.mark.parametrize(("target", "kernels"), [(H100, ["product", "sums"]), ("cuda:sm_80", ["product"])])
def test_sums_of_many_parts_are_joined(target: str, kernels: list[str]) -> None:
    """By a kernel of their own where it can start early, else in turns by the program that ends last."""
    a, b = (Input(n, TensorType(f32, (9000, size)))() for n, size in (("a", 20), ("b", 24)))
    graph = Graph((a, b), (ops.DotGeneral(((), ()), ((0,), (0,)))(a, b),))
    assert _run(graph, f32, (9000, 20), (9000, 24), target=target) == kernels


@pytest.mark.parametrize(
    ("images", "height", "width", "block"),
    [(2, 8, 16, (1, 4, 16)), (16, 6, 2, (16, 2, 2)), (32, 7, 7, (32, 1, 1)), (3, 15, 13, None)],
)
def test_terms_of_a_kernels_gradient_in_blocks(
    images: int, height: int, width: int, block: tuple[int, ...] | None
) -> None:
    """Of 64 or 32 terms, wherever images, lines and columns divide into such: no term is out of bounds."""
    x, g = (images, height + 2, width + 2, 64), (images, height, width, 64)
    a, b = (Input(n, TensorType(bf16, s))() for n, s in (("x", x), ("g", g)))
    graph = Graph((a, b), (ops.KernelGradient((3, 3), (1, 1), (1, 1))(a, b),))
    _run(graph, bf16, x, g)
    (product, *_) = planned(graph, H100)[1].values()
    axes = tuple(Axis(n, 2 * i + 2, 2 * i + 2) for i, n in enumerate((images, height, width)))
    blocks = TermBlocks.of(axes, 64) or TermBlocks.of(axes, 32)
    assert (blocks and tuple(x.extent for x in blocks.inner)) == block
    assert ("mask" in print_kernel(product).text.split("tl.dot")[0]) == (block is None)


@pytest.mark.parametrize(("blocks", "block"), [(4, 64), (16, 24)])
def test_levels_keep_their_order_beside_rows_that_are_contiguous(blocks: int, block: int) -> None:
    """Blocks of 24 levels do not divide a k-step, which then has parts of several."""
    rng, columns, rows = np.random.default_rng(0), 64, 48
    shape, depth = (columns, blocks, block), blocks * block
    q, zero = (const(rng.integers(0, 16, s).astype(uint4)) for s in (shape, (*shape[:2], 1)))
    scale = const(rng.normal(size=(*shape[:2], 1)).astype(np.float16))
    w = ops.reshape(ops.Dequantize()(q, zero, scale), (columns, depth))
    x = Input("x", TensorType(f16, (depth, rows)))()
    graph = Graph((x,), (ops.DotGeneral(((), ()), ((0,), (1,)), dtype=f32)(x, w),))
    assert _run(graph, f16, (depth, rows)) == ["product"]
