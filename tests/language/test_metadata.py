"""Records of GGUF's metadata: the same models under its names, as its converter stores them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ingot.language.architecture import Architecture
from ingot.language.layers import Network
from ingot.language.metadata import from_metadata
from ingot.language.weights import ArrayWeights
from ingot.support.errors import ImportModelError
from tests.language.models import MODELS, files, model
from tests.language.test_layers import agrees

# family: (the model, what its metadata have beyond what all have)
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama 3", {"rope.freq_base": 500.0}),
    "gemma3": ("gemma 3", {"attention.sliding_window": 6, "rope.freq_base": 1e6}),
    "gpt2": ("gpt 2", {}),
    "phi3": ("phi 3, long", {
        "rope.scaling.original_context_length": 32, "rope.scaling.attn_factor": (1 + 1 / 5) ** 0.5,
    }),
    "qwen2moe": ("qwen 2 mixture", {"expert_count": 4, "expert_used_count": 2}),
    "qwen3": ("qwen 3", {"attention.key_length": 16}),
    "lfm2": ("lfm 2", {"shortconv.l_cache": 3, "attention.head_count_kv": [0, 2], "rope.freq_base": 1e6}),
    "olmo2": ("olmo 2", {}),
    "bert": ("", {}),
    "command-r": ("cohere", {"logit_scale": 0.25, "rope.freq_base": 500000.0}),
}  # fmt: skip
FAST = 3
CASES = [
    pytest.param(f, marks=[pytest.mark.slow] if i >= FAST else []) for i, f in enumerate(FAMILIES) if FAMILIES[f][0]
]


def metadata(family: str, architecture: Architecture) -> dict[str, Any]:
    a = architecture
    common = {
        "block_count": len(a.layers), "embedding_length": a.width, "context_length": a.context,
        "attention.head_count": a.heads, "attention.head_count_kv": a.key_heads, "attention.key_length": a.head_width,
        "attention.layer_norm_rms_epsilon": a.norm.eps,
    }  # fmt: skip
    return {"general.architecture": family, **{f"{family}.{k}": v for k, v in (common | FAMILIES[family][1]).items()}}


def renamed(weights: dict[str, np.ndarray], old: Architecture, new: Architecture) -> dict[str, np.ndarray]:
    """By their roles; experts as one tensor."""
    table, arrays = dict(new.names), dict[str, np.ndarray]()
    for role, name in old.names:
        target = table.get(role, "")
        for i in range(len(old.layers)):
            experts = [name.format(i, e) for e in range(99) if name.count("{}") == 2 and name.format(i, e) in weights]
            if experts:
                arrays[table[role.replace("expert_", "experts_")].format(i)] = np.stack([weights[e] for e in experts])
                continue
            tensor_name = name.format(i, 0)
            for suffix in ("weight", "bias"):
                if (key := tensor_name.removesuffix("weight") + suffix) in weights:
                    arrays[target.format(i).removesuffix("weight") + suffix] = weights[key]
    return arrays


def stored(weights: dict[str, np.ndarray], old: Architecture, new: Architecture) -> dict[str, np.ndarray]:
    """As the converter stores them."""
    arrays = renamed(weights, old, new)
    for name, value in arrays.items():
        if old.norm.offset and "norm" in name:
            arrays[name] = value + 1
        elif old.transposed and value.ndim == 2 and "embd" not in name:
            arrays[name] = value.T
        elif new.family == "llama" and ("attn_q." in name or "attn_k." in name):
            # halves become pairs side by side
            heads = value.reshape(-1, 2, new.head_width // 2, *value.shape[1:])
            arrays[name] = heads.swapaxes(1, 2).reshape(value.shape)
    return arrays


@pytest.mark.parametrize("family", CASES)
def test_logits(family: str, tmp_path: Path) -> None:
    module, kind, data = MODELS[FAMILIES[family][0]]
    # GGUF has Llama's factors as a tensor, and a fixed pattern of windows
    plain = {k: v for k, v in data.items() if k not in ("sliding_window_pattern", "mlp_only_layers")}
    net = model(module, kind, plain)
    old, weights = files(net, tmp_path)
    new = from_metadata(metadata(family, old))
    tensors = stored(weights, old, new)
    rope = old.layers[0].rope
    if rope and rope.scaling == "llama3":
        frequencies, stretched = rope.base ** (-np.arange(0, rope.width, 2) / rope.width), rope.frequencies(32)
        tensors["rope_freqs.weight"] = (frequencies / stretched).astype(np.float32)
    if rope and rope.scaling == "longrope":
        for which in ("short", "long"):
            tensors[f"rope_factors_{which}.weight"] = np.asarray(getattr(rope, which), np.float32)
    agrees(Network(new, ArrayWeights(tensors), 32), net)


GOOD = {
    "general.architecture": "llama", "llama.block_count": 2, "llama.embedding_length": 32, "llama.context_length": 64,
    "llama.attention.head_count": 4,
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"general.architecture": "mamba2"}, "general.architecture: expected one of llama, .*got 'mamba2'"),
        ({"general.architecture": None}, "general.architecture"),
        ({"llama.block_count": None}, "llama.block_count: expected an integer from 1 .*got none"),
        ({"llama.block_count": 1e9}, "llama.block_count"),
        ({"llama.embedding_length": True}, "llama.embedding_length"),
        ({"llama.attention.head_count": 5}, "a multiple of the 5 heads"),
        ({"llama.attention.head_count_kv": 3}, "a divisor of the 4 heads"),
        ({"llama.attention.head_count_kv": [4, 2]}, "head_count_kv"),
        ({"llama.attention.value_length": 4}, "as of keys"),
        ({"llama.rope.freq_base": float("nan")}, "a finite number"),
        ({"llama.rope.dimension_count": 7}, "an even part"),
        ({"llama.rope.scaling.type": "magic"}, "none, linear, yarn or longrope"),
        ({"llama.rope.scaling.type": "yarn"}, "rope.scaling.factor"),
        ({"llama.expert_count": 4}, "expert_used_count"),
        ({"llama.expert_count": 4, "llama.expert_used_count": 5}, "at most the 4 experts"),
    ],
    ids=str,
)
def test_refused(change: dict[str, Any], match: str) -> None:
    from_metadata(GOOD)
    with pytest.raises(ImportModelError, match=match):
        from_metadata(GOOD | change)
