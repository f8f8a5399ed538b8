"""Artifacts for AArch64, loaded and run by an AArch64 Python with numpy and ml_dtypes alone, in qemu's user mode."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from ingot.ir.interp import interpret
from ingot.ir.node import Graph
from ingot.pipeline.build import build_program
from ingot.pipeline.target import features_of
from ingot.runtime import artifact
from tests.pipeline.functions.test_library import arrays_of, residual_network, transformer

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build/aarch64"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("qemu-aarch64") is None, reason="no qemu-aarch64"),
    pytest.mark.skipif(
        not (FOLDER / "site/numpy").is_dir(), reason="no build/aarch64: tools/aarch64_python.sh makes it"
    ),
]
RUN = """
import sys, numpy as np, ingot
for name in sys.argv[1:]:
    model = ingot.load(name + ".ingot", threads=2)
    inputs = np.load(name + ".npz")
    np.savez(name + ".out.npz", *model.run([inputs[k] for k in inputs]))
assert "llvmlite" not in sys.modules
"""


def python(cpu: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["qemu-aarch64", "-cpu", cpu, "-L", str(FOLDER / "root"), str(FOLDER / "root/usr/bin/python3")]
    paths = f"{ROOT / 'src'}:{FOLDER / 'site'}"
    env = {
        "PYTHONHOME": str(FOLDER / "root/usr"),
        "PYTHONPATH": paths,
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": str(folder),
    }
    return subprocess.run(
        [*command, *arguments], cwd=folder, env=env, capture_output=True, text=True, timeout=300, check=False
    )


def save(graph: Graph, target: str, path: Path) -> list[np.ndarray]:
    artifact.save(build_program(graph, features_of(target), 2), path.with_suffix(".ingot"))
    arrays = arrays_of(graph)
    np.savez(path.with_suffix(".npz"), *arrays)
    return [np.asarray(y) for y in interpret(graph, arrays)]


def test_artifacts_run(tmp_path: Path) -> None:
    references = {
        f.__name__: save(f(), "cpu:cortex-a72", tmp_path / f.__name__) for f in (residual_network, transformer)
    }
    process = python("cortex-a72", tmp_path, "-c", RUN, *references)
    assert process.returncode == 0, process.stderr[-2000:]
    for name, want in references.items():
        with np.load(tmp_path / f"{name}.out.npz") as result:
            for y, expected in zip(result.values(), want, strict=True):
                np.testing.assert_allclose(y, expected, rtol=2e-5, atol=2e-6)


def test_an_instruction_that_is_not_there_is_an_error_at_load(tmp_path: Path) -> None:
    save(residual_network(), "cpu:neoverse-v2", tmp_path / "m")
    process = python("cortex-a72", tmp_path, "-c", RUN, "m")
    assert process.returncode == 1 and "ArtifactError" in process.stderr and "dotprod" in process.stderr, (
        process.stderr[-2000:]
    )
