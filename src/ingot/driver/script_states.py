"""TorchScript modules whose attributes change from call to call: a program for each state of the attributes.

    first call   attributes as loaded, (0,) and 0      ->  one program, which sets them to [2, 1, 128] and 16000
    later calls  attributes that the last call has set ->  another program

The values of attributes that are numbers or strings, and the types of tensors, decide the program. A bounded cache
holds the programs.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ingot.driver.recent import LruCache
from ingot.runtime.executable import Executable, UnrankedSpec
from ingot.runtime.executor import CompiledModel, tree_convention
from ingot.runtime.state import Seeds
from ingot.runtime.tensors import is_tensor
from ingot.support.errors import InputError
from ingot.support.log import Log

if TYPE_CHECKING:
    from ingot.frontends.torch.script import Evaluator, Program

_MAX_PROGRAMS = 16
_log = Log("ingot.driver.script_states")

Build = Callable[["Evaluator", Sequence[Any]], Callable[..., Any]]


def script_model(program: Program, build: Build, threads: int = 1) -> CompiledModel:
    """A model with the module's calling convention, which keeps the module's attributes. Runs one call at a time.

    build: compiles an evaluator, for example inputs.
    """
    from ingot.frontends.torch.script import Evaluator

    forward = inspect.signature(Evaluator(program, program.attributes).forward)

    def flatten(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[Any]:
        return forward.bind(*args, **kwargs).args

    states = StateSpecialization(program, tuple(forward.parameters), build, threads)
    return CompiledModel(states, convention=tree_convention(flatten, lambda results: results[0]))


class StateSpecialization(Executable):
    """The flat inputs are the module's positional arguments; the flat output is the module's result."""

    is_one_program = False

    def __init__(self, program: Program, names: Sequence[str], build: Build, threads: int) -> None:
        self.inputs, self.outputs = tuple(map(UnrankedSpec, names)), (UnrankedSpec("output"),)
        self.threads = threads
        self._program = program
        self._build = build
        self._attributes: dict[str, Any] = {p: program.attributes[p] for p in program.written_paths}
        # the compiled program and its evaluator by state
        self._programs: LruCache[Any, tuple[Any, Evaluator]] = LruCache(_MAX_PROGRAMS, "programs for states", _log)
        self._lock = threading.Lock()
        self._seeds = Seeds()

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """Run a call. A call that fails leaves the attributes unchanged."""
        args = _tensors(inputs)
        with self._lock:
            state = self._tensor_attributes()
            model, evaluator = self._program_for(state, args)
            result, new = model(tuple(state.values()), *args) if state else model(*args)
            outcome = evaluator.outcome
            self._attributes |= outcome.known_values | dict(zip(outcome.changed_paths, new, strict=True))
            return [result]

    def calls(self, inputs: Sequence[Any]) -> Sequence[tuple[CompiledModel, Sequence[Any]]]:
        """The program that the next call runs. Its first argument is the tuple of attributes that are tensors."""
        args = _tensors(inputs)
        with self._lock:
            state = self._tensor_attributes()
            model, _ = self._program_for(state, args)
            first = (tuple(state.values()),) if state else ()
            return [(model, model._flat_inputs((*first, *args), {}))]

    def state(self) -> dict[str, Any]:
        """Copies of the attributes that the module writes, by path."""
        with self._lock:
            return {p: _copy(v) for p, v in self._attributes.items()}

    def set_state(self, values: Mapping[str, Any]) -> None:
        unknown = [p for p in values if p not in self._attributes]
        if unknown:
            raise InputError("state", expected=f"some of {list(self._attributes)}", got=unknown)
        with self._lock:
            self._attributes |= {p: _copy(v) for p, v in values.items()}

    def seed(self, seed: int) -> None:
        """Restart the random numbers: each program gets a seed derived from this one, in the order of first use."""
        with self._lock:
            self._seeds = Seeds(seed)
            for compiled, _ in self._programs:
                self._with_seed(compiled)

    def _with_seed(self, model: Any) -> Any:
        if isinstance(model, CompiledModel):
            model.seed(self._seeds.take())
        return model

    def _tensor_attributes(self) -> dict[str, Any]:
        return {p: v for p, v in self._attributes.items() if is_tensor(v)}

    def _program_for(self, state: Mapping[str, Any], args: Sequence[Any]) -> tuple[Any, Any]:
        from torch.utils import _pytree as pytree

        from ingot.frontends.torch.script import Evaluator

        constants = {p: v for p, v in self._attributes.items() if p not in state}
        leaves = pytree.tree_flatten((tuple(args), {}))[0]
        arguments = tuple((i, type(v), repr(v)) for i, v in enumerate(leaves) if not is_tensor(v))
        types = tuple((p, tuple(v.shape), v.dtype) for p, v in state.items())
        key = (repr(sorted(constants.items())), types, arguments)

        def compile_state() -> tuple[Any, Any]:
            _log.info("compiling for %s, %s", constants, [f"{p}: {list(v.shape)}" for p, v in state.items()])
            evaluator = Evaluator(self._program, {**self._program.attributes, **constants}, tuple(state))
            first = (tuple(state.values()),) if state else ()
            bound = inspect.signature(evaluator.forward).bind(*first, *args)
            return self._with_seed(self._build(evaluator, tuple(bound.arguments.values()))), evaluator

        return self._programs.get(key, compile_state)

    def single_program_error(self) -> InputError:
        return InputError(
            f"the attributes {', '.join(self._attributes)} decide the program",
            fix="make them arguments and results of forward, or keep them in buffers of one type",
        )

    def __repr__(self) -> str:
        return f"{', '.join(map(str, self.inputs))}; a program for each state of {', '.join(self._attributes)}"


def _copy(value: Any) -> Any:
    return value.clone() if is_tensor(value) else value


def _tensors(values: Sequence[Any]) -> list[Any]:
    """The values with arrays as tensors, as the module expects."""
    from ingot.frontends.torch import to_torch

    return [to_torch(v) if isinstance(v, np.ndarray) else v for v in values]
