"""The search, end to end: what wins is stored, compiled in, explained; what does not is not."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ingot import ops
from ingot.api.load import load
from ingot.debug.build import build
from ingot.debug.explain import explain
from ingot.ir.dims import Dim, DimLike, symbol
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input, Node, const
from ingot.ir.types import TensorType, f32
from ingot.passes.core.rewrites.rewrite import Rewrite
from ingot.pipeline import tuning
from ingot.runtime.artifact import save
from ingot.transform.repeat import repeat
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
    assert "add(c0" not in plain.program.meta["rewrites"]  # only the joined products
    # and another number of threads is another machine
    assert "rewrites" not in build(g, threads=2, fast_math=True).program.meta


def test_bodies_of_loops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cell that is repeated, of two factors that cost more than their product."""
    x, down, up = Input("x", TensorType(f32, (16, 64)))(), weights(64, 60), weights(60, 64)

    def body(i: Node, sums: Sequence[Node], values: Sequence[Node]) -> list[Node]:
        y = dot(dot(sums[0], down), up)
        return [ops.Max()(y, ops.full(y.shape, 0.0, f32))]

    g, path = Graph((x,), tuple(repeat(200, [x], [], body))), tmp_path / "own.jsonl"
    feeds = {"x": RANDOM.standard_normal((16, 64)).astype(np.float32)}
    report = find_rewrites(g, feeds, threads=1, budget=30, database=path, fast_math=True)
    (text,) = report.rewrites
    assert "dot_general(x0, dot_general(c0, c1))" in text
    monkeypatch.setenv("INGOT_TUNING", str(path))
    built = build(g, threads=1, fast_math=True)
    assert built.program.meta["rewrites"] == text
    np.testing.assert_allclose(built.model()(**feeds), interpret(g, feeds)[0], 1e-3, 1e-3)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("size", [9, 14])
