"""Sums of many terms: rounding errors of one sign, which add up where all terms are alike, stay those of the parts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from ingot import ops
from ingot.ir.dims import symbol
from ingot.ir.node import Graph, Node, const
from ingot.ops import build
from ingot.schedule.cpu.blocked_sums import MAX_TERMS
from tests.schedule.compiled import MACHINES, compile_graph, inputs_like

MATMUL = ops.DotGeneral(((), ()), ((1,), (0,)))
WINDOW = ops.Convolution((1, 1), ((0, 0), (0, 0)), (1, 1), (1, 1), "NHWC", "HWIO", "NHWC")
VALUE = np.float32(0.1)


def full(*shape: int) -> np.ndarray:
    return np.full(shape, VALUE)


def check(ins: Sequence[Node], y: Node, xs: Sequence[np.ndarray], expected: float, terms: int, machine) -> None:
    """All results, within what parts of `MOST` terms, or of the root of all, may err by."""
    got = compile_graph(Graph(tuple(ins), (y,)), machine)(*xs)
    limit = max(MAX_TERMS, int(np.sqrt(terms)))
    assert abs(np.asarray(got, np.float64) / expected - 1).max() <= 2.0**-24 * (limit + terms / limit)


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: f"{m.vector_bits}")
@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize(("shape", "dims"), [
    ((3_000_001,), (0,)), ((3, 1_000_000), (1,)), ((300_000, 20), (0,)), ((2, 100_000, 50), (1,)),
    ((9, 700, 60, 30), (1, 2)),
])  # fmt: skip
def test_reductions(shape: tuple[int, ...], dims: tuple[int, ...], symbolic: bool, machine) -> None:
    x = full(*shape)
    sizes = [symbol(f"n{d}") if symbolic and d in dims else n for d, n in enumerate(shape)]
    (node,) = inputs_like([x], {0: sizes})
    terms = int(np.prod([shape[d] for d in dims]))
    check([node], build.reduce("sum", node, dims), [x], float(VALUE) * terms, terms, machine)


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: f"{m.vector_bits}")
@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize(("m", "depth", "n"), [(1, 1_000_000, 1), (1, 100_001, 40), (4, 300_000, 4), (33, 60_001, 48)])
def test_products(m: int, depth: int, n: int, symbolic: bool, machine) -> None:
    xs = [full(m, depth), full(depth, n)]
    sizes = {0: (m, symbol("k")), 1: (symbol("k"), n)} if symbolic else {}
    a, b = inputs_like(xs, sizes)
    check([a, b], MATMUL(a, b), xs, float(VALUE) ** 2 * depth, depth, machine)


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: f"{m.vector_bits}")
def test_constant_weights(machine) -> None:
    x = full(33, 60_001)
    (a,) = inputs_like([x])
    check([a], MATMUL(a, const(full(60_001, 40))), [x], float(VALUE) ** 2 * x.shape[1], x.shape[1], machine)


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: f"{m.vector_bits}")
def test_windows(machine) -> None:
    """Parts of several lines of a window, and of a part of one line."""
    for channels in (100, 1500):
        x = full(1, 9, 9, channels)
        (a,) = inputs_like([x])
        y = WINDOW(a, const(full(7, 7, channels, 16)))
        check([a], y, [x], float(VALUE) ** 2 * 49 * channels, 49 * channels, machine)


def test_sums_of_nothing() -> None:
    """A row of a symbolic and an empty dimension has no parts."""
    x = np.zeros((5, 0, 1), np.float32)
    (node,) = inputs_like([x], {0: (symbol("n"), 0, 1)})
    got = compile_graph(Graph((node,), (build.minimum(build.reduce("sum", node, (0, 1, 2)), 0.5),)))(x)
    assert np.asarray(got) == 0
