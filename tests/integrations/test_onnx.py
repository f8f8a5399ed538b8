"""Ingot behind `onnx.backend.base`, as ONNX's own runner calls it."""

from __future__ import annotations

import unittest

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper
from onnx.backend.test import BackendTest

from ingot.integrations.onnx import IngotBackend


@pytest.mark.slow
def test_onnx_own_runner() -> None:
    tests = BackendTest(IngotBackend, __name__)
    names = "relu|softmax_axis_0|add_bcast|sequence_insert_at_back|strnormalizer_nostopwords_nochangecase"
    tests.include(f"^test_({names})_cpu$")
    suite = unittest.TestSuite(
        unittest.defaultTestLoader.loadTestsFromTestCase(case) for case in tests.test_cases.values()
    )
    result = unittest.TestResult()
    suite.run(result)
    assert result.testsRun - len(result.skipped) == 5
    assert not result.errors
    assert not result.failures


def test_one_node() -> None:
    node = helper.make_node("Mul", ["x", "x"], ["y"])
    x = np.arange(3, dtype=np.float32)
    (y,) = IngotBackend.run_node(node, [x], opset_version=14)
    np.testing.assert_array_equal(y, x * x)


def test_devices_and_models() -> None:
    assert IngotBackend.supports_device("CPU")
    assert not IngotBackend.supports_device("CUDA")
    info = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])

    def model(op: str) -> ModelProto:
        graph = helper.make_graph(
            [helper.make_node(op, ["x"], ["y"])], "g", [info], [helper.make_empty_tensor_value_info("y")]
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])

    assert IngotBackend.is_compatible(model("Relu"))
    assert not IngotBackend.is_compatible(model("NoSuchOp"))
    rep = IngotBackend.prepare(model("Relu"))
    for inputs in ([np.array([-1, 2], np.float32)], {"x": np.array([-1, 2], np.float32)}):
        np.testing.assert_array_equal(rep.run(inputs)[0], [0, 2])


@pytest.mark.parametrize("step", [0, 3])
def test_a_step_of_adam(step: int) -> None:
    rng = np.random.default_rng(0)
    x, g, v, h = (rng.random((2, 3)).astype(np.float32) for _ in range(4))
    names = ["r", "t", "x", "g", "v", "h"]
    node = helper.make_node(
        "Adam", names, ["x1", "v1", "h1"], domain="ai.onnx.preview.training",
        alpha=0.9, beta=0.99, epsilon=1e-3, norm_coefficient=0.1, norm_coefficient_post=0.2,
    )  # fmt: skip
    kinds = [TensorProto.FLOAT, TensorProto.INT64] + [TensorProto.FLOAT] * 4
    shapes: list[list[int]] = [[], []] + [[2, 3]] * 4
    infos = [helper.make_tensor_value_info(*of) for of in zip(names, kinds, shapes, strict=True)]
    graph = helper.make_graph([node], "g", infos, [helper.make_empty_tensor_value_info(n) for n in node.output])
    domains = [helper.make_opsetid("", 20), helper.make_opsetid("ai.onnx.preview.training", 1)]
    rep = IngotBackend.prepare(helper.make_model(graph, opset_imports=domains))
    got = rep.run([np.float32(0.1), np.int64(step), x, g, v, h])
    gradient = 0.1 * x + g
    v1, h1 = 0.9 * v + 0.1 * gradient, 0.99 * h + 0.01 * gradient * gradient
    rate = 0.1 * np.sqrt(1 - 0.99**step) / (1 - 0.9**step) if step else 0.1
    x1 = 0.8 * (x - rate * v1 / (np.sqrt(h1) + 1e-3))
    for a, b in zip(got, (x1, v1, h1), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
