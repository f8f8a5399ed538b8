"""Epochs over arrays: which of a step's inputs they are, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

import ingot
from ingot.support.errors import InputError
from ingot.transform.train.loop import Plan, run

onnx = pytest.importorskip("onnx")
ROWS, CLASSES = np.random.default_rng(0).standard_normal((8, 3)).astype(np.float32), np.arange(8) % 2


def stepped(name: str) -> ingot.TrainingStep:
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 18]> m (float[n,3] {name}) => (float[n,2] y) {{ y = MatMul({name}, w) }}'
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((3, 2), np.float32), "w"))
    return ingot.train(model, "cross_entropy", ingot.optim.SGD(lr=0.1))


@pytest.mark.parametrize("name", ["x", "lr", "target"])
def test_inputs_of_any_name(name: str) -> None:
    """A call's own learning rate is an argument of that name, too."""
    step = stepped(name)
    expected = [s.name for s in step.inputs[:-1]]
    data = dict(zip(expected, (ROWS, CLASSES), strict=True))
    losses = run(step, Plan(data, batch=4, epochs=2), lambda *_: None)
    step = stepped("x")
    assert losses == run(step, Plan({"x": ROWS, "target": CLASSES}, batch=4, epochs=2), lambda *_: None)


@pytest.mark.parametrize("labels", [CLASSES.astype("M8[s]"), CLASSES.astype(str), CLASSES + 0j, CLASSES / 2])
def test_labels_that_are_no_integers(labels: np.ndarray) -> None:
    with pytest.raises(InputError, match="target"):
        run(stepped("x"), Plan({"x": ROWS, "target": labels}, batch=4, epochs=1), lambda *_: None)
