"""Language models of transformers: encoders, decoders, mixtures of experts, state spaces, encoder-decoders."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.architectures.case import Architecture, Net, library, settled, takes
from benchmarks.models.base import generator

VOCABULARY = 97
_TEXT = {0: "batch", 1: "length"}
_SMALL = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_GROUPED = {**_SMALL, "num_key_value_heads": 2}
_GPT = {
    "vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
_SEQ2SEQ = {
    "vocab_size": VOCABULARY, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 64,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
}  # fmt: skip
_T5 = {
    "vocab_size": VOCABULARY, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_decoder_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
}  # fmt: skip


def ids(batch: int, length: int, vocabulary: int = VOCABULARY) -> Tensor:
    return torch.randint(3, vocabulary, (batch, length), generator=generator(7))


def mask(batch: int, length: int) -> Tensor:
    """Rows padded from a different place on each; row 0 is full."""
    ends = torch.tensor([length - (row * 5) % max(1, length // 2) for row in range(batch)])
    return (torch.arange(length)[None, :] < ends[:, None]).to(torch.int64)


def transformer(arch: str, options: dict[str, Any]) -> Any:
    """A network of transformers by its class, of that class's configuration."""
    transformers = library("transformers")
    torch.manual_seed(0)
    cls = getattr(transformers, arch)
    config = cls.config_class(**options)
    if getattr(config, "use_cache", None):
        config.use_cache = False
    return cls(config)


