"""`Architecture` from the config.json of `transformers`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ingot.language import names
from ingot.language.architecture import Architecture, Experts, Layer, Norm
from ingot.language.rope import SCALINGS, Rope
from ingot.language.settings import Settings, without_layers
from ingot.support.errors import ImportModelError

_GEMMA = {"names": names.GEMMA2, "post_norm": True, "norm": Norm(eps=1e-6, offset=1.0), "activation": "gelu_tanh"}
# model_type -> the switches in which its record differs from Llama's and which config.json lacks
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {},
    "ministral": {},
    "qwen2": {"norm": Norm(eps=1e-6)},
    "qwen3": {"norm": Norm(eps=1e-6), "head_norm": "head"},
    "gemma": {"norm": Norm(eps=1e-6, offset=1.0), "activation": "gelu_tanh", "tied": True},
    "gemma2": {**_GEMMA, "tied": True},
    "gemma3_text": {**_GEMMA, "tied": True, "head_norm": "head"},
    "phi": {"names": names.PHI, "parallel": True, "gated": False, "norm": Norm("layer"), "activation": "gelu_tanh"},
    "phi3": {},
    "gpt2": {
        "names": names.GPT2, "norm": Norm("layer"), "gated": False, "positions": True, "transposed": True,
        "activation": "gelu_tanh", "tied": True,
    },
    "starcoder2": {"names": names.STARCODER2, "norm": Norm("layer"), "gated": False, "activation": "gelu_tanh"},
    "olmo": {"norm": Norm("layer", plain=True)},
    "olmo2": {"names": names.OLMO2, "pre_norm": False, "post_norm": True, "head_norm": "all"},
    "olmo3": {"names": names.OLMO2, "pre_norm": False, "post_norm": True, "head_norm": "all"},
    "olmoe": {"head_norm": "all"},
    "granite": {"norm": Norm(eps=1e-6)},
    "bert": {
        "names": names.BERT, "norm": Norm("layer", 1e-12), "gated": False, "positions": True, "activation": "gelu",
        "pre_norm": False, "residual_norm": True, "causal": False,
    },
    "lfm2": {"names": names.LFM2, "head_norm": "head", "tied": True},
    "cohere": {"norm": Norm("layer"), "parallel": True, "tied": True},
    "mixtral": {"names": names.MIXTRAL},
    "qwen2_moe": {"norm": Norm(eps=1e-6)},
    "qwen3_moe": {"norm": Norm(eps=1e-6), "head_norm": "head"},
}  # fmt: skip

_ACTIVATIONS = {
    "silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh", "relu": "relu",
}  # fmt: skip
_WINDOWED = {"mistral", "ministral", "mixtral", "phi3", "starcoder2"}  # in all layers, if the file has a window
_PERIODS = {"gemma2": 2, "gemma3_text": 6, "olmo3": 4}  # every n-th layer has no window
_THETA = {"lfm2": 1_000_000.0, "gemma3_text": 1_000_000.0, "mixtral": 1_000_000.0}
# switches that change the computation and that a record cannot express -> the value that turns them off
_UNSUPPORTED_SWITCHES: dict[str, Any] = {
    "use_qk_norm": False, "qk_layernorm": False, "alibi": False, "use_bidirectional_attention": False,
    "scale_attn_by_inverse_layer_idx": False, "reorder_and_upcast_attn": False, "add_cross_attention": False,
    "is_decoder": False, "position_embedding_type": "absolute",
    "no_rope_layers": [], "mlp_bias": None, "attention_bias": None,
}  # fmt: skip


def from_config(values: Mapping[str, Any]) -> Architecture:
    """The architecture in a config.json. Raises ImportModelError for an unsupported family or variant."""
    c = Settings(values, "config.json")
    family = c.text("model_type", default="")
    if family not in FAMILIES:
        expected = f"one of {', '.join(FAMILIES)}"
        fix = "other models: ingot.compile(AutoModel.from_pretrained(folder).eval(), example_inputs)"
        raise ImportModelError("model_type", expected=expected, got=repr(family), where="config.json", fix=fix)
    for key, off_value in _UNSUPPORTED_SWITCHES.items():
        if off_value is not None and (value := c.get(key)) not in (None, off_value):
            raise c.error(key, repr(off_value), value)
    switches = FAMILIES[family]
    width = c.count("hidden_size", "n_embd")
    heads = c.count("num_attention_heads", "n_head")
    key_heads = c.count("num_key_value_heads", default=heads)
    context = c.count("max_position_embeddings", "n_positions")
    keys = "hidden_size", "num_key_value_heads", "head_dim"
    record = without_layers(c, keys, family, {"names": names.LLAMA, **switches}, width, heads, key_heads, context)
    head_width = record.head_width
    eps = c.number(
        "rms_norm_eps", "norm_eps", "norm_epsilon", "layer_norm_eps", "layer_norm_epsilon", default=_eps(switches)
    )
    return replace(
        record,
        norm=replace(record.norm, eps=1e-5 if record.norm.plain else eps),
        layers=_layers(c, family, head_width, context),
        activation=_activation(c, record.activation),
        attention_scale=_attention_scale(c, family, head_width),
        attention_cap=c.number("attn_logit_softcapping", default=0.0) if family == "gemma2" else 0.0,
        logit_cap=c.number("final_logit_softcapping", default=0.0),
        embedding_scale=c.number("embedding_multiplier", default=width**0.5 if family.startswith("gemma") else 1.0),
        residual_scale=c.number("residual_multiplier", default=1.0),
        logit_scale=c.number("logit_scale", default=1 / c.positive("logits_scaling", default=1.0)),
        clip=c.number("clip_qkv", default=0.0),
        tied=c.flag("tie_word_embeddings", record.tied),
    )


def _eps(switches: Mapping[str, Any]) -> float:
    return switches["norm"].eps if "norm" in switches else 1e-5


def _activation(c: Settings, default: str) -> str:
    if c.get("model_type") == "gemma":
        return default  # the first files name an activation other than the one used in training
    key = next((k for k in ("hidden_activation", "hidden_act", "activation_function") if c.get(k) is not None), None)
    if key is None:
        return default
    if (value := c.text(key)) not in _ACTIVATIONS:
        raise c.error(key, f"one of {', '.join(_ACTIVATIONS)}", value)
    return _ACTIVATIONS[value]


def _attention_scale(c: Settings, family: str, head_width: int) -> float:
    if family in ("gemma2", "gemma3_text"):
        return c.positive("query_pre_attn_scalar", default=256.0) ** -0.5
    if not c.flag("scale_attn_weights", True):
        return 1.0
    return c.number("attention_multiplier", default=head_width**-0.5)


def _layers(c: Settings, family: str, head_width: int, context: int) -> tuple[Layer, ...]:
    count = c.count("num_hidden_layers", "n_layer")
    kinds = _kinds(c, family, count)
    window = c.count("sliding_window") if "sliding_attention" in kinds else 0
    convolution = c.count("conv_L_cache", default=3, least=2) if "conv" in kinds else 0
    global_rope, local_rope = (
        (None, None) if FAMILIES[family].get("positions") else _ropes(c, family, head_width, context)
    )
    experts = _experts(c)
    routed = [experts if experts and _is_routed(c, i) else None for i in range(count)]
    layers = {
        "full_attention": Layer(0, global_rope),
        "sliding_attention": Layer(window, local_rope),
        "conv": Layer(convolution=convolution),
    }
    return tuple(replace(layers[kind], experts=e) for kind, e in zip(kinds, routed, strict=True))


def _kinds(c: Settings, family: str, count: int) -> list[str]:
    """The kind of each layer, as in `layer_types`."""
    kinds = c.get("layer_types")
    if kinds is None:
        return [_kind(c, family, i) for i in range(count)]
    if not isinstance(kinds, list | tuple) or len(kinds) != count:
        raise c.error("layer_types", f"a list of {count}", kinds)
    supported = ["full_attention", "conv" if family == "lfm2" else "sliding_attention"]
    for kind in kinds:
        if kind not in supported:
            raise c.error("layer_types", " or ".join(supported), kind)
    return list(kinds)


def _kind(c: Settings, family: str, i: int) -> str:
    if family == "lfm2":
        is_attention = c.get("full_attn_idxs") is None or i in c.numbers("full_attn_idxs")
        return "full_attention" if is_attention else "conv"
    is_sliding = c.get("sliding_window") is not None and _is_sliding(c, family, i)
    return "sliding_attention" if is_sliding else "full_attention"


def _is_sliding(c: Settings, family: str, i: int) -> bool:
    """Whether a layer uses the model's window."""
    if family.startswith("qwen"):
        return c.flag("use_sliding_window") and i >= c.count("max_window_layers", default=28, least=0)
    if family in _PERIODS:
        return (i + 1) % c.count("sliding_window_pattern", default=_PERIODS[family]) != 0
    return family in _WINDOWED


