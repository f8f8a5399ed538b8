"""Weights of few bits stay levels in front of products, however a model writes them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ingot import ops
from ingot.ir.interp import interpret
from ingot.ir.node import Node, const
from ingot.ir.types import DType, f16, f32, f64, i4, i8, u4, u8
from ingot.ir.verify import verify
from ingot.passes.core.block_quantized import is_product_of_levels, round_floats
from ingot.passes.core.quantized import lower_quantized
from tests.passes.check import arg, graph

RNG = np.random.default_rng(4)


def levels(*shape: int, dtype: DType = u4) -> np.ndarray:
    low = 0 if dtype.kind == "u" else -(1 << (dtype.bits - 1))
    return RNG.integers(low, low + (1 << dtype.bits), shape).astype(dtype.numpy)


def scales(*shape: int) -> Node:
    return const(RNG.random(shape).astype(np.float32))


def quantized_product_count(x: Node, w: Node, contract: tuple[tuple[int, ...], tuple[int, ...]]) -> int:
    """How many products hold levels behind the pass, which changes no value."""
    g = graph(ops.DotGeneral(contract=contract)(x, w))
    new = lower_quantized(g, int8_dot=u8)
    verify(new, "the pass")
    data = [RNG.standard_normal(tuple(map(int, n.shape))).astype(n.dtype.numpy) for n in new.inputs]
    before, after = interpret(g, data)[0], interpret(new, data)[0]
    np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-5)
    return sum(is_product_of_levels(n, (f32,)) for n in new.nodes())


@pytest.mark.parametrize("dtype", [u4, i4, u8, i8])
def test_blocks_of_a_row(dtype: DType) -> None:
    """MatMulNBits: [n, blocks, block], of which the last may go beyond k."""
    zero = const(levels(6, 3, 1, dtype=dtype))
    w = ops.reshape(ops.Dequantize()(const(levels(6, 3, 16, dtype=dtype)), zero, scales(6, 3, 1)), (6, 48))
    assert quantized_product_count(arg("x", 2, 5, 48), w, ((2,), (1,))) == 1
    assert quantized_product_count(arg("x", 5, 41), ops.slice_axis(w, 1, 0, 41), ((1,), (1,))) == 1
    assert (
        quantized_product_count(arg("x", 41, 5), ops.transpose(ops.slice_axis(w, 1, 0, 41), (1, 0)), ((0,), (0,))) == 1
    )


def roundings(x: Node, w: Node, contract: tuple[tuple[int, ...], tuple[int, ...]]) -> list[tuple[int, ...]]:
    """The sizes of the blocks in which the pass rounds what levels are multiplied with."""
    g = lower_quantized(graph(ops.DotGeneral(contract=contract)(x, w)), int8_dot=u8, rounds=True)
    verify(g, "the pass")
    data = [RNG.standard_normal(tuple(map(int, n.shape))).astype(n.dtype.numpy) for n in g.inputs]
    floats = round_floats(g)
    assert floats == g
    lowered = round_floats(g, bytes_kept=False)
    verify(lowered, "round_floats")
    assert not any(isinstance(n.op, ops.RoundToBytes) for n in lowered.nodes())
    np.testing.assert_allclose(interpret(lowered, data)[0], interpret(g, data)[0], rtol=1e-6, atol=1e-6)
    rounded = [n for n in g.nodes() if isinstance(n.op, ops.RoundToBytes)]
    return [tuple(int(n.shape[d]) for d in n.op.dims) for n in rounded if isinstance(n.op, ops.RoundToBytes)]


def test_blocks_that_are_rounded() -> None:
    small = ops.Dequantize()(const(levels(6, 3, 16)), const(levels(6, 3, 1)), scales(6, 3, 1))
    assert roundings(arg("x", 5, 41), ops.slice_axis(ops.reshape(small, (6, 48)), 1, 0, 41), ((1,), (1,))) == [(16,)]
    long = ops.Dequantize()(const(levels(6, 1152, dtype=i8)), ops.scalar(0, i8), scales(6, 1))
    assert roundings(arg("x", 5, 1152), long, ((1,), (1,))) == [(128,)]
    odd = ops.Dequantize()(const(levels(6, 3, 21)), const(levels(6, 3, 1)), scales(6, 3, 1))
    assert roundings(arg("x", 5, 63), ops.reshape(odd, (6, 63)), ((1,), (1,))) == []
    unit, levels_ = const(RNG.random((6, 2, 1, 1)).astype(np.float16)), const(levels(6, 2, 8, 1, dtype=u8))
    k_quant = ops.DequantizeBlocks(bits=4, factors=2)(const(levels(6, 2, 8, 32)), levels_, unit)
    assert roundings(arg("x", 5, 512), ops.reshape(k_quant, (6, 512)), ((1,), (1,))) == [(8, 32)]
    floats = ops.DequantizeBlocks(bits=4)(
        const(levels(6, 2, 8, 32)), const(RNG.random((6, 2, 8, 1)).astype(np.float16))
    )
    assert roundings(arg("x", 5, 512), ops.reshape(floats, (6, 512)), ((1,), (1,))) == [(32,)]


def test_what_no_product_reads_directly_is_rounded_in_floats() -> None:
    w = ops.Dequantize()(const(levels(6, 3, 16)), const(levels(6, 3, 1)), scales(6, 3, 1))
    transposed = ops.transpose(ops.RoundToBytes((1,))(arg("x", 16, 3, 5)), (2, 1, 0))
    g = graph(ops.DotGeneral(contract=((1, 2), (1, 2)))(transposed, w))
    assert not any(isinstance(n.op, ops.RoundToBytes) for n in round_floats(g).nodes())


def test_other_forms() -> None:
    """Blocks of a column (DequantizeLinear, axis 0), joined rows (group-wise in PyTorch), a scale for each row, one."""
    column = ops.Dequantize()(const(levels(3, 16, 6)), const(levels(3, 1, 6)), scales(3, 1, 6))
    assert quantized_product_count(arg("x", 5, 48), ops.reshape(column, (48, 6)), ((1,), (0,))) == 1
    rows = ops.Dequantize()(const(levels(18, 16, dtype=i8)), ops.scalar(0, i8), scales(18, 1))
    assert (
        quantized_product_count(arg("x", 5, 48), ops.transpose(ops.reshape(rows, (6, 48)), (1, 0)), ((1,), (0,))) == 1
    )
    for scale in (scales(6, 1), scales()):
        w = ops.Dequantize()(const(levels(6, 48)), ops.scalar(3, u4), scale)
        assert quantized_product_count(arg("x", 5, 48), w, ((1,), (1,))) == 1
    floats = ops.Dequantize()(const(levels(6, 3, 16)), scales(6, 3, 1), scales(6, 3, 1))
    assert quantized_product_count(arg("x", 5, 48), ops.reshape(floats, (6, 48)), ((1,), (1,))) == 1


def test_what_does_not_stay() -> None:
    """Scales along the sum, few levels to a scale, levels that are computed, other floats: constants of floats."""
    x, zero = arg("x", 5, 48), ops.scalar(0, u4)
    assert quantized_product_count(x, ops.Dequantize()(const(levels(6, 48)), zero, scales(48)), ((1,), (1,))) == 0
    coarse = ops.Dequantize()(const(levels(6, 12, 4)), zero, scales(6, 12, 1))
    assert quantized_product_count(x, ops.reshape(coarse, (6, 48)), ((1,), (1,))) == 0
    data = ops.Dequantize()(ops.cast(arg("q", 6, 48), u4), zero, scales(6, 1))
    assert quantized_product_count(x, data, ((1,), (1,))) == 0
    half = ops.Dequantize()(const(levels(6, 48)), zero, ops.cast(scales(6, 1), f16))
    assert quantized_product_count(ops.cast(x, f16), half, ((1,), (1,))) == 0
    wide = ops.Dequantize()(const(levels(6, 48)), zero, ops.cast(scales(6, 1), f64))
    assert quantized_product_count(ops.cast(x, f64), wide, ((1,), (1,))) == 0


def test_a_matrix_with_other_readers() -> None:
    """Those read what it stands for."""
    w = ops.Dequantize()(const(levels(48, 48)), ops.scalar(3, u4), scales(48, 1))
    x = arg("x", 5, 48)
    g = graph(ops.linear(x, w), ops.add(w, arg("y", 48, 48)))
    new = lower_quantized(g, int8_dot=u8)
    assert sum(is_product_of_levels(n, (f32,)) for n in new.nodes()) == 1
    data = [RNG.standard_normal(tuple(map(int, n.shape))).astype(f32.numpy) for n in new.inputs]
    for a, b in zip(interpret(g, data), interpret(new, data), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_levels_written_as_arithmetic() -> None:
    """(convert(q) - zero) * scale, as decomposed quantizers have it; in f16 each operation rounds."""
    x, w = arg("x", 5, 48), ops.Convert(f32)(const(levels(6, 48, dtype=i8)))
    assert quantized_product_count(x, w, ((1,), (1,))) == 1
    assert quantized_product_count(x, ops.mul(w, scales(6, 1)), ((1,), (1,))) == 1
    blocks = ops.Convert(f32)(const(levels(6, 3, 16, dtype=i8)))
    zero = ops.BroadcastInDim((6, 3, 16), (0, 1, 2))(ops.Convert(f32)(const(levels(6, 3, 1, dtype=i8))))
    dequantized = ops.mul(ops.sub(blocks, zero), ops.BroadcastInDim((6, 3, 16), (0, 1, 2))(scales(6, 3, 1)))
    assert (
        quantized_product_count(arg("x", 48, 5), ops.transpose(ops.reshape(dequantized, (6, 48)), (1, 0)), ((0,), (0,)))
        == 1
    )
    assert quantized_product_count(x, ops.mul(w, scales(6, 48)), ((1,), (1,))) == 0
    assert quantized_product_count(x, ops.mul(ops.mul(w, scales(6, 1)), scales(6, 1)), ((1,), (1,))) == 0
    half = ops.mul(ops.Convert(f16)(const(levels(6, 48, dtype=i8))), ops.cast(scales(6, 1), f16))
    assert quantized_product_count(ops.cast(x, f16), half, ((1,), (1,))) == 0


@pytest.mark.parametrize(("low", "dtype"), [(-8, i8), (100, u8), (-128, i8)])
def test_bytes_within_sixteen_levels_are_nibbles(low: int, dtype: DType) -> None:
    q = const((levels(6, 3, 16).astype(np.int32) + low).astype(dtype.numpy))
    for zero in (const(levels(6, 3, 1, dtype=dtype)), scales(6, 3, 1), ops.scalar(3, dtype)):
        w = ops.reshape(ops.Dequantize()(q, zero, scales(6, 3, 1)), (6, 48))
        g = graph(ops.DotGeneral(contract=((1,), (1,)))(arg("x", 5, 48), w))
        (product,) = (n for n in lower_quantized(g, int8_dot=u8).nodes() if is_product_of_levels(n, (f32,)))
        assert product.inputs[1].inputs[0].dtype == u4
        assert quantized_product_count(arg("x", 5, 48), w, ((1,), (1,))) == 1


@pytest.mark.parametrize("dtype", [u4, u8])
def test_block_formats(dtype: DType) -> None:
    """They stay as they are, blocks of blocks, too; without kernels for them, or for f16, scales are f32."""
    q = const(levels(6, 3, 2, 16, dtype=dtype))
    unit, scale = const(RNG.normal(size=(6, 3, 1, 1)).astype(np.float16)), const(levels(6, 3, 2, 1, dtype=u8))
    for form, factors in (
        (ops.DequantizeBlocks(3), (unit,)),
        (ops.DequantizeBlocks(factors=2), (scale, unit, scale, unit)),
        (ops.DequantizeBlocks(factors=2), (const(np.zeros((6, 3, 2, 1), np.uint8)), unit, scale, unit)),
    ):
        if form.bits > dtype.bits:
            form = replace(form, bits=dtype.bits)
        w = ops.reshape(form(q, *factors), (6, 96))
        assert quantized_product_count(arg("x", 2, 5, 96), w, ((2,), (1,))) == 1
        assert quantized_product_count(arg("x", 96, 5), ops.transpose(w, (1, 0)), ((0,), (0,))) == 1
        g = graph(ops.DotGeneral(contract=((1,), (1,)))(arg("x", 5, 96), w))
        data = [RNG.standard_normal((5, 96)).astype(np.float32)]
        (expected,) = interpret(g, data)
        for has_kernels in (False, True):
            new = lower_quantized(g, int8_dot=None, blocks=has_kernels, widens=() if has_kernels else (f16,))
            assert sum(is_product_of_levels(n, (f32,)) for n in new.nodes()) == 1
            assert not any(n.dtype == f16 for n in new.nodes() if n.constant is not None)
            assert any(isinstance(n.op, ops.DequantizeBlocks) for n in new.nodes()) == has_kernels
            np.testing.assert_allclose(interpret(new, data)[0], expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())
