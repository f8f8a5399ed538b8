"""Adapters of low rank beside the sum of the matrices."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ingot.frontends.gguf import GGUFFile, GGUFWeights
from ingot.frontends.language.adapters import in_gguf, read_adapter
from ingot.ir.interp import interpret
from ingot.ir.node import Graph
from ingot.language.config import from_config
from ingot.language.lora import LowRank, MergedWeights
from ingot.language.metadata import from_metadata
from ingot.language.weights import ArrayWeights, Weights
from ingot.support import safetensors
from ingot.support.errors import ImportModelError
from tests.frontends.gguf.builder import F32, STRING, key, of_tensors, random_blocks, scalar, text
from tests.language.models import SIZES
from tests.language.test_metadata import metadata, stored

RNG = np.random.default_rng(0)
A, B = (RNG.normal(size=shape).astype(np.float32) for shape in ((4, 64), (48, 4)))


def adapter(path: Path, alpha: float = 8.0, name: str = "blk.0.attn_q.weight") -> Path:
    tensors = {f"{name}.lora_a": ("F32", A.shape, A), f"{name}.lora_b": ("F32", B.shape, B)}
    kinds = {"general.type": "adapter", "adapter.type": "lora", "general.architecture": "llama"}
    keys = [key(k, STRING, text(v)) for k, v in kinds.items()] + [key("adapter.lora.alpha", F32, scalar(F32, alpha))]
    path.write_bytes(of_tensors(tensors, keys))
    return path


def value(weights: Weights, name: str) -> np.ndarray:
    return interpret(Graph((), (weights.matrix(name),)), [])[0]


@pytest.mark.parametrize(("alpha", "scale", "factor"), [(8.0, 1.0, 2.0), (0.0, 0.5, 0.5), (2.0, -2.0, -1.0)])
def test_gguf_adapters_are_added(tmp_path: Path, alpha: float, scale: float, factor: float) -> None:
    blocks = random_blocks("Q8_0", 48 * 64 // 32)
    (tmp_path / "base.gguf").write_bytes(of_tensors({"blk.0.attn_q.weight": ("Q8_0", (48, 64), blocks)}))
    file = GGUFFile(tmp_path / "base.gguf")
    merged = MergedWeights(GGUFWeights(file), [read_adapter(adapter(tmp_path / "a.gguf", alpha), scale)])
    expected = file.tensors["blk.0.attn_q.weight"].dequantized() + factor * (B @ A)
    assert np.allclose(value(merged, "blk.0.attn_q.weight"), expected, atol=1e-5)
    assert merged.shape("blk.0.attn_q.weight") == (48, 64) and [*merged.names] == ["blk.0.attn_q.weight"]


def peft(folder: Path, config: dict[str, object], **arrays: np.ndarray) -> Path:
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "lora_alpha": 8, "r": 4, **config}))
    safetensors.write(folder / "adapter_model.safetensors", arrays)
    return folder


NAME = "base_model.model.model.layers.0.self_attn.q_proj"


@pytest.mark.parametrize(
    ("config", "factor"), [({}, 2.0), ({"use_rslora": True}, 4.0), ({"fan_in_fan_out": True}, 2.0)]
)
def test_folders_of_peft(tmp_path: Path, config: dict[str, object], factor: float) -> None:
    parts = {f"{NAME}.lora_A.weight": A, f"{NAME}.lora_B.weight": B}
    adapter = read_adapter(peft(tmp_path / "lora", config, **parts))
    delta = factor * (B @ A)
    delta = delta.T if config.get("fan_in_fan_out") else delta
    base = RNG.normal(size=delta.shape).astype(np.float32)
    name = "model.layers.0.self_attn.q_proj.weight"
    weights = MergedWeights(ArrayWeights({name: base, "other": base}), [adapter, adapter])
    assert np.allclose(value(weights, name), base + 2 * delta, atol=1e-4)
    assert np.array_equal(value(weights, "other"), base)


PARTS = {
    "llama": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.down_proj"),
    "olmo2": ("self_attn.q_proj", "mlp.up_proj"),
    "phi3": ("self_attn.qkv_proj", "mlp.gate_up_proj"),
    "gpt2": ("attn.c_attn", "mlp.c_fc"),
}


@pytest.mark.parametrize("family", PARTS)
@pytest.mark.parametrize("has_head", [True, False])
def test_folders_of_peft_on_a_gguf_file(tmp_path: Path, family: str, has_head: bool) -> None:
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64} if family == "gpt2" else SIZES
    old = from_config({"model_type": family, **sizes, "num_key_value_heads": 4 if family == "gpt2" else 2})
    new = from_metadata(metadata(family, old))
    head = "transformer.h" if family == "gpt2" else "model.layers"
    arrays, merged, parts = dict[str, np.ndarray](), dict[str, np.ndarray](), dict[str, np.ndarray]()
    for part in PARTS[family]:
        outputs = 16 if part.endswith(("k_proj", "v_proj")) else 32
        name, a, b = f"{head}.1.{part}", RNG.normal(size=(4, 48)), RNG.normal(size=(outputs, 4))
        own = name if has_head else name.partition(".")[2]
        parts[f"base_model.model.{own}.lora_A.weight"] = a.astype(np.float32)
        parts[f"base_model.model.{own}.lora_B.weight"] = b.astype(np.float32)
        delta = (b @ a).T if family == "gpt2" else b @ a
        arrays[f"{name}.weight"] = RNG.normal(size=delta.shape).astype(np.float32)
        merged[f"{name}.weight"] = arrays[f"{name}.weight"] + 2 * delta
    base = ArrayWeights(stored(arrays, old, new))
    folder = peft(tmp_path / "lora", {"fan_in_fan_out": family == "gpt2"}, **parts)
    weights = MergedWeights(base, [in_gguf(read_adapter(folder), base, new)])
    expected = stored(merged, old, new)
    assert expected.keys() == {*base.names} and len(expected) == len(PARTS[family])
    for name, array in expected.items():
        assert np.allclose(value(weights, name), array, atol=1e-4) and not np.allclose(array, value(base, name))


def test_what_is_not_merged_is_refused(tmp_path: Path) -> None:
    parts = {f"{NAME}.lora_A.weight": A, f"{NAME}.lora_B.weight": B}
    refused: list[dict[str, object]] = [
        {"use_dora": True},
        {"bias": "all"},
        {"peft_type": "IA3"},
        {"rank_pattern": {"q": 2}},
    ]
    for i, config in enumerate(refused):
        with pytest.raises(ImportModelError, match=next(iter(config))):
            read_adapter(peft(tmp_path / str(i), config, **parts))
    with pytest.raises(ImportModelError, match="pairs lora_A and lora_B"):
        read_adapter(peft(tmp_path / "more", {}, **parts, **{f"{NAME}.lora_embedding_A": A}))
    with pytest.raises(ImportModelError, match=r"a \[rank, inputs\] and b"):
        read_adapter(peft(tmp_path / "half", {}, **{f"{NAME}.lora_A.weight": A}))
    (tmp_path / "model.gguf").write_bytes(of_tensors({"x": ("F32", (4,), np.ones(4, np.float32))}))
    with pytest.raises(ImportModelError, match="a GGUF file of a LoRA adapter"):
        read_adapter(tmp_path / "model.gguf")
    base = ArrayWeights({"blk.0.attn_q.weight": np.zeros((48, 32), np.float32)})
    for name, message in (("blk.0.attn_q.weight", r"\[48, 32\]"), ("blk.1.attn_q.weight", "one for blk.1")):
        with pytest.raises(ImportModelError, match=message):
            MergedWeights(base, [{name: LowRank(A, B, 1.0)}])
