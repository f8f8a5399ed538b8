"""Reduced precision as a pass: what is stored narrow, what stays, and how far results may be off."""

from __future__ import annotations

import logging

import ml_dtypes
import numpy as np
import pytest

from ingot import ops
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Node, const
from ingot.ir.types import bf16, f16, f32, f64, i32
from ingot.passes.core.dtypes.precision import lower_precision
from ingot.support.errors import InputError
from tests.passes.check import arg, count, graph, random_inputs, same_values

MATMUL = ops.DotGeneral(((), ()), ((1,), (0,)))


def weights(*shape: int) -> Node:
    return const(np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32))


def rounded(x: np.ndarray, to: np.dtype | type = ml_dtypes.bfloat16) -> np.ndarray:
    return x.astype(to).astype(np.float64)


def products(g: Graph) -> list[Node]:
    return [n for n in g.nodes() if n.op.stored_weights]


def test_both_sides_are_rounded_and_sums_are_f32() -> None:
    x, w = arg("x", 5, 33), weights(33, 7)
    g = graph(MATMUL(x, w))
    new = lower_precision(g, "bfloat16")
    (dot,) = products(new)
    assert [i.dtype for i in dot.inputs] == [bf16, bf16] and dot.dtype == f32
    inputs = random_inputs(g, {})
    a, b = rounded(inputs[0]), rounded(w.op.value)  # type: ignore[attr-defined]
    (got,) = interpret(new, inputs)
    assert np.all(np.abs(got - a @ b) <= np.abs(a) @ np.abs(b) * 34 * 2.0**-24)


def test_float16_stores_weights_only() -> None:
    x, w = arg("x", 5, 33), weights(33, 7)
    new = lower_precision(graph(MATMUL(x, w)), "float16")
    assert [i.dtype for i in products(new)[0].inputs] == [f32, f16]


@pytest.mark.parametrize(("precision", "largest", "is_valid"), [
    ("float16", 65519.0, True), ("float16", -65520.0, False), ("bfloat16", 3.39e38, True), ("bfloat16", 3.4e38, False),
])  # fmt: skip
@pytest.mark.parametrize("same_types", [False, True])
def test_a_weight_that_would_be_infinite_stays(
    precision: str, largest: float, is_valid: bool, same_types: bool, caplog: pytest.LogCaptureFixture
) -> None:
    values = np.ones((33, 7), np.float32)
    values[3, 2], values[4, 2], values[5, 2] = largest, np.nan, np.inf  # those are the model's own
    w = const(values, loc="layer.weight")
    g = graph(MATMUL(arg("x", 5, 33), ops.transpose(ops.transpose(w, (1, 0)), (1, 0))))
    with caplog.at_level(logging.WARNING, "ingot.precision"):
        new = lower_precision(g, precision, same_types)
    assert (products(new)[0].inputs[1].dtype == f32) is not is_valid
    assert [f"layer.weight stay in float32: {abs(largest):g}" in r.message for r in caplog.records] == [True] * (
        not is_valid
    )


def test_float32_is_the_graph_itself() -> None:
    g = graph(MATMUL(arg("x", 5, 33), weights(33, 7)))
    assert lower_precision(g, "float32") is g
    with pytest.raises(InputError, match="float32 or bfloat16 or float16"):
        lower_precision(g, "int8")


def test_what_is_no_f32_product_with_weights_stays() -> None:
    x, y = arg("x", 4, 4), arg("y", 4, 4)
    double = MATMUL(arg("d", 4, 4, dtype=f64), const(np.ones((4, 4))))
    integers = MATMUL(arg("i", 4, 4, dtype=i32), const(np.ones((4, 4), np.int32)))
    half = MATMUL(arg("h", 4, 4, dtype=f16), const(np.ones((4, 4), np.float16)))
    g = graph(MATMUL(x, y), ops.Exp()(x), double, integers, half)
    assert lower_precision(g, "bfloat16").outputs == g.outputs


def test_a_value_with_other_readers_is_stored_once() -> None:
    """The residual reads what the product reads."""
    x, w = arg("x", 4, 4), weights(4, 4)
    h = ops.Exp()(x)
    y = ops.Add()(MATMUL(h, w), h)
    new = lower_precision(graph(y), "bfloat16")
    (stored,) = [n for n in new.nodes() if isinstance(n.op, ops.Convert) and n.inputs[0].op == ops.Exp()]
    (dot,) = products(new)
    assert dot.inputs[0] is stored
    assert count(new, ops.Convert) == 3  # h, the weights, and h as f32 again
    assert new.outputs[0].inputs[1].inputs[0] is stored


