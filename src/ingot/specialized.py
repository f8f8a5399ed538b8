"""Models of which values of some inputs decide ranks, axes or modes: a program for each value that calls bring.

A mere size never does this (see `frontends.onnx.wishes`), but the outcome of a test of sizes may: `If(n == 1) Squeeze`
has two programs. The programs are few, and the least recently used gives way.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from ingot.runtime.executor import CompiledModel, CompiledProgram
from ingot.runtime.state import Seeds, entropy
from ingot.runtime.tensors import host_array
from ingot.support.errors import InputError, NeedsValues
from ingot.support.log import Log

MOST_PROGRAMS = 16
_log = Log("ingot.specialized")

_Key = tuple[tuple[str, str, tuple[int, ...], bytes], ...]
Build = Callable[[Mapping[str, np.ndarray], Mapping[str, tuple[int, ...]] | None], CompiledProgram]


class SpecializedModel:
    """A model that is compiled when its deciding inputs' values are known: at the first call with them.

    Called as a `CompiledModel` is, which each of its programs is; `for_inputs` gives the one for some inputs. Safe to
    call from several threads; they compile one at a time.
    """

    def __init__(self, needs: NeedsValues, build: Build) -> None:
        """build: from the values of deciding inputs, and the shapes of the others where sizes decide, to a program,
        which has the other inputs. Raises NeedsValues where these do not decide all."""
        self.input_names = needs.signature
        self.deciding = needs.inputs
        self._by_sizes = needs.sizes
        self._build = build
        # the latest used last
        self._programs: list[tuple[_Key, CompiledProgram]] = []
        self._lock = threading.Lock()
        self._seeds = Seeds()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model. Raises what `CompiledModel` raises, and what compiling raises."""
        values = self._named(args, kwargs)
        return self._run(values, lambda program, rest: program(**rest))

    def for_inputs(self, *args: Any, **kwargs: Any) -> CompiledProgram:
        """The program that runs these inputs: to save, to look at, or to compile ahead. It lacks the deciding ones."""

        def found(program: CompiledProgram, rest: Mapping[str, Any]) -> CompiledProgram:
            if self._by_sizes:
                program(**rest)  # only a run tells whether sizes are on the right side of a test
            return program

        return self._run(self._named(args, kwargs), found)

    def _named(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        names = self.input_names
        values: dict[str, Any] = dict(zip(names, args, strict=False))
        twice, unknown = [n for n in kwargs if n in values], [n for n in kwargs if n not in names]
        values |= kwargs
        if len(args) > len(names) or twice or unknown or len(values) < len(names):
            raise InputError("inputs", expected=f"each of {list(names)} once", got=[*values, *twice, *unknown])
        return values

    def _run(self, values: Mapping[str, Any], run: Callable[[CompiledProgram, Mapping[str, Any]], Any]) -> Any:
        """What `run` gives of the program for these values and the inputs that it has."""
        deciding = {name: host_array(values[name], name) for name in self.deciding}
        key = tuple((name, str(a.dtype), a.shape, a.tobytes()) for name, a in sorted(deciding.items()))
        rest = {name: v for name, v in values.items() if name not in deciding}
        for entry in [entry for entry in reversed(self._programs) if entry[0] == key]:
            try:
                result = run(entry[1], rest)
            except InputError:
                if not self._by_sizes:
                    raise
                continue  # sizes of another side of a test
            self._keep(entry)
            return result
        example = {n: tuple(np.shape(v)) for n, v in rest.items()} if self._by_sizes else None
        with self._lock:
            try:
                program = self._compiled(deciding, example)
            except NeedsValues as more:
                if set(more.inputs) <= deciding.keys() and (self._by_sizes or not more.sizes):
                    raise
                self.deciding = tuple(dict.fromkeys((*self.deciding, *more.inputs)))
                self._by_sizes |= more.sizes
                program = None
        if program is None:
            return self._run(values, run)
        result = run(program, rest)
        self._keep((key, program))
        return result

    def _keep(self, entry: tuple[_Key, CompiledProgram]) -> None:
        with self._lock:
            self._programs = [*(e for e in self._programs if e is not entry), entry]
            if len(self._programs) > MOST_PROGRAMS:
                _log.warning("more than %d programs for values of %s: the oldest goes", MOST_PROGRAMS, self.deciding)
                del self._programs[0]

    def _compiled(
        self, deciding: Mapping[str, np.ndarray], example: Mapping[str, tuple[int, ...]] | None
    ) -> CompiledProgram:
        told = [f"{name} = {np.array2string(a, threshold=8)}" for name, a in deciding.items()]
        told += [f"{name}: {list(shape)}" for name, shape in (example or {}).items()]
        _log.info("compiling for %s", ", ".join(told))
        program = self._build(deciding, example)
        if isinstance(program, CompiledModel):
            program.seed(self._seeds.take())
        return program

    def seed(self, seed: int | None = None) -> None:
        """As `CompiledModel.seed`; each program, in the order in which calls ask for them, has a seed made of it."""
        with self._lock:
            self._seeds = Seeds(entropy() if seed is None else seed)
            for _, program in self._programs:
                if isinstance(program, CompiledModel):
                    program.seed(self._seeds.take())

    def save(self, path: str | os.PathLike[str]) -> NoReturn:
        """Refused: a file holds one program."""
        what = [f"the values of {list(self.deciding)}"] * bool(self.deciding) + ["tests of sizes"] * self._by_sizes
        raise InputError(
            f"cannot save to {path}: {' and '.join(what)} decide what the program is",
            fix="m.for_inputs(...).save(path), or compile with weights={...} or dynamic={...}",
        )

    def __repr__(self) -> str:
        by = [f"the values of {', '.join(self.deciding)}"] * bool(self.deciding) + ["tests of sizes"] * self._by_sizes
        return f"SpecializedModel({', '.join(self.input_names)}; by {' and '.join(by)})"
