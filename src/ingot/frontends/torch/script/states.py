"""TorchScript modules whose attributes change from call to call: a program for each state that they are met in.

    first call   attributes as loaded, (0,) and 0         ->  one program, which gives [2, 1, 128] and 16000
    all others   attributes as the call before left them  ->  another

Numbers and strings among the attributes, and the types of those that are tensors, decide what the program is. The
programs are few, and the least recently used gives way.
"""

from __future__ import annotations

import inspect
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch.utils import _pytree as pytree

from ingot.frontends.torch.script.evaluate import Evaluator
from ingot.frontends.torch.script.graph import Program
from ingot.support.errors import InputError
from ingot.support.log import Log
from ingot.support.recent import Recent

_MOST_PROGRAMS = 16
_log = Log("ingot.scripted")

Compiled = Callable[..., Any]
Build = Callable[[Evaluator, Sequence[Any]], Compiled]


class ScriptedModel:
    """Called as the module is; it keeps the module's attributes. Calls from several threads come one after another."""

    def __init__(self, program: Program, build: Build) -> None:
        """build: an evaluator, and example inputs for it, to what is compiled of it."""
        self._program = program
        self._build = build
        self._attributes: dict[str, Any] = {p: program.attributes[p] for p in program.written}
        # of a state, the compiled program and the evaluator that it is of
        self._programs: Recent[Any, tuple[Compiled, Evaluator]] = Recent(_MOST_PROGRAMS, "programs for states", _log)
        self._lock = threading.Lock()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module. A call that fails changes nothing."""
        with self._lock:
            state = self._tensors()
            compiled, evaluator = self._compiled(state, args, kwargs)
            result, new = compiled(tuple(state.values()), *args, **kwargs) if state else compiled(*args, **kwargs)
            outcome = evaluator.outcome
            self._attributes |= outcome.known | dict(zip(outcome.changed, new, strict=True))
            return result

    def for_inputs(self, *args: Any, **kwargs: Any) -> Compiled:
        """The program that the next call with such arguments runs: to look at, or to compile ahead. The attributes that
        are tensors are its first argument, and its second result."""
        with self._lock:
            return self._compiled(self._tensors(), args, kwargs)[0]

    def state(self) -> dict[str, Any]:
        """The attributes that the module writes: copies, by their paths."""
        with self._lock:
            return {p: v.clone() if isinstance(v, torch.Tensor) else v for p, v in self._attributes.items()}

    def set_state(self, values: Mapping[str, Any]) -> None:
        """Some or all of what `state` gives."""
        unknown = [p for p in values if p not in self._attributes]
        if unknown:
            raise InputError("state", expected=f"some of {list(self._attributes)}", got=unknown)
        with self._lock:
            self._attributes |= {p: v.clone() if isinstance(v, torch.Tensor) else v for p, v in values.items()}

    def _tensors(self) -> dict[str, torch.Tensor]:
        return {p: v for p, v in self._attributes.items() if isinstance(v, torch.Tensor)}

    def _compiled(
        self, state: Mapping[str, torch.Tensor], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Compiled, Evaluator]:
        known = {p: v for p, v in self._attributes.items() if p not in state}
        leaves = pytree.tree_flatten((args, dict(kwargs)))[0]
        fixed = tuple((i, type(v), repr(v)) for i, v in enumerate(leaves) if not isinstance(v, torch.Tensor))
        types = tuple((p, tuple(v.shape), v.dtype) for p, v in state.items())
        key = (repr(sorted(known.items())), types, fixed)

        def made() -> tuple[Compiled, Evaluator]:
            _log.info("compiling for %s, %s", known, [f"{p}: {list(v.shape)}" for p, v in state.items()])
            evaluator = Evaluator(self._program, {**self._program.attributes, **known}, tuple(state))
            first = (tuple(state.values()),) if state else ()
            bound = inspect.signature(evaluator.forward).bind(*first, *args, **kwargs)
            return self._build(evaluator, tuple(bound.arguments.values())), evaluator

        return self._programs.find(key, made)

    def save(self, path: str | os.PathLike[str]) -> NoReturn:
        """Refused: a file holds one program."""
        raise InputError(
            f"cannot save to {path}: {', '.join(self._attributes)} decide what the program is",
            fix="make them arguments and results of forward, or keep them in buffers of one type",
        )

    def __repr__(self) -> str:
        return f"ScriptedModel({self._program.name}; by {', '.join(self._attributes)})"
