"""StableHLO's operators, against LiteRT's kernels where it has them, else against numpy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from ingot.frontends.tflite import import_tflite
from ingot.support.errors import ImportModelError, UnsupportedOpError
from tests.frontends.tflite.builder import Model, feed, interpreted, reference

F, I32, I64 = np.float32, np.int32, np.int64
Region = Callable[[Model], None]


def f(*shape: int) -> tuple[Any, ...]:
    return (shape, F)


def model_of(
    op: str, /, operands: Sequence[Any], results: Sequence[Any], options: str = "", regions: Sequence[Region] = (),
    **values: Any,
) -> bytes:  # fmt: skip
    model = Model()
    graph = model.subgraph()
    places = [graph.const(o) if isinstance(o, np.ndarray) else graph.input(*o) for o in operands]
    outputs = [graph.tensor(*r) for r in results]
    graph.outputs = list(graph.op(op, places, outputs, options and f"Stablehlo{options}", **values))
    for region in regions:
        region(model)
    return model.finish()


def of_two(op: str, result: Any = F, options: str = "", **values: Any) -> Region:
    def add(model: Model) -> None:
        g = model.subgraph()
        operands = [g.input(()), g.input(())]
        g.outputs = list(g.op(op, operands, [g.tensor((), result)], options, **values))

    return add


def of_one(op: str) -> Region:
    def add(model: Model) -> None:
        g = model.subgraph()
        g.outputs = list(g.op(op, [g.input((2, 3))], [g.tensor((2, 3))]))

    return add


def feeds_of(operands: Sequence[Any]) -> list[np.ndarray]:
    return [feed(o[0], o[1], seed=i) for i, o in enumerate(operands) if not isinstance(o, np.ndarray)]


ADD, MAX = of_two("ADD"), of_two("STABLEHLO_MAXIMUM")
LESS = of_two("STABLEHLO_COMPARE", np.bool_, "StablehloCompare", comparison_direction=5)
HALF = np.array(0.5, F)
WINDOW = {
    "window_dimensions": [3, 2], "window_strides": [2, 1], "base_dilations": [1, 1], "window_dilations": [1, 2],
    "padding": [0, 0, 1, 1],
}  # fmt: skip
SCATTER = {
    "update_window_dims": [1], "inserted_window_dims": [0], "scatter_dims_to_operand_dims": [0], "index_vector_dim": 1,
}  # fmt: skip
GATHER = {
    "offset_dims": [1], "collapsed_slice_dims": [0], "start_index_map": [0], "index_vector_dim": 1,
    "slice_sizes": [1, 4],
}  # fmt: skip
ROWS_AT = np.array([[0], [3], [0]], I32)
KNOWN: list[tuple[Any, ...]] = [
    *((name, [f(2, 3), f(2, 3)], [f(2, 3)], "", (), {}) for name in ("ADD", "MULTIPLY", "MAXIMUM", "MINIMUM")),
    ("PAD", [f(2, 3), np.array(7, F)], [f(4, 6)], "Pad", (),
     {"edge_padding_low": [1, -1], "edge_padding_high": [0, 2], "interior_padding": [1, 1]}),
    ("SHIFT_LEFT", [((2, 3), I32), np.full((2, 3), 3, I32)], [((2, 3), I32)], "", (), {}),
    *(("REDUCE_WINDOW", [f(9, 7), HALF], [f(4, 7)], "ReduceWindow", (r,), WINDOW | {"body_subgraph_index": 1})
      for r in (ADD, MAX)),
    ("SCATTER", [f(5, 4), ROWS_AT, f(3, 4)], [f(5, 4)], "Scatter", (of_two("STABLEHLO_ADD"),),
     SCATTER | {"update_computation_subgraph_index": 1}),
    ("GATHER", [f(5, 4), ROWS_AT.astype(I64)], [f(3, 4)], "Gather", (), GATHER),
    ("COMPOSITE", [f(2, 3)], [f(2, 3)], "Composite", (of_one("TANH"),),
     {"name": "a.b", "decomposition_subgraph_index": 1, "composite_attributes": [0]}),
    *(("RNG_BIT_GENERATOR", [((words,), np.uint64)], [((words,), np.uint64), ((3, 5), bits)], "RngBitGenerator", (),
       {"rng_algorithm": a}) for a, words, bits in ((0, 2, I32), (1, 3, np.uint64), (2, 2, np.uint32))),
]  # fmt: skip


@pytest.mark.parametrize("case", KNOWN, ids=lambda c: c[0])
def test_operators_that_litert_has(case: tuple[Any, ...]):
    name, operands, results, options, regions, values = case
    data, feeds = model_of(f"STABLEHLO_{name}", operands, results, options, regions, **values), feeds_of(operands)
    for got, want in zip(interpreted(data, feeds), reference(data, feeds), strict=True):
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        np.testing.assert_allclose(got, want, rtol=2e-6, atol=1e-6)


AB = {"lhs_batching_dimensions": [0], "rhs_batching_dimensions": [0]}
CONVOLUTION = {
    "window_strides": [2, 2], "padding": [1, 1, 1, 1], "lhs_dilation": [1, 1], "rhs_dilation": [1, 1],
    "input_batch": 0, "input_feature": 3, "input_spatial": [1, 2], "kernel_input_feature": 2,
    "kernel_output_feature": 3, "kernel_spatial": [0, 1], "output_batch": 0, "output_feature": 3,
    "output_spatial": [1, 2], "feature_group_count": 1, "batch_group_count": 1,
}  # fmt: skip
OTHERS: list[tuple[Any, ...]] = [
    *((n, [f(2, 3)], f(2, 3), "", (), {}, fn) for n, fn in (
        ("CBRT", np.cbrt), ("ABS", np.abs), ("COSINE", np.cos), ("EXPONENTIAL", np.exp), ("FLOOR", np.floor),
        ("NEGATE", np.negative), ("TANH", np.tanh), ("LOGISTIC", lambda x: 1 / (1 + np.exp(-x))))),
    *((n, [f(2, 3), f(2, 3)], f(2, 3), "", (), {}, fn) for n, fn in (
        ("DIVIDE", np.divide), ("SUBTRACT", np.subtract), ("REMAINDER", np.fmod))),
    ("REDUCE", [f(9, 7), HALF], f(9), "Reduce", (ADD,), {"dimensions": [1], "body_subgraph_index": 1},
     lambda x: x.sum(1) + 0.5),
    ("SORT", [f(5, 4)], f(5, 4), "Sort", (LESS,), {"dimension": 1, "comparator_subgraph_index": 1},
     lambda x: np.sort(x, 1)),
    ("DOT_GENERAL", [f(2, 3, 4), f(2, 4, 5)], f(2, 3, 5), "DotGeneral", (),
     AB | {"lhs_contracting_dimensions": [2], "rhs_contracting_dimensions": [1]}, np.matmul),
    ("CONVOLUTION", [f(2, 7, 7, 3), np.ones((3, 3, 3, 4), F)], f(2, 4, 4, 4), "Convolution", (), CONVOLUTION,
     lambda x: np.repeat(np.lib.stride_tricks.sliding_window_view(
         np.pad(x, [(0, 0), (1, 1), (1, 1), (0, 0)]), (3, 3), (1, 2))[:, ::2, ::2].sum((3, 4, 5))[..., None], 4, 3)),
    ("COMPARE", [f(5, 4), f(5, 4)], ((5, 4), np.bool_), "Compare", (), {"comparison_direction": 3}, np.greater),
    ("BROADCAST_IN_DIM", [f(4)], f(5, 4), "BroadcastInDim", (), {"broadcast_dimensions": [1]},
     lambda x: np.broadcast_to(x, (5, 4))),
    ("TRANSPOSE", [f(4, 5)], f(5, 4), "Transpose", (), {"permutation": [1, 0]}, np.transpose),
    ("SLICE", [f(4, 5)], f(2, 2), "Slice", (), {"start_indices": [0, 1], "limit_indices": [2, 5], "strides": [1, 2]},
     lambda x: x[:2, 1:5:2]),
    ("DYNAMIC_SLICE", [f(4, 5), np.array(1, I32), np.array(2, I32)], f(2, 2), "DynamicSlice", (),
     {"slice_sizes": [2, 2]}, lambda x: x[1:3, 2:4]),
    ("IOTA", [], ((4, 5), I32), "Iota", (), {"iota_dimension": 1}, lambda: np.tile(np.arange(5, dtype=I32), (4, 1))),
    ("CONCATENATE", [f(4, 5), f(4, 2)], f(4, 7), "Concatenate", (), {"dimension": 1},
     lambda a, b: np.concatenate([a, b], 1)),
    ("CLAMP", [np.array(-0.5, F), f(4, 5), HALF], f(4, 5), "", (), {}, lambda x: np.clip(x, -0.5, 0.5)),
]  # fmt: skip


@pytest.mark.parametrize("case", OTHERS, ids=lambda c: c[0])
def test_operators_that_litert_has_not(case: tuple[Any, ...]):
    name, operands, result, options, regions, values, fn = case
    data, feeds = model_of(f"STABLEHLO_{name}", operands, [result], options, regions, **values), feeds_of(operands)
    (got,), want = interpreted(data, feeds), fn(*feeds)
    assert got.shape == want.shape and got.dtype == want.dtype
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("index", [0, 1, 5, -1])
def test_branches_by_a_number(index: int):
    operands, regions = [((), I32), f(2, 3)], (of_one("TANH"), of_one("ABS"))
    data = model_of("STABLEHLO_CASE", operands, [f(2, 3)], "Case", regions, branch_subgraph_indices=[1, 2])
    x = feed((2, 3))
    want = np.tanh(x) if index == 0 else np.abs(x)
    np.testing.assert_allclose(interpreted(data, [np.array(index, I32), x])[0], want, rtol=1e-6)


def test_what_does_not_fit_is_refused():
    with pytest.raises(ImportModelError, match="subgraph 7 of 1"):
        import_tflite(
            model_of("STABLEHLO_REDUCE", [f(9, 7), HALF], [f(9)], "Reduce", dimensions=[1], body_subgraph_index=7)
        )
    with pytest.raises(UnsupportedOpError, match="comparison_direction 9"):
        import_tflite(model_of("STABLEHLO_COMPARE", [f(3), f(3)], [f(3)], "Compare", comparison_direction=9))
    numbers: dict[str, Any] = CONVOLUTION | {"input_feature": 2}
    with pytest.raises(UnsupportedOpError, match="dimension numbers"):
        import_tflite(
            model_of(
                "STABLEHLO_CONVOLUTION", [f(2, 7, 7, 3), f(3, 3, 3, 4)], [f(2, 4, 4, 4)], "Convolution", (), **numbers
            )
        )
