"""Passes that move data or save moving it: layouts, view chains, nested concats, merged matmuls."""

from __future__ import annotations

import numpy as np
import pytest

from ingot import ops
from ingot.ir.dims import exact_quotient, symbol
from ingot.ir.node import Graph, Node, const
from ingot.ir.types import f16, f32
from ingot.ops.group import Group
from ingot.passes.core.layout import assign_layouts, explicit_padding
from ingot.passes.core.simplify import simplify
from ingot.passes.core.storage.nest_concats import nest_concats
from ingot.passes.core.storage.shared_copies import share_copies
from ingot.passes.fusion.fuse import fuse
from ingot.passes.model.merge_matmuls import merge_matmuls
from tests.passes.check import arg, count, graph, same_values

RNG = np.random.default_rng(0)


def weight(*shape: int) -> Node:
    return const(RNG.normal(size=shape).astype(np.float32))


def conv(x: Node, w: Node, layouts: str = "NCHW OIHW NCHW", padding: int = 0) -> Node:
    pads = ((padding, padding),) * 2
    lhs, rhs, result_layout = layouts.split()
    return ops.Convolution((1, 1), pads, (1, 1), (1, 1), lhs, rhs, result_layout)(x, w)


# --- layout


def test_convolutions_go_channels_last_and_what_follows_stays() -> None:
    y = ops.Exp()(conv(arg("x", 2, 16, 5, 6), weight(8, 16, 3, 3)))
    before = graph(conv(y, weight(4, 8, 1, 1)))
    after = assign_layouts(before)
    assert count(after, ops.Transpose) == 2  # at the model's edges alone
    assert {n.op.lhs_layout for n in after.nodes() if isinstance(n.op, ops.Convolution)} == {"NHWC"}
    same_values(before, after, 1e-5)


@pytest.mark.parametrize("layouts", ["NHWC HWIO NHWC", "CNHW IOHW NCHW", "NCHW OIHW NHWC", "HNCW OHIW WCNH"])
def test_every_convolution_layout(layouts: str) -> None:
    first, kernel, _ = layouts.split()
    sizes = dict(N=2, C=16, H=5, W=6, O=8, I=16)
    x = arg("x", *(sizes[c] for c in first))
    w = weight(*(dict(sizes, H=3, W=2)[c] for c in kernel))
    before = graph(conv(x, w, layouts, 1))
    same_values(before, explicit_padding(assign_layouts(before)), 1e-5)


def test_ops_behind_a_convolution_follow_its_layout() -> None:
    y = conv(arg("x", 2, 16, 5, 6), weight(8, 16, 3, 3))
    z = ops.Concat(1)(y, ops.Tanh()(y))
    mean = ops.Reduce("sum", (2, 3))(z)
    flat = ops.Reshape((2, 16 * 3 * 4))(z)
    before = graph(mean, flat, ops.Slice((0, 3, 0, 0), (2, 9, 3, 4), (1, 2, 1, 1))(z))
    same_values(before, assign_layouts(before), 1e-5)


def test_a_repeated_bias_follows_what_it_is_added_to() -> None:
    """A table [n, n, heads], as windowed attention has it, beside scores [windows, heads, n, n]."""
    table, scores = arg("table", 5, 5, 3), arg("scores", 8, 3, 5, 5)
    bias = ops.BroadcastInDim(scores.shape, (1, 2, 3))(ops.Transpose((2, 0, 1))(table))
    image = conv(arg("x", 2, 16, 5, 6), weight(8, 16, 3, 3))
    before = graph(ops.Exp()(ops.add(bias, scores)), image)
    after = assign_layouts(before)
    assert {n.shape for n in after.nodes() if isinstance(n.op, ops.Exp)} == {scores.shape}
    same_values(before, after, 1e-5)


def test_a_graph_without_convolutions_is_left_alone() -> None:
    before = graph(ops.Transpose((1, 0))(arg("x", 3, 4)))
    assert assign_layouts(before) is before


# --- view chains


def test_a_chain_that_comes_back_is_gone() -> None:
    x = arg("x", 24, symbol("s"), 8)
    y = ops.Reshape((3, 8, 8, symbol("s")))(ops.Transpose((0, 2, 1))(x))
    after = simplify(graph(ops.Transpose((0, 1, 3, 2))(y)))
    assert count(after, ops.Transpose) == 0


