"""ONNX models in ONNX Runtime, and which node is computed otherwise than it is defined."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from ingot.debug.comparison.compare import compare
from ingot.debug.comparison.onnx_runtime import Definitions, session
from ingot.debug.source import open_source
from tests.debug.models import save

X = np.random.default_rng(0).standard_normal(40).astype(np.float32)


@pytest.mark.parametrize("wrong", [1, 2])
def test_who_computes_a_node_otherwise_than_it_is_defined(wrong: int):
    """x -> exp -> + 1000 -> - 1000: what is within the tolerance of the sum is not within that of the difference."""
    nodes = [
        helper.make_node("Exp", ["x"], ["e"]),
        helper.make_node("Add", ["e", "c"], ["s"]),
        helper.make_node("Sub", ["s", "c"], ["y"]),
    ]
    c = np.array(1000, np.float32)
    graph = helper.make_graph(nodes, "g", [], [], [numpy_helper.from_array(c, "c")])
    definitions = Definitions(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), {"x": X})

    def values(step: int, error: float) -> dict[str, np.ndarray]:
        e = np.exp(X)
        s = e + c + np.float32(error if step == 1 else 0)
        return {"e": e, "s": s, "y": s - c + np.float32(error if step == 2 else 0)}

    right, deviating = values(0, 0), values(wrong, 0.05)
    assert definitions.culprit("y", right, deviating, None) == (nodes[wrong], True)
    assert definitions.culprit("y", deviating, right, None) == (nodes[wrong], False)


def test_a_node_without_a_definition_is_not_excused():
    node = helper.make_node("QuickGelu", ["x"], ["y"], domain="com.microsoft")
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    definitions = Definitions(helper.make_model(helper.make_graph([node], "g", [], []), opset_imports=opsets), {"x": X})
    assert definitions.culprit("y", {"y": X}, {"y": X + 1}, None) == (node, False)


def test_maps_of_a_zip_map_are_rows_in_the_order_of_its_labels(tmp_path: Path):
    pytest.importorskip("onnxruntime")
    labels = [7, 2, 5]
    nodes = [
        helper.make_node(
            "LinearClassifier", ["x"], ["label", "scores"], domain="ai.onnx.ml", post_transform="SOFTMAX",
            coefficients=np.linspace(-1, 1, 12).tolist(), intercepts=[0.1, 0.2, 0.3], classlabels_ints=labels,
        ),
        helper.make_node("ZipMap", ["scores"], ["probability"], domain="ai.onnx.ml", classlabels_int64s=labels),
    ]  # fmt: skip
    maps = helper.make_sequence_type_proto(
        helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    )
    outputs = [
        helper.make_tensor_value_info("label", TensorProto.INT64, ["n"]),
        helper.make_value_info("probability", maps),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])
    graph = helper.make_graph(nodes, "g", [x], outputs)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    path = save(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "m.onnx")
    comparison = compare(open_source(path), threads=1)
    assert comparison.ok and not comparison.refused, [str(c.agreement) for c in comparison.checks]
    label, rows = session(str(path))({"x": X.reshape(10, 4)})
    assert rows.shape == (10, 3) and (np.array(labels)[rows.argmax(1)] == label).all()
    assert session(str(path))({"x": X[:0].reshape(0, 4)})[1].shape == (0, 3)
