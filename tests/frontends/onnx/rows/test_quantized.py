"""Quantized ops against ONNX Runtime: the same levels, but for values between two."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper

from ingot.frontends.onnx import import_onnx
from ingot.ir.interp import interpret

ort = pytest.importorskip("onnxruntime")
RNG = np.random.default_rng(0)
Array = np.ndarray
Given = list[np.ndarray | np.generic | None]


def levels(*shape: int, dtype: type = np.uint8) -> Array:
    info = np.iinfo(dtype)
    return RNG.integers(info.min, info.max + 1, shape).astype(dtype)


def scaled(*shape: int) -> Array:
    return RNG.uniform(0.01, 0.1, shape).astype(np.float32)


def f32(value: float) -> Array:
    return np.asarray(value, np.float32)


def run(
    op: str,
    feeds: Given,
    attributes: Mapping[str, Any],
    results: int = 1,
    domain: str = "",
    opset: int = 21,
) -> tuple[Sequence[Array], Sequence[Array]]:
    """Ingot's results and ONNX Runtime's, of a node whose first operand is an input and whose others are constants."""
    names = ["" if a is None else f"x{i}" for i, a in enumerate(feeds)]
    inputs = {n: np.asarray(a) for n, a in zip(names, feeds, strict=True) if a is not None}
    outputs = [f"y{i}" for i in range(results)]
    first = inputs.pop("x0")
    graph = helper.make_graph(
        [helper.make_node(op, names, outputs, domain=domain, **attributes)],
        "g",
        [helper.make_tensor_value_info("x0", helper.np_dtype_to_tensor_dtype(first.dtype), first.shape)],
        [helper.make_empty_tensor_value_info(o) for o in outputs],
        [numpy_helper.from_array(a, n) for n, a in inputs.items()],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return interpret(import_onnx(model), [first]), session.run(None, {"x0": first})


def same_levels(got: Array, want: Array) -> None:
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    difference = np.abs(got.astype(np.int64) - want.astype(np.int64))
    assert difference.max(initial=0) <= 1 and (difference > 0).mean() < 0.02


U8 = (f32(0.0517), np.uint8(130))
I8 = (f32(0.0517), np.int8(-3))
IMAGE, SIGNED = levels(2, 5, 7, 6), levels(2, 5, 7, 6, dtype=np.int8)
PER_COLUMN = (levels(9, 4, dtype=np.int8), scaled(4), np.full(4, 3, np.int8))
ROWS = levels(3, 9)

CASES: dict[str, tuple[str, Given, dict[str, Any]]] = {
    "add": ("QLinearAdd", [IMAGE, *U8, levels(5, 1, 1), f32(0.3011), np.uint8(0), f32(0.1007), np.uint8(9)], {}),
    "add_signed": ("QLinearAdd", [SIGNED, *I8, levels(6, dtype=np.int8), *I8, f32(0.1007), np.int8(9)], {}),
    "mul": ("QLinearMul", [IMAGE, *U8, levels(5, 1, 1), f32(0.3011), np.uint8(255), f32(1), np.uint8(128)], {}),
    "sigmoid": ("QLinearSigmoid", [SIGNED, *I8, f32(1 / 256), np.int8(-128)], {}),
    "leaky_relu": ("QLinearLeakyRelu", [IMAGE, *U8, f32(0.0403), np.uint8(50)], {"alpha": 0.3}),
    "softmax": ("QLinearSoftmax", [IMAGE, *U8, f32(1 / 256), np.uint8(0)], {"axis": 1, "opset": 13}),
    "softmax_flattened": ("QLinearSoftmax", [SIGNED, *I8, f32(1 / 256), np.int8(-128)], {"axis": 2, "opset": 12}),
    "global_pool": ("QLinearGlobalAveragePool", [IMAGE, *U8, f32(0.0301), np.uint8(9)], {}),
    "global_pool_last": ("QLinearGlobalAveragePool", [IMAGE, *U8, f32(0.0301), np.uint8(9)], {"channels_last": 1}),
    "average_pool": (
        "QLinearAveragePool",
        [IMAGE, *U8, f32(0.0403), np.uint8(99)],
        {"kernel_shape": [3, 2], "pads": [1, 0, 1, 1], "strides": [2, 1], "count_include_pad": 1},
    ),
    "average_pool_last": (
        "QLinearAveragePool",
        [SIGNED, *I8, f32(0.0403), np.int8(9)],
        {"kernel_shape": [2, 2], "channels_last": 1},
    ),
    "gemm": ("QGemm", [ROWS, *U8, *PER_COLUMN, levels(4).astype(np.int32), f32(0.5), np.uint8(128)], {}),
    "gemm_across": (
        "QGemm",
        [ROWS.T.copy(), *U8, PER_COLUMN[0].T.copy(), *PER_COLUMN[1:], None, f32(0.5), np.uint8(128)],
        {"transA": 1, "transB": 1, "alpha": 0.5},
    ),
    "convolution_last": (
        "QLinearConv",
        [IMAGE, *U8, levels(4, 6, 3, 3, dtype=np.int8), scaled(4), np.zeros(4, np.int8), f32(2), np.uint8(128)],
        {"channels_last": 1, "pads": [1, 1, 1, 1]},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_levels(name: str) -> None:
    op, data, attributes = CASES[name]
    got, want = run(op, data, attributes, domain="com.microsoft")
    same_levels(got[0], want[0])


def test_concat_and_where() -> None:
    """Parts of different scales; the condition comes first."""
    parts: Given = [levels(2, 3, 4), *U8, levels(2, 2, 4), f32(0.1007), np.uint8(0)]
    model_inputs: Given = [f32(0.07), np.uint8(40), *parts]
    got, want = run("QLinearConcat", model_inputs, {"axis": 1}, domain="com.microsoft")
    same_levels(got[0], want[0])
    condition = levels(2, 3, 4) < 99
    got, want = run(
        "QLinearWhere",
        [condition, *parts[:3], levels(2, 3, 4), *parts[4:], f32(0.07), np.uint8(40)],
        {},
        domain="com.microsoft",
    )
    same_levels(got[0], want[0])


PACKED = scaled(24), f32(0.01), f32(0.01)
MASK = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32)
FLOATS: dict[str, tuple[str, Given, dict[str, Any], int]] = {
    "gemm": ("QGemm", [ROWS, *U8, *PER_COLUMN], {}, 1),
    "integer_to_float": (
        "MatMulIntegerToFloat",
        [ROWS, PER_COLUMN[0], f32(0.1007), PER_COLUMN[1], np.uint8(7), PER_COLUMN[2], scaled(4)],
        {},
        1,
    ),
    "dynamic": ("DynamicQuantizeMatMul", [scaled(3, 9) - f32(0.05), *PER_COLUMN, scaled(4)], {}, 1),
    "attention": (
        "QAttention",
        [levels(2, 5, 8), levels(8, 24, dtype=np.int8), *PACKED, MASK, np.uint8(120), np.int8(0)],
        {"num_heads": 2},
        1,
    ),
    "attention_past": (
        "QAttention",
        [levels(2, 5, 8), levels(8, 24), *PACKED, None, np.uint8(120), np.uint8(128), scaled(2, 2, 2, 3, 4)],
        {"num_heads": 2, "unidirectional": 1},
        2,
    ),
}


@pytest.mark.parametrize("name", FLOATS)
def test_floats(name: str) -> None:
    op, data, attributes, results = FLOATS[name]
    for g, w in zip(*run(op, data, attributes, results, "com.microsoft"), strict=True):
        np.testing.assert_allclose(g, w, rtol=2e-5, atol=2e-5)
