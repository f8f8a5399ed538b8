"""`CompiledModel`: the result of `ingot.compile` and `ingot.load`, callable from Python."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import numpy as np

from ingot.runtime import describe, device
from ingot.runtime.arguments import UNPACKED, Packing
from ingot.runtime.bind import Shape
from ingot.runtime.executable import Executable, LoadedProgram, Repeated
from ingot.runtime.other_sizes import OtherSizes
from ingot.runtime.program import Program, TensorSpec
from ingot.runtime.state import entropy
from ingot.support.dataclass import dataclass
from ingot.support.energy.measure import Energy, Profile
from ingot.support.errors import ArtifactError, InputError, SizesError

Run = Callable[[Sequence[Any]], Sequence[Any]]
Result = TypeVar("Result")

_EXPLAIN_RUNS = 15  # `explain` reports the median time of these runs for each step


@dataclass(frozen=True)
class Convention:
    """The calling convention of a model: the arguments and results of the framework program that it comes from.

    flatten: (args, kwargs) to the flat inputs. bind: makes the callable from the executable that runs the flat inputs.
    state: converts an array of the state to the framework's type. packing: see `LoadedProgram`.
    """

    flatten: Callable[[Sequence[Any], Mapping[str, Any]], Sequence[Any]]
    bind: Callable[[Executable], Callable[..., Any]]
    state: Callable[[Any], Any] | None = None
    packing: Packing = UNPACKED


def tree_convention(
    flatten: Callable[[Sequence[Any], Mapping[str, Any]], Sequence[Any]], unflatten: Callable[[Sequence[Any]], Any]
) -> Convention:
    """The convention of a program whose caller passes and receives nested structures of the flat inputs and outputs."""

    def bind(executable: Executable) -> Callable[..., Any]:
        run = executable.run

        def call(*args: Any, **kwargs: Any) -> Any:
            return unflatten(run(flatten(args, kwargs)))

        return call

    return Convention(flatten, bind)


class CompiledModel:
    """A compiled model. Call it with positional inputs in the model's order, or by name. A model that comes from a
    framework program (PyTorch, JAX) takes the arguments of this program and returns its results.

    Inputs are numpy arrays, torch tensors or DLPack objects in CPU memory, of exactly the declared dtype. C-contiguous
    inputs are read in place. A program for GPUs also takes torch's CUDA tensors, and then returns CUDA tensors, on
    their stream; it reads DLPack objects on the GPU in place, such as arrays of CuPy and JAX.

    Outputs are new arrays (torch tensors if any input is one): one array, or a tuple in the model's output order.

    A model may be called from several threads. Calls run concurrently while there are cores for their threads, each in
    its own arena; further calls wait. A model with state (`state`) runs one call at a time. Ctrl-C in the main thread
    ends a call on a CPU at the next chunk boundary, mostly within a third of a second. The model can then be called
    again; state that it updates in place may be partly updated.

    Most models are one program. A model is several programs if values of inputs or attributes that it keeps decide
    ranks, axes or branches, or if the host computes parts of it (strings, images). It then compiles a program for each
    case when a call brings it. `for_inputs` returns the program of a call; methods that need a single program (`save`,
    `dump`, `plan`) raise InputError.

    inputs, outputs: the specs (name, dtype, symbolic shape). threads: the caller and its workers. refused: the reason
    why it cannot run here, if it was compiled for another machine.
    """

    def __init__(
        self,
        program: Program | Executable,
        *,
        threads: int | None = None,
        convention: Convention | None = None,
        device_memory: int | None = None,
    ) -> None:
        """program: plain data, which is loaded, or an executable. device_memory: see `ingot.load`.

        Raises ArtifactError if this machine lacks a feature that the code needs, InputError for a bad thread count.
        """
        executable = LoadedProgram(program, threads, device_memory) if isinstance(program, Program) else program
        self._executable, self._convention = executable, convention
        self.inputs: tuple[TensorSpec, ...] = executable.inputs
        self.outputs: tuple[TensorSpec, ...] = executable.outputs
        self.threads = executable.threads
        self._names = {spec.name: index for index, spec in enumerate(self.inputs)}
        self._run = executable.run
        self._call: Callable[..., Any] | None = None if convention is None else convention.bind(executable)
        if executable.refused is not None:  # raises for any arguments
            self._call = lambda *args, **kwargs: executable.run(args)
        self._other_sizes: OtherSizes | None = None  # programs for sizes that this one does not support

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model. Raises InputError for a wrong number, name, dtype, shape or device, and what `compile` raises
        if the call needs another program."""
        try:
            if self._call is not None:
                return self._call(*args, **kwargs)
            inputs = args if not kwargs and len(args) == len(self.inputs) else self._inputs_in_order(args, kwargs)
            results = self._run(inputs)
            return results[0] if len(results) == 1 else tuple(results)
        except SizesError as e:
            return self._run_other_sizes(e, lambda other: other(*args, **kwargs))

    @property
    def writes_in_place(self) -> bool:
        """Whether a call writes each value of the state over the old one."""
        return all(not s.copy_reason for s in self._executable.program.state)

    def run_over(self, inputs: Sequence[Any], state: Sequence[Any]) -> list[Any]:
        """Run on torch tensors of the caller's in place of the model's own state, which are updated: contiguous, of its
        types and shapes, on the model's device, at addresses that are multiples of 16. Every value of the state must be
        one that the program writes in place (`writes_in_place`)."""
        return self._executable.run_over(inputs, state)

    def repeated(self, inputs: Sequence[Any]) -> Repeated | None:
        """See `Executable.repeated`."""
        return self._executable.repeated(inputs)

    def run(self, inputs: Sequence[Any], out: Sequence[np.ndarray | None] | None = None) -> list[Any]:
        """Run the model on one value for each input, in order. Returns the outputs as a list. Raises as a call does.

        out: for each output an array of its dtype and shape to write it into, or None for a new one. Arrays must be
        C-contiguous and share no memory with inputs or each other. Raises InputError for arrays that do not fit.
        """
        try:
            return self._run(inputs) if out is None else self._executable.run_into(inputs, out)
        except SizesError as e:
            return self._run_other_sizes(e, lambda other: other.run(inputs, out))

    def for_inputs(self, *args: Any, **kwargs: Any) -> CompiledModel:
        """The single-program model that a call with these arguments runs: to save it, to inspect it, or to compile it
        before the first call. It lacks the inputs whose values select the program. Raises InputError if the call runs
        several programs."""
        nested = self._executable.calls(self._flat_inputs(args, kwargs))
        if nested is None:
            return self
        if len(nested) != 1:
            raise self._executable.single_program_error()
        ((model, inputs),) = nested
        return model if model._executable.calls(inputs) is None else model.for_inputs(*inputs)

    def flat(self) -> CompiledModel:
        """The same model with flat inputs, in order or by name, and flat outputs."""
        return self if self._convention is None else CompiledModel(self._executable)

    # --- the program

    @property
    def is_one_program(self) -> bool:
        """Whether every call runs the same program, except for sizes that this program does not support."""
        return self._executable.is_one_program

    @property
    def program(self) -> Program:
        """The program as plain data. Raises InputError if there are several."""
        return self._executable.program

    @property
    def refused(self) -> ArtifactError | None:
        return self._executable.refused

    def plan(self, *shapes: Shape) -> str:
        """A table of buffers and steps; given input shapes, also their sizes and offsets.

        shapes: the shapes of the inputs, followed by the values of each input whose elements are sizes. For a model
        that the host computes in part, the table lists its stages.
        """
        return self._executable.plan(shapes)

    def dump(self, stage: str) -> str:
        """The IR text of a compilation stage. Raises InputError, which lists the stages, for any other name."""
        if stage == "plan":
            return self.plan()
        stages = self.program.stages
        if stage not in stages:
            raise InputError("dump", expected=f"one of {', '.join([*stages, 'plan'])}", got=repr(stage))
        return stages[stage]

    def save(self, path: str | os.PathLike[str], *, weights: str | os.PathLike[str] | None = None) -> None:
        """Write one file that `ingot.load` reads, with the initial values of the state; for target "c", the source and
        its header.

        weights: the path of a separate file for the weights, if the target supports it. Raises ArtifactError and
        InputError, and then leaves an existing file untouched.
        """
        self._executable.save(Path(path), None if weights is None else Path(weights))

    # --- time and memory

    def profile(self, *args: Any, energy: bool = False, **kwargs: Any) -> Profile:
        """Run once to warm up and once with a clock. Returns (label, seconds) of each step, in order.

        The times are of one run only if no other thread calls the model meanwhile. The state is restored afterwards.

        energy: also measure the joules of a call by this machine's counters, for about 15 seconds of calls and of rest:
        the result's `energy` (docs/how-to/energy.md). Without a counter it says so; nothing is estimated.
        """
        programs = self._programs(self._flat_inputs(args, kwargs))
        try:
            rows, devices = Profile(), set[str]()
            for model, inputs in programs:
                rows += model._executable.profile(inputs)
                devices.add(model.program.device)
            if energy:
                rows.energy = self._energy(lambda: self(*args, **kwargs), devices)
            return rows
        except SizesError as e:
            return self._run_other_sizes(e, lambda other: other.profile(*args, energy=energy, **kwargs))

    def _energy(self, call: Callable[[], object], devices: set[str]) -> Energy:
        """The energy of a call of this model, whose programs run on these devices."""
        saved_state = self._executable.state() if self._executable.has_state else {}
        try:
            return device.energy_of(call, devices)
        finally:
            if saved_state:
                self._executable.set_state(saved_state)

    def explain(self, *args: Any, **kwargs: Any) -> str:
        """Run on these inputs and report where the time goes: a table of steps, slowest first, and what they compute;
        where they run and what is copied, if weights or steps are on the host (`device_memory`).

        `ingot explain` also measures the machine's limits, and explains why a kernel was not fused with others.
        """
        programs = self._programs(self._flat_inputs(args, kwargs))
        try:
            tables = [
                "\n".join([describe.times(model.program, model._times(inputs)), *model.notes()])
                for model, inputs in programs
            ]
            model_notes = [] if self.is_one_program else self.notes()
            return "\n\n".join([*(["\n".join(model_notes)] if model_notes else []), *tables])
        except SizesError as e:
            return self._run_other_sizes(e, lambda other: other.explain(*args, **kwargs))

    def notes(self) -> list[str]:
        """Lines on where parts run, and on what calls copy between memories; [] where all is on one device."""
        return self._executable.notes()

    def _times(self, inputs: Sequence[Any]) -> list[float]:
        """Median seconds of each step."""
        samples = [[t for _, t in self._executable.profile(inputs)] for _ in range(_EXPLAIN_RUNS)]
        return np.median(samples, axis=0).tolist()

    @property
    def arena_bytes(self) -> int:
        """The bytes of intermediate values at the largest shapes so far, summed over concurrent calls. On a CPU,
        multithreaded models with the same number of threads share this memory."""
        return self._executable.arena_bytes

    # --- state

    def state(self) -> dict[str, Any]:
        """Copies of the values that the model keeps from call to call (caches, counters), by name; {} for most."""
        state = self._executable.state()
        convert = None if self._convention is None else self._convention.state
        return state if convert is None else {name: convert(value) for name, value in state.items()}

    def set_state(self, values: Mapping[str, object]) -> None:
        """Replace values of the state, in the form that `state` returns. Raises InputError for a name, dtype or shape
        that does not match."""
        self._executable.set_state(values)

    def seed(self, seed: int | None = None) -> None:
        """Restart the random numbers from this seed; None: from a seed that the system provides.

        A model starts with seed 0. A model without random numbers ignores it.
        """
        self._executable.seed(entropy() if seed is None else seed)

    # --- calls

    def _flat_inputs(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[Any]:
        return (
            self._inputs_in_order(args, kwargs) if self._convention is None else self._convention.flatten(args, kwargs)
        )

    def _programs(self, inputs: Sequence[Any]) -> Iterator[tuple[CompiledModel, Sequence[Any]]]:
        """The single-program models that a call runs, each with its inputs."""
        nested = self._executable.calls(inputs)
        if nested is None:
            yield self, inputs
        for model, nested_inputs in nested or ():
            yield from model._programs(nested_inputs)

    def _inputs_in_order(self, args: Sequence[object], kwargs: Mapping[str, object]) -> tuple[object, ...]:
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

    def _run_other_sizes(self, refused: SizesError, call: Callable[[CompiledModel], Result]) -> Result:
        """The result of `call` on a model for the sizes that this one refused. That model borrows this one's state.

        Raises `refused` if there is no such model.
        """
        executable = self._executable
        if self._other_sizes is None:
            raise refused
        if not executable.has_state or not isinstance(executable, LoadedProgram):
            return self._other_sizes.call(refused, call)

        def call_with_state(other: CompiledModel) -> Result:
            state = executable.state()
            other.set_state({name: state[name] for name in other._executable.state()})
            result = call(other)
            executable.set_state(other._executable.state())
            return result

        with executable.state_lock:
            return self._other_sizes.call(refused, call_with_state)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a compiled model cannot be copied or pickled: use m.save(path), then ingot.load(path)")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._executable!r})"
