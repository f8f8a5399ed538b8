"""Models that one program does not compute: stages of the host between programs, sequences and optionals at the border.

See `frontends.onnx.host`. Programs are compiled when a call shows their inputs' forms.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from ingot.driver.specialize import SpecializedModel
from ingot.runtime.executor import CompiledModel, CompiledProgram
from ingot.runtime.state import Seeds, entropy
from ingot.support.errors import InputError, ShapeError, UnsupportedOpError
from ingot.support.log import Log
from ingot.support.recent import Recent

if TYPE_CHECKING:
    import onnx

    from ingot.frontends.onnx.host import NumericStage, Stages

MOST_PROGRAMS = 16
_log = Log("ingot.driver.stages")


class HostedModel:
    """A model of several stages. Called as a `CompiledModel` is; strings are arrays of str, sequences lists, an
    optional that holds nothing None. Safe to call from several threads; they compile one at a time.
    """

    def __init__(
        self,
        stages: Stages,
        build: Callable[[onnx.ModelProto], CompiledProgram | SpecializedModel],
        weights: Mapping[str, Any],
    ) -> None:
        """build: compiles a numeric part. weights: inputs that always have the same value."""
        unknown = [name for name in weights if name not in stages.inputs]
        if unknown:
            raise InputError("weights names no input", expected=f"one of {list(stages.inputs)}", got=unknown)
        self.input_names = tuple(name for name in stages.inputs if name not in weights)
        self.output_names = stages.outputs
        self._weights = dict(weights)
        self._stages = stages
        self._build = build
        self._programs: Recent[Any, CompiledProgram | SpecializedModel] = Recent(MOST_PROGRAMS, "programs", _log)
        self._exact: set[tuple[str, ...]] = set()  # stages, by what they compute, that hold for one size each
        self._lock = threading.Lock()
        self._seeds = Seeds()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model. Raises InputError for inputs that do not fit, and what compiling raises."""
        names = self.input_names
        given = dict(zip(names, args, strict=False))
        unknown = [name for name in kwargs if name not in names or name in given]
        given |= kwargs
        if len(args) > len(names) or unknown or len(given) < len(names):
            raise InputError("inputs", expected=f"each of {list(names)} once", got=[*given, *unknown])
        values = self._stages.bound(self._weights | given)
        for stage in self._stages.turns:
            stage.advance(values, self._compute)
        results = tuple(values[name] for name in self.output_names)
        return results[0] if len(results) == 1 else results

    def _compute(self, stage: NumericStage, values: Mapping[str, Any]) -> dict[str, Any]:
        tensors = stage.tensors(values)
        program = self._program(stage, values, tensors)
        results = program.run([tensors[spec.name] for spec in program.inputs])
        return stage.restored(dict(zip((spec.name for spec in program.outputs), results, strict=True)))

    def _program(self, stage: NumericStage, values: Mapping[str, Any], tensors: Mapping[str, Any]) -> CompiledProgram:
        """The program for the values' forms: for any sizes, or for theirs where it must know them."""
        with self._lock:
            if stage.outputs not in self._exact:
                try:
                    return self._found(stage, stage.forms(values, exact=False), tensors)
                except (ShapeError, UnsupportedOpError) as e:
                    _log.info("compiling %s for each size: %s", stage, e)
            found = self._found(stage, stage.forms(values, exact=True), tensors)
            self._exact.add(stage.outputs)
            return found

    def _found(self, stage: NumericStage, forms: Any, tensors: Mapping[str, Any]) -> CompiledProgram:
        def made() -> CompiledProgram | SpecializedModel:
            _log.info("compiling %s for %s", stage, forms)
            built = self._build(stage.part(forms))
            if isinstance(built, CompiledModel | SpecializedModel):
                built.seed(self._seeds.take())
            return built

        found = self._programs.find((stage.outputs, forms), made)
        return found if isinstance(found, CompiledProgram) else found.for_inputs(**tensors)

    def seed(self, seed: int | None = None) -> None:
        """As `SpecializedModel.seed`."""
        with self._lock:
            self._seeds = Seeds(entropy() if seed is None else seed)
            for program in self._programs:
                if isinstance(program, CompiledModel | SpecializedModel):
                    program.seed(self._seeds.take())

    def plan(self) -> str:
        """The stages in order: what runs on the host, and what programs compute."""
        return "\n".join(str(stage) for stage in self._stages.turns)

    def save(self, path: str | os.PathLike[str]) -> NoReturn:
        """Refused: a file holds one program."""
        raise InputError(f"cannot save to {path}: the model is not one program", got=self.plan())

    def __repr__(self) -> str:
        return f"HostedModel({', '.join(self.input_names)} -> {', '.join(self.output_names)})"
