"""Kernels of tiles by their meaning, in cases that no sample of an op is. Every op: test_targets.py."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ingot import ops
from ingot.ir.interp import interpret
from ingot.ir.kernel.show import show_kernel
from ingot.ir.node import Graph, Input, const
from ingot.ir.types import DType, TensorType, dtype_of, f16, i4, i8, u4, u8
from ingot.pipeline.build import Trace, build_program
from ingot.pipeline.target import features_of
from ingot.schedule.choice import Site, Tiling
from ingot.schedule.gpu.contraction import product
from ingot.targets.cuda.triton import print_kernel
from tests.conformance.checked import planned, run_checked
from tests.conformance.samples import Sample
from tests.conformance.targets import H100
from tests.conformance.test_targets import conform


def test_a_product_of_no_common_type_is_summed_step_by_step(tmp_path: Path) -> None:
    """Tiles of 32-bit integers are no tensor cores' business."""
    a = np.arange(35, dtype=np.int32).reshape(5, 7)
    conform("null:cuda", [Sample.static(ops.DotGeneral(((), ()), ((1,), (0,))), (a, a.reshape(7, 5)))], tmp_path)


def test_long_reductions_of_few_rows_are_cut_into_parts(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.normal(size=s).astype(np.float32) for s in ((3, 1100), (1100, 40)))
    op = ops.DotGeneral(((), ()), ((1,), (0,)))
    conform("null:cuda", [Sample.static(op, (a, b))], tmp_path)
    inputs = tuple(Input(f"x{i}", TensorType(dtype_of(x), x.shape))() for i, x in enumerate((a, b)))
    program, _ = planned(Graph(inputs, (op(*inputs),)), H100)
    (step,) = program.steps
    assert step.chunks != 1
    ((zeros,),) = [[b for b in program.buffers if b.halo == "zeros"]]
    assert zeros.fill == 0


@pytest.mark.parametrize(("rows", "causal"), [(1, "none"), (3, "lower_right"), (5, "upper_left")])
def test_few_queries_of_heads_that_share_keys_are_cut_along_these(rows: int, causal: str) -> None:
    """Also where the keys of a part are beyond what queries see."""
    rng = np.random.default_rng(6)
    shapes = (2, 6, rows, 16), (2, 2, 200, 16), (2, 2, 200, 16)
    arrays = [rng.normal(size=s).astype(np.float16) for s in shapes]
    mask = rng.integers(0, 2, (2, 6, rows, 200)).astype(bool)
    mask[0, 0] = False
    inputs = tuple(Input(f"x{i}", TensorType(dtype_of(x), x.shape))() for i, x in enumerate((*arrays, mask)))
    graph = Graph(inputs, (ops.Attention(causal, 0.3)(*inputs),))
    (got,), (want,) = run_checked(graph, [*arrays, mask], H100), interpret(graph, [*arrays, mask])
    np.testing.assert_allclose(got.astype(np.float32), want.astype(np.float32), atol=2e-3)
    program, _ = planned(graph, H100)
    (step,) = program.steps
    assert step.chunks == 2 * 2 * 4, "batch, heads of keys, parts"


@pytest.mark.parametrize(
    ("channels", "group_channels", "taps", "width"), [(24, 2, 3, 10), (40, 1, 5, 10), (7, 1, 3, 10), (40, 1, 5, 18)]
)
def test_channels_with_images_of_their_own_are_no_products_of_tiles(
    channels: int, group_channels: int, taps: int, width: int
) -> None:
    """Of a width of 18, a tile's positions lie in one line of the result."""
    rng = np.random.default_rng(7)
    x = rng.normal(size=(2, 9, width, channels)).astype(np.float32)
    w = rng.normal(size=(taps, taps, 1, channels * group_channels)).astype(np.float32)
    data = Input("x", TensorType(dtype_of(x), x.shape))()
    conv = ops.Convolution((2, 1), ((1, 2), (1, 1)), (1, 1), (2, 1), "NHWC", "HWIO", "NHWC", channels)
    graph = Graph((data,), (ops.Relu()(conv(data, const(w))),))
    np.testing.assert_allclose(run_checked(graph, [x], H100)[0], interpret(graph, [x])[0], rtol=1e-4, atol=1e-5)
    _, kernels = planned(graph, H100)
    assert any(name.startswith("depthwise") for name in kernels)


