"""Models of which values of some inputs decide ranks, axes or modes: a program for each value that calls bring.

A mere size never does this (see `frontends.onnx.wishes`), but the outcome of a test of sizes may: `If(n == 1) Squeeze`
has two programs. The programs are few, and the least recently used gives way.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ingot.runtime.executable import Executable, UnrankedSpec
from ingot.runtime.executor import CompiledModel
from ingot.runtime.program import TensorSpec
from ingot.runtime.state import Seeds
from ingot.runtime.tensors import host_array
from ingot.support.errors import InputError, NeedsValues
from ingot.support.log import Log

if TYPE_CHECKING:
    from ingot.ir.node import Node

MOST_PROGRAMS = 16
_log = Log("ingot.driver.specialize")

_Key = tuple[tuple[str, str, tuple[int, ...], bytes], ...]
Build = Callable[[Mapping[str, np.ndarray], Mapping[str, tuple[int, ...]] | None], CompiledModel]
Result = TypeVar("Result")


class ValueSpecialization(Executable):
    """A program for the values of deciding inputs, compiled at the first call with them. Calls from several threads
    compile one at a time."""

    is_one_program = False

    def __init__(self, needs: NeedsValues, build: Build, threads: int) -> None:
        """build: from the values of deciding inputs, and the shapes of the others where sizes decide, to a model, which
        has the other inputs. Raises NeedsValues where these do not decide all."""
        self.inputs = tuple(_spec(name, node) for name, node in needs.signature.items())
        self.outputs = tuple(UnrankedSpec(name, dtype) for name, dtype in needs.outputs.items())
        self.threads = threads
        self.deciding = needs.inputs
        self._by_sizes = needs.sizes
        self._build = build
        # the latest used last
        self._programs: list[tuple[_Key, CompiledModel]] = []
        self._lock = threading.Lock()
        self._seeds = Seeds()

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        return self._select(inputs, lambda model, rest: model.run(rest))

    def calls(self, inputs: Sequence[Any]) -> Sequence[tuple[CompiledModel, Sequence[Any]]]:
        def found(model: CompiledModel, rest: Sequence[Any]) -> tuple[CompiledModel, Sequence[Any]]:
            if self._by_sizes:
                model.run(rest)  # only a run tells whether sizes are on the right side of a test
            return model, rest

        return [self._select(inputs, found)]

    def _select(self, inputs: Sequence[Any], run: Callable[[CompiledModel, Sequence[Any]], Result]) -> Result:
        """What `run` gives of the model for these values and the inputs that it has."""
        values = dict(zip((spec.name for spec in self.inputs), inputs, strict=True))
        deciding = {name: host_array(values[name], name) for name in self.deciding}
        key = tuple((name, str(a.dtype), a.shape, a.tobytes()) for name, a in sorted(deciding.items()))
        rest = {name: v for name, v in values.items() if name not in deciding}
        for entry in [entry for entry in reversed(self._programs) if entry[0] == key]:
            try:
                result = run(entry[1], [rest[spec.name] for spec in entry[1].inputs])
            except InputError:
                if not self._by_sizes:
                    raise
                continue  # sizes of another side of a test
            self._keep(entry)
            return result
        example = {n: tuple(np.shape(v)) for n, v in rest.items()} if self._by_sizes else None
        with self._lock:
            try:
                model = self._compiled(deciding, example)
            except NeedsValues as more:
                if set(more.inputs) <= deciding.keys() and (self._by_sizes or not more.sizes):
                    raise
                self.deciding = tuple(dict.fromkeys((*self.deciding, *more.inputs)))
                self._by_sizes |= more.sizes
                model = None
        if model is None:
            return self._select(inputs, run)
        result = run(model, [rest[spec.name] for spec in model.inputs])
        self._keep((key, model))
        return result

    def _keep(self, entry: tuple[_Key, CompiledModel]) -> None:
        with self._lock:
            self._programs = [*(e for e in self._programs if e is not entry), entry]
            if len(self._programs) > MOST_PROGRAMS:
                _log.warning("more than %d programs for values of %s: the oldest goes", MOST_PROGRAMS, self.deciding)
                del self._programs[0]

    def _compiled(
        self, deciding: Mapping[str, np.ndarray], example: Mapping[str, tuple[int, ...]] | None
    ) -> CompiledModel:
        told = [f"{name} = {np.array2string(a, threshold=8)}" for name, a in deciding.items()]
        told += [f"{name}: {list(shape)}" for name, shape in (example or {}).items()]
        _log.info("compiling for %s", ", ".join(told))
        model = self._build(deciding, example)
        if model.refused is None:
            model.seed(self._seeds.take())
        return model

    def seed(self, seed: int) -> None:
        """Each program, in the order in which calls ask for them, has a seed made of it."""
        with self._lock:
            self._seeds = Seeds(seed)
            for _, model in self._programs:
                if model.refused is None:
                    model.seed(self._seeds.take())

    def single_program_error(self) -> InputError:
        given = [f"weights={{{n!r}: ...}} (--constant {n}=VALUE)" for n in self.deciding] or ["dynamic={...} (--dim)"]
        return InputError(
            f"{self._cause()} decide what the program is",
            expected="one program",
            got="one for each of them",
            fix=f"m.for_inputs(...) gives it, or compile with {' and '.join(given)}",
        )

    def _cause(self) -> str:
        by = [f"the values of {', '.join(self.deciding)}"] * bool(self.deciding) + ["tests of sizes"] * self._by_sizes
        return " and ".join(by)

    def __repr__(self) -> str:
        names = ", ".join(map(str, self.inputs)), ", ".join(map(str, self.outputs))
        return f"{names[0]} -> {names[1]}; a program for each of {self._cause()}"


def _spec(name: str, node: Node) -> TensorSpec:
    from ingot.plan.sizes import expression  # not above: a model that is found in the cache does without the compiler

    return TensorSpec(name, node.dtype.name, tuple(map(expression, node.shape)))
