"""`CompiledModel`: a program in memory, callable from Python."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import numpy as np

from ingot.runtime import artifact, describe, device
from ingot.runtime.arguments import Arguments
from ingot.runtime.bind import Binding, Shape
from ingot.runtime.cpu import memory
from ingot.runtime.other_sizes import OtherSizes
from ingot.runtime.program import Program, TensorSpec
from ingot.runtime.state import RANDOM, Held, entropy, seed_state
from ingot.runtime.tensors import Border, Tensor, address
from ingot.support.errors import ArtifactError, IngotError, InputError, SizesError

Result = TypeVar("Result")

_RUNS = 15  # of an explanation: a step's time is their median


class CompiledProgram:
    """A program for a machine that this one is not: to be saved and looked at. Calling it raises ArtifactError.

    inputs, outputs: the specs (name, dtype, symbolic shape).
    """

    def __init__(
        self,
        program: Program,
        threads: int = 0,
        refused: ArtifactError | None = None,
        export: Callable[[Program, Path, Path | None], None] | None = None,
    ) -> None:
        """threads: what it was compiled for. refused: why it cannot run here. export: how it is saved, if not as an
        artifact."""
        self.program = program
        self.inputs: tuple[TensorSpec, ...] = program.inputs
        self.outputs: tuple[TensorSpec, ...] = program.outputs
        self.threads, self.refused, self._export = threads, refused, export

    def __call__(self, *args: object, **kwargs: object) -> Any:
        return self.run(args)

    def run(self, inputs: Sequence[object]) -> list[np.ndarray | Tensor]:
        raise self.refused or ArtifactError("a program", expected="a device to run it", got="none")

    def plan(self, *shapes: Shape) -> str:
        """A table of buffers and steps; with input shapes also their sizes and places.

        Behind the shapes come the values of each input whose elements are sizes.
        """
        if not shapes and not self.program.symbols:
            shapes = self._static_shapes()
        count, state = len(self.inputs), (s.shape for s in self.program.state)
        told = (*shapes[:count], *state, *shapes[count:])
        return describe.plan(self.program, Binding(self.program, told) if shapes else None)

    def _static_shapes(self) -> tuple[Shape, ...]:
        """Of a program without symbols."""
        return tuple(tuple(dim for dim in spec.shape if isinstance(dim, int)) for spec in self.inputs)

    def dump(self, stage: str) -> str:
        """The IR text of a compilation stage. Raises InputError that lists the stages there are."""
        if stage == "plan":
            return self.plan()
        if stage not in self.program.stages:
            raise InputError("dump", expected=f"one of {', '.join([*self.program.stages, 'plan'])}", got=repr(stage))
        return self.program.stages[stage]

    def save(self, path: str | os.PathLike[str], *, weights: str | os.PathLike[str] | None = None) -> None:
        """Write one file that `ingot.load` reads, with the first values of the state; for C the source and its header.

        weights: a file of their own for them, where the target has such. Raises ArtifactError and InputError; the old
        file, if any, is then untouched.
        """
        if self._export is not None:
            self._export(self.program, Path(path), None if weights is None else Path(weights))
        elif weights is not None:
            raise InputError("weights", expected="none: an artifact holds its own", got=str(weights))
        else:
            artifact.save(self.program, Path(path))

    def __reduce__(self) -> NoReturn:
        raise TypeError("a compiled model is not copied or pickled: m.save(path), and ingot.load(path) where it runs")

    def __repr__(self) -> str:
        inputs, outputs = ", ".join(map(str, self.inputs)), ", ".join(map(str, self.outputs))
        name, steps = type(self).__name__, len(self.program.steps)
        return f"{name}({inputs} -> {outputs}, {steps} steps, {self.program.features})"


class CompiledModel(CompiledProgram):
    """A compiled model. Call it with positional inputs in the model's order, or by name.

    Inputs are numpy arrays, torch tensors or DLPack objects in CPU memory, of exactly the declared dtype; C-contiguous
    ones are read in place. A program for GPUs takes torch's CUDA tensors, too, and answers in such, on their stream;
    DLPack objects on the GPU, such as CuPy's and JAX's arrays, are read in place.
    Outputs are fresh arrays (torch tensors if any input is one): one array, or a tuple in
    the model's output order. Safe to call from several threads: as many calls run side by side as there are cores for
    their threads, each in an arena of its own, the others wait. A model with state (`state`) takes one call at a time.
    Ctrl-C in the main thread ends a call on a CPU at the next border of chunks, mostly within a third of a second, and
    the model can be called again; state that it writes in place may be written in part.

    inputs, outputs: the specs (name, dtype, symbolic shape). threads: the caller and its workers.
    """

    def __init__(self, program: Program, *, threads: int | None = None) -> None:
        """Map the code and, if no shape is dynamic, place all memory.

        Raises ArtifactError when this machine lacks a feature the code needs, InputError for a bad thread count.
        """
        super().__init__(program)
        self._loaded = device.load(program, threads)
        self.threads = self._loaded.threads
        self._names = {spec.name: index for index, spec in enumerate(program.inputs)}
        self._arguments = Arguments(program)
        self._makers = [Border(spec) for spec in program.outputs]
        self._held = Held(program.state, self._loaded.store)
        self._results = memory.Results(len(program.outputs))
        self._turn = threading.RLock()  # of whoever uses the state
        self.others: OtherSizes | None = None  # where calls of other sizes go
        if not program.symbols and not any(spec.elements for spec in program.inputs):
            self._loaded.prepare((*self._static_shapes(), *self._held.shapes))

    def __call__(self, *args: object, **kwargs: object) -> Any:
        """Run the model. Raises InputError for a wrong number, name, dtype, shape or device."""
        if kwargs or len(args) != len(self.inputs):
            args = self._ordered(args, kwargs)
        results = self.run(args)
        return results[0] if len(results) == 1 else tuple(results)

    def run(self, inputs: Sequence[object]) -> list[np.ndarray | Tensor]:
        """The outputs as a list, of a value for each input in order. Raises as a call does."""
        _values, pointers, told = self._arguments.take(inputs)  # the run reads the values' memory
        held = self._held
        if held.shapes:
            self._turn.acquire()
        context = None
        try:
            context = self._loaded.claim()
            instance = context.bind(told.shapes)
            if held.shapes:
                pointers += held.pointers
            results: list[np.ndarray | Tensor] = []
            for maker, (shape, strides, nbytes) in zip(self._makers, instance.results, strict=True):
                room = self._results.take(nbytes) if nbytes >= memory.LARGE and told.place is None else None
                if told.tensors:
                    result = maker.new_tensor(shape, strides, room, told.place)
                    pointers.append(result.data_ptr())
                else:
                    result = maker.new_array(shape, room)
                    pointers.append(address(result))
                results.append(result)
            context.run(instance, pointers, told.resident)
            if self.program.sizes:
                shapes = zip(self._makers, results, instance.cut(), strict=True)
                results = [maker.cut(result, shape) for maker, result, shape in shapes]
            if held.shapes:
                held.exchange()
            return results
        except SizesError as e:
            refused = e
        except MemoryError as e:
            raise IngotError("out of memory", got=str(e) or "no room", fix="use smaller inputs or batches") from e
        finally:
            if context is not None:
                context.release()
            if held.shapes:
                self._turn.release()
        return self.elsewhere(self.others, refused, lambda other: other.run(inputs))

    def elsewhere(self, others: OtherSizes | None, refused: SizesError, call: Callable[[Any], Result]) -> Result:
        """What `call` gives of the program for the sizes that this one refused; it has this one's state meanwhile.

        Raises `refused` where there is none.
        """
        if others is None:
            raise refused
        if not self._held.shapes:
            return others.call(refused, call)

        def lent(other: Any) -> Result:
            own = self.state()
            other.set_state({name: own[name] for name in other.state()})
            result = call(other)
            self.set_state(other.state())
            return result

        with self._turn:
            return others.call(refused, lent)

    def state(self) -> dict[str, np.ndarray]:
        """What the model keeps from call to call (caches, counters), by name; {} for most. Copies."""
        with self._turn:
            context = self._loaded.claim()
            try:
                return self._held.read()
            finally:
                context.release()

    def set_state(self, values: Mapping[str, object]) -> None:
        """Set some of the state, as `state` gives it. Raises InputError for a name, dtype or shape that is not its."""
        with self._turn:
            context = self._loaded.claim()
            try:
                self._held.write(values)
            finally:
                context.release()

    def seed(self, seed: int | None = None) -> None:
        """Draw random numbers as a model of this seed does from its first call on; None: of one that the system gives.

        A model starts with seed 0. One that draws none stays as it is.
        """
        if any(s.spec.name == RANDOM for s in self.program.state):
            self.set_state({RANDOM: seed_state(entropy() if seed is None else seed)})

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

    def profile(self, *args: object, **kwargs: object) -> list[tuple[str, float]]:
        """Run once to warm up and once with a clock: (label, seconds) of each step, in order.

        Readings are of one run only if no other thread calls the model meanwhile. State is afterwards what it was.
        """
        kept = self.state()
        self(*args, **kwargs)
        readings = np.zeros(len(self.program.steps) + 1, np.int64)
        self._loaded.set_profile(readings)
        try:
            self(*args, **kwargs)
        finally:
            self._loaded.set_profile(None)
            self.set_state(kept)
        seconds = np.diff(readings) / self._loaded.ticks_per_second
        return [(step.label or step.kernel, float(t)) for step, t in zip(self.program.steps, seconds, strict=True)]

    def explain(self, *args: object, **kwargs: object) -> str:
        """Run on these inputs and say where the time goes: a table of steps, the slowest first, and what they compute.

        `ingot explain` measures the machine's limits too, and knows why a kernel is one of its own.
        """
        return describe.times(self.program, self._times(args, kwargs))

    def _times(self, args: Sequence[object], kwargs: Mapping[str, object]) -> list[float]:
        """Median seconds of each step."""
        runs = [[t for _, t in self.profile(*args, **kwargs)] for _ in range(_RUNS)]
        return np.median(runs, axis=0).tolist()

    @property
    def arena_bytes(self) -> int:
        """Bytes that intermediate values need at the largest shapes seen; of all calls, where they overlapped. On a CPU
        other models with as many threads, if these are several, use the same memory."""
        return self._loaded.arena_bytes

    def __repr__(self) -> str:
        inputs, outputs = ", ".join(map(str, self.inputs)), ", ".join(map(str, self.outputs))
        return f"CompiledModel({inputs} -> {outputs}, {len(self.program.steps)} steps, {self.threads} threads)"
