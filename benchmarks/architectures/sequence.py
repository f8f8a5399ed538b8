"""Speech, music and time series, by transformers and torchaudio."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.architectures.case import Architecture, Call, Net, library, settled
from benchmarks.architectures.text import VOCABULARY, ids, transformer
from benchmarks.models.base import generator

_LAYERS = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
_WAVE = {
    **_LAYERS, "conv_dim": [16, 16, 16], "conv_stride": [5, 4, 2], "conv_kernel": [10, 8, 4], "vocab_size": 32,
    "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4, "num_feat_extract_layers": 3,
}  # fmt: skip
_FORECAST = {
    "prediction_length": 6, "context_length": 12, "lags_sequence": [1, 2, 3], "num_time_features": 2, "d_model": 16,
    "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24, "decoder_ffn_dim": 24,
}  # fmt: skip


def noise(*shape: int, seed: int = 7) -> Tensor:
    return torch.randn(*shape, generator=generator(seed))


def _net(module: Any, call: Callable[[int, int], Call], axes: Mapping[str, Any], sizes: tuple[int, int]) -> Net:
    return Net(settled(module, call(*sizes)), call, axes)


def _wave(arch: str, kind: str = "speech", **options: Any) -> Architecture:
    def build() -> Net:
        module = transformer(arch, {**_WAVE, **options})
        axes = {"input_values": {0: "batch", 1: "length"}}
        return _net(module, lambda n, length: {"input_values": noise(n, length)}, axes, (2, 1600))

    return Architecture(arch, kind, "transformers", build, ((2, 1600), (3, 2211)))


def _features(
    arch: str,
    kind: str,
    name: str,
    width: int,
    sizes: Any,
    options: dict[str, Any],
    axis: int = 1,
    decoder: bool = False,
) -> Architecture:
    """A network on frames: (batch, frames, width), or (batch, width, frames) for axis 2; beside ids for a decoder."""

    def call(batch: int, length: int) -> Call:
        frames = noise(batch, length, width) if axis == 1 else noise(batch, width, length)
        return {name: frames} | ({"decoder_input_ids": ids(batch, 5), "use_cache": False} if decoder else {})

    def build() -> Net:
        axes: dict[str, Any] = {name: {0: "batch", axis: "length"}}
        if decoder:
            axes["decoder_input_ids"] = {0: "batch"}
        return _net(transformer(arch, options), call, axes, sizes[0])

    return Architecture(arch, kind, "transformers", build, sizes)


def _forecast(arch: str, **options: Any) -> Architecture:
    settings = {**_FORECAST, **options}
    past, future = settings["context_length"] + 3, settings["prediction_length"]

    def call(batch: int, length: int) -> Call:
        return {
            "past_values": noise(batch, past).abs() + 1,
            "past_time_features": noise(batch, past, 2, seed=8),
            "past_observed_mask": torch.ones(batch, past),
            "future_values": noise(batch, future, seed=9),
            "future_time_features": noise(batch, future, 2, seed=10),
            "use_cache": False,
        }

    def build() -> Net:
        axes = {name: {0: "batch"} for name, v in call(2, 0).items() if isinstance(v, Tensor)}
        return _net(transformer(arch, settings), call, axes, (2, 0))

    return Architecture(arch, "time series", "transformers", build, ((2, 0), (3, 0)))


def _patches(arch: str, **options: Any) -> Architecture:
    def build() -> Net:
        axes = {"past_values": {0: "batch"}}
        return _net(transformer(arch, options), lambda n, _: {"past_values": noise(n, 32, 3)}, axes, (2, 0))

    return Architecture(arch, "time series", "transformers", build, ((2, 0), (3, 0)))


def _torchaudio(
    path: str, kind: str, call: Callable[[int, int], Call], axes: Mapping[str, Any], sizes: Any, **options: Any
):
    def build() -> Net:
        torch.manual_seed(0)
        module = getattr(library("torchaudio").models, path)(**options)
        return _net(module, call, axes, sizes[0])

    return Architecture(f"torchaudio:{path}", kind, "torchaudio", build, sizes)


def _conformer(batch: int, length: int) -> Call:
    ends = torch.tensor([length - 3 * i for i in range(batch)])
    return {"input": noise(batch, length, 16), "lengths": ends}


_seq = {"vocab_size": VOCABULARY, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
        "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2, "decoder_start_token_id": 1}  # fmt: skip
_music = partial(_wave, kind="audio codec")

CASES = [
    _wave("Wav2Vec2ForCTC"),
    _wave("HubertModel", feat_extract_norm="layer", do_stable_layer_norm=True, conv_bias=True),
    _wave("WavLMModel", num_buckets=16, max_bucket_distance=32),
    _wave("UniSpeechModel"),
    _wave("UniSpeechSatModel"),
    _wave("SEWModel", squeeze_factor=2, num_feat_extract_layers=3),
    _wave("Data2VecAudioModel"),
    _wave("Wav2Vec2ConformerModel", conv_depthwise_kernel_size=7),
    _features("Wav2Vec2BertModel", "speech", "input_features", 24, ((2, 40), (3, 57)),
              {**_LAYERS, "feature_projection_input_dim": 24, "conv_depthwise_kernel_size": 7}),
    _features("WhisperForConditionalGeneration", "speech", "input_features", 16, ((2, 40), (3, 40)),
              {**_seq, "num_mel_bins": 16, "max_source_positions": 20, "max_target_positions": 16}, 2, True),
    _features("Speech2TextForConditionalGeneration", "speech", "input_features", 16, ((2, 40), (3, 60)),
              {**_seq, "input_feat_per_channel": 16, "input_channels": 1, "conv_channels": 16,
              "max_source_positions": 64,
               "max_target_positions": 16}, 1, True),
    _features("ASTForAudioClassification", "speech", "input_values", 16, ((2, 32), (3, 32)),
              {**_LAYERS, "max_length": 32, "num_mel_bins": 16, "patch_size": 8, "frequency_stride": 4,
              "time_stride": 4}),
    _features("UnivNetModel", "vocoder", "input_features", 100, ((2, 8), (3, 11)), {"model_hidden_channels": 8}),
    _features("SpeechT5HifiGan", "vocoder", "spectrogram", 16, ((2, 8), (3, 11)),
              {"model_in_dim": 16, "upsample_initial_channel": 32}),
    _features("EncodecModel", "audio codec", "input_values", 1, ((2, 640), (3, 960)),
              {"num_filters": 4, "hidden_size": 16, "codebook_size": 32, "codebook_dim": 16, "upsampling_ratios": [4,
              2]}, 2),
    _features("DacModel", "audio codec", "input_values", 1, ((2, 512), (3, 768)),
              {"encoder_hidden_size": 8, "downsampling_ratios": [2, 4], "decoder_hidden_size": 32, "n_codebooks": 2,
               "codebook_size": 32, "codebook_dim": 4, "quantizer_dropout": 0.0}, 2),
    _forecast("TimeSeriesTransformerModel"),
    _forecast("InformerModel"),
    _forecast("AutoformerModel", label_length=6, moving_average=5),
    _patches("PatchTSTForPrediction", num_input_channels=3, context_length=32, patch_length=8, patch_stride=8,
             d_model=16,
             num_hidden_layers=1, num_attention_heads=2, ffn_dim=24, prediction_length=6),
    _patches("PatchTSMixerForPrediction", num_input_channels=3, context_length=32, patch_length=8, patch_stride=8,
             d_model=16,
             num_layers=1, prediction_length=6),
    _torchaudio("Conformer", "speech", _conformer, {"input": {0: "batch", 1: "length"}, "lengths": {0: "batch"}},
                ((2, 40), (2, 40)), input_dim=16, num_heads=4, ffn_dim=24, num_layers=2, depthwise_conv_kernel_size=7),
    _torchaudio("ConvTasNet", "speech", lambda n, length: {"input": noise(n, 1, length)}, {"input": {0: "batch",
                2: "length"}},
                ((2, 400), (3, 560)), enc_num_feats=16, msk_num_feats=16, msk_num_hidden_feats=16, msk_num_layers=2,
                msk_num_stacks=1),
    _torchaudio("DeepSpeech", "speech", lambda n, length: {"x": noise(n, 1, length, 16)}, {"x": {0: "batch"}}, ((2,
                20), (3, 20)),
                n_feature=16, n_hidden=32, n_class=10),
    _torchaudio("Wav2Letter", "speech", lambda n, length: {"x": noise(n, 16, length)}, {"x": {0: "batch", 2: "length"}},
                ((2, 60), (3, 80)), num_classes=10, input_type="mfcc", num_features=16),
]  # fmt: skip
