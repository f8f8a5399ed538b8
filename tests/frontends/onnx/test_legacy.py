"""Opsets 1 to 8: operands aligned at an axis, and what were attributes before they were inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import ingot
from ingot.frontends.onnx import import_onnx
from ingot.ir.interp import interpret
from ingot.support.errors import UnsupportedOpError

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4) - 9


def run(
    op: str, opset: int, *arrays: np.ndarray, constants: tuple[np.ndarray, ...] = (), **attributes: Any
) -> np.ndarray:
    names = [f"x{i}" for i in range(len(arrays))]
    fixed = [numpy_helper.from_array(a, f"c{i}") for i, a in enumerate(constants)]
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in zip(names, arrays, strict=True)
    ]
    node = helper.make_node(op, [*names, *(t.name for t in fixed)], ["y"], **attributes)
    graph = helper.make_graph([node], "g", inputs, [helper.make_empty_tensor_value_info("y")], fixed)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    (got,) = interpret(import_onnx(model), list(arrays))
    return np.asarray(got)


B3, B34, B23 = X[0, :, 0], X[0], X[:, :, 1].copy()
POWERS = np.abs(X) + 1


@pytest.mark.parametrize("opset", [1, 6])
def test_operands_aligned_at_an_axis(opset: int) -> None:
    for b, axis, shape in ((B3, 1, (3, 1)), (B23, 0, (2, 3, 1)), (B34, 1, (3, 4)), (B3, -2, (3, 1))):
        np.testing.assert_array_equal(run("Add", opset, X, b, broadcast=1, axis=axis), X + b.reshape(shape))
    np.testing.assert_array_equal(run("Sub", opset, X, B34, broadcast=1), X - B34)
    np.testing.assert_array_equal(run("Less", opset, X, B3, broadcast=1, axis=1), B3[:, None] > X)
    np.testing.assert_allclose(run("Pow", opset, POWERS, B3, broadcast=1, axis=1), POWERS ** B3[:, None], rtol=1e-5)
    mask = X > 0
    np.testing.assert_array_equal(run("And", opset, mask, B3 > 0, broadcast=1, axis=1), mask & (B3 > 0)[:, None])


def test_known_operands_are_aligned_too() -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Reshape", ["s"], ["column"], shape=[3, 1]),
        helper.make_node("Add", ["column", "three"], ["y"], broadcast=1, axis=0),
    ]
    three = numpy_helper.from_array(np.array([10, 20, 30], np.int64), "three")
    info = helper.make_tensor_value_info("x", TensorProto.FLOAT, X.shape)
    graph = helper.make_graph(nodes, "g", [info], [helper.make_empty_tensor_value_info("y")], [three])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 1)])
    (got,) = interpret(import_onnx(model), [X])
    np.testing.assert_array_equal(got, np.array([[12], [23], [34]]))


def test_operands_that_do_not_fit_are_refused() -> None:
    with pytest.raises(UnsupportedOpError, match="aligned at axis 2"):
        run("Add", 6, X, B34, broadcast=1, axis=2)


def test_attributes_that_became_inputs() -> None:
    np.testing.assert_array_equal(run("Reshape", 1, X, shape=[4, -1]), X.reshape(4, -1))
    np.testing.assert_array_equal(run("Cast", 1, X, to="INT32"), X.astype(np.int32))
    assert run("Cast", 1, X, to="DOUBLE").dtype == np.float64
    counts = (np.array([3], np.float32).astype(np.int64), np.array([1], np.int64))
    np.testing.assert_array_equal(run("Tile", 1, X, constants=counts), np.tile(X, (1, 3, 1)))
    image = X[None]
    grown = run("Upsample", 1, image, height_scale=2.0, width_scale=3.0, mode="nearest")
    np.testing.assert_array_equal(grown, image.repeat(2, 2).repeat(3, 3))


def test_slopes_per_channel() -> None:
    slope = np.array([0.5, 2.0, -1.0], np.float32)
    np.testing.assert_array_equal(run("PRelu", 6, X, slope), np.where(X < 0, X * slope[:, None], X))
    np.testing.assert_array_equal(run("PRelu", 1, X, slope[:1]), np.where(X < 0, X * slope[0], X))


def test_norms_of_a_float_order() -> None:
    image = X[None]
    want = np.sqrt((image**2).sum((2, 3), keepdims=True))
    np.testing.assert_allclose(run("GlobalLpPool", 1, image, p=2.0), want, rtol=1e-6)
    with pytest.raises(UnsupportedOpError, match=r"a norm of 1\.5"):
        run("GlobalLpPool", 1, image, p=1.5)


def test_an_lstm_of_opset_1() -> None:
    rng = np.random.default_rng(0)
    x, w, r = (rng.standard_normal(s).astype(np.float32) for s in ((5, 2, 3), (1, 16, 3), (1, 16, 4)))
    old, new = (run("LSTM", opset, x, w, r, hidden_size=4) for opset in (1, 7))
    np.testing.assert_array_equal(old, new)


@pytest.mark.parametrize("batch", [1, 3])
def test_scans_of_opset_8_have_a_batch(batch: int) -> None:
    """Sums along two inputs, one of them backwards, for each entry of the batch."""
    f = TensorProto.FLOAT
    row = [helper.make_tensor_value_info(n, f, [2]) for n in ("s", "a", "b", "t", "u")]
    nodes = [helper.make_node("Add", ["s", "a"], ["t"]), helper.make_node("Mul", ["t", "b"], ["u"])]
    body = helper.make_graph(nodes, "body", row[:3], row[3:])
    scan = helper.make_node("Scan", ["", "s0", "x", "y"], ["z", "w"], body=body, num_scan_inputs=2, directions=[0, 1])
    shapes = {"s0": (batch, 2), "x": (batch, 4, 2), "y": (batch, 4, 2)}
    data = [helper.make_tensor_value_info(n, f, s) for n, s in shapes.items()]
    results = [helper.make_tensor_value_info(n, f, None) for n in ("z", "w")]
    graph = helper.make_graph([scan], "g", data, results)
    m = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 8)], ir_version=4)
    s0, x, y = (np.random.default_rng(i).standard_normal(s).astype(np.float32) for i, s in enumerate(shapes.values()))
    sums = s0[:, None] + np.cumsum(x, axis=1)
    z, w = ingot.compile(m)(s0, x, y)
    np.testing.assert_allclose(z, sums[:, -1], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(w, sums * y[:, ::-1], rtol=1e-5, atol=1e-6)
