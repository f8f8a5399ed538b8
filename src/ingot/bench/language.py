"""The speed of a language model: prefill and decoding."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np

from ingot.support.dataclass import dataclass
from ingot.support.energy.counters import EnergyCounters
from ingot.support.energy.measure import Clock, Energy, Window, calls_for, measure


@dataclass(frozen=True)
class Pace:
    """The rates of the prefill of `prompt` tokens and of decoding `tokens` tokens after it, per second: the best of
    several rounds."""

    prompt: int
    tokens: int
    prefill_rate: float
    decode_rate: float


class Generating(Protocol):
    """The interface of the measured model: an `ingot.LanguageModel`."""

    context: int

    @property
    def vocabulary(self) -> int: ...

    def reset(self) -> None: ...

    def generate(
        self, prompt: Sequence[int], *, max_tokens: int, temperature: float, ignore_ends: bool = False
    ) -> Any: ...


def pace(lm: Generating, prompt: int, tokens: int, rounds: int) -> Pace:
    """The pace for random ids, which take as long as any others."""
    ids = _ids(lm, prompt, tokens)
    best = [min(_seconds(partial(run, lm, ids, tokens)) for _ in range(rounds)) for run in (_read, _write)]
    return Pace(len(ids), tokens, len(ids) / best[0], tokens / best[1])


def _ids(lm: Generating, prompt: int, tokens: int) -> list[int]:
    count = max(1, min(prompt, lm.context - tokens))
    return np.random.default_rng(0).integers(0, lm.vocabulary, count).tolist()


def _read(lm: Generating, ids: Sequence[int], tokens: int) -> None:
    lm.reset()
    lm.generate(ids, max_tokens=1, temperature=0)


def _write(lm: Generating, ids: Sequence[int], tokens: int) -> None:
    """Decode after the prompt, of which only the last token is evaluated again."""
    lm.generate(ids, max_tokens=tokens, temperature=0, ignore_ends=True)


def energy_of_tokens(
    lm: Generating,
    prompt: int,
    tokens: int,
    counters: EnergyCounters,
    clock: Clock = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[Energy, Energy]:
    """The energy of one token of the prefill of `prompt` tokens, and of one decoded token of `tokens` after it."""
    ids = _ids(lm, prompt, tokens)
    prefill, decode = (
        measure(
            _token_window(partial(run, lm, ids, tokens), count, clock),
            counters, clock=clock, sleep=sleep, unit="token",
        )
        for run, count in ((_read, len(ids)), (_write, tokens))
    )  # fmt: skip
    return prefill, decode


def _token_window(call: Callable[[], object], count: int, clock: Clock) -> Window:
    """Calls for some seconds. Returns how many tokens they were: `count` each."""
    calls = calls_for(call, clock)
    return lambda seconds: calls(seconds) * count


def joint_pace(lm: Any, streams: int, prompt: int, tokens: int, rounds: int) -> Pace:
    """The pace of several concurrent answers: the tokens per second of all of them. lm: an `ingot.LanguageModel` with
    sequences."""
    with _Answers(lm, streams, prompt, tokens) as answers:
        answers.ask(answers.prompts(), 1)
        first_token_seconds, whole_seconds = (
            min(_seconds(lambda most=most: answers.ask(answers.prompts(), most)) for _ in range(rounds))
            for most in (1, tokens)
        )
    return Pace(
        answers.prompt,
        tokens,
        streams * answers.prompt / first_token_seconds,
        streams * (tokens - 1) / max(whole_seconds - first_token_seconds, 1e-9),
    )


def energy_of_joint_tokens(
    lm: Any,
    streams: int,
    prompt: int,
    tokens: int,
    counters: EnergyCounters,
    clock: Clock = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[Energy, Energy]:
    """`energy_of_tokens` of several concurrent answers. lm: an `ingot.LanguageModel` with sequences."""
    with _Answers(lm, streams, prompt, tokens) as answers:
        known = answers.prompts()  # cached after the first answer
        prefill = _token_window(lambda: answers.ask(answers.prompts(), 1), streams * answers.prompt, clock)
        decode = _token_window(lambda: answers.ask(known, tokens), streams * tokens, clock)
        energies = [measure(w, counters, clock=clock, sleep=sleep, unit="token") for w in (prefill, decode)]
    return energies[0], energies[1]


class _Answers:
    """An engine that answers several prompts at a time. prompt: the tokens of each, with room for `tokens` after it."""

    def __init__(self, lm: Any, streams: int, prompt: int, tokens: int) -> None:
        self.lm, self.streams = lm, streams
        self.prompt = max(1, min(prompt, lm.context - tokens))
        self._random = np.random.default_rng(0)
        self._engine = lm.engine(queue=streams)

    def __enter__(self) -> _Answers:
        return self

    def __exit__(self, *error: object) -> None:
        self._engine.close()

    def prompts(self) -> list[list[int]]:
        """New ones, no prefix of which is cached."""
        return [self._random.integers(0, self.lm.vocabulary, self.prompt).tolist() for _ in range(self.streams)]

    def ask(self, prompts: Sequence[Sequence[int]], tokens: int) -> None:
        """Wait for answers of `tokens` tokens."""
        requests = [self.lm.request(max_tokens=tokens, temperature=0, ignore_ends=True, stream=False) for _ in prompts]
        for answer in [self._engine.submit(ids, request) for ids, request in zip(prompts, requests, strict=True)]:
            for _ in answer:
                pass


def _seconds(run: Callable[[], None]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
