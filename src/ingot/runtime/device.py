"""Devices run compiled programs. A device loads code that a target generated; it never compiles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ingot.runtime.bind import Binding, Shape
from ingot.runtime.program import Program
from ingot.support.energy.counters import EnergyCounters, find_counters
from ingot.support.energy.measure import WINDOWS, Energy, calls_for, measure
from ingot.support.errors import ArtifactError
from ingot.support.native import Features


class Context(Protocol):
    """The resources of one run of a loaded program (memory, threads or a stream), exclusive to their claimant."""

    def bind(self, shapes: tuple[Shape, ...], /) -> Binding:
        """The program bound to the shapes of inputs and state. Raises InputError for unsupported shapes."""
        ...

    def run(self, instance: Any, pointers: Sequence[int], resident: Sequence[bool] | None = None, /) -> None:
        """Run an instance from `bind` on inputs, state, new state and outputs at these addresses. resident: for each of
        them, whether it is in device memory; None: all are in host memory."""
        ...

    def release(self) -> None: ...


class Store(Protocol):
    """Device memory that is kept from run to run. Reading or writing it waits for all runs in progress."""

    address: int

    def read(self, offset: int, nbytes: int, /) -> bytes: ...

    def write(self, offset: int, source: int, nbytes: int, is_resident: bool = False, /) -> None:
        """source: an address on the host, or, if it is resident, in the device's memory."""
        ...


class Loaded(Protocol):
    """A program in a device's memory."""

    threads: int

    def store(self, nbytes: int, /) -> Store:
        """Memory for state, all zeros. Raises IngotError if there is not enough."""
        ...

    def claim(self) -> Context: ...

    def prepare(self, shapes: tuple[Shape, ...], /) -> None:
        """Bind these shapes and allocate their memory before the first run."""
        ...

    def set_profile(self, readings: NDArray[np.int64] | None, /) -> None:
        """Have runs write clock readings, one before the first and one after each step; None: stop writing them."""
        ...

    @property
    def ticks_per_second(self) -> float: ...

    def notes(self) -> list[str]:
        """What runs copy between memories, for people."""
        ...

    @property
    def arena_bytes(self) -> int: ...


class Device(Protocol):
    """A kind of machine, which runs the code of the target of the same name."""

    name: str

    def refusal(self, needs: Features, /) -> ArtifactError | None:
        """The reason why this machine cannot run code that needs these features; None if it can."""
        ...

    def load(self, program: Program, threads: int | None, device_memory: int | None = None, /) -> Loaded:
        """device_memory: bytes of the device's own memory that the program may take; None: as much as it needs. Raises
        InputError for a bad thread count, and for a bound where the device has no memory of its own."""
        ...


NAMES = ("cpu", "cuda", "hip")


@cache
def _device(name: str) -> Device:
    """Import a device on first use: programs for other devices need not pay for it."""
    return import_module(f"ingot.runtime.{name}.device").DEVICE


def refusal(program: Program) -> ArtifactError | None:
    """The reason why this machine cannot run the program; None if it can."""
    return next((r for code in program.code.values() if (r := refusal_of(code.features)) is not None), None)


def refusal_of(features: Features) -> ArtifactError | None:
    """The reason why this machine cannot run code for a machine with these features; None if it can."""
    if features.target_name in NAMES:
        return _device(features.target_name).refusal(features)
    return ArtifactError(
        "the program cannot run here",
        expected=f"code for one of {', '.join(NAMES)}",
        got=str(features),
        fix="save it, or compile the model with target='native'",
    )


def energy_counters(devices: set[str]) -> EnergyCounters:
    """The energy counters of the hardware that runs programs on these devices."""
    gpu = import_module("ingot.runtime.cuda.driver").driver().bus_id if "cuda" in devices else None
    return find_counters(gpu)


def energy_of(call: Callable[[], object], devices: set[str], windows: int = WINDOWS, streams: int = 1) -> Energy:
    """The energy of a call of programs on these devices, by their counters. It is repeated for some seconds in each of
    the windows, by `streams` threads at a time."""

    def finished_call() -> None:
        call()
        if "cuda" in devices:
            gpu = import_module("ingot.runtime.cuda.driver").driver()
            gpu.enter()
            gpu.synchronize_all()

    return measure(calls_for(finished_call, streams=streams), energy_counters(devices), windows)


def copy_rate() -> tuple[float, float]:
    """Bytes/s of copies from the host to this machine's GPU, and the seconds of a small one, measured."""
    gpu = import_module("ingot.runtime.cuda.driver").driver()
    return import_module("ingot.runtime.cuda.streaming").copy_rate(gpu)


def load(program: Program, threads: int | None, device_memory: int | None = None) -> Loaded:
    """Load the program on its device. Raises ArtifactError if this machine cannot run it."""
    if refused := refusal(program):
        raise refused
    return _device(program.device).load(program, threads, device_memory)
