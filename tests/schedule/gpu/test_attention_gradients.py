"""Gradients of attention from the sums that the forward pass keeps."""

from __future__ import annotations

import numpy as np
import pytest

from ingot import ops
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input
from ingot.ir.types import TensorType, bf16, boolean, f16, f32, i64
from tests.conformance.checked import planned, run_checked
from tests.conformance.targets import H100

CASES = [  # type, q, keys, key heads, head size of values, op, mask
    (f32, (2, 2, 37, 16), 37, 2, 16, ops.Attention("upper_left", 0.25), None),
    (f32, (1, 4, 21, 24), 50, 2, 8, ops.Attention("lower_right", 0.25, 3.0), None),
    (f16, (1, 2, 70, 64), 70, 1, 64, ops.Attention("none", 0.125), None),
    (bf16, (1, 1, 40, 128), 33, 1, 128, ops.Attention("upper_left", 0.09), None),
    (f32, (2, 2, 19, 16), 23, 2, 16, ops.Attention("none", 0.25), "bool"),
    (f16, (1, 2, 40, 32), 70, 2, 32, ops.Attention("none", 0.2), "bool"),
    (bf16, (1, 2, 17, 32), 20, 2, 32, ops.Attention("none", 0.2, guarded=True), "float"),
    (f16, (1, 1, 1, 16), 1, 1, 16, ops.Attention("none", 0.25), None),
]
RATES = [0.1, 0.9, 0.5, 0.3, 1.0, 0.1, 0.1, 0.5]  # of dropout


def _graph(case: tuple, dropout: float = 0.0) -> tuple[Graph, list[np.ndarray]]:
    dtype, shape, cols, key_heads, width, op, kind = case
    batch, heads, rows, depth = shape
    shapes = [shape, (batch, key_heads, cols, depth), (batch, key_heads, cols, width), (batch, heads, rows, width)]
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=s).astype(dtype.numpy) for s in shapes]
    types = [TensorType(dtype, s) for s in shapes]
    if kind is not None:
        mask = rng.random((batch, 1, rows, cols)) < 0.6
        mask[:, :, 3] = False  # a query without keys
        bias = np.where(mask, rng.normal(size=mask.shape), -np.inf).astype(dtype.numpy)
        arrays.append(mask if kind == "bool" else bias)
        types.append(TensorType(boolean if kind == "bool" else dtype, mask.shape))
    q, k, v, g, *masks = inputs = tuple(Input(f"x{i}", t)() for i, t in enumerate(types))
    if not dropout:
        y = op(q, k, v, *masks)
        result = ops.AttentionGradients(op.causal, op.scale, op.softcap, op.guarded)(q, k, v, g, *masks)
        return Graph(inputs, (y, *result.results)), arrays
    backward = ops.AttentionGradients(op.causal, op.scale, op.softcap, op.guarded, dropout=dropout)
    seed = Input("seed", TensorType(i64, ()))()
    y, sums = backward.forward_with_sums(q, k, v, *masks, seed).results
    result = backward(q, k, v, g, y, sums, *masks, seed)
    return Graph((*inputs, seed), (y, *result.results)), [*arrays, np.asarray(0x123456789ABCDEF)]


@pytest.mark.parametrize(("case", "dropout"), [*((c, 0.0) for c in CASES), *zip(CASES, RATES, strict=True)])
def test_the_results_of_both_passes(case: tuple, dropout: float) -> None:
    graph, arrays = _graph(case, dropout)
    got, want = run_checked(graph, arrays, H100), interpret(graph, arrays)
    for x, y in zip(got, want, strict=True):
        x, y = x.astype(np.float64), y.astype(np.float64)
        error = {16: 4e-3 if case[0] == f16 else 2e-2, 32: 3e-6}[case[0].bits]
        assert np.abs(x - y).max() <= error * max(1, np.abs(y).max())
    launches = [kernel.name.rsplit("_", 1)[0] for kernel in planned(graph, H100)[1].values()]
    names = [name for launch in launches for name in launch.split("_then_")]
    assert [n for n in names if "attention" in n or "gradients" in n] == [
        "attention",
        "query_gradients",
        "key_gradients",
    ]


@pytest.mark.parametrize(
    ("shape", "key_heads", "cols"),
    [((1, 8, 2, 16), 2, 40), ((1, 1, 16, 64), 1, 1000)],  # heads of a group in one tile; keys in parts
)
def test_dropout_of_few_queries(shape: tuple[int, ...], key_heads: int, cols: int) -> None:
    case = (f32, shape, cols, key_heads, shape[3], ops.Attention("none", 0.2), None)
    graph, arrays = _graph(case, 0.4)
    graph = Graph(graph.inputs, graph.outputs[:1])
    np.testing.assert_allclose(run_checked(graph, arrays, H100)[0], interpret(graph, arrays)[0], atol=1e-5)


def test_what_dropout_draws() -> None:
    """The same from the same seed, something else from another one, in each head of each sample."""
    x = Input("x", TensorType(f32, (2, 2, 32, 32)))()
    seed = Input("seed", TensorType(i64, ()))()
    y, _ = ops.AttentionWithSums("none", 0.0, dropout=0.5)(x, x, x, seed).results
    graph, identity = Graph((x, seed), (y,)), np.broadcast_to(np.eye(32, dtype=np.float32), (2, 2, 32, 32))
    first, again, other = (run_checked(graph, [identity, np.asarray(s)], H100)[0] for s in (1, 1, 1 << 32 | 1))
    np.testing.assert_array_equal(first, again)
    masks = [(x != 0)[b, h] for x in (first, other) for b in (0, 1) for h in (0, 1)]
    assert all((a != b).mean() > 0.4 for i, a in enumerate(masks) for b in masks[:i])


@pytest.mark.parametrize("shape", [(2, 37, 48), (2, 37, 1, 3, 16)])
def test_gradients_are_stored_where_they_are_joined(shape: tuple[int, ...]) -> None:
    """Those of queries, keys and values that one projection made are parts of the gradient of its result."""
    q, k, v, g = (Input(label, TensorType(f32, (2, 3, 37, 16)))() for label in "qkvg")
    y, sums = ops.AttentionWithSums("upper_left", 0.3)(q, k, v).results
    gradients = ops.AttentionGradients("upper_left", 0.3, by_row=True)(q, k, v, g, y, sums).results
    joined = ops.Concat(2)(*(ops.reshape(x, shape) for x in gradients))
    # a part that is a result of its own has memory of its own
    for outputs, kernels in ((ops.Tanh()(joined),), 4), ((ops.Tanh()(joined), gradients[1]), 5):
        graph = Graph((q, k, v, g), outputs)
        data = [np.random.default_rng(i).normal(size=n.shape).astype(np.float32) for i, n in enumerate(graph.inputs)]
        for got, want in zip(run_checked(graph, data, H100), interpret(graph, data), strict=True):
            np.testing.assert_allclose(got, want, atol=1e-5)
        assert len(planned(graph, H100)[1]) == kernels
