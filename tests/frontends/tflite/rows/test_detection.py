"""TFLite_Detection_PostProcess and its options, against LiteRT."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from flatbuffers import flexbuffers

from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.tflite.flexbuffer import numbers
from tests.frontends.tflite.builder import Model, feed, interpreted, reference

OPTIONS = {
    "max_detections": 10, "max_classes_per_detection": 1, "detections_per_class": 100, "use_regular_nms": False,
    "nms_score_threshold": 0.3, "nms_iou_threshold": 0.5, "num_classes": 5, "y_scale": 10.0, "x_scale": 10.0,
    "h_scale": 5.0, "w_scale": 5.0,
}  # fmt: skip


def _model(count: int, **options: Any) -> bytes:
    model = Model()
    g = model.subgraph()
    places = np.random.default_rng(1).uniform(0.2, 0.8, (count, 2))
    anchors = np.concatenate([places, np.full((count, 2), 0.3)], 1).astype(np.float32)
    operands = [g.input((1, count, 4)), g.input((1, count, 6)), g.const(anchors)]
    results = [g.tensor(shape) for shape in ((1, 10, 4), (1, 10), (1, 10), (1,))]
    raw = bytes(flexbuffers.Dumps(OPTIONS | options))
    g.outputs = list(g.op("CUSTOM", operands, results, custom="TFLite_Detection_PostProcess", raw=raw))
    return model.finish()


@pytest.mark.parametrize("options", [{}, {"nms_score_threshold": 0.97}, {"max_detections": 3}])
def test_boxes_are_those_of_litert(options: dict[str, Any]):
    model = _model(40, **options)
    feeds = [feed((1, 40, 4)) * 2, np.random.default_rng(2).random((1, 40, 6)).astype(np.float32)]
    got, want = interpreted(model, feeds), reference(model, feeds)
    n = int(want[3][0])
    assert n > 0 and got[3].tolist() == want[3].tolist()
    for a, b in zip(got[:3], want[:3], strict=True):
        # beyond the boxes that are left LiteRT's memory holds anything
        np.testing.assert_allclose(a[:, :n], b[:, :n], rtol=1e-5, atol=1e-6)
        assert not a[:, n:].any()


def test_options_are_read_whatever_their_width():
    values = {"a": 1, "b": -70000, "c": 0.5, "d": True, "e": 1 << 40, "f": 1e-9}
    assert numbers(bytes(flexbuffers.Dumps(values))) == values
    assert numbers(bytes(flexbuffers.Dumps({"a": 3, "text": "no number"}))) == {"a": 3}


def test_damaged_options_are_refused():
    data = bytes(flexbuffers.Dumps(OPTIONS))
    rng = random.Random(0)
    for n in range(len(data)):
        _survives(data[:n])
    for _ in range(500):
        damaged = bytearray(data)
        damaged[rng.randrange(len(data))] = rng.randrange(256)
        _survives(bytes(damaged))


def _survives(data: bytes) -> None:
    with suppress(Unsupported):
        assert isinstance(numbers(data), dict)
