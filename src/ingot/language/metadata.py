"""`Architecture` from the metadata of a GGUF file, whose converter has renamed and reordered the tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ingot.language import names
from ingot.language.architecture import Architecture, Experts, Layer, Norm
from ingot.language.rope import Rope
from ingot.language.settings import Settings, without_layers
from ingot.support.errors import ImportModelError

_GEMMA = {"activation": "gelu_tanh", "post_norm": True}
# general.architecture -> the switches in which its record differs from Llama's and which the metadata lack
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {"head_norm": "head"},
    "qwen2moe": {},
    "qwen3moe": {"head_norm": "head"},
    "gemma": {"activation": "gelu_tanh"},
    "gemma2": _GEMMA,
    "gemma3": {**_GEMMA, "head_norm": "head"},
    "phi3": {"names": names.GGUF_PHI3},
    "gpt2": {"norm": Norm("layer"), "gated": False, "positions": True, "activation": "gelu_tanh"},
    "starcoder2": {"norm": Norm("layer"), "gated": False, "activation": "gelu_tanh"},
    "olmo": {"norm": Norm("layer", plain=True)},
    "olmo2": {"names": names.GGUF_OLMO2, "pre_norm": False, "post_norm": True, "head_norm": "all"},
    "olmoe": {"head_norm": "all"},
    "granite": {},
    "bert": {
        "names": names.GGUF_BERT,
        "norm": Norm("layer", 1e-12),
        "gated": False,
        "positions": True,
        "activation": "gelu",
        "pre_norm": False,
        "residual_norm": True,
        "causal": False,
    },
    "lfm2": {"names": names.GGUF_LFM2, "head_norm": "head"},
    "command-r": {"norm": Norm("layer"), "parallel": True},
}
# the converter reorders the rows of queries and keys so that rotated pairs are adjacent
PAIRED = frozenset({"llama", "olmo", "granite"})
SHIFTED_NORMS = frozenset({"gemma", "gemma2", "gemma3"})  # the converter adds 1 to the weights of their norms
_INTERLEAVED = PAIRED | {"command-r"}
_NORMALIZED = {"llama", "qwen3moe", "granite"}  # mixtures that normalize the weights of the chosen experts
_PERIODS = {"gemma2": 2, "gemma3": 6}  # every n-th layer has no window
# the largest models of a family scale their scores by width / heads instead of the explicit head width
_WIDE_LAYERS = {"gemma2": 46, "gemma3": 62}
_LOCAL_ROPE_BASE = 10000.0


def from_metadata(values: Mapping[str, Any]) -> Architecture:
    """The architecture in GGUF metadata. Raises ImportModelError for an unsupported family or variant."""
    family = Settings(values, "GGUF metadata").text("general.architecture", default="")
    if family not in FAMILIES:
        expected = f"one of {', '.join(FAMILIES)}"
        raise ImportModelError("general.architecture", expected=expected, got=repr(family), where="GGUF metadata")
    m = Settings(values, "GGUF metadata", f"{family}.")
    width, heads = m.count("embedding_length"), m.count("attention.head_count")
    key_heads = _key_heads(m, family, heads)
    context = m.count("context_length")
    keys = "embedding_length", "attention.head_count_kv", "attention.key_length"
    switches = {"names": names.GGUF, **FAMILIES[family]}
    record = without_layers(m, keys, family, switches, width, heads, key_heads, context)
    head_width = record.head_width
    if m.count("attention.value_length", default=head_width) != head_width:
        raise m.error("attention.value_length", f"{head_width}, as of keys", m.get("attention.value_length"))
    layers = _layers(m, family, head_width, context)
    eps = m.number("attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon", default=1e-5)
    score_width = width // heads if len(layers) == _WIDE_LAYERS.get(family) else head_width
    return replace(
        record,
        norm=replace(record.norm, eps=eps),
        layers=layers,
        attention_scale=m.positive("attention.scale", default=score_width**-0.5),
        attention_cap=m.number("attn_logit_softcapping", default=50.0 if family == "gemma2" else 0.0),
        logit_cap=m.number("final_logit_softcapping", default=30.0 if family == "gemma2" else 0.0),
        embedding_scale=m.number("embedding_scale", default=width**0.5 if family.startswith("gemma") else 1.0),
        residual_scale=m.number("residual_scale", default=1.0),
        logit_scale=_logit_scale(m, family),
        clip=m.number("attention.clamp_kqv", default=0.0),
    )


def _key_heads(m: Settings, family: str, heads: int) -> int:
    """The number of key heads. A hybrid model has a number for each layer, which is 0 without attention."""
    head_counts = m.numbers("attention.head_count_kv") if family == "lfm2" else ()
    if not head_counts:
        return m.count("attention.head_count_kv", default=heads)
    key_heads = max(head_counts)
    if (
        len(head_counts) != m.count("block_count")
        or any(n not in (0, key_heads) for n in head_counts)
        or not 0 < key_heads <= heads
    ):
        raise m.error("attention.head_count_kv", "0 or one number for each layer", head_counts)
    return int(key_heads)


def _logit_scale(m: Settings, family: str) -> float:
    """The scale of the logits. In Granite it is a divisor."""
    return 1 / m.positive("logit_scale", default=1.0) if family == "granite" else m.number("logit_scale", default=1.0)


def _layers(m: Settings, family: str, head_width: int, context: int) -> tuple[Layer, ...]:
    count = m.count("block_count")
    window = m.count("attention.sliding_window", default=0, least=0)
    period = _PERIODS.get(family, 0)
    sliding = [bool(window) and bool(not period or (i + 1) % period) for i in range(count)]
    rope = None if FAMILIES[family].get("positions") else _rope(m, family, head_width, context)
    local = Rope(rope.width, _LOCAL_ROPE_BASE) if rope and family == "gemma3" else rope
    experts = _experts(m, family)
    layers = [Layer(window if s else 0, local if s else rope, experts) for s in sliding]
    if family == "lfm2":
        convolution = Layer(convolution=m.count("shortconv.l_cache", least=2))
        head_counts = m.numbers("attention.head_count_kv")
        layers = [layer if n else convolution for layer, n in zip(layers, head_counts, strict=True)]
    return tuple(layers)


def _experts(m: Settings, family: str) -> Experts | None:
    count = m.count("expert_count", default=0, least=0)
    if not count:
        return None
    chosen = m.count("expert_used_count")
    if chosen > count:
        raise m.error("expert_used_count", f"at most the {count} experts", chosen)
    if m.count("expert_gating_func", default=1, least=0) not in (0, 1):
        raise m.error("expert_gating_func", "1, a softmax", m.get("expert_gating_func"))
    normalized = m.flag("expert_weights_norm", family in _NORMALIZED)
    return Experts(count, chosen, normalized, m.number("expert_weights_scale", default=0.0) or 1.0)


def _rope(m: Settings, family: str, head_width: int, context: int) -> Rope:
    width = m.count("rope.dimension_count", default=head_width)
    if width > head_width or width % 2:
        raise m.error("rope.dimension_count", f"an even part of the heads' {head_width} elements", width)
    base = m.positive("rope.freq_base", default=1_000_000.0 if family == "gemma3" else 10000.0)
    rope = Rope(width, base, family in _INTERLEAVED)
    original = m.count("rope.scaling.original_context_length", default=context)
    if family == "phi3" and m.get("rope.scaling.type") is None:
        kind = "longrope"  # its factors are tensors, if any
    else:
        kind = m.text("rope.scaling.type", default="linear" if m.get("rope.scale_linear") is not None else "none")
    match kind:
        case "none":
            return rope
        case "linear":
            factor = m.positive("rope.scaling.factor", "rope.scale_linear", default=1.0)
            return replace(rope, scaling="linear", factor=factor)
        case "yarn":
            factor = m.positive("rope.scaling.factor")
            attention_factor = m.number("rope.scaling.attn_factor", default=1.0)
            return replace(
                rope,
                scaling="yarn",
                factor=factor,
                original=original,
                magnitude=attention_factor * (1 + 0.1 * math.log(max(factor, 1.0))),
                slow=m.positive("rope.scaling.yarn_beta_slow", default=1.0),
                fast=m.positive("rope.scaling.yarn_beta_fast", default=32.0),
            )
        case "longrope":
            magnitude = m.number("rope.scaling.attn_factor", default=1.0)
            return replace(rope, scaling="longrope", original=original, magnitude=magnitude)
        case _:
            raise m.error("rope.scaling.type", "none, linear, yarn or longrope", kind)
