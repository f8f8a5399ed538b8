"""MediaPipe's custom ops, which no runtime here has: against products of matrices in f64 and loops over pixels."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from flatbuffers import flexbuffers

from ingot.frontends.tflite import import_tflite
from ingot.support.errors import UnsupportedOpError
from tests.frontends.tflite.builder import Model, feed, interpreted, one_op, reference


def _custom(
    name: str, inputs: list[tuple[int, ...]], output_shape: tuple[int, ...], raw: bytes, version: int = 2
) -> bytes:
    model = Model()
    g = model.subgraph()
    g.outputs = list(g.op("CUSTOM", [g.input(s) for s in inputs], [g.tensor(output_shape)], custom=name, raw=raw))
    model.versions[name] = version
    return model.finish()


def _packed(values: dict[str, Any], **vectors: list[int]) -> bytes:
    b = flexbuffers.Builder()
    with b.Map():
        for key, value in values.items():
            b.Key(key)
            b.Add(value)
        for key, vector in vectors.items():
            b.Key(key)
            b.TypedVectorFromElements(vector)
    return bytes(b.Finish())


@pytest.mark.parametrize(("padding", "stride", "size", "k"), [(1, 2, 5, 3), (1, 2, 4, 2), (2, 2, 4, 3), (2, 3, 3, 2)])
def test_a_transposed_convolution_with_a_bias(padding: int, stride: int, size: int, k: int):
    x, kernel, bias = feed((2, size, size, 3)), feed((4, k, k, 3), seed=1), feed((4,), seed=2)
    raw = struct.pack("<3i", padding, stride, stride)
    n = stride * (size - 1) + k
    n -= max(0, k - (size - 1) % stride - 1) if padding == 1 else 0
    data = _custom("Convolution2DTransposeBias", [x.shape, kernel.shape, bias.shape], (2, n, n, 4), raw)
    sizes = np.array([2, n, n, 4], np.int32)
    options = {"padding": padding - 1, "stride_w": stride, "stride_h": stride}
    plain = one_op("TRANSPOSE_CONV", [sizes, kernel, (x.shape,), bias], [((1,),)], "TransposeConv", **options)
    (got,), (want,) = interpreted(data, [x, kernel, bias]), reference(plain, [x])
    assert got.shape == want.shape == (2, n, n, 4)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


CHOSEN = [5, 2, 7, 300, 41, 260]
CROP = {
    "left_rotation_idx": 2, "right_rotation_idx": 300, "output_height": 16, "output_width": 12,
    "scale_x": 1.5, "scale_y": 1.25, "target_rotation_radians": 0.3,
}  # fmt: skip


def test_a_crop_around_landmarks():
    points = np.random.default_rng(0).uniform(-50, 200, (1, 468, 3)).astype(np.float32)
    data = _custom("Landmarks2TransformMatrix", [points.shape], (1, 4, 4), _packed(CROP, subset_idxs=CHOSEN))
    (got,) = interpreted(data, [points])

    xy = points[0, :, :2].astype(np.float64)
    offset = xy[300] - xy[2]
    r = 0.3 - np.arctan2(offset[1], offset[0])
    rotation = np.array([[np.cos(r), -np.sin(r)], [np.sin(r), np.cos(r)]])
    box = xy[CHOSEN] @ rotation.T
    low, high = box.min(0), box.max(0)
    want = np.eye(4)
    scale = np.diag((high - low) * [1.5 / 12, 1.25 / 16])
    want[:2, :2] = rotation.T @ scale
    want[:2, 3] = rotation.T @ ((low + high) / 2) - want[:2, :2] @ [6, 8]
    np.testing.assert_allclose(got[0], want, rtol=1e-5, atol=1e-4)


MATRIX = np.array([[0.913, -0.387, 0, 3.117], [0.291, 0.713, 0, -1.061], [0, 0, 1, 0], [0, 0, 0, 1]], np.float32)[None]


@pytest.mark.parametrize("version", [1, 2])
def test_an_image_at_the_places_of_a_crop(version: int):
    image = feed((1, 7, 9, 3))
    image[0, 3, 4, 1] = np.inf
    raw = _packed({"output_height": 8, "output_width": 10})
    data = _custom("TransformTensorBilinear", [image.shape, (1, 4, 4)], (1, 8, 10, 3), raw, version)
    (got,) = interpreted(data, [image, MATRIX])
    half = 0.5 if version == 2 else 0
    want, padded = np.zeros((8, 10, 3)), np.pad(image[0].astype(np.float64), ((0, 1), (0, 1), (0, 0)))
    for i in range(8):
        for j in range(10):
            x, y = (MATRIX[0, :2].astype(np.float64) @ [j + half, i + half, 0, 1]) - half
            if 0 <= x <= 8 and 0 <= y <= 6:
                a, b = int(x), int(y)
                with np.errstate(invalid="ignore"):
                    rows = [(1 - (x - a)) * padded[b + d, a] + (x - a) * padded[b + d, a + 1] for d in (0, 1)]
                    want[i, j] = (1 - (y - b)) * rows[0] + (y - b) * rows[1]
    assert np.abs(want[np.isfinite(want)]).max() > 1 and not np.isfinite(want).all()
    np.testing.assert_allclose(got[0], want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("numbers", [2, 3])
def test_landmarks_are_taken_back(numbers: int):
    points = feed((1, 6, numbers))
    data = _custom("TransformLandmarks", [points.shape, (1, 4, 4)], points.shape, b"")
    (got,) = interpreted(data, [points, MATRIX])
    want = points.copy()
    want[0, :, :2] = points[0, :, :2] @ MATRIX[0, :2, :2].T + MATRIX[0, :2, 3]
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)

    flat = points.reshape(1, 1, 1, -1)
    raw = _packed({"dimensions": numbers, "scale": 2.0})
    data = _custom("TransformLandmarks", [flat.shape, (1, 4, 4)], flat.shape, raw, 1)
    want[0, :, :2] += MATRIX[0, :2, 3]
    np.testing.assert_allclose(interpreted(data, [flat, MATRIX])[0], want.reshape(flat.shape), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "no map"),
        (_packed({}, subset_idxs=CHOSEN), "no left_rotation_idx"),
        (_packed(CROP, subset_idxs=[468]), "beyond 468"),
        (_packed(CROP), "no landmarks to go around"),
        (_packed(CROP | {"output_width": 0}, subset_idxs=CHOSEN), "a crop of"),
    ],
)
def test_options_that_do_not_fit_are_refused(raw: bytes, message: str):
    with pytest.raises(UnsupportedOpError, match=message):
        import_tflite(_custom("Landmarks2TransformMatrix", [(1, 468, 3)], (1, 4, 4), raw))
