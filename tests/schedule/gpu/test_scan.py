"""Cumulative folds by several programs a line: all parts, turns and directions, checked by the interpreter."""

from __future__ import annotations

import numpy as np
import pytest

from ingot.ir.node import Graph, Input
from ingot.ir.types import Shape, TensorType, dtype_of, f32, static_shape
from ingot.ops import CumReduce
from ingot.schedule.gpu.blocks import Group
from ingot.schedule.gpu.machine import H100
from ingot.schedule.gpu.scan import _Scan
from tests.conformance.checked import run_checked

LONG = 3000


def checked(op: CumReduce, x: np.ndarray) -> None:
    node = Input("x", TensorType(dtype_of(x), x.shape))()
    (got,) = run_checked(Graph((node,), (op(node),)), [x], "cuda:sm_90a")
    np.testing.assert_array_equal(got, op.reference(x))


def scan(op: CumReduce, shape: Shape) -> _Scan:
    x = Input("x", TensorType(f32, shape))()
    graph = Graph((x,), (op(x),))
    return _Scan.of(graph.outputs[0], Group.of(graph, (), ()), H100)


@pytest.mark.parametrize("kind", ["sum", "prod", "max", "min"])
@pytest.mark.parametrize(("reverse", "exclusive"), [(False, False), (True, False), (False, True), (True, True)])
def test_parts_of_a_long_line(kind: str, reverse: bool, exclusive: bool) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(-3, 4, LONG).astype(np.int64 if reverse else np.float32)
    x = np.where(rng.random(LONG) < 0.98, np.ones_like(x), x) if kind == "prod" else x
    checked(CumReduce(kind, 0, reverse, exclusive), x)


@pytest.mark.parametrize("shape", [(300, 5), (3, 200, 3), (700, 40)])
def test_lines_side_by_side(shape: Shape) -> None:
    x = np.random.default_rng(0).integers(-9, 9, static_shape(shape)).astype(np.float32)
    checked(CumReduce("sum", len(shape) - 2), x)


@pytest.mark.parametrize("kind", ["sum", "max", "min"])
def test_infinities_and_nan_reach_what_stands_behind_them(kind: str) -> None:
    x = np.ones(2500, np.float32)
    x[[1100, 1500, 2100]] = np.inf, -np.inf, np.nan
    checked(CumReduce(kind, 0), x)


def test_narrow_types_are_folded_as_their_accumulators() -> None:
    rng = np.random.default_rng(0)
    checked(CumReduce("sum", 0), rng.integers(-9, 9, 2500).astype(np.float16))
    checked(CumReduce("sum", 0), rng.integers(-9, 9, 2500).astype(np.int8))
    checked(CumReduce("max", 0), rng.random(1500) > 0.999)


def test_lines_are_cut_where_there_are_few() -> None:
    assert scan(CumReduce("sum", 0), (1 << 20,)).parts == 1024
    assert scan(CumReduce("sum", 1), (64, 16384)).parts == 8
    assert scan(CumReduce("sum", 1), (4096, 1024)).parts == 1
    assert scan(CumReduce("sum", 0), (512,)).parts == 1
    assert scan(CumReduce("sum", 0), (4096, 1024)).axis == 0
