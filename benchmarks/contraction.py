"""The contraction generator on the shapes of real models: share of the multiply-add peak, one and two threads.

python benchmarks/contraction.py [filter ...] [--peers] [--threads 1,2] [--types bf16,bf16]

Each shape runs as a program of many steps with its own weights for every step (at least 48 MB of them in rotation), as
in a model: weights come from the third-level cache or memory, activations from the second or third. The peak is probed
between the repetitions. `compile` is printing plus LLVM for one kernel.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks.machine import PeakProbe, host_machine
from ingot.ir import kernel as k
from ingot.ir.kernel import Buffer, Kernel, Lit
from ingot.ir.types import DTYPES, f32
from ingot.runtime.cpu.memory import aligned_bytes
from ingot.runtime.executor import CompiledModel
from ingot.runtime.program import Buffer as Memory
from ingot.runtime.program import Program, Step, TensorSpec
from ingot.schedule.axes import Axis, Contraction
from ingot.schedule.block import Block
from ingot.schedule.cpu.contraction.cost_model import plan_contraction
from ingot.schedule.cpu.contraction.macro_kernel import emit_macro_kernel
from ingot.schedule.cpu.contraction.operands import Operand
from ingot.schedule.cpu.contraction.plan import Plan
from ingot.schedule.cpu.machine import Machine
from ingot.schedule.index import linear
from ingot.targets.cpu.assemble import assemble
from ingot.targets.cpu.printer.llvm import print_module
from ingot.targets.cpu.workers import host_features


@dataclass(frozen=True)
class Shape:
    """A contraction with the sizes of its operands in elements, and its output's strides."""

    name: str
    c: Contraction
    a: int
    b: int
    out: int
    strides: tuple[int, ...]
    peer: Callable[[], Callable[[], object]] | None = None


def matmul(name: str, m: int, kk: int, n: int) -> Shape:
    c = Contraction((), (Axis(m, kk),), (Axis(n, 0, 1),), (Axis(kk, 1, n),), f32, f32, f32)
    return Shape(f"{name} {m}x{kk}x{n}", c, m * kk, kk * n, m * n, (n, 1), lambda: _torch_mm(m, kk, n))


def conv(name: str, size: int, ci: int, co: int, s: int = 1, stride: int = 1, groups: int = 1) -> Shape:
    """Square images; `size` is the output's. A 1x1 convolution of stride 1 is a plain matmul."""
    title = (
        f"{name} {size}x{size} {ci}->{co} {s}x{s}"
        + (f"/{stride}" if stride > 1 else "")
        + (f" g{groups}" if groups > 1 else "")
    )
    w = (size - 1) * stride + s
    gi, go = ci // groups, co // groups
    peer = lambda: _torch_conv(size, ci, co, s, stride, groups)  # noqa: E731
    if s == stride == groups == 1:
        c = Contraction((), (Axis(size * size, ci),), (Axis(co, 0, 1),), (Axis(ci, 1, co),), f32, f32, f32)
        return Shape(title, c, size * size * ci, ci * co, size * size * co, (co, 1), peer)
    c = Contraction(
        batch=(Axis(groups, gi, go),) if groups > 1 else (),
        rows=(Axis(size, stride * w * ci), Axis(size, stride * ci)),
        cols=(Axis(go, 0, 1),),
        reduce=(Axis(s, w * ci, s * gi * co), Axis(s, ci, gi * co), Axis(gi, 1, co)),
        a=f32, b=f32, acc=f32,
    )  # fmt: skip
    strides = (*((go,) if groups > 1 else ()), size * co, co, 1)
    return Shape(title, c, w * w * ci, s * s * gi * co, size * size * co, strides, peer)


