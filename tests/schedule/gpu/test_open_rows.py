"""Products of an open number of rows: which kernels compute them, and levels that are widened for many, by their
meaning."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from ingot import ops
from ingot.ir.dims import DimLike, symbol
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input
from ingot.ir.types import TensorType, dtype_of
from ingot.runtime.bind import Binding
from tests.conformance.checked import planned, run_checked, run_planned
from tests.conformance.targets import H100
from tests.schedule.gpu.test_single_row import RNG, Weights, levels, plain

MAX_ROWS = 256  # of the first of two kernels


def graph(weights: Weights, rows: tuple[DimLike, ...], depth: int, columns: int, kind: type) -> Graph:
    x = Input("x", TensorType(dtype_of(np.empty(0, kind)), (*rows, depth)))()
    return Graph((x,), (ops.DotGeneral(((), ()), ((len(rows),), (1,)))(x, weights(depth, columns, kind)),))


def kernels(g: Graph) -> list[str]:
    return [s.kernel.rsplit("_", 1)[0] for s in planned(g, H100)[0].steps]


@pytest.mark.parametrize(("bits", "block", "depth", "columns"), [
    (4, 32, 96, 40), (4, 24, 96, 21), (4, 256, 256, 8), (8, 16, 48, 33), (8, 128, 128, 24),
])  # fmt: skip
@pytest.mark.parametrize("kind", [np.float16, ml_dtypes.bfloat16])
def test_levels_are_widened_for_many_rows(bits, block, depth, columns, kind):
    g = graph(levels(bits, block), (512,), depth, columns, kind)
    assert kernels(g) == ["widened", "product"]
    x = RNG.normal(size=(512, depth)).astype(kind)
    x[7] = np.nan
    x[8, 3] = np.inf
    got, want = (y[0].astype(np.float64) for y in (run_checked(g, [x], H100), interpret(g, [x])))
    assert (np.isfinite(got) == np.isfinite(want)).all()
    finite = np.isfinite(want).all(1)
    assert np.abs(got - want)[finite].max() < 4e-3 * np.abs(want[finite]).max()


@pytest.mark.parametrize(("weights", "names"), [
    (levels(4, 32), ["product", "widened", "product"]), (plain, ["product", "product"]),
])  # fmt: skip
def test_the_number_of_rows_decides_between_two_kernels(weights, names):
    g = graph(weights, (1, symbol("tokens")), 160, 520, np.float16)
    program, meanings = planned(g, H100)
    assert [s.kernel.rsplit("_", 1)[0] for s in program.steps] == names
    for rows in (1, 5, MAX_ROWS, MAX_ROWS + 1, 300):
        x = RNG.normal(size=(1, rows, 160)).astype(np.float16)
        got, want = (y[0].astype(np.float64) for y in (run_planned(program, meanings, [x]), interpret(g, [x])))
        assert np.abs(got - want).max() < 1e-3 * np.abs(want).max(), rows


def test_rows_of_a_batch_have_one_kernel():
    """A row's bits do not depend on how many there are."""
    assert kernels(graph(levels(4, 32), (symbol("rows"),), 160, 520, np.float16)) == ["product"]


def test_what_is_widened_takes_no_memory_for_few_rows():
    program, _ = planned(graph(levels(4, 32), (1, symbol("tokens")), 160, 520, np.float16), H100)
    few, many = (Binding(program, [(1, rows, 160)]).layout.nbytes for rows in (MAX_ROWS, MAX_ROWS + 1))
    assert few < 160 * 520 * 2 <= many
