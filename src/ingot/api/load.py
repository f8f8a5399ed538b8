"""`ingot.load`."""

from __future__ import annotations

import os
from pathlib import Path

from ingot.api.language_model import LanguageModel
from ingot.language.session import META as LANGUAGE
from ingot.runtime import artifact
from ingot.runtime.executor import CompiledModel
from ingot.runtime.training import META, TrainingStep


def load(path: str | os.PathLike[str], *, threads: int | None = None) -> CompiledModel | LanguageModel:
    """Load a saved program. It takes milliseconds and needs numpy alone.

    A file saved from `ingot.train` loads as a `TrainingStep`, which continues the training; one saved from an
    `ingot.LanguageModel` loads as that.

    Raises ArtifactError for a file that is truncated, corrupted, of another version or for another machine.
    """
    program = artifact.load(Path(path))
    if LANGUAGE in program.meta:
        return LanguageModel._of_program(program, threads)
    model_type = TrainingStep if META in program.meta else CompiledModel
    return model_type(program, threads=threads)
