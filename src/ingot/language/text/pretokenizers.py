"""The regular expressions by which byte-level BPE vocabularies split a text into words, by `tokenizer.ggml.pre`.

The expressions are those of each family's tokenizer.json; a GGUF converter determines the name from the tokens of a
sample text.
"""

from __future__ import annotations

from collections.abc import Mapping

from ingot.support.dataclass import dataclass

_ENDINGS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"


def _words(digits: str, letters: str = r"\p{L}", endings: str = _ENDINGS + "|") -> str:
    """As in OpenAI's cl100k. letters: a character class of the letters of words."""
    return rf"{endings}[^\r\n\p{{L}}\p{{N}}]?[{letters}]+|{digits}| ?[^\s{letters}\p{{N}}]+[\r\n]*|{_SPACES}"


def _cased(endings: str, digits: str) -> str:
    """As in OpenAI's o200k: a change of case begins a new word."""
    upper, lower = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
    first = r"[^\r\n\p{L}\p{N}]?"
    words = rf"{first}[{upper}]*[{lower}]+{endings}|{first}[{upper}]+[{lower}]*{endings}"
    return rf"{words}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"


_EAST_ASIAN = r"[\x{4e00}-\x{9fa5}\x{800}-\x{4e00}\x{ac00}-\x{d7ff}]+"
_CHINESE_JAPANESE = r"[\x{4e00}-\x{9fa5}\x{3040}-\x{309f}\x{30a0}-\x{30ff}]+"
_SIGNS = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"""
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    _CHINESE_JAPANESE,
    rf"{_SIGNS}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}",
)
# letters with case, as the family's tokenizer.json lists them
_CASED_LETTERS = (
    r"A-Za-z\x{b5}\x{c0}-\x{d6}\x{d8}-\x{f6}\x{f8}-\x{1ba}\x{1bc}-\x{1bf}\x{1c4}-\x{293}\x{295}-\x{2af}"
    r"\x{370}-\x{373}\x{376}\x{377}\x{37b}-\x{37d}\x{37f}\x{386}\x{388}-\x{38a}\x{38c}\x{38e}-\x{3a1}"
    r"\x{3a3}-\x{3f5}\x{3f7}-\x{481}\x{48a}-\x{52f}\x{531}-\x{556}\x{10a0}-\x{10c5}\x{13a0}-\x{13f5}"
    r"\x{13f8}-\x{13fd}\x{1c90}-\x{1cba}\x{1cbd}-\x{1cbf}\x{1d00}-\x{1d2b}\x{1d6b}-\x{1d77}\x{1d79}-\x{1d9a}"
    r"\x{1e00}-\x{1f15}\x{1f18}-\x{1f1d}\x{1f20}-\x{1f45}\x{1f48}-\x{1f4d}\x{1f50}-\x{1f57}\x{1f59}\x{1f5b}"
    r"\x{1f5d}\x{1f5f}-\x{1f7d}\x{1f80}-\x{1fb4}\x{1fb6}-\x{1fbc}\x{1fbe}\x{1fc2}-\x{1fc4}\x{1fc6}-\x{1fcc}"
    r"\x{1fd0}-\x{1fd3}\x{1fd6}-\x{1fdb}\x{1fe0}-\x{1fec}\x{1ff2}-\x{1ff4}\x{1ff6}-\x{1ffc}\x{2102}\x{2107}"
    r"\x{210a}-\x{2113}\x{2115}\x{2119}-\x{211d}\x{2124}\x{2126}\x{2128}\x{212a}-\x{212d}\x{212f}-\x{2134}\x{2139}"
    r"\x{213c}-\x{213f}\x{2145}-\x{2149}\x{214e}\x{2183}\x{2184}\x{2c00}-\x{2c7b}\x{2c7e}-\x{2ce4}"
    r"\x{2ceb}-\x{2cee}\x{2cf2}\x{2cf3}\x{a640}-\x{a66d}\x{a680}-\x{a69b}\x{a722}-\x{a76f}\x{a771}-\x{a787}"
    r"\x{a78b}-\x{a78e}\x{ab70}-\x{abbf}\x{fb00}-\x{fb06}\x{fb13}-\x{fb17}\x{ff21}-\x{ff3a}\x{ff41}-\x{ff5a}"
    r"\x{10400}-\x{1044f}\x{104b0}-\x{104d3}\x{104d8}-\x{104fb}\x{10c80}-\x{10cb2}\x{10cc0}-\x{10cf2}"
    r"\x{118a0}-\x{118df}\x{1e900}-\x{1e943}"
)


@dataclass(frozen=True)
class PreTokenizer:
    """patterns: each further splits the words of those before it, into its matches and the text between them.
    ignores_merges: a word that is a token is not built by merges. adds_begin_token: whether a sequence begins with the
    token for that, unless the file specifies it."""

    patterns: tuple[str, ...]
    ignores_merges: bool = False
    adds_begin_token: bool = False


_LLAMA3 = PreTokenizer((_words(r"\p{N}{1,3}"),), ignores_merges=True, adds_begin_token=True)
_QWEN2 = PreTokenizer((_words(r"\p{N}"),))
_DIGITS = PreTokenizer((r"\p{N}", _GPT2))
_PLAIN = PreTokenizer((_GPT2,))
_GPT4O = PreTokenizer((_cased(_ENDINGS + "?", r"\p{N}{1,3}"),))
_DEEPSEEK = PreTokenizer(_DEEPSEEK3)

PRE_TOKENIZERS: Mapping[str, PreTokenizer] = {
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "exaone4", "modern-bert", "mellum"), _PLAIN),
    **dict.fromkeys(("gigachat", "a.x-4.0", "granite-docling", "jina-es", "jina-de", "roberta-bpe"), _PLAIN),
    **dict.fromkeys(("starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b"), _DIGITS),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "lfm2"), _LLAMA3),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez", "stablelm2", "hunyuan", "grok-2", "solar-open"), _QWEN2),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "joyai-llm"), _DEEPSEEK),
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe"), PreTokenizer(_LLAMA3.patterns)),
    **dict.fromkeys(("glm4", "glm5"), PreTokenizer(_LLAMA3.patterns, ignores_merges=True)),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "minimax-m2"), _GPT4O),
    "qwen35": PreTokenizer((_words(r"\p{N}", r"\p{L}\p{M}"),)),
    "tekken": PreTokenizer((_cased("", r"\p{N}"),), ignores_merges=True, adds_begin_token=True),
    "seed-coder": PreTokenizer((
        rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}",
    )),
    "deepseek-llm": PreTokenizer((
        "[\r\n]", rf"\s?[{_CASED_LETTERS}]+",
        r"\s?[!-/:-~\x{ff01}-\x{ff0f}\x{ff1a}-\x{ff5e}\x{2018}-\x{201f}\x{3000}-\x{3002}]+",
        r"\s+$", _EAST_ASIAN, r"\p{N}+",
    )),
    "deepseek-coder": PreTokenizer(("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _EAST_ASIAN, r"\p{N}")),
    "falcon": PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")),
    "default": PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
}  # fmt: skip
