"""Products of 8-bit floats and integers beside PyTorch's and those of 16 bits: microseconds on the GPU.

    python -m benchmarks.gpu.eight_bits

Each is captured 20 times in a graph; graphs are replayed in turns, and medians told.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch

from benchmarks.gpu.graphed import timed
from ingot import ops
from ingot.ir.node import Graph, Input
from ingot.ir.types import DType, TensorType, bf16, f8e4m3fn, f16, f32, i8, i32
from ingot.pipeline.build import build_program
from ingot.pipeline.target import features_of
from ingot.runtime.executor import CompiledModel

SIZE, CALLS, ROUNDS = 4096, 20, 9
KINDS = {f8e4m3fn: (f32, bf16), i8: (i32, f16), f16: (f32, f16)}  # of sums and of results


def product(rows: int, dtype: DType) -> CompiledModel:
    """x [rows, SIZE], w [SIZE, SIZE] -> x @ w.T"""
    x, w = (Input(name, TensorType(dtype, (n, SIZE)))() for name, n in (("x", rows), ("w", SIZE)))
    sums, out = KINDS[dtype]
    y = ops.DotGeneral(((), ()), ((1,), (1,)), dtype=sums)(x, w)
    return CompiledModel(build_program(Graph((x, w), (ops.cast(y, out),)), features_of("cuda:sm_90a"), 1))


def calls(rows: int) -> dict[str, Callable[[], object]]:
    sizes, one = (rows, SIZE), torch.ones((), device="cuda")
    a8, b8 = (torch.randn(n, SIZE, device="cuda").to(torch.float8_e4m3fn) for n in sizes)
    ai, bi = (torch.randint(-128, 128, (n, SIZE), dtype=torch.int8, device="cuda") for n in sizes)
    ah, bh = (torch.randn(n, SIZE, dtype=torch.float16, device="cuda") for n in sizes)
    floats, integers, halves = product(rows, f8e4m3fn), product(rows, i8), product(rows, f16)

    def scaled(fast: bool) -> torch.Tensor:
        return torch.ops.aten._scaled_mm(a8, b8.t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=fast)

    return {
        "ingot float8": lambda: floats(a8, b8),
        "ingot int8": lambda: integers(ai, bi),
        "ingot float16": lambda: halves(ah, bh),
        "_scaled_mm": lambda: scaled(False),
        "_scaled_mm, fast sums": lambda: scaled(True),
        "_int_mm": lambda: torch.ops.aten._int_mm(ai, bi.t()),
        "matmul float16": lambda: ah @ bh.t(),
    }


def main() -> None:
    for rows in (512, 4096):
        clocks = {name: timed(fn, CALLS) for name, fn in calls(rows).items()}
        told = [{name: clock() for name, clock in clocks.items()} for _ in range(ROUNDS)]
        for name in clocks:
            us = statistics.median(each[name] for each in told)
            print(f"{rows:5} rows {name:24} {us:8.1f} us {2 * rows * SIZE * SIZE / us / 1e6:6.0f} TOP/s", flush=True)


if __name__ == "__main__":
    main()
