"""`ingot.load`."""

from __future__ import annotations

import os
from pathlib import Path

from ingot.runtime import artifact
from ingot.runtime.executor import CompiledModel
from ingot.runtime.training import META, TrainingStep


def load(path: str | os.PathLike[str], *, threads: int | None = None) -> CompiledModel:
    """Load a saved program: milliseconds, numpy alone.

    What `ingot.train` made goes on training: a `TrainingStep`.

    Raises ArtifactError for a file that is truncated, corrupted, of another version or for another machine.
    """
    program = artifact.load(Path(path))
    made = TrainingStep if META in program.meta else CompiledModel
    return made(program, threads=threads)
