"""`ingot.load`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ingot.runtime import artifact
from ingot.runtime.executable import LoadedProgram
from ingot.runtime.executor import CompiledModel
from ingot.runtime.program import Program
from ingot.runtime.training import META, TrainingStep
from ingot.support.errors import InputError


def load(path: str | os.PathLike[str], *, threads: int | None = None, device_memory: int | None = None) -> Any:
    """Load a saved program. It takes milliseconds and needs numpy alone; to save it as a native library (`.so`, `.o`,
    `.a`) takes llvmlite, too.

    Returns a `CompiledModel`; of a file saved from `ingot.train`, a `TrainingStep`, which continues the training; of
    one saved from an `ingot.LanguageModel`, that.

    device_memory: the bytes of a GPU's memory that the program may take. Weights that do not fit stay on the host, and
    are copied in each call while the step before computes; calls come one after another then. By default all is on the
    GPU, and nothing moves.

    Raises ArtifactError for a file that is truncated, corrupted, of another version or for another machine, and
    InputError for `device_memory` on a CPU; a call raises DeviceError if one step alone needs more.
    """
    program = artifact.load(Path(path))
    if device_memory is not None and (artifact.LANGUAGE in program.meta or META in program.meta):
        raise InputError("device_memory", expected="a program for inference", got="a language model or training step")
    if artifact.LANGUAGE in program.meta:
        from ingot.api.language_model import LanguageModel  # most programs need none of it

        return LanguageModel._of_program(program, threads)
    if META in program.meta:
        return TrainingStep(program, threads=threads)
    return CompiledModel(LoadedProgram(program, threads, device_memory, _export))


def _export(program: Program, path: Path, weights: Path | None) -> None:
    """Write a native library, which takes the compiler."""
    try:
        from ingot.driver.compile import export_library
    except ImportError as error:
        raise InputError("a native library", expected="llvmlite", got=str(error), fix="pip install llvmlite") from error
    export_library(program, path, weights)
