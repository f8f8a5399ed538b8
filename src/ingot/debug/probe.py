"""What this machine can do right now, by tiny kernels of Ingot's own: multiply-add peak and memory bandwidth."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ingot.ir import kernel as k
from ingot.ir.kernel import Buffer, Kernel
from ingot.ir.types import f32
from ingot.runtime import program as rt
from ingot.runtime.executor import CompiledModel
from ingot.schedule.block import Block
from ingot.schedule.index import add, integer, mul
from ingot.schedule.machine import Machine, machine_of
from ingot.targets.cpu.assemble import assemble, host_features
from ingot.targets.cpu.llvm import print_module

_ACCUMULATORS = 12  # more than latency times throughput of any current core
_TURNS = 20_000
_STREAM = 128 << 20  # bytes: several times the last-level cache
_SLICES = 64
_REPEATS = 9


@dataclass(frozen=True)
class Rates:
    """f32 multiply-adds of all threads together, in GFLOP/s (2 per multiply-add); memory in GB/s, the better of reading
    and copying (a copy counts what is read and what is written)."""

    cpu: str
    threads: int
    gflops: float
    gbytes: float


def cpu_name() -> str:
    """The processor's name as the kernel tells it."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def measure(threads: int) -> Rates:
    """Run the probes on `threads` threads: about a second, and 256 MiB of memory while it lasts."""
    isa = host_features()
    machine = machine_of(isa.arch, isa.features, threads)
    lanes, chunks = machine.lanes(f32), 8 * threads
    cells = max(chunks, _SLICES) * _ACCUMULATORS * lanes
    kernels = [_peak(machine), _copy(machine), _sum(machine)]
    # two arrays that the copies write in turn: untouched pages would all be one page of zeros in the cache
    buffers = (
        rt.Buffer(0, "arena", _STREAM, 0, 3),
        rt.Buffer(1, "arena", _STREAM, 0, 3),
        rt.Buffer(2, "output", 4 * cells, index=0),
    )
    program = rt.Program(
        symbols=(),
        inputs=(),
        outputs=(rt.TensorSpec("sink", "f32", (cells,)),),
        buffers=buffers,
        steps=(
            rt.Step("peak", ((2, 0),), (), chunks),
            rt.Step("copy", ((0, 0), (1, 0)), (), _SLICES),
            rt.Step("copy", ((1, 0), (0, 0)), (), _SLICES),
            rt.Step("sum", ((0, 0), (2, 0)), (), _SLICES),
        ),
        code=assemble([print_module(kernels, isa)], isa),
        weights=np.empty(0, np.uint8),
        isa=isa,
    )
    model = CompiledModel(program, threads=threads)
    times = np.array([[seconds for _, seconds in model.profile()] for _ in range(_REPEATS)])
    # the best of many: a peak is what the machine can do when nobody disturbs it
    peak, there, back, read = (float(t) for t in times.min(0))
    flops = 2 * _ACCUMULATORS * lanes * _TURNS * chunks
    moved = max(2 * _STREAM / min(there, back), _STREAM / read)
    return Rates(cpu_name(), threads, flops / peak / 1e9, moved / 1e9)


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

    def turn(b: Block, _: k.Expr) -> None:
        def one(c: Block, i: k.Expr) -> None:
            c.store(acc, i, k.fma(factor, factor, k.load(acc, i)))

        b.loop("i", 0, _ACCUMULATORS, 1, one, unroll=True)

    top.loop("t", 0, _TURNS, 1, turn)
    _flush(top, acc, sink, chunk)
    return Kernel("peak", (sink,), (), chunk, integer(1), top.body)


def _copy(machine: Machine) -> Kernel:
    """One slice of one array to another."""
    lanes, chunk = machine.lanes(f32), k.var("chunk")
    x, y = Buffer("x", f32), Buffer("y", f32, writable=True)
    top, n = Block(), _STREAM // 4 // _SLICES
    start = top.let(mul(chunk, integer(n)))

    def turn(b: Block, at: k.Expr) -> None:
        place = add(start, at)
        b.store(y, place, k.load(x, place, lanes))

    top.loop("t", 0, n, lanes, turn)
    return Kernel("copy", (x, y), (), chunk, integer(1), top.body)


def _sum(machine: Machine) -> Kernel:
    """The sum of one slice: reads only."""
    lanes, chunk = machine.lanes(f32), k.var("chunk")
    x, sink = Buffer("x", f32), Buffer("sink", f32, writable=True, align=4)
    top, width = Block(), 8 * lanes
    n = _STREAM // 4 // _SLICES
    start = top.let(mul(chunk, integer(n)))
    acc = _registers(top, lanes)

    def turn(b: Block, at: k.Expr) -> None:
        def one(c: Block, i: k.Expr) -> None:
            place = add(start, add(at, mul(i, integer(lanes))))
            c.store(acc, i, k.add(k.load(acc, i), k.load(x, place, lanes)))

        b.loop("i", 0, 8, 1, one, unroll=True)

    top.loop("t", 0, n, width, turn)
    _flush(top, acc, sink, chunk)
    return Kernel("sum", (x, sink), (), chunk, integer(1), top.body)
