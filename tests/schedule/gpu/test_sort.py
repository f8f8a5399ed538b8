"""Lines that are several runs long: merged in order, cut where few elements are kept, of open length; checked by the
interpreter."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from ingot.ir.dims import symbol
from ingot.ir.node import Graph, Input
from ingot.ir.types import Shape, TensorType, dtype_of
from ingot.ops import Sort
from tests.conformance.checked import planned, run_checked
from tests.conformance.targets import H100

RNG = np.random.default_rng(0)


def floats(*shape: int) -> np.ndarray:
    """With many ties, and values that compare in their own way."""
    x = RNG.integers(-40, 40, shape).astype(np.float32)
    for period, value in ((37, np.nan), (41, -0.0), (43, np.inf), (47, -np.inf)):
        x.reshape(-1)[::period] = value
    return x


def checked(op: Sort, *xs: np.ndarray, shape: Shape | None = None) -> None:
    nodes = tuple(Input(f"x{i}", TensorType(dtype_of(x), shape or x.shape))() for i, x in enumerate(xs))
    results: Sequence = op(*nodes).results
    got = run_checked(Graph(nodes, tuple(results)), xs, H100)
    want = op.reference(*xs)
    for a, b in zip(got, want if isinstance(want, tuple) else (want,), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("length", [192, 257, 320, 2049])
def test_runs_are_merged_and_ties_keep_their_order(length: int, descending: bool) -> None:
    checked(Sort(0, descending), floats(length), np.arange(length))


@pytest.mark.parametrize("keep", [1, 300])
def test_only_what_is_kept_is_merged(keep: int) -> None:
    checked(Sort(0, True, count=keep), floats(2600), np.arange(2600))


def test_lines_along_any_dimension() -> None:
    checked(Sort(1, count=270), floats(3, 520), np.arange(1560).reshape(3, 520))
    checked(Sort(0), floats(520, 3))


def test_several_keys_and_other_types() -> None:
    checked(Sort(0, True, True, 2), RNG.integers(0, 5, 600), floats(600), np.arange(600))
    checked(Sort(0), RNG.random(600) > 0.5, np.arange(600))
    checked(Sort(0), RNG.integers(0, 255, 600).astype(np.uint8))
    checked(Sort(0), floats(600).astype(np.float16))
    checked(Sort(0), RNG.integers(-(1 << 62), 1 << 62, 600))


@pytest.mark.parametrize("descending", [False, True])
def test_keys_are_integers_in_the_order_of_the_values(descending: bool) -> None:
    for dtype in (np.int64, np.uint64, np.uint32, np.int8):
        least, largest = np.iinfo(dtype).min, np.iinfo(dtype).max
        checked(Sort(0, descending), np.array([largest, 0, least, 1, largest - 1, least + 1], dtype))
    for dtype in (np.float32, np.float64):
        values = [0.0, -0.0, -1, np.nan, np.inf, -np.inf, -np.nan, 1e-45, -1e-45, 0.0]
        checked(Sort(0, descending), np.array(values, dtype), np.arange(10))


@pytest.mark.parametrize("length", [1, 300])
def test_lines_of_open_length(length: int) -> None:
    checked(Sort(1), floats(2, length), shape=(2, symbol("n")))


def test_a_vocabulary_is_merged_three_times() -> None:
    x = Input("x", TensorType(dtype_of(floats(1)), (1, 128256)))()
    program, _ = planned(Graph((x,), (Sort(1, True, count=50)(x),)), H100)
    assert len(program.steps) == 5
