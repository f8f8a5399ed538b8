"""Contractions that compute the rows of their first operand: against the interpreter, at sizes that fit nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ingot import ops
from ingot.ir.dims import DimLike, symbol
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input, Node, const
from ingot.ir.types import DType, TensorType, bf16, f16, f32, f64
from ingot.ops.group import Group
from ingot.passes.fusion.fuse import fuse
from ingot.schedule.cpu.machine import Machine
from tests.schedule.compiled import MACHINES, check, compile_graph

RNG = np.random.default_rng(3)


def values(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def arg(label: str, *shape: DimLike, dtype: DType = f32) -> Node:
    return Input(label, TensorType(dtype, shape))()


def broadcast_dims(x: Node, like: Node, *dims: int) -> Node:
    return ops.BroadcastInDim(like.shape, dims)(x)


def normed(x: Node) -> Node:
    """relu(x * scale + shift), along the last dimension."""
    last, c = x.type.rank - 1, int(str(x.shape[-1]))
    scale, shift = (broadcast_dims(const(values(c)), x, last) for _ in range(2))
    zero = broadcast_dims(ops.scalar(0.0, x.dtype), x)
    return ops.Max()(ops.add(ops.mul(x, scale), shift), zero)


def dot(x: Node, columns: int) -> Node:
    k = int(str(x.shape[-1]))
    return ops.DotGeneral(((), ()), ((x.type.rank - 1,), (0,)))(x, const(values(k, columns)))


def pixelwise(x: Node, columns: int, stride: int = 1) -> Node:
    """A 1x1 convolution, channels last."""
    conv = ops.Convolution((stride, stride), ((0, 0), (0, 0)), (1, 1), (1, 1), "NHWC", "HWIO", "NHWC")
    return conv(x, const(values(1, 1, int(str(x.shape[-1])), columns)))


def only_group(graph: Graph) -> Group:
    (group,) = (n.op for n in fuse(graph).nodes() if isinstance(n.op, Group))
    return group


def with_relu(y: Node) -> Node:
    return ops.Max()(y, broadcast_dims(ops.scalar(0.0, y.dtype), y))


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: f"{m.vector_bits}")
@pytest.mark.parametrize(("rows", "k", "columns"), [(128, 64, 32), (133, 37, 19), (201, 5, 1), (257, 300, 70)])
def test_sizes(rows: int, k: int, columns: int, machine: Machine) -> None:
    x = arg("x", rows, k)
    graph = Graph((x,), (with_relu(dot(normed(x), columns)),))
    assert only_group(graph).kind == "contraction"
    check(graph, (values(rows, k),), machine=machine)


@pytest.mark.parametrize("stride", [1, 2, 3])
def test_gated_images(stride: int) -> None:
    x, gate = arg("x", symbol("n"), 40, 37, 21), arg("gate", symbol("n"), 21)
    graph = Graph(
        (x, gate), (pixelwise(ops.mul(x, broadcast_dims(gate, x, 0, 3)), 24, stride),), bounds=(("n", 0, None),)
    )
    assert only_group(graph).kind == "contraction"
    compiled = compile_graph(graph)
    for n in (0, 1, 3):
        xs = values(n, 40, 37, 21), values(n, 21)
        (want,) = interpret(graph, xs)
        np.testing.assert_allclose(np.asarray(compiled(*xs)), want, rtol=0, atol=4e-6 * np.abs(want).max(initial=1.0))


def test_rows_of_any_number() -> None:
    s = symbol("s")
    x, y = arg("x", 2, s, 24), arg("y", 2, s, 24)
    graph = Graph((x, y), (ops.add(dot(ops.Exp()(ops.add(x, y)), 24), x),), bounds=(("s", 0, None),))
    assert only_group(graph).kind == "contraction"
    compiled = compile_graph(graph)
    for length in (0, 1, 7, 128, 131, 900):
        xs = values(2, length, 24), values(2, length, 24)
        (want,) = interpret(graph, xs)
        np.testing.assert_allclose(np.asarray(compiled(*xs)), want, rtol=0, atol=4e-6 * np.abs(want).max(initial=1.0))


def test_batches_with_their_own_columns() -> None:
    a, b = arg("a", 3, 130, 20), arg("b", 3, 20, 17)
    product = ops.DotGeneral(((0,), (0,)), ((2,), (1,)))(normed(a), b)
    graph = Graph((a, b), (product,))
    assert only_group(graph).kind == "contraction"
    check(graph, (values(3, 130, 20), values(3, 20, 17)))


def test_columns_that_are_turned() -> None:
    a, b = arg("a", 150, 40), arg("b", 33, 40)
    graph = Graph((a, b), (ops.DotGeneral(((), ()), ((1,), (1,)))(normed(a), b),))
    assert only_group(graph).kind == "contraction"
    check(graph, (values(150, 40), values(33, 40)))


def test_columns_of_what_the_rows_are_made_from() -> None:
    x = arg("x", 150, 80)
    pairs = ops.Reshape((150, 2, 40))(x)
    one, two = (ops.Reshape((150, 40))(ops.Slice((0, i, 0), (150, i + 1, 40), (1, 1, 1))(pairs)) for i in range(2))
    graph = Graph((x,), (ops.DotGeneral(((), ()), ((1,), (1,)))(normed(one), two),))
    assert only_group(graph).kind == "contraction"
    check(graph, (values(150, 80),))


def test_views_between() -> None:
    x = arg("x", 4, 50, 6, 8)
    rows = ops.Reshape((200, 48))(normed(x))
    graph = Graph((x,), (dot(rows, 40),))
    assert only_group(graph).kind == "contraction"
    check(graph, (values(4, 50, 6, 8),))


@pytest.mark.parametrize("dtype", [f16, f64], ids=str)
def test_conversions(dtype: DType) -> None:
    x = arg("x", 140, 30, dtype=dtype)
    graph = Graph((x,), (dot(ops.Convert(f32)(x), 20),))
    assert only_group(graph).kind == "contraction"
    check(graph, (values(140, 30).astype(dtype.numpy),))


@pytest.mark.parametrize("k", [36, 37])
def test_pairs_of_short_floats(k: int) -> None:
    x, w = (RNG.integers(-4, 5, shape).astype(bf16.numpy) for shape in ((140, k), (k, 20)))
    graph = Graph((arg("x", 140, k, dtype=bf16),), ())
    product = ops.DotGeneral(((), ()), ((1,), (0,)))(with_relu(graph.inputs[0]), const(w))
    assert only_group(replace(graph, outputs=(product,))).kind == "contraction"
    check(replace(graph, outputs=(product,)), (x,))


def test_values_that_are_no_numbers() -> None:
    x = values(150, 33)
    x[3, 5], x[60, 0], x[149, 32] = np.nan, np.inf, -np.inf
    node = arg("x", 150, 33)
    check(Graph((node,), (dot(normed(node), 24),)), (x,))


def test_what_others_read_is_stored() -> None:
    x = arg("x", 200, 32)
    r = ops.Exp()(x)
    graph = Graph((x,), (dot(r, 16), ops.Neg()(r)))
    bodies = [n.op.body for n in fuse(graph).nodes() if isinstance(n.op, Group)]
    assert sum(isinstance(n.op, ops.Exp) for body in bodies for n in body.nodes()) == 1
    check(graph, (values(200, 32),))


@pytest.mark.parametrize(
    ("rows", "k", "columns"),
    [(16, 64, 64), (4096, 8192, 64), (4096, 2048, 2048)],
    ids=["few rows", "long rows", "many weights"],
)
def test_where_it_does_not_pay(rows: int, k: int, columns: int) -> None:
    x, w = arg("x", rows, k), arg("w", k, columns)
    graph = Graph((x, w), (ops.DotGeneral(((), ()), ((1,), (0,)))(ops.Exp()(x), w),))
    assert [n.op.kind for n in fuse(graph).nodes() if isinstance(n.op, Group)] == ["pointwise", "contraction"]
