from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ingot import ops
from ingot.ir.interp import interpret
from ingot.ir.node import Node, const
from ingot.ir.rewrite import fueled
from ingot.ir.types import DType, bf16, f16, f32
from ingot.passes.core.fold_constants import fold_constants
from ingot.passes.model.fold_batch_norm import fold_batch_norm
from ingot.passes.model.lower import lower_model_ops
from tests.passes.check import arg, count, graph, same_values

R = np.random.default_rng(0)


def values(*shape: int, low: float = -1.0) -> Node:
    return const(R.uniform(low, 1, shape).astype(np.float32))


def norm(x: Node, channels: int) -> Node:
    c = channels
    return ops.BatchNorm(1e-3)(x, values(c), values(c), values(c), values(c, low=0.1))


def conv(x: Node, out_channels: int, groups: int = 1) -> Node:
    w = values(out_channels, int(x.shape[1]) // groups, 3, 3)  # type: ignore[arg-type]
    return ops.Conv((1, 1), ((1, 1), (1, 1)), (1, 1), groups)(x, w)


def spread(v: Node, like: Node, axis: int = 1) -> Node:
    return ops.BroadcastInDim(like.shape, (axis,))(v)


X = arg("x", 2, 4, 5, 5)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_conv_then_norm(groups: int) -> None:
    g = graph(ops.Relu()(norm(conv(X, 8, groups), 8)))
    folded = fold_batch_norm(g)
    assert count(folded, ops.BatchNorm) == 0
    assert count(folded, ops.Add) == 1
    same_values(g, folded, 1e-4)


def test_conv_bias_norm_norm_is_one_conv_and_bias() -> None:
    y = conv(X, 3)
    y = norm(norm(ops.Add()(y, spread(values(3), y)), 3), 3)
    g = graph(ops.Sub()(spread(values(3), y), y))
    folded = fold_batch_norm(g)
    assert count(folded, ops.BatchNorm, ops.Add, ops.Sub) == 1
    same_values(g, folded, 1e-4)


@pytest.mark.parametrize("groups", [1, 2])
def test_transposed_conv(groups: int) -> None:
    w = values(4, 6 // groups, 3, 3)
    y = ops.ConvTranspose((2, 2), ((1, 1), (1, 1)), (1, 1), (1, 1), groups)(X, w)
    g = graph(norm(y, 6))
    folded = fold_batch_norm(g)
    assert count(folded, ops.BatchNorm) == 0
    same_values(g, folded, 1e-4)


def test_a_norm_behind_sums_that_were_rounded() -> None:
    w = values(3, 4, 3, 3)
    narrow = const(w.op.value.astype(np.float16))  # type: ignore[attr-defined]
    y = ops.Conv((1, 1), ((0, 0), (0, 0)), (1, 1), dtype=f32)(ops.Convert(f16)(X), narrow)
    y = ops.Convert(f16)(ops.Add()(y, spread(values(3), y)))
    g = graph(ops.BatchNorm(1e-3)(y, *(ops.Convert(f16)(v) for v in norm(y, 3).inputs[1:])))
    folded = fold_batch_norm(fold_constants(g))
    assert count(folded, ops.BatchNorm) == 0
    same_values(g, folded, 5e-3)


def test_decomposed_norm_and_scalars() -> None:
    y = conv(X, 4)
    shaped = ops.BroadcastInDim(y.shape, (0, 1, 2, 3))(ops.Reshape((1, 4, 1, 1))(values(4)))
    g = graph(ops.div(ops.add(ops.Mul()(shaped, y), 1.0), 3.0))
    folded = fold_batch_norm(g)
    assert count(folded, ops.Mul, ops.Div) == 0
    same_values(g, folded, 1e-4)


def test_matmul_scales_columns() -> None:
    x = arg("m", 2, 5, 4)
    y = ops.MatMul()(x, values(4, 3))
    g = graph(ops.Mul()(ops.Add()(y, spread(values(3), y, 2)), spread(values(3), y, 2)))
    folded = fold_batch_norm(g)
    assert count(folded, ops.Mul) == 0
    same_values(g, folded, 1e-5)
    flat = ops.MatMul()(arg("n", 5, 4), values(4, 3))
    assert count(fold_batch_norm(graph(norm(flat, 3))), ops.BatchNorm) == 0


def test_leaves_what_it_must() -> None:
    y = conv(X, 4)
    shared = norm(y, 4)
    w = arg("w", 4, 4, 3, 3)
    loose = ops.Conv((1, 1), ((1, 1), (1, 1)), (1, 1), 1)(X, w)
    zero = values(4)
    dead = ops.BatchNorm(0.0)(conv(X, 4), zero, zero, zero, const(np.zeros(4, np.float32)))
    tied = values(4, 4, 3, 3)
    twice = ops.Conv((1, 1), ((1, 1), (1, 1)), (1, 1), 1)(X, tied)
    for g in (
        graph(shared, y),
        graph(ops.Add()(shared, y)),
        graph(norm(loose, 4)),
        graph(dead),
        graph(ops.Add()(y, spread(values(4), y))),
        graph(norm(twice, 4), tied),
        graph(ops.Mul()(y, ops.BroadcastInDim(y.shape, (3,))(values(5)))),
    ):
        assert fold_batch_norm(g) is g


def test_takes_fuel_and_works_along_a_network() -> None:
    y = X
    for _ in range(3):
        y = ops.Relu()(norm(conv(y, 4), 4))
    g = graph(y)
    with fueled(2) as tank:
        assert count(fold_batch_norm(g), ops.BatchNorm) == 1
    assert tank.last == "fold-batch-norm"
    lowered = lower_model_ops(fold_batch_norm(g))
    assert count(lowered, ops.Conv, ops.Relu, ops.BatchNorm) == 0
    same_values(g, lowered, 1e-4)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e38])
