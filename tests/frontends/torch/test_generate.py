"""transformers' generate() with a compiled forward gives eager PyTorch's tokens: greedy, by sampling, by beams."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import ingot
from tests.frontends.torch.agree import Spy, breaks
from tests.modeling import modeling

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("fresh_dynamo")]  # transformers takes seconds to import

TOKENS = {"vocab_size": 97, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
# (module, class, configuration)
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "GPT2LMHeadModel": ("gpt2", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}),
    "Gemma2ForCausalLM": ("gemma2", {
        "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 8, "sliding_window": 6, "max_position_embeddings": 64,
    }),
    "T5ForConditionalGeneration": ("t5", {
        "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0,
    }),
    "BartForConditionalGeneration": ("bart", {
        "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
        "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_position_embeddings": 64,
        "decoder_start_token_id": 2, "forced_eos_token_id": None,
    }),
}  # fmt: skip
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "sampling": {"do_sample": True, "top_k": 20, "top_p": 0.9, "temperature": 0.8},
    "sampled beams": {"do_sample": True, "num_beams": 3},
}


@pytest.mark.parametrize("name", MODELS)
def test_tokens(name: str) -> None:
    module, inputs = MODELS[name]
    make = getattr(modeling(module), name)
    torch.manual_seed(0)
    net = make(make.config_class(**TOKENS, **inputs)).eval()
    spy, compiled = Spy(ingot.compile), copy.deepcopy(net)
    compiled.forward = torch.compile(compiled.forward, backend=spy.backend, fullgraph=False)
    for length in (5, 9):
        ids = torch.randint(3, 97, (2, length))
        mask = torch.ones_like(ids)
        mask[1, :2] = 0
        for way in WAYS.values():
            results: list[torch.Tensor] = []
            for candidate in (net, compiled):
                torch.manual_seed(3)
                results.append(candidate.generate(ids, attention_mask=mask, max_new_tokens=6, **way))
            assert torch.equal(*results), way
    assert len(spy.models) > 1 and not breaks()
