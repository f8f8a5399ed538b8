"""ONNX's random ops and dropout in training: types, moments, seeds, and what comes again."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import ingot
from ingot.frontends.onnx import import_onnx
from ingot.ir.interp import interpret
from ingot.ir.node import Graph

F32, I64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
X = np.random.default_rng(0).random((60, 80)).astype(np.float32)


def model(nodes: list[onnx.NodeProto], outputs: list[str], shape: tuple[int | str, ...] = ("n", 80)) -> onnx.ModelProto:
    infos = [helper.make_empty_tensor_value_info(o) for o in outputs]
    constants = [helper.make_tensor("yes", BOOL, [], [True]), helper.make_tensor("five", I64, [], [5])]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", F32, shape)], infos, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)])


def run(graph: Graph, *inputs: np.ndarray) -> list[np.ndarray]:
    return list(interpret(graph.substitute({"n": 60}), inputs))


def node(op: str, inputs: list[str], outputs: list[str], **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs, outputs, **attributes)


@pytest.mark.parametrize(
    ("op", "inputs", "attributes", "dtype", "mean", "std"),
    [
        ("RandomNormal", [], {"shape": [60, 80], "mean": 2.0, "scale": 3.0}, np.float32, 2.0, 3.0),
        ("RandomNormal", [], {"shape": [60, 80], "dtype": TensorProto.DOUBLE}, np.float64, 0.0, 1.0),
        ("RandomNormalLike", ["x"], {"dtype": TensorProto.FLOAT16}, np.float16, 0.0, 1.0),
        ("RandomUniform", [], {"shape": [60, 80]}, np.float32, 0.5, 12**-0.5),
        ("RandomUniformLike", ["x"], {"low": -1.0, "high": 3.0, "seed": 2.5}, np.float32, 1.0, 4 * 12**-0.5),
        ("Bernoulli", ["x"], {"dtype": BOOL}, np.bool_, X.mean(), 0.5),
        ("Bernoulli", ["x"], {}, np.float32, X.mean(), 0.5),
    ],
)
def test_moments(op: str, inputs: list[str], attributes: dict, dtype: type, mean: float, std: float) -> None:
    (got,) = run(import_onnx(model([node(op, inputs, ["y"], **attributes)], ["y"])), X)
    assert got.dtype == dtype and got.shape == X.shape
    assert abs(got.astype(np.float64).mean() - mean) < 4 * std / np.sqrt(X.size)
    assert abs(got.astype(np.float64).std() / std - 1) < 0.05


def test_multinomial_takes_logarithms() -> None:
    chances = np.asarray([[1, 3, 0, 4], [0, 0, 1, 0]], np.float32)
    logs = np.log(chances, where=chances > 0, out=np.full((2, 4), -np.inf, np.float32))
    graph = import_onnx(model([node("Multinomial", ["x"], ["y"], sample_size=8000)], ["y"], (2, 4)))
    (got,) = interpret(graph, (logs,))
    assert got.dtype == np.int32 and (got[1] == 2).all()
    np.testing.assert_allclose(np.bincount(got[0], minlength=4) / 8000, [1 / 8, 3 / 8, 0, 1 / 2], atol=0.02)


def test_dropout_of_a_rate_that_the_call_says() -> None:
    nodes = [node("Dropout", ["x", "rate", "yes"], ["y", "mask"])]
    proto = model(nodes, ["y", "mask"])
    proto.graph.input.append(helper.make_tensor_value_info("rate", F32, []))
    graph = import_onnx(proto)
    for rate in (0.0, 0.3, 1.0):
        y, mask = run(graph, X, np.asarray(rate, np.float32))
        assert mask.dtype == bool and abs(mask.mean() - (1 - rate)) < 0.03
        np.testing.assert_allclose(y, mask * X / (1 - rate if rate < 1 else 1), rtol=1e-5)
    still = import_onnx(model([node("Dropout", ["x"], ["y"])], ["y"]))
    np.testing.assert_array_equal(run(still, X)[0], X)


def test_seeds_and_calls() -> None:
    nodes = [node("RandomNormalLike", ["x"], ["a"]), node("RandomNormalLike", ["x"], ["b"], seed=4.0)]
    proto = model(nodes, ["a", "b"])
    m = ingot.compile(proto, threads=2)
    first, second = m(X), m(X)
    assert all((p != q).all() for p, q in zip(first, second, strict=True)) and (first[0] != first[1]).all()
    m.seed(3)
    a, b = m(X)
    # a node's own seed holds whatever the model's is
    assert (a != first[0]).all() and (b == first[1]).all()
    second_program = ingot.compile(proto, threads=1)
    assert all((p == q).all() for p, q in zip(second_program(X), first, strict=True))


def test_each_turn_of_a_loop_draws_others() -> None:
    info = helper.make_tensor_value_info
    body = helper.make_graph(
        [node("RandomUniformLike", ["v"], ["w"]), node("Identity", ["go"], ["on"]), node("Identity", ["w"], ["s"])],
        "body",
        [info("i", I64, []), info("go", BOOL, []), info("v", F32, [4])],
        [info("on", BOOL, []), info("w", F32, [4]), info("s", F32, [4])],
    )
    proto = model([node("Loop", ["turns", "", "x"], ["last", "all"], body=body)], ["last", "all"], (4,))
    proto.graph.input.append(info("turns", I64, []))
    m = ingot.compile(proto)
    last, rows = m(np.zeros(4, np.float32), np.asarray(6))
    assert rows.shape == (6, 4) and len(np.unique(rows)) == 24 and (rows[-1] == last).all()
    assert not np.isin(m(np.zeros(4, np.float32), np.asarray(6))[1], rows).any()


def test_a_condition_that_is_drawn_is_no_constant() -> None:
    info = helper.make_tensor_value_info
    infos = [info("o", F32, [80])]
    branches = [helper.make_graph([node(op, ["x"], ["o"])], "branch", [], infos) for op in ("Abs", "Neg")]
    nodes = [
        node("RandomUniform", [], ["u"], shape=[1]),
        node("Constant", [], ["half"], value_float=0.5),
        node("Less", ["u", "half"], ["less"]),
        node("Squeeze", ["less"], ["p"]),
        node("If", ["p"], ["y"], then_branch=branches[0], else_branch=branches[1]),
    ]
    m = ingot.compile(model(nodes, ["y"], (80,)))
    signs = {float(np.sign(m(X[0])[0])) for _ in range(30)}
    assert signs == {-1.0, 1.0}
