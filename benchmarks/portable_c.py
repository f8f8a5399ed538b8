"""Models' files as C, compiled by the host's compiler and compared with the interpreter.

    python -m benchmarks.portable_c MODEL... [--size 64] [--axis x.2=48] [--target c:vector16] [--cc clang] [--below 2]

Sizes that a file leaves open are 1 on the first axis and --size on others, but for those that --axis names. Weights are
in a file of their own. Integers are drawn below --below, floats from a normal distribution.
"""

from __future__ import annotations

import argparse
import ctypes
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ingot.driver.open import Request, open_model
from ingot.ir.interp import interpret
from ingot.ir.node import Graph
from ingot.pipeline.build import build_program
from ingot.pipeline.c import TARGET
from ingot.runtime.dtypes import numpy_dtype

WARNINGS = ("-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror")
_ALIGN = 64


@dataclass(frozen=True)
class Outcome:
    """error: the largest difference from the interpreter, of an output's largest finite number. KiB, seconds."""

    error: float
    source: int
    weights: int
    compile: float
    run: float


def fixed(path: Path, size: int, axes: Mapping[str, int]) -> Graph:
    """The graph of a model's file with all sizes fixed. Raises what `ingot.compile` raises."""
    dynamic: dict[str, dict[int, int]] = {}
    for node in open_model(path, Request()).graph.inputs:
        name = str(getattr(node.op, "label", node.op.name))
        for axis, extent in enumerate(node.shape):
            if not isinstance(extent, int):
                value = axes.get(f"{name}.{axis}", size if axis else 1)
                dynamic.setdefault(name, {})[axis] = value
    return open_model(path, Request(dynamic=dynamic or None)).graph


def run(graph: Graph, folder: Path, features: str, command: Sequence[str], below: int) -> Outcome:
    """Print, compile, call and compare. Raises CalledProcessError where the compiler warns."""
    program = build_program(graph, TARGET.features(features), 1)
    TARGET.export(program, folder / "net.c", folder / "net.bin")
    start = time.perf_counter()
    subprocess.run([*command, "-fPIC", "-shared", "net.c", "-o", "net.so"], cwd=folder, check=True)
    compiled = time.perf_counter() - start
    rng = np.random.default_rng(0)
    arrays = [_drawn(rng, n.shape, n.dtype.numpy, below) for n in graph.inputs]
    outputs = [np.zeros(_extents(s.shape), numpy_dtype(s.dtype)) for s in program.outputs]
    weights = _aligned((folder / "net.bin").read_bytes())
    pointers = [ctypes.c_void_p(a.ctypes.data) for a in (weights, *arrays, *outputs)]
    call = ctypes.CDLL(str(folder / "net.so")).net_run
    times = []
    for _ in range(2):
        start = time.perf_counter()
        if status := call(*pointers):
            raise RuntimeError(f"net_run returned {status}")
        times.append(time.perf_counter() - start)
    error = max(_error(got, np.asarray(want)) for got, want in zip(outputs, interpret(graph, arrays), strict=True))
    return Outcome(error, (folder / "net.c").stat().st_size >> 10, len(weights) >> 10, compiled, times[-1])


def _extents(shape: Sequence[object]) -> list[int]:
    return [d for d in shape if isinstance(d, int)]


def _drawn(rng: np.random.Generator, shape: Sequence[object], dtype: np.dtype, below: int) -> np.ndarray:
    extents = _extents(shape)
    if dtype.kind in "iub":
        return rng.integers(0, 2 if dtype.kind == "b" else below, extents).astype(dtype)
    return rng.standard_normal(extents).astype(dtype)


def _aligned(data: bytes) -> np.ndarray:
    room = np.zeros(len(data) + _ALIGN, np.uint8)
    start = -room.ctypes.data % _ALIGN
    room[start : start + len(data)] = np.frombuffer(data, np.uint8)
    return room[start : start + len(data)]


def _error(got: np.ndarray, want: np.ndarray) -> float:
    """What is not finite must be the same."""
    finite = np.isfinite(want)
    if not np.array_equal(got[~finite], want[~finite], equal_nan=want.dtype.kind == "f"):
        return np.inf
    a, b = got[finite].astype(np.float64), want[finite].astype(np.float64)
    return float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-30)) if b.size else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.portable_c")
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--axis", action="append", default=[], metavar="INPUT.AXIS=SIZE")
    parser.add_argument("--below", type=int, default=2)
    parser.add_argument("--target", default="c")
    parser.add_argument("--cc", default="gcc")
    parser.add_argument("--flags", default="-O1")
    chosen = parser.parse_args()
    axes = {name: int(size) for name, size in (text.split("=") for text in chosen.axis)}
    command = [chosen.cc, *WARNINGS, *chosen.flags.split()]
    for path in chosen.models:
        with tempfile.TemporaryDirectory() as folder:
            graph = fixed(path, chosen.size, axes)
            got = run(graph, Path(folder), chosen.target.partition(":")[2], command, chosen.below)
        print(
            f"{path.stem}: error {got.error:.1e}, source {got.source} KiB, weights {got.weights} KiB, "
            f"{chosen.cc} {got.compile:.1f} s, a call {got.run * 1e3:.1f} ms",
            flush=True,
        )


if __name__ == "__main__":
    main()
