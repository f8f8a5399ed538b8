"""The names of tensors in files: for each naming scheme a table from roles to names.

`{}` stands for the number of the layer, a second one for that of the expert. A scheme's table lacks the roles that it
does not have. A bias has the name of its weight, with `.bias`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

Names = tuple[tuple[str, str], ...]  # (role, name); a tuple, so that records are hashable


def _names(table: Mapping[str, str], **changes: str) -> Names:
    """A table with changed names for some roles; "" removes a role."""
    return tuple((role, name) for role, name in ({**table, **changes}).items() if name)


_LAYER = "model.layers.{}."
_LLAMA = {
    "embedding": "model.embed_tokens.weight",
    "norm": "model.norm.weight",
    "output": "lm_head.weight",
    "attention_norm": _LAYER + "input_layernorm.weight",
    "query": _LAYER + "self_attn.q_proj.weight",
    "key": _LAYER + "self_attn.k_proj.weight",
    "value": _LAYER + "self_attn.v_proj.weight",
    "query_key_value": _LAYER + "self_attn.qkv_proj.weight",
    "query_norm": _LAYER + "self_attn.q_norm.weight",
    "key_norm": _LAYER + "self_attn.k_norm.weight",
    "attention_output": _LAYER + "self_attn.o_proj.weight",
    "feed_forward_norm": _LAYER + "post_attention_layernorm.weight",
    "gate": _LAYER + "mlp.gate_proj.weight",
    "up": _LAYER + "mlp.up_proj.weight",
    "gate_up": _LAYER + "mlp.gate_up_proj.weight",
    "down": _LAYER + "mlp.down_proj.weight",
    "router": _LAYER + "mlp.gate.weight",
    "expert_gate": _LAYER + "mlp.experts.{}.gate_proj.weight",
    "expert_up": _LAYER + "mlp.experts.{}.up_proj.weight",
    "expert_down": _LAYER + "mlp.experts.{}.down_proj.weight",
    "experts_gate_up": _LAYER + "mlp.experts.gate_up_proj",
    "experts_down": _LAYER + "mlp.experts.down_proj",
    "shared_gate": _LAYER + "mlp.shared_expert.gate_proj.weight",
    "shared_up": _LAYER + "mlp.shared_expert.up_proj.weight",
    "shared_down": _LAYER + "mlp.shared_expert.down_proj.weight",
    "shared_router": _LAYER + "mlp.shared_expert_gate.weight",
}
_POST_NORMS = {
    "attention_post_norm": _LAYER + "post_attention_layernorm.weight",
    "feed_forward_post_norm": _LAYER + "post_feedforward_layernorm.weight",
}

LLAMA = _names(_LLAMA)
OLMO2 = _names(_LLAMA, **_POST_NORMS, attention_norm="", feed_forward_norm="")
GEMMA2 = _names(_LLAMA, **_POST_NORMS, feed_forward_norm=_LAYER + "pre_feedforward_layernorm.weight")
PHI = _names(
    _LLAMA,
    norm="model.final_layernorm.weight",
    attention_output=_LAYER + "self_attn.dense.weight",
    feed_forward_norm="",
    up=_LAYER + "mlp.fc1.weight",
    down=_LAYER + "mlp.fc2.weight",
)
STARCODER2 = _names(_LLAMA, up=_LAYER + "mlp.c_fc.weight", down=_LAYER + "mlp.c_proj.weight")
MIXTRAL = _names(
    _LLAMA,
    router=_LAYER + "block_sparse_moe.gate.weight",
    expert_gate=_LAYER + "block_sparse_moe.experts.{}.w1.weight",
    expert_up=_LAYER + "block_sparse_moe.experts.{}.w3.weight",
    expert_down=_LAYER + "block_sparse_moe.experts.{}.w2.weight",
)
LFM2 = _names(
    _LLAMA,
    norm="model.embedding_norm.weight",
    attention_norm=_LAYER + "operator_norm.weight",
    query_norm=_LAYER + "self_attn.q_layernorm.weight",
    key_norm=_LAYER + "self_attn.k_layernorm.weight",
    attention_output=_LAYER + "self_attn.out_proj.weight",
    feed_forward_norm=_LAYER + "ffn_norm.weight",
    gate=_LAYER + "feed_forward.w1.weight",
    up=_LAYER + "feed_forward.w3.weight",
    down=_LAYER + "feed_forward.w2.weight",
    convolution=_LAYER + "conv.conv.weight",
    convolution_input=_LAYER + "conv.in_proj.weight",
    convolution_output=_LAYER + "conv.out_proj.weight",
)
GPT2 = _names({
    "embedding": "transformer.wte.weight",
    "positions": "transformer.wpe.weight",
    "norm": "transformer.ln_f.weight",
    "output": "lm_head.weight",
    "attention_norm": "transformer.h.{}.ln_1.weight",
    "query_key_value": "transformer.h.{}.attn.c_attn.weight",
    "attention_output": "transformer.h.{}.attn.c_proj.weight",
    "feed_forward_norm": "transformer.h.{}.ln_2.weight",
    "up": "transformer.h.{}.mlp.c_fc.weight",
    "down": "transformer.h.{}.mlp.c_proj.weight",
})  # fmt: skip
_BERT_LAYER = "encoder.layer.{}."
BERT = _names({
    "embedding": "embeddings.word_embeddings.weight",
    "positions": "embeddings.position_embeddings.weight",
    "segments": "embeddings.token_type_embeddings.weight",
    "embedding_norm": "embeddings.LayerNorm.weight",
    "query": _BERT_LAYER + "attention.self.query.weight",
    "key": _BERT_LAYER + "attention.self.key.weight",
    "value": _BERT_LAYER + "attention.self.value.weight",
    "attention_output": _BERT_LAYER + "attention.output.dense.weight",
    "attention_post_norm": _BERT_LAYER + "attention.output.LayerNorm.weight",
    "up": _BERT_LAYER + "intermediate.dense.weight",
    "down": _BERT_LAYER + "output.dense.weight",
    "feed_forward_post_norm": _BERT_LAYER + "output.LayerNorm.weight",
})  # fmt: skip
_GGUF = {
    "embedding": "token_embd.weight",
    "positions": "position_embd.weight",
    "norm": "output_norm.weight",
    "output": "output.weight",
    "rope_factors": "rope_freqs.weight",
    "rope_factors_short": "rope_factors_short.weight",
    "rope_factors_long": "rope_factors_long.weight",
    "attention_norm": "blk.{}.attn_norm.weight",
    "query": "blk.{}.attn_q.weight",
    "key": "blk.{}.attn_k.weight",
    "value": "blk.{}.attn_v.weight",
    "query_key_value": "blk.{}.attn_qkv.weight",
    "query_norm": "blk.{}.attn_q_norm.weight",
    "key_norm": "blk.{}.attn_k_norm.weight",
    "attention_output": "blk.{}.attn_output.weight",
    "attention_post_norm": "blk.{}.post_attention_norm.weight",
    "feed_forward_norm": "blk.{}.ffn_norm.weight",
    "feed_forward_post_norm": "blk.{}.post_ffw_norm.weight",
    "gate": "blk.{}.ffn_gate.weight",
    "up": "blk.{}.ffn_up.weight",
    "down": "blk.{}.ffn_down.weight",
    "router": "blk.{}.ffn_gate_inp.weight",
    "experts_gate": "blk.{}.ffn_gate_exps.weight",
    "experts_up": "blk.{}.ffn_up_exps.weight",
    "experts_down": "blk.{}.ffn_down_exps.weight",
    "shared_gate": "blk.{}.ffn_gate_shexp.weight",
    "shared_up": "blk.{}.ffn_up_shexp.weight",
    "shared_down": "blk.{}.ffn_down_shexp.weight",
    "shared_router": "blk.{}.ffn_gate_inp_shexp.weight",
}
GGUF = _names(_GGUF)
# gate and up are one tensor, under the name of up
GGUF_PHI3 = _names(_GGUF, gate="", up="", gate_up="blk.{}.ffn_up.weight")
# the name that its post norm of attention has is, in other schemes, that of the norm before the feed-forward network
GGUF_OLMO2 = _names(_GGUF, attention_norm="", feed_forward_norm="")

GGUF_LFM2 = _names(
    _GGUF,
    norm="token_embd_norm.weight",
    convolution="blk.{}.shortconv.conv.weight",
    convolution_input="blk.{}.shortconv.in_proj.weight",
    convolution_output="blk.{}.shortconv.out_proj.weight",
)
GGUF_BERT = _names(
    _GGUF,
    segments="token_types.weight",
    embedding_norm="token_embd_norm.weight",
    attention_post_norm="blk.{}.attn_output_norm.weight",
    feed_forward_post_norm="blk.{}.layer_output_norm.weight",
)

TABLES = ("embedding", "positions", "segments", "output")  # the roles of matrices that no scheme transposes

_NUMBER = re.compile(r"(?<=\.)\d{1,9}(?=\.)")
_HUGGINGFACE = (LLAMA, OLMO2, GEMMA2, PHI, STARCODER2, MIXTRAL, LFM2, GPT2, BERT)


def roles_of(name: str, roles: Collection[str]) -> list[tuple[str, tuple[int, ...]]]:
    """(role, numbers of layer and expert) that a name of `transformers` may stand for, in any family, first in those
    that share most roles with a model of `roles`. The first word may be missing, as in models without a head."""
    word, place = _NUMBER.sub("{}", name), tuple(map(int, _NUMBER.findall(name)))
    meanings = [
        (role, place)
        for table in sorted(_HUGGINGFACE, key=lambda table: -sum(role in roles for role, _ in table))
        for role, known_name in table
        if known_name in (word, _with_first_word(known_name, word))
    ]
    return list(dict.fromkeys(meanings))


def _with_first_word(known_name: str, word: str) -> str:
    return f"{known_name.partition('.')[0]}.{word}"


# tensors that no model reads: masks and frequencies, which are computed, and heads of classifiers
IGNORED = (
    ".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq", "embeddings.position_ids", "pooler.dense.weight",
    "pooler.dense.bias",
)  # fmt: skip
