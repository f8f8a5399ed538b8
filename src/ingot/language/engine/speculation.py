"""Speculative decoding: proposed tokens, which the model checks in one step.

    proposed: a b c     the model draws: a b x  ->  a, b and x are part of the answer

A drawn token depends only on the logits, the seed and the position (see `sampler`), so that an answer has the same
tokens with and without proposals, at any temperature. A draft model draws with the same noise as the model, so that
they agree as often as their distributions are similar (Daliri, Musco, Suresh: Coupling without communication and
drafter-invariant speculative decoding, 2024).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from ingot.language.engine.paging import FEW_ROWS, page_count
from ingot.language.engine.sequence import Running, SequencePart
from ingot.language.engine.stepper import Stepper
from ingot.support.errors import InputError

MAX_SUFFIX_TOKENS = 4  # tokens: the longest suffix that a lookup searches for


class Speculator(Protocol):
    def propose(self, sequences: Mapping[Running, int]) -> dict[Running, list[int]]:
        """Tokens that may follow the sequences, at most the given number for each, possibly none."""
        ...

    def forget(self, sequence: Running) -> None: ...


class Lookup:
    """The tokens that followed an earlier occurrence of the last tokens: for answers that repeat their prompt, such as
    summaries, edits and code (Saxena, Prompt lookup decoding, 2023). Before them, those that a grammar forces."""

    def __init__(self) -> None:
        self._suffixes: dict[Running, tuple[int, dict[tuple[int, ...], int]]] = {}

    def propose(self, sequences: Mapping[Running, int]) -> dict[Running, list[int]]:
        proposed: dict[Running, list[int]] = {}
        for sequence, limit in sequences.items():
            constraint = sequence.transcript.request.constraint
            forced = [] if constraint is None else constraint.forced()[:limit]
            proposed[sequence] = forced or self._continuation(sequence, limit)
        return proposed

    def _continuation(self, sequence: Running, count: int) -> list[int]:
        ids = sequence.ids
        read, ends = self._suffixes.get(sequence, (0, {}))
        for end in range(read, len(ids)):  # without the last token, which nothing follows yet
            for length in range(1, MAX_SUFFIX_TOKENS + 1):
                if end >= length:
                    ends[tuple(ids[end - length : end])] = end
        self._suffixes[sequence] = len(ids), ends
        positions = (ends.get(tuple(ids[-length:])) for length in range(MAX_SUFFIX_TOKENS, 1, -1))
        end = next((end for end in positions if end is not None), len(ids))
        continuation = ids[end:]  # repeated cyclically if it is too short
        return [continuation[n % len(continuation)] for n in range(count if continuation else 0)]

    def forget(self, sequence: Running) -> None:
        self._suffixes.pop(sequence, None)


class Draft:
    """The tokens of a smaller model with the same vocabulary and the same number of sequences.

    Raises InputError for another vocabulary.
    """

    def __init__(self, stepper: Stepper, vocabulary: int, context: int, chunk: int) -> None:
        if stepper.vocabulary != vocabulary:
            raise InputError("draft", expected=f"a model of {vocabulary} tokens", got=f"one of {stepper.vocabulary}")
        self._stepper, self._context, self._chunk = stepper, context, chunk
        self._pages = page_count(context)
        self._draft_ids: dict[Running, list[int]] = {}  # the tokens in the draft's caches

    def propose(self, sequences: Mapping[Running, int]) -> dict[Running, list[int]]:
        limits = {s: limit for s, limit in sequences.items() if limit > 0 and len(s.ids) + limit <= self._context}
        proposed: dict[Running, list[int]] = {sequence: [] for sequence in limits}
        waiting = [*limits]
        while waiting:
            found = [(sequence, self._part(sequence, proposed[sequence])) for sequence in waiting]
            parts = [(sequence, part) for sequence, part in found if part is not None]
            for (sequence, part), sampled in zip(parts, self._stepper.run([p for _, p in parts]), strict=True):
                self._draft_ids[sequence] += part.ids
                proposed[sequence] += sampled.tokens
            waiting = [s for s, _ in parts if len(proposed[s]) < limits[s]]
        return proposed

    def _part(self, sequence: Running, proposed: Sequence[int]) -> SequencePart | None:
        """The next part; None if a grammar ends the answer after the proposed tokens."""
        ids = [*sequence.ids, *proposed]
        cached = self._draft_ids.setdefault(sequence, [])
        common = next(
            (n for n, (a, b) in enumerate(zip(cached, ids, strict=False)) if a != b), min(len(cached), len(ids))
        )
        start = min(common, len(ids) - 1)
        del cached[start:]
        end = min(start + self._chunk, len(ids))
        pages = range(sequence.slot * self._pages, (sequence.slot + 1) * self._pages)
        try:
            biases = sequence.transcript.biases(proposed) if end == len(ids) else []
        except InputError:  # which the sequence's own step raises
            return None
        if biases and len(biases) <= len(proposed):
            return None
        is_chunk = end - start > FEW_ROWS  # fewer are cheaper one by one: two, where all proposals were accepted
        return SequencePart(
            sequence.slot, pages, start, ids[start:end], is_chunk, sequence.transcript, biases[-1:], proposed
        )

    def forget(self, sequence: Running) -> None:
        self._draft_ids.pop(sequence, None)
