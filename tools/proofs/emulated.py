"""A program of one f32 input and result as an executable for AArch64, which qemu runs on chunk after chunk."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from ingot.ir.node import Graph
from ingot.ir.types import static_shape
from ingot.pipeline.build import build_program
from ingot.pipeline.functions.library import export
from ingot.pipeline.target import features_of
from ingot.support.errors import InputError

COMPILER, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"
_MAIN = """
#include <stdio.h>
#include "net.h"
static float x[%d], y[%d];
int main(void) {
  while (fread(x, sizeof x, 1, stdin) == 1) {
    int status = net_run(x, y);
    if (status) return status;
    if (fwrite(y, sizeof y, 1, stdout) != 1 || fflush(stdout)) return 100;
  }
  return 0;
}
"""


class Emulated:
    """A process that answers a chunk of floats with a chunk of results."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None and process.stdout is not None
        self._process, self._requests, self._answers = process, process.stdin, process.stdout

    def __call__(self, x: np.ndarray) -> np.ndarray:
        self._requests.write(x.tobytes())
        self._requests.flush()
        answer = self._answers.read(x.nbytes)
        if len(answer) != x.nbytes:
            raise RuntimeError(f"{EMULATOR} ended with {self._process.wait()}")
        return np.frombuffer(answer, x.dtype)


@contextmanager
def emulated(graph: Graph, target: str) -> Iterator[Emulated]:
    """Raises InputError without a compiler for AArch64 and qemu."""
    if missing := [tool for tool in (COMPILER, EMULATOR) if shutil.which(tool) is None]:
        fix = "apt install gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user"
        raise InputError(
            f"--target {target}", expected=" and ".join((COMPILER, EMULATOR)), got=f"no {missing[0]}", fix=fix
        )
    with TemporaryDirectory() as name:
        folder = Path(name)
        export(build_program(graph, features_of(target), 1), folder / "net.a")
        sizes = tuple(int(np.prod(static_shape(n.shape))) for n in (graph.inputs[0], graph.outputs[0]))
        (folder / "main.c").write_text(_MAIN % sizes)
        command = [COMPILER, "-O1", "main.c", "net.a", "-static", "-o", "main"]
        subprocess.run(command, cwd=folder, check=True, timeout=60)
        command = [EMULATOR, "-cpu", "max", "./main"]
        process = subprocess.Popen(command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            yield Emulated(process)
        finally:
            process.kill()
            process.communicate()
