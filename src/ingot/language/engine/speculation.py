"""Tokens that may follow, which the model checks all at once.

    proposed: a b c     the model draws: a b x  ->  a, b and x are the answer's

What a draw is depends on the logits, the seed and the position alone (see `sampler`), so an answer has the very tokens
that it has without proposals, at any temperature. A draft draws with the noise of the model: both take the same token
as often as their distributions are alike (Daliri, Musco, Suresh: Coupling without communication and drafter-invariant
speculative decoding, 2024).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from ingot.language.engine.paging import page_count
from ingot.language.engine.sequence import Part, Running
from ingot.language.engine.stepper import Stepper
from ingot.support.errors import InputError

LONGEST = 4  # tokens that a lookup looks for


class Speculator(Protocol):
    def propose(self, sequences: Mapping[Running, int]) -> dict[Running, list[int]]:
        """Tokens that may follow sequences, at most so many of each; of some none."""
        ...

    def forget(self, sequence: Running) -> None: ...


class Lookup:
    """What came behind the last tokens when they were there before: for answers that repeat their prompt, as summaries,
    edits and code do (Saxena, Prompt lookup decoding, 2023)."""

    def __init__(self) -> None:
        self._ends: dict[Running, tuple[int, dict[tuple[int, ...], int]]] = {}

    def propose(self, sequences: Mapping[Running, int]) -> dict[Running, list[int]]:
        return {sequence: self._behind(sequence, most) for sequence, most in sequences.items()}

    def _behind(self, sequence: Running, most: int) -> list[int]:
        ids = sequence.ids
        read, ends = self._ends.get(sequence, (0, {}))
        for end in range(read, len(ids)):  # not of the last token: nothing came behind it
            for length in range(1, LONGEST + 1):
                if end >= length:
                    ends[tuple(ids[end - length : end])] = end
        self._ends[sequence] = len(ids), ends
        found = (ends.get(tuple(ids[-length:])) for length in range(LONGEST, 1, -1))
        end = next((end for end in found if end is not None), len(ids))
        behind = ids[end:]  # and so on in a circle, if what repeats is shorter than what is asked for
        return [behind[n % len(behind)] for n in range(most if behind else 0)]

    def forget(self, sequence: Running) -> None:
        self._ends.pop(sequence, None)


class Draft:
    """The tokens of a smaller model with the same vocabulary, which has room for as many sequences.

    Raises InputError for another vocabulary.
    """

    def __init__(self, stepper: Stepper, vocabulary: int, context: int, chunk: int) -> None:
        if stepper.vocabulary != vocabulary:
            raise InputError("draft", expected=f"a model of {vocabulary} tokens", got=f"one of {stepper.vocabulary}")
        self._stepper, self._context, self._chunk = stepper, context, chunk
        self._pages = page_count(context)
        self._read: dict[Running, list[int]] = {}  # what the draft's caches hold

    def propose(self, sequences: Mapping[Running, int]) -> dict[Running, list[int]]:
        limits = {s: most for s, most in sequences.items() if most > 0 and len(s.ids) + most <= self._context}
        proposed: dict[Running, list[int]] = {sequence: [] for sequence in limits}
        waiting = [*limits]
        while waiting:
            parts = [self._part(sequence, proposed[sequence]) for sequence in waiting]
            for sequence, part, sampled in zip(waiting, parts, self._stepper.run(parts), strict=True):
                self._read[sequence] += part.ids
                proposed[sequence] += sampled.tokens
            waiting = [s for s in waiting if len(proposed[s]) < limits[s]]
        return proposed

    def _part(self, sequence: Running, proposed: Sequence[int]) -> Part:
        ids = [*sequence.ids, *proposed]
        read = self._read.setdefault(sequence, [])
        same = next((n for n, (a, b) in enumerate(zip(read, ids, strict=False)) if a != b), min(len(read), len(ids)))
        start = min(same, len(ids) - 1)
        del read[start:]
        end = min(start + self._chunk, len(ids))
        pages = range(sequence.slot * self._pages, (sequence.slot + 1) * self._pages)
        return Part(
            sequence.slot, pages, start, ids[start:end], is_chunk=end - start > 1, sampled=int(end == len(ids)),
            transcript=sequence.transcript, bias=sequence.transcript.bias() if end == len(ids) else None,
        )  # fmt: skip

    def forget(self, sequence: Running) -> None:
        self._read.pop(sequence, None)
