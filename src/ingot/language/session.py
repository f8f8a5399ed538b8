"""One sequence in the caches of a compiled program (`generate`), independent of the compiler.

    session.step(ids, count=8)  ->  up to 8 tokens that follow the ids

A step reads the ids that are not in the caches yet: a prefix that it shares with the previous call is not computed
again, whether it continues the sequence or branches off, as the turns of a chat do.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import field, fields
from typing import Any, Protocol

import numpy as np

from ingot.language.text.arguments import check_ids
from ingot.support.dataclass import dataclass
from ingot.support.errors import InputError

CHUNK = 512  # tokens of a prompt that are read in one call


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn; by default from the model's own distribution.

    temperature: 0 takes the most likely token. top_k: the number of the most likely tokens to draw from; 0: all. top_p:
    draw from the fewest tokens with this total probability. min_p: draw from the tokens with at least this fraction of
    the highest probability. repetition_penalty: divides the logits of tokens that have occurred. presence_penalty,
    frequency_penalty: subtracted from the logits of generated tokens, once or for each occurrence. seed: the same seed
    gives the same tokens.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        integer_fields = ("top_k", "seed")
        for f in fields(self):
            value = getattr(self, f.name)
            kinds = int | np.integer if f.name in integer_fields else int | float | np.number
            if isinstance(value, bool) or not isinstance(value, kinds) or value != value:
                raise InputError(
                    f.name, expected="an integer" if f.name in integer_fields else "a number", got=repr(value)
                )
        for name, low, high in _RANGES:
            value = getattr(self, name)
            if not low <= value <= high:
                raise InputError(name, expected=f"{low} to {high}", got=value)

    @property
    def has_penalties(self) -> bool:
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0


_MAX_INT64 = (1 << 63) - 1
_RANGES = (
    ("temperature", 0, 100), ("top_k", 0, _MAX_INT64), ("top_p", 0, 1), ("min_p", 0, 1),
    ("repetition_penalty", 1e-3, 1e3), ("presence_penalty", -100, 100), ("frequency_penalty", -100, 100),
    ("seed", -_MAX_INT64 - 1, _MAX_INT64),
)  # fmt: skip
SAMPLING = tuple(f.name for f in fields(Sampling))


class Program(Protocol):
    """The interface of a compiled model that a session needs."""

    inputs: Any
    outputs: Any

    def run(self, inputs: Sequence[Any]) -> list[Any]: ...

    def set_state(self, values: dict[str, np.ndarray]) -> None: ...


@dataclass(eq=False)
class Session:
    """context: the maximum number of tokens of a sequence. rewinds: whether the caches may go back to any position;
    those of convolutions have only the latest tokens. A step may be called from any thread."""

    program: Program
    context: int
    rewinds: bool = True
    ids: list[int] = field(default_factory=list[int])  # the tokens in the caches

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        specs = {spec.name: spec for spec in (*self.program.inputs, *self.program.outputs)}
        self._types = {spec.name: np.dtype(_TYPES[spec.dtype]) for spec in self.program.inputs}
        self.max_step_tokens = int(specs["tokens"].shape[1])  # tokens of a step
        self.vocabulary = int(specs["logits"].shape[1])
        self._room = int(specs["stops"].shape[0])
        self._prompt: int | None = None  # the number of prompt tokens in the program's counts; None: they are not kept
        self._is_biased = False

    def step(
        self,
        ids: Sequence[int],
        prompt: int,
        count: int,
        sampling: Sampling,
        ends: Sequence[int] = (),
        bias: np.ndarray | None = None,
    ) -> tuple[list[int], np.ndarray]:
        """(up to `count` tokens that follow `ids`, ending with the first of `ends`; f32[vocabulary], the logits of the
        last of them or, for a count of 0, of the next token). prompt: the number of ids that are the prompt. bias:
        f32[vocabulary], added to logits.

        Raises InputError for ids that are out of range or exceed the context.
        """
        self.check(ids)
        with self._lock:
            is_continuation = self.ids == ids[:-1]
            if sampling.has_penalties and not (is_continuation and self._prompt == prompt and prompt < len(ids)):
                self._count(ids, prompt)
            if bias is not None or self._is_biased:
                values = np.zeros(self.vocabulary, np.float32) if bias is None else bias
                self.program.set_state({"bias": values[None]})
                self._is_biased = bias is not None
            self._prompt = prompt if sampling.has_penalties else None
            start = self._shared(ids)
            tokens, logits = [], np.empty(0, np.float32)
            while start < len(ids):
                end = min(start + CHUNK, len(ids))
                self.ids = list(ids[:start]) if self.rewinds else []  # if the call is interrupted
                token_count = min(count, self.max_step_tokens, self.context - end + 1) if end == len(ids) else 0
                tokens, logits = self._run(ids[start:end], start, token_count, sampling, ends)
                start = end
            self.ids = [*ids, *tokens[:-1]]
            return tokens, logits

    def logits(self, ids: Sequence[int]) -> np.ndarray:
        """f32[vocabulary]: the logits of the next token."""
        return self.step(ids, len(ids), 0, Sampling(temperature=0.0))[1]

    def reset(self) -> None:
        with self._lock:
            self.ids = []

    def check(self, ids: Sequence[int]) -> None:
        """Raise InputError for an invalid prompt."""
        if not ids:
            raise InputError("the prompt", expected="one token or more", got="none")
        check_ids(ids, self.vocabulary)
        if len(ids) > self.context:
            fix = f"LanguageModel(..., context={len(ids) + 1024}), or a shorter prompt"
            raise InputError("the prompt", expected=f"at most {self.context} tokens", got=len(ids), fix=fix)

    def _shared(self, ids: Sequence[int]) -> int:
        """The number of ids that are in the caches already; the last one is always read, as its logits are needed."""
        cached, limit = self.ids, min(len(self.ids), len(ids) - 1)
        if cached[:limit] == ids[:limit]:
            count = limit
        else:
            count = next(i for i in range(limit) if cached[i] != ids[i])
        return count if self.rewinds or count == len(cached) else 0

    def _count(self, ids: Sequence[int], prompt: int) -> None:
        """Set the program's counts of tokens in the prompt and in the generated tokens."""
        counts = [np.bincount(part, minlength=self.vocabulary) for part in (ids[:prompt], ids[prompt:])]
        self.program.set_state({"counts": np.array([counts], np.int32)})

    def _run(
        self, chunk: Sequence[int], start: int, count: int, sampling: Sampling, ends: Sequence[int]
    ) -> tuple[list[int], np.ndarray]:
        stops = [*ends[: self._room], *[-1] * (self._room - len(ends))]
        # counts are set separately, not from chunks, as a chunk may contain generated tokens
        values = {"ids": [chunk], "at": [start], "is_prompt": False, "count": count, "stops": stops}
        values |= {name: getattr(sampling, name) for name in SAMPLING}
        inputs = [np.asarray(values[spec.name], self._types[spec.name]) for spec in self.program.inputs]
        tokens, token_count, logits = self.program.run(inputs)
        return [int(i) for i in np.asarray(tokens)[0, : int(token_count)]], np.asarray(logits)[0]


_TYPES = {"f32": np.float32, "i64": np.int64, "bool": np.bool_}  # of the program's inputs
