"""The state that a model keeps between calls: caches, counters, running statistics."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ingot.runtime import placement
from ingot.runtime.dtypes import numpy_dtype
from ingot.runtime.program import State
from ingot.runtime.tensors import TensorAdapter, is_tensor
from ingot.support.errors import InputError

if TYPE_CHECKING:
    from ingot.runtime.device import Store

# the name of the state (seed, calls) of the random number generator; no buffer of a module has such a name
RANDOM = "random numbers"


def seed_state(seed: int) -> np.ndarray:
    """The state of random numbers before the first call: i64[2]. Seeds count modulo 2^64."""
    return np.asarray([seed & ((1 << 64) - 1), 0], np.uint64).view(np.int64)


def entropy() -> int:
    """An unpredictable seed from the operating system."""
    return int.from_bytes(os.urandom(8), "little")


class Seeds:
    """Distinct seeds for a model's programs, in the order of their compilation, derived from the first."""

    def __init__(self, first: int = 0) -> None:
        self._next = first

    def take(self) -> int:
        seed = self._next
        self._next += 0x9E3779B97F4A7C15  # a Weyl sequence: keeps the seeds of models with small seeds distinct
        return seed


class StateTensors:
    """The tensors of a program's state. A tensor that a call does not update in place is double-buffered.

    shapes: the tensors' shapes. pointers: the addresses that a run takes between those of its inputs and outputs.
    Serves one call at a time.
    """

    def __init__(self, state: Sequence[State], store: Callable[[int], Store], *, gpu: bool = False) -> None:
        """Start with the initial values. store: allocates memory of the program's device. gpu: new values may be on an
        NVIDIA GPU. Raises IngotError if the device has too little memory."""
        self.shapes = tuple(s.shape for s in state)
        self._state, self._is_on_gpu = state, gpu
        read_slots = _allocate([s.initial.nbytes for s in state], store)
        copies = _allocate([s.initial.nbytes if s.copy_reason else 0 for s in state], store)
        write_slots = [new if s.copy_reason else old for s, old, new in zip(state, read_slots, copies, strict=True)]
        for s, (region, offset) in zip(state, read_slots, strict=True):
            if s.initial.any():
                region.write(offset, s.initial.ctypes.data, s.initial.nbytes)
        self._read_slots, self._write_slots = read_slots, write_slots
        self.pointers = [region.address + offset for region, offset in (*read_slots, *write_slots)]

    def exchange(self) -> None:
        """Swap the buffers: the next call reads what the last one wrote."""
        if self._read_slots != self._write_slots:
            self._read_slots, self._write_slots = self._write_slots, self._read_slots
            count = len(self.shapes)
            self.pointers = [*self.pointers[count:], *self.pointers[:count]]

    def read(self) -> dict[str, np.ndarray]:
        """Copies of the values by name."""
        return {
            s.spec.name: np.frombuffer(region.read(offset, s.initial.nbytes), numpy_dtype(s.spec.dtype))
            .reshape(s.shape)
            .copy()
            for s, (region, offset) in zip(self._state, self._read_slots, strict=True)
        }

    def write(self, values: Mapping[str, object]) -> None:
        """Replace some of the values. Raises InputError if one of them does not fit, and then replaces none."""
        slots = {s.spec.name: (s, place) for s, place in zip(self._state, self._read_slots, strict=True)}
        copies: list[tuple[Store, int, int, int, bool]] = []
        sources: list[object] = []
        for name, value in values.items():
            if name not in slots:
                raise InputError(f"state {name!r}", expected=f"one of {', '.join(slots) or 'none'}", got="no such name")
            state, (region, offset) = slots[name]
            adapter = TensorAdapter(state.spec, gpu=self._is_on_gpu)
            converted = adapter.tensor(value) if is_tensor(value) else adapter.array(value)
            if tuple(converted.shape) != state.shape:
                raise InputError(f"state {name!r}", expected=f"shape {state.shape}", got=tuple(converted.shape))
            is_array = isinstance(converted, np.ndarray)
            source, is_resident = (
                (converted.ctypes.data, False) if is_array else (converted.data_ptr(), converted.is_cuda)
            )
            copies.append((region, offset, source, state.initial.nbytes, is_resident))
            sources.append(converted)
        for region, *copy in copies:
            region.write(*copy)


def _allocate(sizes: Sequence[int], store: Callable[[int], Store]) -> list[tuple[Store, int]]:
    """Allocate one store for tensors of these sizes in bytes. Returns (store, offset) of each."""
    ends = np.cumsum([0, *map(placement.align, sizes)]).tolist()
    region = store(ends[-1]) if sizes else None
    return [(region, end) for end in ends[:-1] if region is not None]
