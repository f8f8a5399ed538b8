"""Embeddings of whole sequences beside `transformers`, of encoders and of decoders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ingot.language.cache import CacheForm
from ingot.language.layers import Network
from ingot.language.metadata import from_metadata
from ingot.language.programs import chunk, embed
from ingot.language.weights import ArrayWeights
from ingot.support.errors import ImportModelError, InputError
from tests.language.models import compiled, files, model, network
from tests.language.test_metadata import metadata, stored

BERT = {"type_vocab_size": 2, "num_key_value_heads": 4}
CASES: list[tuple[str, str, dict[str, Any], str]] = [
    ("bert", "BertModel", BERT, "mean"),
    ("bert", "BertModel", BERT, "first"),
    ("qwen3", "Qwen3ForCausalLM", {"head_dim": 8}, "last"),
    ("gemma3", "Gemma3ForCausalLM", {"head_dim": 8, "sliding_window": 4, "query_pre_attn_scalar": 8}, "mean"),
    ("lfm2", "Lfm2ForCausalLM", {"layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False}, "last"),
]


@pytest.mark.parametrize(("module", "name", "settings", "pooling"), CASES)
def test_embeddings(module: str, name: str, settings: dict[str, Any], pooling: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    net = model(module, name, settings)
    language = network(net, tmp_path, 32)
    program = compiled(embed(language, 3, pooling))
    lengths, ids = [9, 1, 6], np.random.default_rng(0).integers(3, 61, (3, 9))
    got = np.asarray(program(ids, np.array(lengths)))
    for row, length, y in zip(ids, lengths, got, strict=True):
        with torch.no_grad():
            base = getattr(net, "model", net)
            x = base(torch.from_numpy(row[None, :length])).last_hidden_state[0].numpy()
        expected = {"mean": x.mean(0), "first": x[0], "last": x[-1]}[pooling]
        np.testing.assert_allclose(y, expected / np.linalg.norm(expected), atol=1e-4)


def test_an_encoder_of_a_gguf_file(tmp_path: Path) -> None:
    old, weights = files(model("bert", "BertModel", BERT), tmp_path)
    new = from_metadata(metadata("bert", old))
    tensors = stored({k: v for k, v in weights.items() if "pooler" not in k}, old, new)
    ids, lengths = np.random.default_rng(0).integers(3, 61, (2, 5)), np.array([5, 2])
    named = {f"bert.{name}": array for name, array in weights.items()}  # of a model with a head
    programs = [compiled(embed(Network(a, ArrayWeights(w), 32), 2, "mean")) for a, w in ((old, named), (new, tensors))]
    first, second = (np.asarray(program(ids, lengths)) for program in programs)
    assert np.array_equal(first, second)


def test_an_encoder_has_no_steps(tmp_path: Path) -> None:
    language = network(model("bert", "BertModel", BERT), tmp_path, 32)
    with pytest.raises(ImportModelError, match="'bert' has no next token; take its embeddings"):
        chunk(language, CacheForm.of(language.architecture, 1, 32))


def test_unknown_pooling(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="pooling: expected one of mean, first, last, got 'max'"):
        embed(network(model("bert", "BertModel", BERT), tmp_path, 32), 1, "max")
