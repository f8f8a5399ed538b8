"""Models' ONNX files as WebAssembly beside onnxruntime-web: SIMD, one thread, in node, by turns.

    npm install --prefix build/ort onnxruntime-web
    python -m benchmarks.wasm --ort build/ort MODEL.onnx... [--dim length=32] [--rounds 20]

Floats are drawn from a normal distribution, integers are 0 or 1; other sizes that a file leaves open are 1. Times are
the process's, in ms, the least and the median of the rounds; the error is of the first output's largest number.
"""

from __future__ import annotations

import argparse
import base64
import json
import statistics
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

import ingot
from ingot.runtime.dtypes import numpy_dtype
from ingot.runtime.expr import evaluate
from ingot.runtime.program import Program

_SCRIPT = Path(__file__).with_suffix(".mjs")


def inputs(program: Program, sizes: Mapping[str, int]) -> list[dict[str, object]]:
    rng = np.random.default_rng(0)
    values = {s.name: sizes.get(s.name, 1) for s in program.symbols}
    found: list[dict[str, object]] = []
    for spec in program.inputs:
        shape = [evaluate(d, values) for d in spec.shape]
        dtype = numpy_dtype(spec.dtype)
        x = rng.normal(size=shape) if dtype.kind == "f" else rng.integers(0, 2, shape)
        text = base64.b64encode(x.astype(dtype).tobytes()).decode()
        found.append({"name": spec.name, "dtype": spec.dtype, "shape": shape, "base64": text})
    return found


def measure(model: Path, ort: Path, sizes: Mapping[str, int], rounds: int) -> dict[str, list[float]]:
    with tempfile.TemporaryDirectory() as folder:
        package, job = Path(folder) / "net", Path(folder) / "job.json"
        compiled = ingot.compile(model, target="wasm")
        compiled.save(package)
        job.write_text(
            json.dumps({
                "package": str(package), "model": str(model.resolve()), "ort": str(ort.resolve()), "rounds": rounds,
                "inputs": inputs(compiled.program, sizes),
            })
        )  # fmt: skip
        ran = subprocess.run(["node", str(_SCRIPT), str(job)], stdout=subprocess.PIPE, text=True, check=True)
        found = json.loads(ran.stdout.splitlines()[-1])
        return {**found, "module": [(package / "model.wasm").stat().st_size / 1024]}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--ort", type=Path, required=True, help="the folder that has node_modules/onnxruntime-web")
    parser.add_argument("--dim", action="append", default=[], help="NAME=SIZE")
    parser.add_argument("--rounds", type=int, default=20)
    args = parser.parse_args(arguments)
    sizes = {name: int(size) for name, _, size in (text.partition("=") for text in args.dim)}
    print("model | ingot | ort-web | ratio of the least | error | module, KiB")
    for model in args.models:
        found = measure(model, args.ort, sizes, args.rounds)
        own, other = found["ingot"], found["ort"]
        columns = [f"{min(t):.1f} / {statistics.median(t):.1f}" for t in (own, other)]
        ratio, error, kib = min(other) / min(own), found["error"], found["module"][0]
        print(f"{model.stem} | {columns[0]} | {columns[1]} | {ratio:.2f} | {error:.1e} | {kib:.0f}", flush=True)


if __name__ == "__main__":
    main()
