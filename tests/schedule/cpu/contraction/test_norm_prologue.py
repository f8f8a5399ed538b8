"""MLPs that normalize the rows they read: against the interpreter, at sizes that fit nothing."""

from __future__ import annotations

import numpy as np
import pytest

from ingot import ops
from ingot.ir.dims import symbol
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Node, const
from ingot.ir.types import static_shape
from ingot.ops import build
from ingot.ops.group import Group
from ingot.passes.fusion.fuse import fuse
from ingot.schedule.cpu.machine import Machine
from tests.schedule.compiled import MACHINES, check, compile_graph
from tests.schedule.cpu.contraction.test_mlp import mlp
from tests.schedule.cpu.contraction.test_prologue import arg, broadcast_dims, dot, pixelwise, values, with_relu


def normed(x: Node, centred: bool = True) -> Node:
    """Layer norm along the last dimension, or without the mean: RMS norm."""
    last, (c,) = x.type.rank - 1, static_shape(x.shape[-1:])
    if centred:
        x = build.sub(x, build.mean(x, last, keepdims=True))
    y = build.mul(x, ops.Rsqrt()(build.add(build.mean(build.mul(x, x), last, keepdims=True), 1e-5)))
    weight, bias = (broadcast_dims(const(values(c)), x, last) for _ in range(2))
    return ops.add(ops.mul(y, weight), bias)


def kinds(graph: Graph) -> list[str]:
    return [n.op.kind for n in fuse(graph).nodes() if isinstance(n.op, Group)]


def agree(graph: Graph, sizes: list[tuple[int, ...]], threads: int = 2) -> None:
    compiled = compile_graph(graph, threads=threads)
    for shape in sizes:
        xs = (values(*shape),)
        (want,) = interpret(graph, xs)
        np.testing.assert_allclose(np.asarray(compiled(*xs)), want, rtol=0, atol=1e-5 * np.abs(want).max(initial=1.0))


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: f"{m.vector_bits}")
@pytest.mark.parametrize("centred", [True, False], ids=["layer", "rms"])
@pytest.mark.parametrize(
    ("rows", "k", "hidden"), [(3001, 33, 100), (700, 70, 391), (513, 200, 600), (1031, 5, 300), (260, 150, 1100)]
)
def test_sizes(rows: int, k: int, hidden: int, centred: bool, machine: Machine) -> None:
    x = arg("x", rows, k)
    graph = Graph((x,), (ops.add(mlp(normed(x, centred), hidden, k), x),))
    assert kinds(graph) == ["contraction"]
    check(graph, (values(rows, k) + 1,), rtol=1e-5, machine=machine)


@pytest.mark.parametrize("threads", [1, 2])
def test_batch_and_length_of_any_size(threads: int) -> None:
    x = arg("x", symbol("n"), symbol("s"), 64)
    graph = Graph((x,), (ops.add(mlp(normed(x), 2100, 64), x),), bounds=(("n", 0, None), ("s", 0, None)))
    assert kinds(graph) == ["contraction"]
    agree(graph, [(0, 3, 64), (3, 0, 64), (1, 1, 64), (1, 130, 64), (7, 53, 64), (2, 500, 64)], threads)


def test_images() -> None:
    x = arg("x", symbol("n"), 57, 59, 33)
    graph = Graph((x,), (pixelwise(with_relu(pixelwise(normed(x), 90)), 24),), bounds=(("n", 0, None),))
    assert kinds(graph) == ["contraction"]
    agree(graph, [(0, 57, 59, 33), (1, 57, 59, 33), (3, 57, 59, 33)])


def test_rows_in_another_order() -> None:
    """As windows of an image are."""
    x = arg("x", 2, 36, 48, 40)
    cut = ops.Reshape((2, 6, 6, 8, 6, 40))(normed(x))
    windows = ops.Reshape((96, 36, 40))(ops.Transpose((0, 1, 3, 2, 4, 5))(cut))
    graph = Graph((x,), (mlp(windows, 90, 50),))
    assert kinds(graph) == ["contraction"]
    check(graph, (values(2, 36, 48, 40),), rtol=1e-5)


def test_values_that_are_no_numbers() -> None:
    x = values(3001, 33)
    x[3, 5], x[60, 0], x[2999, 32] = np.nan, np.inf, -np.inf
    x[7], x[8] = 0, 3e38
    node = arg("x", 3001, 33)
    graph = Graph((node,), (dot(with_relu(dot(normed(node), 100)), 24),))
    assert kinds(graph) == ["contraction"]
    check(graph, (x,), rtol=1e-5)


def test_sums_that_others_need_are_read() -> None:
    x, y = arg("x", 3001, 33), arg("y", 3001, 33)
    total = ops.Exp()(ops.add(x, y))
    graph = Graph((x, y), (ops.add(mlp(normed(total), 100, 33), total),))
    assert kinds(graph) == ["pointwise", "contraction"]
    check(graph, (values(3001, 33), values(3001, 33)), rtol=1e-5)


def test_norms_that_others_need_are_stored() -> None:
    x = arg("x", 3001, 33)
    y = normed(x)
    graph = Graph((x,), (ops.add(mlp(y, 100, 33), y),))
    assert kinds(graph) == ["rows", "contraction"]
    check(graph, (values(3001, 33),), rtol=1e-5)


def test_in_front_of_one_product_alone_it_does_not_pay() -> None:
    x = arg("x", 3001, 33)
    graph = Graph((x,), (dot(normed(x), 100),))
    assert kinds(graph) == ["rows", "contraction"]
