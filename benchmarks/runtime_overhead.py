"""What the runtime itself costs: a call from Python, a step, the hand-over between threads, load to first result.

python benchmarks/runtime_overhead.py     (about 10 s; wants a quiet machine for the thread figures)
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ingot.runtime import artifact
from ingot.runtime.cpu.memory import aligned_bytes
from ingot.runtime.executor import CompiledModel
from ingot.runtime.program import Buffer, Program, Step, TensorSpec
from ingot.targets.cpu.assemble import assemble

# `spin` keeps the core busy for dims[0] dependent multiplications, about a nanosecond each.
KERNELS = """
define void @nothing(ptr %bases, ptr %args, i64 %chunk, ptr %scratch) nounwind {
  ret void
}
define void @spin(ptr %bases, ptr %args, i64 %chunk, ptr %scratch) nounwind {
entry:
  %n.at = getelementptr i64, ptr %args, i64 4
  %n = load i64, ptr %n.at
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %i.next, %loop ]
  %x = phi i64 [ 3, %entry ], [ %y, %loop ]
  %y = mul i64 %x, 6364136223846793005
  %i.next = add i64 %i, 1
  %end = icmp eq i64 %i.next, %n
  br i1 %end, label %over, label %loop
over:
  store i64 %y, ptr %scratch
  ret void
}
"""


def program(steps: int, chunks: int, kernel: str = "nothing", length: int = 0, weights: int = 0) -> Program:
    spec = TensorSpec("x", "f32", (8,))
    return Program(
        symbols=(),
        inputs=(spec,),
        outputs=(TensorSpec("y", "f32", (8,)),),
        buffers=(Buffer(0, "input", 32, index=0), Buffer(1, "output", 32, index=0)),
        steps=(Step(kernel, ((0, 0), (1, 0)), (length,), chunks),) * steps,
        code={"cpu": assemble([KERNELS])},
        weights=aligned_bytes(weights) if weights else np.zeros(0, np.uint8),
        scratch_bytes=64,
    )


def microseconds(call: Callable[[], object], calls: int, repeats: int = 9) -> float:
    def once() -> float:
        start = time.perf_counter()
        for _ in range(calls):
            call()
        return (time.perf_counter() - start) / calls * 1e6

    return statistics.median(once() for _ in range(repeats))


def calls() -> None:
    x = np.zeros(8, np.float32)
    for threads in (1, 2):
        model = CompiledModel(program(1, threads), threads=threads)
        print(f"call, 1 step, {threads} threads: {microseconds(lambda: model(x), 2000):.2f} us")  # noqa: B023

    model = CompiledModel(program(1, 2), threads=2)

    def after_a_pause() -> float:
        time.sleep(0.002)
        start = time.perf_counter()
        model(x)
        return (time.perf_counter() - start) * 1e6

    print(f"call, 1 step, 2 threads, worker asleep: {statistics.median(after_a_pause() for _ in range(300)):.2f} us")


def steps() -> None:
    x = np.zeros(8, np.float32)
    for chunks in (1, 2, 8):
        few = CompiledModel(program(1, chunks), threads=1)
        many = CompiledModel(program(1001, chunks), threads=1)
        cost = (microseconds(lambda: many(x), 200) - microseconds(lambda: few(x), 2000)) / 1000  # noqa: B023
        print(f"step of {chunks} empty chunks, 1 thread: {cost * 1e3:.1f} ns")
    for length in (1000, 5000, 20000):
        alone = CompiledModel(program(400, 1, "spin", length), threads=1)
        shared = CompiledModel(program(400, 2, "spin", length), threads=2)
        # The fastest of many: a neighbour on the other core costs a whole chunk, which is not what is measured.
        one = min(microseconds(lambda: alone(x), 1, 1) for _ in range(200))  # noqa: B023
        two = min(microseconds(lambda: shared(x), 1, 1) for _ in range(200))  # noqa: B023
        print(f"hand-over, 2 threads, chunks of {one / 400:.2f} us: {(two - one) / 400 * 1e3:.0f} ns per step")


_LOAD = """
import sys, time
start = time.perf_counter()
import numpy as np
numpy = time.perf_counter()
from pathlib import Path
from ingot.runtime import artifact
from ingot.runtime.executor import CompiledModel
imported = time.perf_counter()
program = artifact.load(Path(sys.argv[1]))
loaded = time.perf_counter()
model = CompiledModel(program, threads=2)
built = time.perf_counter()
model(np.zeros(8, np.float32))
done = time.perf_counter()
assert "llvmlite" not in sys.modules
print(*(1e3 * t for t in (numpy - start, imported - numpy, loaded - imported, built - loaded, done - built)))
"""


def loading() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for megabytes in (0, 100):
            path = Path(folder) / "model.ingot"
            artifact.save(program(150, 8, weights=megabytes << 20), path)
            rows = [
                [float(v) for v in subprocess.check_output([sys.executable, "-c", _LOAD, path], text=True).split()]
                for _ in range(7)
            ]
            parts = [statistics.median(column) for column in zip(*rows, strict=True)]
            names = ("numpy", "runtime imports", "load and verify", "build", "first call")
            text = ", ".join(f"{name} {value:.2f}" for name, value in zip(names, parts, strict=True))
            print(f"load, {megabytes} MiB of weights, ms: {text}")


if __name__ == "__main__":
    calls()
    steps()
    loading()
