"""Executables, on which a `CompiledModel` runs its flat inputs. This module has those of one program, for this or
another machine; the driver defines those that select a program for each call."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np

from ingot.runtime import artifact, describe, device
from ingot.runtime.arguments import UNPACKED, Arguments, CallSignature, Packing, packed_specs, static_shapes
from ingot.runtime.bind import Binding, Shape
from ingot.runtime.cpu import memory
from ingot.runtime.expr import Expr
from ingot.runtime.program import Program, TensorSpec
from ingot.runtime.state import RANDOM, StateTensors, seed_state
from ingot.runtime.tensors import Tensor, TensorAdapter, TensorResults, address, check_count, check_out
from ingot.support.errors import ArtifactError, IngotError, InputError

Export = Callable[[Program, Path, Path | None], None]
Repeated = Callable[[list[int], Sequence[int] | None, "Sequence[Tensor | None]"], list[Any]]
LIBRARY_SUFFIXES = (".so", ".o", ".a")  # of the native libraries that the compiler writes, for C linkers and loaders


class Executable:
    """The base class.

    inputs, outputs: the specs. threads: the threads of a call. refused: the reason why it cannot run here.
    returns_tensors: whether results are torch tensors even if no input is one (a PyTorch model without inputs).

    An executable of several programs raises InputError, with the reason, in methods that need a single program.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    threads: int
    refused: ArtifactError | None = None
    has_state: bool = False
    returns_tensors: bool = False
    is_one_program: bool = True

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """Run on one value for each input, in order. Returns the outputs."""
        raise NotImplementedError

    def run_into(self, inputs: Sequence[Any], out: Sequence[np.ndarray | None]) -> list[Any]:
        """Run with the outputs in arrays of the caller (None: in a new array). Raises InputError for an array that does
        not fit. This default copies them."""
        results = self.run(inputs)
        check_count(out, self.outputs)
        for index, (spec, array) in enumerate(zip(self.outputs, out, strict=True)):
            if array is not None:
                result = np.asarray(results[index])
                check_out(spec, array, result.dtype, result.shape)
                array[...] = result
                results[index] = array
        return results

    def run_over(self, inputs: Sequence[Any], state: Sequence[Any]) -> list[Any]:
        """Run with tensors of the caller as the state."""
        raise self.single_program_error()

    def repeated(self, inputs: Sequence[Any]) -> Repeated | None:
        """A run of torch tensors that differ from `inputs`, which a call has read in place, in their addresses alone:
        (the addresses of the inputs, those of the caller's tensors for the state, tensors for the first outputs or None
        for new ones) -> the outputs. It checks nothing. None if the last calls had others, or copied some."""
        return None

    @property
    def program(self) -> Program:
        raise self.single_program_error()

    def single_program_error(self) -> InputError:
        """The error that says why there is no single program, and what to do."""
        raise NotImplementedError

    def plan(self, shapes: Sequence[Shape]) -> str:
        program = self.program
        if not shapes and not program.symbols:
            shapes = static_shapes(program.inputs)
        count, state = len(program.inputs), (s.shape for s in program.state)
        binding_shapes = (*shapes[:count], *state, *shapes[count:])
        return describe.plan(program, Binding(program, binding_shapes) if shapes else None)

    def calls(self, inputs: Sequence[Any]) -> Sequence[tuple[Any, Sequence[Any]]] | None:
        """The models that a run on these inputs calls, each with its inputs; None if this is a single program."""
        return None

    def notes(self) -> list[str]:
        """Which parts run where, and what runs copy between memories, for people; [] where all is on one device."""
        return []

    def profile(self, inputs: Sequence[Any]) -> list[tuple[str, float]]:
        raise self.single_program_error()

    def state(self) -> dict[str, Any]:
        raise self.single_program_error()

    def set_state(self, values: Mapping[str, object]) -> None:
        raise self.single_program_error()

    def seed(self, seed: int) -> None:
        raise self.single_program_error()

    def save(self, path: Path, weights: Path | None) -> None:
        raise self.single_program_error()

    @property
    def arena_bytes(self) -> int:
        raise self.single_program_error()

    def __repr__(self) -> str:
        raise NotImplementedError


class UnloadedProgram(Executable):
    """A program that cannot run here. It can be saved and inspected; running it raises ArtifactError."""

    def __init__(
        self, program: Program, threads: int = 0, refused: ArtifactError | None = None, export: Export | None = None
    ) -> None:
        """threads: the thread count that it was compiled for. refused: the reason why it cannot run here. export:
        writes its files, if it is not saved as an artifact."""
        self._program = program
        self.inputs, self.outputs, self.threads = program.inputs, program.outputs, threads
        self.refused = refused or ArtifactError("a program", expected="a device to run it", got="none")
        self._export = export

    @property
    def program(self) -> Program:
        return self._program

    def single_program_error(self) -> ArtifactError:  # type: ignore[override]
        assert self.refused is not None
        return self.refused

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        raise self.single_program_error()

    def save(self, path: Path, weights: Path | None) -> None:
        if self._export is None:
            save(self._program, path, weights)
        else:
            self._export(self._program, path, weights)

    def __repr__(self) -> str:
        return f"{_signature(self)}, {len(self._program.steps)} steps, {self._program.features}"


