"""Tuning for GPUs without one: candidates are timed by a stand-in, and computed by the meaning of their kernels."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ingot import ops
from ingot.ir.node import Graph, Input, Node
from ingot.ir.types import TensorType, f16, static_shape, u8
from ingot.ops.build import const
from ingot.pipeline.build import build_program
from ingot.pipeline.target import features_of
from ingot.plan.link import input_label
from ingot.runtime.artifact import load, save
from ingot.schedule.choice import Choice, Flash, Measured, Patch, Tiling, decide
from ingot.support.errors import ArtifactError, DeviceError
from ingot.targets.cpu.workers import host_features
from ingot.tune import gpu_runner
from ingot.tune.gpu import GpuBench
from ingot.tune.run import tune
from ingot.tune.search import Finding, Search
from ingot.tune.watched import Watched
from tests.conformance.checked import run_planned

RANDOM = np.random.default_rng(0)


def weights(*shape: int) -> Node:
    return const(RANDOM.standard_normal(shape).astype(np.float16) / 8)


def product(rows: int = 40, depth: int = 96, columns: int = 70) -> Graph:
    x = Input("x", TensorType(f16, (rows, depth)))()
    y = ops.DotGeneral(((), ()), ((1,), (0,)), f16)(x, weights(depth, columns))
    return Graph((x,), (ops.Relu()(y),))


def attention() -> Graph:
    q, k, v = (Input(name, TensorType(f16, (1, 2, rows, 16)))() for name, rows in (("q", 20), ("k", 40), ("v", 40)))
    return Graph((q, k, v), (ops.Attention(scale=0.25)(q, k, v),))


def depthwise() -> Graph:
    x = Input("x", TensorType(f16, (1, 32, 9, 9)))()
    return Graph((x,), (ops.Conv((1, 1), ((1, 1), (1, 1)), (1, 1), 32)(x, weights(32, 1, 3, 3)),))


class StandIn:
    """For the process with the GPU. seconds: of a kernel by its choice's place among those that were asked for."""

    def __init__(self, hanging: Choice | None = None) -> None:
        self.bench: GpuBench | None = None
        self.hanging, self.compared = hanging, 0

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        program = load(Path(request["program"]))
        if self.bench is None or request.get("keep"):
            return {"seconds": [[1.0] * len(program.steps)] * request["runs"]}
        kernels, attempts = {}, {}
        for (_, choice), (low, _) in self.bench._kernels.items():
            for step in low.steps:
                kernels[step.kernel.name], attempts[step.kernel.name] = step.kernel, choice
        if any(attempts.get(s.kernel) == self.hanging for s in program.steps):
            raise DeviceError("a measurement on the GPU", got="its process was killed after 30 s")
        if "compare" not in request:
            return {"seconds": [[_seconds(attempts.get(s.kernel)) for s in program.steps]]}
        self.compared += 1
        arrays = [np.resize(gpu_runner._random(kind), nbytes) for nbytes, kind in request["inputs"]]
        results = run_planned(program, kernels, arrays)
        values = [gpu_runner._view(x, place) for x, place in zip(results, request["compare"] * 2, strict=True)]
        half = len(values) // 2
        close = [np.allclose(a, b, atol=1e-3, rtol=1e-2) for a, b in zip(values[:half], values[half:], strict=True)]
        assert all(np.ptp(x.astype(float)) > 0 for x in values), "results that do not vary prove nothing"
        return {"wrong": "" if all(close) else "they differ"}

    def close(self) -> None: ...


def _seconds(choice: Choice | None) -> float:
    """More warps are faster here; a copy takes long, and must not count."""
    return 100.0 if choice is None else 1.0 / choice.warps  # type: ignore[attr-defined]


def bench(graph: Graph, monkeypatch: pytest.MonkeyPatch, hanging: Choice | None = None) -> GpuBench:
    stand_in = StandIn(hanging)
    monkeypatch.setattr("ingot.tune.gpu.Watched", lambda module: stand_in)
    feeds = {
        str(input_label(n)): RANDOM.standard_normal(static_shape(n.shape)).astype(np.float16) for n in graph.inputs
    }
    gpu_bench = GpuBench(graph, feeds, features_of("null:cuda:sm_90a"))
    stand_in.bench = gpu_bench
    return gpu_bench


KINDS = [(product(), Tiling), (product(1), Tiling), (attention(), Flash), (depthwise(), Patch)]


