"""Models in which values of some inputs decide ranks, axes or modes: a program for each value that calls bring.

Sizes alone never decide these (see `frontends.onnx.wishes`), but a comparison of sizes may: `If(n == 1) Squeeze` has
two programs. A bounded cache holds the programs.
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
from ingot.support.errors import InputError, NeedsValues, ShapeError
from ingot.support.log import Log

if TYPE_CHECKING:
    from ingot.ir.node import Node

MAX_PROGRAMS = 16
_log = Log("ingot.driver.specialize")

_Key = tuple[tuple[str, str, tuple[int, ...], bytes], ...]
Build = Callable[[Mapping[str, np.ndarray], Mapping[str, tuple[int, ...]] | None], CompiledModel]
Result = TypeVar("Result")


class ValueSpecialization(Executable):
    """A program for each set of values of the inputs that decide it, compiled at the first call with them. Threads
    compile one at a time."""

    is_one_program = False

    def __init__(self, needs: NeedsValues, build: Build, threads: int) -> None:
        """build: compiles a model of the other inputs, for the values of the inputs that decide and, if sizes decide,
        the shapes of the others. It raises NeedsValues if further inputs decide."""
        self.inputs = tuple(_spec(name, node) for name, node in needs.signature.items())
        self.outputs = tuple(UnrankedSpec(name, dtype) for name, dtype in needs.outputs.items())
        self.threads = threads
        self.value_inputs = needs.inputs
        self._depends_on_sizes = needs.sizes
        self._build = build
        # the most recently used last
        self._programs: list[tuple[_Key, CompiledModel]] = []
        self._lock = threading.Lock()
        self._seeds = Seeds()

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        return self._select(inputs, lambda model, rest: model.run(rest))

    def calls(self, inputs: Sequence[Any]) -> Sequence[tuple[CompiledModel, Sequence[Any]]]:
        def with_inputs(model: CompiledModel, rest: Sequence[Any]) -> tuple[CompiledModel, Sequence[Any]]:
            if self._depends_on_sizes:
                model.run(rest)  # only a run checks comparisons of sizes
            return model, rest

        return [self._select(inputs, with_inputs)]

    def _select(self, inputs: Sequence[Any], run: Callable[[CompiledModel, Sequence[Any]], Result]) -> Result:
        """The result of `run` on the model for these values, and on the inputs that the model takes."""
        values = dict(zip((spec.name for spec in self.inputs), inputs, strict=True))
        values_by_name = {name: host_array(values[name], name) for name in self.value_inputs}
        key = tuple((name, str(a.dtype), a.shape, a.tobytes()) for name, a in sorted(values_by_name.items()))
        rest = {name: v for name, v in values.items() if name not in values_by_name}
        for entry in [entry for entry in reversed(self._programs) if entry[0] == key]:
            try:
                result = run(entry[1], [rest[spec.name] for spec in entry[1].inputs])
            except InputError:
                if not self._depends_on_sizes:
                    raise
                continue  # a comparison of sizes has another outcome
            self._mark_used(entry)
            return result
        example = {n: tuple(np.shape(v)) for n, v in rest.items()} if self._depends_on_sizes else None
        with self._lock:
            try:
                model = self._compile(values_by_name, example)
            except NeedsValues as needs:
                if set(needs.inputs) <= values_by_name.keys() and (self._depends_on_sizes or not needs.sizes):
                    raise
                self.value_inputs = tuple(dict.fromkeys((*self.value_inputs, *needs.inputs)))
                self._depends_on_sizes |= needs.sizes
                model = None
        if model is None:
            return self._select(inputs, run)
        result = run(model, [rest[spec.name] for spec in model.inputs])
        self._mark_used((key, model))
        return result

    def _mark_used(self, entry: tuple[_Key, CompiledModel]) -> None:
        with self._lock:
            self._programs = [*(e for e in self._programs if e is not entry), entry]
            if len(self._programs) > MAX_PROGRAMS:
                _log.warning(
                    "more than %d programs for values of %s: dropped the oldest", MAX_PROGRAMS, self.value_inputs
                )
                del self._programs[0]

    def _compile(
        self, values: Mapping[str, np.ndarray], example: Mapping[str, tuple[int, ...]] | None
    ) -> CompiledModel:
        description = [f"{name} = {np.array2string(a, threshold=8)}" for name, a in values.items()]
        description += [f"{name}: {list(shape)}" for name, shape in (example or {}).items()]
        _log.info("compiling for %s", ", ".join(description))
        try:
            model = self._build(values, example)
        except ShapeError as error:
            raise InputError(f"the model has no program for {', '.join(description)}", got=str(error)) from error
        if model.refused is None:
            model.seed(self._seeds.take())
        return model

    def seed(self, seed: int) -> None:
        """Restart the random numbers: each program gets a seed derived from this one, in the order of first use."""
        with self._lock:
            self._seeds = Seeds(seed)
            for _, model in self._programs:
                if model.refused is None:
                    model.seed(self._seeds.take())

    def single_program_error(self) -> InputError:
        options = [f"weights={{{n!r}: ...}} (--constant {n}=VALUE)" for n in self.value_inputs] or [
            "dynamic={...} (--dim)"
        ]
        return InputError(
            f"{self._deciders()} decide the program",
            expected="a single program",
            got="one for each of them",
            fix=f"use m.for_inputs(...), which returns the program of a call, or compile with {' and '.join(options)}",
        )

    def _deciders(self) -> str:
        deciders = [f"the values of {', '.join(self.value_inputs)}"] if self.value_inputs else []
        deciders += ["comparisons of sizes"] * self._depends_on_sizes
        return " and ".join(deciders)

    def __repr__(self) -> str:
        names = ", ".join(map(str, self.inputs)), ", ".join(map(str, self.outputs))
        return f"{names[0]} -> {names[1]}; a program for each of {self._deciders()}"


def _spec(name: str, node: Node) -> TensorSpec:
    from ingot.plan.sizes import expression  # not above: a model that is found in the cache does without the compiler

    return TensorSpec(name, node.dtype.name, tuple(map(expression, node.shape)))
