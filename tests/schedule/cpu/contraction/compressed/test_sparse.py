"""Products with blocks of weights, against the interpreter, and dense products of the same weights."""

from __future__ import annotations

import numpy as np
import pytest

from ingot import ops
from ingot.ir.dims import symbol
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, const
from ingot.ir.types import i32
from ingot.passes.core.sparse import keep_blocks
from tests.schedule.compiled import MACHINES, check, compile_graph, inputs_like, slow


def pruned(rng: np.random.Generator, shape: tuple[int, ...], height: int, zeros: float = 0.8) -> np.ndarray:
    """Weights [outputs, ...] of which blocks of `height` outputs are zeros."""
    mask = rng.random((-(-shape[0] // height), *shape[1:])) >= zeros
    return (rng.standard_normal(shape) * np.repeat(mask, height, 0)[: shape[0]]).astype(np.float32)


def in_blocks(graph: Graph, height: int) -> Graph:
    new = keep_blocks(graph, lambda n, blocks: height)
    assert any(isinstance(n.op, ops.Densify) for n in new.nodes())
    return new


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: f"{m.vector_bits}")
@pytest.mark.parametrize(
    "sizes", [(4, 37, 70, 21), *slow((16, 37, 70, 21), (1, 1, 17, 5), (16, 16, 2100, 32), (1, 600, 30, 200))], ids=str
)
def test_products(sizes: tuple[int, int, int, int], machine) -> None:
    """With what is not finite, which meets the zeros too; sizes that are no multiples of anything; a residual."""
    height, rows, k, n = sizes
    rng = np.random.default_rng(rows)
    w = pruned(rng, (n, k), height)
    xs = [rng.standard_normal(s).astype(np.float32) for s in ((rows, k), (n,), (rows, n))]
    for shape in (None, {0: (symbol("m"), k), 2: (symbol("m"), n)}):
        x, bias, residual = inputs_like(xs, shape)
        y = ops.DotGeneral(((), ()), ((1,), (1,)))(x, const(w))
        y = ops.add(ops.add(y, ops.BroadcastInDim(y.shape, (1,))(bias)), residual)
        dense = Graph((x, bias, residual), (y,))
        graph = in_blocks(dense, height)
        sparse, uncompressed = (compile_graph(g, machine) for g in (graph, dense))
        for value in (0.5, np.inf, -np.inf, np.nan):
            odd = [xs[0].copy(), *xs[1:]]
            odd[0][rows // 2, k // 2] = value
            got, expected = (np.asarray(m(*odd)) for m in (sparse, uncompressed))
            np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)
            np.testing.assert_allclose(got, interpret(graph, odd)[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: f"{m.vector_bits}")
@pytest.mark.parametrize("layout", ["NHWC", *slow("NCHW")])
def test_convolutions(layout: str, machine) -> None:
    """Windows are turned as they are read, with strides and dilation, channels last and first."""
    rng = np.random.default_rng(5)
    at, wt = layout.replace("H", "0").replace("W", "1"), "01IO"
    shape = tuple({"N": 2, "C": 19, "0": 11, "1": 14}[c] for c in at)
    w = const(pruned(rng, (24, 3, 2, 19), 4).transpose(1, 2, 3, 0).copy())
    x = rng.standard_normal(shape).astype(np.float32)
    (node,) = inputs_like([x])
    op = ops.Convolution(
        strides=(1, 2), padding=((0, 0), (0, 0)), lhs_dilation=(1, 1), rhs_dilation=(2, 1),
        lhs_layout=at, rhs_layout=wt, out_layout=at,
    )  # fmt: skip
    check(in_blocks(Graph((node,), (ops.Tanh()(op(node, w)),)), 4), [x], machine=machine)


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: f"{m.vector_bits}")
@pytest.mark.parametrize(
    "sizes", [(4, 37, 70, 21), *slow((16, 130, 70, 21), (1, 1, 17, 5), (16, 16, 2100, 32))], ids=str
)
def test_bytes(sizes: tuple[int, int, int, int], machine) -> None:
    """The sums of dense products exactly, of full levels; sizes that are no multiples of anything."""
    height, rows, k, n = sizes
    rng = np.random.default_rng(rows)
    w = np.sign(pruned(rng, (n, k), height)).astype(np.int8) * rng.integers(1, 128, (n, k)).astype(np.int8)
    x = rng.integers(0, 256, (rows, k)).astype(np.uint8)
    for shape in (None, {0: (symbol("m"), k)}):
        (node,) = inputs_like([x], shape)
        dense = Graph((node,), (ops.DotGeneral(((), ()), ((1,), (1,)), dtype=i32)(node, const(w)),))
        check(in_blocks(dense, height), [x], machine=machine)
        np.testing.assert_array_equal(interpret(in_blocks(dense, height), [x])[0], x.astype(np.int64) @ w.T.astype(int))


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: f"{m.vector_bits}")
def test_convolutions_of_bytes(machine) -> None:
    rng = np.random.default_rng(6)
    w = (pruned(rng, (24, 3, 2, 19), 4) * 40).astype(np.int8).transpose(1, 2, 3, 0).copy()
    x = rng.integers(0, 256, (2, 11, 14, 19)).astype(np.uint8)
    (node,) = inputs_like([x])
    op = ops.Convolution(
        strides=(1, 2), padding=((0, 0), (0, 0)), lhs_dilation=(1, 1), rhs_dilation=(2, 1),
        lhs_layout="N01C", rhs_layout="01IO", out_layout="N01C", dtype=i32,
    )  # fmt: skip
    check(in_blocks(Graph((node,), (op(node, const(w)),)), 4), [x], machine=machine)
