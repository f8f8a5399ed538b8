"""ONNX's own node test suite as models with inputs and expected outputs, run through import and the interpreter or the
compiler."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import ml_dtypes
import numpy as np
import onnx
from onnx import numpy_helper

from ingot.frontends.onnx import import_onnx
from ingot.ir.interp import interpret
from ingot.ir.node import Graph
from ingot.pipeline.build import build_program
from ingot.runtime.executor import CompiledModel
from ingot.support.errors import NeedsValues, UnsupportedOpError
from ingot.targets.cpu.workers import host_features

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

        found = load_model_tests(kind="node")
    out: dict[str, Case] = {}
    for t in found:
        sets = tuple((tuple(i), tuple(o)) for i, o in t.data_sets)
        out[t.name] = Case(t.name, t.model, sets, t.rtol, t.atol)
    return out


def as_array(value: object) -> np.ndarray:
    """A data set's member as an array of numpy or ml_dtypes type."""
    if isinstance(value, onnx.TensorProto):
        return np.asarray(numpy_helper.to_array(value))
    return np.asarray(value)


_ASKED = re.compile(r"constants=\{'([^']+)'")


def import_case(case: Case, arrays: Mapping[str, np.ndarray]) -> tuple[Graph, bool]:
    """(graph, whether inputs had to be bound as constants: those that the importer asks for, then small integers)."""
    constants: dict[str, np.ndarray] = {}
    while True:
        try:
            return import_onnx(case.model, constants=constants), bool(constants)
        except UnsupportedOpError as e:
            asked = {name for op in e.ops for name in _ASKED.findall(op.reason)}
            asked |= set(e.inputs) if isinstance(e, NeedsValues) else set()
            found = {n: arrays[n] for n in asked if n in arrays and n not in constants}
            if not found and asked:
                small = {n: a for n, a in arrays.items() if a.size <= (SMALL if a.dtype.kind in "iub" else 1)}
                found = {n: a for n, a in small.items() if n not in constants}
            if not found:
                raise
            constants.update(found)


Run = Callable[[Graph, list[np.ndarray]], Sequence[object]]


def run_case(case: Case, run: Run = interpret) -> bool:
    """Run every data set and compare. Returns whether inputs had to be bound as constants; raises on any difference."""
    frozen = False
    for inputs, outputs in case.data_sets:
        named = zip((i.name for i in case.model.graph.input), inputs, strict=False)
        given = {n: as_array(v) for n, v in named if not isinstance(v, list) and v is not None}
        graph, bound = import_case(case, given)
        frozen |= bound
        results = run(graph, [given[n.op.label] for n in graph.inputs])  # type: ignore[attr-defined]
        # a sequence arrives as its members
        flat = [o for out in outputs for o in (out if isinstance(out, list) else [out])]
        assert len(results) == len(flat)
        for got, want in zip(results, flat, strict=True):
            compare(np.asarray(got), as_array(want), case)
    return frozen


def run_compiled(graph: Graph, arrays: list[np.ndarray]) -> Sequence[object]:
    """The compiled program's results."""
    model = CompiledModel(build_program(graph, host_features(), 2), threads=2)
    got = model(*arrays)
    return got if isinstance(got, tuple) else (got,)


def compare(got: np.ndarray, want: np.ndarray, case: Case) -> None:
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


def names() -> Iterator[str]:
    yield from sorted(cases())
