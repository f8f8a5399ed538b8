"""What this machine can do right now, by tiny kernels of Ingot's own: multiply-add peak and memory bandwidth."""

from __future__ import annotations

import platform
from pathlib import Path

import numpy as np

from ingot.ir import kernel as k
from ingot.ir.kernel import Buffer, Kernel
from ingot.ir.types import f32
from ingot.pipeline.target import features_of, target_of
from ingot.runtime import program as rt
from ingot.runtime.cpu.pool import threads_text
from ingot.runtime.executor import CompiledModel
from ingot.schedule.block import Block
from ingot.schedule.cpu.machine import Machine
from ingot.schedule.index import add, integer, mul
from ingot.support.dataclass import dataclass

_ACCUMULATORS = 12  # more than latency times throughput of any current core
_ITERATIONS = 20_000
_MAX_WORKING_SET_BYTES = 256 << 20  # several times the last-level cache of any current machine
_MIN_SLICE_BYTES = 32 << 10  # smaller ones would measure the hand-over of chunks
_REPEATS = 9
_PEAK_RUNS = 20  # short runs of the multiply-add loop in each repeat: some fall between a neighbour's


@dataclass(frozen=True)
class Rates:
    """What all threads together reach. gflops: f32 multiply-adds, 2 each; on GPUs those of the type that the model
    multiplies. threads: 0 where there is no number of them. gbytes: GB/s on `working_set` bytes, the
    better of reading and copying (which counts what is read and what is written)."""

    cpu: str
    threads: int
    gflops: float
    gbytes: float
    working_set: int

    @property
    def machine(self) -> str:
        return f"{self.cpu}, {threads_text(self.threads)}" if self.threads else self.cpu


def cpu_name() -> str:
    """The processor's name according to the kernel."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def measure(threads: int, working_set: int = _MAX_WORKING_SET_BYTES) -> Rates:
    """Run the probes on `threads` threads: about a second.

    `working_set`: bytes that are gone through again and again, such as a model's weights and arena together; at most
    256 MiB. Where they fit into a cache, the rate is the cache's.
    """
    features = features_of("native")
    target = target_of(features)
    machine = target.machine(features, threads, {})
    lanes, chunks = machine.lanes(f32), 8 * threads
    working_set = min(max(working_set, 2 * threads * _MIN_SLICE_BYTES), _MAX_WORKING_SET_BYTES)
    slices = min(working_set // 2 // _MIN_SLICE_BYTES, 64)
    n = working_set // 2 // 4 // slices // (8 * lanes) * (8 * lanes)  # floats in a slice
    half = 4 * n * slices
    cells = max(chunks, slices) * _ACCUMULATORS * lanes
    assembler = target.assembler(features)
    for kernel in (_peak(machine), _copy(machine, n), _sum(machine, n)):
        assembler.add(kernel)
    iterations = max(1, (8 << 20) // half)
    copies = (rt.Step("copy", ((0, 0), (1, 0)), (), slices), rt.Step("copy", ((1, 0), (0, 0)), (), slices))
    reads = (rt.Step("sum", ((0, 0), (2, 0)), (), slices), rt.Step("sum", ((1, 0), (2, 0)), (), slices))
    peaks = (rt.Step("peak", ((2, 0),), (), chunks),)
    steps = (*peaks * _PEAK_RUNS, *copies * iterations, *reads * iterations)
    # two arrays that the copies write in turn: untouched pages would all be one page of zeros in the cache
    buffers = (
        rt.Buffer(0, "arena", half, 0, len(steps) - 1),
        rt.Buffer(1, "arena", half, 0, len(steps) - 1),
        rt.Buffer(2, "output", 4 * cells, index=0),
    )
    program = rt.Program(
        symbols=(),
        inputs=(),
        outputs=(rt.TensorSpec("sink", "f32", (cells,)),),
        buffers=buffers,
        steps=steps,
        code={target.name: assembler.finish()},
        weights=np.empty(0, np.uint8),
    )
    model = CompiledModel(program, threads=threads)
    times = np.array([[seconds for _, seconds in model.profile()] for _ in range(_REPEATS)])
    # the best of many: a peak is what the machine can do when nobody disturbs it
    peak_times, copy_times, sum_times = np.split(times, [_PEAK_RUNS, _PEAK_RUNS + 2 * iterations], axis=1)
    peak = float(peak_times.min())
    copy, read = (float(t.sum(1).min()) / (2 * iterations) for t in (copy_times, sum_times))
    flops = 2 * _ACCUMULATORS * lanes * _ITERATIONS * chunks
    return Rates(cpu_name(), threads, flops / peak / 1e9, max(2 * half / copy, half / read) / 1e9, 2 * half)


def _registers(b: Block, lanes: int) -> Buffer:
    """Accumulators, all zero."""
    acc = b.alloc("acc", f32, _ACCUMULATORS, lanes=lanes)
    b.loop("i", 0, _ACCUMULATORS, 1, lambda c, i: c.store(acc, i, k.lit(0.0, f32, lanes)), unroll=True)
    return acc


def _flush(b: Block, acc: Buffer, sink: Buffer, chunk: k.Var) -> None:
    """Store the accumulators in the chunk's own place, so that nothing can be left out."""

    def store(c: Block, i: k.Expr) -> None:
        c.store(sink, mul(add(mul(chunk, integer(_ACCUMULATORS)), i), integer(acc.lanes)), k.load(acc, i))

    b.loop("i", 0, _ACCUMULATORS, 1, store, unroll=True)


