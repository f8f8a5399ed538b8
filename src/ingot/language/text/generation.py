"""Text generation: native calls of several tokens each, unless something has to inspect every token.

A schema and logprobs inspect each token. Stop strings do not: tokens that were generated after one are discarded.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any, Literal

import numpy as np

from ingot.language.session import Sampling, Session
from ingot.language.text.grammar import Constraint
from ingot.language.text.tokenizer import Tokenizer
from ingot.support.dataclass import dataclass
from ingot.support.errors import IngotError, InputError

_BURST_SECONDS = 0.05  # of a native call whose tokens are streamed
TOP = 100  # the maximum number of alternatives of a token


@dataclass(frozen=True)
class Token:
    """logprob: the logarithm of its probability, by the model itself; None if not requested. top: the most likely
    tokens in its place, with their logprobs."""

    id: int
    text: str = ""
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class AnswerPart:
    """text: the text since the previous piece, as far as it is final. finish: "stop" or "length" in the last piece,
    else ""."""

    tokens: tuple[Token, ...]
    text: str
    finish: str = ""


@dataclass(frozen=True)
class Generation:
    """A complete answer. finish: "stop" by a stop token, a stop string or the end of a grammar, or "length"."""

    tokens: tuple[Token, ...]
    text: str
    finish: str
    prompt_tokens: int

    @property
    def ids(self) -> list[int]:
        return [token.id for token in self.tokens]


Kind = Literal["text", "ids", "pieces"]  # the form of an answer; "pieces": with all details


def joined_answer(pieces: Iterable[AnswerPart], kind: Kind, prompt: int) -> Any:
    """A text, a list of ids or a `Generation`. prompt: the number of its tokens."""
    all_pieces = [*pieces]
    tokens = tuple(token for piece in all_pieces for token in piece.tokens)
    result = Generation(tokens, "".join(piece.text for piece in all_pieces), all_pieces[-1].finish, prompt)
    return {"text": result.text, "ids": result.ids, "pieces": result}[kind]


def parts(pieces: Iterator[AnswerPart], kind: Kind) -> Iterator[Any]:
    """Texts, ids or pieces as they come."""
    match kind:
        case "pieces":
            return pieces
        case "text":
            return (piece.text for piece in pieces if piece.text)
        case "ids":
            return (token.id for piece in pieces for token in piece.tokens)


@dataclass(frozen=True)
class Request:
    """max_tokens: of the answer. end_ids: ids that end the answer and are not part of it. stop: texts that do. bias:
    added to the logits of tokens. logprobs: the number of alternatives of each token to report; None: not even the
    token's own logprob. is_watched: whether tokens are streamed."""

    max_tokens: int
    sampling: Sampling = field(default=Sampling())
    end_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    bias: Mapping[int, float] = field(default_factory=dict[int, float])
    logprobs: int | None = None
    constraint: Constraint | None = None
    is_watched: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.max_tokens, bool) or not isinstance(self.max_tokens, int) or self.max_tokens < 0:
            raise InputError("max_tokens", expected="an integer from 0", got=repr(self.max_tokens))
        if self.logprobs is not None and (
            isinstance(self.logprobs, bool) or not isinstance(self.logprobs, int) or not 0 <= self.logprobs <= TOP
        ):
            raise InputError("logprobs", expected=f"0 to {TOP} alternatives", got=repr(self.logprobs))
        if not all(isinstance(text, str) and text for text in self.stop):
            raise InputError("stop", expected="a text or several, none of them empty", got=repr(self.stop))


