"""Groups that take on results that they read."""

from __future__ import annotations

import numpy as np
import pytest

from ingot import ops
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input, Node, const
from ingot.ir.types import Shape, TensorType, bf16, f32
from ingot.ops.group import Group
from ingot.passes.fusion.fuse import fuse
from ingot.passes.fusion.policy import FusionPolicy

ROWS = FusionPolicy(joins_row_results=True)


def row(name: str, shape: Shape = (4, 6)) -> Node:
    return Input(name, TensorType(f32, shape))()


def groups(graph: Graph) -> list[Node]:
    return [n for n in fuse(graph).nodes() if isinstance(n.op, Group)]


def spread(value: Node | float, shape: Shape) -> Node:
    return ops.BroadcastInDim(shape, ())(value if isinstance(value, Node) else const(value, np.float32))


def test_an_optimizers_step_is_one_kernel() -> None:
    p, m, v, x, y = (row(name) for name in "pmvxy")
    count = row("count", ())
    g = ops.DotGeneral(((), ()), ((1,), (1,)))(x, row("w", (6, 6)))
    new_m = ops.Add()(ops.mul(m, 0.9), ops.mul(g, 0.1))
    new_v = ops.Add()(ops.mul(v, 0.99), ops.mul(ops.Mul()(g, g), 0.01))
    scaled = ops.Div()(new_m, spread(ops.Exp()(count), p.shape))
    new_p = ops.Sub()(p, ops.Div()(scaled, ops.add(ops.Sqrt()(new_v), 1e-8)))
    inputs = (p, m, v, x, y, count, *(n for n in Graph((), (g,)).nodes() if isinstance(n.op, Input) and n is not x))
    step = groups(Graph(inputs, (new_p, new_m, new_v)))[-1]
    assert [len(n.types) for n in groups(Graph(inputs, (new_p, new_m, new_v)))] == [1, 3]
    # each moment, the gradient and the parameter are read once
    assert len(step.inputs) == len(set(step.inputs)) == 5


def test_other_elements_shapes_and_readers_stay_apart() -> None:
    x = row("x", (4, 4))
    a = ops.Exp()(x)
    transposed = ops.Add()(x, ops.Transpose((1, 0))(a))
    column = ops.Tanh()(ops.Slice((0, 0), (4, 1), (1, 1))(a))
    assert all(len(n.types) == 1 for n in groups(Graph((x,), (a, transposed, column))))
    # what is no result of the model stays where its readers want it
    total = spread(ops.Reduce("sum", (0, 1))(a), x.shape)
    assert all(len(n.types) == 1 for n in groups(Graph((x,), (ops.Mul()(a, total),))))


def test_groups_that_would_need_each_other_stay_apart() -> None:
    x = row("x")
    a1, b1 = ops.Exp()(x), ops.Tanh()(x)
    a2 = ops.Mul()(a1, spread(ops.Reduce("sum", (0, 1))(b1), x.shape))
    b2 = ops.Mul()(b1, spread(ops.Reduce("sum", (0, 1))(a1), x.shape))
    graph = Graph((x,), (a1, b1, a2, b2))
    data = [np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)]
    for got, want in zip(interpret(fuse(graph), data), interpret(graph, data), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)


def test_random_graphs_keep_their_meaning() -> None:
    rng, count = np.random.default_rng(1), 0
    for _ in range(40):
        values = [row(name) for name in "xyz"]
        data = [rng.standard_normal((4, 6)).astype(np.float32) for _ in values]
        inputs = tuple(values)
        for _ in range(int(rng.integers(3, 14))):
            a, b = (values[int(i)] for i in rng.integers(len(values), size=2))
            total = spread(ops.Reduce("max", (0, 1))(a), a.shape)
            candidates = [ops.Add()(a, b), ops.Mul()(a, b), ops.Tanh()(a), ops.Add()(total, b), ops.Reverse((1,))(a)]
            values.append(candidates[int(rng.integers(len(candidates)))])
        results = [n for n in dict.fromkeys(values[3:]) if rng.random() < 0.6] or [values[-1]]
        graph = Graph(inputs, tuple(results))
        fused = fuse(graph)
        count += any(len(n.types) > 1 for n in fused.nodes())
        for got, want in zip(interpret(fused, data), interpret(graph, data), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5)
    assert count > 10


def broadcast_dim(value: Node, shape: Shape, dim: int) -> Node:
    """One value for each place of a dimension."""
    return ops.BroadcastInDim(shape, (dim,))(value)


def moments(x: Node, dim: int) -> tuple[Node, Node]:
    """The mean of each row, or of each column, and what squared deviations from it sum to."""
    mean = ops.mul(ops.Reduce("sum", (1 - dim,))(x), 0.25)
    centred = ops.Sub()(x, broadcast_dim(mean, x.shape, dim))
    return mean, ops.Reduce("sum", (1 - dim,))(ops.Mul()(centred, centred))


def row_groups(graph: Graph) -> list[int]:
    """How many results each has."""
    return [len(n.types) for n in fuse(graph, ROWS).nodes() if isinstance(n.op, Group) and n.op.kind == "rows"]


@pytest.mark.parametrize("dim", [0, 1])
def test_moments_are_one_kernel(dim: int) -> None:
    x = row("x", (4, 4))
    graph = Graph((x,), moments(x, dim))
    assert row_groups(graph) == [2]
    assert [len(n.types) for n in groups(graph)] == [1, 1]
    data = [np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)]
    for got, want in zip(interpret(fuse(graph, ROWS), data), interpret(graph, data), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)