def _experts(c: Settings) -> Experts | None:
    family = c.get("model_type")
    if family not in ("mixtral", "qwen2_moe", "qwen3_moe", "olmoe"):
        return None
    count, chosen = c.count("num_local_experts", "num_experts"), c.count("num_experts_per_tok")
    if chosen > count:
        raise c.error("num_experts_per_tok", f"at most the {count} experts", chosen)
    return Experts(count, chosen, family == "mixtral" or c.flag("norm_topk_prob"))


def _is_routed(c: Settings, i: int) -> bool:
    """Whether a layer of a mixture has experts."""
    return i not in c.numbers("mlp_only_layers") and (i + 1) % c.count("decoder_sparse_step", default=1) == 0


# --- rotary embeddings


def _ropes(c: Settings, family: str, head_width: int, context: int) -> tuple[Rope, Rope]:
    """(the rope of layers without a window, that of layers with one)."""
    theta = _THETA.get(family, 10000.0)
    kinds = c.inner("rope_parameters")
    if kinds and isinstance(kinds.get("full_attention"), Mapping):  # a rope for each kind of layer
        global_settings, local_settings = kinds.inner("full_attention"), kinds.inner("sliding_attention")
        assert global_settings
        global_rope = _rope(c, family, global_settings, head_width, context, theta)
        return global_rope, _rope(
            c, family, local_settings, head_width, context, 10000.0
        ) if local_settings else global_rope
    rope = _rope(c, family, kinds or c.inner("rope_scaling"), head_width, context, theta)
    if family == "gemma3_text":
        return rope, Rope(rope.width, c.positive("rope_local_base_freq", default=10000.0))
    # OLMo 3 scales only the layers without a window
    return rope, Rope(rope.width, rope.base) if family == "olmo3" else rope


