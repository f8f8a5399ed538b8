"""Slices sink below what is done to all of them alike, and below nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from ingot import ops
from ingot.ir.dims import symbol
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Node, const
from ingot.ir.verify import verify
from ingot.passes.core.rewrites.sink import sink_slices
from tests.passes.core.rewrites.test_equality import arg, cut

RANDOM = np.random.default_rng(0)
N = symbol("n")
Y = arg("y", N, 12)
LEFT, RIGHT = cut(Y, 1, 0, 5), cut(Y, 1, 5, 12)


def plus(x: Node, *, is_same: bool = False) -> Node:
    row = np.ones(x.shape[1]) if is_same else RANDOM.standard_normal(x.shape[1])  # type: ignore[call-overload]
    return ops.Add()(x, ops.BroadcastInDim(x.shape, (1,))(const(row.astype(np.float32))))


def relu(x: Node) -> Node:
    return ops.Max()(x, ops.full(x.shape, 0.0, x.dtype))


def silu(x: Node) -> Node:
    return ops.Mul()(x, ops.Logistic()(x))


@pytest.mark.parametrize(
    ("outputs", "elementwise", "is_same"),
    [
        ((relu(plus(LEFT)), relu(plus(RIGHT))), 2, True),
        ((silu(LEFT), silu(RIGHT)), 2, True),
        ((ops.Exp()(plus(LEFT)), ops.Tanh()(plus(RIGHT))), 3, True),  # the bias alone
        ((relu(LEFT), RIGHT), 1, False),
        ((ops.mul(LEFT, 2.0), ops.mul(RIGHT, 3.0)), 2, False),  # other factors
        ((ops.Exp()(LEFT), ops.Exp()(cut(Y, 1, 4, 11))), 2, False),  # slices that overlap
        ((ops.Exp()(LEFT), ops.Exp()(cut(Y, 1, 5, 11))), 2, False),  # not the whole
        ((ops.Sub()(LEFT, cut(arg("z", N, 12), 1, 0, 5)), ops.Sub()(RIGHT, cut(arg("z", N, 12), 1, 5, 12))), 1, True),
        ((ops.Sub()(LEFT, cut(arg("z", N, 12), 1, 0, 5)), ops.Sub()(RIGHT, cut(arg("z", N, 12), 1, 4, 11))), 2, False),
    ],
)
def test_slices_sink(outputs: tuple[Node, ...], elementwise: int, is_same: bool) -> None:
    inputs = (Y, arg("z", N, 12))
    g = Graph(inputs, outputs)
    sunk = sink_slices(g)
    verify(sunk, "sink")
    assert (sunk.outputs != g.outputs) == is_same
    kinds = (ops.Add, ops.Sub, ops.Mul, ops.Max, ops.Exp, ops.Tanh, ops.Logistic)
    assert sum(isinstance(n.op, kinds) for n in sunk.nodes()) == elementwise
    for rows in (1, 3):
        feeds = [RANDOM.standard_normal((rows, 12)).astype(np.float32) for _ in inputs]
        for got, want in zip(interpret(sunk, feeds), interpret(g, feeds), strict=True):
            np.testing.assert_array_equal(got, want)


def test_slices_sink_through_a_deep_graph() -> None:
    """More ops than frames of Python's stack."""
    y: Node = Y
    for _ in range(400):
        parts = [ops.Tanh()(relu(ops.Exp()(x))) for x in (cut(y, 1, 0, 5), cut(y, 1, 5, 12))]
        y = ops.Concat(1)(*parts[::-1])
    sunk = sink_slices(Graph((Y,), (y,)))
    verify(sunk, "sink")
    assert sum(isinstance(n.op, ops.Exp | ops.Max | ops.Tanh) for n in sunk.nodes()) == 3 * 400
