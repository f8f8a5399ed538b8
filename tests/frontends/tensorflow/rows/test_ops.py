"""Each op's row, against what TensorFlow computed of the same inputs."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from ingot.frontends.tensorflow import import_tensorflow
from ingot.ir.interp import interpret
from ingot.ir.node import Input
from tests.frontends.tensorflow.fixtures import Arrays, fixture, names


@cache
def _results(which: str, folder: Path) -> tuple[Arrays, Arrays]:
    """Ingot's results and TensorFlow's, by name."""
    ops = fixture(which, folder / which)
    ((inputs, expected),) = ops.calls
    graph = import_tensorflow(ops.path, outputs=sorted(expected)).graph
    given = [inputs[n.op.label] for n in graph.inputs if isinstance(n.op, Input)]
    with np.errstate(all="ignore"):
        return dict(zip(graph.output_names, interpret(graph, given), strict=True)), expected


@pytest.mark.parametrize(
    ("which", "name"), [pytest.param(w, n, id=n) for w in ("ops", "areas", "training") for n in names(w)]
)
def test_op(which: str, name: str, tmp_path_factory: pytest.TempPathFactory):
    results, expected = _results(which, tmp_path_factory.getbasetemp())
    got, wanted = results[name], expected[name]
    assert got.dtype == wanted.dtype and got.shape == wanted.shape
    np.testing.assert_allclose(got, wanted, rtol=2e-6, atol=2e-6)
