"""Kernels read weights before what computes the row has ended: if nothing in the program writes them."""

from __future__ import annotations

import numpy as np
import pytest

from ingot import ops
from ingot.ir.interp import interpret
from ingot.ir.kernel import AwaitProducers, If, Kernel
from ingot.ir.node import Graph, Input
from ingot.ir.types import TensorType, f16
from tests.conformance.checked import planned, run_checked
from tests.conformance.targets import H100

RNG = np.random.default_rng(3)
DOT = ops.DotGeneral(((), ()), ((1,), (1,)))


def product(state: tuple[str, ...]) -> Graph:
    """y = exp(x) @ w and w + 1, which may be the new value of w."""
    x, w = Input("x", TensorType(f16, (1, 64)))(), Input("w", TensorType(f16, (40, 64)))()
    y = DOT(ops.reshape(ops.Exp()(x), (1, 64)), w)
    return Graph((x, w), (ops.add(w, 1), y), state=state)


def awaits_first(kernels: list[Kernel]) -> list[bool]:
    return [isinstance(kernel.body[0], AwaitProducers) for kernel in kernels]


@pytest.mark.parametrize(("state", "first"), [((), False), (("w",), True)])
def test_weights_that_are_written_are_read_behind_the_wait(state: tuple[str, ...], first: bool) -> None:
    graph = product(state)
    _, kernels = planned(graph, H100)
    products = [kernel for kernel in kernels.values() if "product_of_row" in kernel.name]
    assert awaits_first(products) == [first]
    arrays = [RNG.normal(size=n.shape).astype(np.float16) for n in graph.inputs]
    if state:
        arrays[1] = np.zeros_like(arrays[1])
    got = run_checked(graph, arrays[: 2 - len(state)], H100)
    np.testing.assert_allclose(got[-1], interpret(graph, arrays)[1], rtol=2e-3, atol=2e-3)


def test_products_that_share_a_launch_wait_each() -> None:
    x, *weights = (Input(f"x{i}", TensorType(f16, (n, 64)))() for i, n in enumerate((1, 40, 24)))
    y = ops.reshape(ops.Exp()(x), (1, 64))
    graph = Graph((x, *weights), tuple(DOT(y, w) for w in weights))
    _, kernels = planned(graph, H100)
    (kernel,) = (kernel for kernel in kernels.values() if "product_of_row" in kernel.name)
    assert awaits_first([kernel]) == [False]
    (branch,) = (s for s in kernel.body if isinstance(s, If))
    assert all(any(isinstance(s, AwaitProducers) for s in body) for body in (branch.then, branch.orelse))
    arrays = [RNG.normal(size=n.shape).astype(np.float16) for n in graph.inputs]
    for got, want in zip(run_checked(graph, arrays, H100), interpret(graph, arrays), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-3, atol=2e-2)
