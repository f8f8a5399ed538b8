"""Random graphs: compiled = interpreted. A failing seed reproduces; `run_checked` tells where memory went wrong."""

from __future__ import annotations

import os

import ml_dtypes
import numpy as np
import pytest

from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Node
from ingot.ir.types import dtype_of
from ingot.pipeline.build import build_program
from ingot.runtime.executor import CompiledModel
from tests.conformance.checked import run_checked
from tests.conformance.dags import INEXACT, OTHER, STEPS, Steps, operands, random_graph
from tests.conformance.more_dags import MORE
from tests.conformance.targets import HOST, ISAS
from tests.schedule.compiled import slow

PRODUCTS = ("multiply", "dot_general", "convolution")


def values_of(graph: Graph, arrays: list[np.ndarray]) -> dict[Node, np.ndarray]:
    nodes = graph.nodes()
    with np.errstate(all="ignore"):
        return dict(zip(nodes, interpret(Graph(graph.inputs, tuple(nodes)), arrays), strict=True))


def magnitudes(values: dict[Node, np.ndarray]) -> dict[Node, float]:
    """The largest finite number among a value and all that it was computed from."""
    magnitude_of: dict[Node, float] = {}
    for n, v in values.items():
        magnitude = np.abs(v.astype(np.float64)) if dtype_of(v).is_float else np.zeros(0)
        magnitude_of[n] = max(
            [float(magnitude[np.isfinite(magnitude)].max(initial=0.0)), *(magnitude_of[i] for i in n.inputs)]
        )
    return magnitude_of


def roundings(values: dict[Node, np.ndarray]) -> dict[Node, float]:
    """How many roundings of the largest number a value may be off by: a few for each op on the way, about the root of
    the number of terms for a sum in another order (Higham and Mary, 2019), and for a product those of both factors."""
    bounds: dict[Node, float] = {}
    for n in values:
        inputs_ = [bounds[i] for i in n.inputs]
        before = sum(inputs_) if n.op.name in PRODUCTS else max(inputs_, default=0.0)
        terms = max((values[i].size for i in n.inputs), default=1) if n.op.name in INEXACT else 1
        bounds[n] = before + 4 * terms**0.5
    return bounds


def assert_agree(got: object, graph: Graph, arrays: list[np.ndarray], what: str) -> None:
    values = values_of(graph, arrays)
    largest, count = magnitudes(values), roundings(values)
    results = got if isinstance(got, tuple) else (got,)
    for i, (g, node) in enumerate(zip(results, graph.outputs, strict=True)):
        where, g, w = f"{what}, output {i}", np.asarray(g), values[node]
        assert (g.dtype, g.shape) == (w.dtype, w.shape), f"{where}: expected {w.dtype}{w.shape}, got {g.dtype}{g.shape}"
        if not dtype_of(w).is_float:
            np.testing.assert_array_equal(g, w, err_msg=where)
            continue
        room = count[node] * float(ml_dtypes.finfo(w.dtype).eps) * max(largest[node], 1e-3)
        np.testing.assert_allclose(g.astype(np.float64), w.astype(np.float64), rtol=0, atol=room, err_msg=where)


def agree(seed: int, dynamic: bool, length: int, isa: str = "native", vocabulary: Steps = STEPS) -> None:
    graph, sizes = random_graph(seed, dynamic, length, vocabulary)
    model = CompiledModel(build_program(graph, ISAS[isa], 2), threads=2)
    # a dynamic program is right for every size, and when it comes back to one
    shapes = [sizes, OTHER, sizes] if dynamic else [sizes]
    for at in shapes:
        arrays = operands(graph, at, seed)
        assert_agree(model(*arrays), graph, arrays, f"seed {seed} at {at}")


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("first", range(0, 16, 8))
def test_static_graphs(first: int, isa: str) -> None:
    for seed in range(first, first + 8):
        agree(seed, False, 14, isa)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("first", range(100, 116, 8))
def test_dynamic_graphs(first: int, isa: str) -> None:
    for seed in range(first, first + 8):
        agree(seed, True, 14, isa)


def firsts(seeds: str) -> range:
    """Of every eight. INGOT_TEST_SEEDS=5000:6000 takes others, and as many as time allows."""
    first, last = map(int, os.environ.get("INGOT_TEST_SEEDS", seeds).split(":"))
    return range(first, last, 8)


@pytest.mark.slow
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("first", firsts("1000:1048"))
def test_many_graphs(first: int, isa: str) -> None:
    for seed in range(first, first + 8):
        agree(seed, seed % 2 == 0, 10 + seed % 20, isa)


@pytest.mark.parametrize("first", [firsts("2000:2064")[0], *slow(*firsts("2000:2064")[1:])])
def test_graphs_of_more_ops(first: int) -> None:
    for seed in range(first, first + 8):
        agree(seed, seed % 3 > 0, 6 + seed % 20, list(ISAS)[seed % len(ISAS)], MORE)


@pytest.mark.parametrize("seed", range(8))
def test_kernels_stay_in_their_buffers(seed: int) -> None:
    graph, sizes = random_graph(seed, seed % 2 == 1, 3)
    arrays = operands(graph, sizes, seed)
    assert_agree(run_checked(graph, arrays), graph, arrays, f"seed {seed}")


def test_outputs_of_every_kind() -> None:
    """Inputs, constants, views and one value twice can all be outputs."""
    graph, sizes = random_graph(3, False, 10)
    values = graph.nodes()
    everything = Graph(graph.inputs, (*values, *values[:3], *graph.inputs))
    arrays = operands(everything, sizes, 3)
    model = CompiledModel(build_program(everything, HOST, 2), threads=2)
    assert_agree(model(*arrays), everything, arrays, "all values")
