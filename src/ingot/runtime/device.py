"""Devices: where compiled programs run. A device loads code that a target made; it never compiles."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ingot.runtime.bind import Binding, Shape
from ingot.runtime.program import Program
from ingot.support.errors import ArtifactError
from ingot.support.native import Features


class Context(Protocol):
    """What one run of a loaded program has for itself (memory, threads or a stream), for whoever claimed it."""

    def bind(self, shapes: tuple[Shape, ...], /) -> Binding:
        """The program bound to the shapes of inputs and state. Raises InputError for shapes that it does not take."""
        ...

    def run(self, instance: Any, pointers: Sequence[int], resident: Sequence[bool] | None = None, /) -> None:
        """Run what `bind` returned on inputs, state, new state and outputs at these addresses. resident: which of them
        lie in the memory of a device that is not the host; None: none."""
        ...

    def release(self) -> None: ...


class Store(Protocol):
    """Memory of a device that lasts from run to run. All runs that were begun end before it is read or written."""

    address: int

    def read(self, offset: int, nbytes: int, /) -> bytes: ...

    def write(self, offset: int, source: int, nbytes: int, /) -> None:
        """source: an address on the host."""
        ...


class Loaded(Protocol):
    """A program in a device's memory."""

    threads: int

    def store(self, nbytes: int, /) -> Store:
        """Memory for state, all zeros. Raises IngotError where there is not that much."""
        ...

    def claim(self) -> Context: ...

    def prepare(self, shapes: tuple[Shape, ...], /) -> None:
        """Bind these shapes and place their memory before the first run."""
        ...

    def set_profile(self, readings: NDArray[np.int64] | None, /) -> None:
        """Have runs write clock readings, one before the first and one after each step, or stop that."""
        ...

    @property
    def ticks_per_second(self) -> float: ...

    @property
    def arena_bytes(self) -> int: ...


class Device(Protocol):
    """A kind of machine that runs what the target of the same name makes."""

    name: str

    def refusal(self, needs: Features, /) -> ArtifactError | None:
        """Why this machine cannot run code for `needs`; None if it can."""
        ...

    def load(self, program: Program, threads: int | None, /) -> Loaded:
        """Raises InputError for a bad thread count."""
        ...


NAMES = ("cpu", "cuda")


@cache
def _device(name: str) -> Device:
    """Loaded when a program asks for it: what one device needs, the others do not pay for."""
    return import_module(f"ingot.runtime.{name}.device").DEVICE


def refusal(program: Program) -> ArtifactError | None:
    """Why this machine cannot run the program; None if it can."""
    return next((r for code in program.code.values() if (r := refusal_of(code.features)) is not None), None)


def refusal_of(features: Features) -> ArtifactError | None:
    """Why this machine cannot run code for such a machine; None if it can."""
    if features.target_name in NAMES:
        return _device(features.target_name).refusal(features)
    return ArtifactError(
        "the program cannot run here",
        expected=f"code for one of {', '.join(NAMES)}",
        got=str(features),
        fix="save it, or compile the model with target='native'",
    )


def load(program: Program, threads: int | None) -> Loaded:
    """The program on the device that its steps are for. Raises ArtifactError where this machine cannot run it."""
    if refused := refusal(program):
        raise refused
    return _device(program.device).load(program, threads)