def _rope(c: Settings, family: str, scaling: Settings | None, head_width: int, context: int, theta: float) -> Rope:
    s = scaling or Settings({}, c.where)
    base = s.positive("rope_theta", default=c.positive("rope_theta", default=theta))
    part = 1.0
    if family in _PARTS:  # the others of transformers rotate whole heads, whatever the file says
        key = "partial_rotary_factor"
        part = s.positive(key, default=c.positive(key, default=_PARTS[family]))
    width = int(head_width * part)
    if part > 1 or width < 2 or width % 2:
        raise c.error("partial_rotary_factor", f"an even part of the heads' {head_width} elements", part)
    rope = Rope(width, base, interleaved=family == "cohere")
    kind = {"default": "none", "su": "longrope"}.get(name := s.text("rope_type", "type", default="default"), name)
    if kind == "yarn" and family == "phi3":
        kind = "longrope"
    if kind not in SCALINGS:
        raise s.error("rope_type", f"one of {', '.join(SCALINGS)}", name)
    if kind == "none":
        return rope
    default_original = c.count("original_max_position_embeddings", default=context)
    original = context if kind == "dynamic" else s.count("original_max_position_embeddings", default=default_original)
    factor = s.positive("factor", default=context / original)
    if kind == "longrope" and c.get("original_max_position_embeddings") is not None:
        factor = context / original
    rope = replace(rope, scaling=kind, factor=factor, original=original, magnitude=_magnitude(s, factor))
    if kind == "yarn":
        return replace(
            rope,
            slow=s.positive("beta_slow", default=1.0),
            fast=s.positive("beta_fast", default=32.0),
            truncated=s.flag("truncate", True),
        )
    if kind == "llama3":
        slow, fast = s.positive("low_freq_factor"), s.positive("high_freq_factor")
        if slow >= fast:
            raise s.error("high_freq_factor", f"more than low_freq_factor, {slow}", fast)
        return replace(rope, slow=slow, fast=fast)
    if kind == "longrope":
        factors = s.numbers("short_factor"), s.numbers("long_factor")
        for key, values in zip(("short_factor", "long_factor"), factors, strict=True):
            if len(values) != width // 2 or min(values) <= 0:
                raise s.error(key, f"{width // 2} numbers above 0", values)
        return replace(rope, short=factors[0], long=factors[1])
    return rope


_PARTS = {"phi": 0.5, "phi3": 1.0}  # families that may rotate a part of each head -> its default


def _magnitude(s: Settings, factor: float) -> float:
    """The magnitude that the file specifies; 0 if none."""
    mscale, all_dims = s.number("mscale", default=0.0), s.number("mscale_all_dim", default=0.0)
    if s.get("attention_factor") is None and mscale and all_dims and factor > 1:
        return (0.1 * mscale * math.log(factor) + 1) / (0.1 * all_dims * math.log(factor) + 1)
    return s.number("attention_factor", default=0.0)
