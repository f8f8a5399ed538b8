"""Reductions of reshaped images: what becomes of them, and the same values."""

from __future__ import annotations

import numpy as np
import pytest

from ingot import ops
from ingot.ir.dims import DimLike, product, symbol
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input, Node, const
from ingot.ir.types import DType, Shape, TensorType, f16, f32
from ingot.passes.core.reshaped_reductions import reduce_unreshaped
from ingot.passes.model.lower import lower_model_ops

RNG = np.random.default_rng(11)


def convolved(x: Node) -> Node:
    """A 1x1 convolution: what makes images lie with channels last."""
    c = x.shape[1]
    assert isinstance(c, int)
    weight = const(RNG.normal(size=(c, c, 1, 1)).astype(x.dtype.numpy))
    return ops.Conv((1, 1), ((0, 0), (0, 0)), (1, 1), 1)(x, weight)


def image(*shape: DimLike, dtype: DType = f32) -> Node:
    return Input("x", TensorType(dtype, shape))()


def lowered(x: Node, *outputs: Node) -> Graph:
    return lower_model_ops(Graph((x,), outputs))


def reduced_boxes(graph: Graph) -> set[int]:
    """Ranks of the large values that are reduced."""
    return {n.inputs[0].type.rank for n in graph.nodes() if isinstance(n.op, ops.Reduce) and n.inputs[0].type.rank > 3}


def check_same(graph: Graph, xs: np.ndarray) -> None:
    for at_once in (0, 1 << 20):
        new = reduce_unreshaped(graph, at_once)
        for got, want in zip(interpret(new, [xs]), interpret(graph, [xs]), strict=True):
            np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