class LoadedProgram(Executable):
    """A program in memory. Calls run concurrently, each in its own arena, while there are cores for their threads;
    further calls wait. A program with state runs one call at a time."""

    def __init__(
        self,
        program: Program,
        threads: int | None = None,
        device_memory: int | None = None,
        export: Export | None = None,
        packing: Packing = UNPACKED,
    ) -> None:
        """Map the code. If no shape is dynamic, also allocate all memory. device_memory: see `ingot.load`. export:
        writes native libraries. packing: for programs without open sizes, called with torch tensors.

        Raises ArtifactError when this machine lacks a feature the code needs, InputError for a bad thread count.
        """
        self._program, self._export = program, export
        self.inputs = packed_specs(program.inputs, packing.inputs)[0]
        self.outputs, self._packed_offsets = packed_specs(program.outputs, packing.outputs)
        self._loaded = device.load(program, threads, device_memory)
        self.threads = self._loaded.threads
        self._arguments = Arguments(program, packing.inputs)
        self._output_adapters = [TensorAdapter(spec) for spec in self.outputs]
        self._packed_adapter = self._output_adapters.pop() if packing.outputs else None
        self.has_state = bool(program.state)
        self._results = memory.Results(len(self.outputs))
        self._tensor_results = TensorResults(2 * len(self.outputs))  # a caller may hold one call's
        self._packed_results, self._packing = TensorResults(1), packing
        self._packed_nbytes = static_shapes(self.outputs[-1:])[0][0] if packing.outputs else 0
        self.state_lock = threading.RLock()
        if not program.symbols and not any(spec.elements for spec in program.inputs):
            self._loaded.prepare((*static_shapes(program.inputs), *(s.shape for s in program.state)))

    @cached_property
    def _state_tensors(self) -> StateTensors:
        """The program's own state, allocated on first use: a caller may pass its own instead (`run_over`)."""
        return StateTensors(self._program.state, self._loaded.store, gpu=self._program.device == "cuda")

    @cached_property
    def _state_shapes(self) -> list[tuple[int, ...]]:
        return [s.shape for s in self._program.state]

    @property
    def program(self) -> Program:
        return self._program

    def run(self, inputs: Sequence[object]) -> list[np.ndarray | Tensor]:
        """Raises InputError for a wrong number, dtype, shape or device."""
        return self._run(inputs)

    def run_into(self, inputs: Sequence[object], out: Sequence[np.ndarray | None]) -> list[np.ndarray | Tensor]:
        """Outputs are written in place, except those whose sizes the run computes."""
        check_count(out, self.outputs)
        return super().run_into(inputs, out) if self._program.sizes else self._run(inputs, out)

    def run_over(self, inputs: Sequence[object], state: Sequence[Tensor]) -> list[np.ndarray | Tensor]:
        if [t.shape for t in state] != self._state_shapes:
            shapes = zip(self._program.state, self._state_shapes, state, strict=True)
            own, shape, given = next((s, shape, t.shape) for s, shape, t in shapes if t.shape != shape)
            raise InputError(own.spec.name, expected=f"shape {list(shape)}", got=f"shape {list(given)}")
        pointers = [t.data_ptr() for t in state]
        return self._run(inputs, None, [*pointers, *pointers])

    def _run(
        self,
        inputs: Sequence[object],
        out: Sequence[np.ndarray | None] | None = None,
        state_pointers: Sequence[int] | None = None,
    ) -> list[np.ndarray | Tensor]:
        """state_pointers: the addresses of the state and of its new values, if they are the caller's."""
        values, pointers, signature = self._arguments.take(inputs)  # the values own the memory that the run reads
        return self._run_at(signature, pointers, state_pointers, out, values)

    def repeated(self, inputs: Sequence[Any]) -> Repeated | None:
        signature = self._arguments.repeated(inputs)
        if signature is None:
            return None

        def run(pointers: list[int], state: Sequence[int] | None, given: Sequence[Tensor | None]) -> list[Any]:
            both = None if state is None else [*state, *state]
            return self._run_at(signature, self._arguments.spread(pointers), both, given=given)

        return run

    def _run_at(
        self,
        signature: CallSignature,
        pointers: list[int],
        state_pointers: Sequence[int] | None,
        out: Sequence[np.ndarray | None] | None = None,
        values: Sequence[object] = (),
        given: Sequence[Tensor | None] = (),
    ) -> list[np.ndarray | Tensor]:
        """pointers: the addresses of the inputs; it gets those of the state and the results. values: the inputs, which
        no output may share memory with. given: see `repeated`."""
        has_state = self.has_state
        if has_state:
            self.state_lock.acquire()
        context = None
        try:
            context = self._loaded.claim()
            instance = context.bind(signature.shapes)
            if has_state:
                pointers += self._state_tensors.pointers if state_pointers is None else state_pointers
            results: list[np.ndarray | Tensor] = []
            separate = zip(self._output_adapters, instance.results, chain(given, repeat(None)), strict=False)
            for adapter, (shape, strides, nbytes), target in separate:
                if target is not None:
                    pointers.append(target.data_ptr())
                    results.append(target)
                    continue
                is_large = nbytes >= memory.MMAP_BYTES and signature.device is None
                if out is not None and (result := out[len(results)]) is not None:
                    adapter.check_out(result, shape, [*values, *results])
                    pointers.append(address(result))
                elif signature.tensors or self.returns_tensors:
                    if is_large or signature.device is not None:
                        storage = self._tensor_results.take(nbytes) if is_large else None
                        result = adapter.new_tensor(shape, strides, storage, signature.device)
                    else:  # the same as `new_tensor` without the call
                        result = adapter.empty(shape, strides, adapter.torch_dtype)
                    pointers.append(result.data_ptr())
                else:
                    result = adapter.new_array(shape, self._results.take(nbytes) if is_large else None)
                    pointers.append(address(result))
                results.append(result)
            if self._packed_adapter is not None:
                packed = self._new_packed(self._packed_adapter, signature.device)
                base = packed.data_ptr()
                results.append(packed)
                pointers += [base + offset for offset in self._packed_offsets]
            context.run(instance, pointers, signature.resident)
            if self._program.sizes:
                adapters = self._output_adapters  # of all but the packed results, whose sizes are known
                shapes = zip(adapters, results, instance.actual_shapes(), strict=False)
                cropped = [adapter.crop(result, shape) for adapter, result, shape in shapes]
                results = [*cropped, *results[len(adapters) :]]
            if has_state and state_pointers is None:
                self._state_tensors.exchange()
            return results
        except MemoryError as e:
            raise IngotError("out of memory", got=str(e) or "no room", fix="use smaller inputs or batches") from e
        finally:
            if context is not None:
                context.release()
            if has_state:
                self.state_lock.release()

    def _new_packed(self, adapter: TensorAdapter, device: object) -> Tensor:
        """The tensor of the results that lie side by side. The next call gets the same one when nobody holds it: at the
        same address no launch changes, and PyTorch's allocator would give parts of a large block away meanwhile. What
        others read on a GPU is PyTorch's to free, which knows the streams that they have recorded."""
        is_recycled = device is None or self._packing.is_private
        recycled = self._packed_results.take(self._packed_nbytes, device) if is_recycled else None
        if recycled is not None:
            return recycled
        return adapter.new_tensor((self._packed_nbytes,), (1,), None, device)

    def notes(self) -> list[str]:
        return self._loaded.notes()

    def profile(self, inputs: Sequence[object]) -> list[tuple[str, float]]:
        saved_state = self.state()
        self.run(inputs)
        readings = np.zeros(len(self._program.steps) + 1, np.int64)
        self._loaded.set_profile(readings)
        try:
            self.run(inputs)
        finally:
            self._loaded.set_profile(None)
            self.set_state(saved_state)
        seconds = np.diff(readings) / self._loaded.ticks_per_second
        return [(step.label or step.kernel, float(t)) for step, t in zip(self._program.steps, seconds, strict=True)]

    def state(self) -> dict[str, np.ndarray]:
        with self.state_lock:
            context = self._loaded.claim()
            try:
                return self._state_tensors.read()
            finally:
                context.release()

    def set_state(self, values: Mapping[str, object]) -> None:
        with self.state_lock:
            context = self._loaded.claim()
            try:
                self._state_tensors.write(values)
            finally:
                context.release()

    def seed(self, seed: int) -> None:
        if any(s.spec.name == RANDOM for s in self._program.state):
            self.set_state({RANDOM: seed_state(seed)})

    def save(self, path: Path, weights: Path | None) -> None:
        if path.suffix not in LIBRARY_SUFFIXES:
            save(self._program, path, weights)
        elif self._export is None:
            fix = "compile the model: ingot.compile(...).save(path)"
            raise InputError("a native library", expected="the compiler", got="a program that was loaded", fix=fix)
        else:
            self._export(self._program, path, weights)

    @property
    def arena_bytes(self) -> int:
        return self._loaded.arena_bytes

    def __repr__(self) -> str:
        return f"{_signature(self)}, {len(self._program.steps)} steps, {self.threads} threads"


class UnrankedSpec(TensorSpec):
    """An input or output whose rank the model does not declare, or only a call determines. Its shape raises InputError.

    dtype: "" if the model does not declare it either.
    """

    def __init__(self, name: str, dtype: str = "") -> None:
        for field, value in (("name", name), ("dtype", dtype), ("elements", ())):
            object.__setattr__(self, field, value)

    @property
    def shape(self) -> tuple[Expr, ...]:  # type: ignore[override]
        raise InputError(
            f"the shape of {self.name}", expected="a rank that the model declares", got="a rank that each call decides",
            fix="m.for_inputs(...) returns the program of a call, whose shapes are known",
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


def _signature(executable: Executable) -> str:
    return f"{', '.join(map(str, executable.inputs))} -> {', '.join(map(str, executable.outputs))}"
