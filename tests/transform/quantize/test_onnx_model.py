"""Formats written into the ONNX model: what ONNX Runtime and Ingot's own importer make of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ingot.frontends.onnx import import_onnx
from ingot.ir.interp import interpret
from ingot.support.errors import InputError
from ingot.transform.quantize.calibrate import Probe
from ingot.transform.quantize.formats import FORMATS, Recipe, apply_formats, candidate_formats
from ingot.transform.quantize.onnx_model import write_onnx
from ingot.transform.quantize.rounding import roundings
from ingot.transform.quantize.sites import find_groups, prepare
from tests.transform.quantize import nets


def model() -> onnx.ModelProto:
    """A convolution with a norm whose factors have both signs, a Gemm, a MatMul of 40 channels: a block and a part."""
    weights = {"W": nets.normal(1, 5, 2, 3, 3), "G": nets.normal(2, 40, 80), "b": nets.normal(3, 40)}
    weights |= {name: nets.normal(5 + i, 5) for i, name in enumerate(("scale", "bias", "mean"))}
    weights |= {"M": nets.normal(4, 40, 3), "var": np.abs(nets.normal(8, 5)) + 1, "at": np.arange(3)}
    nodes = [
        helper.make_node("Conv", ["x", "W"], ["c"], "conv", pads=[0, 0, 0, 0]),
        helper.make_node("BatchNormalization", ["c", "scale", "bias", "mean", "var"], ["n"], "norm"),
        helper.make_node("Relu", ["n"], ["r"], "relu"),
        helper.make_node("Flatten", ["r"], ["f"], "flat"),
        helper.make_node("Gemm", ["f", "G", "b"], ["g"], "gemm", transB=1),
        helper.make_node("Tanh", ["g"], ["t"], "tanh"),
        helper.make_node("MatMul", ["t", "M"], ["m"]),
        helper.make_node("Gather", ["t", "at"], ["s"], axis=1),
        helper.make_node("Add", ["m", "s"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 2, 6, 6])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3])
    graph = helper.make_graph(nodes, "net", [x], [y], [numpy_helper.from_array(w, k) for k, w in weights.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


X = [(nets.normal(50 + i, 3, 2, 6, 6),) for i in range(4)]


@pytest.fixture(scope="module")
def case():
    graph = prepare(import_onnx(model()))
    groups = find_groups(graph)
    ranges, moments = Probe(graph, groups, 1).calibrate(X, feedback_seconds=60)
    return graph, groups, Recipe(ranges, roundings(groups, ranges, FORMATS), moments)


@pytest.mark.parametrize("form", FORMATS)
def test_the_file_means_what_the_compiled_model_computes(case, form: str, tmp_path: Path):
    ort = pytest.importorskip("onnxruntime")
    graph, groups, recipe = case
    formats = {g.name: form for g in groups if form in candidate_formats(g, recipe.stats[g.name], FORMATS)}
    path = tmp_path / "written.onnx"
    write_onnx(model(), path, groups, recipe, formats)
    onnx.checker.check_model(str(path))
    (want,) = interpret(apply_formats(graph, groups, recipe, formats), X[1])
    (got,) = interpret(prepare(import_onnx(path)), X[1])
    # levels next to where two meet may be at either; those of two bytes are 256 times as near
    near = 5e-5 if form in ("float32", "int16", "weight8", "weight4") else 5e-3
    assert np.abs(got - want).mean() <= near * np.abs(want).max()
    if form == "bfloat16":
        return  # ONNX Runtime has no cast of constants to it on CPUs in all versions
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    assert np.abs(session.run(None, {"x": X[1][0]})[0] - want).mean() <= near * np.abs(want).max()
    read = {i for n in onnx.load(path).graph.node for i in n.input}
    rewritten = {"float32": set[str](), "int8-shared": {"M"}}.get(form, {"G", "M"})  # what else reads it: t
    assert not read & rewritten


def test_what_a_file_cannot_say_is_refused(case, tmp_path: Path):
    graph, groups, recipe = case
    other = model()
    other.graph.initializer[0].CopyFrom(numpy_helper.from_array(nets.normal(9, 5, 2, 3, 3), "W"))
    with pytest.raises(InputError, match="conv cannot be written to ONNX: expected the file's weights up to a factor"):
        write_onnx(other, tmp_path / "x.onnx", groups, recipe, {groups[0].name: "int8"})
    old = model()
    old.opset_import[0].version = 11
    with pytest.raises(InputError, match="expected opset 13 or later, got 11"):
        write_onnx(old, tmp_path / "x.onnx", groups, recipe, {})
    assert not list(tmp_path.iterdir())
    assert graph.outputs


def test_levels_of_a_recurrent_layer(tmp_path: Path):
    """Its matrix alone: no op of ONNX rounds a state at each step."""
    weights = {"W": nets.normal(1, 2, 24, 4), "R": nets.normal(2, 2, 24, 6)}
    node = helper.make_node("LSTM", ["x", "W", "R"], ["y"], "lstm", hidden_size=6, direction="bidirectional")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [5, 2, 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [5, 2, 2, 6])
    net = helper.make_graph([node], "net", [x], [y], [numpy_helper.from_array(w, k) for k, w in weights.items()])
    source = helper.make_model(net, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    graph = prepare(import_onnx(source))
    groups = find_groups(graph)
    write_onnx(source, tmp_path / "m.onnx", groups, Recipe({}), {"lstm": "int8-dynamic"})
    proto = onnx.load(tmp_path / "m.onnx")
    assert {t.data_type for t in proto.graph.initializer if t.name.startswith("ingot.levels")} == {TensorProto.INT8}
    call = (nets.normal(9, 5, 2, 4),)
    (want,), (got,) = interpret(graph, call), interpret(import_onnx(proto), call)
    assert 0 < np.abs(got - want).max() < 1e-2


@pytest.mark.parametrize("form", ["int8", "int8-dynamic", "int16", "weight4"])
def test_weights_of_several_products_are_written_once(form: str, tmp_path: Path):
    nodes, names = [], ["x", "h1", "h2", "y"]
    for i in range(3):
        nodes.append(helper.make_node("MatMul", [names[i], "W"], [f"p{i}"], f"product{i}"))
        nodes.append(helper.make_node("Tanh", [f"p{i}"], [names[i + 1]]))
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [3, 64]) for name in ("x", "y"))
    weights = numpy_helper.from_array(0.2 * nets.normal(1, 64, 64), "W")
    proto = helper.make_model(
        helper.make_graph(nodes, "net", [x], [y], [weights]),
        opset_imports=[helper.make_opsetid("", 18)], ir_version=9,
    )  # fmt: skip
    graph = prepare(import_onnx(proto))
    groups = find_groups(graph)
    calls = [(nets.normal(50 + i, 3, 64),) for i in range(4)]
    ranges, _ = Probe(graph, groups, 1).calibrate(calls)
    recipe = Recipe(ranges, roundings(groups, ranges, [form]))
    path = tmp_path / "written.onnx"
    write_onnx(proto, path, groups, recipe, {g.name: form for g in groups})
    model_proto = onnx.load(path)
    large = [t for t in model_proto.graph.initializer if np.prod(t.dims) >= 64 * 64 // 2]
    assert len(groups) == 3 and len(large) == 1
    (want,) = interpret(apply_formats(graph, groups, recipe, {g.name: form for g in groups}), calls[1])
    (got,) = interpret(prepare(import_onnx(path)), calls[1])
    assert np.abs(got - want).mean() <= 5e-3 * np.abs(want).max()
