from __future__ import annotations

import numpy as np
import pytest

from ingot import ops
from ingot.ir.dims import DimLike, is_at_most, symbol
from ingot.ir.node import Graph, Node
from ingot.ir.types import DType, TensorType, bf16, boolean, f16, f32, i64
from ingot.passes.core.simplify import simplify
from tests.passes.check import arg, graph, same_values

S = symbol("s")
B = symbol("b")
Q, K, V = (arg(label, B, 2, S, 4) for label in "qkv")
SHAPE = (B, 1, S, S)


def at(dim: int) -> Node:
    return ops.Iota(TensorType(i64, SHAPE), dim)()


def added(keep: Node, hidden: float = -np.inf) -> Node:
    return ops.where(keep, ops.full(keep.shape, 0.0), ops.full(keep.shape, hidden))


def attention(g: Graph) -> Node:
    (result,) = [n for n in g.nodes() if isinstance(n.op, ops.Attention)]
    return result


CAUSAL = ops.compare("LE", at(3), at(2))
LOWEST = float(np.finfo(np.float32).min)


@pytest.mark.parametrize(
    "mask",
    [
        CAUSAL,
        ops.compare("GT", ops.add(at(2), 1), at(3)),
        added(CAUSAL),
        added(CAUSAL, LOWEST),
        ops.Not()(ops.compare("LT", at(2), at(3))),
        ops.reshape(added(ops.reshape(CAUSAL, (B, S, S))), SHAPE),
    ],
)
def test_causal_masks_become_an_attribute(mask: Node) -> None:
    g = graph(ops.Attention("none", 0.5)(Q, K, V, mask))
    after = simplify(g)
    result = attention(after)
    assert result.op.causal == "upper_left" and len(result.inputs) == 3  # type: ignore[attr-defined]
    same_values(g, after, 1e-6, b=2, s=5)


def test_other_conditions_stay_a_mask() -> None:
    keep = ops.broadcast_to(ops.reshape(arg("m", B, S, dtype=boolean), (B, 1, 1, S)), SHAPE)
    g = graph(ops.Attention("none", 0.5)(Q, K, V, added(ops.and_(CAUSAL, keep))))
    after = simplify(g)
    result = attention(after)
    assert result.op.causal == "upper_left" and result.inputs[3].dtype == boolean  # type: ignore[attr-defined]
    same_values(g, after, 1e-6, b=2, s=5)


@pytest.mark.parametrize("direction", ["LT", "GE", "GT", "EQ"])
def test_conditions_that_are_not_causal_stay(direction: str) -> None:
    g = graph(ops.Attention("none", 0.5)(Q, K, V, added(ops.compare(direction, at(3), at(2)))))
    after = simplify(g)
    assert attention(after).op.causal == "none"  # type: ignore[attr-defined]
    same_values(g, after, 1e-6, b=2, s=5)


def test_cached_keys_are_lower_right() -> None:
    extra = symbol("t")
    k, v = (arg(label, B, 2, S + extra, 4) for label in "kv")
    shape = (B, 1, S, S + extra)
    row, col = (ops.Iota(TensorType(i64, shape), d)() for d in (2, 3))
    visible = ops.compare("LE", col, ops.add(row, ops.full(shape, extra, i64)))
    g = graph(ops.Attention("none", 0.5)(Q, k, v, added(visible)))
    after = simplify(g)
    assert attention(after).op.causal == "lower_right"  # type: ignore[attr-defined]
    same_values(g, after, 1e-6, b=2, s=3, t=4)


@pytest.mark.parametrize("hidden", [-np.inf, LOWEST])
def test_what_is_added_beside_stays(hidden: float) -> None:
    bias = ops.broadcast_to(ops.cast(arg("i", 1, 2, 1, S, dtype=i64), f32), (B, 2, S, S))
    wide = ops.broadcast_to(added(CAUSAL, hidden), (B, 2, S, S))
    g = graph(ops.Attention("none", 0.5)(Q, K, V, ops.add(wide, bias)))
    after = simplify(g)
    result = attention(after)
    assert result.op.causal == "upper_left" and len(result.inputs) == 4  # type: ignore[attr-defined]
    same_values(g, after, 1e-6, b=2, s=5)


def test_only_zeros_are_idle() -> None:
    """Of scores that -1e9 is added to, little or nothing is left."""
    for value, is_kept in ((0.0, False), (-1e9, True), (LOWEST, True)):
        mask = ops.full(SHAPE, value)
        after = simplify(graph(ops.Attention("none", 0.5)(Q, K, V, mask)))
        assert (len(attention(after).inputs) == 4) == is_kept


@pytest.mark.parametrize(("rows", "cols"), [(5, 3), (3, 5), (S, S + 2), (S + 2, S)])
def test_a_finite_minus_infinity_hides_nothing_from_rows_that_see_no_key(rows: DimLike, cols: DimLike) -> None:
    q, k, v = (arg(label, 1, 2, n, 4) for label, n in (("q", rows), ("k", cols), ("v", cols)))
    row, col = (ops.Iota(TensorType(i64, (1, 1, rows, cols)), d)() for d in (2, 3))
    visible = ops.compare("LE", col, ops.add(row, ops.full(row.shape, cols - rows, i64)))
    g = graph(ops.Attention("none", 0.5)(q, k, v, added(visible, LOWEST)))
    after = simplify(g)
    assert (attention(after).op.causal == "lower_right") == is_at_most(rows, cols)  # type: ignore[attr-defined]
    same_values(g, after, 1e-6, s=4)


