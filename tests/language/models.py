"""Tiny models of `transformers` with random weights, and what is compiled from their files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ingot.ir.node import Graph
from ingot.language.architecture import Architecture
from ingot.language.config import from_config
from ingot.language.layers import Network
from ingot.language.weights import ArrayWeights
from ingot.pipeline.build import build_program
from ingot.pipeline.target import features_of
from ingot.runtime.executor import CompiledModel
from tests.modeling import modeling

SIZES = {
    "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
HEADS = {"head_dim": 8, "query_pre_attn_scalar": 8}
MIXTURE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
# name: (module, class, configuration); the first few are in the fast set
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama 3": ("llama", "LlamaForCausalLM", {
        "rope_scaling": {**LLAMA3, "original_max_position_embeddings": 32}, "rope_theta": 500.0,
    }),
    "gemma 3": ("gemma3", "Gemma3ForCausalLM", {**HEADS, "sliding_window": 6, "sliding_window_pattern": 2}),
    "qwen 3 mixture": ("qwen3_moe", "Qwen3MoeForCausalLM", {**MIXTURE, "norm_topk_prob": True, "head_dim": 16}),
    "gpt 2": ("gpt2", "GPT2LMHeadModel", {
        "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "num_key_value_heads": 4,
    }),
    "llama": ("llama", "LlamaForCausalLM", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    "linear": ("llama", "LlamaForCausalLM", {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}),
    "dynamic": ("llama", "LlamaForCausalLM", {"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}),
    "yarn": ("llama", "LlamaForCausalLM", {
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    }),
    "mistral": ("mistral", "MistralForCausalLM", {"sliding_window": 5}),
    "qwen 2": ("qwen2", "Qwen2ForCausalLM", {}),
    "qwen 2, windows": ("qwen2", "Qwen2ForCausalLM", {
        "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1,
        "partial_rotary_factor": 0.5,
    }),
    "qwen 3": ("qwen3", "Qwen3ForCausalLM", {"head_dim": 16}),
    "gemma": ("gemma", "GemmaForCausalLM", {"head_dim": 8}),
    "gemma 2": ("gemma2", "Gemma2ForCausalLM", {**HEADS, "sliding_window": 6, "attn_logit_softcapping": 2.0}),
    "phi": ("phi", "PhiForCausalLM", {"partial_rotary_factor": 0.5}),
    "phi 3": ("phi3", "Phi3ForCausalLM", {"sliding_window": 9, "partial_rotary_factor": 0.5}),
    "phi 3, long": ("phi3", "Phi3ForCausalLM", {
        "original_max_position_embeddings": 32,
        "rope_scaling": {"rope_type": "longrope", "short_factor": [1.0, 1.5, 2.0, 2.5], "long_factor": [4.0] * 4},
    }),
    "starcoder 2": ("starcoder2", "Starcoder2ForCausalLM", {"sliding_window": None}),
    "olmo": ("olmo", "OlmoForCausalLM", {"clip_qkv": 0.5}),
    "olmo 2": ("olmo2", "Olmo2ForCausalLM", {}),
    "olmo 3": ("olmo3", "Olmo3ForCausalLM", {
        "sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"],
    }),
    "granite": ("granite", "GraniteForCausalLM", {
        "embedding_multiplier": 3.0, "residual_multiplier": 0.5, "attention_multiplier": 0.2, "logits_scaling": 2.0,
    }),
    "lfm 2": ("lfm2", "Lfm2ForCausalLM", {
        "layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False,
    }),
    "cohere": ("cohere", "CohereForCausalLM", {"logit_scale": 0.25}),
    "mixtral": ("mixtral", "MixtralForCausalLM", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen 2 mixture": ("qwen2_moe", "Qwen2MoeForCausalLM", {
        **MIXTURE, "shared_expert_intermediate_size": 24, "mlp_only_layers": [1],
    }),
    "olmo mixture": ("olmoe", "OlmoeForCausalLM", {"num_experts": 4, "num_experts_per_tok": 2, "clip_qkv": 0.5}),
}  # fmt: skip
FAST = 3


def model(module: str, name: str, settings: dict[str, Any]) -> Any:
    torch = pytest.importorskip("torch")
    cls = getattr(modeling(module), name)
    torch.manual_seed(0)
    net = cls(cls.config_class(**{**SIZES, **settings})).eval()
    with torch.no_grad():
        for p in net.parameters():  # norms and biases, too: those that start as 1 and 0 hide what is wrong
            p.add_(torch.randn_like(p) * 0.1)
    return net


def files(net: Any, folder: Path) -> tuple[Architecture, dict[str, np.ndarray]]:
    """What the model's files hold, whose names are others than those in memory."""
    load = pytest.importorskip("safetensors.numpy").load_file
    net.save_pretrained(folder)
    return from_config(json.loads((folder / "config.json").read_text())), load(folder / "model.safetensors")


def network(net: Any, folder: Path, context: int) -> Network:
    architecture, weights = files(net, folder)
    return Network(architecture, ArrayWeights(weights), context)


def compiled(graph: Graph, threads: int = 1) -> CompiledModel:
    return CompiledModel(build_program(graph, features_of("native"), threads), threads=threads)
