"""Files of models as C: sizes are fixed, trees and recurrences come out as the interpreter has them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from benchmarks.portable_c import WARNINGS, fixed, run  # noqa: E402
from tests.conformance.c import needs_gcc  # noqa: E402
from tests.frontends.onnx.rows.ml.test_ml import chain  # noqa: E402


def _lstm(path: Path) -> None:
    rng = np.random.default_rng(1)
    shapes = {"w": (2, 20, 3), "r": (2, 20, 5), "b": (2, 40)}
    weights = [numpy_helper.from_array(rng.standard_normal(s, np.float32), name) for name, s in shapes.items()]
    node = helper.make_node("LSTM", ["x", "w", "r", "b"], ["y", "h", "c"], hidden_size=5, direction="bidirectional")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["time", "batch", 3])
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("y", "h", "c")]
    onnx.save(helper.make_model(helper.make_graph([node], "lstm", [x], results, weights), ir_version=8), path)


def _trees(path: Path) -> None:
    domain = "ai.onnx.ml"
    node = helper.make_node("TreeEnsembleRegressor", ["x"], ["y"], domain=domain, **chain(6))
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 2])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(domain, 3)]
    onnx.save(helper.make_model(helper.make_graph([node], "trees", [x], [y]), opset_imports=opsets, ir_version=8), path)


@needs_gcc
@pytest.mark.slow
@pytest.mark.parametrize(("write", "axes"), [(_lstm, {"x.0": 4, "x.1": 2}), (_trees, {"x.0": 30})])
def test_as_the_interpreter(write, axes, tmp_path: Path) -> None:
    write(tmp_path / "m.onnx")
    graph = fixed(tmp_path / "m.onnx", 7, axes)
    assert graph.inputs[0].shape == (*axes.values(), *graph.inputs[0].shape[len(axes) :])
    outcome = run(graph, tmp_path, "", ["gcc", *WARNINGS, "-O1"], below=2)
    assert outcome.error < 1e-5 and outcome.source and outcome.run
