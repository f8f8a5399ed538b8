"""Sizes that the run finds, against the interpreter."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import ingot
from ingot import ops
from ingot.ir.dims import Dim, dim_max, dim_min, symbol
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input, Node, const
from ingot.ir.parse import parse
from ingot.ir.show import show
from ingot.ir.types import TensorType, f32, i64
from ingot.ir.verify import verify
from ingot.pipeline.build import build_program
from ingot.runtime.executor import CompiledModel
from ingot.support.errors import InputError, VerifyError
from ingot.targets.cpu.workers import host_features

N, K = symbol("n"), symbol("$k")
SIZES = (0, 1, 5, 100, 3000, 7)


def positive(x: Node) -> Node:
    """How many elements are positive."""
    return ops.Reduce("sum", (0,))(ops.Convert(i64)(ops.compare("GT", x, 0)))


def first(x: Node, size: object) -> Node:
    return ops.Slice((0,), (size,), (1,))(x)  # type: ignore[arg-type]


def graph() -> Graph:
    """The first $k elements of x[n], $k of which are positive, in all kinds of groups."""
    x, w = Input("x", TensorType(f32, (N,)))(), Input("w", TensorType(f32, (4,)))()
    cut = first(x, K)
    concatenated = ops.Concat(0)(ops.Exp()(cut), w, x)
    outer = ops.Mul()(ops.BroadcastInDim((K, 4), (0,))(cut), ops.BroadcastInDim((K, 4), (1,))(w))
    product = ops.DotGeneral(((), ()), ((0,), (0,)))(outer, outer)
    total, places = ops.Reduce("sum", (0,))(cut), ops.Reduce("sum", (0,))(ops.Iota(TensorType(i64, (K,)), 0)())
    ordered = ops.Sort(0, False, True, 1)(cut)
    results = (concatenated, outer, product, total, places, ordered)
    return Graph((x, w), (*results, positive(x)), bounds=(("n", 0, None),), sizes=(("$k", N),))


def agree(model: CompiledModel, g: Graph, *arrays: np.ndarray) -> None:
    got = model(*arrays)
    for u, v in zip(interpret(g, arrays), got if isinstance(got, tuple) else (got,), strict=True):
        assert v.shape == u.shape  # type: ignore[union-attr]
        np.testing.assert_allclose(v, u, rtol=1e-4, atol=1e-4)  # type: ignore[arg-type]


def test_text_and_verify() -> None:
    g = graph()
    verify(g)
    assert parse(show(g)) == g
    with pytest.raises(VerifyError, match=r"\$k depends on \$k"):
        verify(g.with_outputs((*g.results, positive(first(g.inputs[0], K)))))
    with pytest.raises(VerifyError, match="distinct names"):
        verify(replace(g, sizes=(("k", N),)))


@pytest.mark.parametrize("threads", [1, 2])
def test_all_kinds_of_groups(threads: int, tmp_path: Path) -> None:
    g, rng = graph(), np.random.default_rng(0)
    model = CompiledModel(build_program(g, host_features(), threads), threads=threads)
    model.save(tmp_path / "m.ingot")
    loaded = ingot.load(tmp_path / "m.ingot")
    for n in SIZES:
        for shift in (0, -9, 0.7, 9):
            xs = [(rng.standard_normal(n) + shift).astype(np.float32), rng.standard_normal(4).astype(np.float32)]
            agree(model, g, *xs)
            agree(loaded, g, *xs)
    assert "size   $k in [0, n]" in model.plan((5,), (4,))


def test_torch_tensors_come_back_cut() -> None:
    torch = pytest.importorskip("torch")
    x = torch.randn(50)
    concatenated, outer, *_ = CompiledModel(build_program(graph(), host_features(), 1))(x, torch.ones(4))  # type: ignore[misc]
    count = int((x > 0).sum())
    assert outer.shape == (count, 4) and torch.equal(outer[:, 0], x[:count])
    assert concatenated.shape == (count + 54,) and outer.untyped_storage().nbytes() == outer.nbytes


def test_size_of_a_size_and_conditions() -> None:
    """$b is a size of what is $k long; $k + 2 $b < 40 is a condition, and 6 the most of $b."""
    x = Input("x", TensorType(f32, (N,)))()
    cut, b = first(x, K), symbol("$b")
    smaller = positive(ops.sub(cut, 1.0))
    condition = 39 - K - b * 2
    assert isinstance(condition, Dim)
    g = Graph((x,), (first(cut, b), positive(x), smaller), conditions=(condition,), sizes=(("$k", N), ("$b", 6)))
    model = CompiledModel(build_program(g, host_features(), 1))
    fine = np.r_[np.full(6, 2, np.float32), np.full(10, 0.5, np.float32)]
    agree(model, g, fine)
    for wrong, why in ((np.full(7, 2, np.float32), r"size \$b.*0 to 6"), (np.full(40, 0.5, np.float32), ">= 0")):
        for run in (model, lambda *xs: interpret(g, xs)):
            with pytest.raises(InputError, match=why):
                run(wrong)
        agree(model, g, fine)


def test_a_size_is_compared_with_one_that_is_computed_later() -> None:
    """$b is at most $a, of which the run knows later: what is $b long waits for both."""
    x, y = Input("x", TensorType(f32, (N,)))(), Input("y", TensorType(f32, (symbol("m"),)))()
    a, b = symbol("$a"), symbol("$b")
    deferred = positive(ops.Sqrt()(ops.Exp()(ops.cumulative("sum", x, 0))))
    results = (ops.Sqrt()(ops.Exp()(first(y, b))), first(x, a), deferred, positive(y))
    g = Graph((x, y), results, bounds=(("m", 0, None),), sizes=(("$a", N), ("$b", dim_min(a, symbol("m")))))
    model = CompiledModel(build_program(g, host_features(), 1), threads=1)
    for n, m in ((5, 3), (3, 3), (1, 0)):
        agree(model, g, np.ones(n, np.float32), np.ones(m, np.float32))
    for run in (model, lambda *xs: interpret(g, xs)):
        with pytest.raises(InputError):
            run(np.ones(2, np.float32), np.ones(4, np.float32))


def test_a_halo_does_not_lie_behind_a_size() -> None:
    """Borders are written once, so what has some has one place in all runs."""
    x, w = Input("x", TensorType(f32, (N, 8)))(), const(np.eye(8, dtype=np.float32) * 3)
    rows = ops.DotGeneral(((), ()), ((1,), (0,)))
    count = positive(ops.Reduce("max", (1,))(x))
    cut = ops.Slice((0, 0), (K, 8), (1, 1))(rows(x, w))
    bordered = ops.pad(ops.Tanh()(rows(x, w)), (1, 0), (1, 0), ops.scalar(0.0, f32))
    concatenated = ops.Concat(0)(ops.Exp()(cut), bordered, bordered, ops.Exp()(rows(x, w)))
    g = Graph((x,), (rows(concatenated, w), rows(bordered, w), count), sizes=(("$k", N),))
    model, rng = CompiledModel(build_program(g, host_features(), 2)), np.random.default_rng(0)
    for shift in (2, -1, 0, -9, 2):
        agree(model, g, rng.standard_normal((9, 8)).astype(np.float32) / 9 + shift)


def test_what_sizes_are_made_of_lies_in_front() -> None:
    """A value that a size is made of cannot be written behind something of that size."""
    x = Input("x", TensorType(f32, (N, 8)))()
    w = const(np.eye(8, dtype=np.float32) * 3)
    product = ops.DotGeneral(((), ()), ((1,), (0,)))(x, w)
    count = positive(ops.Reduce("max", (1,))(product))
    cut = ops.Slice((0, 0), (K, 8), (1, 1))(product)
    concatenated = ops.Concat(0)(ops.Tanh()(cut), ops.Exp()(cut), product, ops.Exp()(product))
    g = Graph((x,), (ops.DotGeneral(((), ()), ((1,), (0,)))(concatenated, w), count), sizes=(("$k", N),))
    model, rng = CompiledModel(build_program(g, host_features(), 2)), np.random.default_rng(0)
    for n in (1, 3, 20):
        agree(model, g, rng.standard_normal((n, 8)).astype(np.float32) / 9)


def test_inside_a_loop() -> None:
    """A body that finds a size in every turn."""
    i, x = Input("i", TensorType(i64))(), Input("x", TensorType(f32, (20,)))()
    padded = ops.Concat(0)(first(x, K), ops.BroadcastInDim((20 - K,), ())(const(-1.0, np.float32)))
    body = Graph((i, x), (ops.add(i, 1), ops.sub(padded, 0.25), positive(x)), sizes=(("$k", 20),))
    loop = ops.While(Graph((i, x), (ops.compare("LT", i, 5),)), body)
    g = Graph((i, x), loop(i, x).results)
    verify(g)
    model, rng = CompiledModel(build_program(g, host_features(), 2)), np.random.default_rng(0)
    for _ in range(4):
        agree(model, g, np.asarray(0), rng.standard_normal(20).astype(np.float32))


def test_a_size_of_joined_parts() -> None:
    """Parts lie behind one another in the value that the next size is made of."""
    x, low = Input("x", TensorType(f32, (N,)))(), symbol("$low")
    small = positive(ops.sub(x, 1.0))
    concatenated = ops.Concat(0)(ops.Tanh()(first(x, K)), ops.Exp()(first(x, symbol("$few"))), ops.Tanh()(x))
    smallest = first(ops.Sort(0)(concatenated), low)
    sizes = (("$k", N), ("$few", N), ("$low", N * 3))
    g = Graph((x,), (smallest, concatenated, positive(x), small, positive(concatenated)), sizes=sizes)
    model, rng = CompiledModel(build_program(g, host_features(), 2)), np.random.default_rng(0)
    for n in (1, 3, 200):
        agree(model, g, rng.standard_normal(n).astype(np.float32))


@pytest.mark.parametrize(("a", "b"), [(2, 3), (-2, 3), (1 << 30, 1 << 30), (-(1 << 61), 1), (0, -5)])
def test_a_product_of_numbers(a: int, b: int) -> None:
    agree(_products(), _product_graph(), EIGHT, np.asarray(a), np.asarray(b))


@pytest.mark.parametrize(
    ("a", "b"), [(1 << 33, 1 << 31), (1 << 61, 8), (-(1 << 32), 1 << 33), (3037000500, 3037000500)]
)
def test_a_product_that_overflows_ends_the_run(a: int, b: int) -> None:
    """2^64 would be 0."""
    model = _products()
    with pytest.raises(InputError, match="overflow"):
        model(EIGHT, np.asarray(a), np.asarray(b))
    agree(model, _product_graph(), EIGHT, np.asarray(2), np.asarray(3))


EIGHT = np.arange(8, dtype=np.float32)


def _product_graph() -> Graph:
    """The first $a * $b elements of x[8], as many as there are."""
    x = Input("x", TensorType(f32, (8,)))()
    inputs = [Input(name, TensorType(i64))() for name in "ab"]
    a, b = (symbol(f"$number.{name}") for name in "ab")
    cut = first(x, dim_min(dim_max(a * b, 0), 8))
    numbers = [ops.add(ops.mul(n, 3), ops.mul(n, -2)) for n in inputs]
    sizes = (("$number.a", 1 << 62), ("$number.b", 1 << 62))
    return Graph((x, *inputs), (ops.Exp()(cut), *numbers), sizes=sizes)


def _products() -> CompiledModel:
    return CompiledModel(build_program(_product_graph(), host_features(), 1))
