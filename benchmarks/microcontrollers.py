"""TFLite files as C on a microcontroller's core in QEMU: instructions, memory, and differences from LiteRT.

    python -m benchmarks.microcontrollers FILE... [--core cortex-m4 cortex-m55] [--optimize=-O2 --optimize=-O3]

QEMU counts instructions (`-icount shift=0`), which are neither cycles nor time. The results of each random input are
compared byte by byte with those of LiteRT's reference kernels (BUILTIN_REF). Needs arm-none-eabi-gcc, qemu-system-arm
and ai-edge-litert.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.tflite import litert_call, random_inputs
from ingot.driver.compile import Options, compile_model, file_sizes
from ingot.driver.open import Request
from ingot.pipeline.c import TARGET
from ingot.pipeline.functions.firmware import Footprint
from ingot.runtime.executor import CompiledModel


def run(folder: Path, optimize: str) -> tuple[int, int, int]:
    """Build and run an example. Return (instructions, outputs that differ, outputs)."""
    subprocess.run(["make", "clean"], cwd=folder, check=True, capture_output=True)
    flags = ["make", "run", f"OPTIMIZE={optimize}"]
    done = subprocess.run(flags, cwd=folder, capture_output=True, text=True, timeout=600, check=False)
    text = done.stdout + done.stderr
    counted = re.search(r"instructions .*: (\d+)", text)
    differ = re.findall(r"(\d+) of (\d+) differ", text)
    if counted is None or not differ:
        raise RuntimeError(text[-2000:])
    return int(counted[1]), sum(int(a) for a, _ in differ), sum(int(n) for _, n in differ)


def compiled(path: Path, core: str) -> CompiledModel:
    request = Request()
    request = Request(dynamic=dict(file_sizes(path, request, f"c:{core}")) or None)
    return compile_model(path, request, Options(f"c:{core}", 1, cache=False))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--core", nargs="+", default=["cortex-m4"])
    parser.add_argument("--optimize", action="append", help="of gcc; by default -O2")
    parser.add_argument("--runs", type=int, default=3, help="random inputs")
    args = parser.parse_args()
    print("| file | core | million instructions | differ | arena | weights | of the file | code |")
    print("|---|---|---|---|---|---|---|---|")
    for path in args.files:
        for core in args.core:
            print(row(path, core, args.optimize or ["-O2"], args.runs), flush=True)


def row(path: Path, core: str, optimize: list[str], runs: int) -> str:
    model = compiled(path, core)
    counts: dict[str, int] = {}
    wrong = total = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model.save(folder / "net.c")
        f: Footprint = TARGET.footprint(model.program, folder / "net.c", separate_weights=False)
        for seed in range(runs):
            feeds = [np.roll(x, seed * 7) for x in random_inputs(model, 1)]
            expected = litert_call(path, feeds, 1, reference=True)()
            TARGET.write_example(model.program, folder / "net.c", feeds, expected)
            for o in optimize if seed == 0 else optimize[:1]:
                counts[o], differ, outputs = run(folder, o)
                wrong, total = wrong + differ, total + outputs
    instructions = ", ".join(f"{n / 1e6:.3f} ({o})" for o, n in counts.items())
    share = f"{f.weights / path.stat().st_size:.2f}x"
    return (
        f"| {path.stem} | {core} | {instructions} | {wrong} of {total} | {f.arena:,} | {f.weights:,} | {share} "
        f"| {f.code or 0:,} |"
    )


if __name__ == "__main__":
    main()
