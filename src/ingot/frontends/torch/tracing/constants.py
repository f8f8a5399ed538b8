"""The tensors of a graph that are compiled in as constants, so that they are packed only once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

import torch

from ingot.frontends.torch.tracing.samples import Samples

_MAX_CHANGES = 2  # after so many a tensor becomes an input: it is being trained, rather than loaded once


class Constants:
    """The constants among a graph's inputs, by position, as they were in the last call. positions: theirs, sorted.

    Another tensor, version or memory is a change; for writes that change no version, samples of the elements are
    compared.
    """

    def __init__(self, positions: Collection[int]) -> None:
        self.tensors: dict[int, torch.Tensor] = {}  # keeps the tensors alive, so that their ids are not reused
        self.positions = sorted(positions)
        self._state: list[tuple[int, int, int]] | None = None
        self._changes: Counter[int] = Counter()
        self._samples = Samples(())

    def changed(self, inputs: Sequence[Any]) -> bool:
        """Whether a call's tensors differ from the last call's; they become the constants, except those that keep
        changing."""
        state = self._versions(inputs)
        is_other_version = state != self._state
        if not is_other_version and not self._samples.changed():
            return False
        if self._state is not None:
            pairs = zip(self.positions, self._state, state, strict=True)
            self._changes.update(i for i, before, now in pairs if not is_other_version or before != now)
        self.positions = [i for i in self.positions if self._changes[i] < _MAX_CHANGES]
        self._state = self._versions(inputs)
        self.tensors = {i: inputs[i] for i in self.positions}
        self._samples = Samples([*self.tensors.values()])
        return True

    def _versions(self, inputs: Sequence[Any]) -> list[tuple[int, int, int]]:
        return [(id(t), _version(t), t.data_ptr()) for t in map(inputs.__getitem__, self.positions)]


def _version(tensor: torch.Tensor) -> int:
    # an inference tensor cannot change outside inference mode and has no counter
    return 0 if tensor.is_inference() else tensor._version
