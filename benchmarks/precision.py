"""What reduced precision gains: Ingot in float32, bfloat16 and float16 beside OpenVINO in float32 and bfloat16.

    python benchmarks/precision.py bert-base resnet50 [--threads 2] [--rounds 8] [--seconds 0.12]

Each has a process of its own; all are started first and then take bursts in turns, in an order that rotates. A figure
is the median of the bursts' medians, a gain the median over rounds of float32's burst over the other's of that round
(both Ingot's, or both OpenVINO's). `off` is the largest deviation from Ingot's float32 results over their largest
magnitude.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from benchmarks import zoo
from benchmarks.measure import deviation

ENGINES = [(engine, precision) for engine in ("ingot", "openvino") for precision in ("float32", "bfloat16", "float16")]
ENGINES.remove(("openvino", "float16"))


class Process:
    """An engine with a model (see ingot.debug.engines)."""

    def __init__(self, engine: str, precision: str, model: Path, feeds: Path, threads: int) -> None:
        self.folder = feeds.parent
        arguments = [engine, str(model), str(feeds), str(threads), precision]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ingot.debug.engines", *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "OMP_NUM_THREADS": str(threads)},
        )  # fmt: skip
        self.results = self.folder / f"{engine}.npz"

    def answer(self) -> dict[str, float]:
        assert self.process.stdout is not None
        value = json.loads(self.process.stdout.readline())
        if "failed" in value:
            raise RuntimeError(value["failed"])
        return value

    def burst(self, seconds: float) -> float:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"seconds": seconds}) + "\n")
        self.process.stdin.flush()
        return self.answer()["seconds"]

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def measure(name: str, threads: int, rounds: int, seconds: float) -> None:
    model = zoo.get(name)
    path = model.to_onnx()
    feeds = {n: np.asarray(t) for n, t in zip(model.input_names, model.inputs(1), strict=True)}
    times: dict[tuple[str, str], list[float]] = {key: [] for key in ENGINES}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        running: dict[tuple[str, str], Process] = {}
        for engine, precision in ENGINES:
            own = Path(folder) / f"{engine}-{precision}"
            own.mkdir()
            np.savez(own / "feeds.npz", **feeds)  # type: ignore[arg-type]
            process = Process(engine, precision, path, own / "feeds.npz", threads)
            stack.callback(process.close)
            process.answer()
            running[engine, precision] = process
        for turn in range(rounds):
            order = list(ENGINES)
            shift = turn % len(order)
            for key in order[shift:] + order[:shift]:
                times[key].append(running[key].burst(seconds))
        outputs = {key: _outputs(p.results) for key, p in running.items()}
    base = outputs["ingot", "float32"]
    for key in ENGINES:
        own = times[key]
        gain = statistics.median(a / b for a, b in zip(times[key[0], "float32"], own, strict=True))
        off = max(deviation(a, b) for a, b in zip(outputs[key], base, strict=True))
        label = f"{name:16} {key[0]:9} {key[1]:9}"
        print(f"{label} {statistics.median(own) * 1e3:8.2f} ms  {gain:5.2f}x  off {off:.1e}", flush=True)


def _outputs(path: Path) -> list[np.ndarray]:
    with np.load(path) as stored:
        return [stored[key] for key in stored.files]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=0.12)
    options = parser.parse_args(arguments)
    for name in options.models:
        measure(name, options.threads, options.rounds, options.seconds)


if __name__ == "__main__":
    main()
