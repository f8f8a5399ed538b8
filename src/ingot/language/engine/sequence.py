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

    def next_part(self, chunk: int, proposed: Sequence[int] = ()) -> SequencePart:
        """The part for the next step, with those of the proposals that a grammar allows. Raises its errors.

        A prompt is always divided at multiples of `chunk`, so that its keys and values do not depend on other requests.
        After a preemption, generated tokens are read as they were the first time, one by one.
        """
        start, prompt = self.computed, self.transcript.prompt
        if start < prompt:
            end = min(start // chunk * chunk + chunk, prompt)
        else:
            end = min(start + chunk, len(self.ids))
        biases = self.transcript.biases(proposed) if end == len(self.ids) else []
        return SequencePart(
            self.slot, self.pages, start, [*self.ids[start:end], *proposed[: max(len(biases) - 1, 0)]],
            start < prompt, self.transcript, biases,
        )  # fmt: skip


@dataclass(frozen=True)
class SequencePart:
    """Rows of a sequence: its tokens from `start` on. is_chunk: whether they are computed together, else one by one.
    biases: for each of the last rows, after which a token is drawn, f32[vocabulary] to add to its logits, or None.
    drafted: what a draft has proposed behind the transcript's tokens, also in this part."""

    slot: int
    pages: Sequence[int]
    start: int
    ids: Sequence[int]
    is_chunk: bool
    transcript: Transcript
    biases: Sequence[np.ndarray | None] = ()
    drafted: Sequence[int] = ()

    @property
    def sampled(self) -> int:
        """The number of last rows after which a token is drawn."""
        return len(self.biases)

    @property
    def proposed(self) -> Sequence[int]:
        """The tokens among `ids` that were proposed."""
        return self.ids[len(self.ids) - max(self.sampled - 1, 0) :]

    @property
    def end(self) -> int:
        return self.start + len(self.ids)


@dataclass(frozen=True)
class Sampled:
    """The results for the sampled rows of a part: tokens, and f32[vocabulary] logits before sampling."""

    tokens: list[int]
    logits: list[np.ndarray]
