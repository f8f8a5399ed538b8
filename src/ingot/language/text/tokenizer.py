"""Text to tokens and back.

tokenizer = Tokenizer.from_metadata(file.metadata)
ids = tokenizer.encode("The capital of France is")
stream = tokenizer.stream(ids);  stream.push(more)  ->  the new text, as far as it is final
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Any

from ingot.language.settings import Settings
from ingot.language.text import vocabulary
from ingot.support.errors import ImportModelError, InputError

if TYPE_CHECKING:
    import tokenizers

_EXTRA = "pip install 'ingot-compiler[language]'"
_INCOMPLETE = "\ufffd"  # replaces bytes that are not, or not yet, a character
_MAX_INCOMPLETE = 16  # of them at the end of a text that may become characters; more have been wrong from the start
_LONG_CHARACTERS = 1 << 13  # from here on texts are encoded as batches of one, during which other threads may run
_CONTEXT = 16  # tokens at the end of a prompt that may affect the text of the next one
# tokens that end an answer, besides the end of a sequence: a file has some of them and names at most one
_END_TOKENS = (
    "<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<end_of_turn>", "<turn|>",
    "<|endoftext|>", "<|end_of_text|>", "<|END_OF_TURN_TOKEN|>", "<|end_of_turn|>", "<end_of_utterance>", "<|eot|>",
    "<｜end▁of▁sentence｜>", "<|tool_response>", "<|end_of_msg|>",
)  # fmt: skip
_SURROGATE = re.compile("[\ud800-\udfff]")
_BYTE = re.compile("<0x[0-9A-F]{2}>")  # the name of a byte in vocabularies of SentencePiece
_NAMES = ("bos", "eos", "unk", "pad", "sep", "cls", "mask")


class Tokenizer:
    """special: the texts of special tokens as chat templates name them, "bos_token" and so on. ends: the ids that end
    an answer."""

    def __init__(self, backend: tokenizers.Tokenizer, special: Mapping[str, str], ends: Sequence[int] = ()) -> None:
        self.backend, self.special = backend, special
        ids = (backend.token_to_id(text) for text in (special.get("eos_token", ""), *_END_TOKENS))
        self.end_ids = tuple(dict.fromkeys((*ends, *(i for i in ids if i is not None))))

    @staticmethod
    def from_metadata(metadata: Mapping[str, Any]) -> Tokenizer:
        """The tokenizer of a GGUF file. Raises ImportModelError for a malformed or unsupported vocabulary."""
        check_library()
        try:
            backend = vocabulary.backend_of(metadata)
        except Exception as error:  # the library raises plain exceptions
            if isinstance(error, ImportModelError):
                raise
            raise vocabulary.refusal_of_library(error) from error
        s = Settings(metadata, vocabulary.SOURCE, vocabulary.KEY)
        tokens = vocabulary.texts(s, "tokens")
        ids = {name: vocabulary.token_id(s, name, len(tokens)) for name in (*_NAMES, "eot", "eom")}
        special = {f"{name}_token": tokens[i] for name in _NAMES if (i := ids[name]) is not None}
        return Tokenizer(backend, special, [i for name in ("eos", "eot", "eom") if (i := ids[name]) is not None])

    @staticmethod
    def from_json(text: str, special: Mapping[str, str], ends: Sequence[int] = ()) -> Tokenizer:
        """The tokenizer of a tokenizer.json, given its content. Raises ImportModelError."""
        library = check_library()
        try:
            backend = library.Tokenizer.from_str(text)
        except Exception as error:  # the library raises plain exceptions
            raise ImportModelError(f"tokenizer.json is not readable: {error}") from error
        backend.no_truncation()
        backend.no_padding()
        return Tokenizer(backend, special, ends)

    def to_json(self) -> str:
        return self.backend.to_str()

    @property
    def count(self) -> int:
        """The number of ids."""
        return self.backend.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str, *, framed: bool = True) -> list[int]:
        """The ids of a text, which may contain special tokens. framed: with the tokens that begin and end a sequence of
        the model; chat templates write these themselves."""
        if not isinstance(text, str):
            raise InputError("text", expected="a str", got=type(text).__name__)
        if _SURROGATE.search(text):
            raise InputError("text", expected="Unicode characters", got="a lone surrogate")
        try:
            if len(text) > _LONG_CHARACTERS:
                return self.backend.encode_batch_fast([text], add_special_tokens=framed)[0].ids
            return self.backend.encode(text, add_special_tokens=framed).ids
        except Exception as error:  # the library raises plain exceptions
            raise InputError(f"the tokenizer does not take the text: {error}") from error

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """The text of ids. special: whether to include special tokens."""
        return self.backend.decode([int(i) for i in ids], skip_special_tokens=not special)

    def has_text(self, index: int) -> bool:
        """Whether a token has a text, by itself or with others: it is neither special nor unknown."""
        return index not in self._special_ids and self.backend.id_to_token(int(index)) is not None

    @cached_property
    def _special_ids(self) -> frozenset[int]:
        return frozenset(i for i, token in self.backend.get_added_tokens_decoder().items() if token.special)

    def token(self, index: int) -> str:
        """A token's text, by itself."""
        return self.backend.decode([int(index)], skip_special_tokens=False)

    def token_bytes(self, index: int) -> bytes:
        """A token's bytes, which need not be whole characters."""
        text = self.token(index)
        if _INCOMPLETE not in text:
            return text.encode()
        name = self.backend.id_to_token(int(index)) or ""
        if _BYTE.fullmatch(name):
            return bytes([int(name[3:5], 16)])
        table = _bytes_by_character()
        return bytes(table[c] for c in name) if all(c in table for c in name) else text.encode()

    def stream(self, prompt: Sequence[int] = (), *, special: bool = False) -> TextStream:
        return TextStream(self, prompt, special=special)