@pytest.mark.parametrize(("graph", "kind"), KINDS)
def test_every_candidate_computes_what_the_models_choice_does(graph, kind, monkeypatch) -> None:
    trials = bench(graph, monkeypatch)
    (spot,) = trials.spots
    assert isinstance(spot.site.untuned, kind)
    candidates = [*dict.fromkeys([*trials.candidates(spot.site), *trials.refine(spot.site, spot.site.untuned)])]
    assert len(candidates) >= 3
    assert all(spot.site.admits(c) for c in (spot.site.untuned, *candidates))
    wrong = {str(c): result for c in candidates if (result := trials.disagreeing({spot.site.key: c}))}
    assert not wrong and not trials.failures


def search(trials: GpuBench) -> tuple[list[Finding], Search]:
    now = iter(range(10**6))
    result = Search(trials, {}, lambda findings: None, lambda: float(next(now)), lambda text, seconds: None)
    return result.run(10**5), result


def test_a_search_finds_what_is_fastest_and_leaves_out_what_hangs(monkeypatch) -> None:
    site = bench(product(), monkeypatch).spots[0].site
    first = site.untuned
    assert isinstance(first, Tiling) and first.warps == 4
    hanging = site.candidates()[0]
    trials = bench(product(), monkeypatch, hanging)
    (finding,), result = search(trials)
    assert isinstance(finding.choice, Tiling) and finding.choice.warps == 8 and finding.choice != hanging
    assert not result.wrong and any("killed after 30 s" in why for why in trials.failures.values())
    assert finding.untuned_seconds / finding.seconds == pytest.approx(2)
    # which compiling then takes, as long as the model's own choice is what it was better than
    assert decide(site, {site.key: Measured(finding.choice, first)}) == finding.choice
    assert decide(site, {site.key: Measured(finding.choice, hanging)}) == first


def test_disturbed_runs_are_not_what_a_model_takes(monkeypatch) -> None:
    """Another process may have the GPU for some of them, of the tuned or the untuned program alone."""
    trials = bench(product(), monkeypatch)
    durations = iter([3.0, 2.0, 3.0, 9.0, 9.0, 2.0, 9.0, 9.0, *[3.1, 2.1] * 4])
    monkeypatch.setattr(trials, "_model_seconds", lambda name, count: np.full((count, 1), next(durations)))
    choices = {s.site.key: s.site.untuned for s in trials.spots}
    assert trials.latency(choices, 0.0).tolist() == [[3.0, 2.0], *[[3.1, 2.1]] * 4]


def test_the_watchdog_kills_what_hangs_and_begins_anew() -> None:
    watched = Watched("tests.tune.hangs", 2.0)
    one = watched.ask({"what": "answer"})
    assert watched.ask({"what": "answer"}) == one
    with pytest.raises(DeviceError, match="killed after 2 s"):
        watched.ask({"what": "hang"})
    assert watched.ask({"what": "answer"}) != one
    with pytest.raises(DeviceError, match="ended with 3"):
        watched.ask({"what": "end"})
    with pytest.raises(DeviceError, match="no such thing"):
        watched.ask({"what": "else"})
    watched.close()


def test_the_process_times_and_compares_programs(tmp_path) -> None:
    x = Input("x", TensorType(u8, (64,)))()
    results = [ops.Add()(x, const(np.full(64, least, np.uint8))) for least in (7, 7, 9)]
    for name, chosen in (("same", results[:2]), ("other", results[1:])):
        save(build_program(Graph((x,), tuple(chosen)), host_features(), 1), tmp_path / name)
    request = {"inputs": [[64, "bytes"]], "runs": 2}
    seconds = gpu_runner.answer({**request, "program": str(tmp_path / "same")})["seconds"]
    assert len(seconds) == 2 and all(t >= 0 for run in seconds for t in run)
    compared = {**request, "compare": [["u8", [60], [1], 2]]}
    assert gpu_runner.answer({**compared, "program": str(tmp_path / "same")}) == {"wrong": ""}
    assert gpu_runner.answer({**compared, "program": str(tmp_path / "other")})["wrong"]


def test_a_machine_without_the_gpu_says_so_before_it_compiles(tmp_path) -> None:
    graph = product()
    with pytest.raises(ArtifactError, match="sm_90a"):
        tune(graph, {}, threads=1, budget=1, database=tmp_path / "t", target="cuda:sm_90a")