def _peak(machine: Machine) -> Kernel:
    """Independent multiply-adds on registers."""
    lanes, chunk = machine.lanes(f32), k.var("chunk")
    sink = Buffer("sink", f32, writable=True, align=4)
    top = Block()
    factor = k.lit(0.5, f32, lanes)
    acc = _registers(top, lanes)

    def iterate(b: Block, _: k.Expr) -> None:
        def one(c: Block, i: k.Expr) -> None:
            c.store(acc, i, k.fma(factor, factor, k.load(acc, i)))

        b.loop("i", 0, _ACCUMULATORS, 1, one, unroll=True)

    top.loop("t", 0, _ITERATIONS, 1, iterate)
    _flush(top, acc, sink, chunk)
    return Kernel("peak", (sink,), (), chunk, integer(1), top.body)


def _copy(machine: Machine, n: int) -> Kernel:
    """One slice of n floats of one array to another."""
    lanes, chunk = machine.lanes(f32), k.var("chunk")
    x, y = Buffer("x", f32), Buffer("y", f32, writable=True)
    top = Block()
    start = top.let(mul(chunk, integer(n)))

    def iterate(b: Block, index: k.Expr) -> None:
        offset = add(start, index)
        b.store(y, offset, k.load(x, offset, lanes))

    top.loop("t", 0, n, lanes, iterate)
    return Kernel("copy", (x, y), (), chunk, integer(1), top.body)


def _sum(machine: Machine, n: int) -> Kernel:
    """The sum of one slice of n floats: reads only."""
    lanes, chunk = machine.lanes(f32), k.var("chunk")
    x, sink = Buffer("x", f32), Buffer("sink", f32, writable=True, align=4)
    top, width = Block(), 8 * lanes
    start = top.let(mul(chunk, integer(n)))
    acc = _registers(top, lanes)

    def iterate(b: Block, index: k.Expr) -> None:
        def one(c: Block, i: k.Expr) -> None:
            offset = add(start, add(index, mul(i, integer(lanes))))
            c.store(acc, i, k.add(k.load(acc, i), k.load(x, offset, lanes)))

        b.loop("i", 0, 8, 1, one, unroll=True)

    top.loop("t", 0, n, width, iterate)
    _flush(top, acc, sink, chunk)
    return Kernel("sum", (x, sink), (), chunk, integer(1), top.body)
