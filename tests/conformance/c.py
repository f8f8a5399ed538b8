"""Programs printed as C, compiled by the host's compiler with every warning an error, and called."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from ingot.ir.node import Graph
from ingot.pipeline.build import build_program
from ingot.pipeline.c import TARGET
from ingot.runtime.dtypes import numpy_dtype
from ingot.runtime.program import Program

GCC = shutil.which("gcc")
WARNINGS = ("-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror")
needs_gcc = pytest.mark.skipif(GCC is None, reason="no gcc")


def built(folder: Path, source: Path, compiler: str | None = None, *options: str) -> ctypes.CDLL:
    """The library of a printed program."""
    library = folder / f"{source.stem}.so"
    command = [compiler or str(GCC), *WARNINGS, "-O1", "-fPIC", "-shared", str(source), "-o", str(library), *options]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr[:4000]
    return ctypes.CDLL(str(library))


def run_c(graph: Graph, arrays: Sequence[np.ndarray], folder: Path, vectors: str = "") -> list[np.ndarray]:
    """What a graph's C program computes. vectors: "vector16" for those of 16 bytes."""
    return run_program(build_program(graph, TARGET.features(vectors), 1), arrays, folder)


def run_program(program: Program, arrays: Sequence[np.ndarray], folder: Path) -> list[np.ndarray]:
    TARGET.export(program, folder / "net.c")
    library = built(folder, folder / "net.c")
    outputs = [np.zeros(tuple(d for d in s.shape if isinstance(d, int)), numpy_dtype(s.dtype)) for s in program.outputs]
    contiguous = [np.ascontiguousarray(a) for a in arrays]
    pointers = [ctypes.c_void_p(a.ctypes.data) for a in (*contiguous, *outputs)]
    assert library.net_run(*pointers) == 0
    return outputs
