"""Updates that are added to what they were summed with."""

from __future__ import annotations

import numpy as np

from ingot import ops
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input, Node, const
from ingot.ir.types import DType, TensorType, bf16, f32, i64
from ingot.passes.core.storage.updated_sums import update_sums
from tests.conformance.checked import planned, run_checked
from tests.conformance.targets import H100

RNG = np.random.default_rng(0)
ROWS = ops.Scatter("add", (1,), (0,), (), (), (0,), 1)
A, B = (Input(n, TensorType(f32, s))() for n, s in (("a", (300, 20)), ("b", (20, 8))))
I, U = Input("i", TensorType(i64, (60, 1)))(), Input("u", TensorType(f32, (60, 8)))()


def zeros(dtype: DType = f32, value: float = 0) -> Node:
    return ops.BroadcastInDim((300, 8), ())(const(np.array(value, dtype.numpy)))


def arrays() -> list[np.ndarray]:
    indices = np.concatenate([RNG.integers(-9, 310, (40, 1)), np.full((20, 1), 3)])
    return [RNG.normal(size=(300, 20)).astype(np.float32), RNG.normal(size=(20, 8)).astype(np.float32), indices,
            RNG.normal(size=(60, 8)).astype(np.float32)]  # fmt: skip


def test_a_product_is_updated_in_its_memory() -> None:
    """The gradient of a weight that is an embedding, too."""
    product, sums = ops.DotGeneral(((), ()), ((1,), (0,)))(A, B), ROWS(zeros(), I, U)
    for total in (ops.Add()(product, sums), ops.Add()(sums, product)):
        graph, data = Graph((A, B, I, U), (total,)), arrays()
        assert update_sums(graph).outputs[0].op == ROWS
        np.testing.assert_allclose(run_checked(graph, data, H100)[0], interpret(graph, data)[0], 1e-5, 1e-5)
        names = [name.rstrip("_0123456789") for name in planned(graph, H100)[1]]
        assert not any("pointwise" in name for name in names) and names[-1] == "update"


def test_an_element_is_added_to_the_sum_of_its_updates() -> None:
    """A large element, whose last bits each update alone would be lost in."""
    x = Input("x", TensorType(f32, (300, 8)))()
    graph = Graph((x, I, U), (ops.Add()(x, ROWS(zeros(), I, U)),))
    data = [np.full((300, 8), 2.0**24, np.float32), np.zeros((60, 1), np.int64), np.full((60, 8), 0.5, np.float32)]
    (got,) = run_checked(graph, data, H100)
    assert (got[0] == 2.0**24 + 30).all() and (got[1:] == 2.0**24).all()


def test_other_sums_stay() -> None:
    x = Input("x", TensorType(f32, (300, 8)))()
    sums = ROWS(zeros(), I, U)
    narrow = ROWS(zeros(bf16), I, ops.Convert(bf16)(U))
    largest = ops.Scatter("max", (1,), (0,), (), (), (0,), 1)(zeros(), I, U)
    for results in (
        (ops.Add()(x, sums), sums), (ops.Add()(x, sums), ops.Exp()(sums)), (ops.Add()(sums, sums),),
        (ops.Add()(x, ROWS(zeros(value=1), I, U)),), (ops.Mul()(x, sums),), (ops.Add()(x, largest),),
        (ops.Add()(ops.Convert(bf16)(x), narrow),),
    ):  # fmt: skip
        graph = Graph((x, I, U), results)
        assert update_sums(graph) is graph


def test_two_sums_of_updates_are_one_chain() -> None:
    graph = Graph((I, U), (ops.Add()(ROWS(zeros(), I, U), ROWS(zeros(), I, ops.Neg()(ops.Abs()(U)))),))
    data = arrays()[2:]
    assert [n.op for n in update_sums(graph).nodes()].count(ROWS) == 2
    np.testing.assert_allclose(run_checked(graph, data, H100)[0], interpret(graph, data)[0], 1e-5, 1e-5)
