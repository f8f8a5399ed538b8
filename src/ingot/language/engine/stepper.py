"""Runs a compiled program of steps on parts of sequences (see `engine.program`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ingot.language.engine.paging import FEW_ROWS, PAGE
from ingot.language.engine.sequence import Sampled, SequencePart
from ingot.language.session import SAMPLING, Program
from ingot.support.dataclass import dataclass

_PADDED_ROWS = 64
_SETTINGS = {name: np.int64 if name in ("top_k", "seed") else np.float32 for name in SAMPLING}


@dataclass(frozen=True)
class _Rows:
    """`count` consecutive rows of a part, from `first` on."""

    part: SequencePart
    first: int
    count: int

    @property
    def sampled(self) -> range:
        """The rows after which a token is drawn."""
        return range(max(len(self.part.ids) - self.part.sampled - self.first, 0), self.count)


class Stepper:
    """sequences: the maximum number of sequences. vocabulary: the number of token ids."""

    def __init__(self, program: Program) -> None:
        self._program = program
        shapes = {spec.name: spec.shape for spec in program.inputs}
        self._is_paged = "singles" not in shapes  # else single rows and chunks are separate
        self.sequences, self._pages = shapes["tables"]
        (logits,) = (spec for spec in program.outputs if spec.name == "logits")
        self.vocabulary, self._samples = int(logits.shape[1]), int(shapes["is_weighed"][0])
        self._tables = np.zeros((self.sequences, self._pages), np.int64)
        self._bias = np.zeros((self._samples, self.vocabulary), np.float32)
        self._counts = np.zeros((self._samples, 2, self.vocabulary), np.int32)
        self._is_weighed = np.zeros(self._samples, np.bool_)

    def run(self, parts: Sequence[SequencePart]) -> list[Sampled]:
        """The tokens after the sampled rows of each part."""
        for part in parts:
            self._tables[part.slot, : len(part.pages)] = part.pages
        results = {part.slot: Sampled([], []) for part in parts}
        for call in _paged_calls(parts, self._samples) if self._is_paged else _calls(parts):
            tokens, logits = self._call(call)
            slots = [rows.part.slot for rows in call for _ in rows.sampled]
            for n, slot in enumerate(slots):
                results[slot].tokens.append(int(tokens[n]))
                results[slot].logits.extend([] if logits is None else [logits[n]])
        return [results[part.slot] for part in parts]

    def _call(self, call: Sequence[_Rows]) -> tuple[np.ndarray, np.ndarray | None]:
        """(the drawn tokens, their logits; None: nobody asks for logprobs, and they stay on the device)."""
        ids, positions, sequences, sampled = list[int](), list[int](), list[int](), list[int]()
        starts, lengths = np.zeros((2, self.sequences), np.int64)
        chunks = 0
        for rows in call:
            part = rows.part
            if part.is_chunk:
                starts[chunks], lengths[chunks] = len(ids), rows.count
                chunks += 1
            sampled += [len(ids) + i for i in rows.sampled]
            ids += part.ids[rows.first : rows.first + rows.count]
            positions += range(part.start + rows.first, part.start + rows.first + rows.count)
            sequences += [part.slot] * rows.count
        position_array, owners = np.array(positions, np.int64), np.array(sequences, np.int64)
        slots = self._tables[owners, position_array // PAGE] * PAGE + position_array % PAGE
        padding = _paged_rows(len(ids)) - len(ids) if self._is_paged else 0
        padding = max(FEW_ROWS + 1 - len(ids), 0) if chunks and not self._is_paged else padding
        samples = [(rows.part, rows.first + i) for rows in call for i in rows.sampled]
        self._is_weighed[:] = False
        for n, sample in enumerate(samples):
            self._weigh(n, *sample)
        samplings = [part.transcript.request.sampling for part, _ in samples]
        is_reported = not self._is_paged or any(part.transcript.request.logprobs is not None for part, _ in samples)
        values: dict[str, Any] = {
            "ids": np.pad(np.array(ids, np.int64), (0, padding)), "positions": np.pad(position_array, (0, padding)),
            "sequences": np.pad(owners, (0, padding)), "slots": np.pad(slots, (0, padding), constant_values=-1),
            "tables": self._tables, "singles": np.array(0 if chunks else len(ids)), "chunks": np.array(chunks),
            "starts": starts, "lengths": lengths, "sampled": np.array(sampled or [0], np.int64),
            "is_weighed": self._is_weighed, "bias": self._bias, "counts": self._counts,
        }  # fmt: skip
        samplings = samplings or [call[0].part.transcript.request.sampling]  # for the one unused sample
        if self._is_paged:
            unused = self._samples - len(samples)
            values |= {"count": np.array(len(samples)), "sampled": np.array([*sampled, *[0] * unused], np.int64)}
            values["reported"] = np.arange(self._samples if is_reported else 1)
            samplings = [*samplings, *samplings[:1] * (self._samples - len(samplings))]
            if self._is_weighed.any():
                self._program.set_state({"bias": self._bias, "counts": self._counts})
        values |= {name: np.array([getattr(s, name) for s in samplings], t) for name, t in _SETTINGS.items()}
        tokens, logits = self._program.run([values[spec.name] for spec in self._program.inputs])
        return np.asarray(tokens), np.asarray(logits) if is_reported else None

    def _weigh(self, sample: int, part: SequencePart, row: int) -> None:
        """Set the bias and the token counts of a sample, after a row of a part."""
        bias = part.biases[part.sampled - len(part.ids) + row]
        has_penalties = part.transcript.request.sampling.has_penalties
        self._is_weighed[sample] = bias is not None or has_penalties
        if not self._is_weighed[sample]:
            return
        self._bias[sample] = 0 if bias is None else bias
        prompt, end = part.transcript.prompt, part.start + row + 1
        earlier = [*part.transcript.ids, *part.drafted][: part.start] if has_penalties else []
        ids = [*earlier, *part.ids[: row + 1]] if has_penalties else []
        for kind, tokens in enumerate((ids[:prompt], ids[prompt:end])):
            self._counts[sample, kind] = np.bincount(tokens, minlength=self.vocabulary) if tokens else 0


def _paged_rows(count: int) -> int:
    """The rows of a call with `count` of them: a program is bound once for each number."""
    return (
        max(FEW_ROWS, 1 << (count - 1).bit_length())
        if count <= _PADDED_ROWS
        else -(-count // _PADDED_ROWS) * _PADDED_ROWS
    )


def _paged_calls(parts: Sequence[SequencePart], samples: int) -> Iterator[list[_Rows]]:
    """The rows of each call of a program that computes all rows alike, with at most `samples` sampled ones."""
    call, free_samples = list[_Rows](), samples
    for part in parts:
        first, unsampled = 0, len(part.ids) - part.sampled
        while first < len(part.ids):
            count = min(len(part.ids), max(unsampled, first) + free_samples) - first
            if count:
                call.append(_Rows(part, first, count))
                free_samples -= len(call[-1].sampled)
                first += count
            if first < len(part.ids):
                yield call
                call, free_samples = [], samples
    if call:
        yield call


def _calls(parts: Sequence[SequencePart]) -> Iterator[list[_Rows]]:
    """The rows of each call of the program: first the single rows, then the chunks."""
    call, free_rows = list[_Rows](), FEW_ROWS
    for part in parts:
        first = 0
        while not part.is_chunk and first < len(part.ids):
            count = min(free_rows, len(part.ids) - first)
            call.append(_Rows(part, first, count))
            first, free_rows = first + count, free_rows - count
            if not free_rows:
                yield call
                call, free_rows = [], FEW_ROWS
    if call:
        yield call
    chunks = [_Rows(part, 0, len(part.ids)) for part in parts if part.is_chunk]
    for n in range(0, len(chunks), FEW_ROWS):  # at most one token is drawn after each chunk: few rows of logits
        yield chunks[n : n + FEW_ROWS]
