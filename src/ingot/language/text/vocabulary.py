"""The tokenizer that a GGUF file describes, as one of the library `tokenizers`.

    tokenizer.ggml.model  "llama"            merges by score; bytes for characters without a token (SentencePiece)
                          "gpt2"             merges of bytes by rank, within words (`pretokenizers`)
                          "gemma4"           merges of characters by rank
                          "bert"             repeatedly the longest prefix of a word that is a token (WordPiece)
                          "t5"               the most likely segmentation (unigram)

Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, "Tokenizer".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ingot.language.settings import Settings
from ingot.language.text.pretokenizers import PRE_TOKENIZERS, PreTokenizer
from ingot.support.errors import ImportModelError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SOURCE = "GGUF metadata"
KEY = "tokenizer.ggml."
_NORMAL, _CONTROL, _USER_DEFINED, _BYTE = 1, 3, 4, 6
_SPACE = "▁"  # stands for a space
_MAX_WORD_CHARS = 100  # characters of a word for WordPiece
_SURROGATE = re.compile("[\ud800-\udfff]")  # stands for a byte that is not UTF-8
_MAX_PIECE_CHARS = 128  # characters of a token that merges create
MODELS = ("llama", "gpt2", "gemma4", "bert", "t5")


def has_vocabulary(metadata: Mapping[str, Any]) -> bool:
    return metadata.get(f"{KEY}model", "no_vocab") not in ("none", "no_vocab")


def backend_of(metadata: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer. Raises ImportModelError for a malformed or unsupported vocabulary."""
    s = Settings(metadata, SOURCE, KEY)
    model = s.text("model", default="no_vocab")
    if model not in MODELS:
        raise s.error("model", f"one of {', '.join(MODELS)}", model)
    tokens = texts(s, "tokens")
    kinds = _kinds(s, len(tokens))
    from tokenizers import AddedToken

    if model == "bert":
        tokens = [_word_piece(token, kind) for token, kind in zip(tokens, kinds, strict=True)]
    build = {"llama": _sentence_piece, "gpt2": _byte_level, "gemma4": _characters, "bert": _wordpiece, "t5": _unigram}
    backend = build[model](s, tokens, kinds)
    added = [
        AddedToken(token, special=kind == _CONTROL, normalized=False)
        for token, kind in zip(tokens, kinds, strict=True)
        if kind in (_CONTROL, _USER_DEFINED) and token
    ]
    backend.add_tokens(added)
    _frame(s, backend, tokens, model)
    return backend


def texts(s: Settings, key: str) -> list[str]:
    value = s.get(key)
    if not isinstance(value, tuple) or not all(isinstance(text, str) for text in value):
        raise s.error(key, "a list of texts", None if value is None else type(value).__name__)
    for i, text in enumerate(value):
        if not text.isascii() and _SURROGATE.search(text):
            raise s.error(f"{key}[{i}]", "UTF-8", text)
    return list(value)


def token_id(s: Settings, what: str, count: int) -> int | None:
    """The id of the token for "bos", "eos" and so on; None if there is none."""
    key = {"unk": "unknown", "pad": "padding", "sep": "seperator"}.get(what, what) + "_token_id"
    if s.get(key) is None:
        return None
    index = s.count(key, least=0)
    if index >= count:
        raise s.error(key, f"an id below the {count} tokens", index)
    return index


def _kinds(s: Settings, count: int) -> list[int]:
    kinds = s.get("token_type")
    if kinds is None:
        return [_NORMAL] * count
    if not isinstance(kinds, np.ndarray) or len(kinds) != count:
        raise s.error("token_type", f"a number for each of {count} tokens", type(kinds).__name__)
    return kinds.tolist()


def _by_text(tokens: Sequence[str]) -> dict[str, int]:
    """The ids by text; of several tokens with the same text the first counts."""
    return {token: i for i, token in zip(range(len(tokens) - 1, -1, -1), reversed(tokens), strict=True)}


# --- the models


def _sentence_piece(s: Settings, tokens: list[str], kinds: Sequence[int]) -> Tokenizer:
    from tokenizers import Tokenizer, models

    scores = s.get("scores")
    if not isinstance(scores, np.ndarray) or len(scores) != len(tokens) or scores.dtype.kind != "f":
        raise s.error("scores", f"a number for each of {len(tokens)} tokens", type(scores).__name__)
    vocabulary = _by_text(tokens)
    merges = [*_merges(tokens, kinds, scores, vocabulary)]
    unknown = token_id(s, "unk", len(tokens))
    has_bytes = _BYTE in kinds
    model = models.BPE(
        vocabulary,
        merges,
        byte_fallback=has_bytes,
        fuse_unk=True,
        unk_token=None if unknown is None else tokens[unknown],
    )
    backend = Tokenizer(model)
    _escape_spaces(backend, s.flag("add_space_prefix", True))
    return backend


def _merges(
    tokens: list[str], kinds: Sequence[int], scores: np.ndarray, vocabulary: dict[str, int]
) -> Iterator[tuple[str, str]]:
    """The pairs of tokens whose concatenation is a token, by decreasing score of that."""
    for i in np.argsort(-scores, kind="stable").tolist():
        token = tokens[i]
        if kinds[i] in (_CONTROL, _BYTE) or not 2 <= len(token) <= _MAX_PIECE_CHARS:
            continue
        cuts = range(1, len(token))
        splits = [(a, b) for i in cuts if (a := token[:i]) in vocabulary and (b := token[i:]) in vocabulary]
        if len(splits) > 1:
            splits.sort(key=lambda pair: (vocabulary[pair[0]], vocabulary[pair[1]]))
        yield from splits