SHAPES: list[Shape] = [
    conv("resnet", 112, 3, 64, 7, 2),
    conv("resnet", 56, 64, 64), conv("resnet", 56, 64, 64, 3), conv("resnet", 56, 64, 256), conv("resnet", 56, 256, 64),
    conv("resnet", 56, 256, 128), conv("resnet", 28, 128, 128, 3, 2), conv("resnet", 28, 128, 512),
    conv("resnet", 28, 256, 512, 1, 2), conv("resnet", 28, 512, 128), conv("resnet", 28, 128, 128, 3),
    conv("resnet", 28, 512, 256), conv("resnet", 14, 256, 256, 3, 2), conv("resnet", 14, 256, 1024),
    conv("resnet", 14, 512, 1024, 1, 2), conv("resnet", 14, 1024, 256), conv("resnet", 14, 256, 256, 3),
    conv("resnet", 14, 1024, 512), conv("resnet", 7, 512, 512, 3, 2), conv("resnet", 7, 512, 2048),
    conv("resnet", 7, 1024, 2048, 1, 2), conv("resnet", 7, 2048, 512), conv("resnet", 7, 512, 512, 3),
    matmul("resnet fc", 1, 2048, 1000),
    matmul("bert", 128, 768, 768), matmul("bert", 128, 768, 3072), matmul("bert", 128, 3072, 768),
    matmul("minilm", 128, 384, 384), matmul("minilm", 128, 384, 1536), matmul("minilm", 128, 1536, 384),
    matmul("gpt2", 128, 768, 2304), matmul("gpt2 head", 128, 768, 50257),
    matmul("vit_small", 197, 384, 1152), matmul("vit_small", 197, 384, 384), matmul("vit_small", 197, 384, 1536),
    matmul("vit_small", 197, 1536, 384),
    matmul("llama decode", 1, 768, 3072), matmul("llama decode", 1, 3072, 768), matmul("llama", 4, 768, 3072),
    conv("regnety", 56, 64, 64, 3, 1, 4), conv("regnety", 28, 128, 128, 3, 1, 8),
    conv("regnety", 14, 320, 320, 3, 1, 20),
    conv("regnety", 7, 768, 768, 3, 1, 48), conv("regnety", 14, 320, 320),
    conv("densenet", 56, 128, 32, 3), conv("densenet", 28, 128, 32, 3), conv("densenet", 14, 128, 32, 3),
    conv("densenet", 7, 128, 32, 3), conv("densenet", 56, 160, 128), conv("densenet", 14, 768, 128),
    conv("mobilenet", 112, 16, 64), conv("mobilenet", 56, 24, 72), conv("mobilenet", 28, 40, 120),
    conv("mobilenet", 14, 80, 480), conv("mobilenet", 7, 960, 160), conv("convnext", 56, 96, 384),
]  # fmt: skip


def kernel_of(shape: Shape, machine: Machine, plan: Plan | None = None) -> tuple[Kernel, Plan]:
    """relu(acc + bias)."""
    c = shape.c
    plan = plan or plan_contraction(c, machine)
    a, b, bias, out = Buffer("a", c.a), Buffer("b", c.b), Buffer("bias", f32), Buffer("out", f32, writable=True)
    top, chunk = Block(), k.var("chunk")
    go = int(c.cols[-1].extent)  # type: ignore[arg-type]

    def write(block: Block, index: tuple[k.Expr, ...], acc: k.Expr, mask: k.Expr | None) -> None:
        at = linear(index, shape.strides)
        column = linear((*index[: len(c.batch)], index[-1]), (*(go,) * len(c.batch), 1))
        first, at = (e.base if isinstance(e, k.Ramp) else e for e in (column, at))
        value = k.binary("max", k.add(acc, k.load(bias, first, acc.lanes, mask)), k.lit(0.0, f32, acc.lanes))
        block.store(out, at, value, mask)

    chunks = emit_macro_kernel(top, chunk, c, plan, Operand(a), Operand(b), write)
    return Kernel("k", (a, b, bias, out), (), chunk, chunks, top.body, plan.scratch_bytes), plan


