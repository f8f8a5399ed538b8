"""How fast a language model reads and writes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from ingot.support.dataclass import dataclass


@dataclass(frozen=True)
class Pace:
    """read: tokens a second of a prompt of `prompt` tokens. written: of `tokens` that follow, one by one in a loop. The
    best of several rounds."""

    prompt: int
    tokens: int
    read: float
    written: float


class Generating(Protocol):
    """What is measured: an `ingot.LanguageModel`."""

    context: int

    @property
    def vocabulary(self) -> int: ...

    def reset(self) -> None: ...

    def generate(
        self, prompt: Sequence[int], *, max_tokens: int, temperature: float, ignore_ends: bool = False
    ) -> Any: ...


def pace(lm: Generating, prompt: int, tokens: int, rounds: int) -> Pace:
    """Of random ids, which take as long as any others."""
    prompt = max(1, min(prompt, lm.context - tokens))
    ids = np.random.default_rng(0).integers(0, lm.vocabulary, prompt).tolist()

    def read() -> None:
        lm.reset()
        lm.generate(ids, max_tokens=1, temperature=0)

    def write() -> None:  # behind what was read, whose last token alone is read again
        lm.generate(ids, max_tokens=tokens, temperature=0, ignore_ends=True)

    best = [min(_seconds(run) for _ in range(rounds)) for run in (read, write)]
    return Pace(prompt, tokens, prompt / best[0], tokens / best[1])


def joint_pace(lm: Any, streams: int, prompt: int, tokens: int, rounds: int) -> Pace:
    """The same of so many answers at once, all tokens of them together. lm: an `ingot.LanguageModel` with sequences."""
    prompt = max(1, min(prompt, lm.context - tokens))
    chance = np.random.default_rng(0)
    engine = lm.engine(queue=streams)

    def ask(most: int) -> float:
        """Seconds for new prompts, of which nothing is computed yet, and answers of `most` tokens."""
        prompts = [chance.integers(0, lm.vocabulary, prompt).tolist() for _ in range(streams)]
        requests = [lm.request(max_tokens=most, temperature=0, ignore_ends=True, stream=False) for _ in prompts]
        start = time.perf_counter()
        for answer in [engine.submit(ids, request) for ids, request in zip(prompts, requests, strict=True)]:
            for _ in answer:
                pass
        return time.perf_counter() - start

    try:
        ask(1)
        read = min(ask(1) for _ in range(rounds))
        whole = min(ask(tokens) for _ in range(rounds))
    finally:
        engine.close()
    return Pace(prompt, tokens, streams * prompt / read, streams * (tokens - 1) / max(whole - read, 1e-9))


def _seconds(run: Callable[[], None]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
