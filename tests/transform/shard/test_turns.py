"""A device's graph in two halves of its batch."""

from __future__ import annotations

import numpy as np
import pytest

from ingot.ir.interp import interpret
from ingot.ir.node import Const, Graph
from ingot.transform.shard import turns
from ingot.transform.shard.graph import collectives, graphs_of, shard
from ingot.transform.shard.mesh import mesh_of
from ingot.transform.shard.simulate import run
from ingot.transform.shard.turns import in_turns
from tests.transform.shard.test_shard import MEGATRON, RNG, transformer, weight, x_of


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "MIN_BYTES", 1)


def parts(graph: Graph, **marks: tuple[str, int]) -> list[Graph]:
    return graphs_of(shard(graph, mesh_of({"tp": 2}), {**MEGATRON, **marks}))


@pytest.mark.usefixtures("small")
def test_halves_give_what_the_whole_gives_and_share_its_weights() -> None:
    graph, x = transformer(4, 7), RNG.standard_normal((4, 7, 32), np.float32)
    ranks = parts(graph)
    halved = [in_turns(g) for g in ranks]
    assert collectives(halved[0]) == {"all_reduce": 8}
    (want,) = interpret(graph, [x])
    for (got,), (expected,) in zip(run(halved, [[x]] * 2), run(ranks, [[x]] * 2), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    count = [sum(isinstance(n.op, Const) for n in g.nodes()) for g in (ranks[0], halved[0])]
    assert count[1] <= count[0]


@pytest.mark.usefixtures("small")
def test_an_odd_or_open_batch_stays_whole() -> None:
    for graph in (parts(transformer(3, 7))[0], parts(transformer(1, 8))[0]):
        assert in_turns(graph) is graph


@pytest.mark.usefixtures("small")
def test_a_sum_over_the_batch_stays_whole() -> None:
    from ingot import ops

    x = x_of(4, 8)
    y = ops.Reduce("sum", (0,))(ops.MatMul()(x, weight("0.q.weight", 8, 6)))
    graphs = graphs_of(shard(Graph((x,), (y,)), mesh_of({"tp": 2}), {"*.q.weight": ("tp", 0)}))[0]
    assert collectives(graphs)
    assert in_turns(graphs) is graphs


def test_small_exchanges_are_not_worth_it() -> None:
    graphs = parts(transformer(4, 7))[0]
    assert in_turns(graphs) is graphs
