"""Experts in quantized tensors of their own: one weight of levels, of which those that are chosen are dequantized."""

from __future__ import annotations

import numpy as np

from ingot import ops
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input, Node, const
from ingot.ir.types import TensorType, f32, i8, i64, u4
from ingot.language.tensors import stacked
from tests.language.models import compiled

ROWS, COLUMNS = 24, 128
RNG = np.random.default_rng(0)


def in_blocks() -> Node:
    def factor(*shape: int, dtype: type) -> Node:
        return const((RNG.normal(size=(ROWS, *shape)) * 9 + 30).astype(dtype))

    q = const(RNG.integers(0, 16, (ROWS, 2, 2, 32)).astype(u4.numpy))
    scales = [factor(2, 2, 1, dtype=np.uint8), factor(2, 1, 1, dtype=np.float16)]
    minima = [factor(2, 2, 1, dtype=np.uint8), factor(2, 1, 1, dtype=np.float16)]
    return ops.reshape(ops.DequantizeBlocks(0, 4, 2)(q, *scales, *minima), (ROWS, COLUMNS))


def in_rows() -> Node:
    q = const(RNG.integers(-128, 128, (ROWS, COLUMNS)).astype(np.int8))
    return ops.Dequantize()(q, ops.scalar(0, i8), const(RNG.random((ROWS, 1)).astype(np.float32)))


def test_experts_stay_levels() -> None:
    for one, bits in ((in_blocks, 6.0), (in_rows, 9.0)):
        matrices = [one() for _ in range(4)]
        (expected,) = interpret(Graph((), (ops.stack(matrices),)), [])
        w = stacked(matrices)
        np.testing.assert_array_equal(interpret(Graph((), (w,)), [])[0], expected)
        x, ends = Input("x", TensorType(f32, (10, COLUMNS)))(), Input("ends", TensorType(i64, (4,)))()
        program = compiled(Graph((x, ends), (ops.GroupedMatMul()(x, ops.swap_axes(w, 1, 2), ends),)))
        assert program.program.weights.nbytes * 8 <= bits * expected.size
        inputs = RNG.normal(size=(10, COLUMNS)).astype(np.float32)
        got = np.asarray(program(inputs, np.array([3, 3, 7, 10])))
        chosen = np.repeat([0, 2, 3], [3, 4, 3])
        want = np.stack([inputs[i] @ expected[e].T for i, e in enumerate(chosen)])
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * np.abs(want).max())


def test_experts_of_several_forms_are_floats() -> None:
    matrices = [in_blocks(), in_rows()]
    (expected,) = interpret(Graph((), (ops.stack(matrices),)), [])
    np.testing.assert_array_equal(interpret(Graph((), (stacked(matrices),)), [])[0], expected)
