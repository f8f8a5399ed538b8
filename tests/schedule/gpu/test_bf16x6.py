"""Products of f32 by six of bf16: which are, that they are right, and that no number is too large or too small."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ingot import ops
from ingot.ir.dims import symbol
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input, Node, const
from ingot.ir.types import DType, TensorType, bf16, f16, f32
from ingot.schedule.gpu.contraction import boxes, operand_types, operands
from ingot.schedule.gpu.contraction.boxes import Boxes
from ingot.schedule.gpu.contraction.tiling import ProductShape
from ingot.schedule.gpu.machine import H100, MACHINES
from ingot.targets.cuda.triton import print_kernel
from tests.conformance.checked import planned, run_checked
from tests.conformance.targets import H100 as TARGET

NONE, ONE = ((0, 0), (0, 0)), (1, 1)


@pytest.fixture(params=["in the kernel", "in memory"])
def limbs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the limbs of matrices are made."""

    def boxes_of(*args: Any, is_aligned: bool = True) -> Boxes | None:
        is_refused = request.param == "in the kernel" and not is_aligned
        return None if is_refused else boxes.boxes_of(*args, is_aligned=is_aligned)

    monkeypatch.setattr(operands, "boxes_of", boxes_of)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small products gain as if they were large."""
    monkeypatch.setattr(operand_types, "MIN_MULTIPLY_ADDS_BF16X6", 1)


def _inputs(x: tuple[int, ...], y: tuple[int, ...], dtype: DType = f32) -> tuple[Node, Node]:
    return Input("a", TensorType(dtype, x))(), Input("b", TensorType(dtype, y))()


def _dot(a: Node, b: Node, a_axis: int = 1, b_axis: int = 0, tf32: bool | None = None) -> Graph:
    return Graph((a, b), (ops.DotGeneral(((), ()), ((a_axis,), (b_axis,)), tf32=tf32)(a, b),))


def _is_bf16x6(graph: Graph, target: str = TARGET) -> bool:
    text = "".join(print_kernel(kernel).text for kernel in planned(graph, target)[1].values())
    assert "tl.dot" in text
    return "bfloat16" in text


def _agrees(graph: Graph, target: str = TARGET) -> None:
    rng = np.random.default_rng(0)
    data = [rng.normal(size=x.shape).astype(np.float32) for x in graph.inputs]
    assert _is_bf16x6(graph, target)
    (got,), (want,) = run_checked(graph, data, target), interpret(graph, data)
    assert np.abs(got - want).max() <= 1e-6 * np.abs(want).max()


@pytest.mark.parametrize(("rows", "terms", "columns"), [(64, 64, 64), (130, 145, 81), (600, 144, 80), (65, 2000, 70)])
@pytest.mark.parametrize(("a_axis", "b_axis"), [(1, 0), (1, 1), (0, 0), (0, 1)])
@pytest.mark.usefixtures("limbs")
def test_products(rows: int, terms: int, columns: int, a_axis: int, b_axis: int) -> None:
    a = (rows, terms) if a_axis else (terms, rows)
    b = (columns, terms) if b_axis else (terms, columns)
    _agrees(_dot(*_inputs(a, b), a_axis=a_axis, b_axis=b_axis))


@pytest.mark.usefixtures("limbs")
def test_epilogues_constants_and_batches() -> None:
    a, b = _inputs((600, 144), (144, 80))
    c = const(np.random.default_rng(1).normal(size=(144, 80)).astype(np.float32))
    _agrees(Graph((a,), (ops.Relu()(ops.DotGeneral(contract=((1,), (0,)))(a, c)),)))
    a, b = _inputs((3, 70, 100), (3, 100, 66))
    _agrees(Graph((a, b), (ops.DotGeneral(((0,), (0,)), ((2,), (1,)))(a, b),)))


@pytest.mark.parametrize(("x", "w", "groups"), [
    ((2, 13, 14, 40), (72, 40, 3, 3), 1), ((8, 13, 14, 8), (64, 8, 3, 3), 1), ((2, 9, 9, 64), (64, 64, 1, 1), 1),
    ((2, 13, 14, 3), (64, 3, 7, 7), 1), ((2, 9, 10, 32), (128, 16, 3, 3), 2),
])  # fmt: skip
def test_convolutions(x: tuple[int, ...], w: tuple[int, ...], groups: int) -> None:
    a, b = _inputs(x, w)
    _agrees(Graph((a, b), (ops.Convolution(ONE, NONE, ONE, ONE, "NHWC", "OIHW", "NHWC", groups)(a, b),)))


def test_the_gradient_of_a_kernel() -> None:
    a, b = _inputs((3, 17, 15, 16), (3, 15, 13, 64))
    _agrees(Graph((a, b), (ops.KernelGradient((3, 3), ONE, ONE)(a, b),)))


@pytest.mark.parametrize(("rows", "terms", "columns"), [(32, 500, 500), (500, 32, 500), (500, 500, 32)])
def test_small_ones_are_multiply_adds(rows: int, terms: int, columns: int) -> None:
    assert not _is_bf16x6(_dot(*_inputs((rows, terms), (terms, columns))))


def test_other_types_and_gpus_are_not() -> None:
    shapes = (128, 144), (144, 80)
    assert not _is_bf16x6(_dot(*_inputs(*shapes), tf32=True))
    assert not _is_bf16x6(_dot(*_inputs(*shapes, dtype=f16)))
    for target in ("cuda:sm_80", "cuda:sm_86", "cuda:sm_89", "cuda:sm_100a", "cuda:sm_120a", "hip:gfx942"):
        assert not _is_bf16x6(_dot(*_inputs(*shapes)), target)


@pytest.mark.usefixtures("limbs")
def test_limbs_hold_all_numbers() -> None:
    """Those of all exponents, denormal ones too, times one."""
    bits = np.random.default_rng(0).integers(0, 1 << 32, (256, 64), dtype=np.uint32)
    bits[:64] &= 0x807FFFFF  # denormal
    bits[64:70] |= 0x7F7FFF00  # the largest, infinities and NaN
    x, one = bits.view(np.float32), np.zeros((64, 128), np.float32)
    x[~np.isfinite(x).all(1)] = np.nan  # which spread along a row
    one[np.arange(64), np.arange(64)] = 1
    (got,) = run_checked(_dot(*_inputs(x.shape, one.shape)), [x, one], TARGET)
    np.testing.assert_array_equal(got[:, :64], x)


@pytest.mark.parametrize(("a", "b"), [
    (np.nan, 1), (np.inf, 1), (-np.inf, 1e-45), (np.inf, 0), (3.4028235e38, 1), (3.4028235e38, 1e-45), (1e30, 1e30),
    (3e38, -2), (1e-45, 1e38), (1e-45, 1e-45), (1e20, 1e18), (1e-38, 1e30), (-0.0, 1),
])  # fmt: skip
@pytest.mark.parametrize("parts", [False, True])
@pytest.mark.usefixtures("limbs")
def test_special_values(a: float, b: float, parts: bool) -> None:
    terms = 3000 if parts else 70
    x, y = np.zeros((70, terms), np.float32), np.zeros((terms, 66), np.float32)
    x[5, 7], y[7, 3], y[7, 4] = a, b, -b
    x[6, 8], y[8] = 1, 1
    (got,) = run_checked(_dot(*_inputs(x.shape, y.shape)), [x, y], TARGET)
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(got, x @ y, rtol=2**-22, atol=2e-45)


@pytest.mark.usefixtures("limbs")
def test_parts_are_computed_again_by_themselves() -> None:
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=s).astype(np.float32) for s in ((70, 3000), (3000, 66)))
    x[5, 7], x[9, 2990], x[11, 1500] = np.inf, np.nan, 1e-42
    (got,) = run_checked(_dot(*_inputs(x.shape, y.shape)), [x, y], TARGET)
    np.testing.assert_allclose(got, x @ y, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("scale", [1, 1e-30, 1e30, 1e-41])
@pytest.mark.usefixtures("limbs")
def test_errors_are_at_most_those_of_multiply_adds(scale: float) -> None:
    rng = np.random.default_rng(0)
    x, y = (rng.random((128, 1024)) * scale).astype(np.float32), rng.normal(size=(1024, 64)).astype(np.float32)
    y *= np.float32(min(1 / scale, 1e34))
    (got,) = run_checked(_dot(*_inputs(x.shape, y.shape)), [x, y], TARGET)
    exact = x.astype(np.float64) @ y.astype(np.float64)
    sums = np.zeros(exact.shape, np.float32)
    for i in range(1024):
        sums = (sums.astype(np.float64) + np.outer(x[:, i], y[i].astype(np.float64))).astype(np.float32)
    assert np.square(got - exact).sum() <= np.square(sums - exact).sum()


@pytest.mark.parametrize("sizes", [(8192, 8192, 8192), (100352, 64, 576), (128, 768, 3072), (2048, 50257, 768)])
def test_tiles_fit(sizes: tuple[int, int, int]) -> None:
    """Registers hold two sums of each element."""
    for dtype, allows_boxes in ((f32, False), (f32, True), (bf16, True)):
        shape = ProductShape(*sizes, 1, dtype, allows_boxes=allows_boxes, bf16x6=True)
        found = shape.candidates(H100)
        assert found and all(shape.admits(t, H100) and 2 * t.rows * t.columns <= 4096 * t.warps for t in found)


def test_gpus_that_gain() -> None:
    assert [n for n, machine in MACHINES.items() if machine.gains_by_bf16x6] == [90]


def test_products_that_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert _is_bf16x6(_dot(*_inputs((512, 1024), (1024, 1024))))
    assert not _is_bf16x6(_dot(*_inputs((512, 1024), (1024, 1000))))
    assert not _is_bf16x6(_dot(*_inputs((512, 1024), (1024, 1024)), tf32=False))


def test_an_open_number_of_rows() -> None:
    x, w = Input("x", TensorType(f32, (symbol("n"), 144)))(), Input("w", TensorType(f32, (144, 80)))()
    graph = Graph((x, w), (ops.DotGeneral(contract=((1,), (0,)))(x, w),))
    rng = np.random.default_rng(0)
    for rows in (1, 5, 300, 700):
        data = [rng.normal(size=s).astype(np.float32) for s in ((rows, 144), (144, 80))]
        data[0][rows // 2, 3] = np.inf
        (got,), (want,) = run_checked(graph, data, TARGET), interpret(graph, data)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-4)
