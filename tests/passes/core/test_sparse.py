"""Zeros in constant weights: which products keep blocks, and that they stand for the same weights."""

from __future__ import annotations

import numpy as np

from ingot import ops
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Node, const
from ingot.ir.types import f64, i32, u8
from ingot.ir.verify import verify
from ingot.passes.core.sparse import always_dense, keep_blocks
from tests.passes.check import arg, graph

RNG = np.random.default_rng(2)


def pruned(*shape: int, zeros: float = 0.8) -> Node:
    return const((RNG.standard_normal(shape) * (RNG.random(shape) >= zeros)).astype(np.float32))


def kept_shapes(g: Graph, height: int = 4) -> list[tuple[int, ...]]:
    """The shapes of the values that are kept, behind the pass, which changes no value."""
    new = keep_blocks(g, lambda n, blocks: height)
    verify(new, "the pass")
    data = [(9 * RNG.random(tuple(map(int, n.shape)))).astype(n.dtype.numpy) for n in new.inputs]
    np.testing.assert_allclose(interpret(new, data)[0], interpret(g, data)[0], rtol=1e-5, atol=1e-5)
    return [n.inputs[0].shape for n in new.nodes() if isinstance(n.op, ops.Densify)]  # type: ignore[misc]


def test_products() -> None:
    """Weights lie as a model has them, with one or several summed dimensions."""
    w = pruned(10, 6)
    value = np.asarray(w.op.value)  # type: ignore[union-attr]
    blocks = np.concatenate([value, np.zeros((2, 6), np.float32)]).reshape(3, 4, 6).any(1).sum()
    assert kept_shapes(graph(ops.DotGeneral(((), ()), ((1,), (1,)))(arg("x", 5, 6), w))) == [(blocks, 4)]
    assert kept_shapes(graph(ops.DotGeneral(((), ()), ((1,), (1,)))(arg("x", 5, 6), w)), 1) == [
        (np.count_nonzero(value), 1)
    ]
    assert len(kept_shapes(graph(ops.DotGeneral(((), ()), ((2,), (0,)))(arg("x", 2, 5, 6), pruned(6, 7))))) == 1
    assert len(kept_shapes(graph(ops.DotGeneral(((), ()), ((1, 0), (0, 2)))(arg("x", 5, 6, 2), pruned(6, 9, 5))))) == 1
    assert kept_shapes(graph(ops.DotGeneral(((), ()), ((1,), (1,)))(arg("x", 5, 6), pruned(10, 6, zeros=1.0)))) == [
        (2, 4)
    ]


def test_bytes_lie_in_runs() -> None:
    """Of four blocks each, the last of a group filled; an empty group has none."""
    w = (np.asarray(pruned(12, 6).op.value) * 50).astype(np.int8)  # type: ignore[union-attr]
    w[4:8] = 0
    dot = ops.DotGeneral(((), ()), ((1,), (1,)), dtype=i32)
    counts = (w.reshape(3, 4, 6) != 0).any(1).sum(1)
    assert kept_shapes(graph(dot(arg("x", 5, 6, dtype=u8), const(w)))) == [(int(np.ceil(counts / 4).sum()), 4, 4)]


def test_what_stays_dense() -> None:
    """Few zeros; weights that are computed, of other types, or of a batch; a height of 0."""
    dot = ops.DotGeneral(((), ()), ((1,), (1,)))
    x = arg("x", 5, 6)
    assert not kept_shapes(graph(dot(x, pruned(10, 6, zeros=0.1))))
    assert not kept_shapes(graph(dot(x, arg("w", 10, 6))))
    assert not kept_shapes(graph(dot(ops.cast(x, f64), ops.cast(pruned(10, 6), f64))))
    assert not kept_shapes(graph(ops.DotGeneral(((0,), (0,)), ((2,), (2,)))(arg("y", 2, 5, 6), pruned(2, 7, 6))))
    assert not kept_shapes(graph(dot(x, pruned(10, 6))), 0)
    g = graph(dot(x, pruned(10, 6)))
    assert keep_blocks(g, always_dense) is g


def test_values_that_are_not_finite_are_kept() -> None:
    value = np.zeros((8, 6), np.float32)
    value[5, 2], value[1, 1] = np.nan, -np.inf
    assert kept_shapes(graph(ops.DotGeneral(((), ()), ((1,), (1,)))(arg("x", 3, 6), const(value)))) == [(2, 4)]