def test_images_of_open_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Two convolutions of one image become one."""
    n, height, width = symbol("n"), symbol("height"), symbol("width")
    x = Input("x", TensorType(f32, (n, 8, height, width)))()
    conv = ops.Convolution((2, 2), ((1, 1), (1, 1)), (1, 1), (1, 1), "NCHW", "OIHW", "NCHW")
    ys = [conv(x, weights(count, 8, 3, 3)) for count in (4, 6)]
    activated = (ops.Max()(ys[0], ops.full(ys[0].shape, 0.0, f32)), ops.Tanh()(ys[1]))
    g, path = Graph((x,), activated), tmp_path / "own.jsonl"
    feeds = {"x": RANDOM.standard_normal((1, 8, size, size + 1)).astype(np.float32)}
    report = find_rewrites(g, feeds, threads=1, budget=30, database=path)
    assert any("convolution(x0, concatenate(c0, c1))" in text and "(exact" in text for text in report.rewrites)
    monkeypatch.setenv("INGOT_TUNING", str(path))
    built = build(g, threads=1)
    assert "concat" in built.program.meta["rewrites"]
    x1 = {"x": RANDOM.standard_normal((2, 8, 21, 6)).astype(np.float32)}
    for got, expected in zip(built.model()(**x1), interpret(g, x1), strict=True):
        np.testing.assert_allclose(got, expected, 1e-4, 1e-4)


@pytest.mark.slow
def test_without_fast_math_it_tells_what_needs_it(tmp_path: Path) -> None:
    g = adapted()
    feeds = {"x": np.zeros((64, 128), np.float32)}
    report = find_rewrites(g, feeds, threads=1, budget=30, database=tmp_path / "own.jsonl")
    assert all("(exact)" in text for text in report.rewrites)
    assert any(row.state == "needs fast math" for row in report.rows)


@pytest.mark.slow
def test_what_makes_calls_slower_is_withdrawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "_compared", lambda models, feeds, rounds=1: (0.5 if rounds > 20 else 2.0, (2e-6, 1e-6)))
    feeds = {"x": np.zeros((64, 128), np.float32)}
    path = tmp_path / "own.jsonl"
    report = find_rewrites(adapted(), feeds, threads=1, budget=30, database=path, fast_math=True)
    assert report.withdrawn_count and not report.rewrites and not tuning.read(path)


def test_what_is_slower_together_is_tried_alone() -> None:
    machine, rewrites = "m", [Rewrite(text, "", True) for text in "abc"]
    wins = [tuning.Rewritten(machine, r, 1e-6, 2e-6) for r in rewrites]
    gains = {"": 1.0, "abc": 0.9, "a": 0.8, "b": 1.2, "bc": 1.3}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "_compared", lambda models, feeds, rounds: (gains[models[1]] / gains[models[0]], (0, 0)))
        accepted, gain = run._confirmed(wins, lambda chosen: "".join(w.rewrite.before for w in chosen), {})  # type: ignore[arg-type, return-value]
    assert accepted == wins[1:] and gain == 1.3


def test_a_form_that_is_wrong_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        run, "forms", lambda before, seconds, sizes: [before.with_outputs([ops.Neg()(before.outputs[0])])]
    )
    feeds = {"x": np.zeros((64, 128), np.float32)}
    report = find_rewrites(adapted(), feeds, threads=1, budget=30, database=tmp_path / "own.jsonl", fast_math=True)
    assert {row.state for row in report.rows} == {"wrong"} and not report.rewrites


def encoder(rows: DimLike) -> Graph:
    """Projections of one value that no pass joins, as each has an activation of its own."""
    x = Input("x", TensorType(f32, (rows, 64)))()
    gates = [act()(dot(x, weights(64, width))) for act, width in ((ops.Exp, 32), (ops.Logistic, 48), (ops.Tanh, 16))]
    return Graph((x,), tuple(gates), bounds=(("batch", 1, 32),) if isinstance(rows, Dim) else ())


@pytest.mark.parametrize("rows", [16, symbol("batch")])
def test_several_results_and_open_sizes_end_to_end(
    rows: DimLike, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found, stored, proved again without z3, applied, told by `explain` and saved with the model."""
    g, path = encoder(rows), tmp_path / "own.jsonl"
    feeds = {"x": RANDOM.standard_normal((16, 64)).astype(np.float32)}
    report = find_rewrites(g, feeds, threads=1, budget=30, database=path)
    three = "dot_general(x0, c0), dot_general(x0, c1), dot_general(x0, c2) -> slice(dot_general(x0, concatenate("
    (text,) = (text for text in report.rewrites if text.startswith(three))
    assert "(exact" in text and ("for n0: 1..32" in text) == isinstance(rows, Dim)
    assert {row.state for row in report.rows} <= {"kept", "no cheaper form"}

    monkeypatch.setenv("INGOT_TUNING", str(path))
    monkeypatch.setitem(sys.modules, "z3", None)  # importing it fails
    built = build(g, threads=1)
    products = [n for n in built.graph_after("fold_layout").nodes() if isinstance(n.op, ops.DotGeneral)]
    assert [n.shape for n in products] == [(rows, 96)]
    assert explain("model", built, feeds, repeats=1).rewrites == (built.program.meta["rewrites"],) == (text,)
    save(built.program, tmp_path / "model.ingot")
    m = load(tmp_path / "model.ingot", threads=1)
    for size in (16,) if isinstance(rows, int) else (1, 5, 32):
        x = RANDOM.standard_normal((size, 64)).astype(np.float32)
        for got, want in zip(m(x), interpret(g, [x]), strict=True):
            np.testing.assert_allclose(got, want, 1e-4, 1e-5)
    # another bound than that within which it was measured
    if isinstance(rows, Dim):
        assert "rewrites" not in build(replace(g, bounds=(("batch", 1, 33),)), threads=1).program.meta


def test_what_is_slower_at_a_bound_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def compared(models: object, feeds: dict[str, np.ndarray], rounds: int = 1) -> tuple[float, tuple[float, float]]:
        return (0.5 if len(next(iter(feeds.values()))) == 1 else 2.0), (2e-6, 1e-6)

    monkeypatch.setattr(run, "_compared", compared)
    feeds = {"x": np.zeros((16, 64), np.float32)}
    report = find_rewrites(encoder(symbol("batch")), feeds, threads=1, budget=30, database=tmp_path / "own.jsonl")
    assert {row.state for row in report.rows if row.forms} == {"slower"} and not report.rewrites
