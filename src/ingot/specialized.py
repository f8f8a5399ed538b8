"""Models of which values of some inputs decide ranks, axes or modes: a program for each value that calls bring.

Sizes never do this (see `frontends.onnx.wishes`). The programs are few, and the least recently used gives way.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from ingot.runtime.executor import CompiledProgram
from ingot.support.errors import InputError, NeedsValues

MOST_PROGRAMS = 16
_log = logging.getLogger("ingot.specialized")

_Key = tuple[tuple[str, str, tuple[int, ...], bytes], ...]


class SpecializedModel:
    """A model that is compiled when its deciding inputs' values are known: at the first call with them.

    Called as a `CompiledModel` is, which each of its programs is; `for_values` gives the one for some values. Safe to
    call from several threads; they compile one at a time.
    """

    def __init__(self, needs: NeedsValues, build: Callable[[Mapping[str, np.ndarray]], CompiledProgram]) -> None:
        """build: from the values of deciding inputs to a program, which has the other inputs. Raises NeedsValues where
        they are not all that decide."""
        self.input_names = needs.signature
        self.deciding = needs.inputs
        self._build = build
        self._programs: OrderedDict[_Key, CompiledProgram] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model. Raises what `CompiledModel` raises, and what compiling raises."""
        names = self.input_names
        values: dict[str, Any] = dict(zip(names, args, strict=False))
        twice, unknown = [n for n in kwargs if n in values], [n for n in kwargs if n not in names]
        values |= kwargs
        if len(args) > len(names) or twice or unknown or len(values) < len(names):
            raise InputError("inputs", expected=f"each of {list(names)} once", got=[*values, *twice, *unknown])
        program, deciding = self._program({name: values[name] for name in self.deciding}, values)
        return program(**{name: v for name, v in values.items() if name not in deciding})

    def program_for(self, values: Mapping[str, Any]) -> CompiledProgram:
        """The program of a call with these values of all inputs; those that it has itself are told by its `inputs`."""
        return self._program({name: values[name] for name in self.deciding}, values)[0]

    def for_values(self, **values: Any) -> CompiledProgram:
        """The program for these values of the deciding inputs: to save, to look at, or to compile ahead."""
        missing, unknown = set(self.deciding) - values.keys(), values.keys() - set(self.input_names)
        if missing or unknown:
            raise InputError("for_values", expected=f"values of {list(self.deciding)}", got=sorted(values))
        return self._program(values, values)[0]

    def _program(self, deciding: Mapping[str, Any], values: Mapping[str, Any]) -> tuple[CompiledProgram, Sequence[str]]:
        arrays = {name: np.asarray(v) for name, v in deciding.items()}
        while True:
            key = tuple((name, str(a.dtype), a.shape, a.tobytes()) for name, a in sorted(arrays.items()))
            with self._lock:
                found = self._programs.get(key)
                try:
                    if found is None:
                        found = self._compiled(arrays)
                    self._programs[key] = found
                    self._programs.move_to_end(key)
                    return found, tuple(arrays)
                except NeedsValues as more:
                    if not set(more.inputs) <= values.keys() - arrays.keys():
                        raise
                    self.deciding = (*self.deciding, *more.inputs)
                    arrays |= {name: np.asarray(values[name]) for name in more.inputs}

    def _compiled(self, arrays: Mapping[str, np.ndarray]) -> CompiledProgram:
        told = ", ".join(f"{name} = {np.array2string(a, threshold=8)}" for name, a in arrays.items())
        _log.info("compiling for %s", told)
        if len(self._programs) >= MOST_PROGRAMS:
            _log.warning("more than %d programs for values of %s: the oldest goes", MOST_PROGRAMS, sorted(arrays))
            self._programs.popitem(last=False)
        return self._build(arrays)

    def save(self, path: str | os.PathLike[str]) -> NoReturn:
        """Refused: a file holds one program."""
        raise InputError(
            f"cannot save to {path}: the values of {list(self.deciding)} decide what the program is",
            fix="ingot.compile(model, constants={...}).save(path), or m.for_values(...).save(path)",
        )

    def __repr__(self) -> str:
        return f"SpecializedModel({', '.join(self.input_names)}; by the values of {', '.join(self.deciding)})"
