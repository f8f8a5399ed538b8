"""The process that one peer runs in, driven by JSON lines: commands on stdin, one answer line each on stdout.

python -m benchmarks.peer_worker PEER FOLDER      then  {"do": "burst", "seconds": 0.15}  ...
python -m benchmarks.peer_worker --prepare ...       writes the task: inputs, PyTorch's outputs, FLOPs
"""

import importlib
import json
import os
import statistics
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import TextIO

import numpy as np

from benchmarks.measure import deviation, peak_rss
from benchmarks.peer_backends import BACKENDS, Task

Answer = dict[str, float | int | str | list[float]]


def read_task(folder: Path) -> tuple[Task, list[np.ndarray]]:
    """The task that `prepare` wrote into `folder`, and PyTorch's outputs."""
    meta = json.loads((folder / "task.json").read_text())
    with np.load(folder / "inputs.npz") as stored:
        inputs = {name: stored[name] for name in meta["inputs"]}
    with np.load(folder / "outputs.npz") as stored:
        outputs = [stored[f"arr_{i}"] for i in range(len(stored.files))]
    return Task(meta["name"], Path(meta["onnx"]), inputs, meta["symbols"], meta["threads"]), outputs


def prepare(folder: Path, name: str, batch: int, length: int, threads: int, quantized: str) -> Answer:
    """Write the task of model `name` at this shape, exporting it if the cache lacks it. quantized: a style, or ""."""
    torch = importlib.import_module("torch")
    export = importlib.import_module("benchmarks.export")
    zoo = importlib.import_module("benchmarks.zoo")
    torch.set_num_threads(threads)
    model = zoo.get(name)
    path = importlib.import_module("benchmarks.quantize").quantized(model, quantized) if quantized else model.to_onnx()
    inputs = model.inputs(batch, length)
    outputs = export.reference(model, inputs)
    symbols = {
        symbol: tensor.shape[axis]
        for tensor, axes in zip(inputs, model.axes, strict=True)
        for axis, symbol in axes.items()
    }
    arrays = {key: tensor.numpy() for key, tensor in zip(model.input_names, inputs, strict=True)}
    np.savez(folder / "inputs.npz", **arrays)
    np.savez(folder / "outputs.npz", *(tensor.numpy() for tensor in outputs))
    meta = {"name": name, "onnx": str(path), "inputs": list(arrays), "symbols": symbols, "threads": threads}
    (folder / "task.json").write_text(json.dumps(meta))
    return {"gflop": export.flops(model, inputs) / 1e9, "batch": batch, "length": symbols.get("length", 0)}


class Worker:
    """Holds one compiled task and answers commands about it."""

    def __init__(self, peer: str, folder: Path, artifact: Path | None) -> None:
        self.peer, self.folder = peer, folder
        self.task, self.expected = read_task(folder)
        began = time.perf_counter()
        self.backend = BACKENDS[peer](self.task)
        started = time.perf_counter()
        self.backend.restore(artifact) if artifact else self.backend.compile()
        ready = time.perf_counter()
        outputs = [np.array(output) for output in self.backend.run()]
        first = time.perf_counter()
        if len(outputs) != len(self.expected):
            raise ValueError(f"{peer} gives {len(outputs)} outputs; PyTorch gives {len(self.expected)}")
        self.start: Answer = {
            "import_s": started - began,
            "compile_s": ready - started,
            "first_call_s": first - ready,
            "error": max(deviation(got, want) for got, want in zip(outputs, self.expected, strict=True)),
            "peak_rss": peak_rss(),
        }

    def burst(self, seconds: float) -> Answer:
        """Calls back to back for about `seconds` (at least 3); the first, on cold caches, is not counted."""
        self.backend.run()
        times: list[float] = []
        end = time.perf_counter() + seconds
        while len(times) < 3 or time.perf_counter() < end:
            started = time.perf_counter()
            self.backend.run()
            times.append(time.perf_counter() - started)
        return {"median_s": statistics.median(times), "times_s": times}

    def callers(self, seconds: float, count: int) -> Answer:
        """Calls from `count` threads at once, back to back for about `seconds`: how many are done in a second."""
        done = [0] * count
        began = time.perf_counter()

        def call(number: int) -> None:
            while not done[number] or time.perf_counter() < began + seconds:
                self.backend.run()
                done[number] += 1

        threads = [threading.Thread(target=call, args=(number,)) for number in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return {"calls_per_s": sum(done) / (time.perf_counter() - began)}

    def perform(self, command: dict[str, float]) -> Answer:
        if command["do"] == "burst":
            return self.burst(command["seconds"])
        if command["do"] == "callers":
            return self.callers(command["seconds"], int(command["count"]))
        if command["do"] == "memory":
            return {"peak_rss": peak_rss()}
        if command["do"] == "save":
            written = self.backend.save(self.folder / self.peer)
            return {"artifact": str(written) if written else "", "bytes": _size(written) if written else 0}
        raise ValueError(f"command {command['do']!r}; expected burst, callers, memory or save")


def _size(path: Path) -> int:
    """Bytes of the artifact with its side files (same stem)."""
    return sum(other.stat().st_size for other in path.parent.glob(f"{path.name}*"))


def serve(peer: str, folder: Path, artifact: Path | None, answers: TextIO) -> None:
    def answer(value: Answer) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    worker = Worker(peer, folder, artifact)
    answer(worker.start)
    for line in sys.stdin:
        answer(worker.perform(json.loads(line)))


def main() -> None:
    # the pipe is kept for answers alone: engines print what they like on file descriptor 1, which now is stderr
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        if sys.argv[1] == "--prepare":
            folder, name, batch, length, threads, quantized = sys.argv[2:8]
            task = prepare(Path(folder), name, int(batch), int(length), int(threads), quantized)
            answers.write(json.dumps(task) + "\n")
            answers.flush()
        else:
            artifact = Path(sys.argv[3]) if len(sys.argv) > 3 else None
            serve(sys.argv[1], Path(sys.argv[2]), artifact, answers)
    except Exception as error:  # the parent must learn why before this process ends, whatever the engine raised
        traceback.print_exc()
        answers.write(json.dumps({"failed": f"{type(error).__name__}: {error}"[:500]}) + "\n")
        answers.flush()
        sys.exit(1)


if __name__ == "__main__":
    main()
