"""Rows on levels: bit for bit what LiteRT's reference kernels give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ingot
from ingot.frontends.tflite import import_tflite
from ingot.support.errors import UnsupportedOpError
from tests.frontends.tflite.builder import feed, interpreted, one_op, reference

I8, U8, I16 = np.int8, np.uint8, np.int16
Q = (0.031, 3)
R = (0.047, -5)
OUT = (0.11, 7)


def i32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def w8(*shape: int, seed: int = 9) -> np.ndarray:
    return np.maximum(feed(shape, I8, seed), -127)


def bias(n: int, dtype: Any = np.int32) -> np.ndarray:
    return np.random.default_rng(n).integers(-3000, 3000, n).astype(dtype)


def per_channel(n: int, axis: int) -> tuple[Any, ...]:
    """A scale for each of n channels."""
    return (np.random.default_rng(n).uniform(0.002, 0.03, n).tolist(), [0] * n, axis)


SAME, VALID = {"padding": 0}, {"padding": 1}
S1, S2 = {"stride_w": 1, "stride_h": 1}, {"stride_w": 2, "stride_h": 2}
X = ((2, 7, 6, 4), I8, Q)
# name, operands, result, options, their values
CASES: list[tuple[Any, ...]] = [
    ("QUANTIZE", [((5, 40),)], (I8, Q), "", {}),
    ("QUANTIZE", [((5, 40),)], (U8, (0.02, 128)), "", {}),
    ("QUANTIZE", [((5, 40),)], (I16, (0.0001, 0)), "", {}),
    ("QUANTIZE", [((5, 40), I8, Q)], (I8, OUT), "", {}),
    ("QUANTIZE", [((5, 40), I8, OUT)], (I8, Q), "", {}),
    ("QUANTIZE", [((5, 40), I8, Q)], (U8, (0.05, 120)), "", {}),
    ("QUANTIZE", [((5, 40), I16, (0.001, 0))], (I8, Q), "", {}),
    ("DEQUANTIZE", [((5, 40), I8, Q)], (np.float32, None), "", {}),
    ("DEQUANTIZE", [((5, 40), U8, (0.1, 130))], (np.float32, None), "", {}),
    ("DEQUANTIZE", [((5, 40), I16, (0.001, 0))], (np.float32, None), "", {}),
    *(
        (name, [((3, 50), I8, Q), ((3, 50), I8, R)], (I8, OUT), name.capitalize(), {"activation": a})
        for name in ("ADD", "SUB", "MUL")
        for a in (0, 1, 3)
    ),
    *(
        (name, [((3, 50), U8, (0.03, 100)), ((50,), U8, (0.2, 7))], (U8, (0.09, 60)), name.capitalize(), {})
        for name in ("ADD", "SUB", "MUL")
    ),
    *(
        (name, [((3, 50), I16, (0.003, 0)), ((3, 50), I16, (0.002, 0))], (I16, (0.004, 0)), name.capitalize(), {})
        for name in ("ADD", "SUB")
    ),
    ("MUL", [((3, 50), I16, (0.003, 0)), ((3, 50), I16, (0.002, 0))], (I16, (0.2, 0)), "Mul", {}),
    ("ADD", [((3, 50), I16, (2**-12, 0)), ((3, 50), I16, (2**-11, 0))], (I16, (2**-11, 0)), "Add", {}),
    ("MAXIMUM", [((3, 50), I8, Q), ((3, 50), I8, Q)], (I8, Q), "", {}),
    ("MINIMUM", [((3, 50), I8, Q), ((50,), I8, Q)], (I8, Q), "", {}),
    *(
        (name, [((3, 50), I8, Q), ((3, 50), I8, R)], (np.bool_, None), "", {})
        for name in ("EQUAL", "NOT_EQUAL", "LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL")
    ),
    *((name, [((3, 90), I8, Q)], (I8, OUT), "", {}) for name in ("RELU", "RELU6", "RELU_N1_TO_1")),
    ("LEAKY_RELU", [((3, 90), I8, Q)], (I8, OUT), "LeakyRelu", {"alpha": 0.3}),
    ("PRELU", [((1, 4, 5, 6), I8, Q), (w8(1, 1, 6), (0.01, 0))], (I8, OUT), "", {}),
    ("CONCATENATION", [((2, 3), I8, Q), ((2, 4), I8, Q)], (I8, Q), "Concatenation", {"axis": 1}),
    ("CONCATENATION", [((2, 30), U8, (0.1, 3)), ((2, 40), U8, (0.2, 9))], (U8, (0.2, 9)), "Concatenation", {"axis": 1}),
    *(
        (name, [X], (I8, Q), "Pool2D", p | s | {"filter_width": 3, "filter_height": 2, "activation": 1})
        for name in ("AVERAGE_POOL_2D", "MAX_POOL_2D")
        for p in (SAME, VALID)
        for s in (S1, S2)
    ),
    *(
        ("CONV_2D", [X, (w8(5, 3, 2, 4), per_channel(5, 0)), bias(5)], (I8, OUT), "Conv2D", p | s | {"activation": a})
        for p, s, a in ((SAME, S1, 0), (SAME, S2, 1), (VALID, S1, 3))
    ),
    ("CONV_2D", [X, (w8(5, 1, 1, 4), (0.01, 0)), bias(5)], (I8, OUT), "Conv2D", SAME | S1),
    (
        "CONV_2D",
        [((2, 7, 6, 4), U8, (0.05, 90)), (feed((5, 3, 2, 4), U8), (0.02, 140)), bias(5)],
        (U8, (0.4, 100)),
        "Conv2D",
        SAME | S1,
    ),
    (
        "CONV_2D",
        [((2, 7, 6, 4), I16, (0.001, 0)), (w8(5, 3, 2, 4), per_channel(5, 0)), bias(5, np.int64)],
        (I16, (0.003, 0)),
        "Conv2D",
        SAME | S1,
    ),
    *(
        (
            "DEPTHWISE_CONV_2D",
            [X, (w8(1, 3, 3, 4 * m), per_channel(4 * m, 3)), bias(4 * m)],
            (I8, OUT),
            "DepthwiseConv2D",
            p | s | {"depth_multiplier": m, "activation": 1},
        )
        for p, s, m in ((SAME, S1, 1), (VALID, S2, 1), (SAME, S2, 2))
    ),
    (
        "TRANSPOSE_CONV",
        [i32(1, 8, 10, 3), (w8(3, 3, 2, 4), per_channel(3, 0)), ((1, 4, 5, 4), I8, Q), bias(3)],
        (I8, OUT),
        "TransposeConv",
        SAME | S2,
    ),
    ("FULLY_CONNECTED", [((9, 30), I8, Q), (w8(40, 30), (0.01, 0)), bias(40)], (I8, OUT), "FullyConnected", {}),
    (
        "FULLY_CONNECTED",
        [((9, 30), I8, Q), (w8(40, 30), per_channel(40, 0)), bias(40)],
        (I8, OUT),
        "FullyConnected",
        {"activation": 1},
    ),
    (
        "FULLY_CONNECTED",
        [((9, 30), U8, (0.05, 90)), (feed((40, 30), U8), (0.02, 140)), bias(40)],
        (U8, (0.4, 100)),
        "FullyConnected",
        {},
    ),
    (
        "FULLY_CONNECTED",
        [((9, 30), I16, (0.001, 0)), (w8(40, 30), (0.01, 0)), bias(40, np.int64)],
        (I16, (0.003, 0)),
        "FullyConnected",
        {},
    ),
    (
        "FULLY_CONNECTED",
        [((9, 30), I16, (0.001, 0)), (w8(40, 30), per_channel(40, 0)), bias(40, np.int64)],
        (I16, (0.003, 0)),
        "FullyConnected",
        {},
    ),
    ("BATCH_MATMUL", [((2, 8, 9), I8, Q), ((2, 7, 9), I8, R)], (I8, (0.2, 3)), "BatchMatMul", {"adj_y": True}),
    *(("MEAN", [X, i32(1, 2)], (I8, OUT), "Reducer", {"keep_dims": k}) for k in (False, True)),
    ("MEAN", [X, i32(3)], (I8, (0.02, 1)), "Reducer", {"keep_dims": False}),
    ("REDUCE_MAX", [X, i32(1, 2)], (I8, Q), "Reducer", {"keep_dims": False}),
    *(
        ("LOGISTIC", [((4, 64), I8, (s, z))], (I8, (1 / 256, -128)), "", {})
        for s, z in ((0.05, 3), (0.3, -9), (0.001, 0))
    ),
    *(("TANH", [((4, 64), I8, (s, z))], (I8, (1 / 128, 0)), "", {}) for s, z in ((0.05, 3), (0.3, -9), (0.001, 0))),
    *(
        ("HARD_SWISH", [((4, 64), I8, (s, z))], (I8, (o, 7)), "", {})
        for s, z, o in ((0.05, 3, 0.04), (0.3, -9, 0.2), (0.001, 0, 0.01))
    ),
    ("HARD_SWISH", [((4, 64), U8, (0.05, 120))], (U8, (0.04, 10)), "", {}),
    ("ELU", [((4, 64), I8, (0.05, 3))], (I8, (0.04, -20)), "", {}),
    ("EXP", [((4, 64), I8, (0.02, 3))], (I8, (0.05, -128)), "", {}),
    ("GELU", [((4, 64), I8, (0.05, 3))], (I8, (0.04, -90)), "Gelu", {"approximate": False}),
    ("GELU", [((4, 64), I8, (0.05, 3))], (I8, (0.04, -90)), "Gelu", {"approximate": True}),
    *(
        ("SOFTMAX", [((5, n), I8, (s, 3))], (I8, (1 / 256, -128)), "Softmax", {"beta": b})
        for n, s, b in ((10, 0.1, 1.0), (200, 0.02, 1.0), (7, 0.3, 0.5))
    ),
    ("SOFTMAX", [((5, 10), U8, (0.1, 30))], (U8, (1 / 256, 0)), "Softmax", {"beta": 1.0}),
    *(
        (name, [((4, 1999), I16, (s, 0))], (I16, (2**-15, 0)), "", {})
        for name in ("LOGISTIC", "TANH")
        for s in (2**-12, 2**-11, 2**-13, 0.0005, 0.003, 1e-5)
    ),
    *(
        ("SOFTMAX", [((9, n), I16, (s, 0))], (I16, (2**-15, 0)), "Softmax", {"beta": b})
        for n, s, b in ((641, 0.0003, 1.0), (1, 0.001, 1.0), (30, 2**-12, 0.5))
    ),
    *(
        (name, [((4, 500), d, q)], (d, o), "", {})
        for name in ("ABS", "LOG", "EXP", "GELU")
        for d, q, o in ((I16, (0.001, 0), (0.002, 0)), (I8, (0.03, 3), (0.05, -7)), (I8, Q, Q))
    ),
    *(("LOG_SOFTMAX", [((50, 20), I8, (s, 3))], (I8, (1 / 16, 127)), "", {}) for s in (0.1, 0.02, 0.3, 0.005)),
    ("LOG_SOFTMAX", [((50, 20), U8, (0.1, 3))], (U8, (1 / 16, 255)), "", {}),
    *(
        ("REDUCE_PROD", [((2, 7, 3, 4), d, q), i32(1, 3)], (d, o), "Reducer", {"keep_dims": k})
        for d, q, o, k in ((I8, (0.5, 3), (0.7, 1), True), (I16, (0.001, 0), (0.002, 0), False))
    ),
    ("SHAPE", [((2, 7), I8, Q)], (np.int32, None), "Shape", {"out_type": 2}),
    ("CAST", [((2, 7), I8, Q)], (np.float32, None), "Cast", {"in_data_type": 9, "out_data_type": 0}),
    ("NEG", [((4, 500), I8, (0.1, 0))], (I8, (0.1, 0)), "", {}),
    ("L2_NORMALIZATION", [((9, 50), I8, Q)], (I8, (1 / 128, 0)), "L2Norm", {}),
    ("L2_NORMALIZATION", [((300, 1), I8, Q)], (I8, (1 / 128, 0)), "L2Norm", {}),
    ("SQUARED_DIFFERENCE", [((3, 50), I8, Q), ((50,), I8, R)], (I8, (0.2, -100)), "", {}),
    ("RESIZE_BILINEAR", [((1, 4, 5, 2), I16, (0.001, 0)), i32(7, 9)], (I16, (0.001, 0)), "ResizeBilinear", {}),
    ("PRELU", [((1, 4, 5, 6), I16, (0.001, 0)), (w8(1, 1, 6), (0.01, 0))], (I16, (0.002, 0)), "", {}),
    *(
        (name, [((2, 7, 6, 4), I16, (0.001, 0)), *other_inputs], (I16, o), options, values)
        for name, other_inputs, o, options, values in (
            ("MEAN", [i32(1, 2)], (0.0007, 0), "Reducer", {"keep_dims": True}),
            ("AVERAGE_POOL_2D", [], (0.001, 0), "Pool2D", SAME | S2 | {"filter_width": 3, "filter_height": 2}),
            ("MAX_POOL_2D", [], (0.001, 0), "Pool2D", SAME | S2 | {"filter_width": 3, "filter_height": 2}),
            ("CONCATENATION", [((2, 7, 6, 4), I16, (0.001, 0))], (0.001, 0), "Concatenation", {"axis": 1}),
        )
    ),
    (
        "TRANSPOSE_CONV",
        [i32(1, 8, 10, 3), (w8(3, 3, 2, 4), per_channel(3, 0)), ((1, 4, 5, 4), I16, (0.001, 0)), bias(3, np.int64)],
        (I16, (0.003, 0)),
        "TransposeConv",
        SAME | S2,
    ),
    *(
        ("RESIZE_BILINEAR", [((1, 4, 5, 2), I8, Q), i32(*size)], (I8, Q), "ResizeBilinear", flags)
        for size in ((7, 9), (3, 2))
        for flags in ({}, {"align_corners": True}, {"half_pixel_centers": True})
    ),
    ("RESIZE_NEAREST_NEIGHBOR", [((1, 4, 5, 2), I8, Q), i32(8, 10)], (I8, Q), "ResizeNearestNeighbor", {}),
    ("PAD", [((2, 3), I8, Q), np.array([[1, 0], [2, 1]], np.int32)], (I8, Q), "", {}),
    ("TRANSPOSE", [((2, 3), I8, Q), i32(1, 0)], (I8, Q), "", {}),
]


def _case(case: tuple[Any, ...]) -> tuple[bytes, list[np.ndarray]]:
    name, operands, (dtype, q), options, values = case
    model = one_op(name, operands, [((1,), dtype, q)], options, **values)
    inputs = [o for o in operands if isinstance(o, tuple) and not isinstance(o[0], np.ndarray)]
    feeds = [feed(o[0], o[1] if len(o) > 1 else np.float32, seed=i) for i, o in enumerate(inputs)]
    return model, feeds


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[0]}-{np.dtype(c[2][0]).name}-{c[4]}")
def test_levels_are_those_of_the_reference_kernels(case: tuple[Any, ...]):
    model, feeds = _case(case)
    (want,), (got,) = reference(model, feeds), interpreted(model, feeds)
    assert (want.dtype, want.shape) == (got.dtype, got.shape)
    wrong = want != got
    far = np.abs(want.astype(float) - got).max()
    assert not wrong.any(), f"{wrong.sum()} of {wrong.size} differ, by {far} at most"


def test_sums_of_levels_that_are_not_negative():
    # the reference kernel reads signed levels as unsigned ones: it is right for these alone
    model, (x,) = _case(("SUM", [X, i32(3)], (I8, (0.2, 1)), "Reducer", {"keep_dims": False}))
    x = np.clip(np.abs(x.astype(np.int32)), 0, 127).astype(I8)
    np.testing.assert_array_equal(interpreted(model, [x])[0], reference(model, [x])[0])


@pytest.mark.parametrize(
    ("by", "result_type"), [((0.2, 7), (0.09, 60)), ((0.2, 7), (2.0, 60)), ((0.2, 255), (0.01, 128))]
)
def test_quotients_of_levels(by: tuple[float, int], result_type: tuple[float, int]):
    # the kernel shifts by more than a word has bits where a quotient is less than half a level
    b, a = np.mgrid[:256, :256].astype(U8)
    b[b == by[1]] ^= 1
    shape, inputs = (256, 256), (0.03, 100)
    model = one_op("DIV", [(shape, U8, inputs), (shape, U8, by)], [(shape, U8, result_type)], "Div", activation=1)
    exact = (a.astype(int) - inputs[1]) * inputs[0] / ((b.astype(int) - by[1]) * by[0]) / result_type[0]
    (want,), (got,) = reference(model, [a, b]), interpreted(model, [a, b])
    clear = np.abs(exact) >= 0.5
    np.testing.assert_array_equal(got[clear], want[clear])
    assert (got[~clear] == result_type[1]).all()


@pytest.mark.parametrize("name", ["RSQRT", "SQRT"])
@pytest.mark.parametrize("operand", [(I16, (0.001, 0)), (I8, Q)])
def test_roots_of_levels(name: str, operand: tuple[Any, Any]):
    # what is below zero the kernels refuse
    model, (x,) = _case((name, [((4, 500), *operand)], (operand[0], (0.05, operand[1][1])), "", {}))
    x = np.maximum(x, operand[1][1])
    np.testing.assert_array_equal(interpreted(model, [x])[0], reference(model, [x])[0])


@pytest.mark.parametrize("name", ["LOGISTIC", "EXP", "SOFTMAX", "HARD_SWISH"])
def test_tables_are_of_few_levels(name: str):
    # a table of all numbers of 32 bits has 32 GiB
    operands = [((2, 3), np.int32, (0.1, 0))]
    with pytest.raises(UnsupportedOpError, match="of i32"):
        import_tflite(one_op(name, operands, [((2, 3), I8, OUT)], "Softmax" if name == "SOFTMAX" else ""))


COMPILED = [c for c in CASES if c[0] in ("CONV_2D", "FULLY_CONNECTED", "SOFTMAX")][::3]
COMPILED += [next(c for c in CASES if c[0] == n and c[2][0] == I16) for n in ("LOGISTIC", "TANH", "SOFTMAX", "LOG")]
COMPILED += [c for c in CASES if c[0] == "L2_NORMALIZATION"][:1]


@pytest.mark.parametrize("case", COMPILED)
def test_compiled_levels_are_the_same(case: tuple[Any, ...], tmp_path: Path):
    model, feeds = _case(case)
    path = tmp_path / "op.tflite"
    path.write_bytes(model)
    got = ingot.compile(path, cache=False, threads=1)(*feeds)
    np.testing.assert_array_equal(got, reference(model, feeds)[0])
