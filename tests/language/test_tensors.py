"""Products that read one value: joined where their weights are levels in one form."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ingot import ops
from ingot.frontends.gguf import GGUFFile, GGUFWeights
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input
from ingot.ir.types import TensorType, f32
from ingot.language.architecture import Architecture
from ingot.language.lora import LowRank, MergedWeights
from ingot.language.names import GGUF
from ingot.language.tensors import Tensors, concatenated
from ingot.language.weights import Weights
from tests.frontends.gguf.builder import of_tensors, random_blocks

ROLES, COLUMNS = ("query", "key", "value"), 256
RECORD = Architecture("llama", COLUMNS, 4, 2, 64, 64, GGUF, ())
RNG = np.random.default_rng(0)
ELEMENTS = {"Q4_0": 32, "Q8_0": 32, "Q4_K": 256, "Q6_K": 256, "F32": 1}


def weights(path: Path, *formats: str, has_bias: bool = False) -> GGUFWeights:
    tensors = {}
    for name, format, rows in zip("qkv", formats, (48, 16, 24), strict=True):
        if format == "F32":
            data = RNG.normal(size=(rows, COLUMNS)).astype(np.float32)
        else:
            data = random_blocks(format, rows * COLUMNS // ELEMENTS[format])
        tensors[f"blk.0.attn_{name}.weight"] = (format, (rows, COLUMNS), data)
    if has_bias:
        tensors["blk.0.attn_k.bias"] = ("F32", (16,), RNG.normal(size=16).astype(np.float32))
    path.write_bytes(of_tensors(tensors))
    return GGUFWeights(GGUFFile(path))


def agrees(weights: Weights, products: int) -> None:
    x = Input("x", TensorType(f32, (3, COLUMNS)))()
    fused = Graph((x,), tuple(Tensors(RECORD, weights).linears(x, ROLES, 0)))
    separate = Graph((x,), tuple(Tensors(RECORD, weights).linear(x, role, 0) for role in ROLES))
    assert sum(isinstance(n.op, ops.DotGeneral) for n in fused.nodes()) == products
    value = RNG.normal(size=(3, COLUMNS)).astype(np.float32)
    for got, want in zip(interpret(fused, [value]), interpret(separate, [value]), strict=True):
        assert np.allclose(got, want, rtol=1e-5, atol=1e-5 * np.abs(want).max())


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(
    ("formats", "products"),
    [(("Q4_0",) * 3, 1), (("Q4_K", "Q4_K", "Q6_K"), 2), (("Q8_0", "Q4_0", "Q8_0"), 2), (("F32",) * 3, 3)],
)
def test_levels_in_one_form_are_one_product(
    tmp_path: Path, formats: tuple[str, ...], products: int, has_bias: bool
) -> None:
    agrees(weights(tmp_path / "w.gguf", *formats, has_bias=has_bias), products)


def test_what_an_adapter_changes_is_apart(tmp_path: Path) -> None:
    adapter = LowRank(RNG.normal(size=(2, COLUMNS)), RNG.normal(size=(16, 2)), 0.5)
    agrees(MergedWeights(weights(tmp_path / "w.gguf", *("Q4_0",) * 3), {"blk.0.attn_k.weight": [adapter]}), 2)


@pytest.mark.parametrize("format", ["Q4_0", "Q6_K"])
def test_rows_of_joined_levels(tmp_path: Path, format: str) -> None:
    loaded = weights(tmp_path / "w.gguf", *(format,) * 3)
    for node in concatenated([loaded.matrix(f"blk.0.attn_{name}.weight") for name in "qkv"]).inputs[0].inputs:
        array = node.constant
        assert array is not None and array.shape[0] == 88
        for start, stop in ((0, 88), (0, 1), (47, 49), (50, 80), (87, 88)):
            assert np.array_equal(array.rows(start, stop), array.value[start:stop])
