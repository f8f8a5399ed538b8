"""Reductions over the rows of a contraction's result, in the kernel of the contraction."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest

from ingot import ops
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input, Node
from ingot.ir.types import DType, TensorType, bf16, f32, static_shape
from ingot.schedule.choice import Tiling
from tests.conformance.checked import planned, run_checked
from tests.conformance.targets import H100

RNG = np.random.default_rng(0)


def arg(label: str, dtype: DType, *shape: int) -> Node:
    return Input(label, TensorType(dtype, shape))()


def conv(x: Node, w: Node, stride: int = 1, pad: int = 0, groups: int = 1) -> Node:
    pads, one = ((pad, pad),) * 2, (1, 1)
    return ops.Convolution((stride,) * 2, pads, one, one, "NHWC", "OIHW", "NHWC", groups, 1, None)(x, w)


def moments(y: Node) -> list[Node]:
    """The mean and the variance of each channel, and the largest value."""
    dims, count = tuple(range(y.type.rank - 1)), float(prod(static_shape(y.shape[:-1])))
    wide = ops.cast(y, f32)
    mean = ops.div(ops.Reduce("sum", dims)(wide), count)
    centered = ops.Sub()(wide, ops.BroadcastInDim(y.shape, (y.type.rank - 1,))(mean))
    return [mean, ops.div(ops.Reduce("sum", dims)(ops.Mul()(centered, centered)), count), ops.Reduce("max", dims)(wide)]


def sums_of_gradient(g: Node, x: Node, mean: Node) -> list[Node]:
    """The sums that the gradient of a batch norm needs."""
    dims, wide = tuple(range(g.type.rank - 1)), ops.cast(g, f32)
    centered = ops.Sub()(ops.cast(x, f32), ops.BroadcastInDim(g.shape, (g.type.rank - 1,))(mean))
    return [ops.Reduce("sum", dims)(wide), ops.Reduce("sum", dims)(ops.Mul()(wide, centered))]


def check(graph: Graph, kernels: list[str], shift: float = 0.0, tolerance: float = 2e-5) -> list[np.ndarray]:
    data = [(RNG.normal(size=static_shape(n.shape)) + shift).astype(n.dtype.numpy) for n in graph.inputs]
    names = [name.rstrip("_0123456789") for name in planned(graph, H100)[1]]
    assert [part for name in names for part in name.split("_then_")] == kernels
    results, expected = run_checked(graph, data, H100), interpret(graph, data)
    for got, want in zip(results, expected, strict=True):
        got, want = got.astype(np.float64), want.astype(np.float64)
        error = tolerance if want.ndim == 1 else 8e-3
        np.testing.assert_allclose(got, want, rtol=error, atol=error * np.abs(want).max())
    return [*results]


@pytest.mark.parametrize(
    ("x", "w", "stride", "pad", "groups", "kernels"),
    [
        ((2, 9, 7, 16), (24, 16, 1, 1), 1, 0, 1, ["product", "column_sums"]),
        ((3, 9, 9, 16), (20, 16, 3, 3), 2, 0, 1, ["product", "column_sums"]),
    ],
)
def test_moments_of_a_convolution(
    x: tuple[int, ...], w: tuple[int, ...], stride: int, pad: int, groups: int, kernels: list[str]
) -> None:
    x_in, w_in = arg("x", bf16, *x), arg("w", bf16, *w)
    y = conv(x_in, w_in, stride, pad, groups)
    results = [n for n in check(Graph((x_in, w_in), (y, *moments(y))), kernels, 0.5, 2e-4) if n.ndim == 1]
    assert len(results) == 3


def test_a_mean_far_from_zero_costs_no_digits() -> None:
    """The sum of squares would have 1e6 times the variance."""
    x, w = arg("x", f32, 700, 32), arg("w", f32, 32, 40)
    y = ops.Add()(ops.DotGeneral(((), ()), ((1,), (0,)))(x, w), ops.full((700, 40), 3000.0, f32))
    graph = Graph((x, w), (y, *moments(y)))
    check(graph, ["product", "column_sums"], tolerance=1e-3)


def test_sums_that_read_another_image_share_a_kernel() -> None:
    """The sums of a batch norm's gradient, with the mask of a ReLU before: one kernel reads both images."""
    g, w, y = arg("g", bf16, 2, 15, 11, 24), arg("w", bf16, 24, 40, 1, 1), arg("y", bf16, 2, 15, 11, 40)
    x, mean = arg("x", bf16, 2, 15, 11, 40), arg("mean", f32, 40)
    raw = conv(g, ops.Transpose((1, 0, 2, 3))(w))
    zero = ops.full(raw.shape, 0, bf16)
    gradient = ops.where(ops.compare("GT", y, zero), raw, zero)
    graph = Graph((g, w, y, x, mean), (gradient, *sums_of_gradient(gradient, x, mean)))
    check(graph, ["product", "rows"], tolerance=1e-3)


