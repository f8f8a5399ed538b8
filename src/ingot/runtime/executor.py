"""`CompiledModel`: what `ingot.compile` and `ingot.load` return, callable from Python."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import numpy as np

from ingot.runtime import describe
from ingot.runtime.bind import Shape
from ingot.runtime.executable import Executable, LoadedProgram
from ingot.runtime.other_sizes import OtherSizes
from ingot.runtime.program import Program, TensorSpec
from ingot.runtime.state import entropy
from ingot.support.dataclass import dataclass
from ingot.support.errors import ArtifactError, InputError, SizesError

Run = Callable[[Sequence[Any]], Sequence[Any]]
Result = TypeVar("Result")

_RUNS = 15  # of an explanation: a step's time is their median


@dataclass(frozen=True)
class Convention:
    """How a model is called: with the arguments of the program that it comes from, for this program's results.

    flatten: (args, kwargs) to the flat inputs. bind: from what runs these to what is called. state: a value of the
    state as the program's framework has it.
    """

    flatten: Callable[[Sequence[Any], Mapping[str, Any]], Sequence[Any]]
    bind: Callable[[Executable], Callable[..., Any]]
    state: Callable[[Any], Any] | None = None


def trees(
    flatten: Callable[[Sequence[Any], Mapping[str, Any]], Sequence[Any]], unflatten: Callable[[Sequence[Any]], Any]
) -> Convention:
    """The convention of a program of flat inputs and outputs that its caller has in structures."""

    def bind(executable: Executable) -> Callable[..., Any]:
        run = executable.run

        def call(*args: Any, **kwargs: Any) -> Any:
            return unflatten(run(flatten(args, kwargs)))

        return call

    return Convention(flatten, bind)


class CompiledModel:
    """A compiled model. Call it with positional inputs in the model's order, or by name; one that comes from a program
    of a framework (PyTorch, JAX) with this program's own arguments, for its own results.

    Inputs are numpy arrays, torch tensors or DLPack objects in CPU memory, of exactly the declared dtype; C-contiguous
    ones are read in place. A program for GPUs takes torch's CUDA tensors, too, and answers in such, on their stream;
    DLPack objects on the GPU, such as CuPy's and JAX's arrays, are read in place.
    Outputs are fresh arrays (torch tensors if any input is one): one array, or a tuple in
    the model's output order. Safe to call from several threads: as many calls run side by side as there are cores for
    their threads, each in an arena of its own, the others wait. A model with state (`state`) takes one call at a time.
    Ctrl-C in the main thread ends a call on a CPU at the next border of chunks, mostly within a third of a second, and
    the model can be called again; state that it writes in place may be written in part.

    Most models are one program. Where values of inputs decide ranks, axes or branches, where a model keeps attributes
    that do, and where the host computes some of it (strings, images), there is a program for each case that calls
    bring: `for_inputs` gives that of a call, and what needs the one program (`save`, `dump`, `plan`) says so.

    inputs, outputs: the specs (name, dtype, symbolic shape). threads: the caller and its workers. refused: why it
    cannot run on this machine, where it was compiled for another one.
    """

    def __init__(
        self, program: Program | Executable, *, threads: int | None = None, convention: Convention | None = None
    ) -> None:
        """program: as it is, or loaded. Raises ArtifactError when this machine lacks a feature that the code needs,
        InputError for a bad thread count."""
        executable = LoadedProgram(program, threads) if isinstance(program, Program) else program
        self._executable, self._convention = executable, convention
        self.inputs: tuple[TensorSpec, ...] = executable.inputs
        self.outputs: tuple[TensorSpec, ...] = executable.outputs
        self.threads = executable.threads
        self._names = {spec.name: index for index, spec in enumerate(self.inputs)}
        self._run = executable.run
        self._call: Callable[..., Any] | None = None if convention is None else convention.bind(executable)
        if executable.refused is not None:  # whatever the arguments are
            self._call = lambda *args, **kwargs: executable.run(args)
        self._others: OtherSizes | None = None  # where calls of other sizes go

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model. Raises InputError for a wrong number, name, dtype, shape or device, and what compiling raises
        where a call brings a new case."""
        try:
            if self._call is not None:
                return self._call(*args, **kwargs)
            inputs = args if not kwargs and len(args) == len(self.inputs) else self._ordered(args, kwargs)
            results = self._run(inputs)
            return results[0] if len(results) == 1 else tuple(results)
        except SizesError as e:
            return self._elsewhere(e, lambda other: other(*args, **kwargs))

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """The outputs as a list, of a value for each input in order. Raises as a call does."""
        try:
            return self._run(inputs)
        except SizesError as e:
            return self._elsewhere(e, lambda other: other.run(inputs))

    def for_inputs(self, *args: Any, **kwargs: Any) -> CompiledModel:
        """The model of the one program that a call with these arguments runs: to save, to look at, or to compile ahead.
        It lacks the inputs whose values decide. Raises InputError where a call runs several."""
        nested = self._executable.calls(self._flat(args, kwargs))
        if nested is None:
            return self
        if len(nested) != 1:
            raise self._executable.not_one()
        ((model, inputs),) = nested
        return model if model._executable.calls(inputs) is None else model.for_inputs(*inputs)

    def flat(self) -> CompiledModel:
        """The same model, called with its flat inputs, in order or by name, for its flat outputs."""
        return self if self._convention is None else CompiledModel(self._executable)

    # --- the program

    @property
    def is_one_program(self) -> bool:
        """Whether every call runs the same program, but for sizes that it does not hold for."""
        return self._executable.is_one_program

    @property
    def program(self) -> Program:
        """The one program, as plain data. Raises InputError where there are several."""
        return self._executable.program

    @property
    def refused(self) -> ArtifactError | None:
        return self._executable.refused

    def plan(self, *shapes: Shape) -> str:
        """A table of buffers and steps; with input shapes also their sizes and places.

        Behind the shapes come the values of each input whose elements are sizes. Where the host computes some of the
        model, its stages.
        """
        return self._executable.plan(shapes)

    def dump(self, stage: str) -> str:
        """The IR text of a compilation stage. Raises InputError that lists the stages there are."""
        if stage == "plan":
            return self.plan()
        stages = self.program.stages
        if stage not in stages:
            raise InputError("dump", expected=f"one of {', '.join([*stages, 'plan'])}", got=repr(stage))
        return stages[stage]

    def save(self, path: str | os.PathLike[str], *, weights: str | os.PathLike[str] | None = None) -> None:
        """Write one file that `ingot.load` reads, with the first values of the state; for C the source and its header.

        weights: a file of their own for them, where the target has such. Raises ArtifactError and InputError; the old
        file, if any, is then untouched.
        """
        self._executable.save(Path(path), None if weights is None else Path(weights))

    # --- time and memory

    def profile(self, *args: Any, **kwargs: Any) -> list[tuple[str, float]]:
        """Run once to warm up and once with a clock: (label, seconds) of each step, in order.

        Readings are of one run only if no other thread calls the model meanwhile. State is afterwards what it was.
        """
        parts = self._programs(self._flat(args, kwargs))
        try:
            return [row for model, inputs in parts for row in model._executable.profile(inputs)]
        except SizesError as e:
            return self._elsewhere(e, lambda other: other.profile(*args, **kwargs))

    def explain(self, *args: Any, **kwargs: Any) -> str:
        """Run on these inputs and say where the time goes: a table of steps, the slowest first, and what they compute.

        `ingot explain` measures the machine's limits too, and knows why a kernel is one of its own.
        """
        parts = self._programs(self._flat(args, kwargs))
        try:
            return "\n\n".join(describe.times(model.program, model._times(inputs)) for model, inputs in parts)
        except SizesError as e:
            return self._elsewhere(e, lambda other: other.explain(*args, **kwargs))

    def _times(self, inputs: Sequence[Any]) -> list[float]:
        """Median seconds of each step."""
        runs = [[t for _, t in self._executable.profile(inputs)] for _ in range(_RUNS)]
        return np.median(runs, axis=0).tolist()

    @property
    def arena_bytes(self) -> int:
        """Bytes that intermediate values need at the largest shapes seen; of all calls, where they overlapped. On a CPU
        other models with as many threads, if these are several, use the same memory."""
        return self._executable.arena_bytes

    # --- state

    def state(self) -> dict[str, Any]:
        """What the model keeps from call to call (caches, counters), by name; {} for most. Copies."""
        state = self._executable.state()
        convert = None if self._convention is None else self._convention.state
        return state if convert is None else {name: convert(value) for name, value in state.items()}

    def set_state(self, values: Mapping[str, object]) -> None:
        """Set some of the state, as `state` gives it. Raises InputError for a name, dtype or shape that is not its."""
        self._executable.set_state(values)

    def seed(self, seed: int | None = None) -> None:
        """Draw random numbers as a model of this seed does from its first call on; None: of one that the system gives.

        A model starts with seed 0. One that draws none stays as it is.
        """
        self._executable.seed(entropy() if seed is None else seed)

    # --- calls

    def _flat(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[Any]:
        return self._ordered(args, kwargs) if self._convention is None else self._convention.flatten(args, kwargs)

    def _programs(self, inputs: Sequence[Any]) -> Iterator[tuple[CompiledModel, Sequence[Any]]]:
        """The models of one program each that a call runs, with their inputs."""
        nested = self._executable.calls(inputs)
        if nested is None:
            yield self, inputs
        for model, given in nested or ():
            yield from model._programs(given)

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

    def _elsewhere(self, refused: SizesError, call: Callable[[CompiledModel], Result]) -> Result:
        """What `call` gives of the model for the sizes that this one refused; it has this one's state meanwhile.

        Raises `refused` where there is none.
        """
        own = self._executable
        if self._others is None:
            raise refused
        if not own.has_state or not isinstance(own, LoadedProgram):
            return self._others.call(refused, call)

        def lent(other: CompiledModel) -> Result:
            state = own.state()
            other.set_state({name: state[name] for name in other._executable.state()})
            result = call(other)
            own.set_state(other._executable.state())
            return result

        with own.turn:
            return self._others.call(refused, lent)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a compiled model is not copied or pickled: m.save(path), and ingot.load(path) where it runs")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._executable!r})"
