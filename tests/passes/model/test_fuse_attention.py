from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ingot import ops
from ingot.ir.dims import symbol
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Node
from ingot.ir.types import DType, bf16, boolean, f16, f32, f64, i64
from ingot.passes.model.fuse_attention import fuse_attention
from tests.passes.check import arg, count, graph, random_inputs, same_values

B, S = symbol("b"), symbol("s")
Q, K, V = (arg(label, B, 2, S, 4) for label in "qkv")


def written_out(mask: Node | None, guard: bool = False) -> Graph:
    scores = ops.MatMul()(ops.mul(Q, 0.5), ops.swap_axes(K, 2, 3))
    if mask is not None:
        scores = ops.add(scores, ops.broadcast_to(mask, scores.shape))
    weights = ops.Softmax(3)(scores)
    if guard:
        weights = ops.where(ops.IsNan()(weights), ops.full(weights.shape, 0.0), weights)
    return graph(ops.MatMul()(weights, V))


def test_written_out_attention_is_found() -> None:
    for mask in (None, arg("m", S, S), arg("m", B, 1, 1, S)):
        g = written_out(mask)
        after = fuse_attention(g)
        assert count(after, ops.Attention) == 1 and count(after, ops.Softmax) == 0
        same_values(g, after, 1e-5, b=2, s=5)


def test_rows_that_see_no_key_keep_their_meaning() -> None:
    visible = arg("seen", B, 1, S, S, dtype=boolean)
    hidden = ops.where(visible, ops.full(visible.shape, 0.0), ops.full(visible.shape, -np.inf))
    keep = np.ones((2, 1, 3, 3), bool)
    keep[1, 0, 2] = False
    q, k, v = (np.random.default_rng(i).standard_normal((2, 2, 3, 4)).astype(np.float32) for i in range(3))
    for guard in (False, True):
        g = written_out(hidden, guard)
        after = fuse_attention(g)
        assert count(after, ops.Attention) == 1
        data = [keep if n.dtype == boolean else {"q": q, "k": k, "v": v}[n.op.label] for n in g.inputs]  # type: ignore[attr-defined]
        with np.errstate(all="ignore"):
            (want,), (got,) = interpret(g, data), interpret(after, data)
        np.testing.assert_allclose(got, want, atol=1e-6, equal_nan=True)
        assert np.isnan(got[1, :, 2]).all() != guard


def test_a_softmax_that_gives_hidden_rows_0() -> None:
    """select(all scores of the row are -inf, 0, softmax), as PyTorch's _safe_softmax; scaled behind a regrouping."""
    keep = arg("m", B, 1, S, S, dtype=boolean)
    q, k = (ops.reshape(x, (B * 2, S, 4)) for x in (Q, K))
    scores = ops.mul(ops.reshape(ops.MatMul()(q, ops.swap_axes(k, 1, 2)), (B, 2, S, S)), 0.5)
    low = ops.full(scores.shape, -np.inf)
    scores = ops.where(ops.broadcast_to(keep, scores.shape), scores, low)
    hidden = ops.expand_dims(ops.Reduce("and", (3,))(ops.Compare("EQ")(scores, low)), 3)
    weights = ops.where(ops.broadcast_to(hidden, scores.shape), ops.full(scores.shape, 0.0), ops.Softmax(3)(scores))
    g = graph(ops.MatMul()(weights, V))
    after = fuse_attention(g)
    assert count(after, ops.Attention) == 1 and count(after, ops.Softmax) == 0
    visible = np.random.default_rng(3).random((2, 1, 5, 5)) < 0.5
    visible[1, 0, 2] = False
    rng = np.random.default_rng(0)
    values = {label: rng.standard_normal((2, 2, 5, 4)).astype(np.float32) for label in "qkv"}
    values["q"][0, 1, 3, 2] = np.nan
    data = [visible if n.dtype == boolean else values[n.op.label] for n in g.inputs]  # type: ignore[attr-defined]
    with np.errstate(all="ignore"):
        (want,), (got,) = interpret(g, data), interpret(after, data)
    np.testing.assert_allclose(got, want, atol=1e-6, equal_nan=True)
    assert np.isnan(got[0, 1, 3]).all() and not got[1, :, 2].any()