@pytest.mark.parametrize("seed", range(20))
def test_random_view_chains(seed: int) -> None:
    rng = np.random.default_rng(seed)
    node = arg("x", *(int(n) for n in rng.choice([1, 2, 3, 4, 6], 3)), symbol("s"))
    for _ in range(6):
        shape = list(node.shape)
        if rng.random() < 0.5:
            node = ops.Transpose(tuple(rng.permutation(len(shape)).tolist()))(node)
            continue
        at = int(rng.integers(len(shape)))
        part = exact_quotient(shape[at], 2)
        if part is not None and len(shape) < 6:
            shape[at : at + 1] = [2, part]
        elif len(shape) > 2 and at:
            shape[at - 1 : at + 1] = [shape[at - 1] * shape[at]]
        node = ops.Reshape(tuple(shape))(node)
    before = graph(node)
    after = simplify(before)
    same_values(before, after, s=3)
    assert len(after.nodes()) <= len(before.nodes())


# --- concats


def test_copies_of_the_same_elements_are_one() -> None:
    """Heads that are merged behind the rows, for a product and for the gradient of its weight."""
    heads = ops.Exp()(arg("heads", 3, 4, 5, 7, 8))
    rows = ops.Reshape((20, 168))(ops.Transpose((1, 2, 0, 3, 4))(heads))
    columns = ops.Reshape((168, 20))(ops.Transpose((0, 3, 4, 1, 2))(heads))
    images = ops.Reshape((1, 4, 5, 168))(ops.Transpose((1, 2, 0, 3, 4))(heads))
    others = ops.Reshape((12, 280))(ops.Transpose((2, 0, 3, 1, 4))(ops.Reshape((12, 5, 1, 7, 8))(heads)))
    product, gradient = (
        ops.DotGeneral(((), ()), ((1,), (0,)))(x, weight(n, 6)) for x, n in ((rows, 168), (columns, 20))
    )
    before = graph(product, gradient, images, others)
    after = share_copies(before)
    same_values(before, after, 1e-4)
    assert share_copies(after).outputs == after.outputs
    groups = [n for n in fuse(after).nodes() if isinstance(n.op, Group)]
    copies = [g for g in groups if g.shape == images.shape]
    assert len(copies) == 1 and not any(g.shape in (rows.shape, columns.shape) for g in groups)


def test_concats_with_a_common_start_are_nested() -> None:
    a, b, c, d = (ops.Exp()(arg(n, 2, 3)) for n in "abcd")
    short, long = ops.Concat(1)(a, b), ops.Concat(1)(a, b, c)
    before = graph(short, long, ops.Concat(1)(a, b, c, d), ops.Concat(0)(a, b, c))
    after = nest_concats(before)
    one, two, three, other = after.outputs
    assert two.inputs[0] is one and three.inputs[0] is two and len(other.inputs) == 3
    same_values(before, after)


# --- matmuls


def heads(x: Node, w: Node, bias: Node | None) -> Node:
    y = ops.MatMul()(x, w)
    if bias is not None:
        y = ops.add(y, bias)
    return ops.Reshape((symbol("s"), 2, 4))(y)


def test_projections_of_one_value_become_one_product() -> None:
    x = arg("x", symbol("s"), 8)
    before = graph(*(heads(x, weight(8, 8), b) for b in (weight(8), None, weight(8))))
    after = merge_matmuls(before)
    assert count(before, ops.MatMul) == 3 and count(after, ops.MatMul) == 1
    same_values(before, after, 1e-5, s=3)


def test_projections_whose_sums_are_wider_than_what_is_stored() -> None:
    x = arg("x", symbol("s"), 8, dtype=f16)

    def half(bias: Node | None) -> Node:
        w = const(RNG.normal(size=(8, 8)).astype(np.float16))
        if bias is None:
            return ops.MatMul()(x, w)
        y = ops.MatMul(f32)(x, w)
        return ops.Convert(f16)(ops.Add()(y, ops.BroadcastInDim(y.shape, (1,))(bias)))

    before = graph(*(ops.Reshape((symbol("s"), 2, 4))(half(b)) for b in (weight(8), None, weight(8))))
    after = merge_matmuls(before)
    assert count(after, ops.MatMul) == 1
    same_values(before, after, 0, s=3)


def test_a_bias_that_repeats_one_number_stays_outside() -> None:
    x = arg("x", symbol("s"), 8)
    one = ops.BroadcastInDim((symbol("s"), 8), (1,))(weight(1))
    before = graph(heads(x, weight(8, 8), one), heads(x, weight(8, 8), None))
    same_values(before, merge_matmuls(before), 1e-5, s=3)


def test_a_product_that_is_an_output_stays() -> None:
    x = arg("x", symbol("s"), 8)
    y = ops.MatMul()(x, weight(8, 8))
    before = Graph((x,), (y, ops.Reshape((symbol("s"), 2, 4))(ops.MatMul()(x, weight(8, 8)))))
    assert count(merge_matmuls(before), ops.MatMul) == 2