def program(
    shape: Shape, machine: Machine, weights: int = 48 << 20, plan: Plan | None = None
) -> tuple[Program, Plan, float]:
    """Steps in rotation and the milliseconds of compiling one kernel."""
    start = time.perf_counter()
    kernel, plan = kernel_of(shape, machine, plan)
    code = assemble([print_module([kernel], host_features())])
    compile_ms = (time.perf_counter() - start) * 1e3
    size = -(-shape.b * 5 // 4 // 64) * 64 * shape.c.b.nbytes  # panels are padded
    steps = max(2, min(64, weights // size))
    assert isinstance(kernel.chunks, Lit)
    blob = aligned_bytes(size * steps)
    blob.view(shape.c.b.numpy)[:] = 1e-3
    buffers = [Memory(0, "input", 4, index=0), Memory(1, "output", 4, index=0)]
    for i in range(2):
        buffers.append(Memory(2 + i, "arena", shape.a * 4, 0, steps))
        buffers.append(Memory(4 + i, "arena", shape.out * 4, 0, steps))
    buffers.append(Memory(6, "arena", 1 << 20, 0, steps))
    buffers += [Memory(7 + i, "weight", size, offset=i * size) for i in range(steps)]
    plain = [
        Step("k", ((2 + i % 2, 0), (7 + i, 0), (6, 0), (4 + i % 2, 0)), (), int(kernel.chunks.value))
        for i in range(steps)
    ]
    spec = TensorSpec("x", "f32", (1,))
    made = Program(
        symbols=(), inputs=(spec,), outputs=(TensorSpec("y", "f32", (1,)),), buffers=tuple(buffers), steps=tuple(plain),
        code={"cpu": code}, weights=blob, scratch_bytes=kernel.scratch_bytes + 64,
    )  # fmt: skip
    return made, plan, compile_ms


@dataclass(frozen=True)
class Rate:
    """GFLOP/s: of the best burst and of the median one."""

    best: float
    median: float


def bursts(run: Callable[[], object], flops: int, seconds: float, threads: int) -> Rate:
    """Short bursts for `seconds`: on a machine with other work, the best ones fall into quiet moments.

    One thread is timed by the processor time it got, which leaves out the time it waited for a core.
    """
    clock = time.process_time if threads == 1 else time.perf_counter
    run()
    rates = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(rates) < 5:
        start = clock()
        run()
        rates.append(flops / (clock() - start) / 1e9)
    rates.sort()
    return Rate(rates[int(len(rates) * 0.95)], statistics.median(rates))


def rate(shape: Shape, threads: int, seconds: float) -> tuple[Rate, Plan, float, int]:
    """(rate, plan, compile ms, chunks)."""
    made, plan, compile_ms = program(shape, host_machine(threads))
    model = CompiledModel(made, threads=threads)
    x = np.zeros(1, np.float32)
    got = bursts(lambda: model(x), shape.c.flops * len(made.steps), seconds, threads)
    return got, plan, compile_ms, int(made.steps[0].chunks)  # type: ignore[arg-type]


def _torch_mm(m: int, kk: int, n: int) -> Callable[[], object]:
    import torch

    steps = max(2, min(64, (48 << 20) // (kk * n * 4)))
    a, out = torch.full((m, kk), 1e-3), torch.empty(m, n)
    weights = [torch.full((kk, n), 1e-3) for _ in range(steps)]

    def run() -> int:
        for w in weights:
            torch.mm(a, w, out=out)
        return steps

    return run


def _torch_conv(size: int, ci: int, co: int, s: int, stride: int, groups: int) -> Callable[[], object]:
    import torch

    w = (size - 1) * stride + s
    steps = max(2, min(64, (48 << 20) // (ci // groups * co * s * s * 4)))
    x = torch.full((1, ci, w, w), 1e-3).to_mkldnn()
    weights = [torch.full((co, ci // groups, s, s), 1e-3) for _ in range(steps)]
    native: Any = torch._C._nn  # type: ignore[attr-defined]
    packed = [native.mkldnn_reorder_conv2d_weight(v.to_mkldnn(), 0, stride, 1, groups, (1, ci, w, w)) for v in weights]

    def run() -> int:
        for v in packed:
            torch.ops.aten.mkldnn_convolution(x, v, None, (0, 0), (stride, stride), (1, 1), groups)
        return steps

    return run


def peer_rate(shape: Shape, threads: int, seconds: float) -> Rate:
    import torch

    torch.set_num_threads(threads)
    assert shape.peer is not None
    with torch.inference_mode():
        run = shape.peer()
        steps = int(run())  # type: ignore[call-overload]
        return bursts(run, shape.c.flops * steps, seconds, threads)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("filters", nargs="*")
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--seconds", type=float, default=0.5, help="per shape and thread count")
    parser.add_argument("--types", default="f32,f32", help="of A and B; sums are f32")
    options = parser.parse_args()
    a, b = (DTYPES[name] for name in options.types.split(","))
    threads = [int(t) for t in options.threads.split(",")]
    probe = PeakProbe()
    peak = max(probe() for _ in range(100))
    print(f"multiply-add peak of one core: {peak:.0f} GFLOP/s. Best (median) share of it:")
    print(
        f"{'shape':38} {'tile':>8} {'chunks':>6} {'compile':>8} " + " ".join(f"{f'{t} threads':>22}" for t in threads)
    )
    shares: dict[int, list[float]] = {t: [] for t in threads}
    for shape in SHAPES:
        if options.filters and not any(f in shape.name for f in options.filters):
            continue
        shape = replace(shape, c=replace(shape.c, a=a, b=b))
        cells, tile, chunks, ms = [], "", 0, 0.0
        for t in threads:
            got, plan, ms, chunks = rate(shape, t, options.seconds)
            tile = f"{plan.lines}x{plan.width}x{plan.panel_columns}"
            shares[t].append(got.best / peak / t)
            text = f"{got.best:5.0f} {got.best / peak / t:4.0%} ({got.median / peak / t:4.0%})"
            if options.peers:
                text += f" torch {peer_rate(shape, t, options.seconds).best:5.0f}"
            cells.append(f"{text:>22}")
        print(f"{shape.name:38} {tile:>8} {chunks:6} {ms:6.0f}ms " + " ".join(cells), flush=True)
    print(
        "geometric mean of the best shares:", {t: f"{statistics.geometric_mean(v):.0%}" for t, v in shares.items() if v}
    )


if __name__ == "__main__":
    main()