def test_weights_that_would_not_be_finite_stay(bad: float, groups: int) -> None:
    """One channel of six: 1e38 overflows when it is scaled, where the others do not."""
    w = R.uniform(-1, 1, (4, 6 // groups, 3, 3)).astype(np.float32)
    w[3, -1, 1, 2] = -bad
    y = ops.ConvTranspose((2, 2), ((1, 1), (1, 1)), (1, 1), (1, 1), groups)(X, const(w))
    factor = const(np.full(6, 1e-3, np.float32))
    assert count(fold_batch_norm(graph(ops.Mul()(y, spread(factor, y)))), ops.Mul) == (0 if bad == 1e38 else 1)
    factor = const(np.array([1, 1, 1, 1, 1, 10], np.float32))
    assert count(fold_batch_norm(graph(ops.Mul()(y, spread(factor, y)))), ops.Mul) == 1


@pytest.mark.parametrize("order", [(0, 2, 3, 1), (1, 0, 2, 3)])
def test_scales_behind_a_transpose(order: tuple[int, ...]) -> None:
    y = ops.Transpose(order)(conv(X, 3))
    place = order.index(1)
    y = ops.Add()(ops.Mul()(y, spread(values(3), y, place)), spread(values(3), y, place))
    g = graph(ops.Relu()(y))
    folded = fold_batch_norm(g)
    assert count(folded, ops.Mul) == 0 and count(folded, ops.Transpose) == 1
    same_values(g, folded, 1e-4)


def test_a_norm_behind_a_transpose_is_of_other_channels() -> None:
    g = graph(norm(ops.Transpose((0, 2, 1, 3))(conv(X, 5)), 5))
    assert count(fold_batch_norm(g), ops.BatchNorm) == 1


@pytest.mark.parametrize("dtype", [f16, bf16])
def test_weights_of_16_bits_are_not_rounded_again(dtype: DType) -> None:
    w = const(R.uniform(-1, 1, (8, 4, 3, 3)).astype(dtype.numpy))
    x = arg("x", 2, 4, 5, 5, dtype=dtype)
    y = ops.Conv((1, 1), ((1, 1), (1, 1)), (1, 1), 1)(x, w)
    parameters = [const(R.uniform(low, 1, 8).astype(dtype.numpy)) for low in (0.5, -1, -1, 0.1)]
    g = graph(ops.Relu()(ops.BatchNorm(1e-3)(y, *parameters)))
    folded = fold_batch_norm(g)
    assert count(folded, ops.BatchNorm) == 0
    (convolution,) = (n for n in folded.nodes() if isinstance(n.op, ops.Conv))
    assert convolution.inputs[1] is w
    assert convolution.dtype == f32
    data = R.uniform(-1, 1, (2, 4, 5, 5)).astype(dtype.numpy)
    wide = ops.BatchNorm(1e-3)(replace(y.op, dtype=f32)(x, w), *(ops.cast(v, f32) for v in parameters))
    (want,), (got,) = (interpret(h, [data]) for h in (graph(ops.Relu()(wide)), folded))
    rounding = 2.0**-11 if dtype == f16 else 2.0**-8  # half a unit in the last place
    assert (np.abs(got.astype(np.float32) - want) <= np.abs(want) * rounding * 1.01 + 1e-7).all()
    doubled = graph(ops.Mul()(y, ops.full(y.shape, 2.0, dtype)))
    assert count(fold_batch_norm(doubled), ops.Mul) == 0
