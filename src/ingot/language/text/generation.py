"""A text that follows another: native calls of as many tokens as nothing looks at between them.

A schema and logprobs look at each token. Stop strings do not: what was generated behind one is forgotten.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field

import numpy as np

from ingot.language.session import Sampling, Session
from ingot.language.text.grammar import Constraint
from ingot.language.text.tokenizer import Tokenizer
from ingot.support.dataclass import dataclass
from ingot.support.errors import InputError

_BURST_SECONDS = 0.05  # of a native call whose tokens somebody watches
TOP = 100  # the most alternatives of a token


@dataclass(frozen=True)
class Token:
    """logprob: the logarithm of its probability, by the model itself; None where nobody asked. top: the most likely
    tokens in its place, each with its own."""

    id: int
    text: str = ""
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Piece:
    """text: what is certain of the text since the piece before. finish: "stop" or "length" in the last one, else ""."""

    tokens: tuple[Token, ...]
    text: str
    finish: str = ""


@dataclass(frozen=True)
class Generation:
    """What was generated. finish: "stop" by a stop token, a stop string or the end of a grammar, or "length"."""

    tokens: tuple[Token, ...]
    text: str
    finish: str
    prompt_tokens: int

    @property
    def ids(self) -> list[int]:
        return [token.id for token in self.tokens]


@dataclass(frozen=True)
class Request:
    """most: tokens. ends: ids that end the answer and are no part of it. stop: texts that do. bias: added to the logits
    of tokens. logprobs: how many alternatives of each token are asked for; None: not even its own logprob."""

    most: int
    sampling: Sampling = field(default=Sampling())
    ends: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    bias: Mapping[int, float] = field(default_factory=dict[int, float])
    logprobs: int | None = None
    constraint: Constraint | None = None
    is_watched: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.most, bool) or not isinstance(self.most, int) or self.most < 0:
            raise InputError("max_tokens", expected="an integer from 0", got=repr(self.most))
        if self.logprobs is not None and (
            isinstance(self.logprobs, bool) or not isinstance(self.logprobs, int) or not 0 <= self.logprobs <= TOP
        ):
            raise InputError("logprobs", expected=f"0 to {TOP} alternatives", got=repr(self.logprobs))
        if not all(isinstance(text, str) and text for text in self.stop):
            raise InputError("stop", expected="a text or several, none of them empty", got=repr(self.stop))


def generate(session: Session, tokenizer: Tokenizer | None, prompt: Sequence[int], request: Request) -> Iterator[Piece]:
    """Pieces, of which the last one alone has a `finish`. tokenizer: None for ids alone."""
    prompt = list(prompt)
    ids, left = list(prompt), min(request.most, session.context - len(prompt) + 1)
    bias = _bias(request.bias, session.vocabulary)
    stream = None if tokenizer is None else tokenizer.stream(ids)
    search = StopSearch(request.stop)
    is_free = request.constraint is None and request.logprobs is None
    count = session.most if is_free and not request.is_watched else 1
    constraint = request.constraint
    finish = ""
    while left > 0 and not finish:
        mask = bias if constraint is None else constraint.bias() + (0 if bias is None else bias)
        start = time.monotonic()
        new, logits = session.step(ids, len(prompt), min(count, left), request.sampling, request.ends, mask)
        if request.is_watched and is_free and ids != prompt:  # the first step reads the prompt, too
            pace = (time.monotonic() - start) / len(new)
            count = min(max(int(_BURST_SECONDS / pace), 1), session.most)
        tokens: list[Token] = []
        texts: list[str] = []
        for i in new:
            if i in request.ends:
                finish = "stop"
                break
            tokens.append(_token(i, logits, tokenizer, request.logprobs))
            ids.append(i)
            if stream is not None:
                text, is_found = search.push(stream.push([i]))
                texts.append(text)
                if is_found:
                    finish = "stop"
                    break
            if constraint is not None:
                constraint.accept(i)
                if constraint.is_done:
                    finish = "stop"
                    break
        left -= len(tokens)
        if not finish and left <= 0:
            finish = "length"
        if finish and stream is not None and not search.is_found:
            text, is_found = search.push(stream.finish())
            texts += [text, "" if is_found else search.finish()]
            finish = "stop" if is_found else finish
        yield Piece(tuple(tokens), "".join(texts), finish)
    if not finish:  # nothing was asked for
        yield Piece((), "", "length")


class StopSearch:
    """Looks for stop strings in a text that comes in parts: what may be the beginning of one is kept back."""

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop, self._kept, self.is_found = tuple(stop), "", False

    def push(self, text: str) -> tuple[str, bool]:
        """(what is certain and no part of a stop string, whether one was found)."""
        self._kept += text
        places = [place for stop in self._stop if (place := self._kept.find(stop)) >= 0]
        if places:
            self.is_found = True
            return self._take(min(places)), True
        held = max((overlap(self._kept, stop) for stop in self._stop), default=0)
        return self._take(len(self._kept) - held), False

    def finish(self) -> str:
        return self._take(len(self._kept))

    def _take(self, count: int) -> str:
        text, self._kept = self._kept[:count], self._kept[count:]
        return text


def overlap(text: str, stop: str) -> int:
    """Characters at the end of a text that begin a stop string."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)


def _bias(bias: Mapping[int, float], vocabulary: int) -> np.ndarray | None:
    if not bias:
        return None
    values = np.zeros(vocabulary, np.float32)
    for index, value in bias.items():
        i = int(index)
        if not 0 <= i < vocabulary or not isinstance(value, int | float) or value != value:
            expected = f"numbers by token ids from 0 to {vocabulary - 1}"
            raise InputError("logit_bias", expected=expected, got=f"{index!r}: {value!r}")
        values[i] = value
    return values


def _token(i: int, logits: np.ndarray, tokenizer: Tokenizer | None, alternatives: int | None) -> Token:
    if alternatives is None:
        return Token(i)
    logprobs = log_softmax(logits)
    best = np.argsort(-logprobs, kind="stable")[:alternatives].tolist() if alternatives else []
    text = "" if tokenizer is None else tokenizer.token(i)
    return Token(i, text, float(logprobs[i]), tuple((j, float(logprobs[j])) for j in best))


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """f64 of f32[vocabulary]."""
    x = logits.astype(np.float64)
    x -= x.max()
    return x - np.log(np.exp(x).sum())
