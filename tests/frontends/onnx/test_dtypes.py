"""Elements of at most 8 bits at a model's border, in its weights and in casts."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper

import ingot
from ingot.frontends.onnx.tensors import ExternalData, to_array

TYPES = [
    (TensorProto.FLOAT8E4M3FN, ml_dtypes.float8_e4m3fn),
    (TensorProto.FLOAT8E5M2FNUZ, ml_dtypes.float8_e5m2fnuz),
    (TensorProto.FLOAT8E4M3FNUZ, ml_dtypes.float8_e4m3fnuz),
    (TensorProto.INT4, ml_dtypes.int4),
    (TensorProto.UINT4, ml_dtypes.uint4),
]
if hasattr(TensorProto, "INT2"):
    TYPES += [
        (TensorProto.FLOAT4E2M1, ml_dtypes.float4_e2m1fn),
        (TensorProto.FLOAT8E8M0, ml_dtypes.float8_e8m0fnu),
        (TensorProto.INT2, ml_dtypes.int2),
        (TensorProto.UINT2, ml_dtypes.uint2),
    ]
CODES = pytest.mark.parametrize(("code", "numpy"), TYPES, ids=[np.dtype(t).name for _, t in TYPES])


@CODES
def test_in_and_out_of_a_program(code: int, numpy: type) -> None:
    info = helper.make_tensor_value_info("x", code, ["n", 5])
    nodes = [
        helper.make_node("Transpose", ["x"], ["turned"]),
        helper.make_node("Cast", ["x"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("Cast", ["wide"], ["back"], to=code, saturate=0),
    ]
    outputs = [helper.make_empty_tensor_value_info(n) for n in ("turned", "wide", "back")]
    graph = helper.make_graph(nodes, "g", [info], outputs)
    model = ingot.compile(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)]), cache=False)
    x = np.array([0.5, 1.0, 2.0, 1.0, 1.0] * 3, np.float32).astype(numpy).reshape(3, 5)
    transposed, wide, roundtrip = model(x)
    assert transposed.dtype == roundtrip.dtype == x.dtype
    np.testing.assert_array_equal(transposed.astype(np.float32), x.T.astype(np.float32))
    np.testing.assert_array_equal(wide, x.astype(np.float32))
    if code != getattr(TensorProto, "FLOAT8E8M0", None):
        np.testing.assert_array_equal(roundtrip.astype(np.float32), x.astype(np.float32))


@CODES
@pytest.mark.parametrize("raw", [True, False])
def test_initializers(code: int, numpy: type, raw: bool) -> None:
    values = np.array([0.5, 1.0, 2.0, 1.0, 1.0, 2.0, 0.5], np.float32).astype(numpy)
    bits = ml_dtypes.iinfo(numpy).bits if "int" in values.dtype.name else ml_dtypes.finfo(numpy).bits
    codes = values.view(np.uint8) & ((1 << bits) - 1)
    per_byte = 8 // bits
    padded = np.concatenate([codes, np.zeros(-codes.size % per_byte, np.uint8)]).reshape(-1, per_byte)
    packed = (padded << (np.arange(per_byte) * bits)).sum(1).astype(np.uint8)
    tensor = TensorProto(name="w", data_type=code, dims=[7])
    if raw:
        tensor.raw_data = packed.tobytes()
    else:
        tensor.int32_data.extend(int(v) for v in packed)
    got = to_array(tensor, ExternalData(None))
    assert got.dtype == values.dtype
    np.testing.assert_array_equal(got.astype(np.float32), values.astype(np.float32))


@pytest.mark.parametrize(("mode", "want"), [("up", [1, 2, 4, 4]), ("down", [1, 1, 2, 2]), ("nearest", [1, 2, 2, 4])])
def test_rounding_to_powers_of_two(mode: str, want: list[float]) -> None:
    if not hasattr(TensorProto, "FLOAT8E8M0"):
        pytest.skip("an older onnx package")
    info = helper.make_tensor_value_info("x", TensorProto.FLOAT, [6])
    node = helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT8E8M0, round_mode=mode)
    graph = helper.make_graph([node], "g", [info], [helper.make_empty_tensor_value_info("y")])
    model = ingot.compile(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)]), cache=False)
    y = np.asarray(model(np.array([1.0, 1.5, 2.5, 3.0, np.nan, np.inf], np.float32))).astype(np.float32)
    np.testing.assert_array_equal(y[:4], want)
    assert np.isnan(y[4])
    assert y[5] == 2.0**127
