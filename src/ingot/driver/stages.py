"""Models that a single program cannot compute: stages on the host between programs, sequences and optionals as inputs
and outputs.

See `frontends.onnx.host`. Programs are compiled when a call determines the forms of their inputs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ingot.driver.recent import LruCache
from ingot.runtime.executable import Executable, UnrankedSpec
from ingot.runtime.executor import CompiledModel
from ingot.runtime.state import Seeds
from ingot.support.errors import InputError, ShapeError, UnsupportedOpError
from ingot.support.log import Log

if TYPE_CHECKING:
    import onnx

    from ingot.frontends.onnx.host import NumericStage, Stages

MAX_PROGRAMS = 16
_log = Log("ingot.driver.stages")


class StagedExecution(Executable):
    """A sequence of stages on the host and in programs. Strings are arrays of str, sequences are lists, an empty
    optional is None. Threads compile one at a time."""

    is_one_program = False

    def __init__(
        self,
        stages: Stages,
        build: Callable[[onnx.ModelProto], CompiledModel],
        weights: Mapping[str, Any],
        threads: int,
    ) -> None:
        """build: compiles a numeric part. weights: the values of inputs that never change."""
        unknown = [name for name in weights if name not in stages.inputs]
        if unknown:
            raise InputError("weights", expected=f"names of inputs out of {list(stages.inputs)}", got=unknown)
        types = stages.types
        self.inputs = tuple(UnrankedSpec(n, types[n]) for n in stages.inputs if n not in weights)
        self.outputs = tuple(UnrankedSpec(n, types[n]) for n in stages.outputs)
        self.threads = threads
        self._weights = dict(weights)
        self._stages = stages
        self._build = build
        self._programs: LruCache[Any, CompiledModel] = LruCache(MAX_PROGRAMS, "programs", _log)
        self._static_stages: set[tuple[str, ...]] = set()  # outputs of the stages that need a program for each size
        self._lock = threading.Lock()
        self._seeds = Seeds()

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        return self._advance(inputs, self._compute)

    def calls(self, inputs: Sequence[Any]) -> Sequence[tuple[CompiledModel, Sequence[Any]]]:
        calls: list[tuple[CompiledModel, Sequence[Any]]] = []

        def compute(stage: NumericStage, values: Mapping[str, Any]) -> dict[str, Any]:
            tensors = stage.tensors(values)
            model = self._program(stage, values)
            calls.append((model, [tensors[spec.name] for spec in model.inputs]))
            return self._compute(stage, values)

        self._advance(inputs, compute)
        return calls

    def _advance(self, inputs: Sequence[Any], compute: Callable[..., dict[str, Any]]) -> list[Any]:
        inputs_by_name = dict(zip((spec.name for spec in self.inputs), inputs, strict=True))
        values = self._stages.with_constants(self._weights | inputs_by_name)
        for stage in self._stages.stages:
            stage.advance(values, compute)
        return [values[spec.name] for spec in self.outputs]

    def _compute(self, stage: NumericStage, values: Mapping[str, Any]) -> dict[str, Any]:
        tensors = stage.tensors(values)
        model = self._program(stage, values)
        # where values decide, only the program knows how many members a sequence among its outputs has
        program = model.for_inputs(*(tensors[spec.name] for spec in model.inputs))
        results = program.run([tensors[spec.name] for spec in program.inputs])
        return stage.restored(dict(zip((spec.name for spec in program.outputs), results, strict=True)))

    def _program(self, stage: NumericStage, values: Mapping[str, Any]) -> CompiledModel:
        """The program for the values' forms: for any sizes if possible, else for the sizes of these values."""
        with self._lock:
            if stage.outputs not in self._static_stages:
                try:
                    return self._find(stage, stage.forms(values, exact=False))
                except (ShapeError, UnsupportedOpError) as e:
                    _log.info("compiling %s for each size: %s", stage, e)
            program = self._find(stage, stage.forms(values, exact=True))
            self._static_stages.add(stage.outputs)
            return program

    def _find(self, stage: NumericStage, forms: Any) -> CompiledModel:
        def compile_stage() -> CompiledModel:
            _log.info("compiling %s for %s", stage, forms)
            model = self._build(stage.part(forms))
            if model.refused is None:
                model.seed(self._seeds.take())
            return model

        return self._programs.get((stage.outputs, forms), compile_stage)

    def seed(self, seed: int) -> None:
        with self._lock:
            self._seeds = Seeds(seed)
            for model in self._programs:
                if model.refused is None:
                    model.seed(self._seeds.take())

    def plan(self, shapes: Sequence[Any]) -> str:
        """The stages in order: those on the host, and those that programs compute."""
        return "\n".join(str(stage) for stage in self._stages.stages)

    def single_program_error(self) -> InputError:
        return InputError(f"the model is not a single program; its stages are\n{self.plan(())}")

    def __repr__(self) -> str:
        names = ", ".join(map(str, self.inputs)), ", ".join(map(str, self.outputs))
        return f"{names[0]} -> {names[1]}; {len(self._stages.stages)} stages"
