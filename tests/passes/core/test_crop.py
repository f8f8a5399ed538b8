"""Sums of products become as small as what is read of them."""

from __future__ import annotations

import numpy as np
import pytest

from ingot import ops
from ingot.ir.dims import DimLike, symbol
from ingot.ir.node import Graph, Node, const
from ingot.ops import build as op
from ingot.passes.core.crop import crop_unread
from ingot.passes.model.lower import lower_model_ops
from tests.passes.check import arg, count, graph, same_values

RNG = np.random.default_rng(0)
WIDTH, HEADS = 8, 2


def weights(*shape: int) -> Node:
    return const(RNG.normal(size=shape).astype(np.float32))


def norm(x: Node) -> Node:
    return ops.LayerNorm((x.type.rank - 1,))(x, weights(WIDTH), weights(WIDTH))


def layer(x: Node, causal: str) -> Node:
    """A transformer's layer."""
    b, s, _ = x.shape
    joint = op.reshape(op.linear(norm(x), weights(3 * WIDTH, WIDTH)), (b, s, 3, HEADS, WIDTH // HEADS))
    q, k, v = (op.index_axis(op.transpose(joint, (2, 0, 3, 1, 4)), 0, i) for i in range(3))
    y = op.transpose(ops.Attention(causal)(q, k, v), (0, 2, 1, 3))
    x = op.add(x, op.linear(op.reshape(y, (b, s, WIDTH)), weights(WIDTH, WIDTH)))
    hidden = ops.Gelu()(op.linear(norm(x), weights(4 * WIDTH, WIDTH), weights(4 * WIDTH)))
    return op.add(x, op.linear(hidden, weights(WIDTH, 4 * WIDTH)))


def lowered(*outputs: Node) -> Graph:
    return lower_model_ops(graph(*outputs), frozenset({ops.Attention}), lambda n: True)


def products(g: Graph) -> list[tuple[DimLike, ...]]:
    return [n.shape for n in g.nodes() if isinstance(n.op, ops.DotGeneral | ops.Convolution)]


@pytest.mark.parametrize("causal", ["none", "upper_left", "lower_right"])
@pytest.mark.parametrize("at", [0, -1])
@pytest.mark.parametrize("length", [7, symbol("s")])
def test_last_layer_for_one_token(length: DimLike, at: int, causal: str) -> None:
    x = layer(layer(arg("x", 2, length, WIDTH), causal), causal)
    g = lowered(op.linear(norm(op.index_axis(x, 1, at)), weights(5, WIDTH)))
    after = crop_unread(g)
    (attention,) = [n for n in after.nodes() if isinstance(n.op, ops.Attention)][1:]
    assert attention.shape[2] == 1 and attention.inputs[1].shape[2] == length
    assert products(after)[4:] == [(2, length, 24), (2, 1, 8), (2, 1, 32), (2, 1, 8), (2, 5)]
    same_values(g, after, 1e-4, s=6)


def test_query_amid_causal_ones_stays() -> None:
    x = layer(arg("x", 2, 7, WIDTH), "upper_left")
    g = lowered(op.index_axis(x, 1, 3))
    after = crop_unread(g)
    assert [n.shape[2] for n in after.nodes() if isinstance(n.op, ops.Attention)] == [7]
    assert products(after)[1:] == [(2, 1, 8), (2, 1, 32), (2, 1, 8)]
    same_values(g, after, 1e-4)


def test_readers_share_what_both_need() -> None:
    x = arg("x", 2, 9, WIDTH)
    y = ops.Tanh()(op.linear(x, weights(6, WIDTH)))
    g = graph(op.index_axis(y, 1, 1), op.slice_axis(y, 1, 3, 5))
    after = crop_unread(g)
    assert products(after) == [(2, 4, 6)] and count(after, ops.Tanh) == 1
    same_values(g, after, 1e-5)


def test_value_that_another_reads_whole_stays() -> None:
    y = op.linear(arg("x", 2, 9, WIDTH), weights(6, WIDTH))
    g = graph(op.index_axis(y, 1, 0), op.reduce_sum(y, 1))
    assert crop_unread(g) is g


def test_columns_that_nobody_reads_leave_the_weights() -> None:
    g = graph(op.slice_axis(op.linear(arg("x", 3, WIDTH), weights(12, WIDTH), weights(12)), 1, 4, 8))
    after = crop_unread(g)
    assert products(after) == [(3, 4)]
    same_values(g, after, 1e-5)


def test_channels_that_nobody_reads_leave_a_convolution() -> None:
    w = weights(6, 3, 3, 3)
    y = ops.Convolution((1, 1), ((1, 1), (1, 1)), (1, 1), (1, 1), "NCHW", "OIHW", "NCHW")(arg("x", 2, 3, 5, 6), w)
    g = graph(op.slice_axis(ops.Tanh()(y), 1, 1, 3))
    after = crop_unread(g)
    assert products(after) == [(2, 2, 5, 6)]
    same_values(g, after, 1e-5)


def test_part_that_saves_little_stays() -> None:
    g = graph(op.slice_axis(op.linear(arg("x", 2, 9, WIDTH), weights(6, WIDTH)), 1, 1, 9))
    assert crop_unread(g) is g


def test_pointwise_ops_behind_a_whole_image_stay() -> None:
    x = arg("x", 2, 3, 8, 8)
    y = ops.Convolution((1, 1), ((0, 0), (0, 0)), (1, 1), (1, 1), "NCHW", "OIHW", "NCHW")(x, weights(4, 3, 3, 3))
    g = graph(op.slice_axis(ops.Tanh()(y), 2, 2, 4))
    assert crop_unread(g) is g


def test_operands_of_a_concat_that_nobody_reads_go() -> None:
    x = arg("x", 2, 9, WIDTH)
    a, b, c = (op.linear(x, weights(n, WIDTH)) for n in (4, 5, 6))
    g = graph(op.slice_axis(ops.Tanh()(op.concat([a, b, c], 2)), 2, 5, 8))
    after = crop_unread(g)
    assert products(after) == [(2, 9, 3)]
    same_values(g, after, 1e-5)


def test_concat_behind_an_unknown_size_stays() -> None:
    p = symbol("p")
    rows = op.linear(op.concat([arg("past", 2, p, WIDTH), arg("x", 2, 9, WIDTH)], 1), weights(6, WIDTH))
    concatenated = op.concat([op.linear(arg("past", 2, p, WIDTH), weights(6, WIDTH)), rows], 1)
    g = graph(op.slice_axis(ops.Tanh()(concatenated), 1, 0, 1))
    after = crop_unread(g)
    same_values(g, after, 1e-5, p=4)
    same_values(g, after, 1e-5, p=1)


def test_ops_with_several_results_stay() -> None:
    y = op.linear(arg("x", 2, 9, WIDTH), weights(6, WIDTH))
    values = lower_model_ops(graph(*ops.TopK(4, 1)(y).results), frozenset(), lambda n: True).outputs[0]
    g = graph(op.slice_axis(values, 1, 1, 3))
    assert crop_unread(g) is g


def test_strided_reads() -> None:
    y = ops.Tanh()(op.linear(arg("x", 2, 20, WIDTH), weights(6, WIDTH)))
    g = graph(op.slice_axis(op.slice_axis(y, 1, 1, 18, 3), 1, 1, 3))
    after = crop_unread(g)
    assert products(after) == [(2, 4, 6)]
    same_values(g, after, 1e-5)


def test_heads_that_nobody_reads() -> None:
    q, k, v = (arg(n, 2, 4, 5, 8) for n in "qkv")
    g = graph(op.slice_axis(ops.Attention()(q, k, v, arg("m", 5, 5)), 1, 1, 2))
    after = crop_unread(g)
    assert [n.shape for n in after.nodes() if isinstance(n.op, ops.Attention)] == [(2, 1, 5, 8)]
    same_values(g, after, 1e-5)


def test_nothing_of_axes_that_a_reshape_adds() -> None:
    x = op.reshape(ops.Tanh()(op.linear(arg("x", 4, WIDTH), weights(6, WIDTH))), (1, 4, 6))
    same_values(g := graph(op.slice_axis(x, 0, 0, 0)), crop_unread(g), 1e-5)
    one = op.reshape(op.linear(arg("x", 1, WIDTH), weights(1, WIDTH)), (1,))
    same_values(g := graph(op.slice_axis(one, 0, 0, 0)), crop_unread(g), 1e-5)
