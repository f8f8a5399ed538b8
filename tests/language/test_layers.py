"""Logits of every family beside `transformers` in float32: a prompt in two chunks, then steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ingot.language.cache import CacheForm
from ingot.language.config import from_config
from ingot.language.layers import Decoder
from ingot.language.programs import chunk
from ingot.language.weights import ArrayWeights
from ingot.pipeline.build import build_program
from ingot.runtime.executor import CompiledModel
from ingot.targets.cpu.workers import host_features

SIZES = {
    "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
# name: (module, class, configuration)
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("llama", "LlamaForCausalLM", {}),
}


def model(module: str, name: str, given: dict[str, Any]) -> Any:
    torch = pytest.importorskip("torch")
    home = pytest.importorskip(f"transformers.models.{module}.modeling_{module}", exc_type=ImportError)
    made = getattr(home, name)
    torch.manual_seed(0)
    net = made(made.config_class(**SIZES, **given)).eval()
    with torch.no_grad():
        for p in net.parameters():  # norms and biases, too: those that start as 1 and 0 hide what is wrong
            p.add_(torch.randn_like(p) * 0.1)
    return net


def compiled(net: Any, batch: int, context: int, **how: Any) -> CompiledModel:
    weights = ArrayWeights({name: p.detach().numpy() for name, p in net.state_dict().items()})
    decoder = Decoder(from_config(net.config.to_dict()), weights, context)
    graph = chunk(decoder, CacheForm.of(decoder.architecture, batch, context), **how)
    return CompiledModel(build_program(graph, host_features(), 1), threads=1)


@pytest.mark.parametrize("name", MODELS)
def test_logits(name: str) -> None:
    torch = pytest.importorskip("torch")
    net = model(*MODELS[name])
    for batch in (1, 3):
        program = compiled(net, batch, 32)
        ids = np.random.default_rng(0).integers(3, 61, (batch, 24))
        with torch.no_grad():
            expected = net(torch.from_numpy(ids)).logits.numpy()
        ends = [7, 16, *range(17, 25)]
        for start, end in zip([0, *ends], ends):
            got = np.asarray(program(ids[:, start:end], np.array([start])))
            np.testing.assert_allclose(got, expected[:, end - 1], atol=1e-4 * np.abs(expected).max(), rtol=0)
