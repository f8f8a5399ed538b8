"""A running request, and the part of it that a step computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

import numpy as np

from ingot.language.engine.answer import Answer
from ingot.language.text.generation import Transcript
from ingot.support.dataclass import dataclass


@dataclass(eq=False)
class Running:
    """order: smaller ones go first. computed: the number of tokens whose keys and values are in `pages`. slot: its row
    of the tables; -1: it is waiting. proposals: the number of proposals to check: twice the last number if all were
    right, else the number that were right."""

    order: tuple[int, int]
    answer: Answer
    transcript: Transcript
    computed: int = 0
    pages: list[int] = field(default_factory=list[int])
    slot: int = -1
    proposals: int = 2

    @property
    def ids(self) -> list[int]:
        return self.transcript.ids

    @property
    def is_decoding(self) -> bool:
        """Whether only the last token is to be read, and the answer has begun."""
        return self.computed == len(self.ids) - 1 >= self.transcript.prompt

    @property
    def takes_proposals(self) -> bool:
        """Whether several tokens can be checked in one step: with a grammar or penalties each depends on those before
        it."""
        request = self.transcript.request
        return self.is_decoding and request.constraint is None and not request.sampling.has_penalties

    def next_part(self, chunk: int, proposed: Sequence[int] = ()) -> SequencePart:
        """The part for the next step. Raises the errors of a grammar.

        A prompt is always divided at multiples of `chunk`, so that its keys and values do not depend on other requests.
        After a preemption, generated tokens are read as they were the first time, one by one.
        """
        start, prompt = self.computed, self.transcript.prompt
        if start < prompt:
            end = min(start // chunk * chunk + chunk, prompt)
        else:
            end = min(start + chunk, len(self.ids))
        is_sampled = end == len(self.ids)
        return SequencePart(
            self.slot, self.pages, start, [*self.ids[start:end], *proposed],
            is_chunk=start < prompt, sampled=is_sampled + len(proposed), transcript=self.transcript,
            bias=self.transcript.bias() if is_sampled else None,
        )  # fmt: skip


@dataclass(frozen=True)
class SequencePart:
    """Rows of a sequence: its tokens from `start` on. is_chunk: whether they are computed together, else one by one.
    sampled: the number of last rows after which a token is drawn. bias: f32[vocabulary], added to their logits."""

    slot: int
    pages: Sequence[int]
    start: int
    ids: Sequence[int]
    is_chunk: bool
    sampled: int
    transcript: Transcript
    bias: np.ndarray | None = None

    @property
    def end(self) -> int:
        return self.start + len(self.ids)


@dataclass(frozen=True)
class Sampled:
    """The results for the sampled rows of a part: tokens, and f32[vocabulary] logits before sampling."""

    tokens: list[int]
    logits: list[np.ndarray]
