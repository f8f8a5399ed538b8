"""What a model keeps between calls: caches, counters, running statistics."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ingot.runtime import placement
from ingot.runtime.dtypes import numpy_dtype
from ingot.runtime.program import State
from ingot.runtime.tensors import Border, is_tensor
from ingot.support.errors import InputError

if TYPE_CHECKING:
    from ingot.runtime.device import Store

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

    def __init__(self, state: Sequence[State], store: Callable[[int], Store]) -> None:
        """The first values. store: makes memory of the program's device. Raises IngotError where it has too little."""
        self.shapes = tuple(s.shape for s in state)
        self._state = state
        read = _placed([s.first.nbytes for s in state], store)
        apart = _placed([s.first.nbytes if s.copied else 0 for s in state], store)
        written = [new if s.copied else old for s, old, new in zip(state, read, apart, strict=True)]
        for s, (region, offset) in zip(state, read, strict=True):
            if s.first.any():
                region.write(offset, s.first.ctypes.data, s.first.nbytes)
        self._places, self._exchanged = read, written
        self.pointers = [region.address + offset for region, offset in (*read, *written)]

    def exchange(self) -> None:
        """What the last call wrote is what the next one reads."""
        if self._places != self._exchanged:
            self._places, self._exchanged = self._exchanged, self._places
            count = len(self.shapes)
            self.pointers = [*self.pointers[count:], *self.pointers[:count]]

    def read(self) -> dict[str, np.ndarray]:
        """Copies of the values by name."""
        return {
            s.spec.name: np.frombuffer(region.read(offset, s.first.nbytes), numpy_dtype(s.spec.dtype))
            .reshape(s.shape)
            .copy()
            for s, (region, offset) in zip(self._state, self._places, strict=True)
        }

    def write(self, values: Mapping[str, object]) -> None:
        """Replace some of the values; none if one of them does not fit. Raises InputError."""
        found = {s.spec.name: (s, place) for s, place in zip(self._state, self._places, strict=True)}
        moves: list[tuple[Store, int, int, int]] = []
        kept: list[object] = []
        for name, value in values.items():
            if name not in found:
                raise InputError(f"state {name!r}", expected=f"one of {', '.join(found) or 'none'}", got="no such name")
            state, (region, offset) = found[name]
            border = Border(state.spec)
            fitting = border.tensor(value) if is_tensor(value) else border.array(value)
            if tuple(fitting.shape) != state.shape:
                raise InputError(f"state {name!r}", expected=f"shape {state.shape}", got=tuple(fitting.shape))
            source = fitting.ctypes.data if isinstance(fitting, np.ndarray) else fitting.data_ptr()
            moves.append((region, offset, source, state.first.nbytes))
            kept.append(fitting)
        for region, offset, source, nbytes in moves:
            region.write(offset, source, nbytes)


def _placed(sizes: Sequence[int], store: Callable[[int], Store]) -> list[tuple[Store, int]]:
    """Where tensors of so many bytes lie in a store of their own."""
    ends = np.cumsum([0, *map(placement.align, sizes)]).tolist()
    region = store(ends[-1]) if sizes else None
    return [(region, end) for end in ends[:-1] if region is not None]
