"""Each op's row, against what TensorFlow computed of the same inputs."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from ingot.autodiff import value_and_gradients
from ingot.frontends.tensorflow import import_tensorflow
from ingot.ir.interp import interpret
from ingot.ir.node import Input
from ingot.ops import reduce_sum
from tests.frontends.tensorflow.fixtures import Arrays, fixture, names


@cache
def _results(which: str, folder: Path) -> tuple[Arrays, Arrays]:
    """Ingot's results and TensorFlow's, by name."""
    ops = fixture(which, folder / which)
    ((inputs, expected),) = ops.calls
    graph = import_tensorflow(ops.path, outputs=sorted(expected)).graph
    data = [inputs[n.op.label] for n in graph.inputs if isinstance(n.op, Input)]
    with np.errstate(all="ignore"):
        return dict(zip(graph.output_names, interpret(graph, data), strict=True)), expected


@pytest.mark.parametrize(
    ("which", "name"), [pytest.param(w, n, id=n) for w in ("ops", "areas", "training") for n in names(w)]
)
def test_op(which: str, name: str, tmp_path_factory: pytest.TempPathFactory):
    results, expected = _results(which, tmp_path_factory.getbasetemp())
    got, reference = results[name], expected[name]
    assert got.dtype == reference.dtype and got.shape == reference.shape
    np.testing.assert_allclose(got, reference, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(("name", "factor"), [("out_fake_quant", 8), ("out_fake_quant_vars", 1)])
def test_the_gradient_of_fake_quantization_is_that_of_its_range(name: str, factor: int, tmp_path: Path):
    """1 where a number is rounded to the nearest level, 0 where it is cut."""
    read = fixture("ops", tmp_path)
    ((inputs, _),) = read.calls
    graph = import_tensorflow(read.path, outputs=[name]).graph
    labels = [n.op.label for n in graph.inputs if isinstance(n.op, Input)]
    data, at = [inputs[label] for label in labels], labels.index("x")
    (value,) = interpret(graph, data)
    gradients = value_and_gradients(graph, lambda results: reduce_sum(results[0]), [at])
    within = np.abs(value - factor * inputs["x"]) < 0.51 * np.diff(np.unique(value)).min()
    assert within.any()
    assert not within.all()
    np.testing.assert_array_equal(interpret(gradients, data)[1], factor * within)
