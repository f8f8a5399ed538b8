"""Operands whose sizes do not match, and numbers at the ends of 64 bits, under guard pages: an error or the answer of
ONNX Runtime, never a stray access."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

pytest.importorskip("onnxruntime")
sys.path.insert(0, str(Path(__file__).parent))

import onnxruntime
from backend_cases import as_array, cases

import ingot
from ingot.support.errors import IngotError
from tests.guard import Case, check_all

# why ONNX Runtime refuses what Ingot answers: indices out of range are clamped, numpy's types of 8 and 16 bits are no
# tensors of its, AffineGrid is what its function's body says, a tile of no repeats is empty however many others, and
# QLinearMatMul has a scale for each row, as the specification says
_KNOWN = (
    "out of data bounds", "out of range", "gather_elements.cc", "Numpy_type", "affine_grid.cc",
    "exceeds the supported maximum", "IsScalarOr1ElementVector", "Invalid sequence length",
)  # fmt: skip


@cache
def _compiled(model: bytes) -> Any:
    """The model; None where it is refused."""
    try:
        return ingot.compile(onnx.ModelProto.FromString(model), threads=1, cache=False)
    except IngotError:
        return None


@cache
def _session(model: bytes) -> Any:
    """ONNX Runtime's; None where it has no kernels for the model."""
    onnxruntime.set_default_logger_severity(4)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        return onnxruntime.InferenceSession(model, options)
    except Exception:
        return None


def _check(model: bytes, feed: Mapping[str, np.ndarray]) -> None:
    """One call: an error or ONNX Runtime's answer."""
    compiled = _compiled(model)
    if compiled is None:
        return
    try:
        got = compiled(**feed)
    except IngotError:
        return
    session = _session(model)
    if session is None:
        return
    try:
        want = session.run(None, feed)
    except Exception as error:
        if any(text in str(error) for text in _KNOWN):
            return
        raise
    for g, w in zip(got if isinstance(got, tuple) else (got,), want, strict=True):
        assert np.shape(g) == np.shape(w)
        if w.dtype.kind in "fiub":
            np.testing.assert_allclose(g, w, rtol=1e-3, atol=1e-5)


# --- operands that do not match


def _opened(model: onnx.ModelProto) -> bytes:
    """The model with a symbol of its own for each size of each input: Gemm(a[s0_0,s0_1], b[s1_0,s1_1])."""
    opened = onnx.ModelProto.FromString(model.SerializeToString())
    for i, value in enumerate(opened.graph.input):
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            dim.dim_param = f"s{i}_{axis}"
    for value in opened.graph.output:
        if value.HasField("type"):  # a mention of what is absent makes it a type without elements
            value.type.tensor_type.ClearField("shape")
    return opened.SerializeToString()


def _mismatched(name: str, model: onnx.ModelProto, arrays: Sequence[np.ndarray]) -> Iterator[tuple[str, Case]]:
    """Calls in which one size of one operand is another."""
    opened, names = _opened(model), [i.name for i in model.graph.input]
    for i, array in enumerate(arrays):
        for axis, n in enumerate(array.shape):
            for size in sorted({1, n + 1, n + 1500} - {n}):
                new = np.resize(array, (*array.shape[:axis], size, *array.shape[axis + 1 :]))
                feed = dict(zip(names, [new if j == i else a for j, a in enumerate(arrays)], strict=True))
                yield f"{name}, {names[i]} {list(new.shape)}", partial(_check, opened, feed)


MATCHED = {
    "gather_elements": ("float[3,5] x, int64[3,2] t", "y = GatherElements<axis = 1>(x, t)"),
    "scatter_elements": ("float[3,5] x, int64[3,2] t, float[3,2] u", "y = ScatterElements<axis = 1>(x, t, u)"),
    "nll_loss": ("float[3,5] x, int64[3] t, float[5] w", 'y = NegativeLogLikelihoodLoss<reduction = "none">(x, t, w)'),
    "cross_entropy": ("float[3,5,2] x, int64[3,2] t", 'y = SoftmaxCrossEntropyLoss<reduction = "none">(x, t)'),
    "compress": ("float[3,5] x, bool[5] t", "y = Compress<axis = 1>(x, t)"),
    "layer_norm": ("float[3,4] x, float[3,4] t, float[3,4] u", "y = LayerNormalization<axis = 0>(x, t, u)"),
    "reverse_sequence": ("float[4,3] x, int64[3] t", "y = ReverseSequence<time_axis = 0, batch_axis = 1>(x, t)"),
    "scan": (
        "float[2] t, float[3,2] x",
        "y, z = Scan<num_scan_inputs = 1, body = g(float[2] s, float[2] e) => (float[2] o, float[2] p) {"
        "o = Add(s, e) p = Identity(o)}>(t, x)",
    ),
    "gemm": ("float[3,5] x, float[5,2] t, float[2] u", "y = Gemm(x, t, u)"),
}
X = np.arange(30, dtype=np.float32)


