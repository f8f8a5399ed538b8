"""`CompiledModel`: a program in memory, callable from Python."""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from ingot.runtime import artifact, describe, image, memory
from ingot.runtime.bind import Instance, Shape
from ingot.runtime.pool import Pool, default_threads, pool_for, ticks_per_second
from ingot.runtime.program import Program, TensorSpec
from ingot.runtime.tensors import Border, Tensor, is_tensor
from ingot.support.errors import ArtifactError, InputError
from ingot.support.native import host

_run = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
# Bound shapes kept at a time; each holds only its tables, the arena is shared.
MAX_INSTANCES = 16

_models: weakref.WeakSet[CompiledModel] = weakref.WeakSet()


class CompiledModel:
    """A compiled model. Call it with positional inputs in the model's order, or by name.

    Inputs are numpy arrays, torch tensors or DLPack objects in CPU memory, of exactly the declared dtype; C-contiguous
    ones are read in place. Outputs are fresh arrays (torch tensors if any input is one): one array, or a tuple in
    the model's output order. Safe to call from several threads: models with the same thread count run one at a time.

    inputs, outputs: the specs (name, dtype, symbolic shape). threads: the caller and its workers.
    """

    def __init__(self, program: Program, *, threads: int | None = None) -> None:
        """Map the code and, if no shape is dynamic, place all memory.

        Raises ArtifactError when this machine lacks a feature the code needs, InputError for a bad thread count.
        """
        machine = host()
        missing = machine.missing(program.isa.features)
        if program.isa.arch != machine.arch or missing:
            needs = program.isa.arch + (f" with {', '.join(missing)}" if missing else "")
            raise ArtifactError(
                "the program was compiled for another machine",
                expected=needs,
                got=f"{machine.arch} with {', '.join(machine.features) or 'no extensions'}",
                fix="compile the model on this machine",
            )
        self.program = program
        self.inputs: tuple[TensorSpec, ...] = program.inputs
        self.outputs: tuple[TensorSpec, ...] = program.outputs
        self.threads = default_threads() if threads is None else threads
        self._image = image.CodeImage(program.code)
        self._pool: Pool | None = pool_for(self.threads, self._image)
        self._run = _run(self._image.address("ingot_run"))
        self._weights = program.weights
        if self._weights.ctypes.data % memory.ALIGNMENT:
            self._weights = memory.aligned_bytes(program.weights.nbytes)
            self._weights[:] = program.weights
        # A whole number of cache lines, and one more, so that threads' scratches do not fall on the same L1 sets.
        self._stride = memory.align(program.scratch_bytes) + memory.ALIGNMENT
        self._scratch = memory.Region(self._stride * self.threads)
        self._arena = memory.Region(1)
        self._current: Instance | None = None
        self._instances: dict[tuple[Shape, ...], Instance] = {}
        self._uses = 0
        self._names = {spec.name: index for index, spec in enumerate(program.inputs)}
        self._borders = [Border(spec) for spec in program.inputs]
        self._makers = [Border(spec) for spec in program.outputs]
        self._results = memory.Results(len(program.outputs))
        _models.add(self)
        if not program.symbols:
            shapes = tuple(tuple(dim for dim in spec.shape if isinstance(dim, int)) for spec in program.inputs)
            with self._revive().lock:
                self._activate(self._instance(shapes))

    def __call__(self, *args: object, **kwargs: object) -> object:
        """Run the model. Raises InputError for a wrong number, name, dtype, shape or device."""
        if kwargs or len(args) != len(self._borders):
            args = self._ordered(args, kwargs)
        results = self.run(args)
        return results[0] if len(results) == 1 else tuple(results)

    def run(self, inputs: Sequence[object]) -> list[np.ndarray | Tensor]:
        """The outputs as a list, of a value for each input in order. Raises as a call does."""
        arrays: list[np.ndarray | Tensor] = []
        pointers: list[int] = []
        kind: type | None = None  # of the last tensor
        for border, value in zip(self._borders, inputs, strict=True):
            if type(value) is kind or is_tensor(value):
                kind = type(value)
                tensor = border.tensor(value)  # type: ignore[arg-type]
                arrays.append(tensor)
                pointers.append(tensor.data_ptr())
            else:
                array = border.array(value)
                arrays.append(array)
                pointers.append(array.__array_interface__["data"][0])
        shapes = tuple([array.shape for array in arrays])
        instance = self._instances.get(shapes) or self._instance(tuple(map(tuple, shapes)))
        results: list[np.ndarray | Tensor] = []
        for maker, (shape, strides, nbytes) in zip(self._makers, instance.results, strict=True):
            place = self._results.take(nbytes) if nbytes >= memory.LARGE else None
            if kind is not None:
                result = maker.new_tensor(shape, strides, place)
                pointers.append(result.data_ptr())
            else:
                result = maker.new_array(shape, place)
                pointers.append(result.__array_interface__["data"][0])
            results.append(result)
        with (self._pool or self._revive()).lock:
            if instance is not self._current:
                self._activate(instance)
            bases = instance.bases
            slot = 2
            for pointer in pointers:
                bases[slot] = pointer
                slot += 1
            self._run(instance.address)
        return results

    def _ordered(self, args: Sequence[object], kwargs: Mapping[str, object]) -> tuple[object, ...]:
        declared = ", ".join(map(str, self.inputs))
        if len(args) > len(self.inputs):
            raise InputError("inputs", expected=f"{len(self.inputs)} ({declared})", got=f"{len(args)} values")
        values: dict[int, object] = dict(enumerate(args))
        for name, value in kwargs.items():
            index = self._names.get(name)
            if index is None:
                raise InputError(f"input {name!r}", expected=f"one of {declared}", got="no such name")
            if index in values:
                raise InputError(f"input {name!r}", expected="one value", got="a positional and a named one")
            values[index] = value
        missing = [spec.name for index, spec in enumerate(self.inputs) if index not in values]
        if missing:
            raise InputError("inputs", expected=declared, got=f"none for {', '.join(missing)}")
        return tuple(values[index] for index in range(len(self.inputs)))

    def _instance(self, shapes: tuple[Shape, ...]) -> Instance:
        """The program bound to these shapes. A miss binds it and drops the least recently activated of too many."""
        instance = Instance(self.program, shapes, self._image)
        instances = dict(self._instances)
        while len(instances) >= MAX_INSTANCES:
            del instances[min(instances, key=lambda key: instances[key].last_used)]
        instances[shapes] = instance
        # Replaced as a whole: readers take no lock.
        self._instances = instances
        return instance

    def _revive(self) -> Pool:
        """The pool; a new one in the child after a fork."""
        if self._pool is None:
            self._pool = pool_for(self.threads, self._image)
            self._current = None
        return self._pool

    def _activate(self, instance: Instance) -> None:
        """Make the arena this instance's. The pool's lock is held."""
        layout = instance.layout
        fresh = layout.nbytes > self._arena.nbytes
        if fresh:
            self._arena = memory.Region(1)  # let the old one go first: peak memory is one arena
            self._arena = memory.Region(layout.nbytes)
        for offset, nbytes, byte in layout.filled:
            # fresh memory is zero; elsewhere another instance's buffers may have lain
            if byte or not fresh:
                self._arena.fill(offset, nbytes, byte)
        instance.attach(
            pool=self._revive().address,
            arena=self._arena.address,
            weights=self._weights.ctypes.data,
            scratch=self._scratch.address,
            stride=self._stride,
        )
        self._uses += 1
        instance.last_used = self._uses
        self._current = instance

    def profile(self, *args: object, **kwargs: object) -> list[tuple[str, float]]:
        """Run once to warm up and once with a clock: (label, seconds) of each step, in order.

        Readings are of one run only if no other thread calls the model meanwhile.
        """
        self(*args, **kwargs)
        readings = np.zeros(len(self.program.steps) + 1, np.int64)
        pool = self._revive()
        with pool.lock:
            instance = self._current
            assert instance is not None
            instance.set_profile(readings)
        try:
            self(*args, **kwargs)
        finally:
            with pool.lock:  # a run under way still writes to the readings
                instance.set_profile(None)
        seconds = np.diff(readings) / ticks_per_second(self._image)
        return [(step.label or step.kernel, float(t)) for step, t in zip(self.program.steps, seconds, strict=True)]

    @property
    def arena_bytes(self) -> int:
        """Bytes of the arena as it stands (it grows with the largest shapes seen)."""
        return self._arena.nbytes

    def plan(self, *shapes: Shape) -> str:
        """A table of buffers and steps; with input shapes also their sizes and places."""
        if not shapes and not self.program.symbols:
            shapes = next(iter(self._instances))
        instance = Instance(self.program, shapes, self._image) if shapes else None
        return describe.plan(self.program, instance)

    def dump(self, stage: str) -> str:
        """The IR text of a compilation stage. Raises InputError that lists the stages there are."""
        if stage == "plan":
            return self.plan()
        if stage not in self.program.stages:
            raise InputError("dump", expected=f"one of {', '.join([*self.program.stages, 'plan'])}", got=repr(stage))
        return self.program.stages[stage]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one file that `ingot.load` reads. Raises ArtifactError; the old file, if any, is then untouched."""
        artifact.save(self.program, Path(path))

    def __repr__(self) -> str:
        inputs, outputs = ", ".join(map(str, self.inputs)), ", ".join(map(str, self.outputs))
        return f"CompiledModel({inputs} -> {outputs}, {len(self.program.steps)} steps, {self.threads} threads)"


def _after_fork() -> None:
    for model in list(_models):
        model._pool = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
