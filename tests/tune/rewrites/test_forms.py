"""Forms of small graphs: those that cost less are found, and each is equal at the graph's own sizes."""

from __future__ import annotations

import numpy as np
import pytest

from ingot import ops
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input, Node, const
from ingot.ir.types import DType, TensorType, bf16, f16, f32, f64
from ingot.passes.core.rewrites.equality import are_equal
from ingot.passes.core.rewrites.rewrite import Rewrite, apply_rewrites
from ingot.tune.rewrites.forms import forms
from ingot.tune.rewrites.subgraphs import MAX_OPS, subgraphs
from tests.passes.core.rewrites.test_equality import arg, dot, t

X, Y, Z = arg("x0", 128, 96), arg("x1", 128, 96), arg("x2", 128, 96)
W, V, A, B = arg("c0", 96, 80), arg("c1", 96, 64), arg("c1", 96, 8), arg("c2", 8, 80)
U = arg("c1", 96, 80)
IMAGE, F, G = arg("x0", 1, 9, 9, 16), arg("c0", 8, 3, 3, 16), arg("c1", 12, 3, 3, 16)
CONV = ops.Convolution((1, 1), ((1, 1), (1, 1)), (1, 1), (1, 1), "NHWC", "OHWI", "NHWC")
STACK = arg("x0", 4, 128, 32), arg("x1", 4, 128, 32), arg("x2", 4, 128, 24)
SCORES, MIXED = ops.DotGeneral(((0,), (0,)), ((2,), (2,))), ops.DotGeneral(((0,), (0,)), ((2,), (1,)))

CASES: list[tuple[str, tuple[Node, ...], Node, str]] = [
    ("adapter", (X, W, A, B), ops.add(dot(X, W), ops.mul(dot(dot(X, A), B), 2.0)),
     "dot_general(x0, add(c0, multiply(dot_general(c1, c2), broadcast_in_dim(2)))) (fast math"),
    ("sum of products", (X, W, U), ops.add(dot(X, W), dot(X, U)), "dot_general(x0, add(c0, c1)) (fast math"),
    ("joined products", (X, W, V), ops.Concat(1)(dot(X, W), dot(X, V)), "dot_general(x0, concatenate(c0, c1)) (exact"),
    ("joined rows", (X, Y, W), ops.Concat(0)(dot(X, W), dot(Y, W)), "dot_general(concatenate(x0, x1), c0) (exact"),
    ("three joined", (X, Y, W), ops.add(dot(X, W), dot(Y, W)), "dot_general(add(x0, x1), c0) (fast math"),
    ("joined filters", (IMAGE, F, G), ops.Concat(3)(CONV(IMAGE, F), CONV(IMAGE, G)),
     "convolution(x0, concatenate(c0, c1)) (exact"),
    ("transposed", (X, W), t(dot(t(W), t(X))), "dot_general(x0, c0) (exact"),
    ("linear attention in heads", STACK, MIXED(SCORES(*STACK[:2]), STACK[2]), "dot_general(x0, dot_general("),
    ("linear attention", (X, Y, Z), dot(dot(X, t(Y)), Z), "dot_general(x0, dot_general(x1, x2)) (fast math"),
]  # fmt: skip


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("inputs", "output", "expected"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_cheaper_forms_are_found(inputs: tuple[Node, ...], output: Node, expected: str) -> None:
    before = Graph(inputs, (output,))
    results = forms(before)
    texts = []
    for after in results:
        exact = are_equal(before, after, exactly=True)
        assert exact or are_equal(before, after, exactly=False)
        texts.append(str(Rewrite.of(before, after, exact)).partition(" -> ")[2])
    assert any(text.startswith(expected) for text in texts[:3]), texts


@pytest.mark.parametrize(("dtype", "unit"), [(f64, "2^-53"), (bf16, "2^-8"), (f16, "2^-11")])
def test_other_floats(dtype: DType, unit: str) -> None:
    """Found, proved in the type's own roundings, and applied."""
    x, w, v = (Input(n.op.label, TensorType(dtype, n.shape))() for n in (X, W, U))  # type: ignore[attr-defined]
    before = Graph((x, w, v), (ops.mul(ops.add(dot(x, w), dot(x, v)), 0.5),))
    after = next(g for g in forms(before) if sum(isinstance(n.op, ops.DotGeneral) for n in g.nodes()) == 1)
    assert not are_equal(before, after, exactly=True)
    rewrite = Rewrite.of(before, after, exact=False)
    assert f" * {unit} of the sum of magnitudes" in str(rewrite)
    random = np.random.default_rng(1)
    weights = [const(random.standard_normal(n.shape).astype(dtype.numpy)) for n in (w, v)]  # type: ignore[call-overload]
    y = ops.mul(ops.add(dot(x, weights[0]), dot(x, weights[1])), 0.5)
    assert apply_rewrites(Graph((x,), (y,)), [rewrite]).outputs == (y,)
    (z,) = apply_rewrites(Graph((x,), (y,)), [rewrite], fast_math=True).outputs
    assert sum(isinstance(n.op, ops.DotGeneral) for n in Graph((x,), (z,)).nodes()) == 1
    feed = random.standard_normal(x.shape).astype(dtype.numpy)  # type: ignore[call-overload]
    a, b = (np.asarray(interpret(Graph((x,), (r,)), [feed])[0], np.float64) for r in (y, z))
    np.testing.assert_allclose(a, b, atol=np.abs(a).max() * rewrite.roundings * float(2.0 ** int(unit[2:])))
    mixed = Rewrite.of(Graph((x, W), (ops.add(ops.cast(x, f32), ops.cast(x, f32)),)), before, exact=False)
    assert apply_rewrites(Graph((x,), (y,)), [mixed], fast_math=True).outputs == (y,)


def test_what_is_best_has_no_other_form() -> None:
    assert forms(Graph((X, W), (dot(X, W),))) == []
    # merging these weights would cost more than it saves
    assert forms(Graph((X, A, B), (dot(dot(X, A), B),))) == []


def test_subgraphs_of_a_model() -> None:
    random = np.random.default_rng(0)

    def weights(*shape: int) -> Node:
        return const(random.standard_normal(shape).astype(np.float32))

    x = h = Input("in", TensorType(f32, (16, 32)))()
    for _ in range(2):
        low = dot(dot(h, weights(32, 4)), weights(4, 32))
        h = ops.Max()(ops.add(dot(h, weights(32, 32)), ops.mul(low, 2.0)), ops.full((16, 32), 0.0, f32))
    results = subgraphs(Graph((x,), (ops.Exp()(h), h)))
    largest = str(Rewrite.of(results[0].graph, results[0].graph, True))
    assert results[0].count == 2
    assert largest.startswith("add(dot_general(x0, c0), multiply(dot_general(dot_general(x0, c1), c2), broadcast")
    # with the op that reads it, and as it stands in the model
    (end,) = results[0].context.outputs
    assert isinstance(end.op, ops.Max) and [n.shape for n in results[0].context.inputs] == [(16, 32)]
    for s in results:
        assert 2 <= sum(isinstance(n.op, ops.DotGeneral | ops.Add | ops.Mul) for n in s.graph.nodes()) <= MAX_OPS


def test_a_value_with_another_reader_ends_a_subgraph() -> None:
    x = Input("in", TensorType(f32, (16, 32)))()
    w = const(np.ones((32, 32), np.float32))
    inner = dot(x, w)
    assert subgraphs(Graph((x,), (dot(inner, w), ops.Exp()(inner)))) == []
    assert len(subgraphs(Graph((x,), (dot(inner, w),)))) == 1
