"""Tokenizers of GGUF vocabularies and of tokenizer.json, beside llama.cpp and the library; streams."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ingot.frontends.gguf import GGUFFile
from ingot.language.text.tokenizer import Tokenizer, ends_of, special_of
from ingot.support.errors import ImportModelError, InputError
from tests.language.text.sources import llama_cpp

tokenizers = pytest.importorskip("tokenizers")

TEXTS = [
    "", " ", "Hello, world!", "  two  spaces\n\n\tand tabs ", "naïve café Ünïcödé 数字 3.14159", "🦙🦙 emoji",
    "don't DON'T we'll",
    "a\u0301 combining", "\r\n\r\n", "1234567", "x" * 300, "日本語のテキスト、한국어", "\u200d\u00a0",
    "many words " * 1000,
]  # fmt: skip


def metadata(model: str, tokens: Sequence[str], **values: Any) -> dict[str, Any]:
    return {"tokenizer.ggml.model": model, "tokenizer.ggml.tokens": tuple(tokens)} | {
        f"tokenizer.ggml.{key}": value for key, value in values.items()
    }


def byte_level(adds_bos: bool = False) -> tuple[Any, Tokenizer]:
    """A tokenizer that the library trained, and the same from what a GGUF file would hold."""
    reference = tokenizers.Tokenizer(tokenizers.models.BPE())
    reference.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    reference.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=alphabet, special_tokens=["<s>", "</s>"], show_progress=False
    )
    reference.train_from_iterator([Path(__file__).read_text()] * 3, trainer)
    model = json.loads(reference.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    merges = tuple(" ".join(pair) for pair in model["merges"])
    kinds = np.array([3 if token in ("<s>", "</s>") else 1 for token in tokens], np.int32)
    values = {"merges": merges, "token_type": kinds, "bos_token_id": 0, "eos_token_id": 1, "add_bos_token": adds_bos}
    return reference, Tokenizer.from_metadata(metadata("gpt2", tokens, pre="gpt-2", **values))


@pytest.mark.parametrize("text", TEXTS)
def test_bytes_merge_as_the_library_does(text: str) -> None:
    reference, tokenizer = byte_level()
    assert tokenizer.encode(text) == reference.encode(text).ids
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_sequence_begins_as_the_file_says() -> None:
    tokenizer = byte_level(adds_bos=True)[1]
    assert tokenizer.encode("Hello")[0] == 0
    assert tokenizer.encode("Hello", framed=False) == tokenizer.encode("Hello")[1:]
    assert tokenizer.encode("<s>a</s>", framed=False) == [0, *tokenizer.encode("a", framed=False), 1]
    assert tokenizer.special == {"bos_token": "<s>", "eos_token": "</s>"} and tokenizer.end_ids == (1,)
    assert tokenizer.decode([0, *tokenizer.encode("Hello"), 1]) == "Hello"


# --- SentencePiece

PIECES = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256))]


def sentence_piece(seed: int) -> tuple[dict[str, float], Tokenizer]:
    """Random pieces, each made of two that are there, with random scores."""
    rng = np.random.default_rng(seed)
    letters = ["▁", *"abcdé"]
    words = dict.fromkeys(letters, 0.0)
    while len(words) < 60:
        words.setdefault("".join(rng.choice([*words], 2)), 0.0)
    scores = dict(zip(words, -rng.permutation(len(words)).astype(float), strict=True))
    tokens = [*PIECES, *scores]
    kinds = np.array([2, 3, 3, *[6] * 256, *[1] * len(scores)], np.int32)
    values = np.array([0.0] * len(PIECES) + [*scores.values()], np.float32)
    inputs = {"scores": values, "token_type": kinds, "bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0}
    return scores, Tokenizer.from_metadata(metadata("llama", tokens, **inputs))


def merged(text: str, scores: dict[str, float]) -> list[str]:
    """SentencePiece's rule: of all neighbours that are a piece together, those of the highest score become one."""
    parts = [*text]
    while True:
        result = [(scores[a + b], -i) for i, (a, b) in enumerate(pairwise(parts)) if a + b in scores]
        if not result:
            return parts
        i = -max(result)[1]
        parts[i : i + 2] = [parts[i] + parts[i + 1]]


@pytest.mark.parametrize("seed", range(4))
def test_pieces_merge_by_score(seed: int) -> None:
    scores, tokenizer = sentence_piece(seed)
    ids = {token: i for i, token in enumerate([*PIECES, *scores])}
    rng = np.random.default_rng(seed)
    for length in (1, 2, 7, 30):
        text = "".join(rng.choice([*" abcdé"], length))
        expected = [ids[part] for part in merged("▁" + text.replace(" ", "▁"), scores)]
        assert tokenizer.encode(text, framed=False) == expected, text
        assert tokenizer.encode(text) == [1, *expected]
        assert tokenizer.decode(expected) == text


def test_a_character_that_is_no_piece_is_bytes() -> None:
    tokenizer = sentence_piece(0)[1]
    ids = tokenizer.encode("€", framed=False)
    assert [tokenizer.backend.id_to_token(i) for i in ids[-3:]] == ["<0xE2>", "<0x82>", "<0xAC>"]
    assert tokenizer.decode(ids) == "€"