def test_values_of_other_rows_stay_apart() -> None:
    """A sum of each row, in front of one that reads it as each column's, in another order, or of other rows."""
    x = row("x", (4, 4))
    total = ops.Reduce("sum", (1,))(x)
    row_sums = ops.Reduce("sum", (1,))(ops.Mul()(x, broadcast_dim(total, x.shape, 1)))
    reversed_sums = ops.Reduce("sum", (1,))(ops.Mul()(x, broadcast_dim(ops.Reverse((0,))(total), x.shape, 0)))
    columns = ops.Reduce("sum", (0,))(ops.Mul()(x, broadcast_dim(total, x.shape, 0)))
    for other in (row_sums, reversed_sums, columns):
        assert row_groups(Graph((x,), (total, other))) == [1, 1]


@pytest.mark.parametrize("reduces", [True, False])
def test_rows_that_turn_behind_a_sum_stay_apart(reduces: bool) -> None:
    """The transpose of a square matrix has its shape, and other rows."""
    x = row("x", (4, 4))
    total = ops.Reduce("sum", (1,))(x)
    transposed = ops.Transpose((1, 0))(ops.Mul()(x, broadcast_dim(total, x.shape, 0)))
    last = ops.Reduce("sum", (1,))(transposed) if reduces else transposed
    graph = Graph((x,), (total, last))
    fused = fuse(graph, ROWS)
    assert all(len(n.types) == 1 for n in fused.nodes() if isinstance(n.op, Group) and n.op.kind == "rows")
    data = [np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)]
    for got, want in zip(interpret(fused, data), interpret(graph, data), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5)


def test_rows_that_would_need_each_other_stay_apart() -> None:
    x = row("x", (4, 4))
    total = ops.Reduce("sum", (1,))(x)
    scale = ops.Reduce("max", (0, 1))(ops.Mul()(x, broadcast_dim(total, x.shape, 0)))
    last = ops.Reduce("sum", (1,))(ops.Mul()(spread(scale, x.shape), ops.Sub()(x, broadcast_dim(total, x.shape, 0))))
    graph = Graph((x,), (total, last))
    assert row_groups(graph) == [1, 1, 1]
    data = [np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)]
    for got, want in zip(interpret(fuse(graph, ROWS), data), interpret(graph, data), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5)


@pytest.mark.parametrize("width", [6, 600])
def test_a_residual_sum_and_the_norm_behind_it_are_one_kernel(width: int) -> None:
    """Unless its rows are too long to be held; columns of it stay apart."""
    policy = FusionPolicy(joins_row_results=True, max_single_row=512)
    x, y = row("x", (4, width)), row("y", (4, width))
    total = ops.Add()(x, y)
    scale = broadcast_dim(ops.Reduce("sum", (1,))(ops.Mul()(total, total)), total.shape, 0)
    normed = ops.Div()(total, scale)
    graph = Graph((x, y), (ops.Reverse((0,))(ops.Add()(total, x)), ops.Exp()(normed), ops.Tanh()(total)))
    fused = fuse(graph, policy)
    row_kernels = [n for n in fused.nodes() if isinstance(n.op, Group) and n.op.kind == "rows" and len(n.types) > 1]
    stored = sum(t.shape == total.shape for n in row_kernels for t in n.types)
    assert stored == 2 if width == 6 else stored <= 1
    data = [np.random.default_rng(0).standard_normal((4, width)).astype(np.float32) for _ in range(2)]
    for got, want in zip(interpret(fused, data), interpret(graph, data), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5)


def test_values_by_the_elements_of_one_operand_are_one_kernel() -> None:
    """The gradients of both operands of a product by element read the gradient of its result once."""
    g = ops.DotGeneral(((), ()), ((1,), (0,)))(row("x", (4, 4)), row("w", (4, 6)))
    a, b = row("a"), row("b")
    left, right = ops.Tanh()(ops.Mul()(g, a)), ops.Exp()(ops.Mul()(g, b))
    turned = ops.Abs()(ops.Transpose((1, 0))(g))  # other elements of it
    later = ops.Abs()(ops.Mul()(g, left))
    inputs = [n for n in Graph((), (g, a, b)).nodes() if isinstance(n.op, Input)]
    graph = Graph(tuple(inputs), (left, right, turned, later, g))
    fused = fuse(graph, ROWS)
    counts = sorted(len(n.types) for n in fused.nodes() if isinstance(n.op, Group) and n.op.kind == "pointwise")
    assert counts == [1, 3]
    data = [np.random.default_rng(i).standard_normal(n.shape).astype(np.float32) for i, n in enumerate(inputs)]
    for want, got in zip(interpret(graph, data), interpret(fused, data), strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_norm_that_is_read_as_a_matrix_joins_its_moments() -> None:
    x = row("x", (2, 3, 8))
    mean = ops.mul(ops.Reduce("sum", (2,))(x), 1 / 8)
    centered = ops.Sub()(x, ops.BroadcastInDim(x.shape, (0, 1))(mean))
    y = ops.Convert(bf16)(
        ops.reshape(ops.Mul()(centered, ops.BroadcastInDim(x.shape, (2,))(row("scale", (8,)))), (6, 8))
    )
    inputs = [n for n in Graph((), (y,)).nodes() if isinstance(n.op, Input)]
    (group,) = (n for n in fuse(Graph(tuple(inputs), (y, mean)), ROWS).nodes() if isinstance(n.op, Group))
    assert group.op.kind == "rows" and len(group.types) == 2  # type: ignore[union-attr]
