from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from ingot import ops
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input, const
from ingot.ir.types import DType, TensorType, bf16, f8e4m3fn, f8e5m2, f16, f32, i8
from ingot.passes.core.dtypes.narrow_products import narrow_caches, narrow_products, narrow_weights


def test_widened_operands_are_multiplied_as_they_are() -> None:
    """Behind views, too; the numbers are the same."""
    a, b = Input("a", TensorType(bf16, (3, 5)))(), Input("b", TensorType(bf16, (4, 5)))()
    wide_b = ops.Transpose((1, 0))(ops.Convert(f32)(b))
    graph = Graph((a, b), (ops.DotGeneral(((), ()), ((1,), (0,)))(ops.Convert(f32)(a), wide_b),))
    narrow = narrow_products(graph)
    (product,) = narrow.outputs
    assert [x.dtype for x in product.inputs] == [bf16, bf16] and product.dtype == f32
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=s).astype(ml_dtypes.bfloat16) for s in ((3, 5), (4, 5))]
    np.testing.assert_allclose(interpret(narrow, arrays)[0], interpret(graph, arrays)[0], rtol=1e-6)


@pytest.mark.parametrize(("left", "right"), [(bf16, f16), (bf16, f32)])
def test_operands_of_two_types_stay(left, right) -> None:
    a, b = Input("a", TensorType(left, (3, 5)))(), Input("b", TensorType(right, (5, 4)))()
    wide = (x if x.dtype == f32 else ops.Convert(f32)(x) for x in (a, b))
    graph = Graph((a, b), (ops.DotGeneral(((), ()), ((1,), (0,)))(*wide),))
    assert narrow_products(graph).outputs == graph.outputs


@pytest.mark.parametrize("dtype", [bf16, f16])
def test_widened_weights_are_multiplied_as_they_are(dtype) -> None:
    """Behind views, too; the numbers are the same. Types that the machine does not widen stay."""
    rng = np.random.default_rng(0)
    x, w = Input("x", TensorType(f32, (3, 5)))(), const(rng.normal(size=(4, 5)).astype(dtype.numpy))
    wide = ops.Transpose((1, 0))(ops.Convert(f32)(w))
    graph = Graph((x,), (ops.DotGeneral(((), ()), ((1,), (0,)))(x, wide),))
    narrow = narrow_weights(graph, (bf16, f16))
    (product,) = narrow.outputs
    assert [n.dtype for n in product.inputs] == [f32, dtype] and product.dtype == f32
    data = [rng.normal(size=(3, 5)).astype(np.float32)]
    np.testing.assert_allclose(interpret(narrow, data)[0], interpret(graph, data)[0], rtol=1e-6)
    assert narrow_weights(graph, ()).outputs == graph.outputs


@pytest.mark.parametrize("dtype", [f16, bf16, i8, f8e4m3fn, f8e5m2])
def test_few_queries_read_narrow_caches(dtype: DType) -> None:
    """Levels with a scale for each key, too; many queries read what is widened once."""
    rng = np.random.default_rng(0)
    for rows, is_narrow in ((1, True), (8, True), (9, False)):
        q, mask = Input("q", TensorType(f32, (1, 4, rows, 8)))(), Input("m", TensorType(f32, (1, 7)))()
        stored = [Input(name, TensorType(dtype, (1, 2, 9, 8)))() for name in "kv"]
        scales = [Input(f"{name}s", TensorType(f32, (1, 2, 9, 1)))() for name in "kv"] if dtype == i8 else []
        wide = [ops.cast(ops.slice_axis(x, 2, 0, 7), f32) for x in stored]
        if scales:
            wide = [ops.mul(x, ops.slice_axis(s, 2, 0, 7)) for x, s in zip(wide, scales, strict=True)]
        graph = Graph((q, *stored, mask, *scales), (ops.Attention("none", 0.3)(q, *wide, mask),))
        narrow = narrow_caches(graph, (bf16, f16))
        (attention,) = narrow.outputs
        assert (attention.inputs[1].dtype == attention.inputs[2].dtype == dtype) == is_narrow
        sizes = [(n, tuple(map(int, n.shape))) for n in graph.inputs]
        data = [(rng.normal(size=shape) * (9 if n.dtype == i8 else 0.2)).astype(n.dtype.numpy) for n, shape in sizes]
        np.testing.assert_allclose(interpret(narrow, data)[0], interpret(graph, data)[0], rtol=1e-5, atol=1e-6)
    if dtype in (f16, bf16):
        assert narrow_caches(graph, ()).outputs == graph.outputs
