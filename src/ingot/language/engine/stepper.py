"""A compiled program of steps, fed with parts of sequences (see `engine.program`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ingot.language.engine.paging import PAGE
from ingot.language.engine.sequence import Part, Sampled
from ingot.language.session import SAMPLING, Program

_SETTINGS = {name: np.int64 if name in ("top_k", "seed") else np.float32 for name in SAMPLING}


class Stepper:
    """sequences: that it has room for. vocabulary: token ids are below it."""

    def __init__(self, program: Program) -> None:
        self._program = program
        shapes = {spec.name: spec.shape for spec in program.inputs}
        self.sequences, self._pages = shapes["tables"]
        self.vocabulary = int(shapes["bias"][1])
        self._tables = np.zeros((self.sequences, self._pages), np.int64)
        self._bias = np.zeros((self.sequences, self.vocabulary), np.float32)
        self._counts = np.zeros((self.sequences, 2, self.vocabulary), np.int32)
        self._is_biased, self._is_counted = set[int](), set[int]()

    def run(self, parts: Sequence[Part]) -> list[Sampled]:
        """What follows the sampled rows of each part."""
        parts_in_order = sorted(parts, key=lambda part: part.is_chunk)
        chunks = [part for part in parts_in_order if part.is_chunk]
        for part in parts:
            self._tables[part.slot, : len(part.pages)] = part.pages
            if part.sampled:
                self._weigh(part)
        rows = {part.slot: 0 for part in parts}
        ids, positions, sequences, sampled, of_samples = [], [], [], list[int](), list[Part]()
        for part in parts_in_order:
            rows[part.slot] = len(ids)
            ids += part.ids
            positions += range(part.start, part.end)
            sequences += [part.slot] * len(part.ids)
            sampled += range(len(ids) - part.sampled, len(ids))
            of_samples += [part] * part.sampled
        starts, lengths = np.zeros((2, self.sequences), np.int64)
        starts[: len(chunks)] = [rows[part.slot] for part in chunks]
        lengths[: len(chunks)] = [len(part.ids) for part in chunks]
        at, of = np.array(positions, np.int64), np.array(sequences, np.int64)
        values: dict[str, Any] = {
            "ids": np.array(ids, np.int64), "positions": at, "sequences": of,
            "slots": self._tables[of, at // PAGE] * PAGE + at % PAGE, "tables": self._tables,
            "singles": np.array(len(ids) - lengths.sum()), "chunks": np.array(len(chunks)),
            "starts": starts, "lengths": lengths, "sampled": np.array(sampled or [0], np.int64),
            "bias": self._bias, "counts": self._counts,
        }  # fmt: skip
        samplings = [part.transcript.request.sampling for part in of_samples] or [parts[0].transcript.request.sampling]
        values |= {n: np.array([getattr(s, n) for s in samplings], dtype) for n, dtype in _SETTINGS.items()}
        tokens, logits = self._program.run([values[spec.name] for spec in self._program.inputs])
        return self._by_part(parts, of_samples, np.asarray(tokens), np.asarray(logits))

    def _by_part(
        self, parts: Sequence[Part], of_samples: Sequence[Part], tokens: np.ndarray, logits: np.ndarray
    ) -> list[Sampled]:
        first: dict[int, int] = {}
        for n, part in enumerate(of_samples):
            first.setdefault(part.slot, n)
        places = [slice(n := first.get(part.slot, 0), n + part.sampled) for part in parts]
        return [Sampled(tokens[place].tolist(), [*logits[place]]) for place in places]

    def forget(self, slot: int) -> None:
        """A sequence leaves its slot."""
        if slot in self._is_counted:
            self._counts[slot] = 0
            self._is_counted.remove(slot)

    def _weigh(self, part: Part) -> None:
        """Tell the sampler a sequence's bias, and how often its tokens were there."""
        bias, slot = part.bias, part.slot
        if bias is not None:
            self._bias[slot] = bias
            self._is_biased.add(slot)
        elif slot in self._is_biased:
            self._bias[slot] = 0
            self._is_biased.remove(slot)
        if part.transcript.request.sampling.has_penalties:
            ids, prompt = part.transcript.ids, part.transcript.prompt
            for kind, own in enumerate((ids[:prompt], ids[prompt:])):
                self._counts[slot, kind] = np.bincount(own, minlength=self.vocabulary)
            self._is_counted.add(slot)