def test_split_sums_and_small_tiles() -> None:
    """Few rows with many terms are split; only the program that joins the parts reduces the tile."""
    x, w = arg("x", bf16, 1, 7, 7, 1024), arg("w", bf16, 64, 1024, 1, 1)
    y = conv(x, w)
    graph = Graph((x, w), (y, *moments(y)))
    step = planned(graph, H100)[0].steps[0]
    assert step.chunks != 1
    check(graph, ["product", "column_sums"], tolerance=2e-3)


@pytest.mark.parametrize("rows", [300, 385, 260])
def test_tiles_in_pieces(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tile of 192 rows has pieces of 128 and 64; of the last tile the second may be empty."""
    choice = Tiling(192, 64, 32, 4, 3, 1, 1)
    monkeypatch.setattr("ingot.schedule.gpu.contraction.product.decided", lambda site, machine, kind: choice)
    x, w = arg("x", bf16, rows, 64), arg("w", bf16, 64, 40)
    y = ops.DotGeneral(((), ()), ((1,), (0,)))(x, w)
    check(Graph((x, w), (y, *moments(y))), ["product", "column_sums"], tolerance=1e-3)


@pytest.mark.parametrize(("tile_rows", "rows"), [(192, 1300), (64, 700), (64, 1025), (128, 129)])
def test_sums_of_many_tiles_are_merged(tile_rows: int, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In groups of four pieces, which the last one may not have, of tiles of which the last may be cut."""
    module, choice = "ingot.schedule.gpu.contraction", Tiling(tile_rows, 64, 32, 4, 3, 1, 1)
    monkeypatch.setattr(f"{module}.product.decided", lambda site, machine, kind: choice)
    monkeypatch.setattr(f"{module}.column_sums.MAX_FOLD_ROWS", 1)
    monkeypatch.setattr(f"{module}.column_sums.MERGED_PIECES", 4)
    x, w = arg("x", bf16, rows, 64), arg("w", bf16, 64, 80)
    y = ops.DotGeneral(((), ()), ((1,), (0,)))(x, w)
    groups = -(-rows // tile_rows) * (1 + (tile_rows == 192))
    merges = 0
    while groups > 1:
        groups, merges = -(-groups // 4), merges + 1
    check(Graph((x, w), (y, *moments(y))), ["product", *["merged"] * merges, "column_sums"], 100.0, tolerance=2e-3)


def test_what_is_not_finite_stays_in_its_channel() -> None:
    x, w = arg("x", f32, 2, 9, 9, 16), arg("w", f32, 24, 16, 1, 1)
    y = conv(x, w)
    graph = Graph((x, w), (y, *moments(y)))
    inputs = [RNG.normal(size=static_shape(n.shape)).astype(np.float32) for n in graph.inputs]
    inputs[1][3], inputs[1][5, 2] = np.nan, np.inf
    for got, want in zip(run_checked(graph, inputs, H100), interpret(graph, inputs), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_other_reductions_are_kernels_of_their_own() -> None:
    x, w = arg("x", f32, 64, 32), arg("w", f32, 32, 40)
    y = ops.DotGeneral(((), ()), ((1,), (0,)))(x, w)
    peak = ops.Reduce("max", (0,))(y)
    shifted = ops.Exp()(ops.Sub()(y, ops.BroadcastInDim(y.shape, (1,))(peak)))
    for result in (ops.Reduce("sum", (1,))(y), ops.Reduce("sum", (0,))(shifted), ops.ArgReduce("max", 0)(y)):
        kernels = planned(Graph((x, w), (y, result)), H100)[1]
        assert not any("column_sums" in name for name in kernels)