def test_rows_of_nan_are_zero_under_a_guard() -> None:
    q, k, v = (np.random.default_rng(i).standard_normal((2, 2, 3, 4)).astype(np.float32) for i in range(3))
    q[0, 1, 2, 0], k[1, 0, 1, 1] = np.nan, np.inf
    for guard in (False, True):
        g = written_out(None, guard)
        with np.errstate(all="ignore"):
            (want,), (got,) = interpret(g, [q, k, v]), interpret(fuse_attention(g), [q, k, v])
        np.testing.assert_allclose(got, want, atol=1e-6, equal_nan=True)
        assert np.isnan(want[0, 1, 2]).all() != guard


def test_softcap_and_two_masks() -> None:
    scores = ops.mul(ops.Tanh()(ops.div(ops.MatMul()(Q, ops.swap_axes(K, 2, 3)), 6.0)), 3.0)
    shape = scores.shape
    bias, hidden = ops.cast(arg("i", 2, 1, S, dtype=i64), f32), arg("m", B, 1, S, S, dtype=boolean)
    masked = ops.add(scores, ops.broadcast_to(bias, shape))
    masked = ops.where(ops.broadcast_to(hidden, shape), masked, ops.full(shape, -np.inf))
    g = graph(ops.MatMul()(ops.Softmax(3)(masked), V))
    after = fuse_attention(g)
    (result,) = [n for n in after.nodes() if isinstance(n.op, ops.Attention)]
    assert result.op.softcap == 3.0 and result.op.scale == 0.5  # type: ignore[attr-defined]
    with np.errstate(all="ignore"):
        same_values(g, after, 1e-5, b=2, s=5)


def test_scores_of_merged_heads_are_split_for_the_mask() -> None:
    q, k, v = (arg(label, B * 2, S, 4) for label in "qkv")
    alibi = ops.cast(arg("i", B * 2, 1, S, dtype=i64), f32)
    scores = ops.add(ops.MatMul()(q, ops.swap_axes(k, 1, 2)), ops.broadcast_to(alibi, (B * 2, S, S)))
    scores = ops.add(ops.reshape(scores, (B, 2, S, S)), ops.broadcast_to(arg("m", B, 1, 1, S), (B, 2, S, S)))
    weights = ops.reshape(ops.Softmax(3)(scores), (B * 2, S, S))
    g = graph(ops.MatMul()(weights, v))
    after = fuse_attention(g)
    assert count(after, ops.Attention) == 1 and count(after, ops.Softmax) == 0
    with np.errstate(all="ignore"):
        same_values(g, after, 1e-5, b=2, s=5)


def test_repeated_keys_are_read_once() -> None:
    def repeated(x: Node) -> Node:
        wide = ops.BroadcastInDim((B, 2, 3, S, 4), (0, 1, 3, 4))(x)
        return ops.reshape(wide, (B, 6, S, 4))

    q = arg("q6", B, 6, S, 4)
    g = graph(ops.Attention("upper_left", 0.5)(q, repeated(K), repeated(V)))
    after = fuse_attention(g)
    assert count(after, ops.BroadcastInDim) == 0
    same_values(g, after, 1e-5, b=2, s=5)


def test_heads_are_views_of_a_packed_projection() -> None:
    x = arg("x", S, B, 12)
    chain = ops.reshape(ops.transpose(ops.reshape(x, (S, B * 3, 4)), (1, 0, 2)), (B, 3, S, 4))
    after = fuse_attention(graph(chain))
    assert [n.op.name for n in after.nodes()[1:]] == ["reshape", "transpose"]
    same_values(graph(chain), after, b=2, s=5)


def test_a_guard_of_nan_outside_one_of_hidden_rows() -> None:
    scores = ops.MatMul()(Q, ops.swap_axes(K, 2, 3))
    is_hidden = ops.Reduce("and", (3,))(ops.compare("EQ", scores, -np.inf))
    zeros = ops.full(scores.shape, 0.0)
    weights = ops.where(ops.broadcast_to(ops.expand_dims(is_hidden, 3), scores.shape), zeros, ops.Softmax(3)(scores))
    g = graph(ops.MatMul()(ops.where(ops.IsNan()(weights), zeros, weights), V))
    after = fuse_attention(g)
    assert count(after, ops.Attention) == 1
    data = random_inputs(g, {"b": 1, "s": 3})
    next(x for n, x in zip(g.inputs, data, strict=True) if n is Q)[0, 1, 2, 0] = np.nan
    (want,), (got,) = interpret(g, data), interpret(after, data)
    np.testing.assert_allclose(got, want, atol=1e-6)


