"""ONNX's own node test suite as models with inputs and expected outputs, run through the interpreter or compiled."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import ml_dtypes
import numpy as np
import onnx
from onnx import numpy_helper

import ingot
from ingot.frontends.onnx import import_onnx
from ingot.ir.interp import interpret
from ingot.ir.node import Graph
from ingot.support.errors import NeedsValues, UnsupportedOpError

# integer tensors this small may be shapes, axes or counts
SMALL = 64


@dataclass(frozen=True)
class Case:
    """One model of the suite with its data sets."""

    name: str
    model: onnx.ModelProto
    data_sets: tuple[tuple[Sequence[object], Sequence[object]], ...]
    rtol: float
    atol: float


@cache
def cases() -> dict[str, Case]:
    """Every node case by name."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        from onnx.backend.test.loader import load_model_tests

        results = load_model_tests(kind="node")
    case_table: dict[str, Case] = {}
    for t in results:
        assert t.model is not None and t.data_sets is not None  # those of nodes come with both
        sets = tuple((tuple(i), tuple(o)) for i, o in t.data_sets)
        case_table[t.name] = Case(t.name, t.model, sets, t.rtol, t.atol)
    return case_table


def as_array(value: object) -> np.ndarray:
    """A data set's member as an array of numpy or ml_dtypes type."""
    if isinstance(value, onnx.TensorProto):
        return np.asarray(numpy_helper.to_array(value))
    return np.asarray(value)


def as_given(value: object) -> object:
    """A data set's member as callers give it: an array, the list of a sequence, None for an optional that is absent."""
    if isinstance(value, onnx.SequenceProto):
        value = numpy_helper.to_list(value)
    elif isinstance(value, onnx.OptionalProto):
        value = numpy_helper.to_optional(value)
    if isinstance(value, list | tuple):
        return [as_given(v) for v in value]
    return None if value is None else as_array(value)


_ASKED = re.compile(r"weights=\{'([^']+)'")


def import_case(case: Case, arrays: Mapping[str, np.ndarray]) -> tuple[Graph, bool]:
    """(graph, whether inputs had to be bound as constants: those that the importer asks for, then small integers)."""
    constants: dict[str, np.ndarray] = {}
    while True:
        try:
            return import_onnx(case.model, weights=constants), bool(constants)
        except UnsupportedOpError as e:
            required = {name for op in e.ops for name in _ASKED.findall(op.reason)}
            required |= set(e.inputs) if isinstance(e, NeedsValues) else set()
            result = {n: arrays[n] for n in required if n in arrays and n not in constants}
            if not result:
                small = {n: a for n, a in arrays.items() if a.size <= (SMALL if a.dtype.kind in "iub" else 1)}
                result = {n: a for n, a in small.items() if n not in constants}
            if not result:
                raise
            constants.update(result)


def run_interpreted(case: Case) -> None:
    """Interpret the imported graph on every data set and compare; raises on any difference."""
    for inputs, outputs in case.data_sets:
        named = zip((i.name for i in case.model.graph.input), inputs, strict=False)
        arrays = {n: as_array(v) for n, v in named if not isinstance(v, list) and v is not None}
        graph, _ = import_case(case, arrays)
        results = interpret(graph, [arrays[n.op.label] for n in graph.inputs])  # type: ignore[attr-defined]
        # a sequence arrives as its members
        flat = [o for output in outputs for o in (output if isinstance(output, list) else [output])]
        compare(list(results), [as_given(output) for output in flat], case)


def run_written(case: Case) -> None:
    """Compile the model as it is, run every data set and compare; raises on any difference."""
    model = ingot.compile(case.model, threads=2, cache=False)
    for inputs, outputs in case.data_sets:
        results = model(*(as_given(v) for v in inputs))
        compare(list(results) if isinstance(results, tuple) else [results], [as_given(v) for v in outputs], case)


def compare(got: object, want: object, case: Case) -> None:
    """Equal structure, dtypes, shapes and values within the case's tolerance."""
    if want is None:
        assert got is None, f"expected {want}, got {got}"
        return
    if isinstance(want, list):
        assert isinstance(got, list) and len(got) == len(want), f"expected {want}, got {got}"
        for g, w in zip(got, want, strict=True):
            compare(g, w, case)
        return
    got, want = np.asarray(got), np.asarray(want)
    if want.dtype.kind in "OUS":
        np.testing.assert_array_equal(got.astype(object), want.astype(object))
    else:
        _compare_numbers(got, want, case)


def _compare_numbers(got: np.ndarray, want: np.ndarray, case: Case) -> None:
    """Equal dtype, shape and values within the case's tolerance."""
    assert got.dtype == want.dtype, f"dtype: expected {want.dtype}, got {got.dtype}"
    assert got.shape == want.shape, f"shape: expected {want.shape}, got {got.shape}"
    # one unit in the last place of the result's type: the suite's tolerances are for float32
    rtol = max(case.rtol, {np.dtype(np.float16): 2**-9, np.dtype(ml_dtypes.bfloat16): 2**-6}.get(want.dtype, 0.0))
    if want.dtype.num >= 256:  # a type of ml_dtypes
        got, want = got.astype(np.float32), want.astype(np.float32)
    # a sum of terms as large as the largest result is exact to their last place, not to its own
    finite = np.abs(want[np.isfinite(want)]) if want.dtype.kind == "f" else np.zeros(0)
    atol = max(case.atol, float(finite.max(initial=0.0)) * 2**-23)
    np.testing.assert_allclose(got, want, rtol=rtol, atol=atol)
