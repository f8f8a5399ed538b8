"""Sums of products that are one product."""

from __future__ import annotations

import numpy as np
import pytest

from ingot import ops
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input, Node
from ingot.ir.types import DType, TensorType, bf16, f16, f32, i16
from ingot.passes.core.summed_products import sum_products
from tests.conformance.checked import planned, run_checked
from tests.conformance.targets import H100

RNG = np.random.default_rng(0)
ROWS, COLUMNS = 300, 40


def product(terms: int, number: int) -> tuple[list[Node], Node]:
    """A product in f32 of a computed matrix, and its inputs."""
    a, b = (Input(f"{n}{number}", TensorType(bf16, s))() for n, s in (("a", (ROWS, terms)), ("b", (terms, COLUMNS))))
    dot = ops.DotGeneral(((), ()), ((1,), (0,)))(ops.Tanh()(a), b)
    return [a, b], ops.Convert(f32)(ops.reshape(dot, (3, 100, COLUMNS)))


def dots(graph: Graph) -> list[Node]:
    return [n for n in graph.nodes() if isinstance(n.op, ops.DotGeneral)]


@pytest.mark.parametrize("place", ["none", "first", "between"])
def test_a_sum_of_products_is_one(place: str) -> None:
    other = Input("other", TensorType(f32, (3, 100, COLUMNS)))()
    (xs, x), (ys, y), (zs, z) = (product(terms, i) for i, terms in enumerate((24, 8, 16)))
    first = ops.Add()(x, other) if place != "none" else x
    total = ops.Add()(z, ops.Add()(first, y)) if place == "between" else ops.Add()(ops.Add()(first, y), z)
    graph = Graph((*xs, *ys, *zs, other), (total,))
    (dot,) = dots(sum_products(graph))
    assert dot.inputs[0].shape == (ROWS, 48) and dot.dtype == f32
    data = [RNG.normal(size=n.shape).astype(n.dtype.numpy) for n in graph.inputs]
    data[1][3, 5] = np.inf
    (got,), (want,) = run_checked(graph, data, H100), interpret(graph, data)
    np.testing.assert_array_equal(np.isfinite(got), np.isfinite(want))
    ok = np.isfinite(want)
    assert np.abs(got - want)[ok].max() < 2e-2 * np.abs(want[ok]).max()
    assert sum("product" in name for name in planned(graph, H100)[1]) == 1


def test_products_of_many_terms_or_other_readers_stay() -> None:
    (xs, x), (ys, y), (zs, z) = (product(terms, i) for i, terms in enumerate((24, 8, 1040)))
    inputs = (*xs, *ys, *zs)
    for results in ((ops.Add()(x, y), x), (ops.Add()(x, z),), (ops.Mul()(x, y),), (ops.Add()(x, x),)):
        graph = Graph(inputs, results)
        assert len(dots(sum_products(graph))) == len(dots(graph))
    a, b, c, d = (Input(n, TensorType(bf16, s))() for n, s in zip("abcd", ((300, 8), (8, 9)) * 2, strict=True))
    dot = ops.DotGeneral(((), ()), ((1,), (0,)))
    graph = Graph((a, b, c, d), (ops.Add()(dot(a, b), dot(c, d)),))  # matrices that would be copied
    assert sum_products(graph) is graph


@pytest.mark.parametrize(
    ("dtypes", "shape"), [((bf16, f16), (ROWS, 8)), ((i16, i16), (ROWS, 8)), ((bf16, bf16), (ROWS, 8, 2))]
)
def test_products_of_other_types_and_ranks_stay(dtypes: tuple[DType, DType], shape: tuple[int, ...]) -> None:
    products = list[Node]()
    for i, dtype in enumerate(dtypes):
        a, b = (Input(f"{n}{i}", TensorType(dtype, s))() for n, s in (("a", shape), ("b", (8, 9))))
        products.append(ops.Convert(f32)(ops.DotGeneral(((), ()), ((1,), (0,)))(ops.mul(a, a), b)))
    inputs = tuple(n for n in Graph((), tuple(products)).nodes() if isinstance(n.op, Input))
    graph = Graph(inputs, (ops.Add()(*products),))
    assert len(dots(sum_products(graph))) == 2
