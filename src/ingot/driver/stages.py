"""Models that one program does not compute: stages of the host between programs, sequences and optionals at the border.

See `frontends.onnx.host`. Programs are compiled when a call shows their inputs' forms.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ingot.driver.recent import Recent
from ingot.runtime.executable import Executable, UnrankedSpec
from ingot.runtime.executor import CompiledModel
from ingot.runtime.state import Seeds
from ingot.support.errors import InputError, ShapeError, UnsupportedOpError
from ingot.support.log import Log

if TYPE_CHECKING:
    import onnx

    from ingot.frontends.onnx.host import NumericStage, Stages

MOST_PROGRAMS = 16
_log = Log("ingot.driver.stages")


class StagedExecution(Executable):
    """Several stages, on the host and as programs. Strings are arrays of str, sequences lists, an optional that holds
    nothing None. Calls from several threads compile one at a time."""

    is_one_program = False

    def __init__(
        self,
        stages: Stages,
        build: Callable[[onnx.ModelProto], CompiledModel],
        weights: Mapping[str, Any],
        threads: int,
    ) -> None:
        """build: compiles a numeric part. weights: inputs that always have the same value."""
        unknown = [name for name in weights if name not in stages.inputs]
        if unknown:
            raise InputError("weights names no input", expected=f"one of {list(stages.inputs)}", got=unknown)
        types = stages.types
        self.inputs = tuple(UnrankedSpec(n, types[n]) for n in stages.inputs if n not in weights)
        self.outputs = tuple(UnrankedSpec(n, types[n]) for n in stages.outputs)
        self.threads = threads
        self._weights = dict(weights)
        self._stages = stages
        self._build = build
        self._programs: Recent[Any, CompiledModel] = Recent(MOST_PROGRAMS, "programs", _log)
        self._exact: set[tuple[str, ...]] = set()  # stages, by what they compute, that hold for one size each
        self._lock = threading.Lock()
        self._seeds = Seeds()

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        return self._advance(inputs, self._compute)

    def calls(self, inputs: Sequence[Any]) -> Sequence[tuple[CompiledModel, Sequence[Any]]]:
        found: list[tuple[CompiledModel, Sequence[Any]]] = []

        def compute(stage: NumericStage, values: Mapping[str, Any]) -> dict[str, Any]:
            tensors = stage.tensors(values)
            model = self._program(stage, values)
            found.append((model, [tensors[spec.name] for spec in model.inputs]))
            return self._compute(stage, values)

        self._advance(inputs, compute)
        return found

    def _advance(self, inputs: Sequence[Any], compute: Callable[..., dict[str, Any]]) -> list[Any]:
        given = dict(zip((spec.name for spec in self.inputs), inputs, strict=True))
        values = self._stages.bound(self._weights | given)
        for stage in self._stages.turns:
            stage.advance(values, compute)
        return [values[spec.name] for spec in self.outputs]

    def _compute(self, stage: NumericStage, values: Mapping[str, Any]) -> dict[str, Any]:
        tensors = stage.tensors(values)
        model = self._program(stage, values)
        results = model.run([tensors[spec.name] for spec in model.inputs])
        return stage.restored(dict(zip((spec.name for spec in model.outputs), results, strict=True)))

    def _program(self, stage: NumericStage, values: Mapping[str, Any]) -> CompiledModel:
        """The program for the values' forms: for any sizes, or for theirs where it must know them."""
        with self._lock:
            if stage.outputs not in self._exact:
                try:
                    return self._found(stage, stage.forms(values, exact=False))
                except (ShapeError, UnsupportedOpError) as e:
                    _log.info("compiling %s for each size: %s", stage, e)
            found = self._found(stage, stage.forms(values, exact=True))
            self._exact.add(stage.outputs)
            return found

    def _found(self, stage: NumericStage, forms: Any) -> CompiledModel:
        def compiled() -> CompiledModel:
            _log.info("compiling %s for %s", stage, forms)
            model = self._build(stage.part(forms))
            if model.refused is None:
                model.seed(self._seeds.take())
            return model

        return self._programs.find((stage.outputs, forms), compiled)

    def seed(self, seed: int) -> None:
        with self._lock:
            self._seeds = Seeds(seed)
            for model in self._programs:
                if model.refused is None:
                    model.seed(self._seeds.take())

    def plan(self, shapes: Sequence[Any]) -> str:
        """The stages in order: what runs on the host, and what programs compute."""
        return "\n".join(str(stage) for stage in self._stages.turns)

    def single_program_error(self) -> InputError:
        return InputError(f"the model is not one program; its stages are\n{self.plan(())}")

    def __repr__(self) -> str:
        names = ", ".join(map(str, self.inputs)), ", ".join(map(str, self.outputs))
        return f"{names[0]} -> {names[1]}; {len(self._stages.turns)} stages"