class Transcript:
    """An answer so far. ids: with those of the prompt. left: the number of tokens that may still come. finish: as in
    `AnswerPart`."""

    def __init__(
        self, tokenizer: Tokenizer | None, prompt: Sequence[int], request: Request, context: int, vocabulary: int
    ) -> None:
        """tokenizer: None for ids only. context: the maximum number of tokens of a sequence. Raises InputError for a
        bias of tokens that do not exist, and for stop texts without a tokenizer."""
        if tokenizer is None and request.stop:
            raise InputError("stop", expected="a model with a tokenizer", got="ids alone")
        self.request, self.prompt, self.ids = request, len(prompt), list(prompt)
        self.left, self.finish = min(request.max_tokens, context - len(prompt) + 1), ""
        self._tokenizer, self._bias = tokenizer, _bias(request.bias, vocabulary)
        self._stream = None if tokenizer is None else tokenizer.stream(self.ids)
        self._search = StopSearch(request.stop)

    def bias(self) -> np.ndarray | None:
        """f32[vocabulary], added to the logits of the next token."""
        return self.biases(())[0]

    def biases(self, proposed: Sequence[int]) -> list[np.ndarray | None]:
        """As `bias`, for the next token and after each of the proposed ones, up to one that a grammar does not allow or
        that completes it."""
        constraint = self.request.constraint
        if constraint is None:
            return [self._bias] * (len(proposed) + 1)
        return [bias + (0 if self._bias is None else self._bias) for bias in constraint.biases(proposed)]

    def push(self, new: Sequence[int], logits: Sequence[np.ndarray] = ()) -> AnswerPart:
        """Add the next tokens, up to the end of the answer. logits: f32[vocabulary] for each, and maybe for rejected
        ones behind them; required if logprobs are requested. Raises IngotError if a token's are NaN or infinite."""
        request, tokens, texts = self.request, list[Token](), list[str]()
        for n, i in enumerate(new):
            if n < len(logits):
                self._check(logits[n])
            if i in request.end_ids:
                self.finish = "stop"
                break
            wants_logprobs = request.logprobs is not None
            tokens.append(_token(i, logits[n], self._tokenizer, request.logprobs) if wants_logprobs else Token(i))
            self.ids.append(i)
            self.left -= 1
            if self._stream is not None:
                text, is_found = self._search.push(self._stream.push([i]))
                texts.append(text)
                self.finish = "stop" if is_found else ""
            if request.constraint is not None and not self.finish:
                request.constraint.accept(i)
                self.finish = "stop" if request.constraint.is_done else ""
            if not self.finish and self.left <= 0:
                self.finish = "length"
            if self.finish:
                break
        return self._piece(tokens, texts)

    def _check(self, logits: np.ndarray) -> None:
        if not np.isfinite(logits.max()):
            fix = 'check its weights; if they are fine, precision="float32" and cache="float32" avoid overflows'
            what = f"the model's logits after {len(self.ids)} tokens"
            raise IngotError(what, expected="finite numbers", got="NaN or infinite ones", fix=fix)

    def end(self, finish: str) -> AnswerPart:
        """The last piece of an answer that ends here."""
        self.finish = finish
        return self._piece([], [])

    def _piece(self, tokens: Sequence[Token], texts: list[str]) -> AnswerPart:
        if self.finish and self._stream is not None and not self._search.is_found:
            text, is_found = self._search.push(self._stream.finish())
            texts += [text, "" if is_found else self._search.finish()]
            self.finish = "stop" if is_found else self.finish
        return AnswerPart(tuple(tokens), "".join(texts), self.finish)


def generate(
    session: Session, tokenizer: Tokenizer | None, prompt: Sequence[int], request: Request
) -> Iterator[AnswerPart]:
    """The parts of an answer, of which only the last one has a `finish`. tokenizer: None for ids only."""
    answer = Transcript(tokenizer, prompt, request, session.context, session.vocabulary)
    if answer.left <= 0:
        yield answer.end("length")
        return
    is_free = request.constraint is None and request.logprobs is None
    count = session.max_step_tokens if is_free and not request.is_watched else 1
    while not answer.finish:
        start, is_first = time.monotonic(), len(answer.ids) == answer.prompt
        max_tokens = min(count, answer.left)
        new, logits = session.step(
            answer.ids, answer.prompt, max_tokens, request.sampling, request.end_ids, answer.bias()
        )
        if request.is_watched and is_free and not is_first:  # the first step reads the prompt, too
            pace = (time.monotonic() - start) / len(new)
            count = min(max(int(_BURST_SECONDS / pace), 1), session.max_step_tokens)
        yield answer.push(new, [logits] * (1 if request.logprobs is None else len(new)))


class StopSearch:
    """Searches for stop strings in a text that comes in parts: a possible beginning of one is held back."""

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop, self._pending, self.is_found = tuple(stop), "", False

    def push(self, text: str) -> tuple[str, bool]:
        """(the text that is final and not part of a stop string, whether one was found)."""
        self._pending += text
        places = [place for stop in self._stop if (place := self._pending.find(stop)) >= 0]
        if places:
            self.is_found = True
            return self._take(min(places)), True
        overlap_length = max((overlap(self._pending, stop) for stop in self._stop), default=0)
        return self._take(len(self._pending) - overlap_length), False

    def finish(self) -> str:
        return self._take(len(self._pending))

    def _take(self, count: int) -> str:
        text, self._pending = self._pending[:count], self._pending[count:]
        return text


def overlap(text: str, stop: str) -> int:
    """The number of characters at the end of a text that begin a stop string."""
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
    logprobs = log_softmax(logits)
    best = _largest(logprobs, alternatives).tolist() if alternatives else []
    text = "" if tokenizer is None else tokenizer.token(i)
    return Token(i, text, float(logprobs[i]), tuple((j, float(logprobs[j])) for j in best))


def _largest(values: np.ndarray, count: int) -> np.ndarray:
    """The indices of the `count` largest values, in decreasing order; the first of equal ones."""
    count = min(count, len(values))
    places = np.flatnonzero(values >= np.partition(values, -count)[-count])
    return places[np.argsort(-values[places], kind="stable")][:count]


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """f32[vocabulary] -> f64[vocabulary]."""
    x = logits.astype(np.float64)
    x -= x.max()
    return x - np.log(np.exp(x).sum())