def instance_normed(x: Node, groups: int) -> Node:
    """As exporters write a group norm."""
    n, c, *_ = x.shape
    assert isinstance(c, int)
    flat = ops.Reshape((n, groups, product(x.shape[1:]) // groups))(x)
    one = const(np.ones(groups, np.float32))
    y = ops.Reshape(x.shape)(ops.InstanceNorm(1e-5)(flat, one, one))
    return ops.mul(y, ops.BroadcastInDim(x.shape, (1,))(const(RNG.normal(size=c).astype(np.float32))))


def group_normed(x: Node, groups: int) -> Node:
    c = x.shape[1]
    assert isinstance(c, int)
    return ops.GroupNorm(groups)(x, *(const(RNG.normal(size=c).astype(np.float32)) for _ in range(2)))


@pytest.mark.parametrize("sizes", [(5, 7), (1, 1), (4,), (2, 3, 5)])
@pytest.mark.parametrize(
    ("norm", "groups"), [(instance_normed, 1), (instance_normed, 3), (instance_normed, 6), (group_normed, 3)]
)
def test_group_norms_are_reduced_as_images(norm, groups: int, sizes: tuple[int, ...]) -> None:
    x = image(2, 6, *sizes)
    weight = const(RNG.normal(size=(6, 6, *(1 for _ in sizes))).astype(np.float32))
    ones, none = (1,) * len(sizes), ((0, 0),) * len(sizes)
    graph = lowered(x, norm(ops.Conv(ones, none, ones)(x, weight), groups))
    new = reduce_unreshaped(graph)
    shapes = {n.shape for n in new.nodes() if isinstance(n.op, ops.Sub)} - {(2, groups, 1)}
    if sizes != (1, 1):
        assert (2, 6, *sizes) in shapes
    check_same(graph, RNG.normal(size=(2, 6, *sizes)).astype(np.float32))


def test_small_slices_are_reduced_at_once() -> None:
    """Both sums of a norm run over one box, in the order of memory, up to the size that is told."""
    x = image(2, 6, 5, 7)
    graph = lowered(x, group_normed(convolved(x), 3))

    def sums(at_once: int) -> set[tuple[Shape, tuple[int, ...]]]:
        nodes = reduce_unreshaped(graph, at_once).nodes()
        return {(n.inputs[0].shape, n.op.dims) for n in nodes if isinstance(n.op, ops.Reduce)}

    assert sums(70) == {((2, 5, 7, 3, 2), (1, 2, 4))}
    assert sums(69) == sums(0) == {((2, 6, 5, 7), (2, 3)), ((2, 3, 2), (2,))}


def test_matrices_of_a_batch_are_no_images() -> None:
    """Heads of a batch of matrices, summed over the batch: nothing would be gathered."""
    x = image(6, 4, 5)
    heads = ops.Reshape((2, 3, 4, 5))(x)
    rows = ops.BroadcastInDim(heads.shape, (0, 1, 2))(ops.Reduce("sum", (3,))(heads))
    stem = convolved(ops.Reshape((1, 6, 4, 5))(x))
    graph = lowered(x, ops.Reduce("sum", (0,))(ops.sub(heads, rows)), stem)
    assert reduce_unreshaped(graph) is graph


def test_images_of_any_size() -> None:
    x = image(symbol("n"), 4, symbol("h"), symbol("w"))
    y = ops.GroupNorm(2)(convolved(x))
    graph = lowered(x, y)
    assert all(n.shape == x.shape for n in reduce_unreshaped(graph).nodes() if isinstance(n.op, ops.Sub))
    check_same(graph, RNG.normal(size=(3, 4, 5, 6)).astype(np.float32))


def test_nan_and_infinity_stay_in_their_groups() -> None:
    x = image(2, 6, 5, 7)
    graph = lowered(x, instance_normed(ops.mul(convolved(x), 1.0), 3))
    xs = RNG.normal(size=(2, 6, 5, 7)).astype(np.float32)
    xs[1] = 0
    xs[0, 1, 2, 3], xs[0, 4, 0, 0] = np.nan, np.inf
    check_same(graph, xs)


@pytest.mark.parametrize("kind", ["max", "prod", "sum"])
def test_reductions_across_and_within_channels(kind: str) -> None:
    x = image(2, 6, 3, 5)
    y = convolved(x)
    flat = ops.Reshape((2, 3, 30))(y)
    least = ops.BroadcastInDim((2, 3, 30), (0, 1))(ops.Reduce(kind, (2,))(flat))
    graph = lowered(x, ops.Reshape((2, 6, 15))(ops.sub(flat, least)), ops.Reduce("max", (1,))(flat))
    new = reduce_unreshaped(graph)
    assert any(n.shape == (2, 6, 3, 5) and isinstance(n.op, ops.Sub) for n in new.nodes())
    check_same(graph, RNG.normal(size=(2, 6, 3, 5)).astype(np.float32))


def test_what_is_read_as_it_was_reshaped_stays() -> None:
    x = image(2, 6, 3, 5)
    y = ops.Reshape((2, 90))(convolved(x))
    z = ops.sub(y, ops.BroadcastInDim((2, 90), (0,))(ops.Reduce("sum", (1,))(y)))
    product_of = ops.MatMul()(z, const(RNG.normal(size=(90, 4)).astype(np.float32)))
    graph = lowered(x, product_of)
    assert reduce_unreshaped(graph) is graph
    check_same(graph, RNG.normal(size=(2, 6, 3, 5)).astype(np.float32))


def test_narrow_sums_are_not_cut() -> None:
    x = image(2, 6, 3, 5, dtype=f16)
    flat = ops.Reshape((2, 3, 30))(convolved(x))
    graph = lowered(x, ops.Reduce("sum", (2,))(flat))
    assert reduce_unreshaped(graph) is graph


def test_a_region_behind_another() -> None:
    """A norm's backward pass: rows are made an image again, which is reduced, and an image rows."""
    rows = ops.reshape(convolved(image(2, 4, 3, 3)), (2, 2, 18))
    centred = ops.sub(rows, ops.broadcast_to(ops.reduce_sum(rows, 2, keepdims=True), rows.shape))
    exponentials = ops.reshape(ops.Exp()(centred), (2, 4, 3, 3))
    scaled = ops.mul(
        exponentials, ops.broadcast_to(ops.reduce_sum(exponentials, (2, 3), keepdims=True), exponentials.shape)
    )
    x = next(n for n in Graph((), (scaled,)).nodes() if isinstance(n.op, Input))
    check_same(lowered(x, scaled), RNG.normal(size=(2, 4, 3, 3)).astype(np.float32))
