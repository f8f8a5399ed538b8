"""Rows on numbers, against LiteRT's reference kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ingot import ops
from ingot.autodiff import value_and_gradients
from ingot.frontends.tflite import import_tflite
from ingot.ir.interp import interpret
from ingot.support.errors import IngotError
from tests.frontends.tflite.builder import Model, feed, interpreted, one_op, reference

I32 = np.int32


def i32(*values: int) -> np.ndarray:
    return np.array(values, I32)


def ints(values: Any) -> np.ndarray:
    return np.array(values, I32)


def f(*shape: int) -> tuple[Any, ...]:
    return (shape, np.float32)


def n(*shape: int) -> tuple[Any, ...]:
    return (shape, I32)


def weights(*shape: int) -> np.ndarray:
    return feed(shape, seed=9)


SAME, VALID = {"padding": 0}, {"padding": 1}
S11 = {"stride_w": 1, "stride_h": 1}
S21 = {"stride_w": 2, "stride_h": 1}
S22 = {"stride_w": 2, "stride_h": 2}
# name, operands, number of results, options, their values
CASES: list[tuple[Any, ...]] = [
    *(
        (name, [f(2, 3), f(2, 3)], options, {"activation": a} if options else {})
        for name, options in (
            ("ADD", "Add"),
            ("SUB", "Sub"),
            ("MUL", "Mul"),
            ("DIV", "Div"),
            ("MAXIMUM", ""),
            ("MINIMUM", ""),
        )
        for a in ((0, 1, 3) if options else (0,))
    ),
    ("ADD", [f(2, 3), weights(3)], "Add", {"activation": 0}),
    ("ADD", [f(2, 1, 3), f(4, 1)], "Add", {"activation": 0}),
    ("DILATE", [f(2, 3), i32(2, 3), np.array(5, np.float32)], "", {}),
    *(
        (
            "REDUCE_WINDOW",
            [f(9, 7), np.array(0.5, np.float32), *(np.array(v, np.int64) for v in ((3, 2), (2, 1), (1, 2)))],
            "ReduceWindow",
            {"reduce_function": k},
        )
        for k in (1, 2, 3, 4)
    ),
    *(
        (
            "CONV_3D_TRANSPOSE",
            [i32(2, *size, 3), weights(3, 2, 2, 3, 4), f(2, 3, 4, 5, 4), weights(3)],
            "Conv3D",
            pad | {"stride_d": 2, "stride_h": 2, "stride_w": 1, "activation": 1},
        )
        for size, pad in (((6, 8, 5), SAME), ((7, 8, 6), VALID))
    ),
    ("HASHTABLE_LOOKUP", [i32(4, 3, 9, -1), i32(1, 3, 4), f(3, 2)], "", {}, 2),
    *(
        (
            "EMBEDDING_LOOKUP_SPARSE",
            [i32(1, 3, 0), ints([[0, 0], [2, 0], [2, 1]]), i32(3, 2), np.array([1, 2, 4], np.float32), f(4, 3, 2)],
            "EmbeddingLookupSparse",
            {"combiner": k},
        )
        for k in (0, 1, 2)
    ),
    ("FLOOR_DIV", [n(2, 3), i32(4, -3, 2)], "", {}),
    ("FLOOR_DIV", [f(2, 3), f(2, 3)], "", {}),
    ("FLOOR_MOD", [n(2, 3), i32(4, -3, 2)], "", {}),
    ("SQUARED_DIFFERENCE", [f(2, 3), f(2, 3)], "", {}),
    *(
        (name, [f(2, 3), f(2, 3)], "", {})
        for name in ("LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL", "EQUAL", "NOT_EQUAL")
    ),
    *(
        (name, [f(3, 5)], "", {})
        for name in (
            "ABS",
            "NEG",
            "EXP",
            "SIN",
            "COS",
            "CEIL",
            "FLOOR",
            "ROUND",
            "SIGN",
            "LOGISTIC",
            "TANH",
            "HARD_SWISH",
            "ELU",
            "RELU",
            "RELU6",
            "RELU_N1_TO_1",
            "RELU_0_TO_1",
            "SQUARE",
            "ZEROS_LIKE",
            "LOG_SOFTMAX",
        )
    ),
    ("LEAKY_RELU", [f(3, 5)], "LeakyRelu", {"alpha": 0.2}),
    ("PRELU", [f(1, 2, 3, 5), weights(1, 1, 5)], "", {}),
    ("GELU", [f(3, 5)], "Gelu", {"approximate": False}),
    ("GELU", [f(3, 5)], "Gelu", {"approximate": True}),
    ("SOFTMAX", [f(3, 5)], "Softmax", {"beta": 1.0}),
    ("SOFTMAX", [f(3, 5)], "Softmax", {"beta": 0.5}),
    ("L2_NORMALIZATION", [f(3, 5)], "L2Norm", {"activation": 0}),
    ("SELECT_V2", [((2, 1), np.bool_), f(2, 3), f(1, 3)], "", {}),
    ("SELECT", [((2,), np.bool_), f(2, 3), f(2, 3)], "", {}),
    ("ADD_N", [f(2, 3), f(2, 3), f(2, 3)], "", {}),
    ("LOGICAL_AND", [((4,), np.bool_), ((4,), np.bool_)], "", {}),
    ("LOGICAL_NOT", [((4,), np.bool_)], "", {}),
    ("BITWISE_XOR", [n(4), n(4)], "", {}),
    ("CUMSUM", [f(3, 4), np.array(1, I32)], "Cumsum", {"exclusive": True, "reverse": False}),
    # moves
    ("RESHAPE", [f(2, 6), i32(3, -1)], "", {}),
    ("SQUEEZE", [f(2, 1, 3, 1)], "Squeeze", {"squeeze_dims": [1]}),
    ("EXPAND_DIMS", [f(2, 3), np.array(-1, I32)], "", {}),
    ("TRANSPOSE", [f(2, 3, 4), i32(2, 0, 1)], "", {}),
    ("SLICE", [f(4, 5), i32(1, 2), i32(2, -1)], "", {}),
    ("STRIDED_SLICE", [f(4, 5, 6), i32(1, 0, -1), i32(3, 4, 0), i32(1, 2, -2)], "StridedSlice", {"begin_mask": 2}),
    ("STRIDED_SLICE", [f(4, 5, 6), i32(-1, 1), i32(0, 9), i32(1, 1)], "StridedSlice", {"shrink_axis_mask": 1}),
    ("SPLIT", [np.array(1, I32), f(2, 6)], "Split", {"num_splits": 3}, 3),
    ("SPLIT_V", [f(2, 6), i32(1, -1, 2), np.array(1, I32)], "SplitV", {"num_splits": 3}, 3),
    ("CONCATENATION", [f(2, 3), f(2, 1)], "Concatenation", {"axis": -1}),
    ("PACK", [f(2, 3), f(2, 3)], "Pack", {"values_count": 2, "axis": 1}),
    ("UNPACK", [f(2, 3)], "Unpack", {"num": 3, "axis": 1}, 3),
    ("PAD", [f(2, 3), ints([[1, 0], [2, 1]])], "", {}),
    ("PADV2", [f(2, 3), ints([[1, 0], [2, 1]]), np.array(7, np.float32)], "", {}),
    ("MIRROR_PAD", [f(3, 4), ints([[1, 0], [2, 1]])], "MirrorPad", {"mode": 0}),
    ("MIRROR_PAD", [f(3, 4), ints([[1, 3], [2, 1]])], "MirrorPad", {"mode": 1}),
    ("TILE", [f(2, 3), i32(2, 3)], "", {}),
    ("BROADCAST_TO", [f(2, 1), i32(3, 2, 4)], "", {}),
    ("FILL", [i32(2, 3), np.array(2.5, np.float32)], "", {}),
    ("REVERSE_V2", [f(2, 3, 4), i32(0)], "", {}),
    ("SPACE_TO_DEPTH", [f(1, 4, 6, 3)], "SpaceToDepth", {"block_size": 2}),
    ("DEPTH_TO_SPACE", [f(1, 4, 6, 8)], "DepthToSpace", {"block_size": 2}),
    ("SPACE_TO_BATCH_ND", [f(2, 3, 5, 2), i32(2, 3), ints([[1, 0], [0, 1]])], "", {}),
    ("BATCH_TO_SPACE_ND", [f(12, 2, 2, 2), i32(2, 3), ints([[1, 0], [0, 1]])], "", {}),
    # reductions
    *(
        (name, [f(2, 3, 4), i32(0, -1)], "Reducer", {"keep_dims": keep})
        for name in ("SUM", "MEAN", "REDUCE_PROD", "REDUCE_MAX", "REDUCE_MIN")
        for keep in (False, True)
    ),
    ("REDUCE_ANY", [((2, 3), np.bool_), i32(1)], "Reducer", {"keep_dims": False}),
    ("ARG_MAX", [f(2, 5), np.array(-1, I32)], "ArgMax", {"output_type": 2}),
    ("ARG_MIN", [f(2, 5), np.array(0, I32)], "ArgMin", {"output_type": 2}),
    # windows
    *(
        ("CONV_2D", [f(2, 7, 6, 4), weights(5, 3, 2, 4), weights(5)], "Conv2D", p | s | {"activation": 1})
        for p in (SAME, VALID)
        for s in (S11, S21, S22)
    ),
    (
        "CONV_2D",
        [f(1, 7, 6, 4), weights(6, 3, 2, 2), weights(6)],
        "Conv2D",
        SAME | S11 | {"dilation_h": 2, "dilation_w": 2},
    ),
    *(
        (
            "DEPTHWISE_CONV_2D",
            [f(1, 7, 6, 3), weights(1, 3, 3, 6), weights(6)],
            "DepthwiseConv2D",
            p | s | {"depth_multiplier": 2},
        )
        for p in (SAME, VALID)
        for s in (S11, S22)
    ),
    *(
        ("TRANSPOSE_CONV", [i32(1, *size, 3), weights(3, 3, 2, 4), f(1, 4, 5, 4)], "TransposeConv", p | S22)
        for p, size in ((SAME, (8, 10)), (SAME, (7, 9)), (VALID, (9, 10)), (VALID, (9, 11)))
    ),
    *(
        (name, [f(1, 7, 6, 3)], "Pool2D", p | s | {"filter_width": 3, "filter_height": 2})
        for name in ("AVERAGE_POOL_2D", "MAX_POOL_2D", "L2_POOL_2D")
        for p in (SAME, VALID)
        for s in (S11, S22)
    ),
    ("CONV_3D", [f(1, 4, 5, 6, 2), weights(2, 3, 2, 2, 3), weights(3)], "Conv3D", SAME | S22 | {"stride_d": 1}),
    *(
        (name, [f(1, 4, 5, 2), i32(7, 9)], options, flags)
        for name, options in (
            ("RESIZE_BILINEAR", "ResizeBilinear"),
            ("RESIZE_NEAREST_NEIGHBOR", "ResizeNearestNeighbor"),
        )
        for flags in ({}, {"align_corners": True}, {"half_pixel_centers": True})
    ),
    ("RESIZE_BILINEAR", [f(1, 8, 9, 2), i32(3, 5)], "ResizeBilinear", {"half_pixel_centers": True}),
    # products
    ("FULLY_CONNECTED", [f(2, 3, 4), weights(5, 4), weights(5)], "FullyConnected", {"activation": 1}),
    ("FULLY_CONNECTED", [f(2, 3, 4), weights(5, 4), None], "FullyConnected", {"keep_num_dims": True}),
    ("BATCH_MATMUL", [f(2, 3, 4), f(2, 5, 4)], "BatchMatMul", {"adj_y": True}),
    ("BATCH_MATMUL", [f(2, 4, 3), f(1, 4, 5)], "BatchMatMul", {"adj_x": True}),
    # indices
    ("GATHER", [f(4, 5, 2), ints([[1, 3], [0, 2]])], "Gather", {"axis": 1}),
    ("GATHER", [f(2, 5, 3), ints([[1, 3], [0, 2]])], "Gather", {"axis": 1, "batch_dims": 1}),
    ("GATHER", [f(2, 4, 5), ints([[1, 3], [0, 2]])], "Gather", {"axis": 2, "batch_dims": 1}),
    ("GATHER_ND", [f(3, 4, 2), ints([[1, 3], [0, 2]])], "", {}),
    ("SCATTER_ND", [ints([[1], [3], [1]]), f(3, 2), i32(5, 2)], "", {}),
    (
        "ONE_HOT",
        [ints([0, 2, 5]), np.array(4, I32), np.array(2.0, np.float32), np.array(-1.0, np.float32)],
        "OneHot",
        {"axis": -1},
    ),
    ("TOPK_V2", [f(2, 7), np.array(3, I32)], "", {}, 2),
    ("REVERSE_SEQUENCE", [f(3, 5, 2), i32(2, 5, 0)], "ReverseSequence", {"seq_dim": 1, "batch_dim": 0}),
    ("MATRIX_DIAG", [f(2, 3)], "", {}),
    (
        "SPARSE_TO_DENSE",
        [ints([[0, 1], [2, 3]]), i32(3, 4), weights(2), np.array(0.5, np.float32)],
        "SparseToDense",
        {},
    ),
    ("DYNAMIC_UPDATE_SLICE", [f(4, 5), f(2, 2), i32(1, 9)], "", {}),
    ("EMBEDDING_LOOKUP", [i32(2, 0), weights(4, 3)], "", {}),
]
_BOOLS = (
    "LESS",
    "LESS_EQUAL",
    "GREATER",
    "GREATER_EQUAL",
    "EQUAL",
    "NOT_EQUAL",
    "LOGICAL_AND",
    "LOGICAL_NOT",
    "REDUCE_ANY",
)


def result_types(name: str, operands: list[Any], count: int) -> list[Any]:
    if name in _BOOLS:
        kinds = [np.bool_]
    elif name in ("ARG_MAX", "ARG_MIN"):
        kinds = [I32]
    elif name == "TOPK_V2":
        kinds = [np.float32, I32]
    elif name == "HASHTABLE_LOOKUP":
        kinds = [np.float32, np.uint8]
    elif name in ("FLOOR_DIV", "FLOOR_MOD", "BITWISE_XOR") and operands[0][1] is I32:
        kinds = [I32]
    else:
        kinds = [np.float32] * count
    # the runtime finds the sizes, but for a slice's, which it checks
    return [((2, 3) if name == "SLICE" else (1,), kind) for kind in kinds]


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[0]}-{c[3]}")
def test_rows_agree_with_the_reference_kernels(case: tuple[Any, ...]):
    name, operands, options, values, *count = case
    model = one_op(name, operands, result_types(name, operands, count[0] if count else 1), options, **values)
    inputs = [o for o in operands if isinstance(o, tuple)]
    feeds = [feed(shape, dtype, seed=i) for i, (shape, dtype) in enumerate(inputs)]
    expected, got = reference(model, feeds), interpreted(model, feeds)
    assert len(expected) == len(got)
    for a, b in zip(expected, got, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        np.testing.assert_allclose(b, a, rtol=2e-6, atol=2e-6)


def test_local_response_normalization_reaches_as_far_up_as_down():
    # the reference kernel leaves out the last neighbour, which TensorFlow and the optimized kernel count
    values = {"radius": 2, "bias": 1.0, "alpha": 0.3, "beta": 0.7}
    model = one_op("LOCAL_RESPONSE_NORMALIZATION", [f(1, 2, 3, 7)], [((1,),)], "LocalResponseNormalization", **values)
    x = feed((1, 2, 3, 7))
    total = np.stack([(x[..., max(0, c - 2) : c + 3] ** 2).sum(-1) for c in range(7)], -1)
    np.testing.assert_allclose(interpreted(model, [x])[0], x / (1 + 0.3 * total) ** 0.7, rtol=1e-5)


@pytest.mark.parametrize("x", [ints([[3, 0, 1], [0, 7, 3]]), ints([[1, 2, 3], [4, 5, 6]])], ids=["some", "all"])
def test_sizes_that_data_decides(x: np.ndarray):
    places = one_op("WHERE", [n(2, 3)], [((1, 2), np.int64)])
    members = one_op("UNIQUE", [n(6)], [n(1), n(6)], "Unique")
    for model, data in ((places, x), (members, x.reshape(-1))):
        for got, want in zip(interpreted(model, [data]), reference(model, [data]), strict=False):
            assert got.dtype == want.dtype and got.shape == want.shape
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("shape", [(0, 6, 5, 4), (2, 0, 5, 4)])
def test_convolutions_of_nothing(shape: tuple[int, ...]):
    """No images give none; images without pixels are an error."""
    filters = [weights(5, 3, 2, 4)], [i32(shape[0], 6, 10, 5), weights(5, 3, 2, 4)]
    for name, options, operands in (
        ("CONV_2D", "Conv2D", [f(*shape), *filters[0], weights(5)]),
        ("TRANSPOSE_CONV", "TransposeConv", [*filters[1], f(*shape)]),
    ):
        model = one_op(name, operands, [((1,), np.float32)], options, **SAME, **S21)
        if shape[0]:
            with pytest.raises(IngotError):
                interpreted(model, [np.zeros(shape, np.float32)])
        else:
            (got,) = interpreted(model, [np.zeros(shape, np.float32)])
            assert got.shape == reference(model, [np.zeros(shape, np.float32)])[0].shape


def test_buckets():
    edges = np.array([-0.5, 0.0, 0.25], np.float32)
    data = one_op("BUCKETIZE", [f(3, 4)], [((3, 4), I32)], "Bucketize", boundaries=edges)
    x = np.concatenate([feed((9,)), edges]).reshape(3, 4)
    np.testing.assert_array_equal(interpreted(data, [x]), reference(data, [x]))


def test_segments_as_many_as_data_say():
    at = np.array([0, 0, 1, 2], I32)
    data = one_op("SEGMENT_SUM", [f(4, 3), n(4)], [((3, 3), np.float32)])
    x = feed((4, 3))
    (want,), (got,) = reference(data, [x, at]), interpreted(data, [x, at])
    np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.parametrize("name", ["NON_MAX_SUPPRESSION_V4", "NON_MAX_SUPPRESSION_V5"])
@pytest.mark.parametrize("least", [0.0, 0.6])
def test_boxes_that_stay(name: str, least: float):
    corners = np.sort(np.abs(feed((12, 4))).reshape(12, 2, 2), 1).reshape(12, 4)
    corners[:2] = [[0, 0, 1, 1], [0, 0, 1, 0.5]]  # as much as is too much
    scores = np.abs(feed((12,), seed=3))
    limits = [np.array(v, np.float32) for v in (0.5, least, 0.0)][: 2 + name.endswith("5")]
    results = [((8,), I32), *([((8,), np.float32)] if name.endswith("5") else []), ((), I32)]
    data = one_op(name, [f(12, 4), f(12), np.array(8, I32), *limits], results)
    for got, want in zip(interpreted(data, [corners, scores]), reference(data, [corners, scores]), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("end", ["COMPLEX_ABS", "REAL", "IMAG", "CAST"])
@pytest.mark.parametrize(("shape", "lengths"), [((3, 16), (1, 16)), ((4, 6, 8), (8, 4)), ((2, 1, 10), (1, 16))])
def test_fourier_transforms(end: str, shape: tuple[int, ...], lengths: tuple[int, int]) -> None:
    model = Model()
    graph = model.subgraph()
    x = graph.input(shape)
    wide = (*shape[:-2], *lengths[:-1], lengths[1] // 2 + 1)
    flat = (int(np.prod(wide[:-1])), wide[-1])
    spectrum, reshaped, y = graph.tensor(wide, "COMPLEX64"), graph.tensor(flat, "COMPLEX64"), graph.tensor(flat)
    graph.op("RFFT2D", [x, graph.const(i32(*lengths))], [spectrum])
    # of complex numbers that are moved
    graph.op("RESHAPE", [spectrum, graph.const(i32(*flat))], [reshaped], "Reshape", new_shape=flat)
    if end == "CAST":
        graph.op(end, [reshaped], [y], "Cast", in_data_type=8, out_data_type=0)
    else:
        graph.op(end, [reshaped], [y])
    graph.outputs = [y]
    feeds = [feed(shape)]
    (got,), (want,) = interpreted(model.finish(), feeds), reference(model.finish(), feeds)
    assert np.abs(got - want).max() <= 2e-6 * np.abs(want).max()


def test_the_gradient_of_fake_quantization_is_that_of_its_range() -> None:
    data = one_op("FAKE_QUANT", [f(7)], [f(7)], "FakeQuant", min=-1.0, max=1.0, num_bits=8)
    graph = value_and_gradients(import_tflite(data).graph, lambda results: ops.reduce_sum(results[0]), [0])
    _, slope = interpret(graph, [np.array([-3, -1.1, -0.5, 0, 0.3, 0.9, 2], np.float32)])
    np.testing.assert_array_equal(slope, [0, 0, 1, 1, 1, 1, 0])


@pytest.mark.parametrize("batch", [-(2**31), -9, 2, 2**31 - 1])
def test_batch_dimensions_that_there_are_not(batch: int, tmp_path: Path) -> None:
    """No loop runs over their number."""
    options = {"axis": 1, "batch_dims": batch}
    (tmp_path / "m.tflite").write_bytes(
        one_op("GATHER", [f(2, 3, 4), ints([[0, 2], [1, 0]])], [f(2, 2, 4)], "Gather", **options)
    )
    with pytest.raises(IngotError, match="batch dimensions"):
        import_tflite(tmp_path / "m.tflite")
