"""Resized and sampled images beside ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

from ingot.frontends.onnx import import_onnx
from ingot.ir.interp import interpret
from tests.frontends.onnx.reference import F, I, model, one, runtime

RNG = np.random.default_rng(0)
X = RNG.standard_normal((2, 3, 5, 7)).astype(np.float32)
MODES = [
    ("nearest", "asymmetric"), ("nearest", "half_pixel"), ("linear", "half_pixel"), ("linear", "align_corners"),
    ("linear", "pytorch_half_pixel"), ("cubic", "half_pixel"), ("cubic", "align_corners"), ("cubic", "asymmetric"),
]  # fmt: skip


def agree(m: Any, tolerance: float = 2e-5, **inputs: np.ndarray) -> None:
    for got, want in zip(interpret(import_onnx(m), inputs), runtime(m, **inputs), strict=True):
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("mode", "coordinates"), MODES)
@pytest.mark.parametrize("sizes", [(3, 4), (10, 21), (1, 9)])
def test_resize_to_sizes(mode: str, coordinates: str, sizes: tuple[int, int]) -> None:
    nodes = [
        helper.make_node(
            "Resize", ["x", "", "", "sizes"], ["z"], mode=mode, coordinate_transformation_mode=coordinates,
            **({"nearest_mode": "floor"} if mode == "nearest" else {}),
        )
    ]  # fmt: skip
    m = model(nodes, [("x", F, ["n", 3, "h", "w"])], initializers=[("sizes", np.array([2, 3, *sizes]))])
    agree(m, x=X)


@pytest.mark.parametrize("scales", [(2.0, 3.0), (0.6, 1.7)])
@pytest.mark.parametrize("antialias", [0, 1])
def test_resize_by_scales(scales: tuple[float, float], antialias: int) -> None:
    nodes = [helper.make_node("Resize", ["x", "", "scales"], ["z"], mode="linear", antialias=antialias)]
    constants = [("scales", np.array([1, 1, *scales], np.float32))]
    agree(model(nodes, [("x", F, X.shape)], initializers=constants), x=X)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("corners", [0, 1])
def test_grid_sample(mode: str, padding: str, corners: int) -> None:
    grid = RNG.uniform(-1.4, 1.4, (2, 4, 6, 2)).astype(np.float32)
    named = {"nearest": "nearest", "linear": "bilinear", "cubic": "bicubic"}[mode]
    nodes = one("GridSample", "x", "grid", mode=named, padding_mode=padding, align_corners=corners)
    m = model(nodes, [("x", F, ["n", 3, "h", "w"]), ("grid", F, ["n", "a", "b", 2])], opset=16)
    agree(m, 1e-4, x=X, grid=grid)


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("coordinates", ["half_pixel", "output_half_pixel"])
@pytest.mark.parametrize("ratio", [1, 2])
def test_roi_align(mode: str, coordinates: str, ratio: int) -> None:
    corner = RNG.uniform(-1, 3, (4, 2))
    rois = np.concatenate([corner, corner + RNG.uniform(0.2, 5, (4, 2))], 1).astype(np.float32)
    if mode == "max" and ratio > 1:
        pytest.skip("ONNX Runtime's maximum is of products with weights, not of samples")
    nodes = one(
        "RoiAlign", "x", "rois", "image", mode=mode, coordinate_transformation_mode=coordinates, output_height=2,
        output_width=3, sampling_ratio=ratio, spatial_scale=0.7,
    )  # fmt: skip
    m = model(nodes, [("x", F, X.shape), ("rois", F, ["r", 4]), ("image", I, ["r"])])
    agree(m, x=X, rois=rois, image=np.array([0, 1, 1, 0]))