class TextStream:
    """The text after a prompt, as tokens come: each push returns the new complete characters."""

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int] = (), *, special: bool = False) -> None:
        self._decode = partial(tokenizer.decode, special=special)
        self._has_text = tokenizer.has_text if not special else lambda index: True
        # tokens whose text is decoded together, as it depends on those before: the first `_end` of them, and the first
        # `_returned` characters of the text, were returned
        self._ids = [*filter(self._has_text, prompt[-_CONTEXT:])]
        self._end, self._returned = len(self._ids), len(self._decode(self._ids).rstrip(_INCOMPLETE))

    def push(self, ids: Sequence[int]) -> str:
        return "".join(map(self._push, filter(self._has_text, ids)))

    def _push(self, index: int) -> str:
        self._ids.append(index)
        text = self._decode(self._ids)
        incomplete_count = len(text) - len(text.rstrip(_INCOMPLETE))
        if len(text) <= self._returned or 0 < incomplete_count <= _MAX_INCOMPLETE:
            return ""
        return self._take(text)

    def finish(self) -> str:
        """The remaining text, complete or not."""
        return self._take(self._decode(self._ids))

    def _take(self, text: str) -> str:
        new = text[self._returned :]
        self._ids = self._ids[self._end :]
        self._end, self._returned = len(self._ids), len(self._decode(self._ids))
        return new


@cache
def _bytes_by_character() -> dict[str, int]:
    """The bytes of the characters in byte-level vocabularies: printable bytes are themselves, all others are characters
    from 256 on, as in GPT-2."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    return {chr(b): b for b in plain} | {chr(256 + i): b for i, b in enumerate(others)}


def special_of(config: Mapping[str, Any]) -> dict[str, str]:
    """The special tokens of a tokenizer_config.json, by their names in templates."""
    special: dict[str, str] = {}
    for name in _NAMES:
        value = config.get(f"{name}_token")
        text = value.get("content") if isinstance(value, Mapping) else value
        if isinstance(text, str):
            special[f"{name}_token"] = text
    return special


def ends_of(*configs: Mapping[str, Any]) -> list[int]:
    """`eos_token_id` of the first that has it of generation_config.json, config.json, ..."""
    for config in configs:
        value = config.get("eos_token_id")
        values: list[Any] = value if isinstance(value, list) else [value]
        ids = [i for i in values if isinstance(i, int) and i >= 0]
        if ids and len(ids) == len(values):
            return ids
    return []


def check_library() -> Any:
    """The library `tokenizers`. Raises ImportModelError if it is missing."""
    try:
        import tokenizers
    except ImportError as error:
        raise ImportModelError("text needs the package tokenizers", fix=_EXTRA) from error
    return tokenizers
