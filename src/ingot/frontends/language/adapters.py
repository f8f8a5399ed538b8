"""Files of low-rank adapters: llama.cpp's GGUF files, and PEFT folders with safetensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ingot.frontends.gguf import GGUFFile
from ingot.frontends.huggingface.folder import read_json
from ingot.language.architecture import Architecture
from ingot.language.lora import LowRank
from ingot.language.metadata import PAIRED
from ingot.language.names import roles_of
from ingot.language.settings import Settings
from ingot.language.weights import Weights
from ingot.support import safetensors
from ingot.support.errors import ImportModelError

_MAX_CONFIG_BYTES = 4 << 20  # bytes
_PREFIX = "base_model.model."  # of PEFT's names
# PEFT options that change weights in other ways -> the value that disables them
_OFF_VALUES: dict[str, Any] = {
    "use_dora": False, "bias": "none", "modules_to_save": None, "layer_replication": None, "lora_bias": False,
    "use_qalora": False, "trainable_token_indices": None, "target_parameters": None, "alora_invocation_tokens": None,
}  # fmt: skip


def read_adapter(path: Path, scale: float = 1.0) -> Mapping[str, LowRank]:
    """By names of weights, as the model's own file has them. scale: of what the adapter changes. Raises
    ImportModelError."""
    return _of_folder(path, scale) if path.is_dir() else _of_gguf(path, scale)


def in_gguf(adapter: Mapping[str, LowRank], weights: Weights, architecture: Architecture) -> Mapping[str, LowRank]:
    """Convert an adapter with names of `transformers` to one of a GGUF file, whose converter renames and reorders
    matrices. Matrices without a GGUF name are kept as they are."""
    names = dict(architecture.names)
    heads = {"query": architecture.heads, "key": architecture.key_heads}

    def image(name: str, part: LowRank) -> tuple[str, LowRank]:
        for role, place in roles_of(name):
            gguf_name = names.get(role, "").format(*place)
            if gguf_name in weights:
                part = replace(part, transposed=False)
                is_paired = architecture.family in PAIRED and role in heads and part.shape == weights.shape(gguf_name)
                return gguf_name, part.reordered(heads[role]) if is_paired else part
        return name, part

    return dict(image(name, part) for name, part in adapter.items())


def _of_gguf(path: Path, scale: float) -> Mapping[str, LowRank]:
    file = GGUFFile(path)
    s = Settings(file.metadata, str(path))
    kind = s.text("adapter.type", default="none")
    if s.text("general.type", default="model") != "adapter" or kind != "lora":
        raise ImportModelError("the adapter", expected="a GGUF file of a LoRA adapter", got=kind, where=str(path))
    alpha = s.number("adapter.lora.alpha")
    pairs: dict[str, dict[str, np.ndarray]] = {}
    for name, tensor in file.tensors.items():
        weight, _, part = name.rpartition(".")
        if part not in ("lora_a", "lora_b"):
            raise ImportModelError("the adapter", expected="pairs lora_a and lora_b", got=name, where=str(path))
        pairs.setdefault(weight, {})[part[-1]] = tensor.dequantized()
    return {
        weight: _pair(pair, weight, path, lambda rank: scale * (alpha / rank if alpha else 1.0))
        for weight, pair in pairs.items()
    }


def _of_folder(path: Path, scale: float) -> Mapping[str, LowRank]:
    config = read_json(path / "adapter_config.json", _MAX_CONFIG_BYTES)
    s = Settings(config, str(path / "adapter_config.json"))
    if s.text("peft_type", default="none") != "LORA":
        raise s.error("peft_type", "'LORA'", s.get("peft_type"))
    for key, off_value in _OFF_VALUES.items():
        if s.get(key) not in (None, off_value, []):
            raise s.error(key, repr(off_value), s.get(key))
    if s.get("alpha_pattern") or s.get("rank_pattern"):
        raise s.error("alpha_pattern, rank_pattern", "none", [s.get("alpha_pattern"), s.get("rank_pattern")])
    alpha, is_stable, transposed = s.number("lora_alpha"), s.flag("use_rslora"), s.flag("fan_in_fan_out")
    pairs: dict[str, dict[str, np.ndarray]] = {}
    for name, array in safetensors.read(path / "adapter_model.safetensors").items():
        for part, ending in (("a", ".lora_A.weight"), ("b", ".lora_B.weight")):
            if name.endswith(ending):
                weight = name.removesuffix(ending).removeprefix(_PREFIX) + ".weight"
                pairs.setdefault(weight, {})[part] = array.astype(np.float32)
                break
        else:
            raise ImportModelError("the adapter", expected="pairs lora_A and lora_B", got=name, where=str(path))
    return {
        weight: _pair(pair, weight, path, lambda rank: scale * alpha / (rank**0.5 if is_stable else rank), transposed)
        for weight, pair in pairs.items()
    }


def _pair(pair: Mapping[str, np.ndarray], weight: str, path: Path, scale: Any, transposed: bool = False) -> LowRank:
    a, b = pair.get("a"), pair.get("b")
    if a is None or b is None or a.ndim != 2 or b.ndim != 2 or a.shape[0] != b.shape[1]:
        got = {key: list(array.shape) for key, array in pair.items()}
        raise ImportModelError(
            f"the adapter of {weight}", expected="a [rank, inputs] and b [outputs, rank]", got=got, where=str(path)
        )
    return LowRank(a, b, scale(a.shape[0]), transposed)
