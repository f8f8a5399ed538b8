"""Resizing, sampling and box suppression against their definitions."""

from __future__ import annotations

import numpy as np
import pytest

from ingot import ops
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input
from ingot.ir.types import TensorType, dtype_of
from ingot.ops.nn.image.gridsample import GridSample
from ingot.ops.nn.image.resize import Resize
from ingot.passes.model.lower import lower_model_ops
from tests.ops.nn.check import check, run, run_lowered
from tests.schedule.compiled import compile_graph

RNG = np.random.default_rng(0)
X = RNG.normal(size=(2, 3, 5, 7)).astype(np.float32)
AXES = {0: {2: "h", 3: "w"}}


def test_nearest_by_integer_factors_repeats() -> None:
    check(Resize((10, 21), (2, 3)), X, want=X.repeat(2, 2).repeat(3, 3))


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("antialias", [False, True])
@pytest.mark.parametrize("sizes", [(3, 4), (8, 7), (11, 2)])
def test_weights_sum_to_one(mode: str, antialias: bool, sizes: tuple[int, int]) -> None:
    """A constant image stays constant, and a mirrored image gives the mirrored result."""
    op = Resize(sizes, (2, 3), mode, antialias=antialias)
    check(op, np.full((1, 1, 5, 7), 2.5, np.float32), want=np.full((1, 1, *sizes), 2.5, np.float32))
    (one,) = run(op, X)
    check(op, X[..., ::-1, ::-1].copy(), want=one[..., ::-1, ::-1])


def test_linear_resize_keeps_ramps() -> None:
    ramp = np.arange(9, dtype=np.float64).reshape(1, 1, 9)
    corners = Resize((33,), (2,), "linear", "align_corners")
    check(corners, ramp, want=np.linspace(0, 8, 33).reshape(1, 1, 33))
    pixels = (np.arange(27) + 0.5) / 3 - 0.5
    check(Resize((27,), (2,), "linear"), ramp, want=pixels.clip(0, 8).reshape(1, 1, 27))


def identity_grid(*sizes: int, corners: bool = False) -> np.ndarray:
    """The grid[1,*sizes,2] that samples every element at its own position."""
    axes = [np.linspace(-1, 1, n) if corners else (2 * np.arange(n) + 1) / n - 1 for n in sizes]
    return np.stack(np.meshgrid(*axes, indexing="ij")[::-1], -1)[None].astype(np.float32)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("corners", [False, True])
def test_identity_grid_reads_the_image(mode: str, corners: bool) -> None:
    grid = np.repeat(identity_grid(5, 7, corners=corners), 2, 0)
    check(GridSample(mode, "border", corners), X, grid, want=X, scale=20)
    flipped = grid[:, ::-1].copy()
    check(GridSample(mode, "zeros", corners), X, flipped, want=X[:, :, ::-1], scale=20)


def test_padding_modes() -> None:
    shifted = np.repeat(identity_grid(5, 7) + np.float32(2), 2, 0)  # shifted by the size of the image
    check(GridSample("nearest", "zeros"), X, shifted, want=np.zeros_like(X), dynamic=AXES)
    check(GridSample("nearest", "border"), X, shifted, want=np.broadcast_to(X[..., -1:, -1:], X.shape), dynamic=AXES)
    check(GridSample("nearest", "reflection"), X, shifted, want=X[..., ::-1, ::-1], dynamic=AXES)


def expected_kept(boxes: np.ndarray, count: int, max_kept: int, threshold: float) -> list[int]:
    """The boxes that greedy suppression of corners [4, n] keeps, one pair at a time."""
    selected: list[int] = []
    for i in range(count):
        intersections = [
            max(0.0, min(boxes[2, i], boxes[2, j]) - max(boxes[0, i], boxes[0, j]))
            * max(0.0, min(boxes[3, i], boxes[3, j]) - max(boxes[1, i], boxes[1, j]))
            for j in selected
        ]
        areas = [(boxes[2, j] - boxes[0, j]) * (boxes[3, j] - boxes[1, j]) for j in (i, *selected)]
        unions = [areas[0] + area - intersection for area, intersection in zip(areas[1:], intersections, strict=True)]
        if len(selected) < max_kept and all(s <= threshold * u for s, u in zip(intersections, unions, strict=True)):
            selected.append(i)
    return selected


@pytest.mark.parametrize(("threshold", "box_limit"), [(0.0, 99), (0.3, 99), (0.7, 4), (1.0, 99), (0.5, 0)])
@pytest.mark.parametrize("strict", [False, True])
def test_boxes_are_kept_greedily(strict: bool, threshold: float, box_limit: int) -> None:
    corner, size = RNG.uniform(0, 4, (2, 2, 12)), RNG.uniform(0.5, 3, (2, 2, 12))
    boxes, counts = np.concatenate([corner, corner + size], 1), np.array([12, 7])
    expected = np.zeros((2, 12), bool)
    for p in range(2):
        expected[p, expected_kept(boxes[p], counts[p], box_limit, threshold)] = True
    operands = boxes, counts, np.asarray(box_limit), np.asarray(threshold)
    check(ops.SuppressOverlaps(strict), *operands, want=expected, dynamic={0: {2: "n"}})


def test_boxes_without_area() -> None:
    """The overlap of two equal points is 0 / 0, which is not above any threshold."""
    point = np.ones((1, 4, 2))
    for strict in (False, True):
        with np.errstate(invalid="ignore"):
            (got,) = run_lowered(ops.SuppressOverlaps(strict), point, np.array([2]), np.asarray(9), np.asarray(0.0))
        assert got.all()


@pytest.mark.sampled(4)
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("rank", [3, 4, 5])
def test_samples_of_an_image_with_its_channels_last(mode: str, padding: str, rank: int) -> None:
    """Its lowering reads all channels of a position together."""
    op, sizes, channels = GridSample(mode, padding), (5, 4, 3)[: rank - 2], 7
    image = RNG.normal(size=(2, *sizes, channels)).astype(np.float32)
    image[0, 0, ..., 1] = np.nan
    grid = (RNG.normal(size=(2, *(2, 6, 3)[: rank - 2], rank - 2)) * 1.2).astype(np.float32)
    grid[0, 0, ..., 0], grid[1, 0, ..., 0] = np.inf, np.nan
    nodes = [Input(name, TensorType(dtype_of(v), v.shape))() for name, v in (("image", image), ("grid", grid))]
    transposed = ops.Transpose((0, rank - 1, *range(1, rank - 1)))(nodes[0])
    lowered = lower_model_ops(Graph(tuple(nodes), (op(transposed, nodes[1]),)))
    assert any(isinstance(n.op, ops.Gather) and n.op.offset_dims == (rank - 1,) for n in lowered.nodes())
    (result,) = interpret(lowered, [image, grid])
    is_finite = np.asarray(np.isfinite(grid).all(-1))
    finite = np.broadcast_to(is_finite[:, None], result.shape)
    reference = op.reference(np.moveaxis(image, -1, 1), grid)
    np.testing.assert_allclose(result[finite], reference[finite], rtol=2e-5, atol=2e-5)
    compiled = compile_graph(lowered)
    np.testing.assert_allclose(compiled(image, grid)[finite], reference[finite], rtol=2e-5, atol=2e-5)
