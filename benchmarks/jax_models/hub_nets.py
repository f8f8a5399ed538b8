"""keras_hub's networks on JAX, small and with random weights, as functions of their variables."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from .case import Case, Sizes, ids, normal

os.environ.setdefault("KERAS_BACKEND", "jax")

TEXT: tuple[Sizes, ...] = ({"b": 2, "n": 12}, {"b": 1, "n": 7}, {"b": 3, "n": 24})
IMAGE: tuple[Sizes, ...] = ({"b": 2}, {"b": 1}, {"b": 5})
BOUNDS = {"n": (2, 32)}

_HEADS = {"num_layers": 2, "num_heads": 4, "hidden_dim": 32, "intermediate_dim": 64}
_GROUPED = {
    "vocabulary_size": 100, "num_layers": 2, "num_query_heads": 4, "num_key_value_heads": 2, "hidden_dim": 32,
    "intermediate_dim": 64,
}  # fmt: skip
_TEXT: Mapping[str, Mapping[str, Any]] = {
    "Bert": {"vocabulary_size": 100, "max_sequence_length": 32, **_HEADS},
    "Roberta": {"vocabulary_size": 100, "max_sequence_length": 32, **_HEADS},
    "DistilBert": {"vocabulary_size": 100, "max_sequence_length": 32, **_HEADS},
    "Albert": {"vocabulary_size": 100, "max_sequence_length": 32, "embedding_dim": 16, **_HEADS},
    "DebertaV3": {"vocabulary_size": 100, "max_sequence_length": 32, "bucket_size": 8, **_HEADS},
    "FNet": {
        "vocabulary_size": 100, "max_sequence_length": 32, "num_layers": 2, "hidden_dim": 32, "intermediate_dim": 64,
    },
    "GPT2": {"vocabulary_size": 100, "max_sequence_length": 32, **_HEADS},
    "OPT": {"vocabulary_size": 100, "max_sequence_length": 32, **_HEADS},
    "Bloom": {"vocabulary_size": 100, "max_sequence_length": 32, **_HEADS},
    "GPTNeoX": {"vocabulary_size": 100, "max_sequence_length": 32, **_HEADS},
    "Falcon": {
        "vocabulary_size": 100, "num_layers": 2, "num_attention_heads": 4, "hidden_dim": 32, "intermediate_dim": 64,
    },
    "Llama": _GROUPED,
    "Mistral": {**_GROUPED, "sliding_window": 8},
    "Qwen": _GROUPED,
    "Phi3": _GROUPED,
    "Gemma": {**_GROUPED, "head_dim": 8},
    "Gemma3": {**_GROUPED, "head_dim": 8, "image_size": 16, "sliding_window_size": 8},
    "Mixtral": {**_GROUPED, "num_experts": 4, "top_k": 2, "sliding_window": 8},
    "T5": {"vocabulary_size": 100, **_HEADS},
    "Bart": {"vocabulary_size": 100, "max_sequence_length": 32, **_HEADS},
    "RWKV7": {
        "hidden_size": 64, "head_size": 32, "num_layers": 2, "vocabulary_size": 100, "intermediate_dim": 64,
        "gate_lora": 16, "mv_lora": 16, "aaa_lora": 16, "decay_lora": 16,
    },
}  # fmt: skip
_IMAGES: Mapping[str, Mapping[str, Any]] = {
    "ViT": {
        "image_shape": (32, 32, 3), "patch_size": (8, 8), "num_layers": 2, "num_heads": 4, "hidden_dim": 32,
        "mlp_dim": 64,
    },
    "ResNet": {
        "input_conv_filters": [64], "input_conv_kernel_sizes": [7], "stackwise_num_filters": [64, 128],
        "stackwise_num_blocks": [1, 1], "stackwise_num_strides": [1, 2], "block_type": "basic_block",
        "image_shape": (32, 32, 3),
    },
    "MiT": {
        "layerwise_depths": [1, 1], "num_layers": 2, "hidden_dims": [16, 32], "layerwise_num_heads": [2, 4],
        "layerwise_sr_ratios": [2, 1], "max_drop_path_rate": 0.0, "layerwise_patch_sizes": [3, 3],
        "layerwise_strides": [4, 2], "image_shape": (32, 32, 3),
    },
    "SwinTransformer": {
        "image_shape": (32, 32, 3), "patch_size": 2, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4],
        "window_size": 4, "drop_path_rate": 0.0,
    },
}  # fmt: skip


def _perturb(model: Any) -> None:
    rng = np.random.default_rng(11)
    for variable in model.variables:
        if str(variable.dtype) == "float32":
            noise = 0.1 * np.abs(rng.standard_normal(variable.shape)).astype(np.float32)
            variable.assign(np.asarray(variable.value) + noise)


def _case(name: str, model: Any, inputs: Any, sizes: Sequence[Sizes], axes: Mapping[str, Any]) -> Case:
    _perturb(model)
    values = [v.value for v in model.trainable_variables], [v.value for v in model.non_trainable_variables]

    def fn(weights: Any, x: Any) -> Any:
        return model.stateless_call(*weights, x, training=False)[0]

    return Case(f"keras_hub {name}", fn, values, inputs, sizes, axes)


def _text(name: str, options: Mapping[str, Any]) -> Case:
    import keras_hub

    model = getattr(keras_hub.models, f"{name}Backbone")(**options)
    names = [t.name for t in model.inputs]

    def inputs(sizes: Sizes, rng: np.random.Generator) -> tuple[Any, ...]:
        b, n = sizes["b"], sizes["n"]
        ends = rng.integers(n // 2, n, (b, 1)) + 1
        made = {"mask": np.arange(n)[None] < ends, "segm": ids(rng, b, n, below=2)}
        return ({k: _named(k, made, ids(rng, b, n)) for k in names},)

    axes = {f"x['{k}']": {0: "b", 1: "n"} for k in names}
    return _case(name, model, inputs, TEXT, axes | BOUNDS)


def _named(name: str, made: Mapping[str, np.ndarray], tokens: np.ndarray) -> np.ndarray:
    for word, value in made.items():
        if word in name:
            return value.astype(np.int32)
    return tokens


def _image(name: str, options: Mapping[str, Any]) -> Case:
    import keras_hub

    model = getattr(keras_hub.models, f"{name}Backbone")(**options)

    def inputs(sizes: Sizes, rng: np.random.Generator) -> tuple[Any, ...]:
        return (normal(rng, sizes["b"], 32, 32, 3),)

    return _case(name, model, inputs, IMAGE, {"x": {0: "b"}})


def _whisper() -> Case:
    import keras_hub

    model = keras_hub.models.WhisperBackbone(
        vocabulary_size=100, num_layers=2, num_heads=4, hidden_dim=32, intermediate_dim=64, num_mels=16,
        max_encoder_sequence_length=64, max_decoder_sequence_length=32,
    )  # fmt: skip

    def inputs(sizes: Sizes, rng: np.random.Generator) -> tuple[Any, ...]:
        b, n = sizes["b"], sizes["n"]
        tokens = {"decoder_token_ids": ids(rng, b, n), "decoder_padding_mask": np.ones((b, n), np.int32)}
        return ({"encoder_features": normal(rng, b, 64, 16), **tokens},)

    axes = {f"x['decoder_{k}']": {0: "b", 1: "n"} for k in ("token_ids", "padding_mask")}
    return _case("Whisper", model, inputs, TEXT, {**axes, "x['encoder_features']": {0: "b"}, **BOUNDS})


def cases() -> Iterator[tuple[str, Callable[[], Case]]]:
    for name, options in _TEXT.items():
        yield f"keras_hub {name}", lambda name=name, options=options: _text(name, options)
    yield "keras_hub Whisper", _whisper
    for name, options in _IMAGES.items():
        yield f"keras_hub {name}", lambda name=name, options=options: _image(name, options)