def _text(inputs: str, nodes: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 18]> agraph ({inputs}) => (y) {{ {nodes} }}"""
    )


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", sorted(MATCHED))
def test_sizes_that_do_not_match(name: str) -> None:
    model = _text(*MATCHED[name])
    arrays: list[np.ndarray] = []
    for value in model.graph.input:
        shape = tuple(d.dim_value for d in value.type.tensor_type.shape.dim)
        dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        arrays.append(np.resize(X if dtype == np.float32 else X % 2, shape).astype(dtype))
    check_all(dict(_mismatched(name, model, arrays)))


def _suite() -> list[tuple[str, Case]]:
    """Calls of ONNX's first case of each operator that takes several tensors, and of each function's body."""
    visited: set[str] = set()
    results: list[tuple[str, Case]] = []
    for name, case in sorted(cases().items()):
        kind = case.model.graph.node[0].op_type if len(case.model.graph.node) == 1 else name
        inputs = case.data_sets[0][0]
        if kind in visited or not all(isinstance(v, np.ndarray | np.generic | onnx.TensorProto) for v in inputs):
            continue
        arrays = [as_array(v) for v in inputs]
        if sum(a.ndim > 0 for a in arrays) > 1 and len(arrays) == len(case.model.graph.input):
            visited.add(kind)
            results += _mismatched(name, case.model, arrays)
    return results


@pytest.mark.slow
def test_sizes_that_do_not_match_of_every_op() -> None:
    """Every eighth of the calls. INGOT_TEST_EVERY=1 takes all: a quarter of an hour."""
    check_all(dict(_suite()[:: int(os.environ.get("INGOT_TEST_EVERY", "8"))]))


# --- numbers at the ends of 64 bits

ENDS_OF_I64 = (-(2**63), -(2**63) + 1, -(2**62), -(2**40), -1, 0, 2, 2**40, 2**62, 2**63 - 2, 2**63 - 1)
# of x, [3, 4]: (the inputs beside it, the nodes)
TOLD: dict[str, tuple[str, str]] = {
    "slice": ("int64[1] a, int64[1] b", "y = Slice(x, a, b)"),
    "slice backwards": (
        "int64[1] a, int64[1] b",
        "e = Constant<value_ints = [1]>() s = Constant<value_ints = [-2]>() y = Slice(x, a, b, e, s)",
    ),
    "slice by a sum": ("int64[1] a, int64[1] b", "s = Add(a, b) t = Clip(s) y = Slice(x, a, t)"),
    "slice by a value": ("int64[k] a, int64[1] b", "s = ReduceMax<keepdims = 1>(a) y = Slice(x, s, b)"),
    "triu": ("int64 a", "y = Trilu<upper = 1>(x, a)"),
    "tril": ("int64 a", "y = Trilu<upper = 0>(x, a)"),
    "pad": ("int64[4] a", "y = Pad(x, a)"),
    "tile": ("int64[2] a", "y = Tile(x, a)"),
    "expand": ("int64[3] a", "y = Expand(x, a)"),
    "top_k": ("int64[1] a", "y, at = TopK(x, a)"),
    "split": ("int64[2] a", "y, z = Split<axis = 1>(x, a)"),
    "range": ("int64 a, int64 b", "s = Constant<value_int = 1>() y = Range(a, b, s)"),
    "constant_of_shape": ("int64[2] a", "y = ConstantOfShape(a)"),
}


def _bound_cases(name: str, sizes: str, count: int) -> dict[str, Case]:
    model = _text(f"float[{sizes}] x, {TOLD[name][0]}", TOLD[name][1])
    results: dict[str, Case] = {}
    for numbers in np.random.default_rng(len(name)).choice(ENDS_OF_I64, (count, 6)):
        if name == "slice backwards":  # 2^63 - 1 is no end at all to ONNX Runtime, where the specification clamps it
            numbers = np.minimum(numbers, 2**63 - 2)
        feed: dict[str, np.ndarray] = {"x": X[:12].reshape(3, 4) + 1}
        at = 0
        for value in model.graph.input[1:]:
            shape = tuple(d.dim_value or 2 for d in value.type.tensor_type.shape.dim)
            feed[value.name] = numbers[at : at + math.prod(shape)].reshape(shape)
            at += math.prod(shape)
        results[f"{name} {numbers[:at].tolist()}"] = partial(_check, model.SerializeToString(), feed)
    return results


@pytest.mark.sampled(3)
@pytest.mark.parametrize("sizes", ["3,4", "n,m"])
@pytest.mark.parametrize("name", ["slice", "slice backwards", "triu", "pad"])
def test_numbers_at_the_ends_of_64_bits(name: str, sizes: str) -> None:
    check_all(_bound_cases(name, sizes, 6))


@pytest.mark.slow
@pytest.mark.parametrize("sizes", ["3,4", "n,m"])
@pytest.mark.parametrize("name", sorted(TOLD))
def test_more_numbers_at_the_ends_of_64_bits(name: str, sizes: str) -> None:
    check_all(_bound_cases(name, sizes, 40))
