"""What a `CompiledModel` runs its flat inputs on: one program, here or for another machine; the driver has those that
find a program for each call."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ingot.runtime import artifact, describe, device
from ingot.runtime.arguments import Arguments
from ingot.runtime.bind import Binding, Shape
from ingot.runtime.cpu import memory
from ingot.runtime.expr import Expr
from ingot.runtime.program import Program, TensorSpec
from ingot.runtime.state import RANDOM, Held, seed_state
from ingot.runtime.tensors import Border, Tensor, TensorResults, address
from ingot.support.errors import ArtifactError, IngotError, InputError

Export = Callable[[Program, Path, Path | None], None]


class Executable:
    """Base. inputs, outputs: the specs. threads: of a call. refused: why it cannot run here. returns_tensors: results
    are torch's tensors even where no input is one.

    What asks for the one program raises InputError with the reason where there are several.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    threads: int
    refused: ArtifactError | None = None
    has_state: bool = False
    returns_tensors: bool = False
    is_one_program: bool = True

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """The outputs, of a value for each input in order."""
        raise NotImplementedError

    @property
    def program(self) -> Program:
        raise self.not_one()

    def not_one(self) -> InputError:
        """Why there is no one program, and what to do."""
        raise NotImplementedError

    def plan(self, shapes: Sequence[Shape]) -> str:
        program = self.program
        if not shapes and not program.symbols:
            shapes = static_shapes(program)
        count, state = len(self.inputs), (s.shape for s in program.state)
        told = (*shapes[:count], *state, *shapes[count:])
        return describe.plan(program, Binding(program, told) if shapes else None)

    def calls(self, inputs: Sequence[Any]) -> Sequence[tuple[Any, Sequence[Any]]] | None:
        """The models that a run on these inputs calls, each with its inputs; None where it is one program."""
        return None

    def profile(self, inputs: Sequence[Any]) -> list[tuple[str, float]]:
        raise self.not_one()

    def state(self) -> dict[str, Any]:
        raise self.not_one()

    def set_state(self, values: Mapping[str, object]) -> None:
        raise self.not_one()

    def seed(self, seed: int) -> None:
        raise self.not_one()

    def save(self, path: Path, weights: Path | None) -> None:
        raise self.not_one()

    @property
    def arena_bytes(self) -> int:
        raise self.not_one()

    def __repr__(self) -> str:
        raise NotImplementedError


class UnloadedProgram(Executable):
    """A program that does not run here: to be saved and looked at. Running it raises ArtifactError."""

    def __init__(
        self, program: Program, threads: int = 0, refused: ArtifactError | None = None, export: Export | None = None
    ) -> None:
        """threads: what it was compiled for. refused: why it cannot run here. export: how it is saved, if not as an
        artifact."""
        self._program = program
        self.inputs, self.outputs, self.threads = program.inputs, program.outputs, threads
        self.refused = refused or ArtifactError("a program", expected="a device to run it", got="none")
        self._export = export

    @property
    def program(self) -> Program:
        return self._program

    def not_one(self) -> ArtifactError:  # type: ignore[override]
        assert self.refused is not None
        return self.refused

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        raise self.not_one()

    def save(self, path: Path, weights: Path | None) -> None:
        if self._export is None:
            save(self._program, path, weights)
        else:
            self._export(self._program, path, weights)

    def __repr__(self) -> str:
        return f"{_signature(self)}, {len(self._program.steps)} steps, {self._program.features}"


