"""Small models, and the results of ONNX Runtime for them."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

F, I, B = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
X = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)


def model(nodes, inputs, outputs=(("z", F),), initializers=(), opset=18) -> onnx.ModelProto:
    data = [helper.make_tensor_value_info(*i) for i in inputs]
    results = [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs]
    constants = [onnx.numpy_helper.from_array(np.asarray(v), name) for name, v in initializers]
    graph = helper.make_graph(nodes, "g", data, results, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def runtime(m: onnx.ModelProto, **inputs: np.ndarray) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(m.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return [np.asarray(result) for result in session.run(None, inputs)]


def assert_close(got, want) -> None:
    for a, b in zip(got, want, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def one(op: str, *names: str, **attributes) -> list[onnx.NodeProto]:
    return [helper.make_node(op, list(names), ["z"], **attributes)]
