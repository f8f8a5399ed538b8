"""Small ONNX models for the tests of debugging and of the command line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def classifier() -> onnx.ModelProto:
    """image f32[batch,1,8,8] -> conv, relu, pool, dense, softmax -> probability f32[batch,5]."""
    random = np.random.default_rng(0)

    def array(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array((0.3 * random.standard_normal(shape)).astype(np.float32), name)

    nodes = [
        helper.make_node("Conv", ["image", "k", "kb"], ["c"], "conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"], "relu"),
        helper.make_node("MaxPool", ["r"], ["p"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Flatten", ["p"], ["f"], "flatten"),
        helper.make_node("Gemm", ["f", "d", "db"], ["l"], "dense", transB=1),
        helper.make_node("Softmax", ["l"], ["probability"], "softmax", axis=1),
    ]
    weights = [array("k", 12, 1, 3, 3), array("kb", 12), array("d", 5, 192), array("db", 5)]
    return _model(nodes, "image", ["batch", 1, 8, 8], "probability", ["batch", 5], weights)


def tokens() -> onnx.ModelProto:
    """ids i64[batch,length] -> rows of a table of 11 -> mean -> y f32[batch,6]."""
    table = np.random.default_rng(1).standard_normal((11, 6)).astype(np.float32)
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["e"], "words"),
        helper.make_node("ReduceMean", ["e"], ["y"], "mean", axes=[1], keepdims=0),
    ]
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", "length"])
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 6])
    graph = helper.make_graph(nodes, "tokens", [ids], [result], [numpy_helper.from_array(table, "table")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def patches() -> onnx.ModelProto:
    """image f32[batch,1,8,w] -> conv of 8x8 windows, 8 apart -> y."""
    kernel = numpy_helper.from_array(np.ones((2, 1, 8, 8), np.float32), "k")
    nodes = [helper.make_node("Conv", ["image", "k"], ["y"], "conv", strides=[8, 8])]
    return _model(nodes, "image", ["batch", 1, 8, "w"], "y", ["batch", 2, 1, "v"], [kernel])


def residual() -> onnx.ModelProto:
    """x f32[batch,32] -> a = relu(x W1) -> y = a W2 W3 + a: a is read again two kernels after it is written."""
    random = np.random.default_rng(2)
    weights = [
        numpy_helper.from_array((0.2 * random.standard_normal((32, 32))).astype(np.float32), f"w{i}") for i in (1, 2, 3)
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["m1"], "first"),
        helper.make_node("Relu", ["m1"], ["a"], "a"),
        helper.make_node("MatMul", ["a", "w2"], ["m2"], "second"),
        helper.make_node("MatMul", ["m2", "w3"], ["m3"], "third"),
        helper.make_node("Add", ["m3", "a"], ["y"], "sum"),
    ]
    return _model(nodes, "x", ["batch", 32], "y", ["batch", 32], weights)


def unknown_ops() -> onnx.ModelProto:
    """Two ops of a domain that nobody has."""
    nodes = [
        helper.make_node("Frobnicate", ["x"], ["a"], "first", domain="test.nowhere"),
        helper.make_node("Defenestrate", ["a"], ["y"], "second", domain="test.nowhere"),
    ]
    model = _model(nodes, "x", [2], "y", [2], [])
    model.opset_import.append(helper.make_opsetid("test.nowhere", 1))
    return model


def escaping_data() -> onnx.ModelProto:
    """A weight that is said to lie outside the model's folder."""
    model = _model([helper.make_node("Add", ["x", "w"], ["y"], "add")], "x", [4], "y", [4], [])
    weight = model.graph.initializer.add(name="w", data_type=TensorProto.FLOAT, dims=[4])
    weight.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "../secret.bin"), ("offset", "0"), ("length", "16")):
        weight.external_data.add(key=key, value=value)
    return model


def _model(
    nodes: list[onnx.NodeProto],
    input_text: str,
    shape: list[int | str],
    result: str,
    result_shape: list[int | str],
    weights: list[onnx.TensorProto],
) -> onnx.ModelProto:
    inputs = [helper.make_tensor_value_info(input_text, TensorProto.FLOAT, shape)]
    outputs = [helper.make_tensor_value_info(result, TensorProto.FLOAT, result_shape)]
    graph = helper.make_graph(nodes, "test", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def save(model: onnx.ModelProto, path: Path) -> Path:
    path.write_bytes(model.SerializeToString())
    return path