def test_masks_that_overflow_on_the_way_are_infinite() -> None:
    """What is finite in the end may have been an infinity between: 1e30 in f16, twice 3e38 in f32."""
    keep = arg("m", B, 1, 1, S, dtype=boolean)

    def mask(low: float) -> Node:
        return ops.where(keep, ops.full(keep.shape, 0.0), ops.full(keep.shape, low))

    for added in (ops.cast(ops.cast(mask(-1e30), f16), f32), ops.mul(ops.add(mask(-3e38), mask(-3e38)), 0.5)):
        g = written_out(added)
        after = fuse_attention(g)
        assert count(after, ops.Attention) == 1
        inputs = [np.zeros((2, 1, 1, 3), bool), *(np.ones((2, 2, 3, 4), np.float32),) * 3]
        inputs = [inputs[0] if n.dtype == boolean else inputs[1] for n in g.inputs]
        with np.errstate(all="ignore"):
            (want,), (got,) = interpret(g, inputs), interpret(after, inputs)
        assert np.isnan(want).all() and np.isnan(got).all()


LOWEST = float(np.finfo(np.float32).min)
SCORES = (B, 2, S, S)


def with_scores(process: Callable[[Node], Node]) -> Graph:
    scores = process(ops.MatMul()(Q, ops.swap_axes(K, 2, 3)))
    return graph(ops.MatMul()(ops.Softmax(3)(scores), V))


def wide(x: Node) -> Node:
    return ops.broadcast_to(x, SCORES)


def low(value: float = LOWEST) -> Node:
    return ops.full(SCORES, value)


BIAS, SEEN = arg("bias", 2, 1, S), arg("seen", B, 1, S, S, dtype=boolean)
WRITTEN = {
    "replaced by the lowest number": lambda s: ops.where(wide(SEEN), s, low()),
    "filled, a mask after it": lambda s: ops.add(ops.where(wide(SEEN), s, low()), wide(arg("pad", B, 1, 1, S))),
    "filled, a mask before it": lambda s: ops.where(wide(SEEN), low(), ops.add(s, wide(BIAS))),
    "a mask before the scale": lambda s: ops.div(ops.add(s, wide(BIAS)), 3.0),
    "a mask subtracted": lambda s: ops.sub(ops.mul(s, 0.3), wide(BIAS)),
    "a hiding condition before the scale": lambda s: ops.mul(ops.where(wide(SEEN), s, low(-np.inf)), 0.5),
    "capped, then scaled": lambda s: ops.mul(ops.Tanh()(ops.mul(s, 0.2)), 7.0),
    "a factor of each head": lambda s: ops.add(ops.mul(s, wide(arg("t", 2, 1, 1))), wide(BIAS)),
    "a factor of each query": lambda s: ops.mul(wide(arg("t", B, 1, S, 1)), s),
    "a factor of each key": lambda s: ops.mul(s, wide(arg("t", B, 1, 1, S))),
}


@pytest.mark.parametrize("written", WRITTEN)
def test_ways_to_write_scores(written: str) -> None:
    g = with_scores(WRITTEN[written])
    after = fuse_attention(g)
    assert count(after, ops.Attention) == 1 and count(after, ops.Softmax, ops.MatMul) == 0
    for sizes in ({"b": 2, "s": 5}, {"b": 1, "s": 1}):
        with np.errstate(all="ignore"):
            same_values(g, after, 1e-5, **sizes)


NOT_ATTENTION = {
    "a number that scores are not small beside": lambda s: ops.where(wide(SEEN), s, low(-1e9)),
    "a division by 0": lambda s: ops.div(s, 0.0),
    "a cap over a mask": lambda s: ops.Tanh()(ops.add(s, wide(BIAS))),
    "a condition times a negative number": lambda s: ops.mul(ops.where(wide(SEEN), s, low(-np.inf)), -0.5),
    "a factor of each score": lambda s: ops.mul(s, wide(arg("t", S, S))),
    "scores in a wider type": lambda s: ops.cast(ops.cast(s, f64), f32),
}


@pytest.mark.parametrize("written", NOT_ATTENTION)
def test_scores_that_attention_does_not_compute(written: str) -> None:
    g = with_scores(NOT_ATTENTION[written])
    assert count(fuse_attention(g), ops.Attention) == 0