def _characters(s: Settings, tokens: Sequence[str], kinds: Sequence[int]) -> Tokenizer:
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    unknown = token_id(s, "unk", len(tokens))
    model = models.BPE(
        _by_text(tokens),
        _ranked(s),
        byte_fallback=True,
        fuse_unk=True,
        unk_token=None if unknown is None else tokens[unknown],
    )
    backend = Tokenizer(model)
    _escape_spaces(backend, s.flag("add_space_prefix"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex("\n+"), "isolated")
    return backend


def _byte_level(s: Settings, tokens: Sequence[str], kinds: Sequence[int]) -> Tokenizer:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    pre = _pre_tokenizer(s)
    # user-defined tokens are matched before a text is split into words
    backend = Tokenizer(models.BPE(_by_text(tokens), _ranked(s), ignore_merges=pre.ignores_merges))
    cuts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in pre.patterns]
    backend.pre_tokenizer = pre_tokenizers.Sequence([*cuts, pre_tokenizers.ByteLevel(False, use_regex=False)])
    backend.decoder = decoders.ByteLevel()
    return backend


def _pre_tokenizer(s: Settings) -> PreTokenizer:
    name = s.text("pre", default="default")
    if name not in PRE_TOKENIZERS:
        raise s.error("pre", f"one of {', '.join(PRE_TOKENIZERS)}", name)
    return PRE_TOKENIZERS[name]


def _ranked(s: Settings) -> list[tuple[str, str]]:
    """Pairs of tokens in the order in which they are merged."""
    merges: list[tuple[str, str]] = []
    for text in texts(s, "merges"):
        first, space, second = text.partition(" ")
        if not space or not first or not second:  # a token may begin with a space, as no byte-level one does
            raise s.error("merges", "pairs of tokens", text)
        merges.append((first, second))
    return merges


def _wordpiece(s: Settings, tokens: Sequence[str], kinds: Sequence[int]) -> Tokenizer:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    unknown = token_id(s, "unk", len(tokens))
    if unknown is None:
        raise s.error("unknown_token_id", "an id", None)
    backend = Tokenizer(
        models.WordPiece(_by_text(tokens), unk_token=tokens[unknown], max_input_chars_per_word=_MAX_WORD_CHARS)
    )
    backend.normalizer = normalizers.BertNormalizer(lowercase=s.flag("normalizer.lowercase", True))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    return backend


def _word_piece(token: str, kind: int) -> str:
    """The WordPiece form of a token: files mark the beginning of a word, WordPiece its continuation."""
    if kind != _NORMAL:
        return token
    return token.removeprefix(_SPACE) if token.startswith(_SPACE) else f"##{token}"


def _unigram(s: Settings, tokens: Sequence[str], kinds: Sequence[int]) -> Tokenizer:
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    scores = s.get("scores")
    if not isinstance(scores, np.ndarray) or len(scores) != len(tokens) or scores.dtype.kind != "f":
        raise s.error("scores", f"a number for each of {len(tokens)} tokens", type(scores).__name__)
    unknown = token_id(s, "unk", len(tokens))
    if unknown is None:
        raise s.error("unknown_token_id", "an id", None)
    backend = Tokenizer(models.Unigram([*zip(tokens, scores.tolist(), strict=True)], unknown, _BYTE in kinds))
    steps: list[Any] = []
    if (table := s.get("precompiled_charsmap")) is not None:
        if not isinstance(table, np.ndarray) or table.dtype.itemsize != 1:
            raise s.error("precompiled_charsmap", "bytes", type(table).__name__)
        steps.append(normalizers.Precompiled(table.tobytes()))
    if s.flag("remove_extra_whitespaces"):
        steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    backend.normalizer = normalizers.Sequence(steps)
    scheme = "always" if s.flag("add_space_prefix", True) else "never"
    backend.pre_tokenizer = pre_tokenizers.Metaspace(_SPACE, scheme, split=True)
    backend.decoder = decoders.Metaspace(_SPACE, scheme)
    return backend


def _escape_spaces(backend: Tokenizer, has_prefix: bool) -> None:
    from tokenizers import decoders, normalizers

    prefix = [normalizers.Prepend(_SPACE)] if has_prefix else []
    backend.normalizer = normalizers.Sequence([*prefix, normalizers.Replace(" ", _SPACE)])
    strip = [decoders.Strip(" ", 1, 0)] if has_prefix else []
    backend.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )


# --- the tokens that begin and end a sequence


def _frame(s: Settings, backend: Tokenizer, tokens: Sequence[str], model: str) -> None:
    from tokenizers import processors

    first_name = {"bert": "cls", "t5": "bos"}.get(model, "bos")
    last_name = "sep" if model == "bert" else "eos"
    first = token_id(s, first_name, len(tokens))
    if first is None and first_name == "cls":  # older files name it so
        first = token_id(s, "bos", len(tokens))
    last = token_id(s, last_name, len(tokens))
    default = model in ("llama", "gemma4", "bert", "t5") or (model == "gpt2" and _pre_tokenizer(s).adds_begin_token)
    has_first = first is not None and s.flag("add_bos_token", default)
    has_last = last is not None and s.flag("add_eos_token", model in ("bert", "t5"))
    frame = [first if has_first else None, last if has_last else None]
    special_tokens = [(tokens[i], i) for i in frame if i is not None]
    if special_tokens:
        parts = [tokens[first]] if has_first and first is not None else []
        parts += ["$A"]
        parts += [tokens[last]] if has_last and last is not None else []
        backend.post_processor = processors.TemplateProcessing(single=parts, special_tokens=special_tokens)


def refusal_of_library(error: Exception) -> ImportModelError:
    return ImportModelError(f"the vocabulary is not usable: {error}", where=SOURCE)
