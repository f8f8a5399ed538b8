"""One door: the same words for all frontends, refused where they make no sense."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import ingot
from ingot.driver.open import Request, open_model
from ingot.frontends.shared.weights import bind_weights
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input
from ingot.ir.types import TensorType, f32
from ingot.ops import Add, Mul
from ingot.support import safetensors
from ingot.support.errors import InputError

PROGRAM = """
func.func @main(%x: tensor<2xf32>, %w: tensor<2xf32>) ->
    (tensor<2xf32> {jax.result_info = "result['sum']"}, tensor<2xf32> {jax.result_info = "result['product']"}) {
  %0 = stablehlo.add %x, %w : tensor<2xf32>
  %1 = stablehlo.multiply %x, %w : tensor<2xf32>
  return %0, %1 : tensor<2xf32>, tensor<2xf32>
}
"""
X, W = np.array([2, 3], np.float32), np.array([5, 7], np.float32)


def _onnx() -> onnx.ModelProto:
    names, kind = ("x", "w", "sum", "product"), onnx.TensorProto.FLOAT
    infos = {n: onnx.helper.make_tensor_value_info(n, kind, [2]) for n in names}
    nodes = [onnx.helper.make_node(op, ["x", "w"], [result]) for op, result in (("Add", "sum"), ("Mul", "product"))]
    graph = onnx.helper.make_graph(nodes, "g", [infos["x"], infos["w"]], [infos["sum"], infos["product"]])
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=10)


@pytest.mark.parametrize("model", [PROGRAM, _onnx()], ids=["stablehlo", "onnx"])
def test_weights_and_outputs_of_every_frontend(model: object):
    opened = open_model(model, Request(weights={"w": W}, outputs=["product"]))
    assert [n.op.label for n in opened.graph.inputs if isinstance(n.op, Input)] == ["x"]
    assert opened.graph.output_names == ("product",)
    np.testing.assert_array_equal(interpret(opened.graph, [X])[0], X * W)
    with pytest.raises(InputError, match=r"expected some of \['sum', 'product'\], got \['quotient'\]"):
        open_model(model, Request(outputs=["quotient"]))
    with pytest.raises(InputError, match="a TensorFlow model or a TFLite model takes it"):
        open_model(model, Request(signature="serving_default"))


def test_inputs_become_constants(tmp_path: Path):
    x, w = (Input(name, TensorType(f32, (2,)))() for name in ("x", "w"))
    graph = Graph((x, w), (Mul()(Add()(x, w), w),), ("y",))
    safetensors.write(tmp_path / "w.safetensors", {"w": W, "other": X})
    for weights in ({"w": W}, {1: W}, tmp_path / "w.safetensors"):
        bound_graph = bind_weights(graph, weights)
        assert bound_graph.inputs == (x,)
        np.testing.assert_array_equal(interpret(bound_graph, [X])[0], (X + W) * W)
    with pytest.raises(InputError, match=r"indices or names of \['x', 'w'\]"):
        bind_weights(graph, {"v": W})
    with pytest.raises(InputError, match="weights of 'w'"):
        bind_weights(graph, {"w": W.astype(np.float64)})


def test_what_pytorch_does_not_take():
    torch = pytest.importorskip("torch")
    with pytest.raises(InputError, match="weights: expected none for a PyTorch model"):
        ingot.compile(torch.nn.Linear(2, 2), (torch.ones(1, 2),), weights={"x": X})
