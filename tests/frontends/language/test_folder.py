"""A folder of Hugging Face as a language model, beside `transformers`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import ingot
from ingot.frontends.language import open_language
from ingot.support.errors import ImportModelError, InputError
from tests.language.models import MODELS, model
from tests.language.tiny import CHATML


def folder(path: Path, name: str, **config: object) -> tuple[object, Path]:
    net = model(*MODELS[name])
    net.save_pretrained(path)
    settings = json.loads((path / "config.json").read_text()) | config
    (path / "config.json").write_text(json.dumps(settings))
    return net, path


def tokenizer(path: Path) -> None:
    """Of 61 words: letters, and what begins and ends a text."""
    library = pytest.importorskip("tokenizers")
    words = ["<pad>", "<s>", "</s>", *(chr(c) for c in range(65, 123))]
    fast_tokenizer = library.Tokenizer(library.models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<pad>"))
    fast_tokenizer.pre_tokenizer = library.pre_tokenizers.Split("", "isolated")
    fast_tokenizer.decoder = library.decoders.Fuse()
    fast_tokenizer.add_special_tokens(["<pad>", "<s>", "</s>"])
    fast_tokenizer.post_processor = library.processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    fast_tokenizer.save(str(path / "tokenizer.json"))
    special = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "chat_template": CHATML}
    (path / "tokenizer_config.json").write_text(json.dumps(special))
    (path / "generation_config.json").write_text(
        json.dumps({"do_sample": True, "temperature": 0.5, "top_k": 7, "eos_token_id": [2, 60]})
    )


def test_tokens_of_transformers(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    net, path = folder(tmp_path / "model", "qwen 3 mixture")
    tokenizer(path)
    lm = ingot.LanguageModel(path, threads=1, cache="float32")
    assert lm.context == 64 and lm.name == "model"
    assert lm._sampling({}).temperature == 0.5 and lm._sampling({}).top_k == 7 and lm._sampling({"top_k": 0}).top_k == 0
    assert lm.tokenizer.end_ids == (2, 60) and lm.template == CHATML
    ids = lm.tokenizer.encode("Hello")
    assert ids[0] == 1
    with torch.no_grad():
        generated = net.generate(torch.tensor([ids]), max_new_tokens=20, do_sample=False, eos_token_id=[2, 60])  # type: ignore
    expected = [i for i in generated[0, len(ids) :].tolist() if i not in (2, 60)]
    assert lm.generate(ids, max_tokens=20, temperature=0) == expected
    assert lm.generate("Hello", max_tokens=20, temperature=0) == lm.tokenizer.decode(expected)


def test_embeddings_of_an_encoder(tmp_path: Path) -> None:
    module = ("bert", "BertModel", {"num_key_value_heads": None, "hidden_act": "gelu"})
    net = model(*module)
    net.save_pretrained(tmp_path)
    tokenizer(tmp_path)
    lm = ingot.LanguageModel(tmp_path, threads=1)
    vectors = lm.embed(["Hello", "Hi"])
    assert vectors.shape == (2, 32) and np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    with pytest.raises(InputError, match="an encoder"):
        lm.generate("Hello")


def test_what_a_folder_lacks(tmp_path: Path) -> None:
    _, path = folder(tmp_path / "model", "llama")
    text = open_language(path, "huggingface").text
    assert "tokenizer" not in text and not text["templates"]
    (path / "tokenizer.model").write_bytes(b"\n")
    assert "save_pretrained" in open_language(path, "huggingface").text["refused"]
    (path / "config.json").write_text('{"model_type": "vit"}')
    with pytest.raises(ImportModelError, match=r"AutoModel\.from_pretrained"):
        ingot.compile(path)
