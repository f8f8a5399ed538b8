"""Records of config.json, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from ingot.language.config import from_config
from ingot.support.errors import ImportModelError

GOOD = {
    "model_type": "llama", "hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 4,
    "max_position_embeddings": 64,
}  # fmt: skip
QWEN2 = {"sliding_window": 8, "max_window_layers": 1}
LLAMA3 = {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4}


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"model_type": "mamba"}, "model_type: expected one of llama, .*got 'mamba' at config.json"),
        ({"model_type": 3}, "model_type: expected a text"),
        ({"hidden_size": "32"}, "hidden_size: expected an integer"),
        ({"hidden_size": 33}, "a multiple of the 4 heads"),
        ({"num_key_value_heads": 3}, "a divisor of the 4 heads"),
        ({"num_hidden_layers": 1 << 40}, "num_hidden_layers"),
        ({"hidden_act": "relu2"}, "hidden_act: expected one of silu"),
        ({"use_qk_norm": True}, "use_qk_norm: expected False, got True"),
        ({"layer_types": ["full_attention"]}, "a list of 4"),
        ({"layer_types": ["linear_attention"] * 4}, "got 'linear_attention'"),
        ({"rope_scaling": [1]}, "rope_scaling: expected an object"),
        ({"rope_scaling": {"type": "axial"}}, "rope_type: expected one of none, .* at config.json's rope_scaling"),
        ({"rope_scaling": {**LLAMA3, "low_freq_factor": 4}}, "more than low_freq_factor"),
        ({"rope_scaling": {"type": "longrope", "short_factor": [1.0]}}, "short_factor: expected 4 numbers above 0"),
        ({"rope_scaling": {"type": "linear", "factor": 0}}, "factor: expected a number above 0"),
        ({"model_type": "phi3", "partial_rotary_factor": 0.4}, "an even part"),
        ({"rms_norm_eps": "x"}, "rms_norm_eps: expected a finite number"),
    ],
    ids=str,
)
def test_refused(change: dict[str, Any], match: str) -> None:
    from_config(GOOD)
    with pytest.raises(ImportModelError, match=match):
        from_config(GOOD | change)


@pytest.mark.parametrize(
    ("change", "windows"),
    [
        ({}, [0, 0, 0, 0]),
        ({"model_type": "mistral", "sliding_window": 8}, [8, 8, 8, 8]),
        ({"model_type": "mistral", "sliding_window": None}, [0, 0, 0, 0]),
        ({"model_type": "qwen2", **QWEN2}, [0, 0, 0, 0]),
        ({"model_type": "qwen2", **QWEN2, "use_sliding_window": True}, [0, 8, 8, 8]),
        ({"model_type": "gemma2", "sliding_window": 8}, [8, 0, 8, 0]),
        ({"model_type": "gemma3_text", "sliding_window": 8, "sliding_window_pattern": 3}, [8, 8, 0, 8]),
        ({"model_type": "olmo3", "sliding_window": 8}, [8, 8, 8, 0]),
    ],
    ids=str,
)  # fmt: skip
def test_windows(change: dict[str, Any], windows: list[int]) -> None:
    assert [layer.window for layer in from_config(GOOD | change).layers] == windows


def test_ropes_of_older_files() -> None:
    """Before they were one object: a base at the top, what stretches it below."""
    old = from_config(GOOD | {"rope_theta": 5e5, "rope_scaling": {**LLAMA3, "original_max_position_embeddings": 32}})
    inner = {"rope_theta": 5e5, **LLAMA3, "original_max_position_embeddings": 32}
    assert old == from_config(GOOD | {"rope_parameters": inner})
    gemma = {"model_type": "gemma3_text", "sliding_window": 8}
    local = from_config(GOOD | gemma | {"rope_theta": 1e6, "rope_local_base_freq": 1e4})
    kinds = {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}
    assert local == from_config(GOOD | gemma | {"rope_parameters": kinds})
