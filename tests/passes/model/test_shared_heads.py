"""Keys and values that are repeated for groups of query heads."""

from __future__ import annotations

import pytest

from ingot import ops
from ingot.ir.node import Node
from ingot.ir.types import bf16, f32
from ingot.passes.model.fuse_attention import fuse_attention
from ingot.passes.model.shared_heads import share_gradients
from tests.passes.check import arg, count, graph, same_values

Q, G, K, V = (arg(label, 2, heads, 5, 4) for label, heads in (("q", 6), ("g", 6), ("k", 2), ("v", 2)))


def repeated(x: Node, tail: int = 3) -> Node:
    wide = ops.BroadcastInDim((2, 2, tail, 5, 4), (0, 1, 2, 3, 4))(ops.reshape(x, (2, 2, 1, 5, 4)))
    return ops.reshape(wide, (2, 2 * tail, 5, 4))


def group_sums(x: Node) -> Node:
    return ops.Reduce("sum", (2,))(ops.reshape(x, (2, 2, 3, 5, 4)))


def gradients(*masks: Node) -> tuple[Node, ...]:
    return ops.AttentionGradients("none" if masks else "upper_left", 0.5)(
        Q, repeated(K), repeated(V), G, *masks
    ).results


@pytest.mark.parametrize("masks", [(), (arg("m", 2, 6, 5, 5),)], ids=["causal", "mask"])
def test_sums_of_gradients_are_those_of_what_is_repeated(masks: tuple[Node, ...]) -> None:
    dq, dk, dv = gradients(*masks)
    before = graph(dq, ops.Tanh()(group_sums(dk)), ops.cast(group_sums(dv), bf16))
    after = share_gradients(before)
    (n,) = (n for n in after.nodes() if isinstance(n.op, ops.AttentionGradients))
    assert n.inputs[1].shape == K.shape and count(after, ops.Reduce) == 0
    same_values(before, after, 1e-5)


def test_gradients_that_are_read_apart_stay() -> None:
    dq, dk, dv = gradients()
    split = ops.reshape(dv, (2, 2, 3, 5, 4))
    others = (dv, ops.Reduce("sum", (1,))(split), ops.Reduce("sum", (2,))(dv), ops.Tanh()(split))
    for results in ((dq, group_sums(dk), x) for x in others):
        before = graph(*results)
        assert share_gradients(before).outputs == before.outputs


def test_attention_that_keeps_its_sums_reads_what_is_repeated() -> None:
    y, sums = ops.AttentionWithSums("upper_left", 0.5)(Q, repeated(K), repeated(V)).results
    before = graph(y, ops.cast(sums, f32))
    after = fuse_attention(before)
    (n,) = (n for n in after.nodes() if isinstance(n.op, ops.AttentionWithSums))
    assert n.inputs[1].shape == n.inputs[2].shape == K.shape
    same_values(before, after, 1e-5)
