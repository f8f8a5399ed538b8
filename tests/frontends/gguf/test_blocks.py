"""Block formats, bit for bit as the package `gguf` dequantizes them."""

from __future__ import annotations

import numpy as np
import pytest

from ingot.frontends.gguf import FORMATS, BlockFormat
from ingot.frontends.gguf.blocks import UNREAD
from tests.frontends.gguf.builder import random_blocks

IN_BLOCKS = [f for f in FORMATS.values() if f.levels is not None]


def _ids(format: BlockFormat) -> str:
    return format.name


@pytest.mark.parametrize("format", FORMATS.values(), ids=_ids)
def test_bit_equal_to_the_reference(format: BlockFormat) -> None:
    gguf = pytest.importorskip("gguf")
    kind = gguf.GGMLQuantizationType(format.code)
    assert kind.name == format.name
    assert gguf.GGML_QUANT_SIZES[kind] == (format.elements, format.nbytes)
    if format.name in ("F64", "I8", "I16", "I32", "I64"):  # which it leaves to numpy
        return
    blocks = random_blocks(format.name, 300)
    expected = gguf.quants.dequantize(blocks, kind).reshape(len(blocks), -1)
    got = format.dequantize(blocks)
    assert got.dtype == np.float32 and got.shape == (300, format.elements)
    np.testing.assert_array_equal(got.view(np.uint32), np.ascontiguousarray(expected).view(np.uint32))


@pytest.mark.parametrize("format", IN_BLOCKS, ids=_ids)
def test_levels_and_factors_give_the_weights(format: BlockFormat) -> None:
    """Exactly, and levels use no more bits than the format says."""
    blocks = random_blocks(format.name, 300, seed=1)
    levels, (scale, minimum) = format.decode_levels(blocks), format.scales(blocks)
    assert format.levels is not None and levels.dtype == format.levels.numpy
    least = -(1 << (format.bits - 1)) if format.levels.kind == "i" else 0
    numbers = levels.astype(np.int32)
    assert numbers.min() >= least and numbers.max() < least + (1 << format.bits)
    grouped = numbers.astype(np.float32).reshape(300, -1, format.group) - np.float32(format.zero)
    got = grouped * np.prod([x.astype(np.float32) + np.zeros_like(grouped[..., 0]) for x in scale], 0)[..., None]
    if minimum:
        got = got + np.prod([x.astype(np.float32) + np.zeros_like(grouped[..., 0]) for x in minimum], 0)[..., None]
    np.testing.assert_array_equal(got, format.dequantize(blocks).reshape(got.shape))


def test_many_blocks_are_decoded_in_chunks() -> None:
    """The same at each place, whatever is decoded with it."""
    (format,) = (f for f in IN_BLOCKS if f.name == "Q4_K")
    few_blocks = random_blocks("Q4_K", 50)
    many_blocks = np.tile(few_blocks, (400, 1))
    np.testing.assert_array_equal(format.dequantize(many_blocks), np.tile(format.dequantize(few_blocks), (400, 1)))
    np.testing.assert_array_equal(
        format.decode_levels(many_blocks), np.tile(format.decode_levels(few_blocks), (400, 1))
    )


def test_formats_of_other_kinds_are_named() -> None:
    gguf = pytest.importorskip("gguf")
    assert {k.value: k.name for k in gguf.GGMLQuantizationType} == {c: f.name for c, f in FORMATS.items()} | dict(
        UNREAD
    )