def test_sums_of_few_elements_are_as_exact_as_their_mean_needs() -> None:
    x = np.array([[4.381957, 4.477685, 4.514628]], np.float32)
    data = Input("x", TensorType(dtype_of(x), x.shape))()
    graph = Graph((data,), (ops.LayerNorm((1,))(data),))
    (got,) = run_checked(graph, [x[:, [0, 2, 1]]], H100)
    wide = x.astype(np.float64)[:, [0, 2, 1]]
    want = (wide - wide.mean()) / np.sqrt(wide.var() + 1e-5)
    np.testing.assert_allclose(got, want, atol=4e-6)


def test_rows_that_are_stored_reshaped_into_padding() -> None:
    """The rows' own order of axes is not that of the image which a convolution reads behind them."""
    rng = np.random.default_rng(1)
    x, w = (rng.normal(size=s).astype(np.float32) for s in ((2, 12, 8), (3, 3, 8, 4)))
    data = Input("x", TensorType(dtype_of(x), x.shape))()
    image = ops.reshape(ops.Softmax(2)(data), (2, 4, 3, 8))
    shape = {"lhs_layout": "NHWC", "rhs_layout": "HWIO", "out_layout": "NHWC", "padding": ((1, 1), (1, 1))}
    plain = {"strides": (1, 1), "lhs_dilation": (1, 1), "rhs_dilation": (1, 1)}
    graph = Graph((data,), (ops.Convolution(**plain, **shape)(image, const(w)),))
    np.testing.assert_allclose(run_checked(graph, [x], H100)[0], interpret(graph, [x])[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [u4, i4, u8, i8])
@pytest.mark.parametrize(("rows", "block", "blocks"), [(3, 32, 4), (1, 24, 3), (1, 128, 2)])
def test_levels_are_widened_where_they_are_multiplied(dtype: DType, rows: int, block: int, blocks: int) -> None:
    """Two of 4 bits share a byte where a turn has two products of them."""
    rng = np.random.default_rng(2)
    low = 0 if dtype.kind == "u" else -(1 << (dtype.bits - 1))
    shape, kind = (40, blocks, block), np.float16 if block == 128 else np.float32
    q, zero = (rng.integers(low, low + (1 << dtype.bits), s).astype(dtype.numpy) for s in (shape, (40, blocks, 1)))
    scale = rng.uniform(0.1, 1, (40, blocks, 1)).astype(kind)
    w = ops.reshape(ops.Dequantize()(*map(const, (q, zero, scale))), (40, blocks * block))
    x = rng.normal(size=(rows, blocks * block)).astype(kind)
    data = Input("x", TensorType(dtype_of(x), x.shape))()
    graph = Graph((data,), (ops.DotGeneral(((), ()), ((1,), (1,)))(data, w),))
    levels, zeros, factors = (a.astype(np.float64) for a in (q, zero, scale))  # a single row's weights are not rounded
    want = x.astype(np.float64) @ ((levels - zeros) * factors).reshape(40, -1).T
    np.testing.assert_allclose(run_checked(graph, [x], H100)[0], want, rtol=2e-3, atol=1e-2)
    program, _ = planned(graph, H100)
    assert program.steps[0].kernel.startswith("product"), "nothing widens them before"
    packed = dtype.bits == 4 and block != 24
    assert program.weights.nbytes < q.size // (2 if packed else 1) + 40 * blocks * 5 + 512


def test_bytes_are_multiplied_on_tensor_cores() -> None:
    """Values in u8 and weights in i8 both become i8; sums are exact."""
    rng = np.random.default_rng(3)
    x, w = rng.integers(0, 256, (5, 70)).astype(np.uint8), rng.integers(-128, 128, (70, 9)).astype(np.int8)
    data, third = Input("x", TensorType(u8, x.shape))(), np.float32(0.3)
    a = ops.Dequantize()(data, const(np.uint8(120)), const(third))
    b = ops.Dequantize()(const(w), const(np.int8(0)), const(np.float32(0.1)))
    graph = Graph((data,), (ops.DotGeneral(((), ()), ((1,), (0,)))(a, b),))
    sums = (x.astype(np.int64) - 120) @ w.astype(np.int64)
    np.testing.assert_allclose(run_checked(graph, [x], H100)[0], sums * (third * np.float32(0.1)), rtol=1e-6)
    _, kernels = planned(graph, H100)
    assert any("= product(" in show_kernel(kernel) for kernel in kernels.values())


def test_a_single_row_is_multiplied_without_tiles() -> None:
    rng = np.random.default_rng(4)
    x, w = (rng.normal(size=s).astype(np.float32) for s in ((1, 700), (700, 70)))
    data = Input("x", TensorType(dtype_of(x), x.shape))()
    graph = Graph((data,), (ops.DotGeneral(((), ()), ((1,), (0,)))(data, const(w)),))
    np.testing.assert_allclose(run_checked(graph, [x], H100)[0], x @ w, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_reduced_precision_multiplies_two_narrow_operands(precision: str) -> None:
    """Also of two computed values, and in attention; the result is f32."""
    rng = np.random.default_rng(5)
    x, w = (rng.normal(size=s).astype(np.float32) for s in ((1, 2, 6, 16), (16, 16)))
    data = Input("x", TensorType(dtype_of(x), x.shape))()
    y = ops.DotGeneral(((), ()), ((3,), (0,)))(data, const(w))
    attention = ops.Attention(scale=0.25)(y, y, y)
    scores = ops.DotGeneral(((0, 1), (0, 1)), ((3,), (3,)))(attention, ops.Exp()(data))
    graph = Graph((data,), (scores,))
    trace = Trace()
    build_program(graph, features_of(f"null:{H100}"), 1, precision=precision, trace=trace)
    products = [n for _, _, g in trace.stages for n in g.nodes() if isinstance(n.op, ops.DotGeneral | ops.Attention)]
    last = {n.op.name: n for n in products}
    assert all(i.dtype.bits == 16 for n in last.values() for i in n.inputs)
    (want,) = interpret(graph, [x])
    after = next(g for name, _, g in trace.stages if name == "precision")
    (got,) = interpret(after, [x])
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, want, atol=(4e-3 if precision == "float16" else 3e-2) * np.abs(want).max())


@pytest.mark.parametrize("is_constant", [False, True])
@pytest.mark.parametrize("axes", [((1,), (0,)), ((0,), (0,)), ((1,), (1,)), ((0,), (1,))])
def test_operands_that_are_matrices_are_copied_in_boxes(axes: tuple[tuple[int], tuple[int]], is_constant: bool) -> None:
    """Either axis side by side in memory, the last rows, columns and terms outside of the matrices; b: a constant or an
    input."""
    rng = np.random.default_rng(0)
    rows, terms, columns = 1032, 72, 40
    a_shape, b_shape = ((rows, terms), (terms, rows))[axes[0][0] == 0], ((terms, columns), (columns, terms))[axes[1][0]]
    a, b = (rng.normal(size=s).astype(np.float16) for s in (a_shape, b_shape))
    x, y = (Input(n, TensorType(f16, v.shape))() for n, v in (("x", a), ("y", b)))
    graph = Graph((x,) if is_constant else (x, y), (ops.DotGeneral(((), ()), axes)(x, const(b) if is_constant else y),))
    arrays = [a] if is_constant else [a, b]
    (got,), (want,) = run_checked(graph, arrays, H100), interpret(graph, arrays)
    np.testing.assert_allclose(got.astype(np.float32), want.astype(np.float32), atol=2e-2)
    _, kernels = planned(graph, H100)
    (kernel,) = kernels.values()
    assert sum(b.matrix is not None for b in kernel.params) == 2
    text = print_kernel(kernel).text
    assert text.count(".load([") == 2


@pytest.mark.parametrize("parts", [2, 3])
def test_tiles_behind_whole_waves_are_cut_into_parts(parts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.normal(size=s).astype(np.float16) for s in ((220, 200), (200, 156)))
    x, y = (Input(n, TensorType(f16, v.shape))() for n, v in (("x", a), ("y", b)))
    graph = Graph((x, y), (ops.Relu()(ops.DotGeneral(((), ()), ((1,), (0,)))(x, y)),))
    choice = Tiling(16, 16, 16, 4, 3, parts, waves=1)

    def chosen(site: Site, machine: object, kind: type[Tiling]) -> Tiling:
        assert site.admits(choice)
        assert not site.admits(replace(choice, waves=2))
        return choice

    monkeypatch.setattr(product, "decided", chosen)
    (got,), (want,) = run_checked(graph, [a, b], H100), interpret(graph, [a, b])
    np.testing.assert_allclose(got.astype(np.float32), want.astype(np.float32), atol=2e-2)
    program, _ = planned(graph, H100)
    assert program.steps[0].chunks == 132 + (14 * 10 - 132) * parts