# --- streams


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("kind", ["bytes", "pieces"])
def test_a_stream_gives_whole_characters_and_all_of_them(kind: str, size: int) -> None:
    tokenizer = byte_level()[1] if kind == "bytes" else sentence_piece(1)[1]
    for text in TEXTS:
        ids = tokenizer.encode(text, framed=False)
        stream = tokenizer.stream()
        parts = [stream.push(ids[i : i + size]) for i in range(0, len(ids), size)]
        assert "\ufffd" not in "".join(parts)
        assert "".join(parts) + stream.finish() == tokenizer.decode(ids)


def test_a_stream_goes_on_from_its_prompt() -> None:
    tokenizer = sentence_piece(1)[1]
    prompt = tokenizer.encode("ab", framed=False)
    continuation = tokenizer.encode("ab c", framed=False)[len(prompt) :] or tokenizer.encode("c", framed=False)
    stream = tokenizer.stream(prompt)
    assert (stream.push(continuation) + stream.finish()).startswith(" c")


def test_a_stream_ends_with_what_is_no_character() -> None:
    tokenizer = byte_level()[1]
    stream = tokenizer.stream()
    assert stream.push(tokenizer.encode("é", framed=False)[:1]) == ""
    assert stream.finish() == "\ufffd"
    assert stream.finish() == ""


@pytest.mark.parametrize("kind", ["bytes", "pieces"])
def test_a_stream_of_what_is_no_text_takes_no_longer_for_each_token(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes that are no characters, and tokens without a text; then a text comes as a whole."""
    tokenizer = byte_level()[1] if kind == "bytes" else sentence_piece(1)[1]
    lengths, decode = list[int](), tokenizer.decode
    monkeypatch.setattr(tokenizer, "decode", lambda ids, **how: (lengths.append(len(ids)), decode(ids, **how))[1])
    text = "Euro: \u20ac, and \U0001f600"
    wrong, unknown = tokenizer.encode("\u20ac", framed=False)[-1], tokenizer.count + 5
    assert decode([wrong]) == "\ufffd" and not tokenizer.has_text(unknown)
    stream = tokenizer.stream(tokenizer.encode("a", framed=False))
    parts = [stream.push([i]) for i in [wrong] * 300 + [unknown] * 300 + tokenizer.encode(text, framed=False)]
    assert ("".join(parts) + stream.finish()).replace(" ", "") == "\ufffd" * 300 + text.replace(" ", "")
    assert max(lengths) < 40


# --- files


def test_of_a_tokenizer_json() -> None:
    reference, _ = byte_level()
    config = {"bos_token": {"content": "<s>", "lstrip": False}, "eos_token": "</s>", "pad_token": None}
    tokenizer = Tokenizer.from_json(reference.to_str(), special_of(config), ends_of({}, {"eos_token_id": [1, 5]}))
    assert tokenizer.encode("Hello") == reference.encode("Hello").ids
    assert tokenizer.special == {"bos_token": "<s>", "eos_token": "</s>"}
    assert tokenizer.end_ids == (1, 5)
    with pytest.raises(ImportModelError, match="is not readable"):
        Tokenizer.from_json("{}", {})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "rwkv"}, "one of llama, gpt2"),
        ({"pre": "mystery"}, "one of gpt-2"),
        ({"tokens": ("a", "b\udcff")}, "UTF-8"),
        ({"tokens": None}, "a list of texts"),
        ({"token_type": np.zeros(3, np.int32)}, "a number for each of 2 tokens"),
        ({"merges": ("ab",)}, "pairs of tokens"),
        ({"model": "llama"}, "scores: expected a number for each of 2 tokens"),
        ({"model": "t5", "scores": np.zeros(2, np.float32)}, "unknown_token_id: expected an id"),
        ({"model": "bert"}, "unknown_token_id: expected an id"),
        ({"merges": ("a c",)}, "the vocabulary is not usable"),
        ({"bos_token_id": 2}, "an id below the 2 tokens"),
    ],
)
def test_what_is_malformed_is_refused(changes: dict[str, Any], message: str) -> None:
    good: dict[str, Any] = {"model": "gpt2", "pre": "gpt-2", "tokens": ("a", "b"), "merges": ()}
    values = {f"tokenizer.ggml.{key}": value for key, value in {**good, **changes}.items() if value is not None}
    with pytest.raises(ImportModelError, match=message):
        Tokenizer.from_metadata(values)


def test_a_text_is_unicode() -> None:
    tokenizer = byte_level()[1]
    with pytest.raises(InputError, match="a lone surrogate"):
        tokenizer.encode("\ud800")
    with pytest.raises(InputError, match="a str"):
        tokenizer.encode(b"Hello")  # type: ignore[arg-type]


# --- llama.cpp's vocabularies


@pytest.mark.parametrize("name", [
    "bert-bge", "command-r", "deepseek-coder", "deepseek-llm", "falcon", "gemma-4", "gpt-2", "llama-bpe", "llama-spm",
    "mpt",    "phi-3", "qwen2", "qwen35", "refact", "starcoder",
])  # fmt: skip
def test_ids_of_llama_cpp(name: str) -> None:
    file = llama_cpp("models") / f"ggml-vocab-{name}.gguf"
    tokenizer = Tokenizer.from_metadata(GGUFFile(file).metadata)
    tokenizer.backend.encode_special_tokens = True  # as its test does
    texts = Path(f"{file}.inp").read_text().split("\n__ggml_vocab_test__\n")
    lines = Path(f"{file}.out").read_text().split("\n")
    assert len(texts) > 40
    for text, line in zip(texts, lines, strict=False):
        assert tokenizer.encode(text, framed=False) == [int(i) for i in line.split()], text
