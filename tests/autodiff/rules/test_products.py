"""Reverse rules of products in the forms that they choose by shape, beside sums written out."""

from __future__ import annotations

import numpy as np
import pytest

from ingot import ops
from ingot.autodiff.reverse import pull_back_cotangents
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input
from ingot.ir.types import DType, TensorType, bf16, f16, f32, f64


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


@pytest.mark.parametrize(("groups", "size", "dilation"), [(1, 3, 1), (4, 3, 1), (2, 3, 1), (1, 1, 1), (1, 3, 2)])
@pytest.mark.parametrize("dtype", [bf16, f16])
def test_kernels_of_convolutions_with_wide_sums(groups: int, size: int, dilation: int, dtype: DType) -> None:
    """Of 16-bit operands, with an f32 result and cotangent."""
    x = Input("x", TensorType(dtype, (2, 4, 7, 6)))()
    w = Input("w", TensorType(dtype, (8, 4 // groups, size, size)))()
    geometry = (1, 1), ((1, 1), (1, 1)), (dilation, dilation), (1, 1), "NCHW", "OIHW", "NCHW", groups
    y = ops.Convolution(*geometry, dtype=f32)(x, w)
    exact = [Input(n.op.label, TensorType(f64, n.shape))() for n in (x, w) if isinstance(n.op, Input)]
    wanted = ops.Convolution(*geometry)(*exact)
    g, wide = (Input("g", n.type)() for n in (y, wanted))
    (result,), (expected,) = pull_back_cotangents([(y, g)], [w]), pull_back_cotangents([(wanted, wide)], [exact[1]])
    assert result is not None and expected is not None and result.type == w.type
    rng = np.random.default_rng(0)
    image = rng.standard_normal((2, 4, 7, 6)).astype(dtype.numpy)
    cotangent = rng.standard_normal([int(d) for d in y.shape]).astype(np.float32)
    (got,) = interpret(Graph((x, g), (result,)), [image, cotangent])
    (want,) = interpret(Graph((exact[0], wide), (expected,)), [image.astype(np.float64), cotangent.astype(np.float64)])
    np.testing.assert_allclose(got.astype(np.float64), want, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("layouts", ["NCHW OIHW NCHW", "NHWC HWIO NHWC", "CNHW IOHW HCNW"])
@pytest.mark.parametrize("sizes", [(3, 2), (1, 4)])
def test_a_window_of_the_whole_image_is_a_product(layouts: str, sizes: tuple[int, int]) -> None:
    rng, (lhs, rhs, result_layout) = np.random.default_rng(0), layouts.split()
    lengths = dict(N=5, C=3, O=4, I=3, H=sizes[0], W=sizes[1])
    x = Input("x", TensorType(f64, tuple(lengths[c] for c in lhs)))()
    w = Input("w", TensorType(f64, tuple(lengths[c] for c in rhs)))()
    y = ops.Convolution((2, 1), ((0, 0), (0, 0)), (1, 1), (1, 1), lhs, rhs, result_layout)(x, w)
    g = Input("g", y.type)()
    gradients = [n for n in pull_back_cotangents([(y, g)], [x, w]) if n is not None]
    graph = Graph((x, w, g), tuple(gradients))
    assert not any(isinstance(n.op, ops.Convolution) for n in graph.nodes())
    image, kernel, cotangent = (rng.standard_normal([int(d) for d in n.shape]) for n in (x, w, g))
    plain = cotangent.reshape([5, 4] if result_layout.index("N") < result_layout.index("C") else [4, 5])
    plain = plain if plain.shape == (5, 4) else plain.T
    of_image = np.einsum(f"no,{rhs.lower()}->{lhs.lower().replace('c', 'i')}", plain, kernel)
    of_kernel = np.einsum(f"no,{lhs.lower().replace('c', 'i')}->{rhs.lower()}", plain, image)
    for got, want in zip(interpret(graph, [image, kernel, cotangent]), (of_image, of_kernel), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)


TRANSPOSED = [  # sizes of the image, window, its dilation of the image and of the kernel, padding
    ((7, 6), (4, 4), (2, 2), (1, 1), ((2, 2), (2, 2))),
    ((3, 4), (2, 2), (2, 2), (1, 1), ((1, 1), (1, 1))),  # each tap has a phase of its own
    ((5, 6), (3, 5), (2, 3), (1, 1), ((1, 2), (4, 3))),  # the last positions are not of all phases
    ((4, 5), (2, 3), (3, 1), (1, 2), ((1, 1), (4, 2))),  # more phases than taps; the kernel is dilated beside it
    ((4, 3), (3, 3), (2, 2), (1, 1), ((-1, 1), (0, -1))),  # the image is cropped
    ((1, 1), (2, 2), (4, 2), (1, 1), ((1, 1), (1, 1))),
    ((9,), (8,), (4,), (1,), ((5, 6),)),
    ((2, 3, 3), (3, 2, 3), (2, 1, 2), (1, 1, 1), ((1, 1), (1, 0), (2, 2))),
]


@pytest.mark.parametrize("infinite", [False, True])
@pytest.mark.parametrize(("sizes", "window", "step", "dilation", "padding"), TRANSPOSED)
def test_kernels_of_transposed_convolutions(
    sizes: tuple[int, ...], window: tuple[int, ...], step: tuple[int, ...], dilation: tuple[int, ...],
    padding: tuple[tuple[int, int], ...], infinite: bool,
) -> None:  # fmt: skip
    """Products of the positions that are there, so that infinities of the image stay infinities."""
    rng, rank = np.random.default_rng(0), len(sizes)
    letters = "DHW"[-rank:]
    x, w = Input("x", TensorType(f64, (2, 3, *sizes)))(), Input("w", TensorType(f64, (4, 3, *window)))()
    layouts = f"NC{letters}", f"OI{letters}", f"NC{letters}"
    y = ops.Convolution((1,) * rank, padding, step, dilation, *layouts)(x, w)
    g = Input("g", y.type)()
    (result,) = pull_back_cotangents([(y, g)], [w])
    assert result is not None and result.type == w.type
    image, cotangent = rng.standard_normal((2, 3, *sizes)), rng.standard_normal([int(d) for d in y.shape])
    if infinite:
        image[(0, 1, *(0,) * rank)], image[(1, 2, *(-1,) * rank)] = np.inf, -np.inf
    (got,) = interpret(Graph((x, g), (result,)), [image, cotangent])
    expected = np.zeros(w.shape)
    for tap in np.ndindex(*window):
        for at in np.ndindex(*sizes):
            place = [p * s - k * d + lo for p, s, k, d, (lo, _) in zip(at, step, tap, dilation, padding, strict=True)]
            if all(0 <= p < size for p, size in zip(place, cotangent.shape[2:], strict=True)):
                products = np.einsum("ni,no->oi", image[(..., *at)], cotangent[(..., *place)])
                expected[(..., *tap)] += products
    np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-12)