def test_a_row_whose_scores_are_all_replaced_has_equal_weights() -> None:
    g = with_scores(WRITTEN["filled, a mask after it"])
    after = fuse_attention(g)
    rng = np.random.default_rng(5)
    values = {label: rng.standard_normal((2, 2, 4, 4)).astype(np.float32) for label in "qkv"}
    values["seen"] = np.tril(np.ones((4, 4), bool))[None, None].repeat(2, 0)
    values["seen"][1, 0, 3] = False
    values["pad"] = np.where(np.arange(4) < [[0], [2]], LOWEST, 0).astype(np.float32)[:, None, None]
    data = [values[n.op.label] for n in g.inputs]  # type: ignore[attr-defined]
    with np.errstate(all="ignore"):
        (want,), (got,) = interpret(g, data), interpret(after, data)
    np.testing.assert_allclose(got, want, atol=1e-6)
    np.testing.assert_allclose(got[1, :, 3], values["v"][1, :, 2:].mean(1), atol=1e-6)


@pytest.mark.parametrize("dtype", [bf16, f16])
def test_narrow_attention_is_rounded_once(dtype: DType) -> None:
    """Written with a rounding after each step, or in float32 between; at least as close to exact arithmetic."""
    q, k, v = (arg(label, B, 2, S, 4, dtype=dtype) for label in "qkv")

    def narrow() -> Node:
        scores = ops.cast(ops.mul(ops.cast(ops.MatMul()(q, ops.swap_axes(k, 2, 3)), f32), 0.5), dtype)
        return ops.cast(ops.Softmax(3)(ops.cast(scores, f32)), dtype)

    def upcast() -> Node:
        scores = ops.MatMul()(ops.cast(q, f32), ops.swap_axes(ops.cast(k, f32), 2, 3))
        return ops.cast(ops.Softmax(3)(ops.mul(scores, 0.5)), dtype)

    exact = ops.Softmax(3)(ops.mul(ops.MatMul()(*(ops.cast(x, f64) for x in (q, ops.swap_axes(k, 2, 3)))), 0.5))
    want_graph = graph(ops.MatMul()(exact, ops.cast(v, f64)))
    for weights in (narrow(), upcast()):
        g = graph(ops.MatMul()(weights, v))
        after = fuse_attention(g)
        (op,) = [n for n in after.nodes() if isinstance(n.op, ops.Attention)]
        assert op.dtype == dtype and [x.dtype for x in op.inputs] == [dtype] * 3
        data = random_inputs(g, {"b": 2, "s": 9})
        by_label = {n.op.label: x for n, x in zip(g.inputs, data, strict=True)}  # type: ignore[attr-defined]
        (want,) = interpret(want_graph, [by_label[n.op.label] for n in want_graph.inputs])  # type: ignore[attr-defined]
        before_error, after_error = (np.abs(interpret(x, data)[0].astype(np.float64) - want).max() for x in (g, after))
        assert after_error <= before_error


def test_float32_scores_of_narrow_values_stay_in_float32() -> None:
    v = arg("v", B, 2, S, 4, dtype=bf16)
    weights = ops.Softmax(3)(ops.MatMul()(Q, ops.swap_axes(K, 2, 3)))
    for g in (graph(ops.MatMul()(ops.cast(weights, bf16), v)), graph(ops.MatMul()(weights, ops.cast(v, f32)))):
        after = fuse_attention(g)
        (op,) = [n for n in after.nodes() if isinstance(n.op, ops.Attention)]
        assert op.inputs[0].dtype == op.dtype == f32 and after.outputs[0].type == g.outputs[0].type
        same_values(g, after, 1e-2, b=2, s=5)


def test_masks_of_windows_are_regrouped_with_the_heads() -> None:
    """Swin v2: windows are split from the batch for a mask of each, which all samples and heads share."""
    q, k, v = (arg(label, B * 3, 2, 5, 4) for label in "qkv")
    shape, bias, shift = (B, 3, 2, 5, 5), arg("bias", 1, 2, 5, 5), arg("shift", 1, 3, 1, 5, 5)
    scores = ops.MatMul()(q, ops.swap_axes(k, 2, 3))
    scores = ops.reshape(ops.add(scores, ops.broadcast_to(bias, scores.shape)), shape)
    scores = ops.reshape(ops.add(scores, ops.broadcast_to(shift, shape)), (B * 3, 2, 5, 5))
    g = graph(ops.MatMul()(ops.Softmax(3)(scores), v))
    after = fuse_attention(g)
    assert count(after, ops.Attention) == 1 and count(after, ops.Softmax) == 0
    same_values(g, after, 1e-5, b=2)


def test_weights_that_are_read_elsewhere_stay() -> None:
    """A forward pass that saves them would compute the scores twice."""
    (product,) = with_scores(lambda s: s).outputs
    weights = product.inputs[0]
    for other in (weights, ops.cast(weights, bf16), ops.reduce_sum(weights, (0,))):
        assert count(fuse_attention(graph(product, other)), ops.Attention) == 0
