"""Many architectures through `target="cuda"` beside eager PyTorch, small and with random weights: are they right?

    python -m benchmarks.gpu.architectures [--only bert,resnet18] [--workers 8] [--dtype float16] [--report FILE]

Each has a process of its own, with a limit of time.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from benchmarks.gpu.judged import deviations, session

IMAGES = {
    name: size
    for size, names in {
        64: "alexnet resnet18 wide_resnet50_2 resnext50_32x4d densenet121 mobilenet_v2 mobilenet_v3_small mnasnet0_5 "
        "efficientnet_v2_s regnet_y_400mf regnet_x_400mf shufflenet_v2_x0_5 squeezenet1_1 vgg11_bn convnext_tiny "
        "swin_t swin_v2_t",
        96: "googlenet inception_v3",
        224: "maxvit_t vit_b_32",
    }.items()
    for name in names.split()
}
TEXT = (
    "bert", "roberta", "distilbert", "albert", "electra", "deberta-v2", "mpnet", "xlnet", "gpt2", "gpt_neo",
    "gpt_neox", "gptj", "opt", "bloom", "llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "phi", "phi3",
    "falcon", "mixtral", "olmo", "stablelm", "mamba", "t5", "bart", "rwkv", "convbert", "nystromformer", "funnel",
    "modernbert", "cohere", "granite", "codegen", "xglm", "ctrl", "biogpt", "persimmon", "olmo2", "glm", "qwen2_moe",
    "starcoder2", "gpt_bigcode", "nemotron", "helium", "ernie", "megatron-bert", "squeezebert", "mobilebert",
    "roformer", "camembert", "xlm-roberta", "layoutlm", "splinter", "ibert", "esm", "mamba2",
)  # fmt: skip
VISION = (
    "vit", "deit", "beit", "dinov2", "segformer", "clip_vision_model", "siglip_vision_model", "resnet", "regnet",
    "convnextv2", "poolformer",
)  # fmt: skip
TIMM = {
    name: size
    for size, names in {
        64: "edgenext_xx_small efficientvit_b0 repvgg_a0 ghostnet_100 lcnet_050 mixnet_s dla34 hrnet_w18_small "
        "cspresnet50 ese_vovnet19b_dw nfnet_l0 resnest14d pvt_v2_b0 mobilevit_xxs mobileone_s0 "
        "repvit_m0_9 focalnet_tiny_srf caformer_s18 mambaout_femto hgnet_tiny dpn48b rexnet_100",
        224: "tiny_vit_5m_224 pit_ti_224 levit_128s mixer_s32_224 gmlp_ti16_224 cait_xxs24_224 coat_lite_tiny "
        "xcit_nano_12_p16_224 volo_d1_224 twins_pcpvt_small davit_tiny gcvit_xxtiny hiera_tiny_224 sequencer2d_s "
        "swiftformer_xs",
        240: "crossvit_tiny_240",
        256: "fastvit_t8",
        336: "eva02_tiny_patch14_336",
    }.items()
    for name in names.split()
}
SIZES: dict[str, Any] = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 96, "vocab_size": 300, "head_dim": 16, "max_position_embeddings": 64,
}  # fmt: skip
OWN: dict[str, dict[str, Any]] = {
    "distilbert": {"dim": 64, "hidden_dim": 96, "n_layers": 2, "n_heads": 4, "vocab_size": 300},
    "albert": {"embedding_size": 32},
    "xlnet": {"d_model": 64, "n_layer": 2, "n_head": 4, "d_inner": 96, "vocab_size": 300},
    "gpt2": {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": 300},
    "gptj": {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": 300, "rotary_dim": 8},
    "gpt_neo": {"hidden_size": 64, "num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]],
                "vocab_size": 300, "max_position_embeddings": 64},
    "opt": {"hidden_size": 64, "ffn_dim": 96, "word_embed_proj_dim": 64, "num_hidden_layers": 2,
            "num_attention_heads": 4, "vocab_size": 300, "max_position_embeddings": 64},
    "bloom": {"hidden_size": 64, "n_layer": 2, "n_head": 4, "vocab_size": 300},
    "falcon": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 300},
    "t5": {"d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 2, "num_heads": 4, "vocab_size": 300},
    "bart": {"d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
             "decoder_attention_heads": 4, "encoder_ffn_dim": 96, "decoder_ffn_dim": 96, "vocab_size": 300},
    "mamba": {"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 300},
    "rwkv": {"hidden_size": 64, "num_hidden_layers": 2, "attention_hidden_size": 64, "vocab_size": 300},
    "funnel": {"d_model": 64, "n_head": 4, "d_head": 16, "d_inner": 96, "block_sizes": [1, 1], "vocab_size": 300},
    "mixtral": {"num_local_experts": 4},
    "convbert": {"embedding_size": 64, "head_ratio": 2},
    "codegen": {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": 300, "rotary_dim": 8,
                "n_ctx": 64},
    "xglm": {"d_model": 64, "num_layers": 2, "attention_heads": 4, "ffn_dim": 96, "vocab_size": 300},
    "ctrl": {"n_embd": 64, "n_layer": 2, "n_head": 4, "dff": 96, "n_positions": 64, "vocab_size": 300},
    "gpt_bigcode": {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": 300},
    "qwen2_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48,
                  "shared_expert_intermediate_size": 48},
    "squeezebert": {"embedding_size": 64},
    "mobilebert": {"embedding_size": 32, "intra_bottleneck_size": 32, "true_hidden_size": 32},
    "roformer": {"embedding_size": 64},
    "mamba2": {"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 300, "num_heads": 8, "head_dim": 16,
               "state_size": 16, "n_groups": 2, "chunk_size": 8},
}  # fmt: skip
PADS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def built(name: str) -> tuple[Any, tuple[Any, ...]]:
    """(network, inputs)"""
    import torch
    import torchvision
    import transformers

    if name in IMAGES:
        make = getattr(torchvision.models, name)
        extra = {"aux_logits": False, "init_weights": True} if name in ("googlenet", "inception_v3") else {}
        return make(num_classes=50, **extra), (torch.randn(2, 3, IMAGES[name], IMAGES[name]),)
    if name in TIMM:
        import timm

        return timm.create_model(name, num_classes=50), (torch.randn(2, 3, TIMM[name], TIMM[name]),)
    if name in VISION:
        own: dict[str, Any] = {"image_size": 32, "patch_size": 8, "hidden_size": 64, "num_hidden_layers": 2}
        own |= {"num_attention_heads": 4, "intermediate_size": 96}
        plain = name in ("segformer", "resnet", "regnet", "convnextv2", "poolformer")
        config = transformers.AutoConfig.for_model(name, **({} if plain else own))
        return _Tensors(transformers.AutoModel.from_config(config)), (
            torch.randn(2, 3, 64 if plain else 32, 64 if plain else 32),
        )
    sizes = {**(OWN[name] if name in OWN and "vocab_size" in OWN[name] else {**SIZES, **OWN.get(name, {})}), **PADS}
    config: Any = transformers.AutoConfig.for_model(name, **sizes)
    config.use_cache = False
    own_class = {"t5": transformers.T5EncoderModel, "funnel": transformers.FunnelModel}  # the others are their type's
    net = own_class[name](config) if name in own_class else transformers.AutoModel.from_config(config)
    return _Tensors(net), (torch.randint(3, 300, (2, 24)),)


def _Tensors(net: Any) -> Any:
    import torch
    from torch.utils import _pytree

    class Tensors(torch.nn.Module):
        """The tensors of a result, in a tuple."""

        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            found = _pytree.tree_leaves(tuple(self.net(x).to_tuple()))
            return tuple(t for t in found if isinstance(t, torch.Tensor))

    return Tensors()


def judge(name: str, dtype: str, target: str) -> dict[str, Any]:
    """Both beside the same weights in a wider type: deviations, of the largest magnitude. NaN, and what does not vary,
    would agree with anything."""
    import torch

    import ingot
    from benchmarks.models.base import disturb, settle_batch_norms

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.manual_seed(0)
    net, inputs = built(name)
    net = net.eval()
    disturb(net)
    settle_batch_norms(net, inputs)
    kind, wide = getattr(torch, dtype), torch.float64 if dtype == "float32" else torch.float32
    net = net.to(kind)
    inputs = tuple(x.to(kind) if x.is_floating_point() else x for x in inputs)
    begin = time.perf_counter()
    compiled = ingot.compile(net, inputs, target=target)  # kernels that another has compiled are in the cache
    seconds = time.perf_counter() - begin
    net, own = net.cuda(), tuple(x.cuda() for x in inputs)
    with torch.no_grad():
        eager, got = net(*own), compiled(*own)
        want = net.to(wide)(*(x.to(wide) if x.is_floating_point() else x for x in own))
    deviation, peer = (max(deviations(x, want)) for x in (got, eager))
    return {"model": name, "deviation": deviation, "eager": peer, "compile_s": seconds}


if __name__ == "__main__":
    names = [*TEXT, *VISION, *IMAGES, *TIMM]
    sys.exit(session("benchmarks.gpu.architectures", __doc__, judge, names, dtype="float32", seconds=100))
