"""The search, end to end: what wins is stored, compiled in, explained; what does not is not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ingot import ops
from ingot.debug.build import build
from ingot.debug.explain import explain
from ingot.ir.dims import symbol
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input, Node, const
from ingot.ir.types import TensorType, f32
from ingot.pipeline import tuning
from ingot.support.errors import InputError
from ingot.tune.rewrites import run
from ingot.tune.rewrites.run import find_rewrites
from tests.passes.core.rewrites.test_equality import dot

RANDOM = np.random.default_rng(0)


def weights(*shape: int) -> Node:
    return const((RANDOM.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32))


def adapted() -> Graph:
    """A layer of which an adapter of a high rank costs more than the layer itself."""
    x = Input("x", TensorType(f32, (64, 128)))()
    low = dot(dot(x, weights(128, 120)), weights(120, 128))
    return Graph((x,), (ops.Max()(ops.add(dot(x, weights(128, 128)), low), ops.full((64, 128), 0.0, f32)),))


@pytest.fixture(autouse=True)
def always_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Timings of a shared machine are no test: each form counts as 2x."""
    monkeypatch.setattr(run, "_compared", lambda models, feeds, rounds=1: (2.0, (2e-6, 1e-6)))


def test_what_wins_is_stored_and_compiled_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    g, path = adapted(), tmp_path / "own.jsonl"
    feeds = {"x": RANDOM.standard_normal((64, 128)).astype(np.float32)}
    report = find_rewrites(g, feeds, threads=1, budget=30, database=path, fast_math=True)
    assert report.rewrites and report.gain == 2.0 and not report.withdrawn_count
    assert any("dot_general(x0, add(c0, dot_general(c1, c2)))" in text for text in report.rewrites)
    assert all(row.state != "wrong" for row in report.rows)

    monkeypatch.setenv("INGOT_TUNING", str(path))
    built = build(g, threads=1, fast_math=True)
    assert "add(c0, dot_general(c1, c2))" in built.program.meta["rewrites"]
    products = [n for n in built.graph_after("fold_layout").nodes() if isinstance(n.op, ops.DotGeneral)]
    assert len(products) == 1
    explained = explain("model", built, feeds, repeats=1)
    assert explained.rewrites == tuple(built.program.meta["rewrites"].splitlines())
    np.testing.assert_allclose(built.model()(**feeds), interpret(g, feeds)[0], 1e-4, 1e-4)

    # not exact: it takes fast math
    plain = build(g, threads=1)
    assert "rewrites" not in plain.program.meta
    # and another number of threads is another machine
    assert "rewrites" not in build(g, threads=2, fast_math=True).program.meta


@pytest.mark.slow
def test_without_fast_math_it_tells_what_needs_it(tmp_path: Path) -> None:
    g = adapted()
    feeds = {"x": np.zeros((64, 128), np.float32)}
    report = find_rewrites(g, feeds, threads=1, budget=30, database=tmp_path / "own.jsonl")
    assert not report.rewrites and any(row.state == "needs fast math" for row in report.rows)


@pytest.mark.slow
def test_what_makes_calls_slower_is_withdrawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "_compared", lambda models, feeds, rounds=1: (0.5 if rounds > 20 else 2.0, (2e-6, 1e-6)))
    feeds = {"x": np.zeros((64, 128), np.float32)}
    path = tmp_path / "own.jsonl"
    report = find_rewrites(adapted(), feeds, threads=1, budget=30, database=path, fast_math=True)
    assert report.withdrawn_count and not report.rewrites and not tuning.read(path)


def test_a_form_that_is_wrong_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "forms", lambda before, seconds: [before.with_outputs([ops.Neg()(before.outputs[0])])])
    feeds = {"x": np.zeros((64, 128), np.float32)}
    report = find_rewrites(adapted(), feeds, threads=1, budget=30, database=tmp_path / "own.jsonl", fast_math=True)
    assert {row.state for row in report.rows} == {"wrong"} and not report.rewrites


def test_open_sizes_are_refused(tmp_path: Path) -> None:
    x = Input("x", TensorType(f32, (symbol("n"), 8)))()
    with pytest.raises(InputError, match="--dim n=SIZE"):
        find_rewrites(Graph((x,), (x,)), {}, threads=1, budget=1, database=tmp_path / "own.jsonl")
