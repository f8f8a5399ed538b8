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


def _seconds(run: Callable[[], None]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