def test_inputs_outputs_and_constants_are_not_rounded_for_others() -> None:
    x, w = arg("x", 4, 4), weights(4, 4)
    h = ops.Exp()(x)
    g = graph(MATMUL(h, w), h, ops.Add()(MATMUL(x, w), x))
    new = lower_precision(g, "bfloat16")
    data = random_inputs(g, {})
    got = interpret(new, data)
    np.testing.assert_array_equal(got[1], interpret(g, data)[1])
    assert new.outputs[2].inputs[1] is x
    assert all(o.dtype == f32 for o in new.outputs)


def test_maxima_and_moves_work_on_what_is_stored() -> None:
    """exp -> max pool -> (reshape -> product, sum): exp is stored narrow, the pool and the reshape are of it."""
    x = arg("x", 1, 4, 4, 2)
    pool = ops.ReduceWindow("max", (1, 2, 2, 1), (1, 2, 2, 1), ((0, 0),) * 4, (1,) * 4, (1,) * 4)(ops.Exp()(x))
    flat = ops.Reshape((4, 2))(pool)
    g = graph(MATMUL(flat, weights(2, 3)), ops.Reduce("sum", (0,))(flat))
    new = lower_precision(g, "bfloat16")
    (window,) = [n for n in new.nodes() if isinstance(n.op, ops.ReduceWindow)]
    assert window.dtype == bf16
    same_values(g, new, tolerance=0.05)


def test_a_value_is_rounded_where_it_is_written() -> None:
    """Before views that lie in its memory; behind ops that move it, which are part of the kernel that computes it."""
    h = ops.Exp()(arg("x", 3, 4, 2))
    flat = ops.Reshape((12, 2))(h)
    new = lower_precision(graph(MATMUL(flat, weights(2, 5))), "bfloat16")
    assert products(new)[0].inputs[0].inputs[0].inputs[0] is h
    transposed = ops.Reshape((3, 8))(ops.Transpose((0, 2, 1))(h))
    new = lower_precision(graph(MATMUL(transposed, weights(8, 5))), "bfloat16")
    assert products(new)[0].inputs[0].inputs[0] is transposed


def test_recurrent_weights() -> None:
    op = ops.LSTM(8)
    x = arg("x", 5, 1, 6)
    zero = const(np.zeros((1, 1, 8), np.float32))
    node = op(x, weights(1, 32, 6), weights(1, 32, 8), weights(1, 64), zero, zero)
    g = graph(*node.results)
    new = lower_precision(g, "bfloat16")
    (product,) = products(new)
    assert [i.dtype for i in product.inputs] == [f32, bf16, bf16, f32, f32, f32]
    same_values(g, new, tolerance=0.05)


def test_convolutions() -> None:
    x = arg("x", 1, 3, 9, 9)
    one, nchw = (1, 1), ("NCHW", "OIHW", "NCHW")
    conv = ops.Convolution((2, 2), ((1, 1), (1, 1)), one, one, *nchw)
    g = graph(conv(x, weights(4, 3, 3, 3)))
    same_values(g, lower_precision(g, "bfloat16"), tolerance=0.1)
    same_values(g, lower_precision(g, "float16"), tolerance=0.01)


@pytest.mark.parametrize(("precision", "settings"), [
    ("tf32", ["False", "True", "True"]), ("ieee", ["False", "False", "True"]), ("float32", ["False", "None", "True"]),
])  # fmt: skip
def test_how_f32_is_multiplied_where_a_product_leaves_it_open(precision: str, settings: list[str]) -> None:
    """No type changes, and what is settled stays."""
    y, w = arg("x", 4, 6), arg("w", 6, 6)
    for tf32 in (None, False, True):
        y = ops.DotGeneral(((), ()), ((1,), (0,)), tf32=tf32)(y, w)
    lowered = lower_precision(graph(y), precision)
    products = [n for n in lowered.nodes() if isinstance(n.op, ops.DotGeneral)]
    assert sorted(str(getattr(n.op, "tf32", None)) for n in products) == settings
    assert all(n.dtype == f32 for n in lowered.nodes())