@pytest.mark.parametrize(("low", "causal"), [(-1e4, "upper_left"), (-3e38, "none")])
def test_what_is_added_to_a_finite_minus_infinity_is_small(low: float, causal: str) -> None:
    """Else keys that the order hides are no further away than others."""
    keep = arg("m", B, S, dtype=boolean)
    padding = ops.where(keep, ops.full(keep.shape, 0.0), ops.full(keep.shape, low))
    padding = ops.broadcast_to(ops.reshape(padding, (B, 1, 1, S)), SHAPE)
    g = graph(ops.Attention("none", 0.5)(Q, K, V, ops.add(added(CAUSAL, LOWEST), padding)))
    assert attention(simplify(g)).op.causal == causal  # type: ignore[attr-defined]


@pytest.mark.parametrize("dtype", [f32, bf16, f16])
@pytest.mark.parametrize("hidden", [-np.inf, -1e3, -65504.0, -3e38, np.nan])
def test_attention_of_training_is_causal_in_both_passes(dtype: DType, hidden: float) -> None:
    """PyTorch adds float16's lowest number to hidden scores of 16 bits, and bfloat16 has no such number; transformers
    adds bfloat16's own."""
    q, k, v, g = (arg(label, 2, 2, 5, 4, dtype=dtype) for label in "qkvg")
    row, col = (ops.Iota(TensorType(i64, (1, 1, 5, 5)), d)() for d in (2, 3))
    with np.errstate(over="ignore"):
        zero, low = (ops.full(row.shape, value, dtype) for value in (0.0, hidden))
    mask = ops.where(ops.compare("LE", col, row), zero, low)
    y, sums = ops.AttentionWithSums("none", 0.5)(q, k, v, mask).results
    before = graph(y, sums, *ops.AttentionGradients("none", 0.5)(q, k, v, g, y, sums, mask).results)
    after = simplify(before)
    ops_after = [n.op for n in after.nodes() if isinstance(n.op, ops.AttentionWithSums | ops.AttentionGradients)]
    is_minus_infinity = hidden == -np.inf or (hidden in (-65504.0, -3e38) and dtype != f32)
    assert [op.causal for op in ops_after] == ["upper_left" if is_minus_infinity else "none"] * 2
    same_values(before, after, 1e-6 if dtype == f32 else 2e-2)


def test_attention_of_training_drops_idle_masks() -> None:
    q, k, v, g = (arg(label, 2, 2, 5, 4) for label in "qkvg")
    zeros = ops.full((1, 1, 5, 5), 0.0)
    y, sums = ops.AttentionWithSums("none", 0.5)(q, k, v, zeros).results
    before = graph(y, *ops.AttentionGradients("none", 0.5)(q, k, v, g, y, sums, zeros).results)
    after = simplify(before)
    counts = [len(n.inputs) for n in after.nodes() if isinstance(n.op, ops.AttentionWithSums | ops.AttentionGradients)]
    assert counts == [3, 6]
    same_values(before, after, 1e-6)


@pytest.mark.parametrize("batch", [B, 1])
def test_a_mask_that_all_heads_share_is_computed_once(batch: DimLike) -> None:
    """A sliding window of transformers: of positions, expanded to samples and heads, beside the causal order."""
    full = (batch, 2, S, S)
    q, k, v = (arg(label, batch, 2, S, 4) for label in "qkv")
    row, col = (
        ops.broadcast_to(arg(label, *shape, dtype=i64), (batch, 1, S, S))
        for label, shape in (("row", (1, 1, S, 1)), ("col", (1, 1, 1, S)))
    )
    across, down = (ops.Iota(TensorType(i64, (batch, 1, S, S)), d)() for d in (3, 2))
    keep = ops.and_(ops.compare("GT", ops.add(col, 3), row), ops.compare("LE", across, down))
    g = graph(ops.Attention("none", 0.5)(q, k, v, ops.broadcast_to(added(keep), full)))
    after = simplify(g)
    assert attention(after).inputs[3].shape == (1, 1, S, S)
    same_values(g, after, 1e-6, b=2, s=5)


def test_a_mask_that_reads_each_value_twice_is_visited_once() -> None:
    """Paths to its operands double in every step."""
    q, k, v = (arg(label, 2, 3, 5, 4) for label in "qkv")
    row, col = (
        ops.broadcast_to(arg(label, *shape), (2, 3, 5, 5)) for label, shape in (("row", (5, 1)), ("col", (1, 5)))
    )
    mask = ops.add(row, col)
    for _ in range(40):
        mask = ops.sub(ops.mul(mask, 0.5), ops.Tanh()(mask))
    g = graph(ops.Attention("none", 0.5)(q, k, v, mask))
    after = simplify(g)
    assert attention(after).inputs[3].shape == (1, 1, 5, 5)
    same_values(g, after, 1e-6)
