"""What a model keeps between calls: caches, counters, running statistics."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence

import numpy as np

from ingot.runtime import placement
from ingot.runtime.cpu import memory
from ingot.runtime.dtypes import numpy_dtype
from ingot.runtime.program import State
from ingot.runtime.tensors import Border, is_tensor
from ingot.support.errors import InputError

# the state's name of (seed, calls), which random numbers come from; no module's buffer is called so
RANDOM = "random numbers"


def seed_state(seed: int) -> np.ndarray:
    """The state of random numbers before the first call: i64[2]. Seeds count modulo 2^64."""
    return np.asarray([seed & ((1 << 64) - 1), 0], np.uint64).view(np.int64)


def entropy() -> int:
    """A seed that nobody can tell."""
    return int.from_bytes(os.urandom(8), "little")


class Seeds:
    """Seeds of a model's programs, in the order in which they are made: all different, and told by the first."""

    def __init__(self, first: int = 0) -> None:
        self._next = first

    def take(self) -> int:
        seed = self._next
        self._next += 0x9E3779B97F4A7C15  # of a Weyl sequence: no small seeds of users are close to each other's
        return seed


class Held:
    """The tensors of a program's state; those that a call does not write in place twice: what it reads, and writes.

    shapes: of the tensors. pointers: what a run takes between its inputs and its outputs. For one call at a time.
    """

    def __init__(self, state: Sequence[State]) -> None:
        """The first values. Raises IngotError when the system has not that much memory."""
        self.shapes = tuple(s.shape for s in state)
        self._state = state
        self._regions: list[memory.Region] = []
        read = self._places([s.first.nbytes for s in state])
        apart = self._places([s.first.nbytes if s.copied else 0 for s in state])
        written = [new if s.copied else old for s, old, new in zip(state, read, apart, strict=True)]
        for s, place in zip(state, read, strict=True):
            ctypes.memmove(place, s.first.ctypes.data, s.first.nbytes)
        self.pointers, self._exchanged = [*read, *written], [*written, *read]

    def _places(self, sizes: Sequence[int]) -> list[int]:
        """Addresses in a region of their own."""
        ends = np.cumsum([0, *map(placement.align, sizes)])
        if ends[-1]:
            self._regions.append(memory.Region(int(ends[-1])))
        address = self._regions[-1].address if ends[-1] else 0
        return [address + int(end) for end in ends[:-1]]

    def exchange(self) -> None:
        """What the last call wrote is what the next one reads."""
        self.pointers, self._exchanged = self._exchanged, self.pointers

    def read(self) -> dict[str, np.ndarray]:
        """Copies of the values by name."""
        return {
            s.spec.name: np.frombuffer(ctypes.string_at(place, s.first.nbytes), numpy_dtype(s.spec.dtype))
            .reshape(s.shape)
            .copy()
            for s, place in zip(self._state, self.pointers, strict=False)
        }

    def write(self, values: Mapping[str, object]) -> None:
        """Replace some of the values; none if one of them does not fit. Raises InputError."""
        found = {s.spec.name: (s, place) for s, place in zip(self._state, self.pointers, strict=False)}
        moves: list[tuple[int, int, int]] = []
        kept: list[object] = []
        for name, value in values.items():
            if name not in found:
                raise InputError(f"state {name!r}", expected=f"one of {', '.join(found) or 'none'}", got="no such name")
            state, place = found[name]
            border = Border(state.spec)
            fitting = border.tensor(value) if is_tensor(value) else border.array(value)
            if tuple(fitting.shape) != state.shape:
                raise InputError(f"state {name!r}", expected=f"shape {state.shape}", got=tuple(fitting.shape))
            source = fitting.ctypes.data if isinstance(fitting, np.ndarray) else fitting.data_ptr()
            moves.append((place, source, state.first.nbytes))
            kept.append(fitting)
        for place, source, nbytes in moves:
            ctypes.memmove(place, source, nbytes)
