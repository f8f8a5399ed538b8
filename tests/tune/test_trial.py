"""Real kernels under measured choices: they are used where they mean something, and give the same results."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import ingot
from ingot import ops
from ingot.debug.build import build
from ingot.ir.dims import DimLike, symbol
from ingot.ir.node import Graph, Input, Node
from ingot.ir.types import TensorType, f32
from ingot.ops.build import const
from ingot.pipeline import tuning
from ingot.runtime.executor import CompiledModel
from ingot.schedule.choice import Choice, Direct, Site, Winograd
from ingot.targets.cpu.workers import host_features
from ingot.tune.generations import Generations
from ingot.tune.run import tune
from ingot.tune.search import Finding, Search
from ingot.tune.trial import Workbench
from tests.debug import models

RANDOM = np.random.default_rng(0)


def weights(*shape: int) -> Node:
    return const(RANDOM.standard_normal(shape).astype(np.float32) / 8)


def matmul(x: Node, w: Node) -> Node:
    return ops.DotGeneral(((), ()), ((x.type.rank - 1,), (0,)), f32)(x, w)


def relu(x: Node) -> Node:
    return ops.Relu()(x)


def chain(rows: DimLike = 40, columns: int = 70, depth: int = 24) -> Graph:
    """Two layers of the same shape and one of another."""
    x = Input("x", TensorType(f32, (rows, depth)))()
    y = relu(matmul(x, weights(depth, columns)))
    y = matmul(relu(matmul(y, weights(columns, depth))), weights(depth, columns))
    return Graph((x,), (relu(y),))


def convolution(size: int = 14, channels: int = 32) -> Graph:
    x = Input("x", TensorType(f32, (1, channels, size, size)))()
    return Graph((x,), (ops.Conv((1, 1), ((1, 1), (1, 1)), (1, 1), 1)(x, weights(channels, channels, 3, 3)),))


def feeds(graph: Graph, **sizes: int) -> dict[str, np.ndarray]:
    results = {}
    for n in graph.inputs:
        shape = tuple(d if isinstance(d, int) else sizes[str(d)] for d in n.shape)
        results[n.op.label] = RANDOM.standard_normal(shape).astype(np.float32)  # type: ignore[attr-defined]
    return results


def bench(graph: Graph, **sizes: int) -> Workbench:
    return Workbench(graph, feeds(graph, **sizes), 2)


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A database and a cache of the test's own, and nothing shipped."""
    path = tmp_path / "own.jsonl"
    monkeypatch.setenv("INGOT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("INGOT_TUNING", str(path))
    monkeypatch.setattr(tuning, "SHIPPED", tmp_path / "none")
    return path


def add(path: Path, site: Site, choice: Choice, baseline: Choice | None = None) -> None:
    machine = tuning.machine_name(host_features(), 2)
    tuning.add(path, [tuning.Entry(machine, site.key, choice, baseline or site.untuned, 1e-6, 2e-6)])


def chunks(graph: Graph) -> list[int]:
    """Chunks of each step, as compiling does it."""
    steps = build(graph, threads=2).program.steps
    return [s.chunks for s in steps if isinstance(s.chunks, int)]


def test_equal_layers_are_one_site():
    spots = bench(chain()).spots
    assert sorted(s.count for s in spots) == [1, 2]
    assert sum(s.share for s in spots) == pytest.approx(1.0, abs=0.2)


@pytest.mark.slow
def test_every_choice_gives_the_same_results():
    for graph, sizes in ((chain(), {}), (chain(symbol("n")), {"n": 37}), (convolution(), {})):
        work = bench(graph, **sizes)
        visited = set[str]()
        for i in range(30):
            choices = {}
            for spot in work.spots:
                ranked = work.candidates(spot.site)
                results = [*ranked, *work.refine(spot.site, ranked[0]), *work.refine(spot.site, spot.site.untuned)]
                if i < len(results):
                    choices[spot.site.key] = results[i]
                    visited.add(results[i].kind)
            assert work.disagreeing(choices) == {}
        assert ("winograd" in visited) == (graph.inputs[0].type.rank == 4)


def test_a_measured_choice_changes_the_kernels_and_not_the_results(database: Path):
    graph = chain()
    x = feeds(graph)["x"]
    before, expected = chunks(graph), build(graph, threads=2).model()(x)
    site = bench(graph).spots[0].site
    assert isinstance(site.untuned, Direct)
    other = replace(site.untuned, lines=1, width=3, vectors=1, panels=1, tiles=2, blocks=1, prefetch=0)
    add(database, site, other)
    assert chunks(graph) != before
    np.testing.assert_allclose(build(graph, threads=2).model()(x), expected, rtol=1e-5, atol=1e-5)


def test_what_was_measured_against_another_choice_means_nothing(database: Path):
    graph = chain()
    before, site = chunks(graph), bench(graph).spots[0].site
    assert isinstance(site.untuned, Direct)
    other = replace(site.untuned, width=3, vectors=1, panels=1, tiles=2, blocks=1, prefetch=0)
    add(database, site, other, baseline=replace(site.untuned, prefetch=site.untuned.prefetch + 1))
    assert chunks(graph) == before


@pytest.mark.parametrize(
    "changes",
    [
        {"width": 0}, {"width": 1000}, {"vectors": 0}, {"vectors": 31}, {"lines": 2}, {"panels": 0}, {"panels": 1000},
        {"tiles": 0}, {"tiles": 1 << 20}, {"entries": 0}, {"entries": 9}, {"blocks": 0}, {"blocks": 7},
        {"prefetch": 1000},
    ],
)  # fmt: skip
def test_a_choice_that_is_none_here_is_ignored(database: Path, changes: dict[str, int]):
    graph = chain()
    before, site = chunks(graph), bench(graph).spots[0].site
    assert isinstance(site.untuned, Direct)
    hostile = replace(site.untuned, **changes)
    assert not site.admits(hostile)
    add(database, site, hostile)
    assert chunks(graph) == before
    add(database, site, Winograd(4, 16, 64))
    assert chunks(graph) == before


def test_entries_that_mean_nothing_do_not_stop_the_tuner(database: Path):
    graph = chain()
    for spot in bench(graph).spots:
        assert isinstance(spot.site.untuned, Direct)
        add(database, spot.site, replace(spot.site.untuned, width=1000))
    assert tune(graph, feeds(graph), threads=2, budget=0.1, database=database).seconds > 0


def keys(graph: Graph) -> set[str]:
    return {launch.site.key for launch in build(graph, threads=2).launches if launch.site is not None}


def test_the_key_tells_apart_what_matters():
    x = Input("x", TensorType(f32, (40, 24)))()
    w = weights(24, 70)
    plain = matmul(x, w)
    residual = Input("r", TensorType(f32, (40, 70)))()
    strided = ops.Slice((0, 0), (40, 24), (1, 1))(wide := Input("x", TensorType(f32, (40, 48)))())
    runtime = Input("w", TensorType(f32, (24, 70)))()
    graphs = [
        Graph((x,), (plain,)),
        Graph((x,), (relu(plain),)),
        Graph((x, residual), (ops.Add()(plain, residual),)),
        Graph((wide,), (matmul(strided, w),)),
        Graph((x, runtime), (matmul(x, runtime),)),
        Graph((x,), (matmul(x, weights(24, 71)),)),
        Graph((y := Input("x", TensorType(f32, (symbol("n"), 24)))(),), (matmul(y, w),)),
    ]
    results = [frozenset(keys(g)) for g in graphs]
    assert len(set(results)) == len(results)
    # and nothing else: names and weights do not matter
    other = Input("other", TensorType(f32, (40, 24)))()
    assert keys(Graph((other,), (matmul(other, weights(24, 70)),))) == results[0]


def test_tuning_a_model(database: Path, monkeypatch: pytest.MonkeyPatch):
    """From end to end: a short search writes entries that compiling takes, and results stay."""
    ticks = itertools.count(0.0, 0.02)  # as many steps on a busy machine as on a quiet one
    monkeypatch.setattr("ingot.tune.run.time", SimpleNamespace(monotonic=lambda: next(ticks)))
    graph = chain()
    inputs = feeds(graph)
    expected = build(graph, threads=2).model()(**inputs)
    facts: list[str] = []
    report = tune(
        graph, inputs, threads=2, budget=0.4, database=database, watch=lambda text, seconds: facts.append(text)
    )
    assert report.wrong_results == () and len(report.rows) == 2 and report.seconds > 0
    assert facts[0] == "compile" and len(facts) > 3
    for row in report.rows:
        assert row.state in ("tuned", "untuned is best", "open") and row.gain >= 1
    after = build(graph, threads=2).model()
    np.testing.assert_allclose(after(**inputs), expected, rtol=1e-5, atol=1e-5)
    finished = [r for r in report.rows if r.state != "open"]
    assert len(tuning.read(database)) == len(finished)
    retuned = tune(graph, inputs, threads=2, budget=0.2, database=database)
    assert [r.state for r in retuned.rows].count("known") == len(finished)


def test_findings_that_make_calls_slower_are_taken_back(database: Path, monkeypatch: pytest.MonkeyPatch):
    class Finds(Search):
        def run(self, budget: float) -> list[Finding]:
            result = [Finding(s, self.bench.candidates(s.site)[0], 1e-6, 2e-6) for s in self.bench.spots]
            self.write(result)
            return result

    graph = chain()
    monkeypatch.setattr("ingot.tune.run.Search", Finds)
    for seconds, is_kept in ((0.9, True), (1.2, False)):
        pairs = np.array([[1.0, seconds]] * 3)
        monkeypatch.setattr(Workbench, "latency", lambda self, choices, budget, pairs=pairs: pairs)
        report = tune(graph, feeds(graph), threads=2, budget=1.0, database=database, again=True)
        assert report.withdrawn_count == (0 if is_kept else 2)
        entries = [e for e in tuning.read(database).values() if isinstance(e, tuning.Entry)]
        assert entries and all((e.choice != e.baseline) == is_kept for e in entries)


def test_a_tuned_recompile_is_not_answered_from_an_old_cache_entry(database: Path, tmp_path: Path):
    path = models.save(models.classifier(), tmp_path / "m.onnx")
    first = ingot.compile(path, threads=2)
    assert isinstance(first, CompiledModel)
    folder = tmp_path / "cache"
    entries = len(list(folder.rglob("*.entry")))
    ingot.compile(path, threads=2)
    assert len(list(folder.rglob("*.entry"))) == entries
    add(database, bench(chain()).spots[0].site, Winograd(4, 16, 64))
    ingot.compile(path, threads=2)
    assert len(list(folder.rglob("*.entry"))) == entries + 1


def test_kept_values_last_two_turns_or_forever():
    built_names: list[str] = []

    def get(names: Sequence[str]) -> None:
        for name in names:
            generations.get(name, lambda name=name: built_names.append(name))

    generations: Generations[None] = Generations()
    get("ab")
    generations.advance(pin=True)
    get("c")
    generations.advance()
    get("ac")
    generations.advance()
    generations.advance()
    get("abc")
    assert built_names == ["a", "b", "c", "c"]
