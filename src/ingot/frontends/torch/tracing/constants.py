"""The tensors of a graph that are compiled in as constants, so that they are packed only once."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any, TypeAlias

import torch

from ingot.frontends.torch.tracing.samples import Samples

_VERSION = operator.attrgetter("_version")
_MAX_CHANGES = 2  # after so many a tensor becomes an input: it is being trained, rather than loaded once


class Constants:
    """The constants among a graph's inputs, by position, as they were in the last call. positions: theirs, sorted.

    Another tensor, version or memory is a change; for writes that change no version, samples of the elements are
    compared.
    """

    def __init__(self, positions: Collection[int]) -> None:
        self.tensors: dict[int, torch.Tensor] = {}  # keeps the tensors alive, so that their ids are not reused
        self.positions = sorted(positions)
        self._state: _State | None = None
        self._changes: Counter[int] = Counter()
        self._samples = Samples(())

    def changed(self, inputs: Sequence[Any]) -> bool:
        """Whether a call's tensors differ from the last call's; they become the constants, except those that keep
        changing."""
        state = _state(inputs, self.positions)
        is_other_version = self._state is None or not _is_same(state, self._state)
        if not is_other_version and not self._samples.changed():
            return False
        if self._state is not None:
            rows = zip(self.positions, zip(*self._state, strict=True), zip(*state, strict=True), strict=True)
            changes = (i for i, before, now in rows if before[0] is not now[0] or before[1:] != now[1:])
            self._changes.update(changes if is_other_version else self.positions)
        self.positions = [i for i in self.positions if self._changes[i] < _MAX_CHANGES]
        self._state = _state(inputs, self.positions)
        self.tensors = {i: inputs[i] for i in self.positions}
        self._samples = Samples([*self.tensors.values()])
        return True


# the tensors, their versions and their addresses: lists, which C code fills and compares for hundreds of parameters
_State: TypeAlias = tuple[list[torch.Tensor], list[int], list[int]]


def _state(inputs: Sequence[Any], positions: Sequence[int]) -> _State:
    tensors = [*map(inputs.__getitem__, positions)]
    try:
        versions = [*map(_VERSION, tensors)]
    except RuntimeError:  # an inference tensor has no counter, as it cannot change outside inference mode
        versions = [*map(_version, tensors)]
    return tensors, versions, [*map(torch.Tensor.data_ptr, tensors)]


def _is_same(a: _State, b: _State) -> bool:
    return a[1:] == b[1:] and all(map(operator.is_, a[0], b[0]))


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version
