"""Contractions as dot products, in parts, and with their operands changed round, against the interpreter."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ingot import ops
from ingot.ir.dims import symbol
from ingot.ir.layout import Layout
from ingot.ir.node import Graph, Node, const
from ingot.ir.types import f32
from ingot.ops import build
from ingot.schedule.axes import Contraction
from ingot.schedule.cpu.contraction.dot_products import as_dot_products
from ingot.schedule.cpu.contraction.split_k import split_k
from ingot.schedule.dimension_numbers import flat_rows, loops_of
from tests.schedule.compiled import MACHINES, NATIVE, check, compile_graph, inputs_like

MATMUL = ops.DotGeneral(((), ()), ((1,), (0,)))
QUERIES = ops.DotGeneral(((0,), (0,)), ((2,), (2,)))


def random(*shape: int, dtype: str = "f4") -> np.ndarray:
    x = np.random.default_rng(sum(shape)).standard_normal(shape) * (10 if dtype == "i1" else 1)
    return x.astype(dtype)


def kernels(graph: Graph, machine=NATIVE) -> list[str]:
    return [s.kernel for s in compile_graph(graph, machine).program.steps]


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: f"{m.vector_bits}")
@pytest.mark.parametrize("shape", [(1, 100, 1), (3, 65, 37), (37, 33, 1), (50, 64, 3), (9, 16, 5), (2, 1000, 130)])
def test_both_operands_along_the_reduction(shape: tuple[int, int, int], machine) -> None:
    """[b, m, k] . [b, n, k], its results in a following sum, whatever side has more of them."""
    m, kk, n = shape
    for batch in (1, 3):
        xs = [random(batch, m, kk), random(batch, n, kk), random(n)]
        q, keys, bias = inputs_like(xs)
        y = build.maximum(build.add(QUERIES(q, keys), bias), 0)
        graph = Graph((q, keys, bias), (y,))
        check(graph, xs, machine=machine)
    assert any(name.startswith("dots") for name in kernels(graph, machine)) or kk < 32


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: f"{m.vector_bits}")
@pytest.mark.parametrize("columns", [1, 2, 3, 5])
def test_constant_of_few_columns(columns: int, machine) -> None:
    """The last layer of a network: a matmul, and a convolution whose window has lines of its own."""
    x = random(29, 67)
    (node,) = inputs_like([x])
    graph = Graph((node,), (ops.Tanh()(MATMUL(node, const(random(67, columns)))),))
    check(graph, [x], machine=machine)
    assert any(name.startswith("dots") for name in kernels(graph, machine)) or columns > machine.lanes(f32) // 2
    image = random(2, 9, 11, 24)
    (node,) = inputs_like([image])
    window = ops.Convolution((1, 1), ((0, 0), (0, 0)), (1, 1), (1, 1), "NHWC", "HWIO", "NHWC")
    check(Graph((node,), (window(node, const(random(3, 3, 24, columns))),)), [image], machine=machine)


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: f"{m.vector_bits}")
def test_sizes_of_the_run(machine) -> None:
    """Rows, columns and the reduction may all be known at run time only."""
    m, n, kk = symbol("m"), symbol("n"), symbol("kk")
    dot = ops.DotGeneral(((), ()), ((1,), (1,)))
    for rows, columns, depth in ((1, 1, 1), (3, 20, 64), (7, 5, 35)):
        xs = [random(rows, depth), random(columns, depth)]
        a, b = inputs_like(xs, {0: (m, kk), 1: (n, kk)})
        check(Graph((a, b), (dot(a, b),)), xs, machine=machine)


@pytest.mark.parametrize("dtype", ["f2", "i1", "i4", "f8"])
def test_other_elements(dtype: str) -> None:
    xs = [random(2, 77, dtype=dtype), random(5, 77, dtype=dtype)]
    a, b = inputs_like(xs)
    check(Graph((a, b), (ops.DotGeneral(((), ()), ((1,), (1,)))(a, b),)), xs, rtol=1e-3 if dtype == "f2" else 4e-6)


def test_what_is_not_finite_stays_in_its_results() -> None:
    """Neither lanes beyond the end of the reduction nor columns beyond the last one take part."""
    xs = [random(2, 37), random(5, 37)]
    xs[0][0, 3], xs[1][4, 36], xs[1][2, 0] = np.inf, np.nan, -np.inf
    a, b = inputs_like(xs)
    check(Graph((a, b), (ops.DotGeneral(((), ()), ((1,), (1,)))(a, b),)), xs)


LONG = [(1, 210000, 1), (4, 60000, 4), (16, 30000, 16), (1, 65536, 10), (40, 40960, 24)]


@pytest.mark.parametrize("shape", LONG)
@pytest.mark.parametrize("constant", [False, True])
def test_long_reductions_in_parts(shape: tuple[int, int, int], constant: bool) -> None:
    m, kk, n = shape
    xs = [random(m, kk), random(kk, n)]
    a, b = inputs_like(xs)
    inputs: list[Node] = [a] if constant else [a, b]
    y = build.add(MATMUL(a, const(xs[1]) if constant else b), 1.0)
    graph = Graph(tuple(inputs), (y,))
    check(graph, xs[: len(inputs)])
    assert len(kernels(graph)) > 1


def test_where_cutting_a_reduction_does_not_pay() -> None:
    def parts(m: int, kk: int, n: int, machine=NATIVE):
        return split_k(MATMUL(*inputs_like([np.empty((m, kk), "f4"), np.empty((kk, n), "f4")])), machine)

    assert parts(1, 10007, 1) is None  # a prime
    assert parts(128, 3072, 768) is None and parts(1, 4096, 4096) is None and parts(4, 512, 4) is None
    assert parts(4, 60000, 4) is not None and parts(4, 60000, 4, replace(NATIVE, threads=1)) is None


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: f"{m.vector_bits}")
@pytest.mark.parametrize("columns", [1, 3])
def test_rows_that_lie_side_by_side(columns: int, machine) -> None:
    """[k, m] seen as [m, k]: read as a B is, results back in their order."""
    xs = [random(2, 70, 130), random(2, 70, columns)]
    a, b = inputs_like(xs)
    y = ops.DotGeneral(((0,), (0,)), ((1,), (1,)))(a, b)
    check(Graph((a, b), (build.mul(y, 2.0),)), xs, machine=machine)


def test_full_vectors_of_columns_are_no_dot_products() -> None:
    node = MATMUL(*inputs_like([np.empty((128, 768), "f4"), np.empty((768, 64), "f4")]))
    loops = flat_rows(loops_of(node, *(Layout.contiguous(x.shape) for x in node.inputs)))
    c = Contraction(loops.batch, loops.rows, loops.cols, loops.reduce, f32, f32, f32)
    assert as_dot_products(c, loops, (1, 0), NATIVE, 0.9) is None


def test_parts_whose_sums_are_read_elsewhere() -> None:
    """A reshape and a broadcast between the sums and what is added to them."""
    xs = [random(4, 60000), random(60000, 4), random(4)]
    a, b, scale = inputs_like(xs)
    y = build.reshape(MATMUL(a, b), (2, 2, 4))
    y = ops.Transpose((1, 0, 2))(build.add(build.mul(y, scale), 1.0))
    check(Graph((a, b, scale), (y,)), xs)


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: f"{m.vector_bits}")
def test_windows_are_rows_in_place(machine) -> None:
    """Frames of a waveform that overlap: the rows of a product, which no kernel copies."""
    wave, weights = random(2, 500), random(40, 24)
    x, w = inputs_like([wave, weights])
    frames = ops.Windows(1, 40, 16)(x)
    graph = Graph((x, w), (ops.DotGeneral(((), ()), ((2,), (0,)))(frames, w),))
    check(graph, [wave, weights], machine=machine)
    assert len(kernels(graph, machine)) == 1
    image = random(2, 9, 7, 5)
    (x,) = inputs_like([image])
    patches = ops.Windows(3, 3)(ops.Windows(1, 2, 2, 2)(x))
    check(Graph((x,), (build.reshape(build.mul(patches, 2.0), (2, -1, 15)),)), [image], machine=machine)