def _text(arch: str, options: dict[str, Any], masked: bool, decoder: str | None) -> Net:
    module = transformer(arch, options)

    def call(batch: int, length: int) -> dict[str, Tensor]:
        given = {"input_ids": ids(batch, length)}
        if masked:
            given["attention_mask"] = mask(batch, length)
            given["input_ids"] = given["input_ids"] * given["attention_mask"]
        if decoder:
            given[decoder] = ids(batch, length // 2 + 1)
        if decoder and takes(module, "use_cache"):
            given["use_cache"] = False  # type: ignore
        return given

    axes: dict[str, Any] = {"input_ids": _TEXT}
    if masked:
        axes["attention_mask"] = _TEXT
    if decoder:
        axes[decoder] = {0: "batch", 1: "steps"}
    return Net(settled(module, call(2, 16)), call, axes)


def _of(kind: str, arch: str, base: dict[str, Any], masked: bool = True, decoder: str | None = None, **options: Any):
    sizes = options.pop("sizes", ((2, 16), (3, 23)))
    build = partial(_text, arch, {**base, **options}, masked, decoder)
    return Architecture(arch, kind, "transformers", build, sizes)


_encoder = partial(_of, "text encoder", base=_SMALL)
_decoder = partial(_of, "text decoder", base=_GROUPED, masked=False)
_experts = partial(_of, "mixture of experts", base=_GROUPED, masked=False)
_state = partial(_of, "state space", base={}, masked=False)
_pair = partial(_of, "encoder-decoder", base=_SEQ2SEQ, decoder="decoder_input_ids")

CASES = [
    _encoder(arch="BertModel"),
    _encoder(arch="RobertaForMaskedLM"),
    _encoder(arch="AlbertModel", embedding_size=16),
    _encoder(arch="ElectraForPreTraining", embedding_size=16),
    _encoder(arch="DebertaModel", relative_attention=True, pos_att_type=["c2p", "p2c"]),
    _encoder(arch="DebertaV2Model", relative_attention=True, position_buckets=8, pos_att_type=["c2p", "p2c"]),
    _encoder(arch="MPNetModel"),
    _encoder(arch="MobileBertModel", embedding_size=16, intra_bottleneck_size=16, true_hidden_size=16),
    _encoder(arch="SqueezeBertModel", embedding_size=32, q_groups=2, k_groups=2, v_groups=2, intermediate_groups=2),
    _encoder(arch="ConvBertModel", embedding_size=16, head_ratio=2, conv_kernel_size=3, num_groups=1),
    _encoder(arch="FNetModel", masked=False),
    _encoder(arch="RoFormerModel", embedding_size=16),
    _encoder(arch="NystromformerModel", num_landmarks=4, sizes=((2, 64), (3, 64))),
    _encoder(arch="ModernBertModel", global_attn_every_n_layers=2, local_attention=8),
    _encoder(arch="LongformerModel", attention_window=[8, 8], sizes=((2, 16), (3, 24))),
    _encoder(arch="XLNetModel", base={}, vocab_size=VOCABULARY, d_model=32, n_layer=2, n_head=4, d_inner=48),
    _encoder(arch="FunnelModel", base={}, vocab_size=VOCABULARY, block_sizes=[1, 1], d_model=32, n_head=4, d_head=8,
             d_inner=48),
    _encoder(arch="CanineModel", base={}, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
             intermediate_size=48,
             max_position_embeddings=64, num_hash_buckets=64, local_transformer_stride=8, sizes=((2, 16), (3, 32))),
    _decoder(arch="GPT2LMHeadModel", base=_GPT),
    _decoder(arch="GPTNeoForCausalLM", base={}, vocab_size=VOCABULARY, hidden_size=32, num_layers=2, num_heads=4,
             attention_types=[[["global", "local"], 1]], window_size=8, max_position_embeddings=64),
    _decoder(arch="GPTNeoXForCausalLM", base=_SMALL),
    _decoder(arch="GPTJForCausalLM", base=_GPT, rotary_dim=4),
    _decoder(arch="OPTForCausalLM", base={}, vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2,
             num_attention_heads=4,
             ffn_dim=48, word_embed_proj_dim=32, max_position_embeddings=64),
    _decoder(arch="BloomForCausalLM", base={}, vocab_size=VOCABULARY, hidden_size=32, n_layer=2, n_head=4),
    _decoder(arch="FalconForCausalLM", base=_SMALL),
    _decoder(arch="MptForCausalLM", base={}, vocab_size=VOCABULARY, d_model=32, n_heads=4, n_layers=2, max_seq_len=64),
    _decoder(arch="LlamaForCausalLM"),
    _decoder(arch="MistralForCausalLM", sliding_window=8),
    _decoder(arch="Qwen2ForCausalLM"),
    _decoder(arch="Qwen3ForCausalLM", head_dim=8),
    _decoder(arch="GemmaForCausalLM", head_dim=8),
    _decoder(arch="Gemma2ForCausalLM", head_dim=8, sliding_window=8),
    _decoder(arch="Gemma3ForCausalLM", head_dim=8, sliding_window=8),
    _decoder(arch="Phi3ForCausalLM"),
    _decoder(arch="StableLmForCausalLM"),
    _decoder(arch="CohereForCausalLM"),
    _decoder(arch="Olmo2ForCausalLM"),
    _decoder(arch="Starcoder2ForCausalLM"),
    _decoder(arch="PersimmonForCausalLM", base=_SMALL),
    _decoder(arch="GraniteForCausalLM"),
    _decoder(arch="NemotronForCausalLM", head_dim=8),
    _decoder(arch="BioGptForCausalLM", base=_SMALL),
    _decoder(arch="XGLMForCausalLM", base={}, vocab_size=VOCABULARY, d_model=32, ffn_dim=48, num_layers=2,
             attention_heads=4,
             max_position_embeddings=64),
    _decoder(arch="CTRLLMHeadModel", base={}, vocab_size=VOCABULARY, n_embd=32, dff=48, n_layer=2, n_head=4,
             n_positions=64),
    _experts(arch="MixtralForCausalLM", num_local_experts=4, num_experts_per_tok=2),
    _experts(arch="Qwen2MoeForCausalLM", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24,
             shared_expert_intermediate_size=24),
    _experts(arch="Qwen3MoeForCausalLM", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24, head_dim=8),
    _experts(arch="OlmoeForCausalLM", num_experts=4, num_experts_per_tok=2),
    _experts(arch="GraniteMoeForCausalLM", num_local_experts=4, num_experts_per_tok=2),
    _experts(arch="PhimoeForCausalLM", num_local_experts=4, num_experts_per_tok=2),
    _experts(arch="JetMoeForCausalLM", num_local_experts=4, num_experts_per_tok=2, kv_channels=8),
    _experts(arch="DeepseekV3ForCausalLM", base=_SMALL, num_key_value_heads=4, n_routed_experts=8,
             num_experts_per_tok=2,
             n_group=2, topk_group=1, moe_intermediate_size=24, n_shared_experts=1, first_k_dense_replace=1,
             q_lora_rank=16,
             kv_lora_rank=16, qk_rope_head_dim=8, v_head_dim=8, qk_nope_head_dim=8),
    _experts(arch="GptOssForCausalLM", num_local_experts=4, num_experts_per_tok=2, head_dim=8, sliding_window=8),
    _experts(arch="SwitchTransformersModel", base=_T5, masked=True, decoder="decoder_input_ids", num_experts=4,
             num_sparse_encoder_layers=1, num_sparse_decoder_layers=1),
    _state(arch="MambaForCausalLM", vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, state_size=8),
    _state(arch="Mamba2ForCausalLM", vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, state_size=8,
           num_heads=8,
           head_dim=8, n_groups=2, chunk_size=8),
    _state(arch="FalconMambaForCausalLM", vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, state_size=8),
    _state(arch="RwkvForCausalLM", vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, context_length=64),
    _state(arch="RecurrentGemmaForCausalLM", base=_SMALL, lru_width=32, attention_window_size=8),
    _state(arch="JambaForCausalLM", base=_GROUPED, attn_layer_period=2, attn_layer_offset=1, expert_layer_period=2,
           expert_layer_offset=1, num_experts=2, num_experts_per_tok=1, mamba_d_state=8, use_mamba_kernels=False),
    _state(arch="BambaForCausalLM", base=_GROUPED, attn_layer_indices=[1], mamba_n_heads=8, mamba_d_head=8,
           mamba_d_state=8,
           mamba_chunk_size=8),
    _pair(arch="T5Model", base=_T5),
    _pair(arch="BartModel"),
    _pair(arch="PegasusModel"),
    _pair(arch="MarianModel"),
    _pair(arch="M2M100Model"),
    _pair(arch="LongT5Model", base=_T5, local_radius=4, sizes=((2, 16), (3, 32))),
    _pair(arch="BlenderbotModel"),
    _pair(arch="ProphetNetModel", base={}, vocab_size=VOCABULARY, hidden_size=32, encoder_ffn_dim=48,
          num_encoder_layers=2,
          num_encoder_attention_heads=4, decoder_ffn_dim=48, num_decoder_layers=2, num_decoder_attention_heads=4,
          max_position_embeddings=64, pad_token_id=0, decoder_start_token_id=1),
]  # fmt: skip
