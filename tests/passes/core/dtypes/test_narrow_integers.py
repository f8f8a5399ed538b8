"""i64 arithmetic in i32 and tables in few bytes: the same numbers, wherever values are proven to fit."""

from __future__ import annotations

import numpy as np
import pytest

from ingot import ops
from ingot.frontends.tflite.fixed_point import Multiplier, multiplied
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input, Node, const
from ingot.ir.types import TensorType, i8, i32, i64
from ingot.passes.core.dtypes.narrow_integers import narrow_integers


def _check_narrow(graph: Graph, *arrays: np.ndarray) -> Graph:
    narrow = narrow_integers(graph)
    for got, want in zip(interpret(narrow, arrays), interpret(graph, arrays), strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)
    return narrow


def _levels(rows: int, k: int, columns: int, largest: int) -> tuple[Node, Node]:
    x = Input("x", TensorType(i8, (rows, k)))()
    w = const(np.random.default_rng(k).integers(-128, 128, (k, columns)).astype(np.int8))
    sums = ops.DotGeneral(((), ()), ((1,), (0,)), dtype=i32)(x, w)
    return x, ops.add(sums, const(np.linspace(-largest, largest, columns).astype(np.int32)))


@pytest.mark.parametrize("scales", [[0.0004, 0.3, 0.99, 1e-6], [0.003] * 4, [0.2, 0.7, 0.5, 0.4], [1.5, 3.0, 0.2, 0.1]])
@pytest.mark.parametrize("is_single", [False, True])
def test_requantization_needs_64_bits_for_one_product_only(scales: list[float], is_single: bool):
    x, sums = _levels(6, 40, 4, 9000)
    graph = Graph((x,), (multiplied(sums, Multiplier.of(*scales), is_single),))
    rng = np.random.default_rng(1)
    extremes = np.where(rng.random((6, 40)) < 0.5, -128, 127).astype(np.int8)
    narrow = _check_narrow(graph, extremes)
    if not is_single and max(scales) < 1:
        wide = [n for n in narrow.nodes() if n.dtype == i64 and n.type.size == 24 and not isinstance(n.op, ops.Convert)]
        computed = [n for n in wide if not isinstance(n.op, ops.BroadcastInDim)]
        assert [type(n.op) for n in computed] == [ops.Mul, ops.Add, ops.ShiftRightArithmetic]
        tables = [n for n in narrow.nodes() if n.constant is not None and n.type.size == 4]
        assert all(n.dtype != i64 for n in tables)
        assert len(set(scales)) == 1 or any(n.dtype == i8 for n in tables)


def test_what_may_not_fit_stays_in_64_bits():
    x = Input("x", TensorType(i32, (5,)))()
    wide = ops.cast(x, i64)
    doubled = ops.mul(wide, const(np.full(5, 2, np.int64)))
    graph = Graph((x,), (ops.ShiftRightArithmetic()(doubled, const(np.full(5, 1, np.int64))), ops.cast(doubled, i32)))
    extremes = np.array([-(1 << 31), (1 << 31) - 1, -1, 0, 1 << 30], np.int32)
    narrow = _check_narrow(graph, extremes)
    assert any(n.dtype == i64 and isinstance(n.op, ops.Mul) for n in narrow.nodes())


@pytest.mark.parametrize("shift", [0, 5, 31, 40, 63])
def test_shifts_by_any_number_of_bits(shift: int):
    x = Input("x", TensorType(i8, (256,)))()
    shifted = ops.mul(ops.cast(x, i64), const(np.full(256, 1 << 20, np.int64)))
    graph = Graph((x,), (ops.apply(ops.ShiftRightArithmetic(), shifted, const(np.int64(shift))),))
    _check_narrow(graph, np.arange(-128, 128).astype(np.int8))


def test_tables_are_stored_in_the_fewest_bytes_and_splats_as_they_are():
    x = Input("x", TensorType(i64, (7,)))()
    table, splat = const(np.arange(-3, 4, dtype=np.int64)), const(np.full(7, 9, np.int64))
    narrow = _check_narrow(Graph((x,), (ops.add(ops.add(x, table), splat),)), np.arange(7, dtype=np.int64) << 60)
    stored = [n for n in narrow.nodes() if n.constant is not None]
    assert sorted(str(n.dtype) for n in stored) == ["i64", "i8"]
    _check_narrow(Graph((x,), (ops.add(x, const(np.zeros(0, np.int64).sum())),)), np.zeros(7, np.int64))


def test_weights_of_products_stay_constants():
    x = Input("x", TensorType(i64, (3, 8)))()
    w = const(np.arange(-16, 16, dtype=np.int64).reshape(8, 4))
    table = const(np.arange(4, dtype=np.int64))
    y = ops.add(ops.DotGeneral(((), ()), ((1,), (0,)))(x, w), table)
    picked = ops.apply(ops.ShiftRightArithmetic(), ops.cast(ops.cast(y, i8), i64), table)
    narrow = _check_narrow(Graph((x,), (picked,)), np.arange(24, dtype=np.int64).reshape(3, 8) << 20)
    (product,) = (n for n in narrow.nodes() if isinstance(n.op, ops.DotGeneral))
    assert product.inputs[1].constant is not None and product.inputs[1].dtype == i64
    assert any(n.constant is not None and n.dtype == i8 for n in narrow.nodes())
