"""TFLite files beside LiteRT: differences from its reference kernels, and the least time of a call beside XNNPACK's.

    python benchmarks/tflite.py models/*.tflite --seconds 3 --threads 2

Calls of both take turns, three by three; the least of each is told, as it is what other work on the host disturbs
least. A call of LiteRT is set_tensor, invoke, get_tensor.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from ai_edge_litert import interpreter as litert

import ingot
from ingot.runtime.dtypes import numpy_dtype
from ingot.support.errors import IngotError


def litert_call(
    path: Path, feeds: Sequence[np.ndarray], threads: int, reference: bool
) -> Callable[[], list[np.ndarray]]:
    kinds = litert.OpResolverType
    kind = kinds.BUILTIN_REF if reference else kinds.AUTO
    runner = litert.Interpreter(str(path), num_threads=threads, experimental_op_resolver_type=kind)
    inputs = [d["index"] for d in runner.get_input_details()]
    for place, x in zip(inputs, feeds, strict=True):
        runner.resize_tensor_input(place, x.shape)
    runner.allocate_tensors()
    outputs = [d["index"] for d in runner.get_output_details()]

    def call() -> list[np.ndarray]:
        for place, x in zip(inputs, feeds, strict=True):
            runner.set_tensor(place, x)
        runner.invoke()
        return [runner.get_tensor(i) for i in outputs]

    return call


def random_inputs(model: ingot.CompiledModel, size: int) -> list[np.ndarray]:
    """Open sizes are `size`."""
    rng = np.random.default_rng(0)
    feeds: list[np.ndarray] = []
    for spec in model.inputs:
        shape = tuple(d if isinstance(d, int) else size for d in spec.shape)
        dtype = numpy_dtype(spec.dtype)
        if dtype.kind == "f":
            feeds.append(rng.standard_normal(shape).astype(dtype))
        else:
            info = np.iinfo(dtype)
            feeds.append(rng.integers(max(info.min, -128), min(info.max, 255), shape, endpoint=True).astype(dtype))
    return feeds


def report(path: Path, seconds: float, threads: int, size: int) -> str:
    model = ingot.compile(path, threads=threads)
    feeds = random_inputs(model, size)
    wanted = litert_call(path, feeds, threads, reference=True)()
    out = model(*feeds)
    results = out if isinstance(out, tuple) else (out,)
    if all(w.dtype.kind == "f" for w in wanted):
        error = max(np.abs(r - w).max() / max(np.abs(w).max(), 1e-30) for r, w in zip(results, wanted, strict=True))
        told = f"{error:.1e}"
    else:
        told = f"{sum(int((r != w).sum()) for r, w in zip(results, wanted, strict=True))} differ"
    calls = (lambda: model(*feeds)), litert_call(path, feeds, threads, reference=False)
    least = [float("inf")] * 2
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for i, call in enumerate(calls):
            for _ in range(3):
                start = time.perf_counter()
                call()
                least[i] = min(least[i], time.perf_counter() - start)
    times = " ".join(f"{1e3 * t:9.3f}" for t in least)
    return f"{path.name:44s} {told:>12s} {times} ms {least[1] / least[0]:6.2f}x"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--size", type=int, default=1, help="of the sizes that a model leaves open")
    asked = parser.parse_args()
    for path in asked.files:
        try:
            print(report(path, asked.seconds, asked.threads, asked.size), flush=True)
        except (IngotError, RuntimeError, ValueError) as error:
            print(f"{path.name:44s} {str(error).splitlines()[0]}", flush=True)


if __name__ == "__main__":
    main()
