"""TorchScript modules whose attributes change from call to call: a program for each state that they are met in.

    first call   attributes as loaded, (0,) and 0         ->  one program, which gives [2, 1, 128] and 16000
    all others   attributes as the call before left them  ->  another

Numbers and strings among the attributes, and the types of those that are tensors, decide what the program is. The
programs are few, and the least recently used gives way.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ingot.driver.recent import Recent
from ingot.runtime.executable import Executable, UnrankedSpec
from ingot.runtime.executor import CompiledModel, tree_convention
from ingot.runtime.state import Seeds
from ingot.runtime.tensors import is_tensor
from ingot.support.errors import InputError
from ingot.support.log import Log

if TYPE_CHECKING:
    from ingot.frontends.torch.script import Evaluator, Program

_MOST_PROGRAMS = 16
_log = Log("ingot.driver.script_states")

Build = Callable[["Evaluator", Sequence[Any]], Callable[..., Any]]


def script_model(program: Program, build: Build, threads: int = 1) -> CompiledModel:
    """Called as the module is; it keeps the module's attributes. Calls from several threads come one after another.

    build: an evaluator, and example inputs for it, to what is compiled of it.
    """
    from ingot.frontends.torch.script import Evaluator

    forward = inspect.signature(Evaluator(program, program.attributes).forward)

    def flatten(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[Any]:
        return forward.bind(*args, **kwargs).args

    states = StateSpecialization(program, tuple(forward.parameters), build, threads)
    return CompiledModel(states, convention=tree_convention(flatten, lambda results: results[0]))


class StateSpecialization(Executable):
    """Its flat inputs are the module's arguments by position, its flat output is what it returns."""

    is_one_program = False

    def __init__(self, program: Program, names: Sequence[str], build: Build, threads: int) -> None:
        self.inputs, self.outputs = tuple(map(UnrankedSpec, names)), (UnrankedSpec("output"),)
        self.threads = threads
        self._program = program
        self._build = build
        self._attributes: dict[str, Any] = {p: program.attributes[p] for p in program.written}
        # of a state, the compiled program and the evaluator that it is of
        self._programs: Recent[Any, tuple[Any, Evaluator]] = Recent(_MOST_PROGRAMS, "programs for states", _log)
        self._lock = threading.Lock()
        self._seeds = Seeds()

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """A call that fails changes nothing."""
        args = _tensors(inputs)
        with self._lock:
            state = self._tensors()
            compiled, evaluator = self._compiled(state, args)
            result, new = compiled(tuple(state.values()), *args) if state else compiled(*args)
            outcome = evaluator.outcome
            self._attributes |= outcome.known | dict(zip(outcome.changed, new, strict=True))
            return [result]

    def calls(self, inputs: Sequence[Any]) -> Sequence[tuple[CompiledModel, Sequence[Any]]]:
        """Of the program that the next call runs, the attributes that are tensors are the first argument."""
        args = _tensors(inputs)
        with self._lock:
            state = self._tensors()
            compiled, _ = self._compiled(state, args)
            first = (tuple(state.values()),) if state else ()
            return [(compiled, compiled._flat_inputs((*first, *args), {}))]

    def state(self) -> dict[str, Any]:
        """The attributes that the module writes: copies, by their paths."""
        with self._lock:
            return {p: _copy(v) for p, v in self._attributes.items()}

    def set_state(self, values: Mapping[str, Any]) -> None:
        unknown = [p for p in values if p not in self._attributes]
        if unknown:
            raise InputError("state", expected=f"some of {list(self._attributes)}", got=unknown)
        with self._lock:
            self._attributes |= {p: _copy(v) for p, v in values.items()}

    def seed(self, seed: int) -> None:
        """Each program, in the order in which calls ask for them, has a seed made of it."""
        with self._lock:
            self._seeds = Seeds(seed)
            for compiled, _ in self._programs:
                self._seeded(compiled)

    def _seeded(self, compiled: Any) -> Any:
        if isinstance(compiled, CompiledModel):
            compiled.seed(self._seeds.take())
        return compiled

    def _tensors(self) -> dict[str, Any]:
        return {p: v for p, v in self._attributes.items() if is_tensor(v)}

    def _compiled(self, state: Mapping[str, Any], args: Sequence[Any]) -> tuple[Any, Any]:
        from torch.utils import _pytree as pytree

        from ingot.frontends.torch.script import Evaluator

        known = {p: v for p, v in self._attributes.items() if p not in state}
        leaves = pytree.tree_flatten((tuple(args), {}))[0]
        fixed = tuple((i, type(v), repr(v)) for i, v in enumerate(leaves) if not is_tensor(v))
        types = tuple((p, tuple(v.shape), v.dtype) for p, v in state.items())
        key = (repr(sorted(known.items())), types, fixed)

        def compiled() -> tuple[Any, Any]:
            _log.info("compiling for %s, %s", known, [f"{p}: {list(v.shape)}" for p, v in state.items()])
            evaluator = Evaluator(self._program, {**self._program.attributes, **known}, tuple(state))
            first = (tuple(state.values()),) if state else ()
            bound = inspect.signature(evaluator.forward).bind(*first, *args)
            return self._seeded(self._build(evaluator, tuple(bound.arguments.values()))), evaluator

        return self._programs.find(key, compiled)

    def single_program_error(self) -> InputError:
        return InputError(
            f"{', '.join(self._attributes)} decide what the program is",
            fix="make them arguments and results of forward, or keep them in buffers of one type",
        )

    def __repr__(self) -> str:
        return f"{', '.join(map(str, self.inputs))}; a program for each state of {', '.join(self._attributes)}"


def _copy(value: Any) -> Any:
    return value.clone() if is_tensor(value) else value


def _tensors(values: Sequence[Any]) -> list[Any]:
    """Arrays as tensors, which the module takes."""
    from ingot.frontends.torch import to_torch

    return [to_torch(v) if isinstance(v, np.ndarray) else v for v in values]