class LoadedProgram(Executable):
    """A program in memory. As many calls run side by side as there are cores for their threads, each in an arena of its
    own, the others wait. One with state takes one call at a time."""

    def __init__(self, program: Program, threads: int | None = None) -> None:
        """Map the code and, if no shape is dynamic, place all memory.

        Raises ArtifactError when this machine lacks a feature the code needs, InputError for a bad thread count.
        """
        self._program = program
        self.inputs, self.outputs = program.inputs, program.outputs
        self._loaded = device.load(program, threads)
        self.threads = self._loaded.threads
        self._arguments = Arguments(program)
        self._makers = [Border(spec) for spec in program.outputs]
        self._held = Held(program.state, self._loaded.store)
        self.has_state = bool(self._held.shapes)
        self._results = memory.Results(len(program.outputs))
        self._tensor_results = TensorResults(len(program.outputs))
        self.turn = threading.RLock()  # of whoever uses the state
        if not program.symbols and not any(spec.elements for spec in program.inputs):
            self._loaded.prepare((*static_shapes(program), *self._held.shapes))

    @property
    def program(self) -> Program:
        return self._program

    def run(self, inputs: Sequence[object]) -> list[np.ndarray | Tensor]:
        """Raises InputError for a wrong number, dtype, shape or device."""
        _values, pointers, told = self._arguments.take(inputs)  # the run reads the values' memory
        held = self._held
        if held.shapes:
            self.turn.acquire()
        context = None
        try:
            context = self._loaded.claim()
            instance = context.bind(told.shapes)
            if held.shapes:
                pointers += held.pointers
            results: list[np.ndarray | Tensor] = []
            for maker, (shape, strides, nbytes) in zip(self._makers, instance.results, strict=True):
                is_large = nbytes >= memory.LARGE and told.place is None
                if told.tensors or self.returns_tensors:
                    if is_large or told.place is not None:
                        room = self._tensor_results.take(nbytes) if is_large else None
                        result = maker.new_tensor(shape, strides, room, told.place)
                    else:  # the same, without a call more
                        result = maker.empty(shape, strides, maker.torch_dtype)
                    pointers.append(result.data_ptr())
                else:
                    result = maker.new_array(shape, self._results.take(nbytes) if is_large else None)
                    pointers.append(address(result))
                results.append(result)
            context.run(instance, pointers, told.resident)
            if self._program.sizes:
                shapes = zip(self._makers, results, instance.cut(), strict=True)
                results = [maker.cut(result, shape) for maker, result, shape in shapes]
            if held.shapes:
                held.exchange()
            return results
        except MemoryError as e:
            raise IngotError("out of memory", got=str(e) or "no room", fix="use smaller inputs or batches") from e
        finally:
            if context is not None:
                context.release()
            if held.shapes:
                self.turn.release()

    def profile(self, inputs: Sequence[object]) -> list[tuple[str, float]]:
        kept = self.state()
        self.run(inputs)
        readings = np.zeros(len(self._program.steps) + 1, np.int64)
        self._loaded.set_profile(readings)
        try:
            self.run(inputs)
        finally:
            self._loaded.set_profile(None)
            self.set_state(kept)
        seconds = np.diff(readings) / self._loaded.ticks_per_second
        return [(step.label or step.kernel, float(t)) for step, t in zip(self._program.steps, seconds, strict=True)]

    def state(self) -> dict[str, np.ndarray]:
        with self.turn:
            context = self._loaded.claim()
            try:
                return self._held.read()
            finally:
                context.release()

    def set_state(self, values: Mapping[str, object]) -> None:
        with self.turn:
            context = self._loaded.claim()
            try:
                self._held.write(values)
            finally:
                context.release()

    def seed(self, seed: int) -> None:
        if any(s.spec.name == RANDOM for s in self._program.state):
            self.set_state({RANDOM: seed_state(seed)})

    def save(self, path: Path, weights: Path | None) -> None:
        save(self._program, path, weights)

    @property
    def arena_bytes(self) -> int:
        return self._loaded.arena_bytes

    def __repr__(self) -> str:
        return f"{_signature(self)}, {len(self._program.steps)} steps, {self.threads} threads"


class UnrankedSpec(TensorSpec):
    """An input or output of which the model's file does not say how many axes it has, or not before a call.

    dtype: "" where the file does not say it either. Its shape raises InputError.
    """

    def __init__(self, name: str, dtype: str = "") -> None:
        for field, value in (("name", name), ("dtype", dtype), ("elements", ())):
            object.__setattr__(self, field, value)

    @property
    def shape(self) -> tuple[Expr, ...]:  # type: ignore[override]
        raise InputError(
            f"the shape of {self.name}", expected="a model that says it", got="one whose calls do",
            fix="m.for_inputs(...) gives the program of a call, whose shapes are known",
        )  # fmt: skip

    @property
    def static_size(self) -> int | None:
        return None

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[...]" if self.dtype else self.name


def save(program: Program, path: Path, weights: Path | None = None) -> None:
    """Write an artifact."""
    if weights is not None:
        raise InputError("weights", expected="none: an artifact holds its own", got=str(weights))
    artifact.save(program, path)


def static_shapes(program: Program) -> tuple[tuple[int, ...], ...]:
    """Of the inputs of a program without symbols."""
    return tuple(tuple(dim for dim in spec.shape if isinstance(dim, int)) for spec in program.inputs)


def _signature(executable: Executable) -> str:
    return f"{', '.join(map(str, executable.inputs))} -> {', '.join(map(str, executable.outputs))}"
