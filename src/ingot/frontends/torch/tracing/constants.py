"""The tensors of a graph that are compiled in, as what stays as it is can be packed once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

import torch

from ingot.frontends.torch.tracing.samples import Samples

_MAX_CHANGES = 2  # of a tensor that is an input from then on: weights are loaded once, and trained again and again


class Constants:
    """The constants among a graph's inputs, by position, as they were in the last call.

    Another tensor, another version of it, or other memory is a change; of what counts no version, samples of the
    elements tell it.
    """

    def __init__(self, positions: Collection[int]) -> None:
        self.held: dict[int, torch.Tensor] = {}  # so that no other tensor takes an id over
        self._positions = sorted(positions)
        self._state: list[tuple[int, int, int]] | None = None
        self._changes: Counter[int] = Counter()
        self._samples = Samples(())

    def changed(self, inputs: Sequence[Any]) -> bool:
        """Whether a call's tensors are others than the last one's; they are the constants from now on, but for those
        that change time and again."""
        state = self._versions(inputs)
        counted = state != self._state
        if not counted and not self._samples.changed():
            return False
        if self._state is not None:
            pairs = zip(self._positions, self._state, state, strict=True)
            self._changes.update(i for i, before, now in pairs if not counted or before != now)
        self._positions = [i for i in self._positions if self._changes[i] < _MAX_CHANGES]
        self._state = self._versions(inputs)
        self.held = {i: inputs[i] for i in self._positions}
        self._samples = Samples([*self.held.values()])
        return True

    def _versions(self, inputs: Sequence[Any]) -> list[tuple[int, int, int]]:
        return [(id(t), _version(t), t.data_ptr()) for t in map(inputs.__getitem__, self._positions)]


def _version(tensor: torch.Tensor) -> int:
    # an inference tensor cannot change outside inference mode and has no counter
    return 0 if tensor.is_inference() else tensor._version
