"""What reduced precision gains: Ingot in float32, bfloat16 and float16 beside OpenVINO in float32 and bfloat16.

    python benchmarks/precision.py bert-base resnet50 [--threads 2] [--rounds 8] [--seconds 0.12]

Each has a process of its own; all are started first and then take bursts in turns, in an order that rotates. A figure
is the median of the bursts' medians, a gain the median over rounds of float32's burst over the other's of that round
(both Ingot's, or both OpenVINO's). `off` is the largest deviation from Ingot's float32 results over their largest
magnitude.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from benchmarks import zoo
from benchmarks.measure import deviation
from ingot.bench.engines import Job
from ingot.bench.round_robin import Worker, round_robin
from ingot.bench.run import start

ENGINES = [(engine, precision) for engine in ("ingot", "openvino") for precision in ("float32", "bfloat16", "float16")]
ENGINES.remove(("openvino", "float16"))


def measure(name: str, threads: int, rounds: int, seconds: float) -> None:
    model = zoo.get(name)
    path = model.to_onnx()
    feeds = {n: np.asarray(t) for n, t in zip(model.input_names, model.inputs(1), strict=True)}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        running: dict[tuple[str, str], Worker] = {}
        for engine, precision in ENGINES:
            own = Path(folder) / f"{engine}-{precision}"
            own.mkdir()
            np.savez(own / "feeds.npz", **feeds)  # type: ignore[arg-type]
            process = start(engine, path, own / "feeds.npz", Job(threads, precision))
            stack.callback(process.close)
            process.answer()
            running[engine, precision] = process
        times = round_robin(running, rounds, lambda worker: float(worker.ask(seconds=seconds)["seconds"]))
        outputs = {key: _outputs(p.log.with_suffix(".npz")) for key, p in running.items()}
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
