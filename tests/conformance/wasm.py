"""Programs as packages of WebAssembly, run by node."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ingot.ir.node import Graph
from ingot.pipeline.build import build_program
from ingot.pipeline.wasm import TARGET
from ingot.runtime.dtypes import numpy_dtype
from ingot.runtime.program import Program

NODE = shutil.which("node")
_SCRIPT = Path(__file__).with_name("run_wasm.mjs")


def run_wasm(graph: Graph, arrays: Sequence[np.ndarray], folder: Path) -> list[np.ndarray]:
    """What a graph's module computes."""
    return call(build_program(graph, TARGET.features(""), 1), [arrays], folder)[0]


def call(program: Program, calls: Sequence[Sequence[np.ndarray]], folder: Path) -> list[list[np.ndarray]]:
    """The outputs of calls that follow each other in one process. Raises AssertionError with node's message."""
    TARGET.export(program, folder / "net")
    text = json.dumps([
        [
            {"name": s.name, "dtype": s.dtype, "shape": x.shape, "hex": np.ascontiguousarray(x).tobytes().hex()}
            for s, x in zip(program.inputs, arrays, strict=True)
        ]
        for arrays in calls
    ])  # fmt: skip
    (folder / "inputs.json").write_text(text)
    process = subprocess.run(
        [str(NODE), str(_SCRIPT), str(folder)], capture_output=True, text=True, timeout=300, check=False
    )
    assert process.returncode == 0, process.stderr[-4000:]
    return [
        [
            np.frombuffer(bytes.fromhex(r["hex"]), numpy_dtype(s.dtype)).reshape(r["shape"])
            for s, r in zip(program.outputs, results, strict=True)
        ]
        for results in json.loads((folder / "outputs.json").read_text())
    ]
