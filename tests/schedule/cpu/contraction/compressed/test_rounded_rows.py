"""Products of rows rounded to bytes with levels, against the interpreter: the same bits where floats round nothing."""

from __future__ import annotations

import numpy as np
import pytest

from ingot import ops
from ingot.ir.dims import DimLike, symbol
from ingot.ir.node import Graph, Input, Node, const
from ingot.ir.types import DType, TensorType, f32, i8, u4
from ingot.passes.core.block_quantized import product_of_levels
from ingot.schedule.cpu.machine import Machine
from tests.schedule.compiled import check, compile_graph
from tests.schedule.cpu.contraction.compressed.test_block_quantized import FORMS, TARGETS, weights

Form = tuple[int, tuple[int, ...], DType, ops.DequantizeBlocks, bool]


def rounded(x: Node, w: Node) -> Graph:
    n, k = w.shape[0], int(np.prod([int(d) for d in w.shape[1:]]))
    product = product_of_levels(ops.DotGeneral(contract=((1,), (1,)))(x, ops.reshape(w, (n, k))), (f32,), rounds=True)
    assert product is not None and isinstance(product.inputs[0].op, ops.RoundToBytes)
    (source,) = (v for v in Graph((x,), (product,)).nodes() if isinstance(v.op, Input))
    return Graph((source,), (product,))


def graph(m: DimLike, w: Node) -> Graph:
    k = int(np.prod([int(d) for d in w.shape[1:]]))
    return rounded(Input("x", TensorType(f32, (m, k)))(), w)


def exact_weights(n: int, shape: tuple[int, ...], dtype: DType, form: ops.DequantizeBlocks, has_minimum: bool) -> Node:
    """With factors of which sums of products lose no bit: small integers, powers of two."""
    rng, matrix = np.random.default_rng(n), weights(n, shape, dtype, form, has_minimum)
    factors = [
        const(rng.integers(0, 4, p.shape).astype(p.dtype.numpy))
        if p.dtype.is_integer
        else const((rng.choice([-1, 1], p.shape) * 2.0 ** rng.integers(0, 3, p.shape)).astype(p.dtype.numpy))
        for p in matrix.inputs[1:]
    ]
    return form(matrix.inputs[0], *factors)


def exact_rows(m: int, k: int, block: int) -> np.ndarray:
    """Floats whose blocks have a power of two as the difference of levels."""
    rng = np.random.default_rng(m + k)
    x = rng.uniform(-127, 127, (m, k // block, block))
    x[..., rng.integers(0, block)] = 127
    return (x * 2.0 ** rng.integers(-1, 2, (m, k // block, 1))).astype(np.float32).reshape(m, k)


ROUNDED = [case for case in FORMS if case[1] != (50,)]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("machine", TARGETS, ids=lambda m: f"{m.vector_bits}")
@pytest.mark.parametrize("case", ROUNDED, ids=lambda c: f"{c[3].bits} bits {c[1]}")
def test_bits_of_the_reference(case: Form, machine: Machine) -> None:
    k, block = int(np.prod(case[1])), 256 if case[3].factors == 2 else case[1][-1]
    for size, counts in ((1, [1]), (7, [7]), (symbol("m"), [1, 3, 21])):
        model = graph(size, exact_weights(*case))
        for m in counts:
            check(model, [exact_rows(m, k, block)], rtol=0, machine=machine)


@pytest.mark.parametrize("zeros", ["bytes", "floats"])
def test_zeros_of_blocks(zeros: str) -> None:
    rng = np.random.default_rng(3)
    levels = const(rng.integers(0, 256, (70, 3, 32)).astype(np.uint8))
    zero = rng.integers(0, 9, (70, 3, 1))
    w = ops.Dequantize()(
        levels, const(zero.astype(np.uint8 if zeros == "bytes" else np.float32)),
        const((2.0 ** rng.integers(-2, 2, (70, 3, 1))).astype(np.float32)),
    )  # fmt: skip
    for m in (1, 9):
        check(graph(m, w), [exact_rows(m, 96, 32)], rtol=0)


def test_long_blocks_are_split() -> None:
    """One scale for a column: rows are rounded in parts of it."""
    rng = np.random.default_rng(4)
    levels, scale = rng.integers(-128, 128, (40, 1152)).astype(np.int8), rng.random((40, 1)).astype(np.float32)
    w = ops.Dequantize()(const(levels), const(np.zeros((), np.int8)), const(scale))
    model = graph(5, w)
    assert model.outputs[0].inputs[0].shape == (5, 9, 128)
    check(model, [rng.standard_normal((5, 1152)).astype(np.float32)])


def test_special_values() -> None:
    """NaN and infinities make their row NaN, blocks of zeros count nothing."""
    w, k = weights(70, (2, 8, 32), u4, ops.DequantizeBlocks(bits=4, factors=2), True), 512
    for m in (2, 12):
        x = np.random.default_rng(m).standard_normal((m, k)).astype(np.float32)
        x[0, 7], x[1, :256] = np.inf, 0
        check(graph(m, w), [x])
        x[0, 7], x[1, 300] = 1e-42, np.nan
        check(graph(m, w), [x])


def test_no_rows_and_strided_rows() -> None:
    w = weights(40, (6, 32), i8, ops.DequantizeBlocks(), False)
    open_rows = graph(symbol("m"), w)
    check(Graph(open_rows.inputs, open_rows.outputs, bounds=(("m", 0, None),)), [np.zeros((0, 192), np.float32)])
    x = Input("x", TensorType(f32, (192, 5)))()
    transposed = rounded(ops.transpose(x, (1, 0)), w)
    check(transposed, [np.random.default_rng(1).standard_normal((192, 5)).astype(np.float32)])


@pytest.mark.parametrize("case", [ROUNDED[0], ROUNDED[3]], ids=["Q4_K", "Q4_0"])
def test_a_row_has_the_same_bits_beside_others(case: Form) -> None:
    w, k = weights(*case), int(np.prod(case[1]))
    x = np.random.default_rng(2).standard_normal((40, k)).astype(np.float32)
    single_row = compile_graph(graph(1, w))
    batched, some = compile_graph(graph(symbol("m"), w)), compile_graph(graph(5, w))
    single = np.concatenate([single_row(x[i : i + 1]) for i in range(40)])
    np.testing.assert_array_equal(single, batched(x))
    np.testing.assert_array_equal(single[:5], some(x[:5]))


def test_levels_beyond_a_byte_of_products() -> None:
    """The extremes, which products of bytes in 16 bits would saturate."""
    levels = np.full((16, 2, 32), 255, np.uint8)
    w = ops.DequantizeBlocks()(const(levels), const(np.ones((16, 2, 1), np.float16)))
    x = np.full((3, 64), -1, np.float32)
    y = compile_graph(graph(3, w))(x)
    np.testing.assert_allclose(y, -64.0 * 255, rtol=1e-6)
