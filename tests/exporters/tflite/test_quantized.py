"""ONNX graphs that are quantized already as TFLite files: their own scales, in the integers of TFLite's operators."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flatbuffers")
onnx = pytest.importorskip("onnx")
pytest.importorskip("ai_edge_litert.interpreter")

import ingot  # noqa: E402
from ingot.frontends.tflite import schema  # noqa: E402
from ingot.frontends.tflite.file import read  # noqa: E402
from ingot.support.errors import InputError, UnsupportedOpError  # noqa: E402
from tests.exporters.tflite.test_tflite import reference_kernels  # noqa: E402

Y, W = 'opset_import: ["" : 17, "com.microsoft" : 1]', "float xs = {0.02}, float ws = {0.01}, float ys = {0.05}"
QDQ = f"""<ir_version: 8, {Y}> g (float[1, 3, 9, 8] x) => (float[1, 5] y) <{W}, int8 xz = {{3}}, int8 wz = {{0}},
  int8 yz = {{-20}}, float zs = {{0.04}}, int8 zz = {{-128}}> {{
  q = QuantizeLinear (x, xs, xz) d = DequantizeLinear (q, xs, xz) w = DequantizeLinear <axis = 0> (w5, w5s, w5z)
  b = DequantizeLinear (b5, b5s) c = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (d, w, b) r = Relu (c)
  rq = QuantizeLinear (r, ys, yz) rd = DequantizeLinear (rq, ys, yz) m = MaxPool <kernel_shape = [2, 2]> (rd)
  t = Transpose <perm = [0, 2, 1, 3]> (m) f = Flatten (t) k = DequantizeLinear (w60, ws, wz)
  p = Gemm <transB = 1> (f, k, b) pq = QuantizeLinear (p, ys, yz) pd = DequantizeLinear (pq, ys, yz)
  s = Sigmoid (pd) sq = QuantizeLinear (s, zs, zz) y = DequantizeLinear (sq, zs, zz) }}"""
QLINEAR = f"""<ir_version: 8, {Y}> g (float[1, 3, 9, 8] x) => (float[1, 5] y) <{W}, uint8 xz = {{131}},
  uint8 wz = {{128}}, uint8 yz = {{100}}> {{
  q = QuantizeLinear (x, xs, xz)
  c = QLinearConv <pads = [1, 1, 1, 1], strides = [2, 2]> (q, xs, xz, u5, w5s, u5z, ys, yz, b5)
  m = MaxPool <kernel_shape = [2, 2]> (c) a = com.microsoft.QLinearAdd (m, ys, yz, m, ys, yz, ys, yz)
  s = Reshape (a, shape) p = QLinearMatMul (s, ys, yz, u60, ws, wz, ys, yz)
  y = DequantizeLinear (p, ys, yz) }}"""
INTEGERS = f"""<ir_version: 8, {Y}> g (int8[1, 3, 9, 8] x) => (float[1, 5, 9, 8] y) <{W}, int8 xz = {{3}}> {{
  c = ConvInteger <pads = [1, 1, 1, 1]> (x, w5, xz) f = Cast <to = 1> (c) s = Mul (xs, ws) y = Mul (f, s) }}"""
MODELS = {"qdq": QDQ, "qlinear": QLINEAR, "integers": INTEGERS}


def model_of(text: str) -> Any:
    model, rng = onnx.parser.parse_model(text), np.random.default_rng(4)
    w5, w60 = (rng.integers(-127, 128, shape).astype(np.int8) for shape in ((5, 3, 3, 3), (5, 60)))
    arrays = {
        "w5": w5, "w5s": rng.uniform(0.01, 0.03, 5).astype(np.float32), "w5z": np.zeros(5, np.int8), "w60": w60,
        "b5": rng.integers(-900, 900, 5).astype(np.int32), "b5s": np.float32(0.0003), "u5": (w5 ^ -128).view(np.uint8),
        "u5z": np.full(5, 128, np.uint8), "u60": (w60.T ^ -128).view(np.uint8).copy(), "shape": np.array([1, 60]),
    }  # fmt: skip
    read_names = {name for node in model.graph.node for name in node.input}
    arrays = {name: array for name, array in arrays.items() if name in read_names}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(np.asarray(a), n) for n, a in arrays.items())
    return model


@pytest.mark.parametrize("name", MODELS)
def test_its_own_scales_are_written(name: str, tmp_path: Path) -> None:
    model, path = model_of(MODELS[name]), tmp_path / "m.tflite"
    ingot.export(model, path)
    graph = read(path).subgraphs[0]
    names = {op.name: schema.type_name(graph.tensors[op.outputs[0]].type) for op in graph.operators}
    products = {n: t for n, t in names.items() if n in ("CONV_2D", "FULLY_CONNECTED")}
    assert set(products.values()) == ({"INT8"} if name != "integers" else {"FLOAT32"})
    ours, read_back, theirs = (
        ingot.compile(model, cache=False),
        ingot.compile(path, cache=False),
        reference_kernels(path.read_bytes()),
    )
    rng, (inputs,) = np.random.default_rng(0), theirs.get_input_details()
    for _ in range(8):
        x = rng.standard_normal(inputs["shape"]).astype(np.float32) * 1.5
        x = x if name != "integers" else np.clip(x * 60, -128, 127).astype(np.int8)
        theirs.set_tensor(inputs["index"], x)
        theirs.invoke()
        (mine,), (want,) = read_back.run([x]), ours.run([x])
        other = theirs.get_tensor(theirs.get_output_details()[0]["index"])
        # sums stay in floats where nothing rounds them
        np.testing.assert_allclose(mine, other, rtol=0, atol=0 if name != "integers" else 1e-5)
        # roundings of products differ by a level, here and there
        step = 0.05 if name != "integers" else 1e-5
        assert np.abs(mine - want).max() <= 2.01 * step and np.mean(mine != want) < (0.2 if step == 0.05 else 1.01)


def test_what_has_no_constant_scale_is_refused_with_all_else(tmp_path: Path) -> None:
    text = f"""<ir_version: 8, {Y}> g (float[1, 3, 9, 8] x) => (float[1, 5, 9, 8] y) <float ws = {{0.01}}> {{
      q, s, z = DynamicQuantizeLinear (x) c = ConvInteger <pads = [1, 1, 1, 1]> (q, w5, z) f = Cast <to = 1> (c)
      m = Mul (s, ws) p = Mul (f, m) y = Acosh (p) }}"""
    with pytest.raises(UnsupportedOpError, match=r"(?s)conv.*scale.*acosh"):
        ingot.export(model_of(text), tmp_path / "m.tflite")
    with pytest.raises(InputError, match="leave the samples out"):
        ingot.export(
            model_of(QDQ),
            tmp_path / "m.tflite",
            samples=[{"x": np.full((1, 3, 9, 8), k, np.float32)} for k in range(4)],
        )


def test_sizes_are_those_of_the_samples(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[n, 4] x) => (float[n, 4] y) { y = Tanh (x) }"""
    model, path = onnx.parser.parse_model(text), tmp_path / "m.tflite"
    with pytest.raises(InputError, match=r'fixed sizes.*\{"n": 1\}'):
        ingot.export(model, path)
    ingot.export(model, path, samples=[{"x": np.eye(3, 4, k, np.float32)} for k in range(4)], activations="int16")
    (x,) = read(path).subgraphs[0].inputs
    assert read(path).subgraphs[0].tensors[x].shape == (3, 4)
    with pytest.raises(InputError, match="int8 or int16"):
        ingot.export(model, path, samples=[{"x": np.eye(3, 4, k, np.float32)} for k in range(4)], activations="int4")
