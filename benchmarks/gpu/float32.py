"""resnet50's convolutions and GPT-2's products in float32 beside PyTorch's, with TF32 and without: microseconds.

    timeout 60 python -m benchmarks.gpu.float32 [--only convolutions,products] [--kind forward,input,weight] [--exact]

Each has three products: forward, the gradient of the input and that of the weight. Images and weights are channels
last. Programs and PyTorch's calls are captured some times in CUDA graphs, which are replayed in turns; medians are
told, and in brackets the deviation from PyTorch's result without TF32, relative to its norm. Totals count each as often
as a training step has it. --exact adds products without TF32: by six of bf16 and by multiply-adds ("ieee").
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, wait
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.gpu.graphed import timed
from ingot import ops
from ingot.autodiff import pullbacks
from ingot.ir.node import Graph, Input, Node
from ingot.ir.types import TensorType, f32
from ingot.pipeline.build import build_program
from ingot.pipeline.target import features_of
from ingot.runtime.artifact import load, save
from ingot.runtime.executor import CompiledModel
from ingot.support.dataclass import dataclass

TARGET = "cuda:sm_90a"
IMAGES, ROWS = 32, 2048
ROUNDS, CALLS = 7, 5
KINDS = ("forward", "input", "weight")
MAX_DEVIATION = {True: 4e-3, False: 1e-5}  # of the norm, with TF32 and without
NAMES = {True: "tf32", None: "bf16x6", False: "ieee"}  # of `tf32`


@dataclass(frozen=True)
class Conv:
    """A convolution of square images, padded by half the window. count: how often a step has it."""

    ins: int
    outs: int
    size: int
    window: int
    stride: int
    count: int

    @property
    def _geometry(self) -> tuple[list[int], list[int], list[int], bool, list[int], int]:
        return [self.stride] * 2, [self.window // 2] * 2, [1, 1], False, [0, 0], 1

    def graph(self, kind: str, tf32: bool | None) -> Graph:
        margin, out, k = self.window // 2, -(-self.size // self.stride), self.window
        op = ops.Conv((self.stride,) * 2, ((margin, margin),) * 2, (1, 1), tf32=tf32)
        x = _input("x", (IMAGES, self.size, self.size, self.ins))
        w, g = _input("w", (self.outs, k, k, self.ins)), _input("g", (IMAGES, out, out, self.outs))
        if kind == "forward":
            return Graph((x, w), (_channels_last(op(_channels_first(x), _channels_first(w))),))
        operands = _channels_first(x), _channels_first(w)
        of_x, of_w = pullbacks(lambda a, b: op(a, b), operands, _channels_first(g))
        return Graph((g, w), (_channels_last(of_x),)) if kind == "input" else Graph((x, g), (_channels_last(of_w),))

    def torch_call(self, kind: str, a: Tensor, b: Tensor) -> Callable[[], Tensor]:
        a, b = a.permute(0, 3, 1, 2), b.permute(0, 3, 1, 2)
        backward = torch.ops.aten.convolution_backward
        if kind == "forward":
            return lambda: torch.ops.aten.convolution(a, b, None, *self._geometry).permute(0, 2, 3, 1)
        x_shape = IMAGES, self.size, self.size, self.ins
        w_shape = self.outs, self.window, self.window, self.ins
        other = torch.empty(x_shape if kind == "input" else w_shape, device=a.device).permute(0, 3, 1, 2)
        if kind == "input":
            return lambda: backward(a, other, b, None, *self._geometry, [True, False, False])[0].permute(0, 2, 3, 1)
        return lambda: backward(b, a, other, None, *self._geometry, [False, True, False])[1].permute(0, 2, 3, 1)


@dataclass(frozen=True)
class Linear:
    """x [ROWS, ins] by a weight, which is stored as [outs, ins] if `is_transposed`."""

    ins: int
    outs: int
    is_transposed: bool
    count: int

    def graph(self, kind: str, tf32: bool | None) -> Graph:
        x, g = _input("x", (ROWS, self.ins)), _input("g", (ROWS, self.outs))
        w = _input("w", (self.outs, self.ins) if self.is_transposed else (self.ins, self.outs))

        def product(a: Node, b: Node, *contracted: int) -> Graph:
            op = ops.DotGeneral(contract=((contracted[0],), (contracted[1],)), tf32=tf32)
            return Graph((x if kind != "input" else g, w if kind != "weight" else g), (op(a, b),))

        if kind == "weight":
            return product(g, x, 0, 0) if self.is_transposed else product(x, g, 0, 0)
        first = x if kind == "forward" else g
        return product(first, w, 1, int(self.is_transposed == (kind == "forward")))

    def torch_call(self, kind: str, a: Tensor, b: Tensor) -> Callable[[], Tensor]:
        if kind == "weight":
            return (lambda: b.t() @ a) if self.is_transposed else (lambda: a.t() @ b)
        is_transposed = self.is_transposed == (kind == "forward")
        return lambda: a @ (b.t() if is_transposed else b)


Case = Conv | Linear
CASES: dict[str, tuple[Case, ...]] = {
    "products": (
        Linear(768, 2304, False, 6), Linear(768, 768, False, 6), Linear(768, 3072, False, 6),
        Linear(3072, 768, False, 6), Linear(768, 50257, True, 1),
    ),
    "convolutions": (
        Conv(3, 64, 224, 7, 2, 1), Conv(64, 64, 56, 1, 1, 1), Conv(256, 64, 56, 1, 1, 2), Conv(64, 64, 56, 3, 1, 3),
        Conv(64, 256, 56, 1, 1, 4), Conv(256, 128, 56, 1, 1, 1), Conv(128, 128, 56, 3, 2, 1),
        Conv(512, 128, 28, 1, 1, 3), Conv(128, 128, 28, 3, 1, 3), Conv(128, 512, 28, 1, 1, 4),
        Conv(256, 512, 56, 1, 2, 1), Conv(512, 256, 28, 1, 1, 1), Conv(256, 256, 28, 3, 2, 1),
        Conv(1024, 256, 14, 1, 1, 5), Conv(256, 256, 14, 3, 1, 5), Conv(256, 1024, 14, 1, 1, 6),
        Conv(512, 1024, 28, 1, 2, 1), Conv(1024, 512, 14, 1, 1, 1), Conv(512, 512, 14, 3, 2, 1),
        Conv(2048, 512, 7, 1, 1, 2), Conv(512, 512, 7, 3, 1, 2), Conv(512, 2048, 7, 1, 1, 3),
        Conv(1024, 2048, 14, 1, 2, 1),
    ),
}  # fmt: skip


def _input(name: str, shape: Sequence[int]) -> Node:
    return Input(name, TensorType(f32, tuple(shape)))()


def _channels_first(x: Node) -> Node:
    return ops.Transpose((0, 3, 1, 2))(x)


def _channels_last(x: Node) -> Node:
    return ops.Transpose((0, 2, 3, 1))(x)


def build(case: Case, kind: str, tf32: bool | None, folder: str) -> Path:
    path = Path(tempfile.mkdtemp(dir=folder)) / "program"
    save(build_program(case.graph(kind, tf32), features_of(TARGET), 1), path, durable=False)
    return path


def _allow_tf32(tf32: bool) -> None:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32


def measure(case: Case, kind: str, paths: dict[bool | None, Path]) -> dict[str, tuple[float, float]]:
    """(microseconds, deviation) of each program, by `tf32`, and of PyTorch with TF32 and without."""
    torch.manual_seed(0)
    data = [torch.randn([int(d) for d in x.shape], device="cuda") for x in case.graph(kind, True).inputs]
    _allow_tf32(False)
    exact = case.torch_call(kind, *data)()
    models = {tf32: CompiledModel(load(path)) for tf32, path in paths.items()}  # alive while their graphs are replayed
    calls: dict[str, Callable[[], float]] = {}
    deviations: list[float] = []
    for tf32, model in models.items():
        deviations.append(float((model(*data) - exact).norm() / exact.norm()))
        calls[NAMES[tf32]] = timed(lambda m=model: m(*data), CALLS)  # type: ignore[misc]
    for tf32 in sorted({bool(x) for x in models}, reverse=True):
        _allow_tf32(tf32)
        call = case.torch_call(kind, *data)
        deviations.append(float((call() - exact).norm() / exact.norm()))
        calls["PyTorch's tf32" if tf32 else "PyTorch's f32"] = timed(call, CALLS)
    rounds = [[call() for call in calls.values()] for _ in range(ROUNDS)][1:]
    medians = map(statistics.median, zip(*rounds, strict=True))
    return dict(zip(calls, zip(medians, deviations, strict=True), strict=True))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(CASES), help="by commas")
    parser.add_argument("--kind", default=",".join(KINDS), help="by commas")
    parser.add_argument("--exact", action="store_true", help="products without TF32, too")
    parser.add_argument("--seconds", type=float, default=50.0, help="in all; what comes later is left out")
    asked = parser.parse_args()
    end = time.monotonic() + asked.seconds
    todo = [(case, kind) for name in asked.only.split(",") for case in CASES[name] for kind in asked.kind.split(",")]
    os.environ["INGOT_WORKERS"] = "1"
    totals: dict[tuple[str, str, str], float] = defaultdict(float)
    late = wrong = 0
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(os.cpu_count() or 1, multiprocessing.get_context("spawn")) as pool,
    ):
        choices = (True, None, False) if asked.exact else (True,)
        jobs = {(*at, tf32): pool.submit(build, *at, tf32, folder) for tf32 in choices for at in todo}
        wait(jobs.values(), 0.7 * asked.seconds)  # nothing is timed while something is compiled
        for case, kind in todo:
            paths = {tf32: jobs[case, kind, tf32] for tf32 in choices}
            if time.monotonic() > end or not all(job.done() for job in paths.values()):
                late += 1
                continue
            found = measure(case, kind, {tf32: job.result() for tf32, job in paths.items()})
            for name, (us, deviation) in found.items():
                totals[type(case).__name__, kind, name] += us * case.count
                wrong += not deviation < MAX_DEVIATION["tf32" in name]
            print(f"{case} {kind}: " + ", ".join(f"{n} {us:.1f} ({d:.0e})" for n, (us, d) in found.items()), flush=True)
        pool.shutdown(wait=False, cancel_futures=True)
    for (name, kind, which), us in totals.items():
        print(f"{name}, {kind}, {which}: {us:.0f} us")
    print(f"{late} left out, {wrong} wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
